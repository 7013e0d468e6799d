"""The address of a database, as it may be shown, and the passwords in it.

An address is shown only where it is beyond doubt what each of its parts is. Of any other no more than the scheme is
shown: a slip (an `@` or `/` in a password, a missing scheme, an option) puts the password where something harmless
usually stands.
"""

import re
from contextlib import suppress
from urllib.parse import unquote, urlsplit

_SCHEMES = ("sqlite", "postgresql", "postgres", "mysql", "mariadb", "http", "https")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_PLAIN = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://"
    r"(?:(?P<user>[A-Za-z0-9_.-]+)(?P<password>:[A-Za-z0-9_.~!$*+-]*)?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<database>/[A-Za-z0-9_-]*)?"
    r"(?P<options>\?[a-z_]+=[A-Za-z0-9_.-]*(?:&[a-z_]+=[A-Za-z0-9_.-]*)*)?"
)
_FILE = re.compile(r"sqlite:///[^@?#%:]+")
# Options that hold neither a password nor the way to one.
_HARMLESS = frozenset(
    {
        *("application_name", "client_encoding", "connect_timeout", "gssencmode", "hints", "keepalives"),
        *("keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "pooler", "schema"),
        *("ssl", "sslmode", "target_session_attrs", "tcp_user_timeout"),
    }
)
_IN_OPTIONS = re.compile(r"(?:^|[\s?&;])\w*password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&;#]*)", re.IGNORECASE)


def shown_url(url: str) -> str:
    """Without the password where it is plain which that is; else the scheme alone; or nothing of it."""
    if not url or _FILE.fullmatch(url):
        return url
    found = _PLAIN.fullmatch(url)
    options = found["options"] or "" if found is not None else ""
    if found is None or not all(pair.partition("=")[0] in _HARMLESS for pair in options[1:].split("&") if pair):
        return _scheme_alone(url)
    user = f"{found['user']}{':***' if found['password'] else ''}@" if found["user"] else ""
    return f"{found['scheme']}://{user}{found['hosts']}{found['database'] or ''}{options}"


def _scheme_alone(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    return f"{scheme}://…" if colon and scheme in _SCHEMES else "…"


def passwords_in(url: str) -> set[str]:
    """Those that are found there, as they stand and as they are meant. In linear time."""
    found: set[str] = set()
    with suppress(ValueError):  # it only looked like one
        found.add(urlsplit(url).password or "")
    for match in _IN_OPTIONS.finditer(url):
        value = match.group(1)
        quoted = value.startswith("'") and len(value) > 1
        found.add(re.sub(r"\\(.)", r"\1", value[1:-1]) if quoted else value)
    return {text for password in found if password for text in (password, unquote(password))}
