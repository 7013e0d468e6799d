"""The built-in tools as an agent uses them: through a worker, with approvals and stops."""

from pathlib import Path

from holdfast.core.records import State
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.files import file_tools
from holdfast.tools.shell import shell_tool
from holdfast.tools.shell_policy import ShellPolicy
from holdfast.worker.agents import Agent
from tests.support.turns import rested, running, said


async def test_an_agent_writes_runs_and_reads(store_url: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    model = ScriptedModel(
        [Call(name="write_file", arguments={"path": "a.txt", "content": "hello\n"})],
        [Call(name="shell", arguments={"command": "cat a.txt | tr a-z A-Z"})],
        [Call(name="read_file", arguments={"path": "../a.txt"}), Call(name="read_file", arguments={"path": "a.txt"})],
        "Done.",
    )
    tools = [*file_tools(str(root)), shell_tool(root=str(root), policy=None)]
    async with running(store_url, Agent("dev", model, tools=tools)) as (app, _):
        chat = await app.create("dev", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert texts[1] == "HELLO\n[exit code 0]"
    assert "hello" not in texts[2]
    assert texts[3] == "hello\n"
    assert (root / "a.txt").read_text() == "hello\n"


async def test_a_command_that_the_policy_does_not_know_waits_for_a_person_and_then_runs(
    store_url: str, tmp_path: Path
) -> None:
    commands = ["echo harmless", "echo $(date) > made"]
    model = ScriptedModel(*([Call(name="shell", arguments={"command": command})] for command in commands), "Done.")
    shell = shell_tool(root=str(tmp_path), policy=ShellPolicy(allow=[("echo",)]))
    async with running(store_url, Agent("dev", model, tools=[shell])) as (app, _):
        chat = await app.create("dev", "go")
        assert await rested(chat) is State.WAITING
        (call,) = (await chat.snapshot()).open_calls
        assert not (tmp_path / "made").exists()
        await chat.approve(call.id, by="ada")
        while await chat.state() is not State.IDLE:
            await rested(chat)
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert texts[0] == "harmless\n[exit code 0]"
    assert (tmp_path / "made").exists()
