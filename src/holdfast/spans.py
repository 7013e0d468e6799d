"""OpenTelemetry spans: where one hangs, under which id, and how it gets out of the process.

Off unless switched on; while it is off, nothing of OpenTelemetry is imported. Ids are worked out from durable facts
(`digest`), not drawn, so that processes that know nothing of each other make spans of one trace, and a span can hang
under one that another process will end later. What a span holds is said in `turn_spans.py`; no chat is known here.

Spans go to the program's tracer provider. Where the program has set none, one is made that sends OTLP over HTTP to
wherever the variables of OpenTelemetry say (`OTEL_EXPORTER_OTLP_ENDPOINT`, …). A queue of bounded length and a thread
of the SDK's stand between a chat and the receiver: one that hangs or fails costs spans, never time of a chat.
"""

import atexit
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, NamedTuple

log = logging.getLogger("holdfast.spans")

Attribute = str | int | float | bool | Sequence[str] | None  # None: left out
Attributes = Mapping[str, Attribute]

EXPORT_S = 5.0  # that one delivery may take, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
EXPORT_EVERY_MS = 1_000  # what a kill -9 loses of spans that are over, unless OTEL_BSP_SCHEDULE_DELAY says otherwise
EXIT_S = 3.0  # for what is left when the process ends; a delivery under way has its own time
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class SpanPlace(NamedTuple):
    """A span that others hang under or link to: of this process, of another, or one that is not over yet."""

    trace_id: int
    span_id: int
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context writes it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def place_of(traceparent: str | None) -> SpanPlace | None:
    """None for what is no `traceparent`: by the specification it is then left unread."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent and len(traceparent) <= 200 else None
    if found is None or found[1] == "ff" or (found[1] == "00" and len(found[0]) != 55):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return SpanPlace(trace_id, span_id, bool(int(found[4], 16) & 1)) if trace_id and span_id else None


def digest(size_bytes: int, *facts: str | int) -> int:
    """An id of so many bytes, the same wherever the same facts are known; never 0, which is no id."""
    text = "\0".join(map(str, facts)).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=size_bytes, person=b"holdfast.spans").digest()) or 1


_sender: ContextVar[str | None] = ContextVar("holdfast_sender", default=None)


@contextmanager
def sent_by(traceparent: str | None) -> Iterator[None]:
    """Around the work of a request: what it sends to a chat came from there."""
    token = _sender.set(traceparent)
    try:
        yield
    finally:
        _sender.reset(token)


class OpenSpan:
    """One that is not recorded."""

    place: SpanPlace | None = None

    def set(self, name: str, value: Attribute) -> None:
        """None: left out."""

    def failed(self, kind: str) -> None:
        """What it was for did not happen."""

    def end(self, at_ms: int | None = None) -> None:
        """Once; without an instant, now."""

    @contextmanager
    def current(self) -> Iterator["OpenSpan"]:
        """Inside, spans of other instrumentation hang under it. Ends it; an exception fails it."""
        yield self


NO_SPAN = OpenSpan()


class _Recorded(OpenSpan):
    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        self.place = SpanPlace(context.trace_id, context.span_id, bool(context.trace_flags & 1))

    def set(self, name: str, value: Attribute) -> None:
        if value is not None:
            self._span.set_attribute(name, value)

    def failed(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  as in Traces

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, kind))

    def end(self, at_ms: int | None = None) -> None:
        self._span.end(None if at_ms is None else at_ms * 1_000_000)

    @contextmanager
    def current(self) -> Iterator[OpenSpan]:
        from opentelemetry.trace import use_span  # noqa: PLC0415  as in Traces

        try:
            with use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield self
        except BaseException as error:
            self.failed(type(error).__name__)
            raise
        finally:
            self.end()


class Traces:
    """`span = traces.start("execute_tool weather", under=place, span_id=…)`; then `span.end()`."""

    def __init__(self, *, on: bool = False, content: bool = False) -> None:
        self.on = on
        self.content = on and content
        self._tracer: Any = None
        self._ids: _GivenIds | None = None

    def open(self) -> None:
        """Find the tracer provider, or make one. Without the SDK it is off from here on, and a log line says so."""
        if not self.on or self._tracer is not None:
            return
        from opentelemetry import trace  # noqa: PLC0415  only a program that asks for spans pays for the import

        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            try:
                trace.set_tracer_provider(_own_provider())
            except ImportError as error:
                extra = {"action": "traces.off", "error": str(error)}
                log.warning("no spans are made: install holdfast[traces], or set a tracer provider", extra=extra)
                self.on = self.content = False
                return
        self._tracer = trace.get_tracer("holdfast")
        if hasattr(self._tracer, "id_generator"):
            own = self._tracer.id_generator
            self._ids = own if isinstance(own, _GivenIds) else _GivenIds(own)
            self._tracer.id_generator = self._ids

    def sender(self) -> str | None:
        """Where what this process sends to a chat comes from: the span that it is in; or the request that it answers,
        if no instrumentation of a server around it has gone on with that request's trace.
        """
        if not self.on:
            return None
        from opentelemetry.trace import get_current_span  # noqa: PLC0415  as in `open`

        context, given = get_current_span().get_span_context(), place_of(_sender.get())
        if given is not None and given.trace_id != context.trace_id:
            return given.traceparent
        if not context.is_valid:
            return None
        return SpanPlace(context.trace_id, context.span_id, bool(context.trace_flags & 1)).traceparent

    def samples(self, trace_id: int, name: str) -> bool:
        """What the program's sampler says to a root of this name. One that goes by the trace id, as those do that
        OpenTelemetry brings, says the same in every process.
        """
        sampler = getattr(self._tracer, "sampler", None)
        if sampler is None:
            return True
        from opentelemetry.context import Context  # noqa: PLC0415  as in `open`

        return bool(sampler.should_sample(Context(), trace_id, name).decision.is_sampled())

    def start(
        self,
        name: str,
        attributes: Attributes,
        *,
        under: SpanPlace | None,
        trace_id: int | None = None,
        span_id: int | None = None,
        at_ms: int | None = None,
        links: Sequence[SpanPlace] = (),
    ) -> OpenSpan:
        """`under` None: a root, with this `trace_id`. An id that is not given is drawn."""
        if self._tracer is None:
            return NO_SPAN
        from opentelemetry.context import Context  # noqa: PLC0415  as in `open`
        from opentelemetry.trace import Link, NonRecordingSpan, set_span_in_context  # noqa: PLC0415

        context = Context() if under is None else set_span_in_context(NonRecordingSpan(_context(under)), Context())
        found = {key: value for key, value in attributes.items() if value is not None}
        linked = [Link(_context(place)) for place in links]
        token = _next_ids.set((trace_id, span_id))
        try:
            start_time = None if at_ms is None else at_ms * 1_000_000
            return _Recorded(
                self._tracer.start_span(
                    name, context, attributes=found, links=linked, start_time=start_time, record_exception=False
                )
            )
        finally:
            _next_ids.reset(token)


def _context(place: SpanPlace) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415  as in Traces

    return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=TraceFlags(int(place.sampled)))


_next_ids: ContextVar[tuple[int | None, int | None]] = ContextVar("holdfast_next_ids", default=(None, None))


class _GivenIds:
    """The ids that `start` was given, else those of the program's own generator."""

    def __init__(self, drawn: Any) -> None:
        self._drawn = drawn

    def generate_trace_id(self) -> int:
        return _next_ids.get()[0] or int(self._drawn.generate_trace_id())

    def generate_span_id(self) -> int:
        return _next_ids.get()[1] or int(self._drawn.generate_span_id())

    def is_trace_id_random(self) -> bool:
        """A digest is as even as a random number: a sampler may go by its bits."""
        return True


def _own_provider() -> Any:
    """One that sends OTLP, and is emptied when the process ends, in bounded time. Raises ImportError."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  as in Traces
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Bounded(SpanExporter):
        """At the end of the process a receiver that hangs is not waited for, batch after batch."""

        def __init__(self) -> None:
            named = {"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"} & os.environ.keys()
            self._exporter = OTLPSpanExporter() if named else OTLPSpanExporter(timeout=EXPORT_S)
            self.close_at: float | None = None

        def export(self, spans: Sequence[Any]) -> Any:
            if self.close_at is not None and time.monotonic() > self.close_at:
                return SpanExportResult.FAILURE
            return self._exporter.export(spans)

        def shutdown(self) -> None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    exporter = Bounded()
    every_ms = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else EXPORT_EVERY_MS
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "holdfast"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=every_ms))

    def empty() -> None:
        exporter.close_at = time.monotonic() + EXIT_S
        provider.shutdown()

    atexit.register(empty)
    return provider
