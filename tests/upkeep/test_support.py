"""The test support itself: a server that is what it claims to be, and a network that fails as it says."""

import os
import queue
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from tests.support.postgres import (
    SCRAM_OWNER,
    SCRAM_PASSWORD,
    SUPERUSER,
    PostgresError,
    PostgresServer,
)
from tests.support.proxy import TcpProxy
from tests.support.scratch import scratch_folder

SOON_S = 20.0
"""How long to wait for what must happen."""
SILENCE_S = 0.2
"""How long to listen for what must not happen."""


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(url, autocommit=True, connect_timeout=10)


@contextmanager
def table(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection to a database that has the table `notes`."""
    with connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        yield connection


def notes(url: str) -> list[str]:
    with connect(url) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY text")]


def wait_until(what: Callable[[], bool], timeout_s: float = SOON_S) -> bool:
    give_up_at = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# The server


def test_the_server_has_the_settings_that_users_have(postgres_url: str) -> None:
    with connect(postgres_url) as connection:

        def show(name: str) -> object:
            row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            assert row is not None
            return row[0]

        assert [show("fsync"), show("synchronous_commit"), show("full_page_writes")] == ["on"] * 3
        assert show("max_connections") == "200"
        assert show("is_superuser") == "off"
        assert show("server_encoding") == "UTF8"
        assert connection.info.host == "127.0.0.1"


def test_every_database_is_new_and_empty(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    try:
        with table(first) as connection:
            connection.execute("INSERT INTO notes VALUES ('first')")
        with connect(second) as connection:
            assert connection.execute("SELECT to_regclass('notes')").fetchone() == (None,)
    finally:
        postgres_server.drop_database(first)
        postgres_server.drop_database(second)


def test_a_database_can_be_a_copy_of_another(postgres_server: PostgresServer, postgres_url: str) -> None:
    with table(postgres_url) as connection:
        connection.execute("INSERT INTO notes VALUES ('copied')")
    copy = postgres_server.create_database(template=postgres_url.rpartition("/")[2])
    try:
        assert notes(copy) == ["copied"]
    finally:
        postgres_server.drop_database(copy)


def test_a_database_in_use_can_be_dropped(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    with connect(url) as connection:
        postgres_server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_test_that_cuts_everybody_off_cuts_nobody_after_it(postgres_server: PostgresServer) -> None:
    superuser = postgres_server.url("postgres", user=SUPERUSER)
    postgres_server.drop_database(postgres_server.create_database())
    with connect(superuser) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    postgres_server.drop_database(postgres_server.create_database())


def test_the_unix_socket_serves_as_well(postgres_server: PostgresServer) -> None:
    with connect(postgres_server.url("postgres", unix_socket=True)) as connection:
        assert connection.execute("SELECT inet_server_addr()").fetchone() == (None,)


def test_the_role_with_a_password_needs_the_right_one(postgres_server: PostgresServer, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    for wrong in (None, "wrong"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            connect(postgres_server.url(database, user=SCRAM_OWNER, password=wrong))
    with table(postgres_server.url(database, user=SCRAM_OWNER, password=SCRAM_PASSWORD)) as connection:
        assert connection.info.user == SCRAM_OWNER
        assert connection.pgconn.used_password


@pytest.mark.parametrize("end", ["fast", "immediate", "kill9"])
def test_what_was_committed_survives_a_restart_and_the_rest_does_not(
    postgres_server: PostgresServer, postgres_url: str, end: str
) -> None:
    pids = postgres_server.pids
    with table(postgres_url) as connection, closing(connect(postgres_url)) as other:
        connection.execute("INSERT INTO notes VALUES ('committed')")
        other.execute("BEGIN")
        other.execute("INSERT INTO notes VALUES ('not committed')")
        match end:
            case "kill9":
                postgres_server.kill9()
            case "fast":
                postgres_server.stop("fast")
            case _:
                postgres_server.stop("immediate")
        assert not postgres_server.running
        assert [pid for pid in pids if lives(pid)] == []
        with pytest.raises(psycopg.OperationalError):
            connect(postgres_url)
    postgres_server.start()
    assert notes(postgres_url) == ["committed"]
    assert postgres_server.pids
    assert not set(postgres_server.pids) & set(pids)


def test_stopping_and_starting_twice_does_nothing_more(postgres_server: PostgresServer) -> None:
    postgres_server.stop()
    postgres_server.stop()
    postgres_server.kill9()
    postgres_server.start()
    pids = postgres_server.pids
    postgres_server.start()
    assert postgres_server.pids[0] == pids[0]


def test_a_server_that_does_not_start_says_why_and_leaves_nothing() -> None:
    server = PostgresServer(settings="no_such_setting = 1")
    with pytest.raises(PostgresError, match="no_such_setting"), server:
        pass
    assert not server.running
    assert not server.socket_directory.exists()


OWNER_SCRIPT = """
import time
from tests.support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.socket_directory, server._guard.pid, *server.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["owner", "guard"])
def test_no_server_outlives_a_test_run_that_was_killed(victim: str) -> None:
    if victim == "guard" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends a child with its parent")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_SCRIPT],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner, killed(owner.pid):
        assert owner.stdout is not None
        directory, *pids = owner.stdout.readline().split()
        guard, postmaster, *_ = processes = [int(pid) for pid in pids]
        assert lives(postmaster)
        if victim == "guard":
            os.kill(guard, signal.SIGKILL)
            assert wait_until(lambda: not lives(postmaster))
    assert wait_until(lambda: not any(lives(pid) for pid in processes))
    if victim == "owner":
        assert wait_until(lambda: not Path(directory).exists())
    else:
        shutil.rmtree(directory)


@contextmanager
def killed(pid: int) -> Iterator[None]:
    """In the end, `pid` gets SIGKILL."""
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


# Where files are


def test_files_of_tests_are_in_memory_unless_it_is_small_or_missing_or_another_place_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert scratch_folder(tmp_path, needed_bytes=1) == tmp_path
    usual = Path(tempfile.gettempdir())
    assert scratch_folder(tmp_path, needed_bytes=2**60) == usual, "as in a container"
    assert scratch_folder(tmp_path / "missing", needed_bytes=1) == usual, "as on macOS"
    monkeypatch.setenv("TMPDIR", str(usual))
    assert scratch_folder(tmp_path, needed_bytes=1) == usual


# The network, byte by byte


class Echo(socketserver.ThreadingTCPServer):
    """Answers what it gets, and keeps it in `received`."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.received: queue.Queue[bytes] = queue.Queue()
        super().__init__(("127.0.0.1", 0), EchoConnection)


class EchoConnection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Echo)
        with suppress(OSError):
            while chunk := self.request.recv(65536):
                self.server.received.put(chunk)
                self.request.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(*echo.server_address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with dial(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        yield client


def dial(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=SOON_S)


def ask(client: socket.socket, request: bytes, timeout_s: float = SOON_S) -> bytes:
    client.settimeout(timeout_s)
    client.sendall(request)
    return client.recv(65536)


def test_a_delay_applies_in_both_directions(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.delay(60)
    began_at = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - began_at >= 0.12
    proxy.forward()
    assert ask(client, b"fast") == b"fast"


def test_a_large_transfer_passes_whole(client: socket.socket) -> None:
    sent = os.urandom(3_000_000)
    sender = threading.Thread(target=client.sendall, args=[sent])
    sender.start()
    got = b""
    while len(got) < len(sent):
        got += client.recv(65536)
    sender.join()
    assert got == sent


def test_swallowed_bytes_are_lost_and_the_connection_stays_silent(
    proxy: TcpProxy, echo: Echo, client: socket.socket
) -> None:
    assert echo.received.get(timeout=SOON_S) == b"hello"
    proxy.swallow()
    with pytest.raises(TimeoutError):
        ask(client, b"lost", SILENCE_S)
    with dial(proxy) as newcomer, pytest.raises(TimeoutError):
        ask(newcomer, b"lost too", SILENCE_S)
    proxy.forward()
    with pytest.raises(TimeoutError):
        ask(client, b"still lost", SILENCE_S)
    with dial(proxy) as newcomer:
        assert ask(newcomer, b"heard") == b"heard"
    assert [echo.received.get(timeout=SOON_S), echo.received.empty()] == [b"heard", True]


def test_held_bytes_arrive_when_the_network_heals(proxy: TcpProxy, echo: Echo, client: socket.socket) -> None:
    proxy.hold()
    with pytest.raises(TimeoutError):
        ask(client, b"late", SILENCE_S)
    with dial(proxy) as newcomer:
        with pytest.raises(TimeoutError):
            ask(newcomer, b"late too", SILENCE_S)
        proxy.forward()
        for waiting, late in ((client, b"late"), (newcomer, b"late too")):
            waiting.settimeout(SOON_S)
            assert waiting.recv(100) == late


def test_held_bytes_arrive_even_if_their_sender_has_hung_up(
    proxy: TcpProxy, echo: Echo, client: socket.socket
) -> None:
    assert echo.received.get(timeout=SOON_S) == b"hello"
    proxy.hold()
    client.sendall(b"from the past")
    client.close()
    with pytest.raises(queue.Empty):
        echo.received.get(timeout=SILENCE_S)
    proxy.forward()
    assert echo.received.get(timeout=SOON_S) == b"from the past"
    assert wait_until(lambda: proxy.connections == 0)


def test_a_cut_closes_what_is_open_and_nothing_else(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.cut()
    assert client.recv(100) == b""
    assert proxy.connections == 0
    with dial(proxy) as newcomer:
        assert ask(newcomer, b"again") == b"again"
        assert proxy.connections == 1


def test_a_refusing_port_refuses_until_told_otherwise(proxy: TcpProxy, client: socket.socket) -> None:
    proxy.refuse()
    assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.forward()
    with dial(proxy) as newcomer:
        assert ask(newcomer, b"again") == b"again"


def test_the_end_of_one_side_reaches_the_other(proxy: TcpProxy, client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b""
    assert wait_until(lambda: proxy.connections == 0)


def test_a_server_that_is_not_there_ends_the_connection(echo: Echo) -> None:
    with TcpProxy("127.0.0.1", 1) as proxy, dial(proxy) as client:
        assert client.recv(100) == b""


# The commit whose outcome is unknown


def test_the_answer_to_a_statement_in_autocommit_can_be_lost(
    postgres_proxy: TcpProxy, postgres_proxy_url: str, postgres_url: str
) -> None:
    with table(postgres_proxy_url) as connection:
        trap = postgres_proxy.cut_before_next_answer()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO notes VALUES ('done')")
    assert trap.wait(SOON_S)
    assert notes(postgres_url) == ["done"]
    assert notes(postgres_proxy_url) == ["done"]


def test_only_the_answer_to_the_commit_of_a_transaction_is_lost(
    postgres_proxy: TcpProxy, postgres_proxy_url: str, postgres_url: str
) -> None:
    with table(postgres_proxy_url) as connection:
        trap = postgres_proxy.cut_before_next_answer()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO notes VALUES ('first')")
        assert connection.execute("INSERT INTO notes VALUES ('second') RETURNING text").fetchall() == [("second",)]
        assert not trap.sprung
        assert notes(postgres_url) == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("COMMIT")
        assert trap.sprung
    assert notes(postgres_url) == ["first", "second"]


def test_the_answer_to_a_pipeline_can_be_lost(
    postgres_proxy: TcpProxy, postgres_proxy_url: str, postgres_url: str
) -> None:
    with table(postgres_proxy_url) as connection:
        trap = postgres_proxy.cut_before_next_answer()
        with pytest.raises(psycopg.OperationalError), connection.pipeline(), connection.transaction():
            connection.cursor().executemany("INSERT INTO notes VALUES (%s)", [["first"], ["second"]])
    assert trap.wait(SOON_S)
    assert notes(postgres_url) == ["first", "second"]


@pytest.mark.parametrize("binary", [False, True])
def test_the_request_whose_answer_is_lost_can_be_named(
    postgres_proxy: TcpProxy, postgres_proxy_url: str, postgres_url: str, binary: bool
) -> None:
    with table(postgres_proxy_url) as connection:
        trap = postgres_proxy.cut_before_next_answer(containing=b"commit-7")

        def insert(text: str) -> None:
            connection.execute("INSERT INTO notes VALUES (%b)" if binary else "INSERT INTO notes VALUES (%s)", [text])

        insert("commit-6")
        assert not trap.sprung
        with pytest.raises(psycopg.OperationalError):
            insert("commit-7")
        assert trap.wait(SOON_S)
    assert notes(postgres_url) == ["commit-6", "commit-7"]


def test_an_armed_trap_lets_a_newcomer_log_in(
    postgres_proxy: TcpProxy, postgres_proxy_url: str, postgres_server: PostgresServer
) -> None:
    trap = postgres_proxy.cut_before_next_answer()
    url = postgres_server.url("postgres", user=SCRAM_OWNER, password=SCRAM_PASSWORD, port=postgres_proxy.port)
    with connect(url) as connection:
        assert not trap.sprung
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert trap.sprung
