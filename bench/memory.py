"""Search over the past: `make bench BENCH_ARGS=memory` (BENCH_MEMORY_CHATS=1000).

So many chats of one owner, each of twelve messages in several scripts, beside as many of others; then queries as
people and models write them, with quotes, operators and without spaces. How long the search takes, and what indexing
a chat costs.
"""

import os
import random
import tempfile
import time
from pathlib import Path

from bench.figures import Figures
from holdfast.core.memory import Append
from holdfast.core.records import ChatRecord
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.memory import Allowed, Piece
from holdfast.store.records import StoreOptions
from tests.support.chats import new_chat
from tests.support.postgres import PostgresServer

CHATS = int(os.environ.get("BENCH_MEMORY_CHATS", "1000"))
OTHERS = 9  # owners beside it, who share as many chats
MESSAGES = 12
ROUNDS = 15
WORDS = [
    f"{a}{b}{c}" for a in ("re", "in", "ab", "con", "per") for b in ("fund", "voice", "sent") for c in ("", "s", "ed")
]
HAN = "東京都庁大阪府北海道会議予算請求書返金確認送付注文番号"
QUERIES = (
    *(
        "refund",
        "refund of invoice 77",
        '"refund" AND (invoice OR absent)',
        "NEAR(refund, invoice)",
        "user-name's \"it",
    ),
    *(
        "東京",
        "請求書 返金",
        "会議の予算",
        "大",
        "where did we leave the persented invoices of last week?",
        "refund*",
        "-invoice",
    ),
    *("😀 refund", "x" * 10_000, "' OR 1=1; --", "nothingofthekind"),
)


async def memory(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await _measure(figures, f"sqlite:///{Path(folder)}/bench.db", "sqlite")
    with PostgresServer() as server:
        await _measure(figures, server.create_database(), "postgres")


async def _measure(figures: Figures, url: str, name: str) -> None:
    dice = random.Random(7)
    async with open_store(url, StoreOptions()) as store:
        began, cpu = time.perf_counter(), time.process_time()
        for n in range(CHATS):
            await _fill(store, dice, "ada", n)
        each_ms = (time.perf_counter() - began) / CHATS * 1e3
        cpu_ms = (time.process_time() - cpu) / CHATS * 1e3
        note = f"{cpu_ms:.1f} ms of it CPU, {MESSAGES} messages, a fact and a line of a block"
        figures.add(f"{name}: a chat is made, indexed and remembered", each_ms, "ms", note=note)
        for n in range(CHATS):
            await _fill(store, dice, f"other-{n % OTHERS}", n)
        times: list[float] = []
        found = 0
        for _ in range(ROUNDS):
            for query in QUERIES:
                start = time.perf_counter()
                hits = await store.memory.search(query, owner="ada", agent="agent")
                times.append(time.perf_counter() - start)
                found += len(hits.passages)
        times.sort()
        note = f"{CHATS:,} chats, {CHATS * MESSAGES:,} messages, {len(times)} searches, {found:,} hits"
        for part in (50, 99):
            took_ms = times[min(len(times) - 1, len(times) * part // 100)] * 1e3
            figures.add(f"{name}: a search over {CHATS:,} chats, p{part}", took_ms, "ms", note=note)


async def _fill(store: Store, dice: random.Random, owner: str, n: int) -> None:
    new = new_chat(None, owner=owner)
    await store.create_chat(new)
    chat: ChatRecord = (await store.read_chat(new.id)).chat
    await store.memory.enter(chat, 20, 5)
    pieces = [
        Piece(pos=pos, role="user", ref=f"m{pos}", at=n, tainted=n % 10 == 0, text=_said(dice))
        for pos in range(MESSAGES)
    ]
    await store.memory.index(chat, pieces, was=0, upto=MESSAGES)
    await store.memory.remember_by_call(chat, "c1", _said(dice)[:300], "", Allowed())
    if n < 100:
        await store.memory.edit_by_call(chat, "c2", "notes", Append(text=f"line {n}"), Allowed())


def _said(dice: random.Random) -> str:
    words = [dice.choice(WORDS) if dice.random() < 0.3 else f"word{dice.randrange(5_000)}" for _ in range(60)]
    return " ".join(words) + " " + "".join(dice.choice(HAN) for _ in range(20))
