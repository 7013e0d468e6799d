"""What proxies say of the client behind them: its address, and the scheme and host that it asked for.

Only those that the setting `trusted_proxies` names are believed, each only about what it saw itself: the list that
they write is read from its end, up to the first address that is no proxy of ours; what stands before it, the client
wrote. A proxy passes on what it does not write itself, so only that kind of headers counts that the setting
`proxy_headers` names.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import ConfigError

Kind = Literal["x-forwarded", "forwarded"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PROXIED = "holdfast.proxied"  # in the scope: scheme, host and client are what a trusted proxy says
HOPS_MAX = 50  # proxies in a row
SCHEMES = ("http", "https")
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
# RFC 7239: pairs of an element, each a token or a quoted string, in which no separator counts.
_PAIR = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:([!#$%&\'*+.^_`|~0-9A-Za-z:\[\]-]+)|"((?:[^"\\]|\\.)*)")')
_SEPARATOR = re.compile(r"[ \t]*([;,])[ \t]*")


class Hop(Struct, frozen=True):
    """What one proxy says of who asked it. Empty: nothing."""

    client: str = ""
    scheme: str = ""
    host: str = ""


class Proxies:
    """Raises ConfigError for a setting that names no address."""

    def __init__(self, trusted: Iterable[str] = (), kind: Kind = "x-forwarded") -> None:
        self._networks = tuple(map(_network, trusted))
        self._read = _forwarded if kind == "forwarded" else _x_forwarded

    def trusts(self, client: Address | None) -> bool:
        return client is not None and any(client in network for network in self._networks)

    def apply(self, scope: Scope) -> None:
        """Puts what is believed in the place of what the connection itself says."""
        peer = address(scope["client"][0]) if scope.get("client") else None
        if not self.trusts(peer):
            return
        found = self._walk(peer, self._read(Headers(scope=scope)))
        scope[PROXIED] = bool(found.scheme)
        if found.client:
            scope["client"] = (found.client, 0)
        if found.scheme:
            scope["scheme"] = found.scheme
        if found.host:
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope["headers"] = [*others, (b"host", found.host.encode("ascii"))]

    def _walk(self, peer: Address | None, hops: Sequence[Hop]) -> Hop:
        """From the nearest proxy outwards."""
        client, scheme, host = peer, "", ""
        for hop in reversed(hops[-HOPS_MAX:]):
            if not self.trusts(client):
                break
            scheme = hop.scheme if hop.scheme in SCHEMES else scheme
            host = hop.host if _HOST.fullmatch(hop.host) else host
            if (before := address(hop.client)) is None:  # hidden, or nonsense: what is further out is nobody's word
                break
            client = before
        return Hop(client=str(client or ""), scheme=scheme, host=host)


class ProxiesMiddleware:
    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._proxies.apply(scope)
        await self._app(scope, receive, send)


def address(text: str) -> Address | None:
    """Of a client, with or without a port. An IPv4 address that was mapped into IPv6 is itself."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(
            f"trusted_proxies: {text!r} is no address ({error}); write each like 10.0.0.7, 10.0.0.0/8 or fd00::/8"
        ) from None


def _x_forwarded(headers: Headers) -> list[Hop]:
    """A proxy that adds to the list of clients may replace scheme and host instead: the last one is the nearest's."""
    clients = _listed(headers, "x-forwarded-for") or [""]
    schemes = _listed(headers, "x-forwarded-proto")
    hosts = _listed(headers, "x-forwarded-host")
    return [
        Hop(client=client, scheme=_beside(schemes, back).lower(), host=_beside(hosts, back))
        for back, client in zip(range(len(clients), 0, -1), clients, strict=True)
    ]


def _beside(values: Sequence[str], back: int) -> str:
    return values[-back] if back <= len(values) else ""


def _listed(headers: Headers, name: str) -> list[str]:
    """Lines of one name are one list (RFC 9110)."""
    return [value.strip() for line in headers.getlist(name) for value in line.split(",")]


def _forwarded(headers: Headers) -> list[Hop]:
    """RFC 7239. One quote that is never closed would hide what the proxy wrote behind it: a header that is not
    written as it should be counts as none.
    """
    text = ", ".join(headers.getlist("forwarded"))
    hops: list[Hop] = []
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair[1].lower() in pairs:
            return []
        pairs[pair[1].lower()] = pair[2] if pair[2] is not None else re.sub(r"\\(.)", r"\1", pair[3])
        separator = _SEPARATOR.match(text, pair.end())
        if separator is None and text[pair.end() :].strip():
            return []
        at = separator.end() if separator is not None else len(text)
        if separator is None or separator[1] == ",":
            hops.append(
                Hop(client=pairs.get("for", ""), scheme=pairs.get("proto", "").lower(), host=pairs.get("host", ""))
            )
            pairs = {}
    return hops
