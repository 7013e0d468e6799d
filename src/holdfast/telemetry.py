"""What is measured while it happens: durations, and OpenTelemetry spans for turns, model calls and tool calls.

Spans follow OpenTelemetry's conventions for generative AI. They are off unless switched on; then they go wherever the
program's OpenTelemetry SDK was told to send them. They never hold what was said: no prompt, no answer, no argument.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_OLDER = 0.9  # how much the moving average keeps of what it was


class Durations:
    """Of one kind of operation: how many, how long of late, how long at most. For /health; costs a few additions."""

    __slots__ = ("average_ms", "count", "failed", "longest_ms")

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self.average_ms: float | None = None
        self.longest_ms = 0.0

    def add(self, seconds: float) -> None:
        ms = seconds * 1000
        self.count += 1
        self.average_ms = ms if self.average_ms is None else _OLDER * self.average_ms + (1 - _OLDER) * ms
        self.longest_ms = max(self.longest_ms, ms)

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed += 1
            raise
        finally:
            self.add(time.perf_counter() - began)


class Span:
    """One that is not recorded."""

    def set(self, name: str, value: str | int | float | None) -> None:
        """None: left out."""

    def failed(self, kind: str) -> None:
        """What it was for did not happen."""


class _Recorded(Span):
    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, name: str, value: str | int | float | None) -> None:
        if value is not None:
            self._span.set_attribute(name, value)

    def failed(self, kind: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  as below

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, kind))


_NO_SPAN = Span()


class Traces:
    """`with traces.span("execute_tool weather", {"gen_ai.tool.name": "weather"}) as span:`"""

    def __init__(self, *, on: bool = False) -> None:
        self._tracer: Any = None
        if on:
            from opentelemetry import trace  # noqa: PLC0415  only who asks for spans pays for the import

            self._tracer = trace.get_tracer("holdfast")

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int | float | None]) -> Iterator[Span]:
        if self._tracer is None:
            yield _NO_SPAN
            return
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            recorded = _Recorded(span)
            for key, value in attributes.items():
                recorded.set(key, value)
            try:
                yield recorded
            except BaseException as error:
                recorded.failed(type(error).__name__)
                raise
