"""The socket that a server listens on, and what a person is told of it."""

import contextlib
import errno
import ipaddress
import os
import socket

from holdfast.errors import ConfigError
from holdfast.worker.process import Say

FIRST_PASSED_FD = 3  # of those that a service manager passes, as systemd does


def passed_listener() -> socket.socket | None:
    """One that is open already and stays so between two servers (systemd's socket activation): no client finds the
    port closed while one goes and the next one comes. It is this process's alone: its children get nothing of it.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS", "0") == "0":
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    os.set_inheritable(FIRST_PASSED_FD, False)
    listener = socket.socket(fileno=FIRST_PASSED_FD)
    listener.setblocking(False)
    return listener


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Raises ConfigError with what to do about it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named. Without it a small answer on a kept connection waits
    # for the client's delayed acknowledgement: 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}. {_advice(error)}") from error
    return listener


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "Stop who does, or choose another port (--port, HOLDFAST_PORT; 0 is any free one)"
    if error.errno == errno.EACCES:
        return "Choose a port above 1023 (--port, HOLDFAST_PORT; 0 is any free one)"
    return "Name an address of this machine (--host, HOLDFAST_HOST; 127.0.0.1 is for this machine alone)"


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def warn_of_strangers(host: str, say: Say) -> None:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        say(
            f"warning: {host} is reachable from other machines, and this server speaks plain HTTP: put a proxy with "
            "TLS in front, and name its host in HOLDFAST_ALLOWED_HOSTS"
        )
