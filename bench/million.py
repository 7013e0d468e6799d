"""A million chats in one database against a thousand: `make bench BENCH_ARGS=million` (BENCH_MILLION=1000000).

Both databases are open at once and take turns, so that a noisy moment hits both. Each owner has a hundred chats, one
chat in ten waits for an answer, and each has a passage in the search of its owner's past. What was found is also kept
in `build/million.json`, from which `make benchmarks` writes docs/benchmarks.md.
"""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

from bench.chats import PATIENT, WORKER, register
from bench.figures import Figures
from bench.many import columns, numbers_to, two_models
from holdfast.core import commands as cmd
from holdfast.core.records import Message, Role, Snapshot, State, Text, attempt_id
from holdfast.core.search_terms import owner_key
from holdfast.errors import StoreTimeout
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.memory import Piece
from holdfast.store.records import ChatFilter
from tests.support.behind import sql
from tests.support.postgres import PostgresServer

FEW = 1_000
MANY = int(os.environ.get("BENCH_MILLION", "1000000"))
STORES = os.environ.get("BENCH_STORES", "sqlite,postgres").split(",")
OUT = Path(__file__).resolve().parents[1] / "build" / "million.json"
OF_AN_OWNER = 100
AT_A_TIME = 100_000  # chats, in one transaction
ROUNDS = 300
SOME_ROUNDS = 30
SLOW_ROUNDS = 5  # what looks at every chat by its nature
DRIVER = f"{WORKER}-driver"
_serial = count(1)


class Filled:
    """A store with so many chats, and what is done to it."""

    def __init__(self, store: Store, chats: int) -> None:
        self.store = store
        self.chats = chats
        self._dice = random.Random(7)
        self._sent = ""
        self._claimed: Snapshot | None = None
        self._line = register(store, DRIVER)

    def _any(self) -> str:
        return f"resting-{self._dice.randint(1, resting(self.chats))}"

    def _owner(self) -> str:
        return f"owner-{self._dice.randrange(owners(self.chats))}"

    async def read(self) -> None:
        await self.store.read_chat(self._any())

    async def history(self) -> None:
        assert await self.store.read_history(self._any())

    async def send(self) -> None:
        self._sent = self._any()
        words = Message(id=f"more-{next(_serial)}", role=Role.USER, parts=(Text(text="And tomorrow?"),))
        await self.store.submit(self._sent, cmd.Send(message=words))

    async def claim(self) -> None:
        (self._claimed,) = await self.store.claim_chats(DRIVER, {"agent": 1}, 1)
        assert self._claimed.chat.id == self._sent

    async def commit(self) -> None:
        """The answer, and the chat rests again."""
        assert self._claimed is not None
        chat = self._claimed.chat
        by = cmd.Writer(DRIVER, chat.fence, chat.epoch)
        said = Message(id=f"said-{next(_serial)}", role=Role.ASSISTANT, parts=(Text(text="It rains."),))
        responded = cmd.Respond(by=by, message=said, attempt=attempt_id(by.fence, 1), plans=())
        await self.store.commit(self._claimed, (responded, cmd.FinishTurn(by=by)), f"commit-{next(_serial)}")

    async def list_all(self) -> None:
        assert len(await self.store.list_chats(ChatFilter())) == 50

    async def list_owner(self) -> None:
        assert len(await self.store.list_chats(ChatFilter(owner=self._owner()))) == 50

    async def list_waiting(self) -> None:
        assert len(await self.store.list_chats(ChatFilter(state=State.WAITING))) == 50

    async def list_running(self) -> None:
        await self.store.list_chats(ChatFilter(state=State.RUNNING))

    async def search_owner(self) -> None:
        assert not await self.store.list_chats(ChatFilter(owner=self._owner(), search="nowhere to be found"))

    async def search_past(self) -> None:
        """A word that one in a hundred passages has."""
        town = f"town{100 + self._dice.randint(1, OF_AN_OWNER // 2)}"
        found = await self.store.memory.search(town, owner=self._owner(), agent="agent")
        assert len(found.passages) == 1, found

    async def search_common(self) -> None:
        found = await self.store.memory.search("weather", owner=self._owner(), agent="agent")
        assert len(found.passages) == 10

    async def search_all(self) -> None:
        with suppress(StoreTimeout):  # its deadline is what a search may take
            await self.store.list_chats(ChatFilter(search="nowhere to be found"))

    async def sweep(self) -> None:
        await self.store.sweep()

    async def doctor(self) -> None:
        assert not await self.store.find_violations()

    def done(self) -> None:
        self._line.close()


Act = Callable[[Filled], Awaitable[None]]
# Several in one line follow one another, and each is timed by itself.
ACTS: tuple[tuple[int, tuple[tuple[str, Act], ...]], ...] = (
    (ROUNDS, (("read a chat", Filled.read),)),
    (ROUNDS, (("read its history", Filled.history),)),
    (
        ROUNDS,
        (("send a message", Filled.send), ("claim the chat", Filled.claim), ("commit its answer", Filled.commit)),
    ),
    (ROUNDS, (("list the newest", Filled.list_all),)),
    (ROUNDS, (("list an owner's", Filled.list_owner),)),
    (ROUNDS, (("list those that wait", Filled.list_waiting),)),
    (ROUNDS, (("list those at work", Filled.list_running),)),
    (ROUNDS, (("search an owner's chats", Filled.search_owner),)),
    (ROUNDS, (("search an owner's past", Filled.search_past),)),
    (SOME_ROUNDS, (("search it for a word that all chats have", Filled.search_common),)),
    (ROUNDS // 3, (("sweep", Filled.sweep),)),
    (SLOW_ROUNDS, (("search all chats for what none has", Filled.search_all),)),
    (SLOW_ROUNDS, (("doctor's look at all", Filled.doctor),)),
)


async def million(figures: Figures) -> None:
    kept = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in STORES:
        with databases(name) as urls:
            kept[name] = await _compare(figures, name, urls)
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(kept, indent=2) + "\n")


@contextmanager
def databases(name: str) -> Iterator[tuple[str, str]]:
    if name == "postgres":
        with PostgresServer() as server:
            yield server.create_database(), server.create_database()
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-million-") as folder:
            yield f"sqlite:///{folder}/few.db", f"sqlite:///{folder}/many.db"


@asynccontextmanager
async def opened(url: str, chats: int) -> AsyncIterator[Filled]:
    async with open_store(url, PATIENT) as store:
        filled = Filled(store, chats)
        yield filled
        filled.done()


async def _compare(figures: Figures, name: str, urls: tuple[str, str]) -> dict[str, object]:
    began = time.monotonic()
    print(f"{name}: filling", flush=True)
    for url, chats in zip(urls, (FEW, MANY), strict=True):
        await fill(url, chats)
    print(f"{name}: {FEW:,} and {MANY:,} chats are there after {time.monotonic() - began:.0f} s", flush=True)
    rows: dict[str, object] = {}
    async with opened(urls[0], FEW) as few, opened(urls[1], MANY) as many:
        for rounds, acts in ACTS:
            times = await in_turns(rounds, acts, few, many)
            for act, (of_few, of_many) in times.items():
                rows[act] = {"few": halves(of_few), "many": halves(of_many), "rounds": rounds}
                ratio = statistics.median(of_many) / statistics.median(of_few)
                figures.add(f"{name}: {act}, {MANY:,} chats / {FEW:,}", ratio, "×", note=_note(of_few, of_many))
    return {"few": FEW, "many": MANY, "date": time.strftime("%Y-%m-%d", time.gmtime()), "rows": rows}


async def in_turns(
    rounds: int, acts: tuple[tuple[str, Act], ...], *both: Filled
) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds of each act, in the small database and in the large one. The first tenth warms both up."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _ in acts}
    warm = max(1, rounds // 10)
    for n in range(rounds + warm):
        for which, filled in enumerate(both):
            for name, act in acts:
                began = time.perf_counter()
                await act(filled)
                if n >= warm:
                    times[name][which].append((time.perf_counter() - began) * 1e3)
    return times


def halves(times: list[float]) -> list[float]:
    """p50 and p99; of a few, the longest."""
    return [statistics.median(times), sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]]


def _note(few: list[float], many: list[float]) -> str:
    (few50, few99), (many50, many99) = halves(few), halves(many)
    return f"p50 {few50:.2f} → {many50:.2f} ms, p99 {few99:.2f} → {many99:.2f} ms"


# --- filling


def owners(chats: int) -> int:
    return chats // OF_AN_OWNER


def resting(chats: int) -> int:
    return chats - chats // 10


async def fill(url: str, chats: int) -> None:
    """Two chats by the store, and the rest copied from them behind its back: it would take an hour by itself."""
    async with open_store(url, PATIENT) as store:
        line = register(store, WORKER)
        await two_models(store)
        chat = (await store.read_chat("resting")).chat
        await store.memory.enter(chat, 20, 5)
        words = Piece(pos=0, role="user", ref="m0", at=0, tainted=False, text="What was the weather in town?")
        await store.memory.index(chat, [words], was=0, upto=1)
        line.close()
    _keep_keys(url, owners(chats))
    for model, copies in (("resting", resting(chats)), ("waiting", chats - resting(chats))):
        for table, column in (("chats", "id"), ("calls", "chat_id"), ("journal", "chat_id"), *_PASSAGES[model]):
            for first in range(1, copies + 1, AT_A_TIME):
                _copy(url, table, column, model, first, min(first + AT_A_TIME - 1, copies), owners(chats))
    for statement in _SETTLED[url.partition(":")[0]]:
        sql(url, statement)


_PASSAGES = {"resting": (("memory_passages", "chat_id"),), "waiting": ()}
# As a database is that got its chats one by one: what SQLite wrote is in its file, and PostgreSQL has vacuumed.
_SETTLED = {
    "sqlite": ("DROP TABLE keys", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "postgresql": ("DROP TABLE keys", "VACUUM ANALYZE"),
}


def _keep_keys(url: str, how_many: int) -> None:
    """What each owner's terms begin with in the index of passages."""
    sql(url, "CREATE TABLE keys (n INTEGER PRIMARY KEY, of_owner TEXT)")
    for first in range(0, how_many, 1_000):
        of_each = [(n, owner_key(f"owner-{n}")) for n in range(first, min(first + 1_000, how_many))]
        sql(url, f"INSERT INTO keys VALUES {', '.join(map(str, of_each))}")


def _copy(url: str, table: str, column: str, model: str, first: int, last: int, how_many_owners: int) -> None:
    owner = f"numbers.n % {how_many_owners}"
    town = f"'town' || CAST(100 + numbers.n / {how_many_owners} AS TEXT)"
    terms = f"replace(replace(CAST(model.terms AS TEXT), '{owner_key('')}', of_owner), 'town', {town})"
    told = {
        column: f"'{model}-' || CAST(numbers.n AS TEXT)",
        "owner": f"'owner-' || CAST({owner} AS TEXT)",
        "terms": terms if url.startswith("sqlite") else f"CAST({terms} AS tsvector)",
    }
    names = [name for name in columns(url, table) if (table, name) != ("memory_passages", "id")]
    values = ", ".join(told.get(name, f"model.{name}") for name in names)
    numbers = numbers_to(url, last - first + 1).replace("numbers", "counted")
    sql(
        url,
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} "
        f"FROM (SELECT * FROM {table} WHERE {column} = '{model}') AS model, "
        f"(SELECT n + {first - 1} AS n FROM {numbers}) AS numbers JOIN keys ON keys.n = {owner}",
    )
