"""A reader's way through a chat, on both stores."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from holdfast.core import commands as cmd
from holdfast.core.codec import encode
from holdfast.core.journal import Delta, TurnStarted
from holdfast.core.updates import Happened, Restarted, TextAdded, Update
from holdfast.errors import StoreUnavailable, WrongCursor
from holdfast.store.contract import Store
from holdfast.store.records import PAGE_ROWS, DeltaBatch
from holdfast.store.update_reader import UpdateReader
from tests.support.chats import Hand, call, new_chat, user


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
    """A store to which something happens right after one of its verbs was called for the n-th time."""

    def __init__(
        self, store: Store, happens: Callable[[], Awaitable[None]], verb: str = "read_journal", n: int = 1
    ) -> None:
        self._store = store
        self._happens = happens
        self._verb = verb
        self._calls_left = n

    def __getattr__(self, name: str) -> Any:
        return self._called if name == self._verb else getattr(self._store, name)

    async def _called(self, *asked: Any, **options: Any) -> Any:
        found = await getattr(self._store, self._verb)(*asked, **options)
        self._calls_left -= 1
        if self._calls_left == 0:
            await self._happens()
        return found


async def test_a_cursor_is_refused_also_where_its_chat_is_made_anew_while_the_reader_begins(store: Store) -> None:
    await (await filled(store, "c1", upto=6)).end_turn()
    cursors = [update.cursor for update in await to_the_end(store, "c1")]

    async def made_anew() -> None:
        await store.delete_chat("c1")
        await (await filled(store, "c1", upto=9)).end_turn()

    reader = UpdateReader(cast("Store", Meanwhile(store, made_anew)), "c1", cursors[3])
    with pytest.raises(WrongCursor):
        await reader.next(0.0)


@pytest.mark.parametrize("verb", ["read_chat", "read_history"])
async def test_who_begins_to_read_a_chat_that_is_made_anew_meanwhile_is_told_its_turn_from_the_start(
    store: Store, verb: str
) -> None:
    """Longer before, so that its place is behind the new one's end; and shorter, so that it is in the midst of it."""
    for before, after in ((40, 9), (6, 40)):
        hand = await filled(store, "c1", upto=before)
        await hand.end_turn()
        await store.submit("c1", cmd.Send(message=user("m2")))
        await hand.take("c1")
        await hand.end_turn("of the first life")

        async def made_anew(lines: int = after) -> None:
            await store.delete_chat("c1")
            await (await filled(store, "c1", upto=lines)).end_turn("of the second life")

        reader = UpdateReader(cast("Store", Meanwhile(store, made_anew, verb)), "c1")
        found = (await reader.next(0.0)).found
        assert isinstance(found[0], Happened)
        assert found[0].entry == TurnStarted(turn=1)
        assert found[-1].turn.text == "of the second life"
        await store.delete_chat("c1")


async def test_a_reader_whose_store_fails_while_it_comes_back_goes_on_with_the_turn_as_it_is(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.respond("It rains. ", call("k1"))
    await hand.commit(*[cmd.Note(by=hand.by, topic="t", text=str(n)) for n in range(PAGE_ROWS)])
    reader = UpdateReader(store, "c1")
    cursor = [*(await reader.next(0.0)).found, *(await reader.next(0.0)).found][-1].cursor

    async def fails() -> None:
        raise StoreUnavailable("away")

    reader = UpdateReader(cast("Store", Meanwhile(store, fails, n=3)), "c1", cursor)
    with pytest.raises(StoreUnavailable):  # in the middle of what it reads again
        await reader.next(0.0)
    await hand.commit(cmd.Note(by=hand.by, topic="t"))
    (noted,) = (await reader.next(0.0)).found
    assert (noted.turn.text, noted.turn.usage.responses) == ("It rains. ", 1)
    assert [call.id for call in noted.turn.calls] == ["k1"]
