"""A request's `traceparent`: what it sends to a chat goes on in the trace that it came from.

It is kept with the message, in the store, so that any worker knows it; a chat is never told to sample or to stop.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.spans import sent_by


class TraceContextMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == b"traceparent"]
        if scope["type"] != "http" or len(given) != 1:  # by the specification: more than one is none
            await self._app(scope, receive, send)
            return
        with sent_by(given[0].decode("latin-1")):
            await self._app(scope, receive, send)
