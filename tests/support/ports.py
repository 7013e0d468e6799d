"""Ports for programs that are told theirs before they listen."""

import random
import socket

PORTS = range(15_000, 32_000)
"""Below the ephemeral ports of Linux and macOS. A port that the kernel may hand to some outgoing connection
could be taken while the server is stopped, and then its URL would never work again."""


def free_port() -> int:
    """A loopback port that nobody listens on just now, and that the kernel hands to nobody unasked."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
