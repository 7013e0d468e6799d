"""The server's sockets, as the kernel has them."""

import asyncio
import socket
from pathlib import Path

import pytest

from holdfast import App
from holdfast.server.http import http_app
from holdfast.server.listening import listen
from holdfast.server.serve import Serving


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_small_answers_do_not_wait_for_an_acknowledgement(tmp_path: Path, host: str) -> None:
    """TCP_NODELAY on the accepted socket: without it they took 40 ms more on a kept connection."""
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    app = App(f"sqlite:///{tmp_path}/holdfast.db", home=str(tmp_path))
    async with app:
        listener = listen(host, 0)
        serving = Serving(app, http_app(app, token="t" * 32), listener, None)
        await serving.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()).endswith(b" 200 OK\r\n")
        (connection,) = serving._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await serving.stop()
