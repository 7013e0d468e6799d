"""Cookies as browsers send them: one by one, so that what another program of the host wrote is passed over.

A browser keeps cookies by host, whatever the port. So ours has the port in its name, as the browser knows it:
two servers of one host have two cookies, and all processes behind one address have the same.
"""

from collections.abc import Iterator

from starlette.datastructures import Headers
from starlette.types import Scope

PREFIX = "holdfast_session_"
VALUES_MAX = 4  # of one name: a browser sends one for each path that it has one for
DEFAULT_PORTS = {"http": "80", "https": "443"}


def cookie_name(scope: Scope) -> str:
    """Of the server that this request was sent to."""
    host = Headers(scope=scope).get("host", "")
    port = host.rpartition("]")[2].rpartition(":")[2]
    return PREFIX + (port if port.isascii() and port.isdigit() else DEFAULT_PORTS.get(scope.get("scheme", ""), "80"))


def cookie_values(headers: Headers, name: str) -> list[str]:
    """What the cookies of this name hold, at most `VALUES_MAX` of them, in the order of the browser."""
    found: list[str] = []
    for key, value in _pairs(headers):
        if key == name and len(found) < VALUES_MAX:
            found.append(value)
    return found


def _pairs(headers: Headers) -> Iterator[tuple[str, str]]:
    """In linear time, of a head whose size is bounded. What is no pair is left out, alone."""
    for line in headers.getlist("cookie"):
        for pair in line.split(";"):
            name, equals, value = pair.strip().partition("=")
            if equals:
                yield name.strip(), value.strip().strip('"')
