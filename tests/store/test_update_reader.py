"""A reader's way through a chat, on both stores."""

import asyncio

from holdfast.core import commands as cmd
from holdfast.core.updates import Update
from holdfast.store.contract import Store
from holdfast.store.records import PAGE_ROWS
from holdfast.store.update_reader import UpdateReader
from tests.support.chats import Hand, new_chat


async def to_the_end(store: Store, chat_id: str, after: str | None = "") -> list[Update]:
    """As `chat.stream()` reads: nothing to tell is waited for, as long as it takes."""
    reader = UpdateReader(store, chat_id, after)
    found: list[Update] = []
    async with asyncio.timeout(30.0):
        while True:
            told = await reader.next(3600.0)
            found += told.found
            if told.quiet:
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
