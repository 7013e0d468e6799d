"""PostgreSQL on a bad day: refusing us, stopped, silent, full, read-only, behind a pooler, not ours.

Each gets a typed error within its deadline, no message names a password, and work goes on when the day gets better.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote

import psycopg
import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import State
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    SchemaError,
    StoreAuth,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.decisions import decide_ahead
from holdfast.store.postgres import committer
from holdfast.store.postgres.address import DatabaseAddress
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.connection import Connector, ServerConnection
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.wire import Asker, ServerWire
from holdfast.store.records import DeltaBatch, Key, StoreOptions
from holdfast.system.clock import SystemClock
from tests.fleet.claimer import Runner
from tests.support import distribution
from tests.support.behind import sql
from tests.support.chats import Hand, call, history, journal, new_chat, texts, unique, user
from tests.support.hints import say
from tests.support.hurry import hurried
from tests.support.looptime import LoopTime
from tests.support.pgbouncer import PgBouncer
from tests.support.ports import free_port
from tests.support.postgres import SCRAM_OWNER, SCRAM_PASSWORD, PostgresServer
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.bare_database

T = TypeVar("T")

DEADLINE_S = 2.0  # of what is to meet it; all else has the usual time, or this
AMPLE_S = 60.0
# What a machine that does other things besides, or stands still, may add to a deadline.
SLACK_S = 25.0


@asynccontextmanager
async def opened(url: str, deadline_s: float = 8.0, **options: object) -> AsyncIterator[Store]:
    async with open_store(url, StoreOptions(deadline_s=deadline_s, **options)) as store:  # type: ignore[arg-type]
        yield store


async def fails_to_open(
    url: str, kind: type[StoreError] | type[ConfigError], *says: str, deadline_s: float = AMPLE_S
) -> str:
    """At once, but for a server that is worth waiting for."""
    with pytest.raises(kind) as caught:
        await open_store(url, StoreOptions(deadline_s=deadline_s)).open()
    for text in says:
        assert text in str(caught.value)
    return str(caught.value)


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


async def answered(ask: Callable[[], Awaitable[T]], deadline_s: float = 30.0) -> T:
    """What a client does: ask again, with the same key, while the store is away."""
    give_up_at = time.monotonic() + deadline_s
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.02)


# --- getting in -----------------------------------------------------------------------------------------------------


async def test_a_password_with_every_odd_character_gets_in(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    url = postgres_server.url(database_of(postgres_url), user=SCRAM_OWNER, password=SCRAM_PASSWORD)
    sql(postgres_url, f"GRANT ALL ON SCHEMA public TO {SCRAM_OWNER}")
    async with opened(url) as store:
        await store.create_chat(new_chat())


@pytest.mark.parametrize("password", ["wrong-hunter2", "wr@ng/hunter2:", None])
async def test_a_wrong_password_names_the_user_and_the_host_and_never_itself(
    postgres_server: PostgresServer, postgres_url: str, password: str | None
) -> None:
    url = postgres_server.url(database_of(postgres_url), user=SCRAM_OWNER, password=password)
    said = await fails_to_open(url, StoreAuth, repr(SCRAM_OWNER), "127.0.0.1", "check the user, the password")
    assert "hunter2" not in said
    store = open_store(url)
    assert "hunter2" not in repr(store) + str(store.stats())
    assert "hunter2" not in repr(vars(store).get("address"))


async def test_a_password_that_is_not_escaped_is_not_repeated_either() -> None:
    for url in ("postgresql://ada:hun@ter2:x@db/chats", "postgresql://ada:hunter2@db:port/chats"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            open_store(url)
        assert "ter2" not in str(caught.value)


async def test_an_unknown_user_is_named(postgres_server: PostgresServer, postgres_url: str) -> None:
    await fails_to_open(
        postgres_server.url(database_of(postgres_url), user="nobody_we_know"), StoreAuth, "nobody_we_know"
    )


async def test_an_unknown_database_is_named(postgres_server: PostgresServer) -> None:
    await fails_to_open(postgres_server.url("no_such_db"), ConfigError, "'no_such_db'", "create it")


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_a_server_that_is_not_there_is_named_within_the_deadline(host: str) -> None:
    url, began = f"postgresql://ada:hunter2@{host}:{free_port()}/db", time.monotonic()
    said = await fails_to_open(url, StoreUnavailable, host, deadline_s=DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S + SLACK_S
    assert "hunter2" not in said


async def fails_until_the_deadline(url: str, says: str, after_the_first: Callable[[], None] = lambda: None) -> None:
    """One attempt fails, and then the deadline comes: why it failed is told."""
    loop_time = LoopTime()
    deadline = loop_time.now() + AMPLE_S

    def the_deadline_comes() -> bool:
        after_the_first()
        loop_time.advance(AMPLE_S - 0.2)
        return False

    connector = Connector(DatabaseAddress(url), DatabaseClock(SystemClock()), AMPLE_S)
    with pytest.raises(StoreUnavailable, match=says):
        await connector.connect(deadline, unless=the_deadline_comes)


async def test_a_server_that_is_not_there_is_called_out_of_reach() -> None:
    await fails_until_the_deadline(f"postgresql://ada@127.0.0.1:{free_port()}/db", "cannot be reached")


async def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_why_the_one_before_failed() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))  # nobody listens yet, so the first attempt is refused

        url = f"postgresql://ada@127.0.0.1:{mute.getsockname()[1]}/db"
        await fails_until_the_deadline(url, "cannot be reached", mute.listen)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("hint=off", "no option 'hint': did you mean 'hints'?"),
        ("pooler=session", "pooler is one of transaction"),
        ("hints=maybe", "hints is one of on, off"),
        ("schema=a-b", "letters, digits and underscores"),
        ("schema=mine&pooler=transaction", "ALTER ROLE"),
        ("listen_dsn=postgresql%3A%2F%2Fada%3Ahun%40ter2%40db%2Fx", "cannot be read"),
    ],
)
async def test_a_wrong_option_in_the_url_says_which_there_are(options: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(f"postgresql://ada:hunter2@db/chats?{options}")
    assert says in str(caught.value)
    assert "ter2" not in str(caught.value)


async def test_a_server_that_is_still_starting_is_waited_for(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    postgres_server.stop()
    store = open_store(postgres_url, StoreOptions(deadline_s=20))
    opening = asyncio.ensure_future(store.open())
    await asyncio.to_thread(postgres_server.start)
    await opening
    await store.create_chat(new_chat())
    await store.close()


# --- not ours, not now ----------------------------------------------------------------------------------------------


async def test_a_table_of_another_program_is_not_touched(postgres_url: str) -> None:
    sql(postgres_url, "CREATE TABLE chats (id INT PRIMARY KEY, said TEXT)")
    sql(postgres_url, "INSERT INTO chats VALUES (1, 'hello')")
    await fails_to_open(postgres_url, SchemaError, "another program (chats)", "name another database", "schema=NAME")
    assert sql(postgres_url, "SELECT * FROM chats") == [(1, "hello")]
    tables = sql(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert tables == [("chats",)]
    sql(postgres_url, "CREATE SCHEMA ours")
    async with opened(f"{postgres_url}?schema=ours") as store:
        await store.create_chat(new_chat(id="c1"))
    assert sql(postgres_url, "SELECT id FROM ours.chats") == [("c1",)]
    assert sql(postgres_url, "SELECT * FROM public.chats") == [(1, "hello")]


async def test_a_meta_table_of_another_program_is_not_touched(postgres_url: str) -> None:
    sql(postgres_url, "CREATE TABLE meta (key TEXT PRIMARY KEY, value BIGINT)")
    sql(postgres_url, "INSERT INTO meta VALUES ('version', 7)")
    await fails_to_open(postgres_url, SchemaError, "another program (meta)")
    assert sql(postgres_url, "SELECT * FROM meta") == [("version", 7)]


@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
async def test_a_read_only_database_is_refused_and_what_is_in_it_stays(postgres_url: str, known: bool) -> None:
    if known:
        async with opened(postgres_url) as store:
            await store.create_chat(new_chat(id="c1"))
    sql(postgres_url, f"ALTER DATABASE {database_of(postgres_url)} SET default_transaction_read_only = on")
    await fails_to_open(postgres_url, StoreReadOnly, "does not accept writes", "connect to the primary")
    _make_writable(postgres_url)
    async with opened(postgres_url) as store:
        assert len(await store.list_chats()) == int(known)


async def test_a_server_that_turns_read_only_refuses_writes_and_still_reads(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """As after a failover to a standby: the sessions end, and the new ones are read-only."""
    async with opened(postgres_url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        sql(postgres_url, f"ALTER DATABASE {database_of(postgres_url)} SET default_transaction_read_only = on")
        _end_sessions(postgres_url)
        with pytest.raises(StoreReadOnly, match="does not accept writes"):
            await answered(lambda: store.submit("c1", cmd.Send(message=user("lost"))))
        assert texts(await answered(lambda: history(store, "c1"))) == ["hello"]
        _make_writable(postgres_url)
        _end_sessions(postgres_url)
        await answered(lambda: store.submit("c1", cmd.Send(message=user("again", id="m2"))))
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m2"]


def _make_writable(url: str) -> None:
    session = f"{url}?options=-c%20default_transaction_read_only%3Doff"
    sql(session, f"ALTER DATABASE {database_of(url)} RESET default_transaction_read_only")


def _end_sessions(url: str, where: str = "TRUE") -> int:
    """Like an administrator; ours and none of the test's own."""
    ended = sql(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = current_database() AND application_name = 'holdfast' AND {where}",
    )
    return len(ended)


async def test_a_table_that_was_dropped_is_named(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.create_chat(new_chat(id="c1"))
        sql(postgres_url, "DROP TABLE queue")
        with pytest.raises(SchemaError, match=r"a table or column of ours is missing.*queue"):
            await store.submit("c1", cmd.Send(message=user()))


async def test_a_right_that_was_taken_away_is_named(postgres_server: PostgresServer, postgres_url: str) -> None:
    url = postgres_server.url(database_of(postgres_url), user=SCRAM_OWNER, password=SCRAM_PASSWORD)
    async with opened(postgres_url) as store:
        await store.create_chat(new_chat(id="c1"))
    superuser = postgres_server.url(database_of(postgres_url), user="postgres")
    sql(superuser, f"REVOKE holdfast FROM {SCRAM_OWNER}")
    try:
        sql(superuser, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {SCRAM_OWNER}")
        async with opened(url) as store:
            assert texts(await history(store, "c1")) == ["hello"]
            with pytest.raises(StoreAuth, match=r"may not do this.*grant it the rights"):
                await store.submit("c1", cmd.Send(message=user()))
    finally:
        sql(superuser, f"DROP OWNED BY {SCRAM_OWNER}")
        sql(superuser, f"GRANT holdfast TO {SCRAM_OWNER}")


async def test_too_many_connections_are_a_reason_to_wait_and_then_to_say_so(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    superuser = postgres_server.url(database_of(postgres_url), user="postgres")
    others = [psycopg.connect(postgres_url) for _ in range(3)]
    sql(superuser, f"ALTER DATABASE {database_of(postgres_url)} CONNECTION LIMIT 3")
    await fails_until_the_deadline(postgres_url, "too many connections")
    store = open_store(postgres_url, StoreOptions(deadline_s=AMPLE_S))
    opening = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    for other in others[:2]:
        other.close()
    await opening
    await store.close()
    others[2].close()


async def test_a_store_that_may_have_only_few_connections_still_serves_everybody(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    superuser = postgres_server.url(database_of(postgres_url), user="postgres")
    async with opened(postgres_url) as store:
        sql(superuser, f"ALTER DATABASE {database_of(postgres_url)} CONNECTION LIMIT 4")
        await asyncio.gather(*(store.create_chat(new_chat(id=f"c{n}")) for n in range(40)))
        assert len(await store.list_chats(limit=100)) == 40
        sql(superuser, f"ALTER DATABASE {database_of(postgres_url)} CONNECTION LIMIT -1")


# --- open and closed ------------------------------------------------------------------------------------------------


async def test_a_store_that_is_not_open_says_so(postgres_url: str) -> None:
    store = open_store(postgres_url)
    for _ in range(2):
        with pytest.raises(StoreClosed, match="not open"):
            await store.read_chat("c1")
        with pytest.raises(StoreClosed, match="not open"):
            await store.create_chat(new_chat())
        store.stats()
        await store.open()
        await store.close()
    await store.close()


async def test_opening_twice_is_opening_once(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await asyncio.gather(store.open(), store.open(), store.open())
    await store.create_chat(new_chat(id="c1"))
    await store.close()
    await until(lambda: not _sessions(postgres_url))


def _sessions(url: str) -> int:
    count: int = sql(url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'")[0][0]
    return count


async def test_twenty_openings_leave_no_session_behind(postgres_url: str) -> None:
    for _ in range(20):
        async with opened(postgres_url) as store:
            hand = Hand(store)
            await asyncio.gather(*(store.create_chat(new_chat()) for _ in range(5)))
            hand.close()
    await until(lambda: not _sessions(postgres_url))


async def test_closing_finishes_what_was_begun(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await store.open()
    calls = [asyncio.ensure_future(store.create_chat(new_chat(id=f"c{n:03}"))) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    acknowledged = [outcome.chat_id for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert all(isinstance(outcome, StoreError) for outcome in outcomes if isinstance(outcome, BaseException))
    async with opened(postgres_url) as again:
        assert {line.id for line in await again.list_chats(limit=1_000)} >= set(acknowledged)


# --- stopped and started under load ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fast", "immediate", "kill9"])
async def test_a_server_that_is_stopped_and_started_under_load_loses_nothing_and_doubles_nothing(
    postgres_server: PostgresServer, postgres_url: str, how: str
) -> None:
    """Runners commit and clients send without pause; the server goes away three times in the middle of it."""
    chats, stop = 6, asyncio.Event()
    async with opened(postgres_url, lease_ttl_ms=600_000) as store:
        for n in range(chats):
            await store.create_chat(new_chat(id=f"c{n}"))
        hand = Hand(store)
        snapshots = await hand.claim()
        assert len(snapshots) == chats
        with hurried(store, 3.0):
            runners = [asyncio.ensure_future(_run(Runner(store, hand.name, one), stop)) for one in snapshots]
            clients = [asyncio.ensure_future(_send(store, f"c{n}", stop)) for n in range(chats)]
            for _ in range(3):
                await _until_some_is_done(postgres_url)
                if how == "kill9":
                    await asyncio.to_thread(postgres_server.kill9)
                else:
                    await asyncio.to_thread(postgres_server.stop, how)  # type: ignore[arg-type]
                await asyncio.to_thread(postgres_server.start)
            await _until_some_is_done(postgres_url)
            stop.set()
            steps, sent = await asyncio.gather(*runners), await asyncio.gather(*clients)
        for n in range(chats):
            messages = await history(store, f"c{n}")
            acknowledged = steps[[snapshot.chat.id for snapshot in snapshots].index(f"c{n}")]
            expected = [text for step in range(acknowledged) for text in (f"step {step}", f"result {step}")]
            assert texts(messages)[1:] == expected
            queued = [queued.id for queued in (await store.read_chat(f"c{n}")).queue]
            assert queued == [f"c{n}-m{number}" for number in range(sent[n])]
            assert len(await journal(store, f"c{n}")) == (await store.read_chat(f"c{n}")).chat.seq
        assert await store.find_violations() == []
        hand.line.renew(hand.name)
        hand.close()


async def _run(runner: Runner, stop: asyncio.Event) -> int:
    """Steps with a tool each, every commit asked for until it is answered. Returns how many were."""
    steps = 0
    while not stop.is_set():
        chat_id = runner.held.chat.id
        await _commit(runner, runner.response(f"step {steps}", call(f"{chat_id}-k{steps}")))
        outcome = cmd.Outcome(by=runner.by, call_id=f"{chat_id}-k{steps}", content=f"result {steps}")
        await _commit(runner, outcome)
        steps += 1
    return steps


async def _commit(runner: Runner, command: cmd.Command) -> None:
    commit_id, before = unique("commit"), runner.held
    runner.snapshot = await answered(lambda: runner.store.commit(before, [command], commit_id))


async def _send(store: Store, chat_id: str, stop: asyncio.Event) -> int:
    """Messages, each with a key, asked for until it is answered. Returns how many were."""
    sent = 0
    while not stop.is_set() and sent < 900:
        command, key = cmd.Send(message=user("hi", id=f"{chat_id}-m{sent}")), Key(principal=chat_id, key=str(sent))
        await answered(lambda command=command, key=key: store.submit(chat_id, command, key))  # type: ignore[misc]
        sent += 1
    return sent


async def _until_some_is_done(url: str) -> None:
    """Until the load has written so much again, whatever the machine's speed."""
    [(begun,)] = await asyncio.to_thread(sql, url, "SELECT sum(version) FROM chats")
    done = begun
    give_up_at = time.monotonic() + 30
    while done < begun + 60:
        assert time.monotonic() < give_up_at
        [(done,)] = await asyncio.to_thread(sql, url, "SELECT sum(version) FROM chats")


# --- silent ---------------------------------------------------------------------------------------------------------


async def _verbs(store: Store, hand: Hand) -> dict[str, Callable[[], Awaitable[object]]]:
    """One of each kind, by name, every one safe to ask again."""
    send, key = cmd.Send(message=user("hi", id="m1")), Key(principal="", key="k1")
    snapshot, response = hand.held, hand.response("late", call("k1"))
    delta = DeltaBatch(chat=hand.held.chat, attempt=hand.attempt(), first_k=0, bodies=(b'{"part":"text"}',))
    return {
        "read_chat": lambda: store.read_chat("c1"),
        "read_journal": lambda: store.read_journal("c1"),
        "list_chats": lambda: store.list_chats(),
        "submit": lambda: store.submit("c1", send, key),
        "create_chat": lambda: store.create_chat(new_chat(None, id=unique("made"))),
        "commit": lambda: store.commit(snapshot, [response], "x1"),
        "add_deltas": lambda: store.add_deltas([delta]),
        "claim_chats": lambda: store.claim_chats(hand.name, {"agent": 1}, 1),
        "sweep": lambda: store.sweep(),
    }


async def test_a_connection_that_is_open_but_dead_costs_a_deadline_and_no_more(
    postgres_proxy: TcpProxy, postgres_proxy_url: str
) -> None:
    """The network swallows everything and closes nothing: no verb waits longer than its deadline, all recover."""
    async with opened(postgres_proxy_url, lease_ttl_ms=600_000) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        verbs = await _verbs(store, hand)
        postgres_proxy.swallow()
        for _ in range(2):
            began = time.monotonic()
            with hurried(store, DEADLINE_S):
                outcomes = await asyncio.gather(*(verb() for verb in verbs.values()), return_exceptions=True)
            assert time.monotonic() - began < DEADLINE_S + SLACK_S
            for name, outcome in zip(verbs, outcomes, strict=True):
                assert isinstance(outcome, StoreUnavailable), f"{name}: {outcome!r}"
                assert "127.0.0.1" in str(outcome)
        postgres_proxy.forward()
        for verb in verbs.values():
            await answered(verb)
        snapshot = await store.read_chat("c1")
        assert [queued.id for queued in snapshot.queue] == ["m1"]
        assert texts(await history(store, "c1")) == ["hello", "late"]
        hand.close()


async def test_a_renewal_over_a_dead_connection_ends_at_its_deadline_and_the_next_goes_through(
    postgres_proxy: TcpProxy, postgres_proxy_url: str
) -> None:
    async with opened(postgres_proxy_url, AMPLE_S, lease_ttl_ms=600_000) as store:
        hand = Hand(store)
        postgres_proxy.swallow()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(hand.line.renew, hand.name)
        assert time.monotonic() - began < 5.0 + SLACK_S
        postgres_proxy.forward()
        hand.line.renew(hand.name)
        hand.close()


async def test_a_commit_ends_at_its_deadline_though_the_system_has_no_thread_to_look_up_the_server(
    postgres_url: str,
) -> None:
    """What keeps a connection from being made need not be an error of the driver's."""
    loop_time = LoopTime()
    async with opened(postgres_url.replace("127.0.0.1", "localhost")) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        await hand.respond("one", call("k1"))
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor()
        threads.shutdown()
        loop.set_default_executor(threads)
        assert _end_sessions(postgres_url)
        committing = asyncio.ensure_future(hand.commit(cmd.Outcome(by=hand.by, call_id="k1", content="done")))
        while not committing.done():  # until all who try have met their deadline
            await asyncio.sleep(0.01)
            loop_time.advance(1.0)
        with pytest.raises(StoreUnavailable):
            await committing
        loop.set_default_executor(ThreadPoolExecutor(1))
        await hand.commit(cmd.Outcome(by=hand.by, call_id="k1", content="done"))
        hand.close()


async def test_a_write_that_arrives_after_its_writer_gave_up_happens_once(
    postgres_proxy: TcpProxy, postgres_proxy_url: str
) -> None:
    """A partition that heals: what was sent into it is delivered in the end, and was asked for again meanwhile."""
    async with opened(postgres_proxy_url, lease_ttl_ms=600_000) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        before, command = hand.held, hand.response("once", call("k1"))
        send, key = cmd.Send(message=user("once", id="m1")), Key(principal="", key="k1")
        postgres_proxy.hold()
        with hurried(store, DEADLINE_S):
            asked = await asyncio.gather(
                store.commit(before, [command], "x1"), store.submit("c1", send, key), return_exceptions=True
            )
        assert all(isinstance(outcome, StoreUnavailable) for outcome in asked)
        postgres_proxy.forward()
        hand.snapshot = await answered(lambda: store.commit(before, [command], "x1"))
        await answered(lambda: store.submit("c1", send, key))
        hand.snapshot = await store.read_chat("c1")
        await hand.finish("k1", "result")
        assert texts(await history(store, "c1")) == ["hello", "once", "result"]
        assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m1"]
        hand.close()


async def test_a_commit_whose_answer_was_lost_is_answered_all_the_same(
    postgres_proxy: TcpProxy, postgres_proxy_url: str
) -> None:
    async with opened(postgres_proxy_url) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        for n in range(5):
            trap = postgres_proxy.cut_before_next_answer(containing=f"marker-{n}".encode())
            await hand.respond(f"marker-{n}", call(f"k{n}"))
            assert trap.sprung
            await hand.finish(f"k{n}", "result")
        assert len(await history(store, "c1")) == 11
        hand.close()


# --- hints ----------------------------------------------------------------------------------------------------------

SOON_S, NEVER_S = 30.0, 600.0
LISTENING = "query LIKE 'NOTIFY \"holdfast_ping%'"  # the last thing a listening session was asked: to hear itself


async def _waits(store: Store, chat_id: str) -> "asyncio.Task[object]":
    """A reader at the end of a journal, waiting."""
    end = (await store.read_journal(chat_id)).cursor
    waiting = asyncio.ensure_future(store.wait_journal(chat_id, end, deadline_s=NEVER_S))
    await until(lambda: store.bell.waiter_count)
    return waiting


async def test_a_hint_wakes_a_reader_of_another_process_long_before_it_would_look(postgres_url: str) -> None:
    async with opened(postgres_url, poll_interval_s=NEVER_S) as reader, opened(postgres_url) as other:
        await other.create_chat(new_chat(None, id="c1"))
        await until(lambda: reader.stats()["listen"] == "listening")
        waiting = await _waits(reader, "c1")
        await say(other, "c1")
        await asyncio.wait_for(waiting, SOON_S)


@pytest.mark.parametrize("how", ["cut", "off"])
async def test_without_hints_polling_delivers(postgres_url: str, how: str) -> None:
    url = f"{postgres_url}?hints=off" if how == "off" else postgres_url
    async with opened(url, poll_interval_s=0.1) as reader, opened(f"{postgres_url}?hints=off") as other:
        await other.create_chat(new_chat(None, id="c1"))
        if how == "cut":
            await until(lambda: reader.stats()["listen"] == "listening")
            assert _end_sessions(postgres_url, LISTENING) == 1
        else:
            assert reader.stats()["listen"] == "off"
        waiting = await _waits(reader, "c1")
        await other.submit("c1", cmd.Send(message=user()))
        await asyncio.wait_for(waiting, SOON_S)


async def test_a_listener_that_was_cut_off_listens_again(postgres_url: str) -> None:
    async with opened(postgres_url, poll_interval_s=NEVER_S) as reader, opened(postgres_url) as other:
        await other.create_chat(new_chat(None, id="c1"))
        await until(lambda: reader.stats()["listen"] == "listening")
        await until(lambda: other.stats()["listen"] == "listening")
        assert _end_sessions(postgres_url, LISTENING) == 2
        await until(lambda: reader.stats()["wake_connects"] == 2 and reader.stats()["listen"] == "listening")
        waiting = await _waits(reader, "c1")
        await say(other, "c1")
        await asyncio.wait_for(waiting, SOON_S)


async def test_a_listener_that_cannot_get_in_says_so_and_goes_on_trying(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A ticker that died silently [hermes#60703]: here it is shown, and whoever waits polls."""
    nowhere = quote(postgres_server.url("no_such_db"), safe="")
    url = f"{postgres_url}?listen_dsn={nowhere}"
    async with opened(url, poll_interval_s=0.1) as reader, opened(postgres_url) as other:
        await until(lambda: str(reader.stats()["listen"]).startswith("broken: "))
        await other.create_chat(new_chat(None, id="c1"))
        waiting = await _waits(reader, "c1")
        await other.submit("c1", cmd.Send(message=user()))
        await asyncio.wait_for(waiting, SOON_S)


# --- locks ----------------------------------------------------------------------------------------------------------


async def test_a_row_that_somebody_locks_delays_only_its_own_chat(postgres_url: str) -> None:
    """Commits of many chats share a statement; one that cannot have its row leaves it, the others do not notice."""
    async with opened(postgres_url, AMPLE_S, lease_ttl_ms=600_000) as store:
        for n in range(20):
            await store.create_chat(new_chat(id=f"c{n:02}"))
        hand = Hand(store)
        runners = [Runner(store, hand.name, snapshot) for snapshot in await hand.claim()]
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'c07' FOR UPDATE")
            tasks = {
                runner.held.chat.id: asyncio.ensure_future(runner.respond("a step", call(f"{runner.held.chat.id}-k")))
                for runner in runners
            }
            blocked = tasks.pop("c07")
            await asyncio.gather(*tasks.values())  # if they waited for the row, they would now, for ever
            for runner in runners:
                if runner.held.chat.id != "c07":
                    await runner.finish(f"{runner.held.chat.id}-k", "result")
            assert (await store.read_chat("c07")).chat.state is State.RUNNING, "reading needs no lock"
            assert not blocked.done()
            foreign.rollback()
        after = await blocked
        assert after.chat.state is State.RUNNING
        hand.line.renew(hand.name)
        hand.close()


async def test_a_row_that_is_locked_beyond_the_deadline_is_a_timeout_and_nothing_is_written(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        await store.create_chat(new_chat(id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        before = await store.read_chat("c1")
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'c1' FOR UPDATE")
            for ask in (hand.respond("late"), store.submit("c1", cmd.Stop())):
                with hurried(store, DEADLINE_S), pytest.raises(StoreTimeout) as caught:
                    await ask
                assert caught.value.outcome == "not_written"
            foreign.rollback()
        assert await store.read_chat("c1") == before
        await hand.respond("in time")
        hand.close()


async def test_a_row_that_somebody_locks_keeps_no_other_chat_under_a_dead_worker(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        hand = Hand(store)
        for chat_id in ("c1", "c2", "c3"):
            await store.create_chat(new_chat(id=chat_id))
        assert len(await hand.claim()) == 3
        hand.line.retire(hand.name)
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'c1' FOR UPDATE")

            async def the_others_are_free() -> bool:
                with hurried(store, DEADLINE_S):  # a chat whose turn a slow machine missed is the next sweep's
                    await answered(store.sweep)
                return [(await store.read_chat(id)).chat.worker for id in ("c2", "c3")] == [None, None]

            await eventually(the_others_are_free)
            assert (await store.read_chat("c1")).chat.worker == hand.name
        await store.sweep()
        assert (await store.read_chat("c1")).chat.worker is None
        assert await store.list_workers() == []


async def test_a_claim_passes_over_a_chat_that_somebody_locks(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        for n in range(5):
            await store.create_chat(new_chat(id=f"c{n}"))
        hand = Hand(store)
        with psycopg.connect(postgres_url) as foreign:
            foreign.execute("SELECT 1 FROM chats WHERE id = 'c0' FOR UPDATE")
            assert {snapshot.chat.id for snapshot in await hand.claim()} == {"c1", "c2", "c3", "c4"}
            foreign.rollback()
        assert {snapshot.chat.id for snapshot in await hand.claim()} == {"c0"}
        hand.close()


# --- a pooler -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pooler(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    if distribution.find("pgbouncer") is None:
        pytest.skip(distribution.missing("pgbouncer"))
    with PgBouncer(postgres_server) as pooler:
        yield pooler


async def test_behind_a_pooler_in_transaction_mode_everything_works(pooler: PgBouncer, postgres_url: str) -> None:
    """Two server connections for everybody: whatever a session keeps for itself would be lost, or met by others."""
    url = f"{pooler.url(postgres_url)}?pooler=transaction&listen_dsn={quote(postgres_url, safe='')}"
    async with opened(url, poll_interval_s=NEVER_S) as store, opened(url, poll_interval_s=NEVER_S) as other:
        await until(lambda: store.stats()["listen"] == "listening" and other.stats()["listen"] == "listening")
        await asyncio.gather(*(store.create_chat(new_chat(id=f"c{n:02}")) for n in range(30)))
        hands = [Hand(store), Hand(other)]
        claims = await asyncio.gather(*(hand.claim(limit=15) for hand in hands))
        assert sorted(snapshot.chat.id for claim in claims for snapshot in claim) == [f"c{n:02}" for n in range(30)]
        runners = [
            Runner(hand.store, hand.name, snapshot)
            for hand, claim in zip(hands, claims, strict=True)
            for snapshot in claim
        ]
        await asyncio.gather(*(runner.run() for runner in runners))
        await store.create_chat(new_chat(None, id="heard"))
        waiting = await _waits(other, "heard")
        await say(store, "heard")
        await asyncio.wait_for(waiting, SOON_S)
        for hand in hands:
            hand.line.renew(hand.name)
        for n in range(30):
            assert texts(await history(other, f"c{n:02}"))[-1] == "done"
        await store.fork_chat("c00", "fork", upto=2)
        await store.delete_chat("c01")
        assert await store.find_violations() == []
        assert await store.sweep() == {}
        for hand in hands:
            hand.close()


async def test_behind_a_pooler_without_a_way_to_listen_polling_delivers(pooler: PgBouncer, postgres_url: str) -> None:
    url = f"{pooler.url(postgres_url)}?pooler=transaction"
    async with opened(url, poll_interval_s=0.1) as store, opened(url) as other:
        assert store.stats()["listen"] == "off"
        await other.create_chat(new_chat(None, id="c1"))
        waiting = await _waits(store, "c1")
        await other.submit("c1", cmd.Send(message=user()))
        await asyncio.wait_for(waiting, SOON_S)


async def test_a_pooler_that_the_url_does_not_mention_works_or_says_what_to_add(
    pooler: PgBouncer, postgres_url: str
) -> None:
    """Newer ones keep track of prepared statements, older ones do not: never a riddle, never a wrong write."""
    said: list[str] = []
    try:
        async with opened(pooler.url(postgres_url)) as store:
            for n in range(20):
                await store.create_chat(new_chat(None, id=f"c{n}"))
                await asyncio.gather(*(store.read_chat(f"c{n}") for _ in range(5)))
    except HoldfastError as error:
        said.append(str(error))
    assert all("pooler=transaction" in text for text in said)


async def test_commits_go_on_after_a_new_connection_could_not_be_watched(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost again at once, or more sockets than the system watches: no commit was ever sent again."""
    real = ServerWire
    refused: list[ServerConnection] = []

    def wire(connection: ServerConnection, asker: Asker) -> ServerWire:
        if not refused:
            refused.append(connection)
            raise OSError(28, "No space left on device")
        return real(connection, asker)

    monkeypatch.setattr(committer, "ServerWire", wire)
    async with open_store(postgres_url) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        hand = Hand(store)
        await hand.take("c1")
        await hand.respond("Hello.")
        assert len(refused) == 1
        assert refused[0].closed
        hand.close()


async def test_a_commit_that_nobody_can_be_told_of_keeps_no_other_from_being_sent(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        assert isinstance(store, PostgresStore)
        for n in (1, 2):
            await store.create_chat(new_chat("hello", id=f"c{n}"))
        hand = Hand(store)
        held = await hand.claim()

        def mute(entry: object, verdict: object) -> None:
            raise RuntimeError("nobody foresaw this")

        note = cmd.Note(by=cmd.Writer(hand.name, 1, 0), topic="t", text="lost")
        ready = decide_ahead(held[0], [note], "commit", store._clock.now(), store.options.limits)
        assert ready is not None
        store._committer.submit(committer.PendingCommit(ready, asyncio.get_running_loop().time() + 8, mute))
        hand.snapshot = held[1]
        await hand.end_turn("Hello.")
        hand.close()
