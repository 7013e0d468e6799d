"""Secrets, taken out of text that leaves us for a log, the journal or an error.

Two kinds are found: values that this process knows to be secret (variables of its environment whose names say so, the
password of its database, its own token), wherever they stand; and, in logs and errors, what has the shape of a key.
The time it takes is linear in the text, whose size is bounded: a pattern here has no repetition inside another.
"""

import logging
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

VALUE_CHARS_MIN = 8  # shorter ones would be found in ordinary words
LOG_CHARS_MAX = 64 << 10

_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,200}"  # OpenAI, Anthropic and many others
    r"|\bAIza[A-Za-z0-9_-]{30,60}"  # Google
    r"|\bgh[pousr]_[A-Za-z0-9]{20,255}"  # GitHub
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,250}"  # Slack
    r"|\bAKIA[A-Z0-9]{16}\b"  # AWS
    r"|\bBearer [A-Za-z0-9._~+/=-]{8,2000}"
    r"|(?<=://)[^\s/:@]{1,100}:[^\s/@]{1,200}(?=@)",  # name and password in a URL
    re.IGNORECASE,
)


class Secrets:
    """The secrets that a process knows, each under the name that stands in its place."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, str] = {}
        self.add_named(environ or {})

    def add_named(self, environ: Mapping[str, str]) -> None:
        """Those variables whose names say that they are secret."""
        for name, value in environ.items():
            if _NAMED.search(name):
                self.add(name, value)

    def add(self, name: str, value: str | None) -> None:
        if value is not None and len(value) >= VALUE_CHARS_MIN:
            self._values[value] = f"[{name}]"

    def add_url(self, name: str, url: str) -> None:
        """The password in a URL, as it stands there and as it is meant."""
        password = urlsplit(url).password
        if password is not None:
            self.add(name, password)
            self.add(name, unquote(password))

    def taken_out(self, text: str) -> str:
        """Without the values we know. What only looks like a secret stays: it may be what a tool was asked for."""
        for value, name in self._values.items():
            if value in text:
                text = text.replace(value, name)
        return text

    def taken_out_of_log(self, text: str) -> str:
        """And without what looks like one; a line of any length becomes one of bounded length first."""
        if len(text) > LOG_CHARS_MAX:
            text = f"{text[:LOG_CHARS_MAX]}… ({len(text):,} characters)"
        return _SHAPES.sub("[redacted]", self.taken_out(text))


class SecretsFilter(logging.Filter):
    """For a log handler: what it writes holds no secret, in the message or beside it."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        clean = self._secrets.taken_out_of_log
        record.msg, record.args = clean(record.getMessage()), None
        for name, value in vars(record).items():
            if isinstance(value, str) and name not in _OURS:
                setattr(record, name, clean(value))
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = clean(record.exc_text)
        return True


_OURS = frozenset(
    {"msg", "exc_text", "name", "levelname", "pathname", "filename", "module", "funcName", "threadName"}
)
