"""What every log line says beside its own words: the chat, turn, fence and call that it is about.

`bound` says it once, around the work; every line of a logger made by `logger` has it, however deep in the work it is
written, and so does whatever the program's own code logs there, through the commands' log. A field that a line has of
its own stays.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from holdfast.redaction import without_known_secrets
from holdfast.tracebacks import traceback_text

Fields = Mapping[str, str | int | None]

_bound: ContextVar[tuple[Callable[[], Fields], ...]] = ContextVar("holdfast_log_context", default=())


@contextmanager
def bound(read: Callable[[], Fields]) -> Iterator[None]:
    """Around work. `read` is asked when a line is written, so that it tells of the turn that the chat is in then."""
    token = _bound.set((*_bound.get(), read))
    try:
        yield
    finally:
        _bound.reset(token)


def fields() -> dict[str, str | int | None]:
    """Of the work that goes on here."""
    found: dict[str, str | int | None] = {}
    for read in _bound.get():
        found.update(read())
    return found


class ContextFilter(logging.Filter):
    """Adds what is bound to each record that it sees. Its traceback becomes a bounded text without secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in fields().items():
            if value is not None and name not in vars(record):
                setattr(record, name, value)
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = without_known_secrets(traceback_text(record.exc_info[1]))  # which formatters then use
        return True


_filter = ContextFilter()


def logger(name: str) -> logging.Logger:
    """One of ours: its lines have what is bound, whatever set the logging up."""
    found = logging.getLogger(name)
    found.addFilter(_filter)  # once, however often it is asked for
    return found
