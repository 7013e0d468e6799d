"""The sources of the wake stream, real ones: a PostgreSQL that listens, is silent or hangs, and a SQLite file."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import apsw
import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from holdfast.core import commands as cmd
from holdfast.core.deadlines import WAKE_DEADLINES
from holdfast.core.wake import WakeState
from holdfast.errors import DrainFailed, StoreClosed, StoreGone
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.notify.bell import WORK, rest_topic
from holdfast.store.notify.wake_stream import Source, Wake, WakeStream
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Connector
from holdfast.store.postgres.wakes import PostgresWakes, PostgresWakeStream
from holdfast.store.records import StoreOptions, WorkerInfo
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.wakes import SqliteWakes
from holdfast.system.clock import SystemClock
from tests.support.behind import sql
from tests.support.chats import new_chat
from tests.support.handtime import HandTime
from tests.support.hints import say
from tests.support.postgres import SCRAM_OWNER, SCRAM_PASSWORD, PostgresServer
from tests.support.proxy import TcpProxy
from tests.support.scale import scaled
from tests.support.waiting import until
from tests.support.wakes import ToldSource

AGAIN = scaled(25, 100)

STOPPED, CONNECTING, STREAMING, RECONNECTING, STOPPING = WakeState


class Listening:
    """A wake stream on a real source, in time that the test owns: only what is said and answered is real."""

    def __init__(self, source: Source) -> None:
        self.time = HandTime()
        self.heard: list[Wake] = []
        self.wakes = WakeStream(source, self.heard.append, timing=self.time.timing)

    async def is_in(self, state: WakeState) -> None:
        await until(lambda: self.wakes.state is state)

    async def pinged(self, times: int) -> None:
        await until(lambda: self.wakes.figures().pings == times)

    async def proven(self) -> None:
        await until(lambda: self.wakes.figures().proven)

    async def sleeping(self, seconds: float) -> None:
        """Somebody has begun to sleep for so long, so that time may pass."""
        await until(lambda: seconds in self.time.sleepers)


def wakes_from(url: str, name: str = "me") -> PostgresWakes:
    return PostgresWakes(Connector(DatabaseAddress(url), DatabaseClock(SystemClock()), 8.0), name)


@asynccontextmanager
async def listening(source: Source) -> AsyncIterator[Listening]:
    life = Listening(source)
    await life.wakes.start()
    try:
        yield life
    finally:
        await life.wakes.stop()


def sessions(url: str) -> int:
    count: int = sql(url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'")[0][0]
    return count


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


async def test_a_connect_to_a_server_that_accepts_and_says_nothing_is_aborted_at_its_deadline() -> None:
    """A hung connect that nothing could abort [electric#4542]: here its socket is closed, and it is tried again."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.setblocking(False)
        async with listening(wakes_from(f"postgresql://ada@127.0.0.1:{mute.getsockname()[1]}/x")) as life:
            caller, _ = await loop.sock_accept(mute)
            with caller:
                assert await loop.sock_recv(caller, 1_000), "it began to talk"
                assert life.wakes.state is CONNECTING
                await life.time.advance(WAKE_DEADLINES.connect_s)
                assert life.wakes.state is RECONNECTING
                while await loop.sock_recv(caller, 1_000):
                    pass  # until it is closed
            await life.sleeping(0.1)
            await life.time.advance(0.1)
            again, _ = await loop.sock_accept(mute)
            again.close()
            await life.is_in(RECONNECTING)
            assert "not connected within 15 s" not in str(life.wakes.figures().last_error)
        assert life.wakes.figures().letting_go == 0


async def test_a_connect_that_was_aborted_closes_its_socket_whoever_still_holds_its_error() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.setblocking(False)
        source = wakes_from(f"postgresql://ada@127.0.0.1:{mute.getsockname()[1]}/x")
        connecting = asyncio.ensure_future(source.connect())
        caller, _ = await loop.sock_accept(mute)
        with caller:
            await loop.sock_recv(caller, 1_000)
            connecting.cancel()
            await asyncio.wait((connecting,))
            assert await asyncio.wait_for(loop.sock_recv(caller, 1_000), 10) == b""
        assert connecting.cancelled()


async def test_a_stream_that_is_dead_but_open_is_noticed_by_its_ping_and_connected_anew(
    postgres_url: str, postgres_proxy_url: str, postgres_proxy: TcpProxy
) -> None:
    """A dead stream shown as connected because heartbeats went over another channel [electric#4726]."""
    async with listening(wakes_from(postgres_proxy_url)) as life:
        await life.proven()
        postgres_proxy.swallow()
        sql(postgres_url, "SELECT pg_notify('holdfast', '[\"other\",[\"lost\"]]')")
        await life.sleeping(WAKE_DEADLINES.ping_interval_s)
        await life.time.advance(WAKE_DEADLINES.ping_interval_s)
        await life.pinged(2)
        await life.time.advance(WAKE_DEADLINES.ping_s)
        await life.pinged(3)
        assert life.wakes.state is STREAMING
        assert life.heard == [Wake()]
        await life.time.advance(WAKE_DEADLINES.ping_s)
        assert life.wakes.state is RECONNECTING
        postgres_proxy.forward()
        await life.sleeping(0.1)
        await life.time.advance(0.1)
        await life.proven()
        assert life.heard == [Wake(), Wake()], "what was said meanwhile is covered by ringing everything"
        sql(postgres_url, "SELECT pg_notify('holdfast', '[\"other\",[\"c1\"]]')")
        await until(lambda: life.heard[2:] == [Wake(topics=("c1",))])
    postgres_proxy.cut()


async def test_a_session_that_answers_but_listens_to_nothing_does_not_pass_for_alive(postgres_url: str) -> None:
    """What a pooler does that hands the session to somebody else: a query would be answered for ever."""
    stream = await wakes_from(postgres_url).connect()
    assert isinstance(stream, PostgresWakeStream)
    reading = asyncio.ensure_future(stream.read())
    await asyncio.wait_for(stream.ping(), 5)
    await asyncio.wait_for(stream.ping(), 5)
    reading.cancel()
    await asyncio.wait((reading,))
    await stream._connection.command("UNLISTEN *")
    reading = asyncio.ensure_future(stream.read())
    ping = asyncio.ensure_future(stream.ping())
    pgconn = stream._connection.pgconn
    await until(lambda: pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE)
    assert not ping.done(), "the server has answered, and nothing came back"
    for task in (reading, ping):
        task.cancel()
    await asyncio.wait((reading, ping))
    await stream.close()


async def test_streams_hear_each_others_hints_but_neither_their_own_nor_anybodys_pings(postgres_url: str) -> None:
    async with listening(wakes_from(postgres_url)) as life, listening(wakes_from(postgres_url, "other")) as other:
        await life.proven()
        await other.proven()
        for n in range(2, 12):
            other.wakes.check()
            await until(lambda n=n: other.wakes.figures().pings >= n and other.wakes.figures().proven)  # type: ignore[misc]
        for payload in ('["me",["mine"]]', '["other",["c1"]]', '["me",null]', "newer code's", '["other",null]'):
            with psycopg.connect(postgres_url) as connection:
                connection.execute("SELECT pg_notify('holdfast', %s)", (payload,))
        await until(lambda: len(life.heard) == 4)
        assert life.heard == [Wake(), Wake(topics=("c1",)), Wake(), Wake()]


async def test_what_the_figures_say_holds_no_password(postgres_server: PostgresServer, postgres_url: str) -> None:
    wrong = postgres_server.url("no_such_db", user=SCRAM_OWNER, password=SCRAM_PASSWORD)
    async with open_store(f"{postgres_url}?listen_dsn={quote(wrong, safe='')}") as store:
        await until(lambda: store.stats()["wake_last_error"])
        assert store.stats()["wake_stream"] in (RECONNECTING, CONNECTING)
        assert "no_such_db" in str(store.stats()["wake_last_error"])
        assert SCRAM_PASSWORD not in str(store.stats())


# --- SQLite ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(f"sqlite:///{tmp_path}/holdfast.db") as store:
        assert isinstance(store, SqliteStore)
        yield store


def wakes_of(store: SqliteStore, open_reader: Callable[[], apsw.Connection] | None = None) -> SqliteWakes:
    return SqliteWakes(store.path, open_reader or store._transactor.open_reader, 0.001, lambda: True)


async def test_what_another_connection_wrote_is_heard_and_named_and_workers_hear_of_work_alone(
    sqlite: SqliteStore,
) -> None:
    """Where each commit of a sibling made a worker look for work, two busy ones claimed in vain 27 times a second."""
    async with listening(wakes_of(sqlite)) as life:
        await life.proven()
        await sqlite.create_chat(new_chat(None, id="c1"))
        await until(lambda: life.heard[1:] == [Wake(topics=("c1", rest_topic("c1")))])
        await sqlite.create_chat(new_chat(None, id="c2"))
        await until(lambda: life.heard[2:] == [Wake(topics=("c2", rest_topic("c2")))])


async def test_workers_are_told_of_a_chat_that_is_due_and_not_of_one_that_a_worker_drives(
    sqlite: SqliteStore,
) -> None:
    """A worker that is told asks in a write transaction, and would after each of its own commits."""
    line = sqlite.lease_line()
    line.register(WorkerInfo(worker="w", host="", pid=0))
    async with listening(wakes_of(sqlite)) as life:
        await life.proven()
        await sqlite.create_chat(new_chat("hello", id="c1"))
        await until(lambda: life.heard[1:] == [Wake(topics=(WORK, "c1"))])
        (held,) = await sqlite.claim_chats("w", {"agent": 1}, 1)
        by = cmd.Writer("w", held.chat.fence, held.chat.epoch)
        await sqlite.commit(held, (cmd.Note(by=by, topic="progress", text="on"),), "commit_1")
        await until(lambda: len(life.heard) > 2)
        assert {wake.topics for wake in life.heard[2:]} == {("c1",)}
    line.close()


async def test_when_the_newest_chat_was_deleted_everything_is_rung(sqlite: SqliteStore) -> None:
    """Its row numbers are given out again: counting on from the highest seen would pass over what comes next."""
    for n in range(3):
        await sqlite.create_chat(new_chat(None, id=f"c{n}"))
    async with listening(wakes_of(sqlite)) as life:
        await life.proven()
        await sqlite.delete_chat("c2")
        await until(lambda: life.heard == [Wake(), Wake()])
        await sqlite.create_chat(new_chat(None, id="c3"))
        await until(lambda: life.heard[2:] == [Wake(topics=("c3", rest_topic("c3")))])


async def test_a_file_that_was_replaced_is_noticed_by_the_ping(sqlite: SqliteStore) -> None:
    """The watching connection would see the old file for ever, and nothing would ever change in it."""
    stream = await wakes_of(sqlite).connect()
    await stream.ping()
    path = Path(sqlite.path)
    away = path.rename(path.with_suffix(".away"))
    path.touch()
    with pytest.raises(StoreGone, match="deleted or replaced"):
        await stream.ping()
    away.rename(path)
    await stream.ping()
    await stream.close()


async def test_an_opening_that_hangs_in_the_kernel_is_aborted_and_closed_when_it_comes_back(
    sqlite: SqliteStore,
) -> None:
    released = threading.Event()
    opened: list[apsw.Connection] = []

    def hangs_once() -> apsw.Connection:
        if not opened:
            opened.append(sqlite._transactor.open_reader())
            released.wait(60)
            return opened[0]
        return sqlite._transactor.open_reader()

    async with listening(wakes_of(sqlite, hangs_once)) as life:
        await until(lambda: opened)
        await life.time.advance(WAKE_DEADLINES.connect_s)
        assert life.wakes.state is RECONNECTING
        await life.sleeping(0.1)
        await life.time.advance(0.1)
        await life.proven()
        assert life.wakes.figures().letting_go == 1
        released.set()
        await until(lambda: life.wakes.figures().letting_go == 0)
        with pytest.raises(apsw.ConnectionClosedError):
            opened[0].execute("SELECT 1")
        assert life.wakes.state is STREAMING


async def test_a_thread_that_hangs_is_noticed_by_the_ping(sqlite: SqliteStore) -> None:
    hangs, released = threading.Event(), threading.Event()

    def watched() -> apsw.Connection:
        connection = sqlite._transactor.open_reader()
        connection.exec_trace = lambda *_: released.wait(60) or True if hangs.is_set() else True
        return connection

    async with listening(wakes_of(sqlite, watched)) as life:
        await life.proven()
        await life.sleeping(WAKE_DEADLINES.ping_interval_s)
        hangs.set()
        await life.time.advance(WAKE_DEADLINES.ping_interval_s)
        for pings in (2, 3):
            await life.pinged(pings)
            await life.time.advance(WAKE_DEADLINES.ping_s)
        assert life.wakes.state is RECONNECTING
        hangs.clear()
        await life.sleeping(0.1)
        await life.time.advance(0.1)
        await life.proven()
        released.set()
        await until(lambda: life.wakes.figures().letting_go == 0)


# --- in a store -----------------------------------------------------------------------------------------------------


def streaming(store: Store) -> bool:
    return store.wakes is not None and store.wakes.figures().proven


async def test_a_store_starts_its_stream_when_it_opens_and_stops_it_when_it_closes(store_url: str) -> None:
    store = open_store(store_url)
    for _ in range(2):
        await store.open()
        await until(lambda: streaming(store))
        figures = store.stats()
        assert (figures["wake_stream"], figures["wake_connects"], figures["wake_reconnects"]) == (STREAMING, 1, 0)
        assert (figures["wake_pings_failed"], figures["wake_last_error"]) == (0, None)
        assert float(figures["wake_stream_s"] or 0) >= 0
        await store.close()
        assert store.stats()["wake_stream"] == STOPPED


async def test_what_another_process_writes_is_heard_and_counted(store_url: str) -> None:
    options = StoreOptions(poll_interval_s=5.0)
    async with open_store(store_url, options) as store, open_store(store_url) as other:
        await other.create_chat(new_chat(None, id="c1"))
        await until(lambda: streaming(store))
        with store.bell.listen("c1") as listener:
            before = int(store.stats()["wakes_heard"] or 0)
            await say(other, "c1")
            assert await listener.wait(60)
            assert int(store.stats()["wakes_heard"] or 0) > before


async def test_a_stream_that_does_not_let_go_is_told_when_the_store_is_closed_not_instead(store_url: str) -> None:
    store = open_store(store_url)
    await store.open()
    assert store.wakes is not None
    await store.wakes.stop()
    source = ToldSource()
    source.close_error = RuntimeError("stuck")
    await store._listen_to(source)
    await until(lambda: streaming(store))
    with pytest.raises(DrainFailed, match="stuck"):
        await store.close()
    with pytest.raises(StoreClosed):
        await store.read_chat("c1")
    await store.close()
    await store.open()
    await store.create_chat(new_chat(None, id="c1"))
    await store.close()


def no_more_than(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """There may be less: what an earlier test left behind may have ended since."""
    return all(count <= was for count, was in zip(now, before, strict=True))


@pytest.mark.parametrize("when", ["connecting", "streaming"])
async def test_starts_and_stops_over_and_over_leave_nothing_behind(store_url: str, when: str) -> None:
    """Restarting in-process stacked one layer on another until nothing worked any more [electric#4542]."""
    process = psutil.Process()
    postgres = not store_url.startswith("sqlite")

    def counts() -> tuple[int, ...]:
        open_files = process.num_fds()
        return threading.active_count(), len(asyncio.all_tasks()), open_files, store.bell.waiter_count

    store = open_store(store_url)
    await store.open()
    await store.close()
    before = counts()
    for _ in range(AGAIN):
        await store.open()
        if when == "streaming":
            await until(lambda: streaming(store))
        await store.close()
        await until(lambda: no_more_than(before, counts()))
    if postgres:
        await until(lambda: not sessions(store_url))


async def test_starts_and_stops_of_the_stream_alone_leave_nothing_behind(store_url: str) -> None:
    process = psutil.Process()
    async with open_store(store_url) as store:
        wakes = store.wakes
        assert wakes is not None
        await until(lambda: streaming(store))
        await wakes.stop()
        await until(lambda: wakes.figures().letting_go == 0)

        def counts() -> tuple[int, ...]:
            return threading.active_count(), len(asyncio.all_tasks()), process.num_fds()

        before = counts()
        for n in range(AGAIN):
            await wakes.start()
            if n % 2:
                await until(lambda: streaming(store))
            await asyncio.gather(wakes.stop(), wakes.stop())
            await until(lambda: no_more_than(before, counts()))
