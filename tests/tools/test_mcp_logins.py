"""Logins to MCP servers by OAuth: a real server and authorization server on loopback, and hostile ones."""

import asyncio
import json
import logging
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.app import App, diagnostics
from holdfast.chat import Chat
from holdfast.core.records import State
from holdfast.errors import (
    ConfigError,
    LimitReached,
    McpLoginFailed,
    McpNeedsLogin,
    McpOutcomeUnknown,
    McpUnavailable,
)
from holdfast.mcp_servers import McpServer
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.redaction import Secrets
from holdfast.system import disk
from holdfast.tools.mcp import connection, login_web, oauth
from holdfast.tools.mcp.connection import Link, LoginPlace
from holdfast.tools.mcp.discovery import parameter
from holdfast.tools.mcp.login_web import LoginWeb
from holdfast.tools.mcp.logins import Login, LoginFile, ServerLogin
from holdfast.tools.mcp.oauth import OAuth
from holdfast.worker.tool_body import SyncPool
from tests.support.mcp_oauth import OAuthServer, person
from tests.support.programs import Program
from tests.support.turns import rested, said
from tests.support.waiting import until
from tests.tools.sites import page
from tests.tools.test_mcp import call, ready

BOUND_S = 60.0
BACK = "http://127.0.0.1:1/callback"
Make = Callable[[McpServer], Link]


@pytest.fixture
async def served() -> AsyncIterator[OAuthServer]:
    async with OAuthServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


@pytest.fixture
async def make(pool: SyncPool, home: str) -> AsyncIterator[Make]:
    made: list[Link] = []

    def link(server: McpServer) -> Link:
        made.append(Link(server, None, pool.run, LoginPlace(home, Secrets())))
        return made[-1]

    yield link
    for each in made:
        await each.close()


def at(served: OAuthServer, **options: Any) -> McpServer:
    return McpServer("t", url=served.url, **options)


async def log_in(server: McpServer, home: str) -> Login:
    """What `holdfast mcp login` does, with a person who agrees at once."""
    flow = OAuth(server)
    issuer = await flow.discover()
    scope = oauth.scopes_wanted(server.scopes, issuer)
    client = await flow.register(issuer, BACK, scope)
    challenge = flow.authorize(issuer, client, BACK, scope)
    code = flow.code_of(issuer, challenge, dict(parse_qsl(urlsplit(await person(challenge.url)).query)))
    assert code is not None
    tokens = await flow.exchange(issuer, client, challenge, code)
    now_ms = time.time_ns() // 1_000_000
    login = Login(
        url=server.url,
        issuer=issuer.issuer,
        resource=issuer.resource,
        token_endpoint=issuer.token_endpoint,
        client=client,
        access=tokens.access,
        made_at=now_ms,
        renewed_at=now_ms,
    ).renewed(tokens, now_ms)
    LoginFile(home, server.name).write(login)
    return login


def kept(home: str) -> Login:
    found = LoginFile(home, "t").read()
    assert found is not None
    return found


async def results(chat: Chat) -> list[str]:
    return [text for role, text in said(await chat.messages()) if role == "tool"]


# --- a real server -----------------------------------------------------------------------------------


async def test_first_use_says_what_to_run_and_a_login_at_the_command_line_is_taken_without_a_restart(
    served: OAuthServer, home: str, tmp_path: Path
) -> None:
    declared = tmp_path / "holdfast.toml"
    declared.write_text(f'[mcp.t]\nurl = "{served.url}"\n')
    say = Call(name="t_echo", arguments={"text": "hello"})
    model = ScriptedModel([say], "Not yet.", [say], "Done.")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", model, tools=[at(served)])], home=home)
    async with app, app.worker(poll_s=0.5) as worker:
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        (refused,) = await results(chat)
        assert "MCP server 't', which is not available: a person has to log in (it wants one): " in refused
        assert "holdfast mcp login t" in refused
        found = diagnostics(detailed=True)
        assert "mcp_server_needs_login" in found["reasons"]
        assert found["apps"][0]["workers"][0]["mcp_servers"][0]["state"] == "needs_login"
        assert served.calls == []

        command = ("mcp", "login", "t", "--no-browser", "--home", home)
        environ = {"HOLDFAST_TRUSTED": str(tmp_path)}
        with Program("tests.tools.logging_in", str(tmp_path), *command, errors=True, environ=environ) as person_at:
            link = await asyncio.to_thread(_link, person_at)
            person_at.say("http://127.0.0.1:1/callback?code=stolen&state=guessed")
            back = await person(link)
            assert await person_is_back(back.replace("state=", "state=x")) == 400, "not the state of this login"
            assert await person_is_back(back) == 200
            await asyncio.to_thread(person_at.finish)
        (link_to,) = worker.tool_servers.links
        await until(lambda: link_to.state == "ready", BOUND_S)
        await chat.send("again")
        assert await rested(chat) is State.IDLE
        assert (await results(chat))[-1] == "hello"
    assert served.calls == ["hello"]
    path = Path(home) / "mcp" / "t.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_login_is_pasted_listed_tried_and_forgotten_and_ctrl_c_leaves_nothing(
    served: OAuthServer, home: str, tmp_path: Path
) -> None:
    (tmp_path / "holdfast.toml").write_text(f'[mcp.t]\nurl = "{served.url}"\n')

    def at_the_command_line(*command: str) -> Program:
        given = (str(tmp_path), "mcp", *command, "--home", home)
        return Program("tests.tools.logging_in", *given, errors=True, environ={"HOLDFAST_TRUSTED": str(tmp_path)})

    with at_the_command_line("login", "t", "--no-browser") as left:
        await asyncio.to_thread(_link, left)
        left.process.send_signal(signal.SIGINT)
        _, words = await asyncio.to_thread(left.process.communicate)
        assert (left.process.returncode, "Traceback" in words) == (130, False)
    assert not (Path(home) / "mcp" / "t.json").exists()
    with at_the_command_line("login", "t", "--wait", "1") as late:
        _, words = await asyncio.to_thread(late.process.communicate)
        assert late.process.returncode == 2
        assert "nobody came back within 1 s; nothing was changed" in words
    with at_the_command_line("login", "t", "--no-browser", "--scope", "more") as pasting:
        link = await asyncio.to_thread(_link, pasting)
        pasting.say("what now?")
        pasting.say(await person(link))
        _, words = await asyncio.to_thread(pasting.process.communicate)
        assert pasting.process.returncode == 0, words
        assert "that is not the address that this login ends at" in words
        assert "logged in to t" in words
    assert kept(home).scope == "more"
    with at_the_command_line("list") as listing:
        assert (await asyncio.to_thread(listing.finish)).split("\t")[:3] == ["t", "http", "yes"]
    with at_the_command_line("logout", "t") as leaving:
        _, words = await asyncio.to_thread(leaving.process.communicate)
        assert "its tokens are revoked" in words
    assert served.provider.counts["revoked"] == 1
    assert not (Path(home) / "mcp" / "t.json").exists()
    with at_the_command_line("status") as trying:
        told, _ = await asyncio.to_thread(trying.process.communicate)
        assert trying.process.returncode == 1
        assert told.startswith("tool_server_needs_login: t (")


async def test_a_login_that_comes_to_nothing_says_so_in_the_browser_and_at_the_command_line(
    served: OAuthServer, home: str, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        (tmp_path / "holdfast.toml").write_text(
            f'[mcp.t]\nurl = "{served.url}"\n[mcp.u]\nurl = "{served.url}"\nredirect_port = {port}\n'
            '[mcp.v]\nurl = "http://ann:pass@127.0.0.1:1/mcp"\n'
        )

        def at_the_command_line(*command: str) -> Program:
            given = (str(tmp_path), "mcp", *command, "--no-browser", "--home", home)
            return Program("tests.tools.logging_in", *given, errors=True, environ={"HOLDFAST_TRUSTED": str(tmp_path)})

        with at_the_command_line("login", "t") as denied:
            asked = dict(parse_qsl(urlsplit(await asyncio.to_thread(_link, denied)).query))
            back = f"{asked['redirect_uri']}?error=access_denied&state={asked['state']}"
            assert await person_is_back(back) == 400
            _, words = await asyncio.to_thread(denied.process.communicate)
            assert (denied.process.returncode, "it was refused: access_denied" in words) == (1, True)
        with at_the_command_line("login", "u") as barred:
            _, words = await asyncio.to_thread(barred.process.communicate)
            assert f"port {port} of 127.0.0.1 (redirect_port) cannot be listened at" in words
        with at_the_command_line("login", "v") as named:
            _, words = await asyncio.to_thread(named.process.communicate)
            assert "v takes no login: its declaration says who we are, by a header or in the URL" in words
            assert "pass" not in words
    assert not (Path(home) / "mcp").exists()


def _link(program: Program) -> str:
    for _ in range(20):
        line = program.hear().strip()
        if line.startswith("http://127.0.0.1"):
            return line
    raise AssertionError("it printed no link")


async def person_is_back(address: str) -> int:
    """The browser follows the redirect, to the port that the command listens at."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    return int(status)


async def test_tokens_that_end_are_renewed_before_they_do_and_nobody_notices(
    served: OAuthServer, home: str, make: Make
) -> None:
    before = await log_in(at(served), home)
    LoginFile(home, "t").write(replace(before, expires_at=before.renewed_at))
    link = await ready(make(at(served)))
    assert await call(link, "echo", text="one") == "one"
    after = kept(home)
    assert served.provider.counts["refreshes"] == 1
    assert after.access != before.access
    assert after.refresh is not None
    assert list(served.provider.refresh) == [after.refresh], "the old one counts no more, the new one is kept"
    assert (link.connects, link.calls_failed) == (1, 0)


async def test_a_token_that_is_refused_in_the_middle_is_renewed_and_the_call_made_again(
    served: OAuthServer, home: str, make: Make
) -> None:
    await log_in(at(served), home)
    link = await ready(make(at(served)))
    served.provider.access.clear()
    texts = [str(n) for n in range(20)]
    assert await asyncio.gather(*(call(link, "echo", text=text) for text in texts)) == texts
    assert sorted(served.calls) == sorted(texts), "each once: what was refused was not done"
    assert served.provider.counts["refreshes"] == 1, "one renewal for all of them"


async def test_revoked_the_calls_say_what_to_run_and_the_token_is_not_shown_again(
    served: OAuthServer, home: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BACKOFF_S", 0.01)
    monkeypatch.setattr(connection, "LOGIN_LOOK_S", 0.01)
    await log_in(at(served), home)
    link = await ready(make(at(served)))
    served.provider.revoke_all()
    with pytest.raises(
        McpNeedsLogin, match=r"echo was not called: a person has to log in \(.*refresh token does not"
    ):
        await call(link, "echo", text="one")
    await until(lambda: link.needs_login, BOUND_S)
    assert "holdfast mcp login t" in link.absence()
    failures = link.figures()["failures_in_a_row"]
    await until(lambda: link.figures()["failures_in_a_row"] > failures + 2, BOUND_S)
    assert served.provider.counts["refreshes"] == 1, "it is refused, and that is written down"
    await log_in(at(served), home)
    await until(lambda: link.state == "ready", BOUND_S)
    assert await call(link, "echo", text="two") == "two"
    assert served.calls == ["two"]


async def test_a_server_that_takes_no_token_at_all_is_left_alone_until_a_person_logs_in_again(
    served: OAuthServer, home: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt renews the tokens. A renewal is no login: it must not bring about the next attempt."""
    monkeypatch.setattr(connection, "BACKOFF_S", 1_000.0)
    monkeypatch.setattr(connection, "LOGIN_LOOK_S", 0.01)
    looks, look = [0], ServerLogin.made_at

    async def counted(self: ServerLogin) -> int | None:
        looks[0] += 1
        return await look(self)

    monkeypatch.setattr(ServerLogin, "made_at", counted)
    await log_in(at(served), home)
    served.provider.deaf = True
    link = make(at(served))
    await link.settled()
    assert "it does not take the tokens that it was given for this login" in link.absence()
    await until(lambda: looks[0] > 20, BOUND_S)
    assert (served.provider.counts["refreshes"], link.figures()["failures_in_a_row"]) == (1, 1)
    served.provider.deaf = False
    await log_in(at(served), home)
    await until(lambda: link.state == "ready", BOUND_S)


async def test_no_token_is_in_a_log_the_journal_the_diagnostics_or_an_error(
    served: OAuthServer, home: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await log_in(at(served), home)  # with a browser in this process, which logs where it is sent to
    caplog.set_level(logging.DEBUG)
    say = Call(name="t_echo", arguments={"text": "hello"})
    model = ScriptedModel([say], "One.", [say], "Two.", [say], "Three.")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", model, tools=[at(served)])], home=home)
    async with app, app.worker(poll_s=0.5) as worker:
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        served.provider.access.clear()
        await chat.send("renewed")
        assert await rested(chat) is State.IDLE
        served.provider.revoke_all()
        await chat.send("revoked")
        assert await rested(chat) is State.IDLE
        (link,) = worker.tool_servers.links
        await until(lambda: link.needs_login, BOUND_S)
        told = await results(chat)
        seen = [str(diagnostics(detailed=True)), *(str(event.raw) for event in [e async for e in chat.events()])]
    assert told[:2] == ["hello", "hello"]
    assert "a person has to log in" in told[2]
    assert len(served.provider.issued) == 5, "a code, and two tokens twice"
    for place in (caplog.text, *(str(vars(record)) for record in caplog.records), *told, *seen):
        assert not [token for token in served.provider.issued if token in place]


async def test_restarted_in_the_middle_of_a_call_the_outcome_is_unknown_and_the_login_stays(
    served: OAuthServer, home: str, make: Make
) -> None:
    await log_in(at(served), home)
    link = await ready(make(at(served)))
    hanging = asyncio.create_task(call(link, "hang", text="pay"))
    await served.begun.wait()
    await served.restart()
    with pytest.raises(McpOutcomeUnknown, match="the connection was lost while hang ran"):
        await hanging
    assert await call(link, "echo", text="after") == "after"
    assert served.calls == ["pay", "after"]
    assert served.provider.counts == {"registered": 1}, "no new login, no renewal"


async def test_a_login_is_for_one_url_and_a_header_comes_before_it(
    served: OAuthServer, home: str, make: Make
) -> None:
    """Declared anew under an old name, a server must not be shown the tokens of the other."""
    login = await log_in(at(served), home)
    LoginFile(home, "t").write(replace(login, url="https://other.example/mcp"))
    link = make(at(served))
    await link.settled()
    assert link.needs_login
    LoginFile(home, "t").write(login)
    keyed = make(at(served, headers={"authorization": "Bearer mine"}))
    await keyed.settled()
    assert (keyed.state, "401" in str(keyed.last_error)) == ("away", True)


async def test_what_a_server_repeats_of_its_tokens_is_not_in_the_chat(
    served: OAuthServer, home: str, tmp_path: Path
) -> None:
    login = await log_in(at(served), home)
    calls = [Call(name="t_echo", arguments={"text": f"<{token}>"}) for token in (login.access, login.refresh)]
    model = ScriptedModel(calls, "Done.")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", [Agent("a", model, tools=[at(served)])], home=home)
    async with app, app.worker(poll_s=0.5):
        chat = await app.create("a", "go")
        assert await rested(chat) is State.IDLE
        assert await results(chat) == ["<[token of t]>"] * 2


# --- one renews ---------------------------------------------------------------------------------------


async def test_five_processes_that_renew_at_once_show_the_token_once_and_all_get_the_new_one(
    served: OAuthServer, home: str
) -> None:
    before = await log_in(at(served), home)
    provider = served.provider
    provider.go.clear()
    program = ("tests.tools.mcp_renewer", home, served.url)
    with ExitStack() as all_of_them:
        processes = [all_of_them.enter_context(Program(*program)) for _ in range(5)]
        for each in processes:
            assert await asyncio.to_thread(each.hear) == "ready"
            each.say("go")
        await provider.refreshing.wait()
        provider.go.set()
        tokens = [await asyncio.to_thread(each.finish) for each in processes]
    assert tokens == [f"{kept(home).access}\n"] * 5
    assert kept(home).access != before.access
    assert (provider.counts["refreshes"], provider.counts["reused"]) == (1, 0)


async def test_killed_between_the_renewal_and_the_disk_the_next_one_is_told_to_log_in_and_why(
    served: OAuthServer, home: str
) -> None:
    """What came is lost with the process. This authorization server takes an old token no second time."""
    before = await log_in(at(served), home)
    killer = {"HOLDFAST_CRASH_AT": "mcp.refreshed"}
    with Program("tests.tools.mcp_renewer", home, served.url, environ=killer) as one:
        assert await asyncio.to_thread(one.hear) == "ready"
        one.say("go")
        assert await asyncio.to_thread(one.process.wait) == -signal.SIGKILL
    assert kept(home) == replace(before, renewing=True), "whole, and with what is known"
    with Program("tests.tools.mcp_renewer", home, served.url) as two:
        assert await asyncio.to_thread(two.hear) == "ready"
        two.say("go")
        words = await asyncio.to_thread(two.finish)
    assert words.startswith("McpNeedsLogin: MCP server 't': a person has to log in (")
    assert "a renewal before this one was cut short, and took the new ones with it" in words
    assert served.provider.counts["refreshes"] == 2


async def test_a_caller_that_is_cancelled_takes_no_renewal_with_it(
    served: OAuthServer, home: str, pool: SyncPool
) -> None:
    before = await log_in(at(served), home)
    login = ServerLogin(at(served), LoginPlace(home, Secrets()), pool.run)
    served.provider.go.clear()
    caller = asyncio.create_task(login.renewed(before.access))
    await served.provider.refreshing.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    served.provider.go.set()
    assert login.renewing is not None
    await login.renewing
    assert kept(home).access != before.access


def let_it_end(home: str, in_ms: int) -> None:
    """The token that is kept: as far as its file tells."""
    now_ms = time.time_ns() // 1_000_000
    LoginFile(home, "t").write(replace(kept(home), renewed_at=now_ms - 120_000, expires_at=now_ms + in_ms))


async def _down(*_: Any) -> None:
    raise RuntimeError("the authorization server is down")


async def test_a_renewal_that_fails_while_the_token_still_counts_costs_no_call(
    served: OAuthServer, home: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(at(served), home)
    link = await ready(make(at(served)))
    monkeypatch.setattr(served.provider, "load_refresh_token", _down)
    let_it_end(home, 20_000)
    assert "early" in await call(link, "echo", text="early")
    assert kept(home).renewing, "it was tried"


async def test_an_authorization_server_that_is_down_costs_no_call_that_is_under_way(
    served: OAuthServer, home: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(at(served), home)
    link = await ready(make(at(served)))
    under_way = asyncio.ensure_future(call(link, "hang", text="long"))
    await served.begun.wait()
    with monkeypatch.context() as patched:
        patched.setattr(served.provider, "load_refresh_token", _down)
        let_it_end(home, -1)
        with pytest.raises(McpUnavailable, match="echo was not called: its tokens could not be renewed"):
            await call(link, "echo", text="late")
    assert not under_way.done()
    assert "again" in await call(link, "echo", text="again")
    assert (link.connects, served.calls) == (1, ["long", "again"])
    under_way.cancel()
    await asyncio.wait([under_way])


async def test_a_login_is_taken_though_no_thread_was_free_to_look_for_it(
    served: OAuthServer, home: str, pool: SyncPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOGIN_LOOK_S", 0.05)
    stuck = False
    refused: list[bool] = []

    async def run(work: Callable[[], Any]) -> Any:
        if stuck:
            refused.append(True)
            raise LimitReached("abandoned threads", 64, 64, "a tool hangs")
        return await pool.run(work)

    link = Link(at(served), None, run, LoginPlace(home, Secrets()))
    try:
        await link.settled()
        assert link.state == "needs_login"
        stuck = True
        await log_in(at(served), home)
        await until(lambda: len(refused) > 2, BOUND_S)
        stuck = False
        await until(lambda: link.state == "ready", BOUND_S)
    finally:
        await link.close()


async def test_a_disk_that_is_full_costs_no_token_and_one_that_fills_up_just_then_not_the_running_process(
    served: OAuthServer, home: str, pool: SyncPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = await log_in(at(served), home)
    login = ServerLogin(at(served), LoginPlace(home, Secrets()), pool.run)
    write, left = disk.write_path, [0]

    def full(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(disk, "write_path", full)
    with pytest.raises(McpUnavailable, match=r"could not be renewed: its login cannot be written .*No space left"):
        await login.renewed(before.access)
    assert served.provider.counts["refreshes"] == 0
    left[0] = 1
    first = await login.renewed(before.access)
    assert "new tokens could not be written" in caplog.text
    assert before.refresh is not None
    assert before.refresh not in caplog.text
    left[0] = 10
    assert await login.renewed(first) == kept(home).access, "with the token that only this process had"
    assert kept(home).refresh in served.provider.refresh


async def test_a_renewer_that_hangs_costs_the_others_their_patience_and_no_more(
    served: OAuthServer, home: str, pool: SyncPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.mcp.logins.LOCK_S", 0.2)
    before = await log_in(at(served), home)
    login = ServerLogin(at(served), LoginPlace(home, Secrets()), pool.run)
    async with LoginFile(home, "t").locked():
        with pytest.raises(McpUnavailable, match=r"another process has been renewing its tokens for 0.2 s"):
            await login.renewed(before.access)
    assert await login.renewed(before.access) == kept(home).access


async def test_a_login_file_that_is_damaged_is_told_and_replaced(
    served: OAuthServer, home: str, pool: SyncPool
) -> None:
    await log_in(at(served), home)
    (Path(home) / "mcp" / "t.json").write_bytes(b'{"url": 1')
    login = ServerLogin(at(served), LoginPlace(home, Secrets()), pool.run)
    with pytest.raises(McpLoginFailed, match="it is damaged: log in again"):
        await login.bearer()
    again = await log_in(at(served), home)
    assert await login.bearer() == again.access


# --- hostile authorization servers --------------------------------------------------------------------


class Hostile:
    """Answers by path. `{origin}` in an answer is its own."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.origin = ""

    def metadata(self, **changed: Any) -> None:
        resource = {"resource": "{origin}/mcp", "authorization_servers": ["{origin}"]}
        issuer = {
            "issuer": "{origin}",
            "authorization_endpoint": "{origin}/authorize",
            "token_endpoint": "{origin}/token",
            "registration_endpoint": "{origin}/register",
            "code_challenge_methods_supported": ["S256"],
        }
        for name, value in changed.items():
            (resource if name in resource else issuer)[name] = value
        self.answers["/.well-known/oauth-protected-resource/mcp"] = resource
        self.answers["/.well-known/oauth-authorization-server"] = issuer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            self.asked.append(path)
            answer = self.answers.get(path)
            if callable(answer):
                await answer(writer)
            elif answer is None:
                writer.write(page(b"", status="401 Unauthorized" if path == "/mcp" else "404 Not Found"))
            else:
                body = answer if isinstance(answer, bytes) else json.dumps(answer).replace("{origin}", self.origin)
                raw = body if isinstance(body, bytes) else body.encode()
                writer.write(raw if raw.startswith(b"HTTP/") else page(raw, "Content-Type: application/json"))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@pytest.fixture
async def hostile() -> AsyncIterator[Hostile]:
    found = Hostile()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    found.metadata()
    yield found
    server.close()


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "Transfer-Encoding: chunked", "Content-Type: application/json"))
    while True:
        writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


def challenge(parameters: str) -> bytes:
    return page(b"", f"WWW-Authenticate: Bearer {parameters}", status="401 Unauthorized")


ASM = "/.well-known/oauth-authorization-server"
PRM = "/.well-known/oauth-protected-resource/mcp"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({PRM: flood}, "answered with more than 262,144 bytes"),
        ({ASM: flood}, "answered with more than 262,144 bytes"),
        ({PRM: silence}, "timed out after 0.5 s"),
        ({ASM: b"HTTP/1.1 302 Found\r\nLocation: " + ASM.encode() + b"\r\n\r\n"}, "redirects more than 5 times"),
        (
            {ASM: b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\n\r\n"},
            "169.254.169.254",
        ),
        ({PRM: b"[1, 2]"}, "is no JSON object"),
        ({PRM: b"[" * 100_000}, "is no JSON object"),
        ({"issuer": "https://bank.example"}, "names another issuer, https://bank.example"),
        ({"resource": "https://other.example/mcp"}, "its metadata is about another resource"),
        ({"resource": "{origin}/mcp2"}, "its metadata is about another resource"),
        ({"authorization_servers": []}, "names no authorization server"),
        ({"authorization_servers": ["http://10.0.0.7"]}, "a login goes over https"),
        ({"authorization_servers": ["https://10.0.0.7"]}, "is an internal address"),
        ({"token_endpoint": "http://169.254.169.254/token"}, "a login goes over https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "with http or https"),
        ({"authorization_endpoint": "{origin}/authorize#"}, "authorization_endpoint has a fragment"),
        ({"authorization_endpoint": "https://eve@bank.example/"}, "to no user of the URL"),
        ({"code_challenge_methods_supported": None}, "does not say that it knows PKCE"),
        ({"/mcp": challenge('resource_metadata="https://evil.example/x"')}, "names metadata of another origin"),
        ({PRM: page(b"", status="503 Unavailable")}, "answered with HTTP status 503"),
    ],
)
async def test_a_hostile_server_gets_no_login_under_way(
    hostile: Hostile, answers: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if silence in answers.values():
        monkeypatch.setattr(login_web, "REQUEST_S", 0.5)
    hostile.metadata(**{name: value for name, value in answers.items() if not name.startswith("/")})
    hostile.answers |= {name: value for name, value in answers.items() if name.startswith("/")}
    with pytest.raises(McpLoginFailed, match=said.replace(".", r"\.")):
        await OAuth(McpServer("t", url=f"{hostile.origin}/mcp")).discover()
    assert not {"/token", "/register", "/authorize"} & set(hostile.asked)


async def test_a_site_with_a_page_for_every_path_is_asked_where_else_its_metadata_may_be(hostile: Hostile) -> None:
    everywhere = page(b"<html>Welcome!</html>", "Content-Type: text/html")
    hostile.answers["/.well-known/oauth-protected-resource"] = hostile.answers[PRM]
    hostile.answers["/.well-known/openid-configuration"] = hostile.answers[ASM]
    hostile.answers[PRM] = hostile.answers[ASM] = everywhere
    found = await OAuth(McpServer("t", url=f"{hostile.origin}/mcp")).discover()
    assert found.token_endpoint == f"{hostile.origin}/token"
    hostile.answers["/.well-known/openid-configuration"] = everywhere
    with pytest.raises(McpLoginFailed, match="has no metadata of an authorization server"):
        await OAuth(McpServer("t", url=f"{hostile.origin}/mcp")).discover()


async def test_a_server_without_metadata_of_its_own_is_named_without_the_key_in_its_url(hostile: Hostile) -> None:
    del hostile.answers[PRM]
    found = await OAuth(McpServer("t", url=f"{hostile.origin}/mcp?key=hush#x")).discover()
    assert found.resource == f"{hostile.origin}/mcp"


def test_a_challenge_is_read_parameter_by_parameter() -> None:
    said = (
        'Bearer error_description="scope=none, or so", resource_metadata="https://a/?scope=x", Scope="a b", error=no'
    )
    assert parameter("scope", said) == "a b"
    assert parameter("error", said) == "no"
    assert parameter("resource_metadata", said) == "https://a/?scope=x"
    assert parameter("realm", said) is None


@pytest.mark.parametrize("host", ["münchen.example", "MÜNCHEN.example.", "xn--mnchen-3ya.example:443"])
def test_a_host_is_the_same_however_it_is_written(host: str) -> None:
    assert login_web.origin_of(f"https://{host}/mcp") == "https://xn--mnchen-3ya.example"


async def test_an_answer_counts_only_with_its_state_and_from_the_issuer_that_was_asked(hostile: Hostile) -> None:
    flow = OAuth(McpServer("t", url=f"{hostile.origin}/mcp", client_id="me"))
    issuer = await flow.discover()
    client = await flow.register(issuer, BACK, None)
    asked = flow.authorize(issuer, client, BACK, "a b")
    sent = dict(parse_qsl(urlsplit(asked.url).query))
    assert (sent["resource"], sent["code_challenge_method"], sent["scope"]) == (
        f"{hostile.origin}/mcp",
        "S256",
        "a b",
    )
    good = {"state": asked.state, "code": "c"}
    assert flow.code_of(issuer, asked, {**good, "state": "other"}) is None
    assert flow.code_of(issuer, asked, {"code": "c"}) is None
    with pytest.raises(McpLoginFailed, match=r"not from .*, where you were sent"):
        flow.code_of(issuer, asked, {**good, "iss": "https://evil.example"})
    with pytest.raises(McpLoginFailed, match="where you were sent"):
        flow.code_of(replace(issuer, names_itself=True), asked, good)
    with pytest.raises(McpLoginFailed, match="it was refused: access_denied because I say so"):
        flow.code_of(
            issuer, asked, {"state": asked.state, "error": "access_denied", "error_description": "because\nI say so"}
        )
    assert flow.code_of(issuer, asked, {**good, "iss": issuer.issuer}) == "c"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ({"access_token": "a\r\nx: y", "token_type": "bearer"}, McpLoginFailed, "no token that a header can hold"),
        ({"access_token": "a" * 20_000, "token_type": "bearer"}, McpLoginFailed, "no token that a header can hold"),
        ({"access_token": "a", "token_type": "mac"}, McpLoginFailed, "none for a bearer"),
        ({"token_type": "bearer"}, McpLoginFailed, "no token that a header can hold"),
        (page(b'{"error": "invalid_grant"}', status="400 Bad"), oauth.OAuthRefused, "HTTP status 400, invalid_grant"),
        (
            page(b'{"error": "invalid_grant", "error_description": "I do not know rt-secret"}', status="400 Bad"),
            oauth.OAuthRefused,
            "HTTP status 400, invalid_grant I do not know \\[…\\]",
        ),
        (silence, McpLoginFailed, "timed out after 0.5 s"),
        (flood, McpLoginFailed, "answered with more than 262,144 bytes"),
        (b"<html>rt-secret</html>", McpLoginFailed, "is no JSON object"),
        (page(b"<html>rt-secret</html>", status="500 Oops"), McpLoginFailed, "HTTP status 500$"),
        (page(b'{"error": "slow_down"}', status="429 Later"), McpLoginFailed, "HTTP status 429, slow_down"),
        (page(b'{"error": "invalid_grant"}', status="502 Bad"), McpLoginFailed, "HTTP status 502"),
        (page(b"", "Location: https://evil.example", status="307 There"), McpLoginFailed, "HTTP status 307"),
    ],
)
async def test_what_a_token_endpoint_says_is_judged(
    hostile: Hostile, answer: Any, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is silence:
        monkeypatch.setattr(login_web, "REQUEST_S", 0.5)
    hostile.answers["/token"] = answer
    flow = OAuth(McpServer("t", url=f"{hostile.origin}/mcp", client_id="me"))
    with pytest.raises(kind, match=said) as caught:
        await flow.refresh(f"{hostile.origin}/token", oauth.Client(id="me"), "rt-secret", "r")
    assert type(caught.value) is kind
    assert "rt-secret" not in str(caught.value)


def test_hosts_inside_are_reached_where_the_declaration_names_them() -> None:
    flow = LoginWeb(McpServer("t", url="https://tracker.example/mcp", login_reach=["sso.corp:8443"]))
    assert flow.checked("http://sso.corp:8443/token")
    with pytest.raises(McpLoginFailed, match="a login goes over https"):
        flow.checked("http://sso.corp/token")
    with pytest.raises(ConfigError, match="login_reach"):
        OAuth(McpServer("t", url="https://tracker.example/mcp", login_reach=["a b c"]))
