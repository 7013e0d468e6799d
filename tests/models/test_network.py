"""Sockets: the address that answers first wins, and nothing is left of the others."""

import asyncio
import socket
import threading

import httpcore2
import pytest

from holdfast.models.http import network
from holdfast.models.http.network import Network, _alternating, _connect_any
from tests.models.conftest import until

pytestmark = pytest.mark.timeout(30)

V4, V6 = socket.AF_INET, socket.AF_INET6


def test_the_families_take_turns_and_the_preferred_one_is_first() -> None:
    six = [(V6, (f"::{n}", 1)) for n in range(3)]
    four = [(V4, (f"10.0.0.{n}", 1)) for n in range(1)]
    assert _alternating([*six, *four]) == [six[0], four[0], six[1], six[2]]
    assert _alternating([*four, *six]) == [four[0], six[0], six[1], six[2]]
    assert _alternating(four) == four
    with pytest.raises(OSError, match="no address"):
        _alternating([])


async def test_an_address_that_leads_nowhere_delays_the_next_one_only_a_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken IPv6 must not eat the whole connect deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        good = (V4, listening.getsockname())
        bad = (V4, ("10.255.255.1", 9))
        ended = asyncio.Event()
        real = network._connect_one

        async def connect(address: network.Address) -> socket.socket:
            if address == bad:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()
            return await real(address)

        monkeypatch.setattr(network, "_connect_one", connect)
        async with asyncio.timeout(10):
            connected = await _connect_any([bad, good])
            assert connected.getpeername() == good[1]
            await ended.wait()
        connected.close()


async def test_small_writes_do_not_wait_for_an_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = await Network().connect_tcp(*listening.getsockname())
        made = connection.get_extra_info("socket")
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await connection.aclose()


async def test_an_address_that_refuses_does_not_delay_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "NEXT_ADDRESS_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with asyncio.timeout(10):
            connected = await _connect_any([(V4, ("127.0.0.1", 9)), (V4, listening.getsockname())])
    connected.close()


async def test_when_all_refuse_the_error_says_why() -> None:
    with pytest.raises(OSError, match="refused"):
        await _connect_any([(V4, ("127.0.0.1", 9)), (V4, ("127.0.0.2", 9))])


async def test_a_lookup_that_hangs_holds_up_nobody_and_its_thread_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*args: object, **options: object) -> list[object]:
        release.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    net = Network()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await net.connect_tcp("hanging.example", 80)
    assert net.thread_count == 1
    net.close()
    release.set()
    await until(lambda: net.thread_count == 0)


@pytest.mark.parametrize("waited_for", [True, False])
async def test_lookups_that_hang_keep_no_other_from_being_made(
    monkeypatch: pytest.MonkeyPatch, waited_for: bool
) -> None:
    """Those that a chat still waits for, too: it waits up to its own deadline, and others would with it."""
    release = threading.Event()

    def look_up(host: str, *args: object, **options: object) -> list[object]:
        if host == "hanging.example":
            release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    net = Network()
    hanging = [asyncio.ensure_future(net.connect_tcp("hanging.example", 80)) for _ in range(network.LOOKUPS_MAX)]
    await until(lambda: net.thread_count == network.LOOKUPS_MAX)
    if not waited_for:
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
    with pytest.raises(httpcore2.ConnectError, match="the name has no address"):
        await asyncio.wait_for(net.connect_tcp("other.example", 80), 30)
    assert all(task.cancelled() or not task.done() for task in hanging)
    net.close()
    release.set()
    await asyncio.wait(hanging)
    assert all(task.cancelled() or isinstance(task.exception(), httpcore2.ConnectError) for task in hanging)
    await until(lambda: net.thread_count == 0)


class Recorder(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False


async def test_head_and_body_of_a_request_leave_together() -> None:
    """Two packets would wake the other side twice."""
    connection, recorder = network.Connection(), Recorder()
    connection.connection_made(recorder)
    await connection.write(b"head")
    await connection.write(b"body")
    connection.data_received(b"answer")
    assert await connection.read(100) == b"answer"
    assert recorder.written == [b"headbody"]


async def test_a_lookup_that_fails_says_which_name() -> None:
    net = Network()
    with pytest.raises(httpcore2.ConnectError, match=r"cannot connect to no-such-host\.invalid:80"):
        await net.connect_tcp("no-such-host.invalid", 80)
    net.close()
