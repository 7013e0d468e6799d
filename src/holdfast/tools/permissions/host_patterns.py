"""Patterns of hosts: `*.python.org`, `wiki.corp:8080`, `10.1.0.0/16`, `[::1]:*`; and addresses, taken apart.

Without a port an allow is for 80 and 443, and a deny or an ask for every port; `:*` is every port.
"""

import ipaddress
import re
import socket
from fnmatch import fnmatchcase
from typing import NamedTuple

from holdfast.errors import ConfigError
from holdfast.tools.web import addresses
from holdfast.tools.web.addresses import Address, Network

WEB_PORTS = frozenset({80, 443})
_PORT = re.compile(r"(?s)(.*):(\*|[0-9]{1,5})")
_NAME = re.compile(r"[a-z0-9_*-]+(?:\.[a-z0-9_*-]+)*")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
_STARRED_NUMBER = re.compile(r"(?=.*\*)(?=.*[0-9])[0-9.*]+")


class Host(NamedTuple):
    name: str  # in lower case, without a last dot; of an address, as it is usually written
    port: int | None
    address: Address | None


def host_of(text: str) -> Host | None:
    """None: it cannot be told who that is."""
    name, port = _split(text.strip().lower())
    if port == "*" or (port is not None and not 0 < int(port) < 65536):
        return None
    number = None if port is None else int(port)
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name.removesuffix(".")
    address = addresses.literal(bare)
    if address is None and _NUMBER.fullmatch(bare):  # 2130706433, 0x7f.1: programs take them for addresses
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(bare))
        except OSError:
            return None
    if address is not None:
        address = addresses.embedded(address)
        return Host(str(address), number, address)
    try:
        bare = bare if bare.isascii() else bare.encode("idna").decode()
    except UnicodeError:
        return None
    if "*" in bare or not _NAME.fullmatch(bare) or len(bare) > 253:
        return None
    return Host(bare, number, None)


class HostPattern:
    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        name, port = _split(text.strip().lower())
        if port not in (None, "*") and not 0 < int(port or 0) < 65536:
            raise ConfigError(f"{port} is no port")
        self._port = port
        self._network: Network | None = None
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name.removesuffix(".")
        try:
            self._network = ipaddress.ip_network(bare)
        except ValueError:
            if not bare.isascii():
                try:
                    bare = bare.encode("idna").decode()
                except UnicodeError:
                    bare = ""
            if not _NAME.fullmatch(bare):
                raise ConfigError(
                    "a host is a name (*.python.org), an address or a network (10.1.0.0/16), and perhaps a port: "
                    "wiki.corp:8080, [::1]:*"
                ) from None
            if _STARRED_NUMBER.fullmatch(bare):  # names can begin like that: 10.example.com
                raise ConfigError("addresses are written as a network: 10.0.0.0/8") from None
        self._name = bare

    @property
    def names_one(self) -> bool:
        """It is written for this very host or network, and not for whoever has such a name."""
        return self._network is not None or "*" not in self._name

    def covers(self, host: Host) -> bool:
        """For certain, and on a port that is meant."""
        if self._port != "*" and host.port not in (WEB_PORTS if self._port is None else {int(self._port)}):
            return False
        return self._is_in(host.address) if self._network is not None else self._fits(host)

    def may_mean(self, host: Host) -> bool:
        if self._port not in (None, "*") and host.port not in (None, int(self._port or 0)):
            return False
        if self._network is not None:
            return self._is_in(host.address)
        return self._fits(host) or self._name in ("*", f"*.{host.name}")

    def covers_port(self, port: int) -> bool:
        return self._port == "*" or port in (WEB_PORTS if self._port is None else {int(self._port)})

    @property
    def network(self) -> Network | None:
        return self._network

    def _is_in(self, address: Address | None) -> bool:
        return address is not None and self._network is not None and address in self._network

    def _fits(self, host: Host) -> bool:
        if host.address is not None and self._name != "*":  # digits are no labels
            return self._name == host.name
        return fnmatchcase(host.name, self._name)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(text: str) -> tuple[str, str | None]:
    """The host and the port. The colons of an address that has no brackets are its own."""
    found = _PORT.fullmatch(text)
    if found is None or (":" in found[1] and not (found[1].startswith("[") and found[1].endswith("]"))):
        return text, None
    return found[1], found[2]
