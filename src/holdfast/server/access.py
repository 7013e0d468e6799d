"""Who gets in: a token on every route but the public ones, the right Host, no foreign Origin, and safe headers.

Whom a request comes from, `grants.py` says; what that one may do, its route says (`guarded.py`). The admin token is
made on first start and kept in a file that only its owner can read. How browsers come in, `sessions.py` says.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigError, HoldfastError
from holdfast.server import client_files, login, page_files
from holdfast.server.bodies import has_body
from holdfast.server.grants import Grant, Grants, read_token
from holdfast.server.guarded import GRANT
from holdfast.server.limits import HEAD_BYTES_MAX, head_too_large
from holdfast.server.origins import APPROVALS, Origins
from holdfast.server.problems import CLOSE, of_error, problem
from holdfast.server.sessions import Sessions
from holdfast.server.shares import RequestShares
from holdfast.system.disk import create_path, make_home, write_path

HEALTH = "/health"  # also for the health checks of HTTP/1.0, which name no host
KNOWN_S = 1.0  # for a token that is shown there
PUBLIC = frozenset({HEALTH}) | client_files.PATHS | page_files.PATHS | login.PATHS
_ABSOLUTE = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_ABSOLUTE_RAW = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types holdfast"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def load_token(home: str | Path) -> tuple[str, bool]:
    """The token of this home, and whether it was made just now. Raises ConfigError."""
    path = Path(home) / "token"
    try:
        make_home(path.parent)
        made = not path.exists() and create_path(path, secrets.token_urlsafe(32).encode() + b"\n", 0o600)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be used: {error}") from error
    token = read_token(path)
    return token, made


def rotate_token(home: str | Path) -> str:
    """A new admin token in place of the one that there is: written whole, or not at all. Raises ConfigError."""
    path = Path(home) / "token"
    token = secrets.token_urlsafe(32)
    load_token(home)  # one that cannot be used is told of before it is replaced
    try:
        write_path(path, token.encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be written: {error}") from error
    return token


class Access:
    """What a request must bring. Comparisons take the same time whatever is wrong."""

    def __init__(
        self,
        grants: Grants,
        browsers: Sessions,
        origins: Origins,
        requests: RequestShares,
        hosts: Iterable[str] = (),
    ) -> None:
        self.grants = grants
        self.requests = requests
        self.browsers = browsers
        self.origins = origins
        self._hosts = LOCAL_NAMES | {name.lower() for name in hosts}

    def host_allowed(self, host: str) -> bool:
        return "*" in self._hosts or _name(host) in self._hosts

    async def grant(self, scope: Scope, receive: Receive) -> Grant | None:
        """Whom the request comes from. Raises StoreError, Unauthorized."""
        request = Request(scope, receive)
        if "authorization" not in request.headers and (grant := await self.browsers.grant(scope)) is not None:
            return grant
        return await self.grants.of(request)

    async def known(self, scope: Scope) -> Grant | None:
        """By a token alone, for a route that answers anyone: no program is asked, and no store waited for that is
        away.
        """
        headers = Headers(scope=scope)
        scheme, _, value = headers.get("authorization", "").partition(" ")
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(KNOWN_S):
                if "authorization" not in headers:
                    return await self.browsers.grant(scope)
                return await self.grants.of_secret(value.strip()) if scheme.lower() == "bearer" else None
        return None


class AccessMiddleware:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        send = _with_headers(send)
        _take_origin_form(scope)
        try:
            refusal = await self._judge(scope, receive)
        except HoldfastError as error:
            refusal = of_error(error)
        if refusal is not None:
            if has_body(scope):  # it is not read: what is left of it would be taken for the next request
                refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _judge(self, scope: Scope, receive: Receive) -> Response | None:
        """Raises StoreError, Unauthorized, TooManyRequests."""
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) + len(scope["path"]) > HEAD_BYTES_MAX:
            return head_too_large()
        if "content-length" in headers and "transfer-encoding" in headers:
            return problem(400, "ambiguous_length", "a body has a length or comes in chunks, not both", CLOSE)
        host = headers.get("host", "")
        path = _path(scope)
        if not self._access.host_allowed(host) and not (path == HEALTH and "host" not in headers):
            return problem(
                421, "forbidden_host", f"this server is not {host[:100]!r}; name the host in `allowed_hosts` if it is"
            )
        if (answer := self._access.origins.refusal(scope)) is not None:
            return answer
        if path.startswith(APPROVALS):  # the link is all that is asked for
            self._access.requests.take_link(scope["client"][0] if scope.get("client") else "")
            return None
        if path in PUBLIC:
            if path == HEALTH and (known := await self._access.known(scope)) is not None:
                scope[GRANT] = known
            return None
        if (grant := await self._access.grant(scope, receive)) is not None:
            scope[GRANT] = grant
            self._access.requests.take(grant.principal)
            return None
        if path == "/" and "text/html" in headers.get("accept", ""):
            return HTMLResponse(_SIGN_IN, status_code=401)
        return problem(
            401,
            "unauthorized",
            "send `Authorization: Bearer TOKEN`; the token is in the file `token` of the server's home",
            {"WWW-Authenticate": "Bearer"},
        )


def _take_origin_form(scope: Scope) -> None:
    """A client may name the whole URL, as one that speaks to a proxy does. Its host is then the URL's (RFC 9112)."""
    found = _ABSOLUTE.match(scope["path"])
    if found is None or scope.get("root_path"):
        return
    raw = _ABSOLUTE_RAW.match(scope["raw_path"] or b"")
    scope["path"] = scope["path"][found.end() :] or "/"
    scope["raw_path"] = scope["raw_path"][raw.end() :] or b"/" if raw is not None else scope["path"].encode()
    others = [pair for pair in scope["headers"] if pair[0] != b"host"]
    scope["headers"] = [*others, (b"host", found[1].encode("latin-1", "replace"))]


def _name(host: str) -> str:
    """Without the port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _path(scope: Scope) -> str:
    """As the routes see it: without the prefix under which it is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            message["headers"] = headers.raw
        await send(message)

    return sending


_SIGN_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>holdfast</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="icon" href="page/icon.svg">
<link rel="stylesheet" href="page/base.css"><link rel="stylesheet" href="page/shell.css">
<main class="entrance card"><h1><img src="page/icon.svg" alt=""> holdfast</h1>
<p>Open the link that the server showed on its terminal, or run <code>holdfast login</code> where it runs.</p>
<p><a class="button" href="login">Log in with a token</a></p></main></html>
"""
