"""Bytes written per turn where answers are long: what a turn writes beside what was said in it."""

import random
import tempfile
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import psycopg

from bench.chats import PATIENT, WORKER, register
from bench.figures import Figures
from holdfast.core import commands as cmd
from holdfast.core.records import Message, NewChat, Role, Text, ToolCall, attempt_id
from holdfast.store import open_store
from holdfast.store.contract import Store
from tests.support.postgres import PostgresServer

TURNS = 100
ANSWER_BYTES = 20_000
Written = Callable[[], Awaitable[float]]


async def turn_bytes(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{Path(folder)}/bench.db", PATIENT) as store:

            async def pages() -> float:
                return float(store.stats()["wal_pages_written"] or 0) * 4096

            await _measure(figures, store, pages, "sqlite", 160)
    with PostgresServer() as server:
        url = server.create_database()
        probe = await psycopg.AsyncConnection.connect(url, autocommit=True)

        async def log() -> float:
            row = await (await probe.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")).fetchone()
            assert row is not None
            return float(row[0])

        async with open_store(url, PATIENT) as store:
            await _measure(figures, store, log, "postgres", 32)
        await probe.close()


async def _measure(figures: Figures, store: Store, written: Written, name: str, aim_kib: float) -> None:
    line = register(store, WORKER)
    await store.create_chat(NewChat(id="long-answers", agent="agent"))
    words, serial = random.Random(1), count(1)
    for n in range(TURNS + 5):
        if n == 5:  # the tables have their first pages
            before = await written()
        await _turn(store, words, next(serial))
    each = (await written() - before) / TURNS / 1024
    note = f"of which {ANSWER_BYTES / 1024:.1f} KiB are the answer"
    figures.add(f"{name}: written per turn with answers of 20 KB", each, "KiB", at_most=aim_kib, note=note)
    line.close()


async def _turn(store: Store, words: random.Random, n: int) -> None:
    """A message, a response with a call, its result, and a long answer that does not compress."""
    question = Message(id=f"user_{n}", role=Role.USER, parts=(Text(text="What is the weather in Bern?"),))
    await store.submit("long-answers", cmd.Send(message=question))
    (snapshot,) = await store.claim_chats(WORKER, {"agent": 1}, 1)
    by = cmd.Writer(WORKER, snapshot.chat.fence, snapshot.chat.epoch)
    call = ToolCall(call_id=f"call_{n}", name="weather", arguments='{"city":"Bern"}')
    asks = Message(id=f"asks_{n}", role=Role.ASSISTANT, parts=(call,))
    plan = cmd.PlannedCall(id=call.call_id, start=True)
    responded = cmd.Respond(by=by, message=asks, attempt=attempt_id(by.fence, 1), plans=(plan,))
    snapshot = await store.commit(snapshot, (responded,), f"a{n}")
    snapshot = await store.commit(snapshot, (cmd.Outcome(by=by, call_id=call.call_id, content="rain"),), f"b{n}")
    text = words.randbytes(ANSWER_BYTES // 2).hex()
    answer = Message(id=f"answer_{n}", role=Role.ASSISTANT, parts=(Text(text=text),))
    said = cmd.Respond(by=by, message=answer, attempt=attempt_id(by.fence, 2))
    await store.commit(snapshot, (said, cmd.FinishTurn(by=by)), f"c{n}")
