"""MCP servers: whatever one does, it costs its own calls their deadline, is told in words, and leaves nothing."""

import asyncio
import base64
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.records import Replay
from holdfast.errors import (
    ConfigError,
    McpCallTimeout,
    McpError,
    McpOutcomeUnknown,
    McpUnavailable,
    ToolFailed,
)
from holdfast.mcp_servers import McpServer
from holdfast.tools.base import ToolOutput
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp import connection as mcp
from holdfast.tools.mcp import error_codes, http_transport
from holdfast.tools.mcp.answers import Lost, NotSent, answer_of
from holdfast.tools.mcp.connection import Link, _Sent
from holdfast.tools.mcp.session_state import SessionState
from holdfast.tools.mcp.tools import NAME_MAX, RESOURCE_TOOLS, Listed, replay_of, tool_name, tools_of
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import SyncPool
from tests.support.deaths import Mortal
from tests.support.ports import free_port
from tests.support.programs import ROOT, Program
from tests.support.scale import scaled
from tests.support.waiting import until
from tests.tools.sites import page

BOUND_S = 60.0
LONG_S = 999.0  # a deadline that only `expire` brings about
PLAIN = str(ROOT / "tests" / "support" / "mcp_plain.py")
TINY = str(ROOT / "tests" / "support" / "mcp_tiny.py")

Make = Callable[..., Link]
Expire = Callable[[float], None]


def program(*arguments: str, **options: Any) -> McpServer:
    """Our own test server, as a program."""
    args = ["-m", "tests.support.mcp_server", *arguments]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"env": env, "connect_s": 120.0, **options}  # it imports the SDK first, which takes a slow machine long
    return McpServer("t", command=sys.executable, args=args, cwd=str(ROOT), **options)


def plain(*arguments: str, **options: Any) -> McpServer:
    """The same without the SDK, where a test is about a program and not about what it speaks: it is up at once."""
    return McpServer("t", command=sys.executable, args=["-I", "-S", PLAIN, *arguments], **options)


def snippet(code: str, **options: Any) -> McpServer:
    return McpServer("t", command=sys.executable, args=["-I", "-S", "-c", code], **options)


def tiny(**options: Any) -> McpServer:
    return McpServer("t", command=sys.executable, args=["-I", "-S", TINY], **options)


@pytest.fixture
async def make(guard: Guard, pool: SyncPool) -> AsyncIterator[Make]:
    made: list[Link] = []

    def link(server: McpServer) -> Link:
        made.append(Link(server, guard, pool.run))
        return made[-1]

    yield link
    for each in made:
        await each.close()


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[Program]:
    with Program("tests.support.mcp_server", "http", "0", "--log", str(tmp_path / "log")) as running:
        yield running


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> McpServer:
    """The same tools, over both transports."""
    if request.param == "stdio":
        return program("stdio", "--log", str(tmp_path / "log"))
    running: Program = request.getfixturevalue("http_server")
    return McpServer("t", url=running.hear())


async def ready(link: Link) -> Link:
    await link.settled()
    assert link.state == "ready", link.last_error
    return link


async def call(link: Link, name: str, context: ToolContext | None = None, /, **arguments: Any) -> str:
    run = link.tools[f"t_{name}"].elsewhere
    assert run is not None
    return str(await run(arguments, context or ToolContext()))


def logged(tmp_path: Path) -> list[str]:
    path = tmp_path / "log"
    return path.read_text().splitlines() if path.exists() else []


# --- what it is for ----------------------------------------------------------------------------------


async def test_its_tools_are_called_and_what_they_say_comes_back_as_text(make: Make, server: McpServer) -> None:
    link = await ready(make(server))
    assert await call(link, "echo", text="hello") == "hello"
    assert '"x": 1' in await call(link, "point")
    assert await call(link, "only_structured") == '{"answer":42}'
    assert await call(link, "picture") == "look:\n[image, image/png, 40 bytes: not shown]"
    with pytest.raises(ToolFailed, match="Error executing tool fails"):
        await call(link, "fails")
    with pytest.raises(ToolFailed, match="text"):
        await call(link, "echo")
    assert (link.connects, link.losses) == (1, 0)


async def test_progress_reaches_the_calls_context(make: Make, server: McpServer) -> None:
    link = await ready(make(server))
    heard: list[str] = []
    assert await call(link, "steps", ToolContext(say=heard.append)) == "all done"
    assert heard == ["step 1", "step 2", "step 3"]


@pytest.mark.parametrize("code", [-32000, error_codes.NOT_SENT, error_codes.NEEDS_LOGIN, error_codes.LOST])
async def test_an_error_of_the_servers_own_is_its_answer_whatever_its_code_and_the_call_is_not_made_again(
    make: Make, tmp_path: Path, code: int
) -> None:
    """We and the SDK have codes for what befell a request. A server that has acted must not pass for one that never
    had it, or whose answer was lost.
    """
    log = tmp_path / "log"
    link = await ready(make(program("stdio", "--log", str(log))))
    with pytest.raises(McpError, match="it is closed on Sundays") as caught:
        await call(link, "refuses", code=code, words="it is closed on Sundays")
    assert type(caught.value) is McpError
    assert log.read_text().count("refuses") == 1
    assert link.state == "ready"


async def test_an_answer_of_ten_megabytes_keeps_its_head_and_its_tail(make: Make, server: McpServer) -> None:
    link = await ready(make(server))
    text = await call(link, "huge", size=10_000_000)
    assert len(text) < (1 << 20) + 100
    assert text.startswith("ax")
    assert text.endswith("xz")
    assert "bytes left out" in text
    assert await call(link, "echo", text="still here") == "still here"


async def test_a_message_beyond_all_bounds_is_not_read_and_the_next_call_is_answered(
    make: Make, server: McpServer
) -> None:
    link = await ready(make(server))
    with pytest.raises(McpOutcomeUnknown, match=r"of more than 33,554,432 bytes|exceeded the 33554432 byte limit"):
        await call(link, "huge", size=20_000_000)
    assert await call(link, "echo", text="still here") == "still here"
    assert link.connects == (2 if server.command else 1)


async def test_a_list_that_changes_is_asked_for_again(
    make: Make, server: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mcp.client.streamable_http")
    link = await ready(make(server))
    if server.url:  # what a server says by itself has a connection of its own
        await until(lambda: "GET SSE connection established" in caplog.messages, BOUND_S)
    assert "t_grown" not in link.tools
    await call(link, "grow")
    await until(lambda: "t_grown" in link.tools)
    assert await call(link, "grown") == "I am new"


async def test_calls_of_several_chats_share_one_connection(make: Make, server: McpServer) -> None:
    link = await ready(make(server))
    texts = [str(n) for n in range(50)]
    assert await asyncio.gather(*(call(link, "echo", text=text) for text in texts)) == texts
    assert link.connects == 1


async def test_a_program_gets_no_secret_that_was_not_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_PASSWORD", "SERVICE_TOKEN"):
        monkeypatch.setenv(name, f"value of {name}")
    link = await ready(make(plain(inherit=["SERVICE_TOKEN"])))
    assert await call(link, "env", name="DATABASE_PASSWORD") == "not set"
    assert await call(link, "env", name="SERVICE_TOKEN") == "value of SERVICE_TOKEN"


async def test_a_call_tells_the_server_its_key(make: Make) -> None:
    link = await ready(make(tiny()))
    context = ToolContext(call_id="call_1", chat_id="chat_1")
    assert '"holdfast/key": "chat_1:call_1"' in await call(link, "echo", context, what="meta")


# --- cancelled ---------------------------------------------------------------------------------------


@pytest.fixture
def patient_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still with the machine is told all the same."""
    monkeypatch.setattr(http_transport, "NOTIFY_S", 60.0)


@pytest.mark.usefixtures("patient_notifications")
async def test_a_cancelled_call_frees_its_caller_tells_the_server_and_no_other_call_notices(
    make: Make, server: McpServer, tmp_path: Path
) -> None:
    link = await ready(make(server))
    one, other = (asyncio.ensure_future(call(link, "hang", name=name)) for name in ("one", "other"))
    await until(lambda: {"hang one", "hang other"} <= set(logged(tmp_path)))
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    await until(lambda: "cancelled one" in logged(tmp_path))
    assert not other.done()
    assert await call(link, "echo", text="hello") == "hello"
    assert (link.connects, link.losses) == (1, 0)
    other.cancel()
    await asyncio.wait((other,))


@pytest.mark.usefixtures("patient_notifications")
async def test_a_server_that_is_stopped_does_not_hold_up_who_cancels(
    make: Make, server: McpServer, tmp_path: Path
) -> None:
    """Not even for the notification, which over HTTP waits for the one before it."""
    link = await ready(make(server))
    pid = int(await call(link, "pid"))
    calls = [asyncio.ensure_future(call(link, "hang", name=name)) for name in ("one", "other")]
    await until(lambda: {"hang one", "hang other"} <= set(logged(tmp_path)))
    os.kill(pid, signal.SIGSTOP)
    try:
        for work in calls:
            work.cancel()
        turns = 0
        while not all(work.done() for work in calls):
            turns += 1
            await asyncio.sleep(0)
        assert turns < 10, "turns of the loop, not time"
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: "cancelled one" in logged(tmp_path))


# --- deadlines ---------------------------------------------------------------------------------------


async def test_a_call_that_is_late_says_which_deadline_and_costs_nothing_else(
    make: Make, tmp_path: Path, expire: Expire
) -> None:
    link = await ready(make(plain("--log", str(tmp_path / "log"), call_s=LONG_S)))
    work = asyncio.ensure_future(call(link, "hang", name="one"))
    await until(lambda: "hang one" in logged(tmp_path), BOUND_S)
    expire(LONG_S)
    words = r"MCP server 't': hang gave no answer within 999 s \(call_s\)$"
    with pytest.raises(McpOutcomeUnknown, match=words) as caught:
        await work
    assert isinstance(caught.value.__cause__, McpCallTimeout)
    assert caught.value.__cause__.value_s == LONG_S
    await until(lambda: "cancelled one" in logged(tmp_path))
    assert await call(link, "echo", text="hello") == "hello"
    assert link.connects == 1, "it answers a ping, so it is not to blame"
    assert "t_hang" in link.tools


async def test_a_call_that_is_late_before_the_server_had_it_did_nothing(make: Make, tmp_path: Path) -> None:
    switch = tmp_path / "server.py"
    switch.write_text(Path(TINY).read_text())
    server = McpServer("t", command=sys.executable, args=["-I", "-S", str(switch)], call_s=0.5)
    link = await ready(make(server))
    switch.write_text("import sys; sys.stdin.read()")
    os.kill(link.figures()["pid"], signal.SIGKILL)
    await until(lambda: link.state == "connecting", BOUND_S)
    with pytest.raises(McpCallTimeout, match="echo gave no answer"):
        await call(link, "echo")


def test_a_try_that_the_server_never_had_does_not_count_as_sent() -> None:
    sent = _Sent()
    found = []
    for error in (NotSent("no connection"), Lost("gone"), NotSent("no connection")):
        with suppress(NotSent, Lost), sent:
            raise error
        found.append(bool(sent))
    assert found == [False, True, True]


async def test_an_answer_that_nobody_can_read_leaves_the_outcome_of_an_unsafe_call_unknown(
    make: Make, tmp_path: Path
) -> None:
    switch = tmp_path / "server.py"
    switch.write_text(Path(TINY).read_text().replace('"text": json.dumps(said)', '"text": {"no": "text"}'))
    for kind, options in ((McpOutcomeUnknown, {}), (McpError, {"replay": {"echo": "pure"}})):
        server = McpServer("t", command=sys.executable, args=["-I", "-S", str(switch)], **options)  # type: ignore[arg-type]
        link = await ready(make(server))
        with pytest.raises(McpError, match="echo: its answer does not fit the protocol") as caught:
            await call(link, "echo")
        assert type(caught.value) is kind
        assert link.connects == 1


async def test_a_call_under_way_when_its_connection_is_closed_leaves_its_outcome_unknown(
    make: Make, tmp_path: Path
) -> None:
    link = await ready(make(plain("--log", str(tmp_path / "log"))))
    work = asyncio.ensure_future(call(link, "hang", name="one"))
    await until(lambda: "hang one" in logged(tmp_path), BOUND_S)
    await link.close()
    with pytest.raises(McpOutcomeUnknown, match="closed while hang ran"):
        await work


@pytest.mark.parametrize("lines", [0, 10_000])
async def test_a_program_that_never_answers_costs_the_connect_deadline(
    make: Make, lines: int, expire: Expire, tmp_path: Path
) -> None:
    """What it says is more than a pipe holds, so what was said was heard."""
    up = tmp_path / "up"
    said = f"sys.stdout.write('this is no message\\n' * {lines}); sys.stdout.flush()"
    code = f"import sys; {said}; open({str(up)!r}, 'w'); sys.stdin.read()"
    link = make(snippet(code, connect_s=LONG_S))
    settled = asyncio.ensure_future(link.settled())
    await until(up.exists, BOUND_S)
    expire(LONG_S)
    await settled
    assert link.state == "away"
    assert "no session within 999 s (connect_s)" in (link.last_error or "")
    told = "lines of its output were no messages, the last: b'this is no message" in (link.last_error or "")
    assert told is bool(lines)


async def test_a_program_that_ends_at_once_is_told_with_its_last_words(make: Make) -> None:
    link = make(snippet("raise SystemExit('there is no licence file')"))
    await link.settled()
    assert link.last_error == (
        "the program ended with exit code 1; standard error ends with: there is no licence file"
    )


@pytest.mark.parametrize(
    ("command", "cwd", "words"),
    [
        ("no-such-program", None, r"its command 'no-such-program' was not found on the PATH '/.*': install it, or"),
        ("/no/such/program", None, "its command '/no/such/program' does not exist: install it, or declare another"),
        (
            "./script",
            "{folder}",
            "its command './script' is there, but not the interpreter that its first line names",
        ),
        ("./plain", "{folder}", "its command './plain' cannot be run: permission denied"),
        ("./empty", "{folder}", "its command './empty' cannot be run: exec format error"),
        ("true", "/no/such/folder", r"its folder '/no/such/folder' \(cwd\) cannot be entered: no such file or dir"),
    ],
)
async def test_a_program_that_is_not_there_is_told_with_what_to_do(
    make: Make, tmp_path: Path, command: str, cwd: str | None, words: str
) -> None:
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "plain").write_text("hello\n")
    (tmp_path / "empty").touch()
    (tmp_path / "script").chmod(0o700)
    (tmp_path / "empty").chmod(0o700)
    link = make(McpServer("t", command=command, cwd=cwd and cwd.format(folder=tmp_path)))
    await link.settled()
    assert (link.state, dict(link.tools)) == ("away", {})
    assert re.match(words, link.last_error or ""), link.last_error
    assert re.match(f"not available: {words}.*; next attempt in", link.absence())


async def test_why_a_server_is_away_is_logged_once_not_with_every_attempt(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp, "BACKOFF_S_MAX", 0.01)
    script = tmp_path / "server.py"
    script.write_text("raise SystemExit('no licence')")

    def becomes(code: str) -> None:
        """At once: somebody reads it at any moment, and half of it would be another reason."""
        (tmp_path / "next").write_text(code)
        (tmp_path / "next").replace(script)

    def warned() -> list[str]:
        told = [record for record in caplog.records if record.name == mcp.log.name]
        return [vars(record)["error"] for record in told if record.levelno >= logging.WARNING]

    link = make(McpServer("t", command=sys.executable, args=["-I", "-S", str(script)]))
    await link.settled()
    await until(lambda: link.figures()["failures_in_a_row"] >= 3, BOUND_S)
    assert [text.rpartition(": ")[2] for text in warned()] == ["no licence"]
    becomes("raise SystemExit('no memory')")
    await until(lambda: len(warned()) >= 2, BOUND_S)
    assert warned()[1].endswith("no memory"), "another reason is news"
    becomes(Path(TINY).read_text())
    await until(lambda: link.state == "ready", BOUND_S)
    becomes("raise SystemExit('no memory')")
    os.kill(link.figures()["pid"], signal.SIGKILL)
    await until(lambda: len(warned()) >= 4, BOUND_S)
    assert "killed" in warned()[2]
    assert warned()[3].endswith("no memory"), "and so is the same one, once it was there again"


async def test_a_port_where_nobody_answers_and_one_where_nobody_listens(make: Make) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        link = make(McpServer("t", url=url, connect_s=1.0))
        await link.settled()
        assert "no session within 1 s (connect_s)" in (link.last_error or "")
        await link.close()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # so that nobody else listens there either
        link = make(McpServer("t", url=f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp"))
        await link.settled()
        assert "no connection to" in (link.last_error or "")
        await link.close()


async def test_one_that_talks_nonsense_and_floods_standard_error_is_used_all_the_same(make: Make) -> None:
    link = await ready(make(plain("--chatty")))
    assert await call(link, "echo", text="hello") == "hello"
    figures = link.figures()
    assert figures["garbage_lines"] == 2
    assert 0 < len(figures["stderr"]) <= 1_000


# --- lost, hung, found again -------------------------------------------------------------------------


async def test_a_program_that_dies_in_an_unsafe_call_leaves_its_outcome_unknown(make: Make, tmp_path: Path) -> None:
    link = await ready(make(plain("--log", str(tmp_path / "log"))))
    with pytest.raises(McpOutcomeUnknown, match="ended with exit code 3; standard error ends with: my last words"):
        await call(link, "dies")
    assert logged(tmp_path).count("dies") == 1
    assert await call(link, "echo", text="hello") == "hello", "a new one was started meanwhile"
    assert (link.connects, link.losses) == (2, 1)


async def test_a_pure_call_that_was_lost_is_made_again(make: Make, tmp_path: Path) -> None:
    server = plain("--log", str(tmp_path / "log"), trust_hints=True)
    link = await ready(make(server))
    assert await call(link, "dies_once", path=str(tmp_path / "died")) == "alive"
    assert logged(tmp_path).count("dies_once") == 2


async def unanswered(link: Link, expire: Expire) -> None:
    """A call that a server which is stopped has, and does not answer in time."""
    work = asyncio.ensure_future(call(link, "echo", text="hello"))
    await until(lambda: link.figures()["calls_open"] == 1, BOUND_S)
    expire(LONG_S)
    with pytest.raises(McpOutcomeUnknown):
        await work


async def test_a_program_that_hangs_is_found_out_killed_and_started_again(make: Make, expire: Expire) -> None:
    link = await ready(make(plain(call_s=LONG_S, ping_s=0.5)))
    pid = int(await call(link, "pid"))
    with Mortal(pid) as stopped:
        os.kill(pid, signal.SIGSTOP)
        await unanswered(link, expire)
        await until(lambda: link.losses == 1, BOUND_S)
        assert stopped.dies_within(BOUND_S)
    assert "it hangs: no answer to a ping within 0.5 s (ping_s)" in (link.last_error or "")
    await until(lambda: link.state == "ready", BOUND_S)
    assert int(await call(link, "pid")) != pid
    assert "t_echo" in link.tools


async def test_a_program_that_hung_and_goes_on_in_time_is_kept(make: Make, expire: Expire) -> None:
    link = await ready(make(plain(call_s=LONG_S, ping_s=60.0)))
    pid = int(await call(link, "pid"))
    os.kill(pid, signal.SIGSTOP)
    try:
        await unanswered(link, expire)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert int(await call(link, "pid")) == pid
    assert (link.connects, link.losses) == (1, 0)


async def test_while_it_is_away_its_tools_stay_and_say_so(make: Make, tmp_path: Path) -> None:
    switch = tmp_path / "server.py"
    switch.write_text(Path(TINY).read_text())
    link = await ready(make(McpServer("t", command=sys.executable, args=["-I", "-S", str(switch)])))
    assert await call(link, "echo", n=1) == '{"n": 1}'
    switch.write_text("import sys; sys.exit('not now')")
    pid = link.figures()["pid"]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: link.state == "away", BOUND_S)
    assert list(link.tools) == ["t_echo"]
    with pytest.raises(McpUnavailable, match=r"not available: .*not now; next attempt in"):
        await call(link, "echo")
    switch.write_text(Path(TINY).read_text())
    await until(lambda: link.state == "ready", BOUND_S)
    assert await call(link, "echo", n=2) == '{"n": 2}'


async def test_the_pauses_between_attempts_grow(make: Make) -> None:
    link = make(McpServer("t", command="/no/such/program"))
    await link.settled()
    waits = [link._gone(was_ready=False) for _ in range(12)]
    assert all(1.0 * 2**n <= wait <= 2.0 * 2**n for n, wait in enumerate(waits[:4]))
    assert all(30.0 <= wait <= 60.0 for wait in waits[6:])


async def test_an_http_server_that_was_restarted_gets_even_an_unsafe_call_which_it_never_had(
    make: Make, tmp_path: Path
) -> None:
    port = str(free_port())  # which is nobody else's while it is down
    with Program("tests.support.mcp_server", "http", port) as first:
        url = first.hear()
        link = await ready(make(McpServer("t", url=url)))
    with Program("tests.support.mcp_server", "http", port, "--log", str(tmp_path / "log")) as again:
        assert again.hear() == url
        assert await call(link, "echo", text="hello") == "hello"
    assert logged(tmp_path).count("echo hello") == 1
    assert link.connects == 2


async def test_a_prompt_of_an_http_server_that_was_restarted_is_asked_for_once_more(make: Make) -> None:
    port = str(free_port())
    with Program("tests.support.mcp_server", "http", port) as first:
        link = await ready(make(McpServer("t", url=first.hear())))
    with Program("tests.support.mcp_server", "http", port) as again:
        again.hear()
        answer = await link.prompt("review", {"what": "it"})
    assert (answer.text, link.connects) == ("Review it, and do it well.", 2)


class Forgetful:
    """A server over HTTP that says what many say of a session they do not know: 400, not 404."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.known: set[str] = set()
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = re.search(r"content-length: (\d+)", head)
            asked = json.loads(await reader.readexactly(int(size[1]))) if size is not None else {}
            session = re.search(r"mcp-session-id: (\S+)", head)
            writer.write(self._answer(head.split(" ")[0], asked, session[1] if session is not None else None))
            await writer.drain()
        writer.close()

    def _answer(self, verb: str, asked: dict[str, Any], session: str | None) -> bytes:
        if verb != "post":
            return page(b"", status="405 No")
        if session is not None and session not in self.known:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return self._json({"id": None, "error": error}, status="400 Bad Request")
        match asked["method"]:
            case "initialize":
                self.sessions.append(f"s{len(self.sessions)}")
                self.known.add(self.sessions[-1])
                about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result: Any = {**about, "serverInfo": {"name": "f", "version": "1"}}
                return self._json(
                    {"id": asked["id"], "result": result}, f"Mcp-Session-Id: {self.sessions[-1]}", status="200 OK"
                )
            case "tools/list":
                result = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
            case "tools/call" if asked["params"]["arguments"].get("wrong"):
                error = {"code": -32602, "message": "that is wrong"}
                return self._json({"id": asked["id"], "error": error}, status="400 Bad Request")
            case "tools/call":
                self.calls += 1
                result = {"content": [{"type": "text", "text": str(self.calls)}]}
            case "ping":
                result = {}
            case _:
                return page(b"", status="202 Accepted")
        return self._json({"id": asked["id"], "result": result}, status="200 OK")

    def _json(self, body: dict[str, Any], *headers: str, status: str) -> bytes:
        encoded = json.dumps({"jsonrpc": "2.0", **body}).encode()
        return page(encoded, "Content-Type: application/json", *headers, status=status)


async def test_a_server_that_refuses_a_session_it_forgot_gets_a_new_one_and_a_mistake_costs_no_connection(
    make: Make,
) -> None:
    forgetful = Forgetful()
    listener = await asyncio.start_server(forgetful.serve, "127.0.0.1", 0)
    link = await ready(make(McpServer("t", url=f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp")))
    assert await call(link, "add") == "1"
    with pytest.raises(McpError, match="that is wrong"):
        await call(link, "add", wrong=True)
    assert await call(link, "add") == "2"
    forgetful.known.clear()
    with pytest.raises(McpError, match="No valid session ID provided"):
        await call(link, "add")
    await until(lambda: len(forgetful.sessions) == 2 and link.state == "ready", BOUND_S)
    assert await call(link, "add") == "3"
    assert link.connects == 2
    listener.close()


async def test_an_http_server_that_dies_in_a_call_is_reported_and_nothing_hangs(
    make: Make, http_server: Program
) -> None:
    link = await ready(make(McpServer("t", url=http_server.hear())))
    with pytest.raises(McpOutcomeUnknown):
        await call(link, "dies")
    await until(lambda: link.state == "away", BOUND_S)
    assert "no connection to" in (link.last_error or "")


async def test_what_befalls_one_request_over_http_ends_no_other() -> None:
    """The SDK would end the whole session for it."""

    def lost(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("cut")

    def refused(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody there")

    for befallen, code in ((lost, error_codes.LOST), (refused, error_codes.NOT_SENT)):
        server = McpServer("t", url="http://host/mcp")
        wire = SessionState(lambda: None)
        contained = http_transport.Contained(httpx2.MockTransport(befallen), server, wire)
        async with httpx2.AsyncClient(transport=contained) as client:
            answer = await client.post("http://host/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        error = answer.json()["error"]
        assert error["code"] == code


# --- closed ------------------------------------------------------------------------------------------


async def test_opened_and_closed_over_and_over_it_leaves_nothing(guard: Guard, pool: SyncPool) -> None:
    async def once() -> None:
        link = Link(tiny(), guard, pool.run)
        await link.settled()
        assert await call(link, "echo") == "{}"
        await link.close()

    await once()  # the SDK's import, and the thread for it
    process = psutil.Process()
    await until(lambda: guard.group_count == 0)

    def held() -> tuple[int, ...]:
        """What a test before this one left may still go."""
        return process.num_fds(), threading.active_count(), len(asyncio.all_tasks()), len(process.children())

    before = held()
    for _ in range(scaled(25, 100)):
        await once()
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


async def test_closing_is_bounded_while_a_call_hangs_in_a_program_that_is_stopped(make: Make) -> None:
    link = await ready(make(plain()))
    pid = int(await call(link, "pid"))
    os.kill(pid, signal.SIGSTOP)
    work = asyncio.ensure_future(call(link, "echo", text="hello"))
    await until(lambda: link.figures()["calls_open"] == 1)
    async with asyncio.timeout(BOUND_S):
        await link.close()
    with pytest.raises(McpError):
        await work
    with pytest.raises(McpUnavailable, match="closed"):
        await call(link, "echo", text="hello")


# --- what it is declared to be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("echo", "t_echo"),
        ("get-time_2", "t_get-time_2"),
        ("a.b", "t_a_b_31d1e1bc"),
        ("a/b", "t_a_b_82badf67"),
        ("", "t_"),
        ("x" * 62, "t_" + "x" * 62),
    ],
)
def test_a_tools_name_is_its_own_where_providers_accept_it(name: str, known_as: str) -> None:
    assert tool_name(McpServer("t", command="x"), name) == known_as


def test_every_name_is_one_that_providers_accept_and_no_two_are_the_same() -> None:
    server = McpServer("s" * 32, command="x")
    names = ["é", "日本", "\ud800", "a b", "a_b", "a.b", "x" * 100, "x" * 101, "\x00", "n" * 31, "n" * 32]
    made = [tool_name(server, name) for name in names]
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}", name) for name in made)
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("options", "replay"),
    [
        ({}, Replay.UNSAFE),
        ({"trust_hints": True}, Replay.PURE),
        ({"replay": {"look": "idempotent"}}, Replay.IDEMPOTENT),
        ({"trust_hints": True, "replay": {"look": "unsafe"}}, Replay.UNSAFE),
    ],
)
def test_hints_count_only_where_they_are_trusted_and_the_declaration_beats_them(
    options: dict[str, Any], replay: Replay
) -> None:
    server = McpServer("t", command="x", **options)
    assert replay_of(server, Listed(name="look", read_only=True, idempotent=True)) is replay


def test_tools_that_are_too_many_too_large_or_not_wanted_are_left_out() -> None:
    async def run(*_: Any) -> ToolOutput:
        return ToolOutput()

    listing = [Listed(name=name) for name in ("b", "a", "c")]
    server = McpServer("t", command="x", tools=["a", "b", "d"], needs_approval=["b"])
    found = tools_of(server, listing, run)
    assert [(tool.name, tool.needs_approval) for tool in found.values()] == [("t_a", False), ("t_b", True)]
    large = Listed(name="large", schema=Raw(b"{" + b" " * 100_000 + b"}"))
    many = [Listed(name=f"n{n}") for n in range(300)]
    found = tools_of(McpServer("t", command="x"), [large, *many], run)
    assert len(found) == 256
    assert "t_large" not in found


PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


async def test_pictures_of_an_answer_are_shown_to_the_model_by_what_they_are(make: Make, server: McpServer) -> None:
    link = await ready(make(server))
    run = link.tools["t_photo"].elsewhere
    assert run is not None
    output = await run({}, ToolContext())
    assert isinstance(output, ToolOutput)
    assert output.text == "see:\n[image, image/jpeg, 68 bytes: shown as file 1]"
    (file,) = output.files
    assert (file.media_type, file.size_bytes) == ("image/png", 68), "its first bytes count, not what it is called"
    assert file.uri == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


async def test_resources_are_listed_and_read_by_tools_where_the_declaration_allows(
    make: Make, server: McpServer
) -> None:
    link = await ready(make(server))
    assert link.tools["t_read_resource"].replay is Replay.PURE
    listed = await call(link, "list_resources")
    assert "notes://today (text/plain): today What is on today." in listed
    assert "template notes://{day}/photo (image/png)" in listed
    assert await call(link, "read_resource", uri="notes://today") == "[resource notes://today]\nrain"
    run = link.tools["t_read_resource"].elsewhere
    assert run is not None
    output = await run({"uri": "notes://monday/photo"}, ToolContext())
    assert isinstance(output, ToolOutput)
    assert [(file.media_type, file.name) for file in output.files] == [("image/png", "photo")]
    with pytest.raises(McpError, match=r"read_resource: .*notes://nothing"):
        await call(link, "read_resource", uri="notes://nothing")
    with pytest.raises(McpError, match="by its uri, which is a text"):
        await call(link, "read_resource")
    other = await ready(make(replace(server, resources=False)))
    assert "t_read_resource" not in other.tools
    narrowed = await ready(make(replace(server, tools=["echo", "read_resource"])))
    assert sorted(narrowed.tools) == ["t_echo", "t_read_resource"]


def test_a_servers_own_tool_comes_before_ours_for_its_resources() -> None:
    async def run(*_: Any) -> ToolOutput:
        return ToolOutput()

    own = Listed(name="read_resource", description="its own")
    found = tools_of(McpServer("t", command="x"), [*RESOURCE_TOOLS, own], run)
    assert [(tool.name, tool.description[:7]) for tool in found.values()] == [
        ("t_list_resources", "List wh"),
        ("t_read_resource", "its own"),
    ]


def test_pictures_beyond_the_bounds_of_a_result_are_described() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    many = answer_of([picture] * 25, None, 10_000)
    assert len(many.files) == 20
    assert many.text.count("too large, or too many, to be shown") == 5
    large = {**picture, "data": base64.b64encode(PNG + bytes(2_400_000)).decode()}
    two = answer_of([large] * 3, None, 10_000)
    assert len(two.files) == 1, "6 MiB in all, in base64"
    huge = {**picture, "data": base64.b64encode(PNG + bytes(4_000_000)).decode()}
    assert answer_of([huge], None, 10_000).files == ()
    torn = answer_of([{**picture, "data": picture["data"] + "!"}], None, 10_000)
    assert (torn.files, torn.text) == ((), "[image, image/png, 68 bytes: not shown, it is no base64]")


def test_every_kind_of_content_becomes_text() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "one"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAA=", "mimeType": "image/png"}},
        {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "a file"},
        {"type": "hologram"},
    ]
    assert answer_of(blocks, {"not": "said twice"}, 1_000).text.splitlines() == [
        "one",
        "[audio, audio/wav, 3 bytes: not shown]",
        "[resource file:///a]",
        "inside",
        "[resource file:///b, image/png, 2 bytes: not shown]",
        "[resource file:///c: c a file]",
        "[hologram: not shown]",
    ]
    assert answer_of([], {"x": 1}, 1_000).text == '{"x":1}'
    assert answer_of([], None, 1_000).text == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either command"),
        ({"command": "x", "url": "http://h"}, "give either command"),
        ({"url": "ftp://h"}, "must begin with http"),
        ({"command": "x", "headers": {"a": "b"}}, "headers is not for a server with command"),
        ({"url": "http://h", "cwd": "/"}, "cwd is not for a server with url"),
        ({"command": "x", "call_s": 0}, "call_s must be above 0"),
        ({"command": "x", "args": "a b"}, "args is a list of texts"),
        ({"command": "x", "replay": {"a": "safe"}}, "'pure', 'idempotent' or 'unsafe'"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        McpServer("t", **options)


@pytest.mark.parametrize("name", ["", "a b", "_a", "a.b", "x" * 33])
def test_a_servers_name_can_begin_a_tools_name(name: str) -> None:
    with pytest.raises(ConfigError, match="its name begins its tools' names"):
        McpServer(name, command="x")


def test_a_declaration_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    server = McpServer(
        "t", url="https://ada:hunter2@host/mcp?key=hunter2", headers={"a": "hunter2"}, headers_env={"b": "TOKEN"}
    )
    assert "hunter2" not in f"{server!r} {server}"
    assert server.all_headers() == {"a": "hunter2", "b": "hunter2"}
    monkeypatch.delenv("TOKEN")
    with pytest.raises(ConfigError, match="environment variable TOKEN is not set"):
        server.all_headers()
