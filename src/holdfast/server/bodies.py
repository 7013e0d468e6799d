"""A request's body: read whole before a route sees it, bounded in bytes, elements and depth, and decoded once. A file
is not: its route takes it piece by piece (`uploads.py`).

What decodes and validates JSON is code in C that lets no other thread run meanwhile, so a thread alone would not keep
the event loop free: what a body may hold is bounded before it is decoded. A large one is looked at in a thread, piece
by piece.
"""

import asyncio
import re
from typing import Any

import msgspec
from fastapi import Request
from pydantic import FailFast
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.codec import JSON_DEPTH_MAX, too_deep
from holdfast.server.problems import CLOSE, problem
from holdfast.system import threads

MESSAGE_BODY_BYTES_MAX = 16 << 20  # where a message with its files is taken, or a whole conversation
BODY_BYTES_MAX = 1 << 20  # everywhere else
BODY_ELEMENTS_MAX = 100_000  # values in lists and objects: decoded in some 10 ms
BODY_DEPTH_MAX = JSON_DEPTH_MAX + 10  # what a route takes as JSON lies some way down in its body
BODY_S = 30.0
LATE_S = 1.0  # how long the body of a GET is waited for, which means nothing (RFC 9110, 9.3.1)
FIELDS_MAX = 200
DECODED = "holdfast.body"  # in the scope

_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_TAKES_MESSAGES = re.compile(r"/api/chats(/[^/]+/(messages(/[^/]+/edit)?|calls/[^/]+/result))?|/v1/.*")
_TAKES_FILES = re.compile(r"/api/chats/import")
_SMALL_BYTES = 64 << 10  # decoded where it is
_WINDOW = 64 << 10  # what is looked at in one go

_pool = threads.Pool("bodies", 1)  # more would only be more to share the interpreter with


class BodyMiddleware:
    def __init__(self, app: ASGIApp, deadline_s: float = BODY_S) -> None:
        self._app = app
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            whole = scope["type"] != "http" or not has_body(scope) or await _pass_over(receive)
            await self._app(scope, receive, send if whole else _closing(send))
            return
        if scope["method"] == "POST" and _TAKES_FILES.fullmatch(_path(scope)):
            await self._pass_on(scope, receive, send)
            return
        body = await self._take(scope, receive)
        if isinstance(body, Response):
            await body(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer before all of it was read is the last one of its connection."""
        if (refusal := _wrong_encoding(Headers(scope=scope))) is not None:
            await refusal(scope, receive, send)
            return
        whole = not has_body(scope)

        async def receiving() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            await (send if whole else _closing(send))(message)

        await self._app(scope, receiving, sending)

    async def _take(self, scope: Scope, receive: Receive) -> bytes | Response | None:
        """None: the client left before it had said everything."""
        headers = Headers(scope=scope)
        if (refusal := _wrong_encoding(headers)) is not None:
            return refusal
        bytes_max = _bytes_max(scope)
        if int(headers.get("content-length", "0")) > bytes_max:
            return _too_large(bytes_max)
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await _read(receive, bytes_max)
        except TimeoutError:
            return problem(408, "body_too_slow", f"the body did not arrive within {self._deadline_s:g} s", CLOSE)
        if not isinstance(body, bytes) or not body:
            return body
        try:  # bounded whatever it is called: `/v1` takes all for JSON
            kind = headers.get("content-type", "").lower().partition(";")[0].strip()
            json = "json" in kind and not kind.endswith(("jsonl", "ndjson"))  # lines of it are a file
            decoded = await _decoded(body, json=json)
        except ValueError as error:  # msgspec's and Unicode's errors are such
            return problem(400, "invalid_input", f"the body cannot be taken as JSON: {error}")
        if json:
            scope[DECODED] = decoded
        return body


def _wrong_encoding(headers: Headers) -> Response | None:
    if (encoding := headers.get("content-encoding", "identity")) == "identity":
        return None
    words = f"the body is encoded as {encoding[:40]!r}; send it as it is"
    return problem(415, "unsupported_encoding", words, {**CLOSE, "Accept-Encoding": "identity"})


def has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def _pass_over(receive: Receive) -> bool:
    """Whether it was read to its end: else the connection cannot be kept, for the rest of it would be taken for the
    next request (RFC 9112, 9.3).
    """
    try:
        async with asyncio.timeout(LATE_S):
            return isinstance(await _read(receive, BODY_BYTES_MAX), bytes)
    except TimeoutError:
        return False


def _closing(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers.update(CLOSE)
            message["headers"] = headers.raw
        await send(message)

    return sending


def _bytes_max(scope: Scope) -> int:
    return MESSAGE_BODY_BYTES_MAX if _TAKES_MESSAGES.fullmatch(_path(scope)) else BODY_BYTES_MAX


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _too_large(bytes_max: int) -> Response:
    return problem(413, "body_too_large", f"a body can have {bytes_max:,} bytes here", CLOSE)


async def _read(receive: Receive, bytes_max: int) -> bytes | Response | None:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            return _too_large(bytes_max)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _decoded(body: bytes, *, json: bool) -> Any:
    """Raises ValueError that says what is wrong. As JSON is defined: Python's own reader takes NaN for a number. What
    is not called JSON is only bounded.
    """

    def work(_: object = None) -> Any:
        check_structure(body)
        return msgspec.json.decode(body) if json else None

    if len(body) <= _SMALL_BYTES:
        return work()

    return await _pool.run(work)


_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BRACKET = re.compile(rb"[\[{]|[\]}]")


def check_structure(body: bytes, elements_max: int = BODY_ELEMENTS_MAX, depth_max: int = BODY_DEPTH_MAX) -> None:
    """Raises ValueError for JSON of too many elements, or nested too deep. What is no JSON may pass: its decoder says
    so. In linear time, and in windows, between which other threads run.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= depth_max and body.count(b",") <= elements_max - opened:
        return  # also if all of these stood in strings
    elements = strings = depth = at = 0
    while at < len(body):
        quote = body.find(b'"', at, at + _WINDOW)
        end = quote if quote >= 0 else min(at + _WINDOW, len(body))
        elements += body.count(b",", at, end) + body.count(b"[", at, end) + body.count(b"{", at, end)
        strings += quote >= 0
        if elements > elements_max or strings > 2 * elements_max + 2:
            raise ValueError(f"it has more than {elements_max:,} elements; send less at once, or send it as text")
        for bracket in _BRACKET.finditer(body, at, end):
            depth += 1 if bracket[0] in b"[{" else -1
            if depth > depth_max:
                raise ValueError(f"it {too_deep(depth_max)}")
            if depth < 0:
                return
        at = _end_of_string(body, quote + 1) if quote >= 0 else end


def _end_of_string(body: bytes, at: int) -> int:
    """Behind the quote that ends it; the end of the body where there is none."""
    while at < len(body):
        found = _INSIDE.match(body, at, at + _WINDOW)
        assert found is not None
        end = found.end()
        if body[end : end + 1] == b'"':
            return end + 1
        at = end if end > at else len(body)  # stands still: a backslash is all that is left
    return at


class FirstWrong(FailFast):
    """Of a list: its first wrong element is told, not each of them."""

    __hash__ = object.__hash__  # a union of types keeps its members by their hashes


def check_fields(value: Any) -> Any:
    """For models that take no field they do not know: each would be an error of its own. Raises ValueError."""
    if isinstance(value, dict) and len(value) > FIELDS_MAX:
        raise ValueError(f"has {len(value):,} fields, more than there are")
    return value


class DecodedRequest(Request):
    """One whose body was decoded before, in bounds."""

    async def json(self) -> Any:
        return self.scope[DECODED] if DECODED in self.scope else await super().json()


def _replay(body: bytes, receive: Receive) -> Receive:
    told = False

    async def replaying() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replaying
