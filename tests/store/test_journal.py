"""The journal as readers see it: every event once, in order, from any cursor, while it is being written."""

import asyncio
import base64
import random

import pytest
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_delta, decode_entry, encode
from holdfast.core.journal import ChatHandedOver, Delta, MessageAdded, PreviewReset
from holdfast.core.records import attempt_id
from holdfast.errors import WrongCursor
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.cursor import _MAX, parse
from holdfast.store.records import DeltaBatch, Item
from tests.support.behind import sql
from tests.support.chats import Hand, assistant, call, new_chat, user


def batch(hand: Hand, attempt: int, first_k: int, *pieces: str) -> DeltaBatch:
    return DeltaBatch(
        chat=hand.held.chat,
        attempt=attempt,
        first_k=first_k,
        bodies=tuple(encode(Delta(part="text", text=piece)) for piece in pieces),
    )


def streamed(items: tuple[Item, ...]) -> str:
    return "".join(decode_delta(item.body).text for item in items if item.attempt is not None)


async def claimed(store: Store, chat_id: str = "c1") -> Hand:
    await store.create_chat(new_chat("hello", id=chat_id))
    hand = Hand(store)
    await hand.take(chat_id)
    return hand


async def test_a_reader_of_pages_sees_every_entry_once_and_in_order(store: Store) -> None:
    hand = await claimed(store)
    for n in range(10):
        await hand.respond(f"step {n}", call(f"k{n}"))
        await hand.finish(f"k{n}")
    whole = (await store.read_journal("c1", limit=1_000)).items
    assert [item.seq for item in whole] == list(range(1, len(whole) + 1))
    seen: list[Item] = []
    after = None
    while True:
        page = await store.read_journal("c1", after, limit=3)
        seen += page.items
        after = page.cursor
        if not page.more:
            break
    assert tuple(seen) == whole


async def test_any_items_cursor_resumes_right_behind_it(store: Store) -> None:
    hand = await claimed(store)
    await store.add_deltas([batch(hand, attempt_id(1, 1), 0, "a", "b", "c")])
    whole = (await store.read_journal("c1")).items
    for n, item in enumerate(whole):
        rest = await store.read_journal("c1", item.cursor)
        assert [(i.seq, i.attempt, i.k) for i in rest.items] == [(i.seq, i.attempt, i.k) for i in whole[n + 1 :]]


async def test_deltas_are_seen_while_their_attempt_is_open(store: Store) -> None:
    hand = await claimed(store)
    attempt = attempt_id(1, 1)
    await store.add_deltas([batch(hand, attempt, 0, "Hel", "lo")])
    page = await store.read_journal("c1")
    assert streamed(page.items) == "Hello"
    await store.add_deltas([batch(hand, attempt, 2, ", world")])
    page = await store.read_journal("c1", page.cursor)
    assert streamed(page.items) == ", world"


async def test_the_committed_message_replaces_the_deltas_a_reader_has_not_seen(store: Store) -> None:
    hand = await claimed(store)
    attempt = attempt_id(1, 1)
    await store.add_deltas([batch(hand, attempt, 0, "Hel")])
    page = await store.read_journal("c1")
    await store.add_deltas([batch(hand, attempt, 1, "lo")])
    await hand.respond("Hello")
    late = await store.read_journal("c1", page.cursor)
    assert streamed(late.items) == ""
    entry = decode_entry(late.items[0].body)
    assert isinstance(entry, MessageAdded)
    assert entry.attempt == attempt, "marked: it replaces what was streamed of this attempt"
    assert await store.read_deltas("c1", attempt) == []


async def test_a_repeated_flush_changes_nothing(store: Store) -> None:
    hand = await claimed(store)
    flush = [batch(hand, attempt_id(1, 1), 0, "a", "b")]
    assert await store.add_deltas(flush) == ()
    assert await store.add_deltas(flush) == ()
    assert streamed((await store.read_journal("c1")).items) == "ab"


async def test_deltas_behind_a_gap_are_refused(store: Store) -> None:
    """Their writer believes in a flush that a restored backup, or a standby, has lost."""
    hand = await claimed(store)
    attempt = attempt_id(1, 1)
    assert await store.add_deltas([batch(hand, attempt, 1, "no")]) == ("c1",)
    assert await store.add_deltas([batch(hand, attempt, 0, "a", "b")]) == ()
    assert await store.add_deltas([batch(hand, attempt, 3, "no")]) == ("c1",)
    assert await store.add_deltas([batch(hand, attempt, 1, "never again", "c")]) == ()
    assert streamed((await store.read_journal("c1")).items) == "abc"


async def test_readers_are_told_nothing_behind_a_gap_and_do_not_look_for_it_again_and_again(
    store: Store, store_url: str
) -> None:
    hand = await claimed(store)
    await store.add_deltas([batch(hand, attempt_id(1, 1), 0, "Do ", "not ", "press ", "it.")])
    sql(store_url, "DELETE FROM deltas WHERE k = 1")
    page = await store.read_journal("c1")
    assert streamed(page.items) == "Do "
    page = await store.read_journal("c1", page.cursor, limit=2)
    assert (page.items, page.more) == ((), False)
    await hand.respond("Do not press it.")
    late = await store.read_journal("c1", page.cursor)
    assert isinstance(decode_entry(late.items[0].body), MessageAdded)


async def test_a_stale_writers_deltas_are_refused_and_other_chats_are_not_disturbed(store: Store) -> None:
    stale, fresh = await claimed(store, "c1"), await claimed(store, "c2")
    good = batch(fresh, attempt_id(1, 1), 0, "good")
    bad = batch(stale, attempt_id(1, 1), 0, "bad")
    bad = replace(bad, chat=replace(bad.chat, worker="somebody else"))
    assert await store.add_deltas([bad, good]) == ("c1",)
    assert streamed((await store.read_journal("c1")).items) == ""
    assert streamed((await store.read_journal("c2")).items) == "good"
    assert await store.read_deltas("c1", attempt_id(1, 1)) == []
    stale.close()


async def test_deltas_of_an_attempt_that_ended_are_refused(store: Store) -> None:
    hand = await claimed(store)
    flush = batch(hand, attempt_id(1, 1), 0, "late")
    await hand.respond("done")
    assert await store.add_deltas([flush]) == ("c1",)
    assert await store.read_deltas("c1", attempt_id(1, 1)) == []


async def test_after_a_crash_the_preview_is_reset_and_the_partial_text_stays_on_record(store: Store) -> None:
    hand = await claimed(store)
    attempt = attempt_id(1, 1)
    await store.add_deltas([batch(hand, attempt, 0, "half an ans")])
    page = await store.read_journal("c1")
    await hand.dies()
    page = await store.read_journal("c1", page.cursor)
    lost, reset = (decode_entry(item.body) for item in page.items)
    assert isinstance(lost, ChatHandedOver)
    assert lost.heard_at is not None, "the lease's last renewal"
    assert isinstance(reset, PreviewReset)
    assert reset.attempt >= attempt
    assert streamed((await store.read_journal("c1")).items) == "", "a new reader is not shown what is void"
    kept = await store.read_deltas("c1", attempt)
    assert [decode_delta(row.body).text for row in kept] == ["half an ans"]


async def test_after_a_stop_and_a_crash_the_preview_stays_until_the_successor_commits_it(store: Store) -> None:
    hand = await claimed(store)
    await store.add_deltas([batch(hand, attempt_id(1, 1), 0, "half an ans")])
    await store.submit("c1", cmd.Stop())
    await hand.dies()
    assert streamed((await store.read_journal("c1")).items) == "half an ans"


async def test_waiting_for_more_ends_with_the_next_event(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    after = (await store.read_journal("c1")).cursor
    waiting = asyncio.ensure_future(store.wait_journal("c1", after, deadline_s=30))
    await asyncio.sleep(0)
    await store.submit("c1", cmd.Send(message=user("hello")))
    page = await waiting
    assert page.items


async def test_waiting_is_bounded_by_its_deadline(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    after = (await store.read_journal("c1")).cursor
    page = await store.wait_journal("c1", after, deadline_s=0.05)
    assert page.items == ()
    assert page.cursor == after
    assert page.at_rest


async def test_what_another_process_writes_is_seen_by_those_who_wait(store: Store, store_url: str) -> None:
    """Another store on the same database stands for another process: nothing is shared between the two."""
    await store.create_chat(new_chat(None, id="c1"))
    after = (await store.read_journal("c1")).cursor
    waiting = asyncio.ensure_future(store.wait_journal("c1", after, deadline_s=30))
    await asyncio.sleep(0)
    async with open_store(store_url) as other:
        await other.submit("c1", cmd.Send(message=user("from elsewhere")))
        assert (await waiting).items


@pytest.mark.parametrize("bad", ["x", "MQ", "!!!", "é", "MS4xLjIuMy40", "a" * 10_000, "LTEuMS4xLjE"])
async def test_a_cursor_that_is_none_is_refused_by_name(store: Store, bad: str) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    with pytest.raises(WrongCursor, match="cursor"):
        await store.read_journal("c1", bad)


async def test_many_readers_follow_a_chat_while_it_is_written(store: Store) -> None:
    """Readers that drop out at random and resume see every entry once, and rebuild exactly what was said."""
    hand = await claimed(store)
    steps = 12
    rng = random.Random(7)

    async def write() -> None:
        for n in range(steps):
            attempt = attempt_id(1, n + 1)
            for k in range(3):
                await store.add_deltas([batch(hand, attempt, k, f"{n}.{k} ")])
            await hand.respond(f"step {n}", call(f"k{n}"))
            await hand.finish(f"k{n}")
        await hand.end_turn("done")

    async def read() -> list[int]:
        seen: list[int] = []
        after = None
        while True:
            page = await store.wait_journal("c1", after, deadline_s=30)
            keep = rng.randint(1, max(1, len(page.items)))
            for item in page.items[:keep]:  # the rest is lost with the connection
                if item.seq is not None:
                    seen.append(item.seq)
                after = item.cursor
            if page.at_rest and keep == len(page.items):
                return seen

    *readers, _ = await asyncio.gather(*(read() for _ in range(8)), write())
    expected = list(range(1, (await store.read_chat("c1")).chat.seq + 1))
    assert all(seen == expected for seen in readers)


@pytest.mark.parametrize("ahead", [{"seq": 3}, {"attempt": attempt_id(1, 1), "k": 0}], ids=["entry", "delta"])
async def test_a_cursor_that_is_ahead_of_its_chat_is_refused(store: Store, ahead: dict[str, int]) -> None:
    """Whoever waited behind it would miss what comes before, and who shares its feed would find nothing there."""
    await store.create_chat(new_chat(None, id="c1"))
    await store.submit("c1", cmd.Rename(title="one"))
    end = (await store.read_journal("c1")).cursor
    cursor = str(replace(parse(end), **ahead))
    with pytest.raises(WrongCursor, match="ahead of this chat"):
        await store.read_journal("c1", cursor)
    with pytest.raises(WrongCursor, match="ahead of this chat"):
        await store.wait_journal("c1", cursor, 5.0)
    assert (await store.read_journal("c1", end)).items == ()


async def told_of(store: Store, chat_id: str) -> list[str]:
    """Every place that a reader of the chat is ever given."""
    page = await store.read_journal(chat_id)
    return [*(item.cursor for item in page.items), page.cursor]


async def test_a_cursor_of_another_chat_is_refused_also_where_it_would_fit(store: Store) -> None:
    """Both chats have come equally far: read by its numbers alone, it would silently mean another place."""
    for chat_id in ("c1", "c2"):
        await store.create_chat(new_chat("hello", id=chat_id))
    for cursor in await told_of(store, "c1"):
        with pytest.raises(WrongCursor, match="another chat's"):
            await store.read_journal("c2", cursor)
        with pytest.raises(WrongCursor, match="another chat's"):
            await store.wait_journal("c2", cursor, 5.0)


async def test_a_fork_does_not_take_its_parents_cursors(store: Store) -> None:
    """It holds the same history under other numbers."""
    await store.create_chat(replace(new_chat(None, id="c1"), past=(user("hello"), assistant("hi"))))
    await store.fork_chat("c1", "c2")
    for one, other in (("c1", "c2"), ("c2", "c1")):
        for cursor in await told_of(store, one):
            with pytest.raises(WrongCursor, match="another chat's"):
                await store.read_journal(other, cursor)


async def test_an_id_that_is_used_again_does_not_bring_old_cursors_back(store: Store) -> None:
    """Not even in the same millisecond."""
    await store.create_chat(new_chat(None, id="c1"))
    before = await told_of(store, "c1")
    await store.delete_chat("c1")
    await store.create_chat(new_chat(None, id="c1"))
    for cursor in before:
        with pytest.raises(WrongCursor, match="another chat's"):
            await store.read_journal("c1", cursor)
    assert (await store.read_journal("c1", (await told_of(store, "c1"))[-1])).items == ()


async def test_a_cursor_of_the_form_that_named_no_chat_is_refused(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    old = base64.urlsafe_b64encode(b"1.1.0.-1").decode().rstrip("=")
    with pytest.raises(WrongCursor, match="read from the beginning"):
        await store.read_journal("c1", old)


async def test_a_cursor_is_short(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c" * 200))
    cursor = parse((await store.read_journal("c" * 200)).cursor)
    long = replace(cursor, seq=100_000, attempt=attempt_id(4_000, 50), k=10_000)
    assert len(str(long)) <= 44
    assert parse(str(long)) == long
    assert parse(str(replace(cursor, seq=_MAX, attempt=_MAX, k=_MAX))).k == _MAX


@pytest.mark.parametrize("field", ["seq", "attempt", "k"])
@pytest.mark.parametrize("value", [1 << 63, -2])
async def test_a_cursor_with_a_number_that_no_store_can_hold_is_refused(store: Store, field: str, value: int) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    cursor = parse((await store.read_journal("c1")).cursor)
    with pytest.raises(WrongCursor, match="cursor"):
        await store.read_journal("c1", str(replace(cursor, **{field: value})))


async def test_a_page_ends_with_the_item_that_reaches_its_bytes(store: Store) -> None:
    """Lines and pieces of a stream alike: a chat of large messages is read in pages that are not larger than it."""
    hand = await claimed(store)
    for n in range(6):
        await hand.respond("x" * 40_000, call(f"k{n}"))
        await hand.finish(f"k{n}")
    await store.add_deltas([batch(hand, hand.attempt(), 0, *("y" * 40_000 for _ in range(6)))])
    whole = (await store.read_journal("c1", bytes_max=1 << 30)).items
    assert {item.seq is None for item in whole} == {True, False}
    seen: list[Item] = []
    after: str | None = None
    while (page := await store.read_journal("c1", after, bytes_max=100_000)).items:
        sizes = [len(item.body) for item in page.items]
        assert sum(sizes[:-1]) < 100_000
        assert page.more or sum(sizes) < 100_000
        seen += page.items
        after = page.cursor
    assert tuple(seen) == whole
    assert [len((await store.read_journal("c1", item.cursor, bytes_max=1)).items) for item in whole[:-1]] == [1] * (
        len(whole) - 1
    )


async def test_a_page_of_history_ends_with_the_message_that_reaches_its_bytes(store: Store) -> None:
    hand = await claimed(store)
    for n in range(4):
        await hand.respond("x" * 40_000, call(f"k{n}"))
        await hand.finish(f"k{n}")
    whole = await store.read_history("c1")
    found = [await store.read_history("c1", start=row.pos, bytes_max=1) for row in whole]
    assert found == [[row] for row in whole]
    assert len(await store.read_history("c1", bytes_max=50_000)) < len(whole)
    assert await store.read_history("c1", bytes_max=1 << 30) == whole
