"""Where a turn began is found by reading a part of the journal, on both stores."""

from typing import Any, cast

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import Role
from holdfast.store.contract import Store
from holdfast.store.records import Page
from holdfast.store.turn_starts import find_turn_start, started_turn
from holdfast.store.update_reader import UpdateReader
from tests.support.chats import Hand, new_chat, user

TURNS = 120
LONG, LONG_LINES = 40, 300  # one of them is longer than the others


class Counting:
    """Counts the lines that are read of a store's journals."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lines = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_journal(self, *asked: Any, **options: Any) -> Page:
        page = await self._store.read_journal(*asked, **options)
        self.lines += len(page.items)
        return page


async def lived(store: Store) -> Hand:
    """A chat of many turns, one of them long; the last one goes on."""
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    for turn in range(1, TURNS + 1):
        notes = LONG_LINES if turn == LONG else 10
        await hand.commit(*[cmd.Note(by=hand.by, topic="t", text=str(n)) for n in range(notes)])
        if turn < TURNS:
            await store.submit("c1", cmd.Send(message=user(f"next is {turn + 1}")))
            hand.snapshot = await store.read_chat("c1")
            await hand.end_turn(f"answer {turn}")
    return hand


async def starts(store: Store) -> dict[int, int]:
    page = await store.read_journal("c1", limit=10_000)
    return {turn: item.seq for item in page.items if (turn := started_turn(item)) is not None and item.seq}


async def test_every_turn_is_found_and_none_costs_a_walk_through_the_journal(store: Store) -> None:
    chat = (await lived(store)).held.chat
    known = await starts(store)
    assert list(known) == list(range(1, TURNS + 1))
    for number, seq in known.items():
        counting = Counting(store)
        assert await find_turn_start(cast("Store", counting), chat, number) == seq
        assert counting.lines < chat.seq / 2, f"{counting.lines} of {chat.seq} lines for turn {number}"
    counting = Counting(store)
    assert await find_turn_start(cast("Store", counting), chat, TURNS) == known[TURNS]
    assert counting.lines == 0, "history tells where the last one began"
    for number in (0, TURNS + 1):
        assert await find_turn_start(store, chat, number) is None


async def test_a_turn_whose_first_message_an_edit_cut_away_is_read_from_its_start(store: Store) -> None:
    hand = await lived(store)
    row = (await store.read_history("c1", start=hand.held.chat.turn_from, limit=1))[0]
    command = cmd.Edit(pos=row.pos, role=Role.USER, epoch=hand.held.chat.epoch, message=user("rather this"))
    await store.submit("c1", command)
    chat = (await store.read_chat("c1")).chat
    assert chat.length == chat.turn_from, "it is gone from history"
    assert await find_turn_start(store, chat, TURNS) == (await starts(store))[TURNS]
    told = (await UpdateReader(store, "c1").next(0.0)).found
    assert (told[0].turn.number, told[-1].turn.state) == (TURNS, "stopping")


@pytest.mark.parametrize("number", [0, 1])
async def test_a_chat_without_any_turn_has_no_start_of_one(store: Store, number: int) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    assert await find_turn_start(store, (await store.read_chat("c1")).chat, number) is None
    assert (await UpdateReader(store, "c1").next(0.0)).found == ()
