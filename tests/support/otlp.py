"""A receiver of traces on loopback, as a collector is one: OTLP over HTTP, protobuf, the real wire.

`with Receiver() as receiver:` programs are sent there by `receiver.environ`. It can be told to hang: then it takes
connections and requests, and answers none.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

ERROR = 2  # of a status, in the protocol


class Received(NamedTuple):
    """A span as it came."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: a root
    start_ms: float
    end_ms: float
    links: tuple[str, ...]
    failed: bool
    attributes: dict[str, Any]
    service: str

    @property
    def fence(self) -> int:
        found: int = self.attributes["holdfast.fence"]
        return found


class Receiver:
    def __init__(self, *, hangs: bool = False) -> None:
        self._spans: list[Received] = []
        self._lock = threading.Lock()
        self._let_go = threading.Event()
        if not hangs:
            self._let_go.set()
        self.requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Not into the test's output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "HOLDFAST_TRACES": "true"}

    def take(self, body: bytes) -> None:
        with self._lock:
            self.requests += 1
        self._let_go.wait()
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self._spans += received(request)

    def spans(self) -> list[Received]:
        with self._lock:
            return list(self._spans)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


def received(request: ExportTraceServiceRequest) -> list[Received]:
    found: list[Received] = []
    for group in request.resource_spans:
        resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                found.append(
                    Received(
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        start_ms=span.start_time_unix_nano / 1e6,
                        end_ms=span.end_time_unix_nano / 1e6,
                        links=tuple(link.span_id.hex() for link in span.links),
                        failed=span.status.code == ERROR,
                        attributes={pair.key: _value(pair.value) for pair in span.attributes},
                        service=str(resource.get("service.name", "")),
                    )
                )
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
