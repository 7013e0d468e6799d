"""`holdfast mcp login` and `logout`: a person, a browser, and the tokens that come of it.

The browser comes back to a port of this machine that is open while the command waits; or a person pastes the address
at which it came to nothing, because it runs elsewhere. Only an answer with the state of this login counts: what else
comes to the port, or is pasted, ends nothing.
"""

import asyncio
import os
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from holdfast.app import have_home
from holdfast.cli.app_choice import UsageError, make_app
from holdfast.cli.commands.mcp import server_of
from holdfast.cli.options import Where
from holdfast.errors import HoldfastError, McpLoginFailed
from holdfast.mcp_servers import McpServer
from holdfast.safe_text import safe
from holdfast.system.threads import Pool
from holdfast.tools.mcp.discovery import Issuer
from holdfast.tools.mcp.logins import Login, LoginFile
from holdfast.tools.mcp.oauth import Challenge, OAuth, scopes_wanted

PATH = "/callback"
REQUEST_BYTES_MAX = 32 << 10
REQUEST_S = 5.0
PAGE_S = 1.0
BROWSER_S = 5.0  # for it to be started; one that is not started is no loss, for the link is printed
CONNECTIONS_MAX = 16
LINE_BYTES_MAX = 64 << 10
FIELDS_MAX = 20
_DONE = "You are logged in, as far as the browser goes. Close this window and look at the terminal."
_FAILED = "The login came to nothing. Close this window and look at the terminal."
_OTHER = "This is not the answer to the login that is waiting."


class Wanted(NamedTuple):
    """What `mcp login` was told."""

    server: str
    scopes: tuple[str, ...]
    browser: bool
    wait_s: float


async def login(where: Where, wanted: Wanted) -> None:
    app = make_app(where.app, home=where.home, database=where.database)
    server = server_of(app, wanted.server)
    if not server.takes_login:
        why = (
            "its declaration says who we are, by a header or in the URL"
            if server.url
            else "it is a program, not HTTP"
        )
        raise UsageError(f"{server.name} takes no login: {why}")
    have_home(app.config)
    file = LoginFile(app.config.home, server.name)
    oauth = OAuth(server)
    issuer = await oauth.discover()
    scope = scopes_wanted(_scopes(server, wanted, file), issuer)
    async with _returns(server.redirect_port) as returns:
        client = await oauth.register(issuer, returns.uri, scope)
        challenge = oauth.authorize(issuer, client, returns.uri, scope)
        await _show(server, challenge, open_it=wanted.browser)
        code = await _code(oauth, issuer, challenge, returns, wanted.wait_s)
        tokens = await oauth.exchange(issuer, client, challenge, code)
    now_ms = time.time_ns() // 1_000_000
    made = Login(
        url=server.url,
        issuer=issuer.issuer,
        resource=issuer.resource,
        token_endpoint=issuer.token_endpoint,
        revocation_endpoint=issuer.revocation_endpoint,
        client=client,
        access=tokens.access,
        scope=scope,
        made_at=now_ms,
        renewed_at=now_ms,
    )
    async with file.locked():
        file.write(made.renewed(tokens, now_ms))
    _say(f"logged in to {server.name}; workers with this home use it from now on")
    if tokens.refresh is None:
        _say("it gave no refresh token: when this one is over, you have to log in again")


async def logout(where: Where, name: str) -> None:
    McpServer(name, command="-")  # raises ConfigError for what is no name, and would lead elsewhere
    app = make_app(where.app, home=where.home, database=where.database)
    server = None
    with suppress(UsageError):
        server = server_of(app, name)  # a login outlives its declaration
    file = LoginFile(app.config.home, name)
    login: Login | None = None
    async with file.locked():
        with suppress(McpLoginFailed):  # a damaged one is removed, too
            login = file.read()
        there = file.stamp() is not None
        file.remove()
    if not there:
        raise UsageError(f"there is no login to {name!r}")
    _say(f"the login to {name} is gone from here; {await _revoked(server, login)}")


async def _revoked(server: McpServer | None, login: Login | None) -> str:
    if server is None or login is None or login.revocation_endpoint is None or login.url != server.url:
        return "its tokens count until they end: revoke them at the authorization server"
    try:
        for token in filter(None, (login.refresh, login.access)):  # not every server lets the one go with the other
            await OAuth(server).revoke(login.revocation_endpoint, login.client, token)
    except HoldfastError as error:
        return f"its tokens were not revoked there: {safe(str(error))}"
    return "its tokens are revoked"


def _scopes(server: McpServer, wanted: Wanted, file: LoginFile) -> list[str]:
    """More than the last login has, where that is asked for; else what the declaration says."""
    if not wanted.scopes:
        return list(server.scopes)
    before = None
    with suppress(McpLoginFailed):
        before = file.read()
    had = (before.scope or "").split() if before is not None and before.url == server.url else []
    return [*(had or server.scopes), *wanted.scopes]


# --- a person ---------------------------------------------------------------------------------------------


async def _show(server: McpServer, challenge: Challenge, *, open_it: bool) -> None:
    print(f"Open this link to log in to {safe(server.name)}:\n\n  {safe(challenge.url)}\n", flush=True)
    _say("waiting for the browser. If it runs elsewhere: paste here the address at which it ends (http://127.0.0.1…)")
    screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if open_it and screen and sys.stdout.isatty():
        threads = Pool("browser", 1)
        with suppress(webbrowser.Error, OSError, TimeoutError):
            async with asyncio.timeout(BROWSER_S):
                await threads.run(lambda _: webbrowser.open(challenge.url))
        threads.stop()


async def _code(oauth: OAuth, issuer: Issuer, challenge: Challenge, returns: "_Returns", wait_s: float) -> str:
    """Of the first answer to this very challenge, by whichever way it comes. Raises McpLoginFailed."""
    with _pasted(returns):
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    answer = await returns.answers.get()
                    try:
                        code = oauth.code_of(issuer, challenge, answer.fields)
                    except McpLoginFailed:
                        answer.told.set_result(_FAILED)
                        raise
                    answer.told.set_result(_OTHER if code is None else _DONE)
                    if code is not None:
                        return code
                    if answer.pasted:
                        _say("that is not the address that this login ends at: copy all of it, and paste it again")
        except TimeoutError:
            words = f"nobody came back within {wait_s:g} s; nothing was changed"
            raise UsageError(f"{words}: run it again, with --wait for longer") from None


class _Answer(NamedTuple):
    fields: Mapping[str, str]
    told: "asyncio.Future[str]"  # what its page says
    pasted: bool = False


class _Returns:
    """Where browsers come back to."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[_Answer] = asyncio.Queue(CONNECTIONS_MAX)
        self.uri = ""
        self._connections: set[asyncio.Task[None]] = set()

    def give(self, fields: Mapping[str, str], *, pasted: bool = False) -> _Answer:
        answer = _Answer(fields, asyncio.get_running_loop().create_future(), pasted)
        try:
            self.answers.put_nowait(answer)
        except asyncio.QueueFull:
            answer.told.set_result(_OTHER)
        return answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S):
                    writer.write(_page(*await self._answered(reader)))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whatever that was, it was no browser with an answer
        finally:
            self._connections.discard(task)
            writer.close()

    async def told(self) -> None:
        """Until the browser has its page, for a moment."""
        if self._connections:
            await asyncio.wait(self._connections, timeout=PAGE_S)

    async def _answered(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or urlsplit(target).path != PATH:
            return "404 Not Found", _OTHER
        told = await self.give(fields_of(target)).told
        return ("200 OK" if told == _DONE else "400 Bad Request"), told


def _page(status: str, words: str) -> bytes:
    body = f"<!doctype html><meta charset=utf-8><title>holdfast</title><p>{words}</p>".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def fields_of(url: str) -> dict[str, str]:
    """The query of an address; nothing of what is none."""
    try:
        found = parse_qsl(urlsplit(url).query, max_num_fields=FIELDS_MAX)
    except ValueError:
        return {}
    names = [name for name, _ in found]
    return dict(found) if len(names) == len(set(names)) else {}  # one that says a thing twice means neither


@asynccontextmanager
async def _returns(port: int) -> AsyncIterator[_Returns]:
    returns = _Returns()
    try:
        server = await asyncio.start_server(returns.serve, "127.0.0.1", port, limit=REQUEST_BYTES_MAX)
    except OSError as error:
        words = f"port {port} of 127.0.0.1 (redirect_port) cannot be listened at: {error.strerror or error}"
        raise UsageError(words) from error
    returns.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
    try:
        yield returns
    finally:
        server.close()
        await returns.told()


class _pasted:
    """What a person pastes while the block lasts, line by line."""

    def __init__(self, returns: _Returns) -> None:
        self._returns = returns
        self._line = b""
        self._reading = False

    def __enter__(self) -> None:
        with suppress(OSError, ValueError):  # a file, or no standard input at all: then the browser is the only way
            asyncio.get_running_loop().add_reader(0, self._read)
            self._reading = True

    def __exit__(self, *_: object) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(0)

    def _read(self) -> None:
        piece = os.read(0, LINE_BYTES_MAX)
        *lines, self._line = (self._line + piece).split(b"\n")
        self._line = self._line[-LINE_BYTES_MAX:]
        for line in lines:
            if line.strip():
                self._returns.give(fields_of(line.decode(errors="replace").strip()), pasted=True)
        if not piece:
            self.__exit__()
            self._reading = False


def _say(words: str) -> None:
    print(f"holdfast: {words}", file=sys.stderr, flush=True)
