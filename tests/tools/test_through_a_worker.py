"""The built-in tools as an agent uses them: through a worker, with approvals and stops."""

from pathlib import Path

from holdfast.agent import Agent
from holdfast.app import diagnostics
from holdfast.config import Permissions
from holdfast.core.records import State
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.files.tools import file_tools
from holdfast.tools.shell.tool import shell_tool
from holdfast.tools.web.cache import install_cache, remove_cache
from holdfast.tools.web.fetch import fetch_tool
from tests.support.turns import rested, running, said
from tests.support.waiting import until
from tests.tools import isolates
from tests.tools.sites import INSIDE, Names, site


async def test_an_agent_writes_runs_and_reads(store_url: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    model = ScriptedModel(
        [Call(name="write_file", arguments={"path": "a.txt", "content": "hello\n"})],
        [Call(name="shell", arguments={"command": "cat a.txt | tr a-z A-Z"})],
        [Call(name="read_file", arguments={"path": "../a.txt"}), Call(name="read_file", arguments={"path": "a.txt"})],
        "Done.",
    )
    tools = [*file_tools(str(root)), shell_tool(root=str(root), contained=True)]
    async with running(store_url, Agent("dev", model, tools=tools, permissions=Permissions(mode="edit"))) as (app, _):
        chat = await app.create("dev", "go")
        assert await rested(chat) is State.IDLE
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert texts[1] == "HELLO\n[exit code 0]"
    assert "hello" not in texts[2]
    assert texts[3].startswith("     1\thello\n")
    assert (root / "a.txt").read_text() == "hello\n"


async def test_a_command_that_no_rule_allows_waits_for_a_person_and_then_runs(store_url: str, tmp_path: Path) -> None:
    commands = ["echo harmless", "echo $(date) > made"]
    model = ScriptedModel(*([Call(name="shell", arguments={"command": command})] for command in commands), "Done.")
    rules = Permissions(rules=["allow run(echo *)"])
    agent = Agent("dev", model, tools=[shell_tool(root=str(tmp_path))], permissions=rules)
    async with running(store_url, agent) as (app, _):
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


async def test_an_agent_fetches_what_is_public_and_is_refused_what_is_inside(store_url: str, tmp_path: Path) -> None:
    install_cache(tmp_path / "cache.db", bytes_max=1_000_000)
    try:
        async with site() as served:
            urls = [f"http://site.test:{served.port}/fresh", f"http://127.0.0.1:{served.port}/secret"]
            inside = [f"http://loop.test:{served.port}/secret", f"http://site.test:{served.port}/to-loopback"]
            model = ScriptedModel(
                [Call(name="fetch", arguments={"urls": urls})],
                [Call(name="fetch", arguments={"urls": urls[:1]}), Call(name="fetch", arguments={"urls": inside})],
                "Done.",
            )
            fetch = fetch_tool(resolve=Names())
            rules = Permissions(rules=["allow reach(site.test:*)", "allow reach(*:*)"])
            before = diagnostics(detailed=True)["process"]["tools"]["fetch"]
            async with running(store_url, Agent("reader", model, tools=[fetch], permissions=rules)) as (app, _):
                chat = await app.create("reader", "go")
                assert await rested(chat) is State.IDLE
                told = diagnostics(detailed=True)["process"]["tools"]
                texts = [text for role, text in said(await chat.messages()) if role == "tool"]
            assert served.hits == {"/fresh": 1, "/to-loopback": 1}
    finally:
        remove_cache()
    assert "fresh" in texts[0]
    assert "Failed: not fetched: 127.0.0.1 is an internal address (loopback)" in texts[0]
    assert "from the cache" in texts[1]
    assert texts[2].count("is an internal address (loopback)") == 2
    assert not any(INSIDE in text for text in texts)
    counted = {name: told["fetch"][name] - before[name] for name in ("running", "asked", "failed", "from_cache")}
    assert counted == {"running": 0, "asked": 5, "failed": 3, "from_cache": 1}
    assert told["fetch"]["text_threads"] <= told["fetch"]["text_threads_max"] == 2
    assert told["fetch"]["lookup_threads"] <= told["fetch"]["lookup_threads_max"] == 4
    cache = told["web_cache"]
    assert 0 < cache["bytes"] <= cache["bytes_max"] == 1_000_000
    assert cache["failures"] == 0


async def test_health_counts_the_processes_of_tools_beside_their_limit(store_url: str, tmp_path: Path) -> None:
    model = ScriptedModel(
        [
            Call(name="shell", arguments={"command": "sleep 60"}),
            Call(name="block", arguments={"path": f"{tmp_path}/pids"}),
        ],
        "Done.",
    )
    tools = [shell_tool(root=str(tmp_path), contained=True), isolates.block]

    rules = Permissions(mode="edit", rules=["allow call(block)"])

    def children() -> dict[str, int]:
        found: dict[str, int] = diagnostics(detailed=True)["process"]["tools"]["children"]
        return found

    async with running(store_url, Agent("dev", model, tools=tools, permissions=rules)) as (app, worker):
        chat = await app.create("dev", "go")
        await until(lambda: children()["running"] == 2)
        assert {running.tool for running in worker.running_tools()} == {"shell", "block"}
        assert worker.guard is not None
        assert worker.guard.group_count == 2
        assert children()["running_max"] == 256
        await chat.stop()
        assert await rested(chat) is State.IDLE
        await until(lambda: children() == {"running": 0, "running_max": 256, "ending": 0})
