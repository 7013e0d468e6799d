"""Permissions as a chat meets them: rules of app and agent, tools that ask by themselves, nobody to be asked."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent, AgentLimits
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.config import Permissions, load_config
from holdfast.core.journal import CallChanged, CallsStarted, MessageAdded
from holdfast.core.records import State
from holdfast.errors import ConfigError, ToolFailed
from holdfast.hooks import Ask, Hook
from holdfast.mcp_servers import McpServer
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.system.sandbox import Sandbox
from holdfast.tools.base import ToolOutput, tool
from holdfast.tools.context import ToolContext
from holdfast.tools.files.tools import file_tools
from holdfast.tools.mcp.tools import Listed, tools_of
from holdfast.tools.outside import ask_user, sleep_until
from holdfast.tools.permissions.acts import Act, CallTool, Read, Write
from holdfast.tools.permissions.decision import ALLOWED
from holdfast.tools.permissions.rulebook import Rulebook
from holdfast.tools.plan import plan_tool
from holdfast.tools.results import read_result_tool
from holdfast.tools.shell.sessions import session_tools
from holdfast.tools.shell.tool import shell_tool
from holdfast.tools.sub_agents import agent_tools
from tests.support.turns import Gate, entries, rested, running, said
from tests.support.waiting import until

ASKED = Permissions(mode="ask")


@tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def agent(
    *calls: Call, tools: list[Any], permissions: Permissions | None = None, hooks: tuple[Hook, ...] = ()
) -> Agent:
    return Agent("a", ScriptedModel(list(calls), "Done."), tools=tools, permissions=permissions, hooks=hooks)


async def told(chat: Chat) -> list[str]:
    return [text for role, text in said(await chat.messages()) if role == "tool"]


PAY = Call(name="pay", arguments={"cents": 5})


@pytest.mark.parametrize(
    ("permissions", "wanted"),
    [
        (None, "paid 5"),
        (Permissions(mode="ask"), "Allow call(pay)? It is not done unasked: no rule allows it."),
        (Permissions(rules=["allow call(pay)"]), "paid 5"),
        (Permissions(rules=["allow call(p*)"]), "paid 5"),
        (Permissions(mode="edit"), "Allow call(pay)?"),
        (Permissions(mode="read"), "Denied: call(pay): no rule allows it, and the mode `read` is for reading"),
        (Permissions(mode="unattended"), "Denied: call(pay): no person is there to be asked, and no rule allows it."),
        (Permissions(mode="unattended", rules=["allow call(pay)"]), "paid 5"),
        (Permissions(rules=["deny call(pay)"]), "Denied: call(pay): the rule `deny call(pay)` says deny."),
        (Permissions(rules=["deny call(pay) for b"]), "Allow call(pay)?"),
        (Permissions(rules=["allow call(pay)", "deny call(pay) for a"]), "Denied: call(pay)"),
    ],
)
async def test_a_call_of_a_tool_of_ones_own_is_judged_by_its_name(
    store_url: str, permissions: Permissions | None, wanted: str
) -> None:
    async with running(store_url, agent(PAY, tools=[pay], permissions=permissions)) as (app, _):
        chat = await app.create("a", "go")
        if await rested(chat) is State.WAITING:
            (call,) = await chat.open_calls()
            assert (call.why or "").startswith(wanted)
            await call.approve()
            while await chat.state() is not State.IDLE:
                await rested(chat)
            assert await told(chat) == ["paid 5"]
        else:
            (result,) = await told(chat)
            assert result.startswith(wanted)


async def test_file_tools_are_judged_by_what_they_read_and_write(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / ".env").write_text("KEY")
    (tmp_path / "link").symlink_to(".env")
    rules = Permissions(mode="unattended", rules=["allow write(src/**)", "deny read(**/.env*)"])
    calls = [
        Call(name="write_file", arguments={"path": "src/a", "content": "x"}),
        Call(name="write_file", arguments={"path": "a", "content": "x"}),
        Call(name="read_file", arguments={"path": "src/a"}),
        Call(name="read_file", arguments={"path": "link"}),
        Call(name="edit_file", arguments={"path": "link", "old": "K", "new": "X"}),
        Call(name="search_files", arguments={"text": "KEY"}),
        Call(name="search_files", arguments={"text": "KEY", "hidden": True}),
        Call(name="list_files", arguments={}),
    ]
    model = ScriptedModel(*([call] for call in calls), "Done.")
    coder = Agent("a", model, tools=file_tools(tmp_path), permissions=rules)
    async with running(store_url, coder) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = await told(chat)
    starts = ["Wrote 1", "Denied: write(a)", "", "Denied: read(link): the rule", "Denied: read(link): the rule"]
    assert [text[: len(start)] for text, start in zip(texts, starts, strict=False)] == starts
    assert texts[2].split()[:2] == ["1", "x"]
    assert not any("KEY" in text for text in texts)
    assert texts[6].startswith("Denied: read(.): the rule `deny read(**/.env*)` says deny, which is about `.env`")
    assert "src/" in texts[7]


async def test_what_a_tool_or_a_hook_asks_no_allow_takes_back(store_url: str) -> None:
    careful = tool(needs_approval=True)(pay.function)
    hook = Hook("before_tool", lambda call, context: Ask(question="Sure?"))
    rules = Permissions(rules=["allow call(pay)"])
    for tools, hooks, question in (([careful], (), "Run pay?"), ([pay], (hook,), "Sure?")):
        async with running(store_url, agent(PAY, tools=tools, permissions=rules, hooks=hooks)) as (app, _):
            chat = await app.create("a", "go")
            assert await rested(chat) is State.WAITING
            assert [call.why for call in await chat.open_calls()] == [question]


async def test_where_several_ask_a_person_is_told_all_of_it(store_url: str) -> None:
    careful = tool(needs_approval=True)(pay.function)
    async with running(store_url, agent(PAY, tools=[careful], permissions=ASKED)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (call,) = await chat.open_calls()
        assert call.why == "Run pay?\nAllow call(pay)? It is not done unasked: no rule allows it."


@pytest.mark.parametrize("how", ["mode", "metadata"])
async def test_where_no_person_is_there_what_a_tool_asks_is_denied_too(store_url: str, how: str) -> None:
    careful = tool(needs_approval=True)(pay.function)
    rules = Permissions(mode="unattended", rules=["allow call(pay)"]) if how == "mode" else None
    async with running(store_url, agent(PAY, tools=[careful], permissions=rules)) as (app, _):
        chat = await app.create("a", "go", metadata={"unattended": True} if how == "metadata" else {})
        assert await rested(chat) is State.IDLE
        assert await told(chat) == ["Denied: no person is there to be asked, and this needs one: Run pay?"]


async def test_a_question_to_a_person_needs_no_permission_but_can_be_denied(store_url: str) -> None:
    call = Call(name="ask_user", arguments={"question": "Which one?"})
    for permissions, state in (
        (Permissions(mode="read"), State.WAITING),
        (Permissions(mode="read", rules=["deny call(ask_user)"]), State.IDLE),
    ):
        async with running(store_url, agent(call, tools=[ask_user()], permissions=permissions)) as (app, _):
            assert await rested(await app.create("a", "go")) is state


async def test_a_tool_that_says_what_it_does_is_judged_by_that(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def acts(arguments: dict[str, Any]) -> list[Act]:
        if arguments["name"] == "refused":
            raise ToolFailed("not this one")
        if arguments["name"] == "broken":
            raise RuntimeError("no idea")
        return [Read(path=arguments["name"]), Write(path="log")]

    @tool(acts=acts, root=tmp_path / "in")
    async def look(name: str, context: ToolContext) -> str:
        """Look."""
        return context.rulebook.judge([Write(path="other")]).ruling

    rules = Permissions(mode="unattended", rules=["allow write(log)"])
    calls = [Call(name="look", arguments={"name": name}) for name in ("a", "../a", "refused", "broken")]
    async with running(store_url, agent(*calls, tools=[look], permissions=rules)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        texts = await told(chat)
    assert texts[0] == "deny"
    assert texts[1].startswith("Denied: read(../a): no person is there to be asked")
    assert texts[2].startswith("Denied: call(look): not this one")
    assert "it cannot be judged (approval of look failed: RuntimeError: no idea)" in texts[3]


def test_a_tool_of_a_server_is_a_call_by_the_names_of_both() -> None:
    async def run(*_: Any) -> ToolOutput:
        return ToolOutput()

    found = tools_of(McpServer("github", command="x"), [Listed(name="get_issue", read_only=True)], run)
    assert found["github_get_issue"].acts_of({}) == [CallTool(server="github", tool="get_issue")]


def test_what_is_started_as_a_session_is_a_run_and_what_is_written_to_one_cannot_be_told(tmp_path: Path) -> None:
    start, read, write, end = session_tools(root=tmp_path)
    assert [str(act) for act in start.acts_of({"command": "ls > a"})] == ["run(ls)", "read(.)", "write(a)"]
    assert [*read.acts_of({}), *end.acts_of({})] == []
    for rules, ruling in ((["allow run(*)"], "ask"), (["deny run(sudo *)"], "deny")):
        assert Rulebook(rules, "ask").judge(write.acts_of({"text": "sudo ls\n"}), write.whereabouts).ruling == ruling


@pytest.mark.parametrize(
    ("sandbox", "ruling"),
    [
        (None, "ask"),
        (Sandbox(), "allow"),
        (Sandbox(network=True), "ask"),
        (Sandbox(readable=["/srv"]), "ask"),
        (Sandbox(writable=["/srv"]), "ask"),
    ],
)
def test_a_command_in_a_sandbox_that_holds_is_not_asked_about_under_edit(
    tmp_path: Path, sandbox: Sandbox | None, ruling: str
) -> None:
    for made in (shell_tool(root=tmp_path, sandbox=sandbox), session_tools(root=tmp_path, sandbox=sandbox)[0]):
        acts = made.acts_of({"command": "make $(id)"})
        assert Rulebook(mode="edit").judge(acts, made.whereabouts).ruling == ruling
        assert Rulebook(mode="ask").judge(acts, made.whereabouts).ruling == "ask"


def test_tools_that_do_nothing_are_asked_about_under_no_mode() -> None:
    for made in (ask_user(), sleep_until(), agent_tools(["a"])[1], plan_tool(), read_result_tool()):
        assert Rulebook(mode="read").judge(made.acts_of({}), made.whereabouts, made.name) == ALLOWED
    assert Rulebook(mode="ask").judge(agent_tools(["a"])[0].acts_of({})).ruling == "ask"


def test_a_body_in_another_process_has_rules_that_deny() -> None:
    assert Rulebook(mode="read").judge([CallTool(tool="x"), Write(path="y")]).ruling == "deny"


# --- settings ----------------------------------------------------------------------------------------------


def test_permissions_come_from_the_file_and_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[permissions]\nmode = "edit"\nrules = ["deny call(x)"]\nexamples = ["call(x) -> deny"]\n')
    config = load_config(file)
    assert config.permissions == Permissions(mode="edit", rules=["deny call(x)"], examples=["call(x) -> deny"])
    for text, words in (
        ('mode = "yolo"', "mode"),
        ('rule = ["x"]', "unknown field `rule`"),
        ('rules = "deny call(x)"', "rules"),
    ):
        file.write_text(f"[permissions]\n{text}\n")
        with pytest.raises(ConfigError, match=r"holdfast\.toml: permissions does not fit: .*" + words):
            load_config(file)


@pytest.mark.parametrize(
    ("permissions", "words"),
    [
        (Permissions(rules=["alow call(x)"]), "permissions: the rule `alow call(x)`: `alow` is not understood"),
        (Permissions(examples=["ls -> allow"]), "permissions: the example `ls -> allow` does not hold: ask came out"),
        (Permissions(rules=["deny write(**) for nobody"]), "there is no agent 'nobody'; this app has: a"),
    ],
)
def test_an_app_is_not_made_with_permissions_that_cannot_be_meant(permissions: Permissions, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        App(agents=[Agent("a", "scripted")], permissions=permissions)
    assert words in str(caught.value)


def test_an_agent_is_not_made_with_permissions_that_cannot_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"agent 'a': the example `ls -> deny` does not hold: ask came out"):
        Agent("a", "scripted", permissions=Permissions(examples=["ls -> deny"]))


async def test_the_rules_of_the_app_are_for_all_of_its_agents(store_url: str) -> None:
    app = App(store_url, agents=[agent(PAY, tools=[pay])], permissions=Permissions(rules=["deny call(pay) for a"]))
    async with app, app.worker(poll_s=0.1):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert (await told(chat))[0].startswith("Denied: call(pay): the rule `deny call(pay) for a` says deny")


# --- judged again, and told -----------------------------------------------------------------------------------


async def decisions(chat: Chat) -> list[str]:
    """As the journal has them."""
    found: list[str] = []
    for entry in await entries(chat):
        match entry:
            case MessageAdded() | CallsStarted():
                found += entry.decisions.values()
            case CallChanged(decision=str(decision)):
                found.append(decision)
    return found


@pytest.mark.parametrize(
    ("rules", "needs_approval", "told_of"),
    [
        (["allow call(pay)"], False, ["allow by rule allow call(pay)"]),
        (["deny call(pay)"], False, ["deny by rule deny call(pay)"]),
        (["ask call(pay)"], False, ["ask by rule ask call(pay)", "approved by ada"]),
        ([], False, ["ask by mode ask", "approved by ada"]),
        (["allow call(pay)"], True, ["ask by the tool", "approved by ada"]),
        ([], True, ["ask by the tool and mode ask", "approved by ada"]),
    ],
)
async def test_the_journal_says_what_decided(
    store_url: str, rules: list[str], needs_approval: bool, told_of: list[str]
) -> None:
    made = tool(needs_approval=needs_approval)(pay.function)
    async with running(store_url, agent(PAY, tools=[made], permissions=Permissions(rules=rules))) as (app, _):
        chat = await app.create("a", "go")
        if await rested(chat) is State.WAITING:
            (call,) = await chat.open_calls()
            await call.approve(by="ada")
            while await chat.state() is not State.IDLE:
                await rested(chat)
        assert await decisions(chat) == told_of


async def test_without_permissions_the_journal_says_nothing_of_them(store_url: str) -> None:
    async with running(store_url, agent(PAY, tools=[pay])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert await decisions(chat) == []


async def test_what_was_approved_is_judged_by_the_rules_of_the_day_that_it_starts(store_url: str) -> None:
    first = agent(PAY, tools=[pay], permissions=ASKED)
    async with running(store_url, first) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
    strict = agent(PAY, tools=[pay], permissions=Permissions(rules=["deny call(pay)"]))
    app = App(store_url, agents=[strict])
    async with app:
        chat = app.chat(chat.id)
        (call,) = await chat.open_calls()
        await call.approve(by="ada")
        async with app.worker(poll_s=0.1):
            while await chat.state() is not State.IDLE:
                await rested(chat)
        (result,) = await told(chat)
        assert result.startswith("Denied: call(pay): the rule `deny call(pay)` says deny")
        assert (await decisions(chat))[-1] == "deny by rule deny call(pay)"


async def test_a_path_that_leads_elsewhere_by_the_time_of_the_start_is_judged_where_it_leads(
    store_url: str, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "new").write_text("old")
    call = Call(name="write_file", arguments={"path": "new", "content": "x"})
    rules = Permissions(rules=["deny write(kept)"])
    async with running(store_url, agent(call, tools=file_tools(tmp_path), permissions=rules)) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (tmp_path / "new").unlink()
        (tmp_path / "new").symlink_to("kept")
        (asked,) = await chat.open_calls()
        await asked.approve()
        while await chat.state() is not State.IDLE:
            await rested(chat)
        assert "the rule `deny write(kept)` says deny" in (await told(chat))[0]
    assert (tmp_path / "kept").read_text() == "kept"


async def test_a_call_that_waited_for_a_place_is_judged_again(store_url: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY")
    for name in "ab":
        (tmp_path / name).write_text("plain")
    gate = Gate()
    judged: list[str] = []

    def acts(arguments: dict[str, Any]) -> list[Act]:
        judged.append(arguments["path"])
        return [Read(path=arguments["path"])]

    @tool(acts=acts, root=tmp_path)
    async def look(path: str) -> str:
        """Look."""
        return (tmp_path / path).read_text()

    calls = [Call(name="gate", arguments={}), *(Call(name="look", arguments={"path": name}) for name in "ab")]
    reader = Agent(
        "a",
        ScriptedModel(calls, "Done."),
        tools=[gate.tool(), look],
        permissions=Permissions(rules=["allow call(gate)", "deny read(**/.env*)"]),
        limits=AgentLimits(parallel_calls=1),
    )
    async with running(store_url, reader) as (app, _):
        chat = await app.create("a", "go")
        await gate.entered.wait()
        await until(lambda: judged == ["a", "b"])  # one after the other: the first is judged to its end
        (tmp_path / "a").unlink()
        (tmp_path / "a").symlink_to(".env")
        gate.opened.set()
        assert await rested(chat) is State.IDLE
        _, denied, read = await told(chat)
        assert denied.startswith("Denied: read(a): the rule `deny read(**/.env*)` says deny")
        assert read == "plain"
    assert judged == ["a", "b", "a", "b"]
