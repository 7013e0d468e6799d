"""Who gets in: a token on every route but the public ones, the right Host, no foreign Origin, and safe headers.

The token is made on first start and kept in a file that only its owner can read. A browser gets a cookie for it by a
link that is shown once; the cookie holds a value derived from the token, never the token.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigError
from holdfast.server.limits import HEAD_BYTES_MAX, head_too_large
from holdfast.server.problems import CLOSE, problem
from holdfast.system.disk import create_path, make_home

COOKIE = "holdfast_session"
PUBLIC = frozenset({"/health"})
LOGIN = "/login"
TOKEN_CHARS_MIN = 16
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be used: {error}") from error
    if len(token) < TOKEN_CHARS_MIN:
        raise ConfigError(f"the token file {path} holds no token; delete it, and a new one is made")
    return token, made


class Access:
    """What a request must bring. Comparisons take the same time whatever is wrong."""

    def __init__(self, token: str, hosts: Iterable[str] = ()) -> None:
        self._token = token
        self.session = hmac.new(token.encode(), b"holdfast session", hashlib.sha256).hexdigest()
        self._hosts = LOCAL_NAMES | {name.lower() for name in hosts}

    @property
    def principal(self) -> str:
        """Whose idempotency keys they are: one name space per token, and no token in the database."""
        return "token:" + hashlib.sha256(self._token.encode()).hexdigest()[:16]

    def is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token.encode())

    def host_allowed(self, host: str) -> bool:
        return "*" in self._hosts or _name(host) in self._hosts

    def allows(self, headers: Headers) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.is_token(value.strip())
        return hmac.compare_digest(_cookie(headers).encode(), self.session.encode())


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
        refusal = self._judge(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) + len(scope["path"]) > HEAD_BYTES_MAX:
            return head_too_large()
        if "content-length" in headers and "transfer-encoding" in headers:
            return problem(400, "ambiguous_length", "a body has a length or comes in chunks, not both", CLOSE)
        host = headers.get("host", "")
        if not self._access.host_allowed(host):
            return problem(
                421, "forbidden_host", f"this server is not {host[:100]!r}; name the host in `allowed_hosts` if it is"
            )
        if (foreign := _foreign(headers, host)) is not None:
            return problem(403, "forbidden_origin", f"requests from {foreign[:100]!r} are not served")
        path = _path(scope)
        if path in PUBLIC:
            return None
        if path == LOGIN and scope["method"] == "GET":
            return self._login(scope)
        if self._access.allows(headers):
            return None
        if path == "/" and "text/html" in headers.get("accept", ""):
            return HTMLResponse(_SIGN_IN, status_code=401)
        return problem(
            401,
            "unauthorized",
            "send `Authorization: Bearer TOKEN`; the token is in the file `token` of the server's home",
            {"WWW-Authenticate": "Bearer"},
        )

    def _login(self, scope: Scope) -> Response:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not self._access.is_token(given):
            return HTMLResponse(_SIGN_IN, status_code=401)
        answer = RedirectResponse(scope.get("root_path", "") + "/", status_code=303)
        answer.set_cookie(
            COOKIE, self._access.session, httponly=True, samesite="strict", path="/", max_age=30 * 24 * 3600,
            secure=scope.get("scheme") == "https",
        )  # fmt: skip
        return answer


def _foreign(headers: Headers, host: str) -> str | None:
    """An origin that is not this server's own. A browser cannot forge these headers, and other clients send none."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return origin
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return headers["sec-fetch-site"]
    return None


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


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
<h1>holdfast</h1><p>Open the link that the server showed when it was first started, or run
<code>holdfast login</code> where it runs.</p></html>
"""
