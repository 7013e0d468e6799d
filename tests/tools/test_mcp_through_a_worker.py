"""MCP servers as an agent uses them: a real one from the registry, killed, hung and restarted under a real worker."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent
from holdfast.app import App, diagnostics
from holdfast.chat import Chat
from holdfast.core.records import State
from holdfast.errors import ConfigError
from holdfast.events import CallProgress
from holdfast.mcp_servers import McpServer
from holdfast.models.scripted import Call, Hold, ScriptedModel
from holdfast.tools.base import tool
from holdfast.tools.mcp.connection import Link
from holdfast.worker.worker import Worker
from tests.support.deaths import Mortal
from tests.support.mcp_plain import NAMES
from tests.support.programs import Program
from tests.support.turns import rested, running, said, weather
from tests.support.waiting import until
from tests.tools.test_mcp import LONG_S, TINY, Expire, plain

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")

BOUND_S = 60.0
LOOK = Call(name="t_look")
BERN = Call(name="time_get_current_time", arguments={"timezone": "Europe/Zurich"})


def time_server(**options: Any) -> McpServer:
    args = ["-m", "mcp_server_time"]
    return McpServer("time", command=sys.executable, args=args, connect_s=120.0, **options)


def tiny(name: str = "t", **options: Any) -> McpServer:
    return McpServer(name, command=sys.executable, args=["-I", "-S", TINY], **options)


def broken(name: str = "t", **options: Any) -> McpServer:
    code = "raise SystemExit('no licence')"
    return McpServer(name, command=sys.executable, args=["-I", "-S", "-c", code], **options)


def mute(name: str = "t", **options: Any) -> McpServer:
    code = "import sys; sys.stdin.read()"
    return McpServer(name, command=sys.executable, args=["-I", "-S", "-c", code], **options)


async def results(chat: Chat) -> list[str]:
    return [text for role, text in said(await chat.messages()) if role == "tool"]


def only_link(worker: Worker) -> Link:
    (link,) = worker.tool_servers.links
    return link


@asynccontextmanager
async def stopped(pid: int) -> AsyncIterator[Mortal]:
    with Mortal(pid) as mortal:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield mortal
        finally:
            if not mortal.dead:
                os.kill(pid, signal.SIGCONT)


# --- a server from the registry ----------------------------------------------------------------------


async def test_an_agent_is_shown_a_servers_tools_and_uses_them(store_url: str) -> None:
    model = ScriptedModel([BERN, Call(name="weather", arguments={"city": "Bern"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[weather, time_server()])) as (app, worker):
        chat = await app.create("a", "What time is it?")
        assert await rested(chat) is State.IDLE
        time, rain = await results(chat)
        (figures,) = diagnostics(detailed=True)["apps"][0]["workers"][0]["mcp_servers"]
        fingerprints = {message.agent_fingerprint for message in await chat.messages() if message.agent_fingerprint}
        assert worker.guard is not None
        assert worker.guard.group_count == 1
    assert '"timezone": "Europe/Zurich"' in time
    assert rain == "rain in Bern"
    shown = {spec.name: spec.description for spec in model.requests[0].tools}
    assert list(shown) == ["weather", "time_convert_time", "time_get_current_time"]
    assert shown["time_get_current_time"] == "Get current time in a specific timezone"
    assert (figures["server"], figures["state"], figures["tools"], figures["calls"]) == ("time", "ready", 2, 1)
    assert len(fingerprints) == 1
    assert fingerprints != {Agent("a", model, tools=[weather]).fingerprint}, "what a server adds counts too"


async def test_killed_in_mid_call_the_outcome_is_unknown_other_chats_go_on_and_the_next_call_reconnects(
    store_url: str,
) -> None:
    model = ScriptedModel(
        [Hold(name="listed"), BERN, Call(name="weather", arguments={"city": "Bern"})], [BERN], "Done."
    )
    async with running(store_url, Agent("a", model, tools=[weather, time_server()])) as (app, worker):
        chat = await app.create("a", "go")
        await model.reached("listed")
        link = only_link(worker)
        async with stopped(link.figures()["pid"]) as mortal:
            model.resume("listed")
            await until(lambda: link.figures()["calls_open"] == 1, BOUND_S)
            os.kill(mortal.pid, signal.SIGKILL)
            assert mortal.dies_within(BOUND_S)
        assert await rested(chat) is State.IDLE
        killed, rain, again = await results(chat)
        assert (link.connects, link.losses) == (2, 1)
    assert killed.startswith("Outcome unknown: time_get_current_time was started at ")
    assert "MCP server 'time': the connection was lost while get_current_time ran" in killed
    assert "killed (SIGKILL)" in killed
    assert killed.endswith("It may or may not have taken effect. Verify before you try again.")
    assert rain == "rain in Bern"
    assert '"timezone": "Europe/Zurich"' in again


async def test_a_read_only_call_of_a_trusted_server_is_simply_made_again_when_it_was_killed(store_url: str) -> None:
    model = ScriptedModel([Hold(name="listed"), LOOK], "Done.")
    async with running(store_url, Agent("a", model, tools=[plain(trust_hints=True)])) as (app, worker):
        chat = await app.create("a", "go")
        await model.reached("listed")
        link = only_link(worker)
        async with stopped(link.figures()["pid"]) as mortal:
            model.resume("listed")
            await until(lambda: link.figures()["calls_open"] == 1, BOUND_S)
            os.kill(mortal.pid, signal.SIGKILL)
            assert mortal.dies_within(BOUND_S)
        assert await rested(chat) is State.IDLE
        (answer,) = await results(chat)
    assert answer == "look"


async def test_hung_it_costs_the_calls_deadline_is_killed_and_replaced_and_its_tools_stay(
    store_url: str, expire: Expire
) -> None:
    """Servers hung for 16 and 33 hours [claude-code#15945]; one timeout dropped the whole toolset [hermes#88661]."""
    model = ScriptedModel([Hold(name="listed"), LOOK], [Hold(name="late"), LOOK], "Done.")
    server = plain(call_s=LONG_S, ping_s=0.5)
    async with running(store_url, Agent("a", model, tools=[server])) as (app, worker):
        chat = await app.create("a", "go")
        await model.reached("listed")
        link = only_link(worker)
        async with stopped(link.figures()["pid"]) as mortal:
            model.resume("listed")
            await until(lambda: link.figures()["calls_open"] == 1, BOUND_S)
            expire(LONG_S)
            await model.reached("late")
            await until(lambda: mortal.dead, BOUND_S)
        await until(lambda: link.state == "ready", BOUND_S)
        model.resume("late")
        assert await rested(chat) is State.IDLE
        late, again = await results(chat)
    assert late.startswith("Outcome unknown: t_look was started at ")
    assert "gave no answer within 999 s (call_s)" in late
    assert again == "look"
    shown = [[spec.name for spec in request.tools] for request in model.requests]
    assert shown == [[f"t_{name}" for name in sorted(NAMES)]] * 3


@pytest.mark.parametrize("way", ["dies", "hangs"])
async def test_a_person_is_asked_about_an_unsafe_call_that_a_server_took_with_it(
    store_url: str, tmp_path: Path, way: str, expire: Expire
) -> None:
    """Where the declaration says so; like after a worker's death."""
    log = tmp_path / "log"
    server = plain("--log", str(log), on_unknown="ask", call_s=LONG_S)
    call = Call(name="t_dies") if way == "dies" else Call(name="t_hang", arguments={"name": "one"})
    model = ScriptedModel([call], "Done.")
    async with running(store_url, Agent("a", model, tools=[server])) as (app, _):
        chat = await app.create("a", "go")
        if way == "hangs":
            await until(lambda: log.exists() and "hang one" in log.read_text(), BOUND_S)
            expire(LONG_S)
        assert await rested(chat) is State.WAITING
        (asked,) = await chat.open_calls()
        await asked.answer("It did not happen.")
        assert await rested(chat) is State.IDLE
        assert await results(chat) == ["It did not happen."]
    assert asked.kind == "question"
    assert (asked.why or "").startswith(f"Outcome unknown: {call.name} was started at ")
    lost = "the connection was lost while dies ran: the program ended with exit code 3"
    assert (lost if way == "dies" else "hang gave no answer within 999 s (call_s)") in (asked.why or "")
    assert sum(line in ("dies", "hang one") for line in log.read_text().splitlines()) == 1


# --- alone or together -------------------------------------------------------------------------------


async def test_a_server_that_never_comes_up_costs_others_nothing(store_url: str) -> None:
    """Its deadline is far away: whatever rests, did not wait for it."""
    patient = Agent(
        "patient", ScriptedModel([Call(name="u_echo")], "Done."), tools=[tiny("u"), mute(connect_s=600.0)]
    )
    quick = Agent("quick", ScriptedModel([Call(name="v_echo", arguments={"n": 1})], "Done."), tools=[tiny("v")])
    app = App(store_url, agents=[patient, quick])
    async with app, app.worker(poll_s=0.5, grace_s=0.0) as worker:
        waiting = await app.create("patient", "go")
        await until(lambda: [link.server.name for link in worker.tool_servers.links][:2] == ["u", "t"], BOUND_S)
        chat = await app.create("quick", "go")
        assert await rested(chat) is State.IDLE
        assert await results(chat) == ['{"n": 1}']
        assert await waiting.state() is State.RUNNING
        await waiting.stop()
        assert await rested(waiting) is State.IDLE, "nor does a stop wait"
        again = await app.create("patient", "go")
        await until(lambda: again.id in worker.running_chats, BOUND_S)
    assert worker.guard is not None
    assert worker.guard.found_at_stop == 0, "what the worker started it ended itself, before its guard had to"


async def test_a_call_to_a_tool_of_a_server_that_was_never_reached_is_answered_with_the_reason(
    store_url: str,
) -> None:
    model = ScriptedModel([Call(name="t_echo"), Call(name="weather", arguments={"city": "Bern"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[weather, broken()])) as (app, worker):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        refused, rain = await results(chat)
        found = diagnostics(detailed=True)
        assert only_link(worker).state == "away"
    assert refused.startswith("t_echo belongs to MCP server 't', which is not available: the program ended with exit")
    assert "no licence" in refused
    assert rain == "rain in Bern"
    assert [spec.name for spec in model.requests[0].tools] == ["weather"]
    assert found["status"] == "degraded"
    assert "mcp_server_away" in found["reasons"]


async def test_what_a_server_last_listed_is_offered_while_it_is_away_and_answers_errors(
    store_url: str, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(Path(TINY).read_text())
    server = McpServer("t", command=sys.executable, args=["-I", "-S", str(script)])
    model = ScriptedModel(
        [Hold(name="listed"), Call(name="weather", arguments={"city": "x"})], [Call(name="t_echo")], "!"
    )
    async with running(store_url, Agent("a", model, tools=[weather, server])) as (app, worker):
        chat = await app.create("a", "go")
        await model.reached("listed")
        link = only_link(worker)
        script.write_text("raise SystemExit('gone for good')")
        os.kill(link.figures()["pid"], signal.SIGKILL)
        await until(lambda: link.state == "away", BOUND_S)
        model.resume("listed")
        assert await rested(chat) is State.IDLE
        _, away = await results(chat)
    assert [spec.name for spec in model.requests[1].tools] == ["weather", "t_echo"]
    assert away.startswith("MCP server 't': not available: ")
    assert "gone for good" in away


async def test_when_the_worker_is_killed_the_guard_ends_its_servers_even_those_that_hang(tmp_path: Path) -> None:
    with (
        Program("tests.tools.served", f"sqlite:///{tmp_path}/holdfast.db") as worker,
        Mortal(int(worker.hear())) as it,
    ):
        os.kill(it.pid, signal.SIGSTOP)  # or it would end by itself, with its standard input
        assert not it.dead
        worker.process.kill()
        try:
            assert it.dies_within(BOUND_S)
        finally:
            if not it.dead:
                os.kill(it.pid, signal.SIGKILL)


async def test_an_approval_that_a_declaration_asks_for_is_asked_for(store_url: str) -> None:
    model = ScriptedModel([Call(name="t_echo", arguments={"n": 1})], "Done.")
    async with running(store_url, Agent("a", model, tools=[tiny(needs_approval=["echo"])])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.WAITING
        (call,) = (await chat.snapshot()).open_calls
        await chat.approve(call.id)
        while await chat.state() is not State.IDLE:
            await rested(chat)
        assert await results(chat) == ['{"n": 1}']


async def test_progress_of_a_server_is_in_the_chats_journal(store_url: str) -> None:
    model = ScriptedModel([Call(name="t_steps")], "Done.")
    async with running(store_url, Agent("a", model, tools=[plain()])) as (app, _):
        chat = await app.create("a", "go")
        heard = [update.call.progress async for update in chat.stream() if isinstance(update, CallProgress)]
    assert "step 3" in heard[-1]


async def test_a_key_that_a_server_shows_is_not_in_the_chat(store_url: str) -> None:
    model = ScriptedModel([Call(name="t_env", arguments={"name": "API_KEY"})], "Done.")
    server = plain(env={"API_KEY": "hunter2-and-more"})
    async with running(store_url, Agent("a", model, tools=[server])) as (app, _):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert await results(chat) == ["[API_KEY]"]


# --- who has which -----------------------------------------------------------------------------------


async def test_servers_of_the_file_belong_to_the_agents_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("holdfast.toml").write_text(
        f"[mcp.one]\ncommand = {sys.executable!r}\nargs = ['-I', '-S', {TINY!r}]\n"
        f"[mcp.two]\nurl = 'http://localhost/mcp'\nagents = ['b']\n"
    )
    model = ScriptedModel([Call(name="one_echo", arguments={"n": 1})], "Done.")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", model, active_tools=None), Agent("b", model)])
    assert [server.name for server in app.agents["a"].servers] == ["one"]
    assert [server.name for server in app.agents["b"].servers] == ["one", "two"]
    async with app, app.worker(poll_s=0.5):
        chat = await app.create("a", "go", active_tools=["one_echo"])
        assert await rested(chat) is State.IDLE
        assert await results(chat) == ['{"n": 1}']
        with pytest.raises(ConfigError, match="active_tools names two_echo"):
            await app.create("a", "go", active_tools=["two_echo"])


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[mcp.t]\ncomand = 'x'", "mcp.t: comand is no key of an MCP server; did you mean command?"),
        ("[mcp.t]\ncommand = 'x'\nzzz = 1", "known are command, args"),
        ("[mcp.t]\ncommand = 1", "mcp.t does not fit: Expected `str`, got `int` - at `\\$.command`"),
        ("[mcp.t]\nargs = []", "MCP server 't': give either command"),
        ("[mcp.t]\ncommand = 'x'\nagents = ['nobody']", "agents of mcp.t: there is no agent 'nobody'"),
        ("mcp = 1", "a table for each"),
    ],
)
def test_a_file_that_makes_no_sense_says_where(
    toml: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("holdfast.toml").write_text(toml)
    with pytest.raises(ConfigError, match=said) as caught:
        App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", ScriptedModel("Hello."))])
    assert caught.value.code == "config"


def test_no_name_can_come_to_mean_two_tools() -> None:
    @tool
    async def t_own() -> str:
        return ""

    model = ScriptedModel("Hello.")
    with pytest.raises(ConfigError, match="'t_own' begins like the tools of MCP server 't'"):
        Agent("a", model, tools=[t_own, tiny()])
    with pytest.raises(ConfigError, match="'t_u_' begins like the tools of MCP server 't'"):
        Agent("a", model, tools=[tiny(), tiny("t_u")])
    one, other = Agent("a", model, tools=[tiny()]), Agent("b", model, tools=[tiny(call_s=1.0)])
    with pytest.raises(ConfigError, match="two MCP servers are named 't'"):
        App("sqlite:///never.db", [one, other]).new_worker()


async def test_workers_one_after_the_other_in_one_process_leave_nothing_of_their_servers(tmp_path: Path) -> None:
    model = ScriptedModel([Call(name="t_echo", arguments={"n": 1})], "Done.")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", model, tools=[tiny()])])
    async with app:
        for _ in range(10):
            async with app.worker(poll_s=0.5) as worker:
                chat = await app.create("a", "go")
                assert await rested(chat) is State.IDLE
                assert await results(chat) == ['{"n": 1}']
            assert worker.guard is not None
            assert worker.guard.found_at_stop == 0
        assert not [task for task in asyncio.all_tasks() if "mcp" in repr(task.get_coro())]


@pytest.mark.parametrize("cause", ["shutdown", "user"])
async def test_a_worker_told_to_go_while_its_server_is_not_up_yet_leaves_the_approved_call_as_it_is(
    store_url: str, cause: str
) -> None:
    """Not knowing a tool because nobody waited for its server is no reason to refuse what a person approved."""
    model = ScriptedModel([Call(name="t_echo", arguments={"what": "pay"})], "Done.")
    async with running(store_url, Agent("a", model, tools=[tiny(needs_approval=True)])) as (app, _):
        chat_id = (await app.create("a", "go")).id
        assert await rested(app.chat(chat_id)) is State.WAITING
        (asked,) = await app.chat(chat_id).open_calls()
    agent = Agent("a", ScriptedModel("unused"), tools=[mute(needs_approval=True, connect_s=60.0)])
    async with running(store_url, agent, grace_s=0.0) as (app, worker):
        chat = app.chat(chat_id)
        await chat.approve(asked.id)
        await until(lambda: any(link.state == "connecting" for link in worker.tool_servers.links), BOUND_S)
        if cause == "user":
            await chat.stop()
            assert await rested(chat) is State.IDLE
    async with running(store_url, Agent("a", model, tools=[tiny(needs_approval=True)])) as (app, _):
        assert await rested(app.chat(chat_id)) is State.IDLE
        (result,) = await results(app.chat(chat_id))
    assert result == ('{"what": "pay"}' if cause == "shutdown" else "Never ran: stopped by the user.")
