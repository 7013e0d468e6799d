"""Owners share a store: none waits behind another's pile, and none is driven beyond its limit."""

import asyncio
from collections import Counter
from pathlib import Path

import apsw
import pytest

from holdfast.core.records import Snapshot
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.fairness import OWNERS_TOGETHER, DueChat, DueOwner, OwnerRoom, Shares, asked_of, in_turn
from holdfast.store.sqlite import sql as sqlite_sql
from holdfast.system.clock import FakeClock
from tests.support.behind import sql
from tests.support.chats import Hand, new_chat

PILE = 300  # more than a claim reads, whatever its limit is here


async def pile_up(store: Store, owner: str, count: int = PILE, agent: str = "agent") -> None:
    chats = (new_chat(id=f"{agent}-{owner}-{n}", owner=owner, agent=agent) for n in range(count))
    for some in iter(lambda: [chat for _, chat in zip(range(100), chats, strict=False)], []):
        await asyncio.gather(*map(store.create_chat, some))


class Slots:
    """A worker's: what it holds counts in its next claim, as it does in a real one."""

    def __init__(self, store: Store, chats_max: int | None = None) -> None:
        self.hand = Hand(store)
        self.store = store
        self.chats_max = chats_max
        self.held: Counter[str] = Counter()

    async def claim(self, limit: int, *agents: str) -> list[str]:
        shares = Shares(held=self.held, chats_max=self.chats_max)
        rooms = dict.fromkeys(agents or ("agent",), limit)
        found: list[Snapshot] = await self.store.claim_chats(self.hand.name, rooms, limit, None, shares)
        self.held.update(snapshot.chat.owner for snapshot in found)
        return [snapshot.chat.owner for snapshot in found]


async def test_an_owner_with_one_chat_waits_for_one_slot_behind_anothers_pile(store: Store, clock: FakeClock) -> None:
    await pile_up(store, "big")
    clock.advance(1_000)
    small = [f"small-{n}" for n in range(10)]
    for owner in small:
        await pile_up(store, owner, 1)
    slots = Slots(store)
    taken = [owner for _ in range(11) for owner in await slots.claim(1)]
    assert taken[0] == "big", "it waited longest"
    assert taken[1:] == small, "by the time since when they wait"
    assert await slots.claim(1) == ["big"], "which has the rest for itself"


async def test_one_claim_of_many_takes_a_chat_of_each_owner(store: Store, clock: FakeClock) -> None:
    await pile_up(store, "big")
    clock.advance(1_000)
    for n in range(10):
        await pile_up(store, f"small-{n}", 1)
    taken = Counter(await Slots(store).claim(50))
    assert taken == {"big": 40} | {f"small-{n}": 1 for n in range(10)}


async def test_who_is_alone_has_every_slot(store: Store) -> None:
    await pile_up(store, "")
    assert await Slots(store).claim(100) == [""] * 100


async def test_all_slots_busy_with_one_owner_the_next_free_one_goes_to_the_other(
    store: Store, clock: FakeClock
) -> None:
    slots = Slots(store)
    await pile_up(store, "big")
    assert await slots.claim(20) == ["big"] * 20
    await pile_up(store, "small", 3)
    slots.held["big"] -= 1
    assert await slots.claim(1) == ["small"]
    slots.held["big"] -= 1
    assert await slots.claim(1) == ["small"]


async def test_an_owner_at_its_limit_is_passed_over_however_long_its_pile(store: Store, clock: FakeClock) -> None:
    await pile_up(store, "big")
    clock.advance(1_000)
    await pile_up(store, "small", 5)
    slots = Slots(store, chats_max=2)
    assert sorted(await slots.claim(50)) == ["big", "big", "small", "small"]
    assert await slots.claim(50) == []
    slots.held["small"] -= 1
    assert await slots.claim(50) == ["small"]
    slots.held["big"] -= 1
    assert await slots.claim(50) == ["big"]


async def test_owners_at_their_limit_hide_none_behind_them(store: Store, clock: FakeClock) -> None:
    """More of them than a claim looks at together."""
    full = [f"full-{n:03}" for n in range(OWNERS_TOGETHER + 8)]
    for owner in full:
        await pile_up(store, owner, 3)
    clock.advance(1_000)
    await pile_up(store, "zoe", 1)
    slots = Slots(store, chats_max=1)
    slots.held.update(full)
    assert await slots.claim(1) == ["zoe"]


async def test_no_owner_of_very_many_is_left_out(store: Store, clock: FakeClock) -> None:
    """One with a pile that is older than all, and more than a claim looks at together."""
    await pile_up(store, "a pile")
    clock.advance(1_000)
    small = {f"owner-{n:03}" for n in range(4 * OWNERS_TOGETHER)}
    for owner in small:
        await pile_up(store, owner, 1)
    slots = Slots(store)
    taken = [owner for _ in range(len(small) + 1) for owner in await slots.claim(1)]
    assert set(taken) == small | {"a pile"}


async def test_where_nothing_piles_up_the_oldest_comes_first_whoever_it_belongs_to(
    store: Store, clock: FakeClock
) -> None:
    owners = ["nina", "ada", "zoe", "", "ada", "mia"]
    for n, owner in enumerate(owners):
        await store.create_chat(new_chat(id=f"c{n}", owner=owner))
        clock.advance(10)
    hand = Hand(store)
    claimed = await hand.claim(limit=10)
    assert [snapshot.chat.id for snapshot in claimed] == ["c0", "c1", "c2", "c3", "c5", "c4"]


async def test_timers_that_come_due_together_hide_no_other_owners_timer(store: Store, clock: FakeClock) -> None:
    hand = Hand(store)
    await pile_up(store, "big", 40)
    await pile_up(store, "late", 1)
    await pile_up(store, "small", 1)
    for snapshot in await hand.claim(limit=100):
        hand.snapshot = snapshot
        seconds = {"big": 1, "small": 2, "late": 3600}[snapshot.chat.owner]
        await hand.park_for_client("k1", expires_at=clock.wall_ms() + seconds * 1_000)
    clock.advance(5_000)
    slots = Slots(store)
    assert sorted(await slots.claim(5)) == ["big", "big", "big", "big", "small"]


async def test_owners_of_any_name_get_their_turn(store: Store, clock: FakeClock) -> None:
    await pile_up(store, "m")
    clock.advance(1_000)
    names = [
        "",
        " ",
        "%",
        "_",
        "'",
        '"; --',
        "\\",
        "ä",
        "Ä",
        "a",
        "A",
        "日本",
        "\U0001f600",
        "\x01",
        "~" * 500,
        "null",
    ]
    for n, owner in enumerate(names):
        await store.create_chat(new_chat(id=f"odd-{n}", owner=owner))
    slots = Slots(store)
    taken = [owner for _ in range(len(names) + 1) for owner in await slots.claim(1)]
    assert sorted(taken) == sorted([*names, "m"])


async def test_an_owner_has_one_share_over_all_its_agents(store: Store, clock: FakeClock) -> None:
    for agent in ("a", "b", "c"):
        await pile_up(store, "big", 30, agent)
    clock.advance(1_000)
    await pile_up(store, "small", 2, "a")
    taken = Counter(await Slots(store).claim(4, "a", "b", "c"))
    assert taken == {"big": 2, "small": 2}


async def test_two_workers_that_claim_at_once_take_each_chat_once_and_leave_no_owner_out(
    store: Store, clock: FakeClock
) -> None:
    await pile_up(store, "big", 100)
    clock.advance(1_000)
    for n in range(10):
        await pile_up(store, f"small-{n}", 1)
    workers = [Slots(store), Slots(store)]
    taken: Counter[str] = Counter()
    while found := [owner for owners in await asyncio.gather(*(one.claim(3) for one in workers)) for owner in owners]:
        taken.update(found)
    assert taken == {"big": 100} | {f"small-{n}": 1 for n in range(10)}


@pytest.mark.parametrize("statement", ["OWNERS_READY", "OWNERS_TIMED"])
async def test_the_walk_over_the_owners_reads_one_index_entry_for_each(tmp_path: Path, statement: str) -> None:
    """Counted as steps of SQLite's machine: ten thousand chats of one owner cost no more than ten."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with open_store(url) as store:
        await pile_up(store, "big", 10)
        await pile_up(store, "small", 10)
    if statement == "OWNERS_TIMED":
        sql(url, "UPDATE chats SET state = 'waiting'")
    values = {"agent": "agent", "now": 2**60, "after": None, "together": 10}
    few = sqlite_steps(url, getattr(sqlite_sql, statement), values)
    columns = [row[0] for row in sql(url, "SELECT name FROM pragma_table_info('chats')")]
    others = ", ".join(name for name in columns if name != "id")
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10000)"
    sql(url, f"{numbers} INSERT INTO chats (id, {others}) SELECT 'more-' || n, {others} FROM chats, n LIMIT 10000")
    assert sqlite_steps(url, getattr(sqlite_sql, statement), values) <= few + 50


def sqlite_steps(url: str, statement: str, values: dict[str, object]) -> int:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(count, 1)
    found = connection.execute(statement, values).fetchall()
    connection.close()
    assert {row[2] for row in found} == {"big", "small"}
    return steps


def chat(at: int, owner: str, agent: str = "agent") -> DueChat:
    return DueChat(at, f"{owner}-{agent}-{at}", agent, owner)


def test_chats_that_a_worker_drives_count_as_turns_that_were_taken() -> None:
    due = [chat(1, "a"), chat(2, "a"), chat(3, "b"), chat(4, "b")]
    assert [found.at for found in in_turn(due, Shares())] == [1, 3, 2, 4]
    assert [found.at for found in in_turn(due, Shares(held={"a": 1}))] == [3, 1, 4, 2]
    assert [found.at for found in in_turn([*due, *due], Shares(held={"a": 5}))] == [3, 4, 1, 2]


def test_what_is_in_hand_already_is_not_asked_for() -> None:
    found = [chat(n, "a") for n in range(4)]
    assert asked_of([DueOwner(0, "agent", "a")], found, 4, Shares()) == []
    asked = asked_of([DueOwner(0, "agent", "a"), DueOwner(9, "agent", "b")], found, 4, Shares())
    assert asked == [OwnerRoom("agent", "b", 2)]
    assert asked_of([DueOwner(9, "agent", "b")], found, 4, Shares(held={"b": 2}, chats_max=2)) == []
