"""Feeds: one look at the store and one encoding for all readers of a chat, and no reader's place is ever guessed."""

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import Agent, App
from holdfast.core import commands as cmd
from holdfast.errors import NotFound, WrongCursor
from holdfast.server import feeds as feeds_module
from holdfast.server import frames as frames_module
from holdfast.server import shared_pages
from holdfast.server.feeds import FeedReader, Feeds
from holdfast.server.frames import Frame
from holdfast.server.http import http_app
from holdfast.server.shared_pages import IN_HAND_BYTES_MAX
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import PAGE_BYTES, Item, StoreOptions
from holdfast.testing import ScriptedModel
from tests.server.test_intruders import Reader
from tests.support.chats import new_chat, user
from tests.support.proxy import TcpProxy
from tests.support.waiting import until

WAIT_S = 20.0


def reader_of(store: Store, feeds: Feeds, after: str | None = None) -> FeedReader:
    return FeedReader(store, feeds, "c1", after)


async def take(reader: FeedReader, count: int) -> list[Frame]:
    """So many frames with something in them."""
    found: list[Frame] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found.extend(frame for frame in await reader.next() if frame.data)
    assert len(found) == count
    return found


async def rename(store: Store, *titles: str) -> None:
    for title in titles:
        await store.submit("c1", cmd.Rename(title=title))


def titles_in(frames: Sequence[Frame]) -> list[str]:
    return [frame.data.decode().rpartition('"title":"')[2].partition('"')[0] for frame in frames]


async def joined(store: Store, feeds: Feeds, count: int) -> list[FeedReader]:
    """Readers that have seen everything there is and wait for more."""
    readers = [reader_of(store, feeds) for _ in range(count)]
    for reader in readers:
        await take(reader, 1)
        await look_in_vain(reader)
    return readers


async def look_in_vain(reader: FeedReader) -> None:
    """As a stream does between two heartbeats: it has seen everything, and finds itself a place to wait."""
    looking = asyncio.ensure_future(reader.next())
    await until(lambda: looking.done() or reader._feed is not None, WAIT_S)
    assert not looking.done()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking


async def test_readers_at_the_same_place_share_the_very_same_bytes(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    readers = await joined(store, feeds, 5)
    assert feeds.figures()["feeds"] == 1
    await rename(store, "one")
    frames = [(await take(reader, 1))[0] for reader in readers]
    assert len({id(frame.data) for frame in frames}) == 1


async def test_what_readers_get_together_is_encoded_once_and_joined_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings: Counter[str] = Counter()
    encoded = frames_module.encoded

    def counted(item: Item) -> bytes:
        encodings[item.cursor] += 1
        return encoded(item)

    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    readers = await joined(store, feeds, 10)
    monkeypatch.setattr(frames_module, "encoded", counted)
    await rename(store, "one", "two")
    feed = readers[0]._feed
    assert feed is not None
    await until(lambda: feed.end >= 2, WAIT_S)
    async with asyncio.timeout(WAIT_S):
        pieces = [list((await reader.next()).pieces()) for reader in readers]
    assert pieces == [pieces[0]] * 10
    assert len({id(piece) for (piece,) in pieces}) == 1
    assert list(encodings.values()) == [1, 1]
    for reader in readers:
        reader.close()
    assert {name: value for name, value in feeds.figures().items() if value} == {
        "pages_in_hand_bytes_max": IN_HAND_BYTES_MAX
    }


async def test_what_a_feed_has_dropped_it_does_not_hold(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "RING_BYTES", 10_000)
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    (reader,) = await joined(store, feeds, 1)
    feed = reader._feed
    assert feed is not None
    await rename(store, "one")
    await take(reader, 1)
    await store.submit("c1", cmd.Send(message=user("k" * 20_000, id="m1")))
    await until(lambda: feed.bytes == 0, WAIT_S)
    assert feed._last is None
    reader.close()


@pytest.mark.parametrize("query", ["follow=true", "follow=true&whole_turn=true&live=true&render=html"])
async def test_readers_that_wait_hold_nothing_of_what_they_were_told(
    store_url: str, tmp_path: Path, query: str
) -> None:
    """A large message was held by each of them for as long as nothing else happened, and by no figure."""
    size = 300_000
    async with App(store_url, [Agent("a", ScriptedModel("Done."))], home=str(tmp_path)) as app, app.worker():
        chat = await app.create("a", "k" * size)
        await chat.turn()
        api = http_app(app, token="t" * 40)
        readers = [Reader(api, f"/api/chats/{chat.id}/events", "t" * 40, query) for _ in range(3)]
        for reader in readers:
            await reader.until("event: turn.ended")
        await until(lambda: not [one for one in gc.get_objects() if type(one) is Frame and one.bytes > size], WAIT_S)
        for reader in readers:
            reader.answer.cancel()
        await asyncio.wait([reader.answer for reader in readers])


async def test_a_reader_ahead_of_the_feed_does_not_join_it(store: Store) -> None:
    """A feed that stands still at the beginning: whoever took its end for the reader's place would wait for ever."""
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    feeds.enter("c1", (await store.read_journal("c1", limit=0)).cursor).close()
    await rename(store, "one")
    reader = reader_of(store, feeds)
    await take(reader, 2)
    await look_in_vain(reader)
    await rename(store, "two")
    assert titles_in(await take(reader, 1)) == ["two"]
    reader.close()


async def test_a_reader_that_falls_off_the_ring_reads_from_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds_module, "RING_FRAMES", 3)
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    slow, quick = await joined(store, feeds, 2)
    words = [f"t{n}" for n in range(20)]
    told = []
    for word in words:
        await rename(store, word)
        told += await take(quick, 1)
    assert titles_in(told) == words
    assert titles_in(await take(slow, 20)) == words
    await rename(store, "last")
    assert titles_in(await take(slow, 1) + await take(quick, 1)) == ["last", "last"]
    slow.close()
    quick.close()


async def test_readers_of_a_deleted_chat_are_told(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    (reader,) = await joined(store, feeds, 1)
    await store.delete_chat("c1")
    store.bell.ring(["c1"])
    with pytest.raises(NotFound):
        await take(reader, 1)
    reader.close()


async def test_a_reader_of_a_chat_whose_id_is_used_again_hears_nothing_of_the_new_one(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    (reader,) = await joined(store, feeds, 1)
    await store.delete_chat("c1")
    await store.create_chat(new_chat("hello", id="c1"))
    store.bell.ring(["c1"])
    with pytest.raises((NotFound, WrongCursor)):
        await take(reader, 1)
    reader.close()


async def test_a_reader_is_told_once_that_the_chat_rests_and_hears_of_the_next_turn(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    feeds = Feeds(store)
    reader = reader_of(store, feeds)
    assert [frame.rest for frame in await reader.next()] == [True]
    waiting = asyncio.ensure_future(reader.next())
    await store.submit("c1", cmd.Send(message=user("hello")))
    frames = await asyncio.wait_for(waiting, WAIT_S)
    assert not any(frame.rest for frame in frames)
    reader.close()


async def test_a_reader_that_is_catching_up_waits_for_a_store_that_is_away(
    postgres_url: str, postgres_proxy_url: str, postgres_proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that hear a feed do. If their streams broke off instead, all would come back in the same moment."""
    bided, bide = asyncio.Event(), feeds_module._bide

    async def tell() -> None:
        bided.set()
        await bide()

    monkeypatch.setattr(feeds_module, "RETRY_S", 0.05)
    monkeypatch.setattr(feeds_module, "_bide", tell)
    async with open_store(postgres_url) as writer:
        await writer.create_chat(new_chat(None, id="c1"))
        await rename(writer, "one", "two")
    store = open_store(postgres_proxy_url, StoreOptions(deadline_s=1.0))
    await store.open(WAIT_S)  # patiently: its deadline is short for what follows
    async with store:
        reader = reader_of(store, Feeds(store))
        postgres_proxy.refuse()
        waiting = asyncio.ensure_future(take(reader, 3))
        await asyncio.wait_for(bided.wait(), WAIT_S)  # the store gave up, the reader did not
        postgres_proxy.forward()
        assert titles_in(await waiting)[1:] == ["one", "two"]
        reader.close()


async def test_readers_who_catch_up_at_the_same_place_share_what_they_read(store: Store) -> None:
    """A chat of large messages: each page is in memory once, however many readers have it in hand."""
    await store.create_chat(new_chat("x" * (2 << 20), id="c1"))
    feeds = Feeds(store)
    readers = [reader_of(store, feeds) for _ in range(20)]
    async with asyncio.timeout(WAIT_S):
        pages = await asyncio.gather(*(reader.next() for reader in readers))
    assert len({id(frame) for frames in pages for frame in frames}) == len(pages[0])
    assert 0 < feeds.figures()["pages_in_hand_bytes"] < 5 << 20
    for reader in readers:
        reader.close()
    assert feeds.figures()["pages_in_hand_bytes"] == 0


async def test_a_reader_of_a_large_page_waits_for_room_and_one_of_a_small_page_does_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_pages, "IN_HAND_BYTES_MAX", 3 << 20)
    large, small = new_chat("x" * (2 << 20), id="c1"), new_chat("hello", id="c2")
    for chat in (large, small):
        await store.create_chat(chat)
    feeds = Feeds(store)
    holder = reader_of(store, feeds)
    first = await holder.next()
    second = FeedReader(store, feeds, "c1", first[0].cursor)  # another place: not the page that the holder has
    async with asyncio.timeout(WAIT_S):
        waiting = asyncio.ensure_future(second.next())
        reader = FeedReader(store, feeds, "c2", None)
        assert await reader.next()
        await until(lambda: feeds.pages._waiting > 0, WAIT_S)
        assert not waiting.done()
        holder.close()
        assert [frame.cursor for frame in await waiting] == [frame.cursor for frame in first[1:]]
    for one in (second, reader):
        one.close()


async def test_a_page_that_others_hold_says_nothing_of_a_rest_that_is_over(store: Store) -> None:
    """Its last item reaches the size of a page and is the journal's last. Whoever took it from another's hand later
    was told that the chat rests, and its stream ended in the midst of the next turn.
    """
    await store.create_chat(replace(new_chat(None, id="c1"), past=(user("x" * PAGE_BYTES),)))
    feeds = Feeds(store)
    slow, late = reader_of(store, feeds), reader_of(store, feeds)
    held = [*await slow.next()]
    await store.submit("c1", cmd.Send(message=user("hello")))
    frames = [*await late.next()]
    assert frames[0].data is held[0].data
    assert not any(frame.rest for frame in frames)
    assert b"hello" in b"".join(frame.data for frame in await take(late, 2))
    slow.close()
    late.close()


async def test_a_page_that_others_hold_is_not_another_chats_whose_id_is_used_again(store: Store) -> None:
    await store.create_chat(replace(new_chat(None, id="c1"), past=(user("x" * PAGE_BYTES),)))
    await rename(store, "old")
    feeds = Feeds(store)
    slow, late = reader_of(store, feeds), reader_of(store, feeds)
    await slow.next()
    await store.delete_chat("c1")
    await store.create_chat(new_chat(None, id="c1", agent="another"))
    assert b"another" in (await take(late, 1))[0].data
    slow.close()
    late.close()
