"""What goes over HTTP, request by request: figures for /metrics, a line for each where `access_log` asks for it, and
what the audit is told.

A route is told by its template, so that neither figures nor lines grow with what clients ask for, and no query is
told at all.
"""

import time
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.log_context import logger
from holdfast.server.audit import Audit
from holdfast.server.guarded import GRANT
from holdfast.server.origins import APPROVALS
from holdfast.server.problems import MEDIA_TYPE
from holdfast.telemetry import Distribution, Tally

log = logger("holdfast.http")

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
PROBLEM_BYTES_MAX = 64 << 10


class Traffic:
    """Of one server. Every label is one of few."""

    def __init__(self) -> None:
        self.requests = Tally("method", "route", "status")
        self.refused = Tally("reason")
        self.seconds = Distribution(BOUNDS_S, "method", "route")  # of answers that end by themselves: no streams
        self.answering = 0

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.requests.told(),
            "refused": self.refused.told(),
            "seconds": self.seconds.told(),
            "answering": self.answering,
        }


class Exchange:
    """One request and its answer, as it goes by."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.began = time.perf_counter()
        self.status = 0  # 0: the client left before there was an answer
        self.bytes = 0
        self.streams = False
        self._problem: bytearray | None = None

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
            self.streams = any(kind.startswith(b"text/event-stream") for kind in kinds)
            self._problem = bytearray() if MEDIA_TYPE.encode() in kinds else None
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            self.bytes += len(body)
            if self._problem is not None and len(self._problem) < PROBLEM_BYTES_MAX:
                self._problem += body

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method if method in METHODS else "other"

    @property
    def route(self) -> str:
        return str(getattr(self.scope.get("route"), "path", NO_ROUTE))

    @property
    def status_class(self) -> str:
        return f"{self.status // 100}xx" if self.status else "left"

    @property
    def reason(self) -> str | None:
        """The code of the problem that it was answered with."""
        if self._problem is None:
            return None
        try:
            return str(msgspec.json.decode(self._problem)["code"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return "error"

    @property
    def principal(self) -> str | None:
        found = getattr(self.scope.get(GRANT), "principal", None)
        return getattr(found, "name", None)

    @property
    def path(self) -> str:
        """As it may stand in a log: a link to an approval is all that it takes to approve."""
        said, within, _ = str(self.scope["path"]).partition(APPROVALS)
        return f"{said}{within}…" if within else said

    @property
    def client(self) -> str:
        return str(self.scope["client"][0]) if self.scope.get("client") else ""


class TrafficMiddleware:
    def __init__(self, app: ASGIApp, traffic: Traffic, *, access_log: bool = False) -> None:
        self._app = app
        self._traffic = traffic
        self._access_log = access_log
        self._audit = Audit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope)

        async def sending(message: Message) -> None:
            exchange.note(message)
            await send(message)

        self._traffic.answering += 1
        try:
            await self._app(scope, receive, sending)
        finally:
            self._traffic.answering -= 1
            self._tell(exchange)

    def _tell(self, exchange: Exchange) -> None:
        traffic = self._traffic
        traffic.requests.add(exchange.method, exchange.route, exchange.status_class)
        if not exchange.streams:
            traffic.seconds.add(exchange.seconds, exchange.method, exchange.route)
        if (reason := exchange.reason) is not None:
            traffic.refused.add(reason)
        if self._access_log:
            self._log(exchange, reason)
        told: dict[str, Any] = exchange.scope.get("path_params") or {}
        self._audit.tell(
            name=str(getattr(exchange.scope.get("route"), "name", "")),
            status=exchange.status,
            reason=reason,
            principal=exchange.principal,
            client=exchange.client,
            path=exchange.path,
            about={key: str(value) for key, value in told.items()},
        )

    def _log(self, exchange: Exchange, reason: str | None) -> None:
        chat = (exchange.scope.get("path_params") or {}).get("chat_id")
        about = {
            "action": "http.request",
            "method": exchange.method,
            "route": exchange.route,
            "status": exchange.status,
            "ms": round(exchange.seconds * 1000, 1),
            "bytes": exchange.bytes,
            "principal": exchange.principal,
            "client": exchange.client,
            **({"reason": reason} if reason is not None else {}),
            **({"chat": str(chat)[:512]} if chat is not None else {}),
        }
        log.info("%s %s %d", exchange.method, exchange.route, exchange.status, extra=about)
