"""Errors as RFC 9457 problem details: a status, a stable code, and words that say what to do."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import errors

log = logging.getLogger("holdfast.http")

MEDIA_TYPE = "application/problem+json"

# By class, nearest first. What is not here is our own fault: 500.
STATUS: Mapping[type[errors.HoldfastError], int] = {
    errors.NotFound: 404,
    errors.NoTurn: 404,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.RefusedError: 409,
    errors.KeyReused: 422,
    errors.TooManyStreams: 429,
    errors.TooManyRequests: 429,
    errors.LimitReached: 413,
    errors.InvalidInput: 400,
    errors.SlashCommandFailed: 422,
    errors.ConfigError: 400,
    errors.CallerError: 400,
    errors.StoreFull: 507,
    errors.StoreError: 503,
    errors.NoWorker: 503,
    errors.RecordError: 500,
}
TITLES: Mapping[str, str] = {
    "not_found": "Not found",
    "no_turn": "No such turn yet",
    "no_worker": "No worker drives the chat",
    "refused": "Refused in this state",
    "key_reused": "Idempotency key used for another request",
    "limit_reached": "Over a limit",
    "invalid_input": "Invalid input",
    "wrong_cursor": "Not a place in this chat",
    "config": "Invalid input",
    "unknown_agent": "No such agent",
    "unauthorized": "No valid token",
    "forbidden": "Not allowed with this token",
    "forbidden_host": "Host not allowed",
    "forbidden_origin": "Origin not allowed",
    "body_too_large": "Body too large",
    "body_too_slow": "Body too slow",
    "server_going": "This server is going",
    "unsupported_encoding": "Encoding of the body not supported",
    "too_many_streams": "Too many streams",
    "too_many_requests": "Too many requests",
    "internal": "Internal error",
}
CLOSE = {"Connection": "close"}  # what is left of the body would be taken for the next request
_HEADERS: Mapping[int, Mapping[str, str]] = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}
_FIELDS = ("field", "reason", "state", "command", "what", "value", "limit", "outcome", "scope", "retry_after_s")


def problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    body = {
        "type": f"urn:holdfast:problem:{code}",
        "title": TITLES.get(code, code.replace("_", " ").capitalize()),
        "status": status,
        "code": code,
        "detail": detail,
        **more,
    }
    return Response(msgspec.json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def of_error(error: errors.HoldfastError) -> Response:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    if status == 500:
        return of_fault(error)
    more = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    headers = _HEADERS.get(status)
    if isinstance(error, errors.TooManyRequests):
        headers = {"Retry-After": str(error.retry_after_s)}
    return problem(status, error.code, str(error), headers, **more)


def of_going() -> Response:
    """Nothing has been begun, or what was begun goes on elsewhere; a key makes it the same request."""
    headers = {**CLOSE, "Retry-After": "1"}
    return problem(503, "server_going", "this server is going; send the request again, with its key", headers)


def of_fault(error: BaseException) -> Response:
    """Ours: the log has the story, the client gets none of it."""
    log.error("a request failed", exc_info=error, extra={"action": "http.error"})
    return problem(500, "internal", "the server failed to answer; its log says why")


def install(api: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """`routes` are those of the API's routers, from which a client that used a wrong method learns the right ones."""

    @api.exception_handler(errors.HoldfastError)
    async def ours(_: Request, error: errors.HoldfastError) -> Response:
        return of_error(error)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = [
            {"where": ".".join(str(part) for part in line["loc"]), "problem": line["msg"]} for line in error.errors()
        ]
        words = "; ".join(f"{line['where']}: {line['problem']}" for line in found[:5])
        if error.body is not None and "json" not in request.headers.get("content-type", ""):
            words += "; send `Content-Type: application/json`"  # without it a body is not read as JSON
        return problem(422, "invalid_input", words, errors=found[:50])

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            allowed = ", ".join(sorted(_methods(routes, request)))
            return problem(405, "method_not_allowed", f"here one can only {allowed}", {"Allow": allowed})
        code = {400: "invalid_input", 404: "not_found", 408: "body_too_slow"}.get(error.status_code, "http_error")
        return problem(error.status_code, code, str(error.detail), error.headers)


class FaultsMiddleware:
    """Answers for what no handler knows. Innermost: the layers around it see to headers, words and figures of this
    answer, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            await of_fault(error)(scope, receive, send)


def _methods(routes: Sequence[BaseRoute], request: Request) -> set[str]:
    """Of all routes of this path, not of the first one only. A path as it stands goes before one with parameters."""
    found = [
        route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    exact = [route for route in found if not route.param_convertors]
    return {method for route in exact or found for method in route.methods or ()}
