"""Whose socket it is that connected to us on loopback: asked of the kernel, which knows."""

import os
import socket
import struct

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_ID = struct.Struct(">HH4s12s4s12s")
_REST = struct.Struct("=III")
_UID_AT = _HEADER.size + 4 + 48 + 12
_ANSWER_BYTES = 8_192


def is_own(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether the other end of a connection on loopback is a process of our user. Where that cannot be told, it is
    taken to be: then the port's number, drawn anew for each browser, is all that keeps others away.
    """
    if not hasattr(socket, "AF_NETLINK"):
        return True
    ends = _ID.pack(peer[1], own[1], socket.inet_aton(peer[0]), b"", socket.inet_aton(own[0]), b"")
    body = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += ends + _REST.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)
            kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body)
            answer = kernel.recv(_ANSWER_BYTES)  # the kernel answers within the send
    except OSError:
        return True
    if len(answer) < _UID_AT + 4 or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return True
    return int(struct.unpack_from("=I", answer, _UID_AT)[0]) == os.geteuid()
