"""Where the server is and how we are to talk to it, from a URL. The password is in here and never in a message.

Options of ours, taken out before libpq sees the URL:

    pooler=transaction   the URL leads to pgbouncer in transaction mode: no prepared statements, no session settings
    listen_dsn=URL       a direct way to the server for LISTEN, percent-encoded; needed for hints behind a pooler
    hints=off            neither send nor receive hints: waiters poll
    schema=NAME          where the tables are; the default is the role's own search path
"""

import difflib
import re
from copy import copy
from typing import Any, cast
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import ConfigError

# A dead peer is noticed by the kernel too, should nothing of ours be waiting on the connection just then.
_DEFAULTS = {
    "application_name": "holdfast",
    "client_encoding": "UTF8",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}

_BROKEN = (
    "the PostgreSQL URL cannot be read: in a user name or password the characters / @ : ? # % are written as "
    "%2F %40 %3A %3F %23 %25; the form is postgresql://user:password@host:port/database"
)


class DatabaseAddress:
    """`str()` and `repr()` name host, port, database and user, and nothing that is secret."""

    def __init__(self, url: str) -> None:
        plain, options = _split(url)
        self.pooled = _choice(options, "pooler", {"transaction": True}, default=False)
        self.hints = _choice(options, "hints", {"on": True, "off": False}, default=True)
        self.schema = options.get("schema")
        if self.schema is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", self.schema):
            raise ConfigError("schema: a name of letters, digits and underscores, at most 41 long")
        if self.schema is not None and self.pooled:
            raise ConfigError(
                "schema= sets the search path of a session, and behind a pooler there are none: "
                "set it for the role instead (ALTER ROLE … SET search_path = …)"
            )
        values = _read(plain)
        self.conninfo = _conninfo(values)
        self._secrets = {values.get("password")}
        self._name(values)
        # Behind a pooler LISTEN would be heard by the client that gets the server connection next.
        self.listening: DatabaseAddress | None = self if not self.pooled else None
        if (listen := options.get("listen_dsn")) is not None:
            self.listening = self._elsewhere(_read(listen))

    def _name(self, values: dict[str, str]) -> None:
        self.user = _plain(values.get("user")) or "the default user"
        self.host = _plain(values.get("host") or values.get("hostaddr")) or "the local socket"
        self.port = values.get("port") or "5432"
        self.database = _plain(values.get("dbname")) or self.user

    def _elsewhere(self, values: dict[str, str]) -> "DatabaseAddress":
        """The same store by another way, with a name of its own for messages. Either's secrets end in both."""
        self._secrets.add(values.get("password"))
        other = copy(self)
        other.conninfo = _conninfo(values)
        other._name(values)
        return other

    def __str__(self) -> str:
        return f"database {self.database!r} at {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"<{self} as {self.user!r}>"

    def scrub(self, text: str) -> str:
        """Driver and server do not repeat passwords; should one ever do, it ends here."""
        for secret in self._secrets:
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())


def _plain(name: str | None) -> str | None:
    """An odd name may be half a password: it is not shown."""
    return name if name is None or re.fullmatch(r"[\w.,:/ -]*", name) else "…"


OPTIONS = ("pooler", "listen_dsn", "hints", "schema")


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The URL as libpq takes it, and our own options. No message repeats a value: it may be half a password."""
    plain, _, query = url.partition("?")
    if "@" in query:
        raise ConfigError(_BROKEN)  # what looks like options is the rest of a password
    theirs, ours = [], {}
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"ssl"}
    for setting in filter(None, query.split("&")):
        name, separator, value = setting.partition("=")
        if not separator or not re.fullmatch(r"\w+", name):
            raise ConfigError(_BROKEN)
        if name in OPTIONS:
            ours[name] = unquote(value)
        elif name in known:
            theirs.append(setting)
        else:
            near = difflib.get_close_matches(name, sorted({*OPTIONS, *known}), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"ours are {', '.join(OPTIONS)}, the others libpq's"
            raise ConfigError(f"a PostgreSQL URL has no option {name!r}: {hint}")
    return plain + ("?" + "&".join(theirs) if theirs else ""), ours


def _conninfo(values: dict[str, str]) -> str:
    return make_conninfo("", **cast(Any, {**_DEFAULTS, **values}))


def _choice(options: dict[str, str], name: str, choices: dict[str, bool], *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def _read(conninfo: str) -> dict[str, str]:
    try:
        values = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.ProgrammingError:
        # Its text quotes what it could not read, which may be a piece of the password.
        raise ConfigError(_BROKEN) from None
    host = values.get("host", "")
    odd_host = "@" in host and not host.startswith(("/", "@"))
    if odd_host or "@" in values.get("dbname", "") or not re.fullmatch(r"[\d,]*", values.get("port", "")):
        raise ConfigError(_BROKEN)
    return values
