"""Databases as older code left them, in `databases/`: what the upgrade test opens.

One was made by the code of its day, with chats in every state, and is never made again. To make one of today's
schema, before the next: `python -m tests.store.old_databases PG_DUMP`. A chat's agent is named as the chat is, so
that a test can take each of them by itself.
"""

import asyncio
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.records import External, Failure, NewChat, State
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.migrations import migrations
from holdfast.store.records import DeltaBatch, Key, StoreOptions
from holdfast.system.clock import FakeClock
from tests.support import chats
from tests.support.behind import path_of, sql
from tests.support.chats import Hand, call, new_chat, user
from tests.support.postgres import PostgresServer

FOLDER = Path(__file__).parent / "databases"
SCHEMAS = sorted({int(re.sub(r"\D", "", file.name)) for file in FOLDER.glob("schema*.json")})
ANSWER = "an answer that a parent may read"


def copy_of(name: str, url: str) -> None:
    """Put a copy of the database where `url` says."""
    if url.startswith("sqlite"):
        Path(path_of(url)).write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(gzip.decompress((FOLDER / f"{name}.sql.gz").read_bytes()))


def a_day_later() -> StoreOptions:
    """For who opens one: its worker's machine is long gone."""
    clock = FakeClock()
    clock.advance(86_400_000)
    return StoreOptions(clock=clock)


def load(schema: int, url: str) -> dict[str, Any]:
    """Put a copy of it where `url` says, and return what was in it: for each chat what `seen` says."""
    copy_of(f"schema{schema}", url)
    expected: dict[str, Any] = json.loads((FOLDER / f"schema{schema}.json").read_text())
    return expected


async def seen(store: Store, chat_id: str) -> dict[str, Any]:
    """What every client sees of a chat, as later code has to find it."""
    snapshot = await store.read_chat(chat_id)
    chat = snapshot.chat
    lines = [item.body for item in (await store.read_journal(chat_id, limit=10_000)).items]
    history = [(row.pos, row.role, row.message_id, row.body.decode()) for row in await store.read_history(chat_id)]
    compaction = await store.read_compaction(chat_id)
    return {
        "state": chat.state,
        "owner": chat.owner,
        "title": chat.title,
        "metadata": json.loads(bytes(chat.metadata)),
        "archived": chat.archived,
        "parent": chat.parent_id,
        "root": chat.root_id,
        "forked_from": chat.forked_from,
        "turn": chat.turn,
        "calls": [[call.id, call.state, call.external, call.question] for call in snapshot.calls],
        "queue": [[queued.id, queued.mode] for queued in snapshot.queue],
        "summary": compaction.summary if compaction else None,
        "error": chat.error.message if chat.error else None,
        "lines": len(lines),
        "journal": _digest(lines),
        "history": _digest([json.dumps(row).encode() for row in history]),
    }


def _digest(pieces: list[bytes]) -> str:
    return hashlib.blake2b(b"\n".join(pieces), digest_size=16).hexdigest()


# --- making one -----------------------------------------------------------------------------------------------------


async def _take(hand: Hand, chat_id: str) -> None:
    (hand.snapshot,) = await hand.claim(chat_id)


async def _begin(store: Store, hand: Hand, id: str, text: str = "hello", **fields: Any) -> None:
    await store.create_chat(replace(new_chat(text, id=id, agent=id), **fields))
    await _take(hand, id)


def _deltas(hand: Hand, attempt: int, *words: str) -> DeltaBatch:
    bodies = tuple(json.dumps({"part": "text", "text": word}).encode() for word in words)
    chat = hand.held.chat
    return DeltaBatch(chat=chat, attempt=attempt, first_k=0, bodies=bodies)


async def fill(store: Store) -> None:
    """A chat in every state. Everything that a later schema may have to carry over is in it at least once."""
    hand = Hand(store, name="gone")
    await _at_rest(store, hand)
    await _with_people(store, hand)
    await _families(store, hand)
    await _cut_short(store, hand)
    hand.line.retire(hand.name)
    hand.close()


async def _at_rest(store: Store, hand: Hand) -> None:
    metadata = Raw('{"tenant":"blue","n":3,"words":"Grüße 🦀"}'.encode())
    await _begin(store, hand, "idle", "first question", owner="ada", title="A title", metadata=metadata)
    await hand.respond("let me see", call("k1"), call("k2"))
    await hand.finish("k2", "two")
    await hand.finish("k1", "one")
    await hand.end_turn("first answer")
    await store.submit("idle", cmd.Send(message=user("second question")), Key(principal="ada", key="send-1"))
    await _take(hand, "idle")
    await hand.end_turn("second answer")
    await store.create_chat(new_chat(None, id="empty", agent="empty"))
    await _begin(store, hand, "archived", owner="ada")
    await hand.end_turn()
    await store.submit("archived", cmd.Archive())
    await _begin(store, hand, "failed")
    await hand.commit(cmd.Fail(by=hand.by, error=Failure(code="bad_request", message="the provider refuses it")))
    await _begin(store, hand, "compacted")
    await hand.respond("working", call("k1"))
    await hand.finish("k1", "a result")
    await hand.end_turn("an answer")
    for upto, summary in ((1, "the first summary"), (4, "the second summary")):
        await store.submit("compacted", cmd.Compact())
        await _take(hand, "compacted")
        await hand.commit(cmd.FinishCompaction(by=hand.by, upto=upto, summary=summary), cmd.FinishTurn(by=hand.by))
    await store.fork_chat("compacted", "fork", owner="bob")
    await _begin(store, hand, "edited")
    await hand.end_turn("an answer that is cut off")
    await store.submit("edited", await _edit(store, "edited"))
    await _take(hand, "edited")
    await hand.end_turn("another answer")


async def _edit(store: Store, chat_id: str) -> cmd.Edit:
    row = (await store.read_history(chat_id))[0]
    chat = (await store.read_chat(chat_id)).chat
    return cmd.Edit(pos=row.pos, role=row.role, epoch=chat.epoch, message=user("asked in another way"))


async def _with_people(store: Store, hand: Hand) -> None:
    await _begin(store, hand, "asking", owner="ada")
    await hand.respond("may I", call("pay", "pay", '{"amount": 5}'), call("look"), start=False)
    await hand.commit(cmd.StartCalls(by=hand.by, call_ids=("look",)))
    await hand.finish("look", "seen")
    await hand.commit(cmd.AskApproval(by=hand.by, call_id="pay", question="Pay?"), cmd.Park(by=hand.by))
    await _begin(store, hand, "client")
    await hand.park_for_client("there", expires_at=store.options.clock.wall_ms() + 10**12)
    await store.submit("client", cmd.Send(message=user("and then this", id="later"), mode="queue"))
    await _begin(store, hand, "question")
    await hand.respond(call("ask"), start=False)
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="ask", external=External.QUESTION, question="Which one?"),
        cmd.Park(by=hand.by),
    )
    await store.create_chat(new_chat("wait for me", id="queued", agent="queued"))
    await store.submit("queued", cmd.Send(message=user("queued 0", id="q0")))
    await store.submit("queued", cmd.Send(message=user("queued 1", id="q1")))
    await _begin(store, hand, "dropped")
    await store.submit("dropped", cmd.Send(message=user("never delivered", id="q2")))
    await store.submit("dropped", cmd.Stop(clear_queue=True), Key(principal="ada", key="stop-1"))
    hand.snapshot = await store.read_chat("dropped")
    await hand.commit(cmd.FinishStop(by=hand.by))


async def _families(store: Store, hand: Hand) -> None:
    await _begin(store, hand, "root", owner="ada")
    for child, waits in (("helped", False), ("helper", True)):
        await hand.respond(call(f"{child}-call"), start=not waits)
        new = NewChat(id=child, agent=child, message=user("a task"))
        if waits:
            await hand.commit(
                cmd.Delegate(by=hand.by, call_id=f"{child}-call", external=External.CHILD, child_id=child, spawn=new),
                cmd.Park(by=hand.by),
            )
        else:
            await hand.commit(cmd.Outcome(by=hand.by, call_id=f"{child}-call", content=child, spawn=new))
    await _take(hand, "helped")
    await hand.end_turn(ANSWER)
    await _take(hand, "helper")
    await hand.respond(call("pay", "pay"), start=False)
    await hand.commit(cmd.AskApproval(by=hand.by, call_id="pay", question="Pay below?"), cmd.Park(by=hand.by))


async def _cut_short(store: Store, hand: Hand) -> None:
    """What a worker had in hand when it was gone."""
    await _begin(store, hand, "streaming")
    lost = hand.attempt()
    await store.add_deltas([_deltas(hand, lost, "words of ", "a lost attempt")])
    await hand.commit(cmd.AttemptLost(by=hand.by, attempt=lost, model="scripted", error="it broke off"))
    await store.add_deltas([_deltas(hand, hand.attempt(), "Once ", "upon ")])
    await _begin(store, hand, "started")
    await hand.respond("here goes", call("unsafe"))
    await _begin(store, hand, "stopping")
    await hand.respond(call("slow"))
    await store.submit("stopping", cmd.Stop())


def _dump(url: str, program: Path) -> bytes:
    """Statements alone, as any server since 16 takes them: no settings, no meta commands, no roles."""
    text = subprocess.run(
        [program, "--inserts", "--no-owner", "--no-privileges", url], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    kept = [line for line in text.splitlines() if not re.match(r"SET |--|\\|SELECT pg_catalog\.set_config", line)]
    return re.sub(r"\n{2,}", "\n", "\n".join(kept)).encode()


async def _make(url: str) -> dict[str, Any]:
    chats._numbers = count(1)  # the same ids on both stores
    async with open_store(url, StoreOptions(clock=FakeClock())) as store:
        await fill(store)
        found = {line.id: await seen(store, line.id) for line in await store.list_chats()}
    sql(url, "UPDATE workers SET host = 'elsewhere', pid = 1")
    assert {chat["state"] for chat in found.values()} == set(State)
    return found


def main() -> None:
    number = migrations("sqlite")[-1].number
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "holdfast.db"
        found = asyncio.run(_make(f"sqlite:///{path}"))
        sql(f"sqlite:///{path}", "VACUUM")
        (FOLDER / f"schema{number}.db.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    with PostgresServer() as server:
        url = server.create_database()
        assert asyncio.run(_make(url)) == found
        (FOLDER / f"schema{number}.sql.gz").write_bytes(gzip.compress(_dump(url, Path(sys.argv[1])), 9, mtime=0))
    (FOLDER / f"schema{number}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
