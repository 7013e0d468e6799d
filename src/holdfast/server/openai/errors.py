"""Errors as clients of OpenAI's protocols know them. The layer that found the fault tells it as a problem; it is told
anew here, for every path below the prefix, so that no other layer has to know which protocol a client speaks.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.core.records import Failure
from holdfast.core.retry import Kind
from holdfast.server.problems import MEDIA_TYPE, of_fault

PREFIX = "/v1/"

# A turn that failed has been tried again as often as made sense; asking again would begin another chat.
DONT_RETRY = {"x-should-retry": "false"}

# What was said until then is no answer, and these clients have no word for it.
STOPPED = "the turn was stopped before there was an answer; what was said until then is in its chat"

TURN_WAITS = "turn_waits"  # for a person, in a protocol that has no word for it
NOT_YET = 425  # Too Early: 4xx, because clients send what was answered with 408, 409, 429 or 5xx again by themselves
FAILED = 400  # litellm drops parameters after a 422 and sends the rest again

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {"unauthorized": "invalid_api_key", "too_many_requests": "rate_limit_exceeded"}
_FAILED: Mapping[str, tuple[int, str]] = {
    Kind.RATE_LIMIT: (FAILED, "rate_limit_exceeded"),
    Kind.CONTEXT_TOO_LONG: (400, "context_length_exceeded"),
    Kind.REFUSED: (400, "content_policy_violation"),
}


def error_fields(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"error": error_fields(message, kind, code, param)}


def error_response(
    status: int, message: str, code: str | None, headers: Mapping[str, str] = {}, param: str | None = None
) -> Response:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    data = msgspec.json.encode(error_body(message, kind, code, param))
    return Response(data, status, dict(headers), media_type="application/json")


def failed_turn(error: Failure | None, headers: Mapping[str, str]) -> Response:
    """A turn that failed, for a client that waited for its answer. It was tried as often as made sense, and its tools
    have run: no status with which clients send it again by themselves, whatever `x-should-retry` says.
    """
    failure = error or Failure(code="error", message="the turn failed")
    status, code = _FAILED.get(failure.code, (FAILED, failure.code))
    return error_response(status, failure.message, code, {**headers, **DONT_RETRY})


def not_yet(words: str, headers: Mapping[str, str], *, keyed: bool) -> Response:
    """The server goes, or the answer takes longer than it waits. A client that asks again with its key gets the same
    turn's answer, so it is told to; one without would begin another turn, and is not.
    """
    words = f"there is no answer yet: {words}"
    if keyed:
        return error_response(503, words, "not_yet", {**headers, "Retry-After": "1"})
    words += " (with an Idempotency-Key, a request that is sent again gets this answer)"
    return error_response(NOT_YET, words, "not_yet", {**headers, **DONT_RETRY})


def failure_code(error: Failure) -> str:
    """As a response shows it: of the codes that its clients know."""
    return "rate_limit_exceeded" if error.code == Kind.RATE_LIMIT else "server_error"


class ErrorsMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _below(scope):
            await self._app(scope, receive, send)
            return
        translator = _Translator(send)
        try:
            await self._app(scope, receive, translator.send)
        except Exception as error:  # whatever it is, the client hears of it in its own words
            if translator.started:
                raise
            await of_fault(error)(scope, receive, translator.send)


def _below(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).startswith(PREFIX)


class _Translator:
    """Holds a problem back until it is whole, then tells it anew; everything else passes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._problem: Message | None = None
        self._body = b""
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if Headers(raw=message["headers"]).get("content-type") == MEDIA_TYPE:
                self._problem = message
                return
        if self._problem is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body", False):
            await self._tell(self._problem)

    async def _tell(self, start: Message) -> None:
        problem = msgspec.json.decode(self._body)
        status = 400 if start["status"] == 422 else start["status"]
        code = _CODES.get(problem["code"], problem["code"])
        if status == 404 and problem.get("what") == "model":
            code = "model_not_found"
        told = error_response(status, problem["detail"], code, param=problem.get("field"))
        headers = [pair for pair in start["headers"] if pair[0] not in (b"content-type", b"content-length")]
        headers += told.raw_headers
        if status == 409:
            headers += [(name.encode(), value.encode()) for name, value in DONT_RETRY.items()]
        await self._send({**start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": told.body})
