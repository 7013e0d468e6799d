"""Secrets, taken out of text that leaves us for a log, the journal or an error.

Two kinds are found: values that this process knows to be secret (variables of its environment whose names say so,
passwords in the URLs of others, the password of its database, its own token), wherever they stand; and, in logs and
errors, what has the shape of a key. A value that is an ordinary word, such as a password `postgres`, a number or the
path of a file is none of them: to take it out would damage what a model reads, and what it writes after that, and
hide nothing.
The time it takes is linear in the text, whose size is bounded: a pattern here has no repetition inside another.
"""

import json
import logging
import os
import re
import weakref
from collections.abc import Mapping

from holdfast.tracebacks import traceback_text
from holdfast.urls import passwords_in

VALUE_CHARS_MIN = 8  # shorter ones would be found in ordinary words
ORDINARY_CHARS_MAX = 15  # a longer one is hidden, whatever it looks like
LOG_CHARS_MAX = 64 << 10
CHOSEN_MAX = 1_000  # values that come and go with the owners of chats

_NAMED = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|(?:^|_)(?:AUTH|PAT)$", re.IGNORECASE)
# One or two words, and perhaps a few digits behind them; or a number.
_ORDINARY = re.compile(r"[A-Za-z]+(?:[ _.-][A-Za-z]+)?[0-9]{0,4}[!.]?|[0-9]+")
_SHAPES = re.compile(
    r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,200}"  # OpenAI, Anthropic and many others
    r"|\bAIza[A-Za-z0-9_-]{30,60}"  # Google
    r"|\bgh[pousr]_[A-Za-z0-9]{20,255}"  # GitHub
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,250}"  # Slack
    r"|\bAKIA[A-Z0-9]{16}\b"  # AWS
    r"|\bhf_[a-z0-9_]{1,80}_[A-Za-z0-9_-]{43}"  # ours
    r"|\bwhsec_[A-Za-z0-9+/=]{16,200}"  # of webhooks
    r"|\bhfa_[A-Za-z0-9_-]{16,2000}"  # links to approvals
    r"|\bBearer [A-Za-z0-9._~+/=-]{8,2000}"
    r"|(?<=://)[^\s/:@]{1,100}:[^\s/@]{1,200}(?=@)",  # name and password in a URL
    re.IGNORECASE,
)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is one by its name, or holds the password of a URL."""
    return bool(_NAMED.search(name)) or ("://" in value and "@" in value and bool(passwords_in(value)))


def can_be_hidden(value: str) -> bool:
    """Whether it can be taken out of a text without damage: it is neither short nor an ordinary word."""
    ordinary = len(value) <= ORDINARY_CHARS_MAX and _ORDINARY.fullmatch(value)
    return len(value) >= VALUE_CHARS_MIN and not ordinary


class Secrets:
    """The secrets that a process knows, each under the name that stands in its place."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, str] = {}
        self._chosen: dict[str, None] = {}  # those that were added as one of very many, oldest first
        _all.add(self)
        self.add_named(environ or {})

    def add_named(self, environ: Mapping[str, str]) -> None:
        """Those variables whose names say that they are secret, and the passwords of URLs in all others."""
        for name, value in environ.items():
            if _NAMED.search(name):
                if not (value.startswith("/") and os.path.exists(value)):  # noqa: PTH110  of a file that holds one
                    self.add(name, value)
            elif "://" in value and "@" in value:
                self.add_url(f"password in {name}", value)

    def add(self, name: str, value: str | None) -> None:
        """As it is, and as JSON writes it: a key of several lines stands in one there."""
        if value is None or not can_be_hidden(value):
            return
        known = {**self._values, value: f"[{name}]", json.dumps(value)[1:-1]: f"[{name}]"}
        # The longest first: a value that is the beginning of another would leave the other's end standing.
        self._values = dict(sorted(known.items(), key=lambda known: len(known[0]), reverse=True))

    def add_chosen(self, name: str, value: str) -> None:
        """One of very many, such as the key of an owner: the oldest of these is forgotten."""
        self._chosen.pop(value, None)
        self._chosen[value] = None
        if value not in self._values:
            self.add(name, value)
        if len(self._chosen) > CHOSEN_MAX:
            oldest = next(iter(self._chosen))
            del self._chosen[oldest]
            gone = (oldest, json.dumps(oldest)[1:-1])
            self._values = {value: mark for value, mark in self._values.items() if value not in gone}

    def add_url(self, name: str, url: str) -> None:
        """The passwords in a URL, as they stand there and as they are meant."""
        for password in sorted(passwords_in(url)):
            self.add(name, password)

    @property
    def marks(self) -> frozenset[str]:
        """What stands in the place of each."""
        return frozenset(self._values.values())

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


_all: "weakref.WeakSet[Secrets]" = weakref.WeakSet()  # of this process


def marks_added(before: str, after: str) -> list[str]:
    """Marks that `after` has more often than `before`: who wrote it was shown them, and not what they stand for."""
    marks = frozenset().union(*(secrets.marks for secrets in tuple(_all)))
    return sorted(mark for mark in marks if mark in after and after.count(mark) > before.count(mark))


def without_known_secrets(text: str) -> str:
    """Without those of every app of this process, and without what looks like one."""
    for secrets in tuple(_all):
        text = secrets.taken_out(text)
    return _SHAPES.sub("[redacted]", text[:LOG_CHARS_MAX])


class SecretsFilter(logging.Filter):
    """For a log handler: what it writes holds no secret, in the message or beside it."""

    def __init__(self, *secrets: Secrets) -> None:
        super().__init__()
        self._secrets = list(secrets)

    def hide(self, secrets: Secrets) -> None:
        """These as well, and whatever is added to them later."""
        if secrets not in self._secrets:
            self._secrets.append(secrets)

    def clean(self, text: str) -> str:
        for secrets in self._secrets:
            text = secrets.taken_out_of_log(text)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        clean = self.clean
        record.msg, record.args = clean(record.getMessage()), None
        for name, value in vars(record).items():
            if isinstance(value, str) and name not in _OURS:
                setattr(record, name, clean(value))
            elif name not in _STANDARD and not isinstance(value, int | float | None):
                setattr(record, name, clean(str(value)))  # as a formatter would show it
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_text(record.exc_info[1])
        if record.exc_text:
            record.exc_text = clean(record.exc_text)
        return True


_STANDARD = frozenset(vars(logging.makeLogRecord({})))  # what every record has
_OURS = frozenset(
    {"msg", "exc_text", "name", "levelname", "pathname", "filename", "module", "funcName", "threadName"}
)
