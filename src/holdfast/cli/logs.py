"""What is logged, where and how: one line per event on standard error, as text or as JSON, each with its `action`."""

import datetime
import logging
import os

import msgspec

from holdfast.log_context import ContextFilter
from holdfast.redaction import Secrets, SecretsFilter
from holdfast.safe_text import revealed, safe, safe_json
from holdfast.system.standard_error import write_line
from holdfast.tracebacks import traceback_text

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "action"}


_secrets = SecretsFilter()  # of this process, which has one log


def hide_in_logs(secrets: Secrets) -> None:
    """What an app knows to be secret beside the environment: of its database, its tool servers, its own door."""
    _secrets.hide(secrets)


def without_secrets(text: str) -> str:
    """As a log line would have it."""
    return _secrets.clean(text)


def set_up_logging(level: str, format: str) -> None:
    """For this process. Called once, by the command."""
    handler = _ToStandardError()
    _secrets.hide(Secrets(os.environ))
    handler.addFilter(ContextFilter())  # before the secrets are taken out
    handler.addFilter(_secrets)
    handler.setFormatter(JsonLogLines() if format == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of others; what is ours is told as the setting says
    logging.getLogger("holdfast").setLevel(level.upper())


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_line(self.format(record))
        except Exception:  # noqa: BLE001  a line that cannot be made is told as logging tells it
            self.handleError(record)


class Lines(logging.Formatter):
    """`12:00:01 warning guard_died: guard died error='…'`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value!r}" for name, value in _extras(record).items())
        message = "\\n".join(revealed(record.getMessage()).lines)  # one line: no message makes up another
        head = f"{_time(record):%H:%M:%S} {record.levelname.lower()} {_action(record)}: {message}"
        return "\n".join(filter(None, [f"{head} {fields}".rstrip(), self._trace(record)]))

    def _trace(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_text(record.exc_info[1])
        return safe(record.exc_text or "")


class JsonLogLines(Lines):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": _action(record),
            "message": record.getMessage(),
            "logger": record.name,
            **_extras(record),
        }
        if trace := self._trace(record):
            line["trace"] = trace
        return safe_json(msgspec.json.encode(line)).decode()


def _action(record: logging.LogRecord) -> str:
    """Stable: what a monitor looks for. A line of another library goes by its logger."""
    return str(getattr(record, "action", record.name))


def _extras(record: logging.LogRecord) -> dict[str, object]:
    plain = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in vars(record).items()
        if name not in _OWN
    }


def _time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created).astimezone()
