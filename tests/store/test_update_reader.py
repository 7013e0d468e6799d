"""A reader's way through a chat, on both stores."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from holdfast.core import commands as cmd
from holdfast.core.codec import encode
from holdfast.core.journal import Delta
from holdfast.core.updates import Restarted, TextAdded, Update
from holdfast.errors import WrongCursor
from holdfast.store.contract import Store
from holdfast.store.records import PAGE_ROWS, DeltaBatch, Page
from holdfast.store.update_reader import UpdateReader
from tests.support.chats import Hand, new_chat


async def to_the_end(store: Store, chat_id: str, after: str | None = "") -> list[Update]:
    """As `chat.stream()` reads."""
    reader = UpdateReader(store, chat_id, after)
    async with asyncio.timeout(30.0):
        told = await reader.next(0.0)
        found = list(told.found)
        while not told.quiet:
            told = await reader.next(3600.0)
            found += told.found
    return found


async def filled(store: Store, chat_id: str, *, upto: int) -> Hand:
    """A turn goes on, and its chat's journal has so many lines."""
    await store.create_chat(new_chat("hello", id=chat_id))
    hand = Hand(store)
    await hand.take(chat_id)
    missing = upto - hand.held.chat.seq
    await hand.commit(*[cmd.Note(by=hand.by, topic="t", text=str(n)) for n in range(missing)])
    return hand


async def test_a_full_page_that_ends_where_the_chat_rests_or_waits_is_the_last(store: Store) -> None:
    hand = await filled(store, "rests", upto=PAGE_ROWS - 2)
    await hand.end_turn()
    assert hand.held.chat.seq == PAGE_ROWS
    assert (await to_the_end(store, "rests"))[-1].turn.state == "done"

    hand = await filled(store, "waits", upto=PAGE_ROWS - 3)
    await hand.park_for_client("k1")
    assert hand.held.chat.seq == PAGE_ROWS
    assert [call.id for call in (await to_the_end(store, "waits"))[-1].turn.open] == ["k1"]


async def test_who_comes_back_has_the_text_so_far_in_the_turn_although_nothing_of_it_is_told_again(
    store: Store,
) -> None:
    hand = await filled(store, "c1", upto=5)
    attempt = hand.attempt()
    bodies = tuple(encode(Delta(part="text", text=piece)) for piece in ("It ", "rains"))
    await store.add_deltas([DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=bodies)])
    shown = (await UpdateReader(store, "c1").next(0.0)).found[-1]
    assert shown.turn.text == "It rains"
    elsewhere = UpdateReader(store, "c1", shown.cursor)
    assert (await elsewhere.next(0.0)).found == ()
    await hand.commit(cmd.Note(by=hand.by, topic="t"))
    (noted,) = (await elsewhere.next(0.0)).found
    assert (noted.turn.text, noted.turn.answer) == ("It rains", "It rains")


async def test_a_settled_reader_that_goes_on_for_a_live_one_takes_back_what_that_one_showed(store: Store) -> None:
    hand = await filled(store, "c1", upto=5)
    body = encode(Delta(part="text", text="It rains"))
    await store.add_deltas([DeltaBatch(chat=hand.held.chat, attempt=hand.attempt(), first_k=0, bodies=(body,))])
    live = (await UpdateReader(store, "c1").next(0.0)).found[-1]
    settled = UpdateReader(store, "c1", live.cursor, settled=True)
    assert (await settled.next(0.0)).found == ()
    await hand.end_turn("It snows")
    restarted, added, *_ = (await settled.next(0.0)).found
    assert isinstance(restarted, Restarted)
    assert isinstance(added, TextAdded)
    assert (restarted.dropped, added.text) == (len("It rains"), "It snows")


class Meanwhile:
    """A store to which something happens right after its journal was read for the first time."""

    def __init__(self, store: Store, happens: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._happens: Callable[[], Awaitable[None]] | None = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_journal(self, *asked: Any, **options: Any) -> Page:
        page = await self._store.read_journal(*asked, **options)
        if self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return page


async def test_a_cursor_is_refused_also_where_its_chat_is_made_anew_while_the_reader_begins(store: Store) -> None:
    await (await filled(store, "c1", upto=6)).end_turn()
    cursors = [update.cursor for update in await to_the_end(store, "c1")]

    async def made_anew() -> None:
        await store.delete_chat("c1")
        await (await filled(store, "c1", upto=9)).end_turn()

    reader = UpdateReader(cast("Store", Meanwhile(store, made_anew)), "c1", cursors[3])
    with pytest.raises(WrongCursor):
        await reader.next(0.0)
