"""Which addresses belong to the inside: of this machine, of a private network, of a cloud's own services.

Our own lists, after IANA's registries of special addresses: what Python's `is_global` says differs between its
versions. Of IPv6 only what is given out for the public is public.
"""

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_INTERNAL_4 = {
    ipaddress.IPv4Network(network): what
    for network, what in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
}
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_INTERNAL_6 = {
    ipaddress.IPv6Network(network): what
    for network, what in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "for documentation"),
    )
}
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

# Where clouds hand out the machine's credentials. Two of them look public.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"),
    )
)

_INTERNAL_NAMES = ("localhost", "local", "internal", "intranet", "lan", "home", "corp", "private", "home.arpa")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does; else the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and (address in _MAPPED or address in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_metadata(address: Address) -> bool:
    return embedded(address) in _METADATA


def internal(address: Address) -> str | None:
    """What kind of internal address it is; None if it is a public one."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return "link-local"
    real = embedded(address)
    if real in _METADATA:
        return "a cloud's metadata service"
    if isinstance(real, ipaddress.IPv4Address):
        return next((what for network, what in _INTERNAL_4.items() if real in network), None)
    for network, what in _INTERNAL_6.items():
        if real in network:
            return what
    return None if real in _PUBLIC_6 else "reserved"


def literal(host: str) -> Address | None:
    """The address that a URL's host is, if it is one. A name is None."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def name_problem(host: str) -> str | None:
    """What is wrong with a host's name; None if it may be looked up. Written in lower case, without a last dot."""
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return "that is not the name of a host"
    if _NUMBER.fullmatch(labels[-1]):  # 2130706433, 0x7f.1, 0177.0.0.1: resolvers take them for addresses
        return "write the address in its usual form"
    if len(labels) == 1 or any(host == name or host.endswith(f".{name}") for name in _INTERNAL_NAMES):
        return "that is a name of the internal network"
    return None
