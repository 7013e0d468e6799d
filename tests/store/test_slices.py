"""Large chats are forked and deleted in slices: for every reader at once, and for every other writer in between."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import External, State, Synthetic, ToolResult
from holdfast.errors import NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.postgres.large_chats import PostgresLargeChats
from holdfast.store.receipts import own_key
from holdfast.store.records import Answer, DeltaBatch, Forking, HistoryRow, Key, StoreOptions
from holdfast.store.remnants import (
    ABANDONED_MS,
    Occupied,
    Remnant,
    RemnantWatch,
    Slice,
    next_copy,
    rows_within,
)
from holdfast.system.clock import FakeClock
from tests.store.test_fork_delete import TABLES, a_long_chat, check, group_end, in_state, rows_of
from tests.support.behind import sql
from tests.support.chats import call, history, journal, new_chat, user
from tests.support.waiting import until

SMALL = Slice(rows=3, bytes=2_000)


@pytest.fixture
def store(store: Store) -> Store:
    store.large_chats.slice = SMALL
    return store


def forking(new_id: str, upto: int | None = None, source: str = "c1") -> Forking:
    return Forking(chat_id=source, new_id=new_id, upto=upto, owner=None, key=own_key(), hash="")


def said(rows: Sequence[HistoryRow]) -> list[tuple[int, str, bytes]]:
    """What a fork has of its source: all but the journal's numbers."""
    return [(row.pos, row.message_id, row.body) for row in rows]


async def is_not_there(store: Store, chat_id: str) -> None:
    assert chat_id not in [line.id for line in await store.list_chats()]
    for read in (store.read_chat, store.read_journal):
        with pytest.raises(NotFound):
            await read(chat_id)
    with pytest.raises(NotFound):
        await store.submit(chat_id, cmd.Send(message=user("are you there?")))
    with pytest.raises(NotFound):
        await store.locate_message(chat_id, "user-1")
    assert await store.read_history(chat_id) == []
    assert await store.read_compaction(chat_id) is None
    assert await store.open_calls(chat_id) == []
    assert (await store.find_violations(), await store.find_torn()) == ([], [])


def remnants(url: str) -> list[str]:
    return [id for (id,) in sql(url, "SELECT chat_id FROM remnants ORDER BY chat_id")]


async def test_a_fork_in_slices_is_the_history_up_to_any_position_byte_for_byte(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    source = await store.read_history("c1")
    for upto in range(len(source)):
        answer = await store.fork_chat("c1", f"fork-{upto}", upto=upto)
        fork = await store.read_history(f"fork-{upto}")
        assert said(fork) == said(source[: group_end(source, upto)])
        assert [row.seq for row in fork] == [row.pos + 2 for row in fork]
        assert answer.seq == len(fork) + 1
        await check(store, f"fork-{upto}")
    whole = await store.fork_chat("c1", "whole")
    assert said(await store.read_history("whole")) == said(source)
    store.large_chats.slice = type(store.large_chats).slice
    assert (await store.fork_chat("c1", "at-once")).seq == whole.seq
    assert await store.read_compaction("whole") == await store.read_compaction("at-once") is not None
    assert remnants(store_url) == []
    await store.submit("whole", cmd.Send(message=user("and on it goes")))
    await hand.take("whole")
    await hand.end_turn("it does")
    await check(store, "whole")
    hand.close()


async def test_a_fork_is_seen_by_nobody_before_its_last_slice_and_others_write_in_between(
    store: Store, store_url: str
) -> None:
    hand = await a_long_chat(store)
    await store.create_chat(new_chat("hello", id="other"))
    await hand.take("other")
    asked, slices, copied = forking("c2"), 0, [0]
    while await store.large_chats.fork_slice(asked) is None:
        slices += 1
        copied += [rows_of(store_url, "c2")["journal"]]
        assert 0 < copied[-1] - copied[-2] <= SMALL.rows + (slices == 1)
        await is_not_there(store, "c2")
        await hand.commit(cmd.Note(by=hand.by, topic="busy", text=f"between slices, {slices}"))
    assert slices > 3
    assert said(await store.read_history("c2")) == said(await store.read_history("c1"))
    parent = (await store.read_chat("c2")).chat
    assert (parent.forked_from, parent.forked_at) == ("c1", len(await store.read_history("c1")))
    assert remnants(store_url) == []
    hand.close()


async def test_a_deleted_chat_is_gone_at_once_and_others_write_while_its_rows_go(
    store: Store, store_url: str
) -> None:
    hand = await a_long_chat(store)
    await store.create_chat(new_chat("hello", id="other"))
    await hand.take("other")
    deleted, left = await store.large_chats.take_out("c1", "refuse")
    assert (deleted, left) == (("c1",), True)
    slices, counts = 0, [sum(rows_of(store_url, "c1").values())]
    while left:
        await is_not_there(store, "c1")
        await hand.commit(cmd.Note(by=hand.by, topic="busy", text=f"between slices, {slices}"))
        assert "journal" in rows_of(store_url, "c1"), "its first line is the last to go"
        left = await store.large_chats.clear_slice(deleted)
        counts += [sum(rows_of(store_url, "c1").values())]
        assert 0 <= counts[-2] - counts[-1] <= SMALL.rows
        slices += 1
    assert slices > 3
    assert (rows_of(store_url, "c1"), remnants(store_url)) == ({}, [])
    hand.close()


async def test_every_kind_of_row_of_a_large_chat_goes(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    for n in range(8):
        await store.submit("c1", cmd.Send(message=user("and more")))
        await hand.take("c1") if n == 0 else None
    deltas = DeltaBatch(chat=hand.held.chat, attempt=hand.attempt(), first_k=0, bodies=(b"{}",) * 20)
    assert await store.add_deltas([deltas]) == ()
    await hand.respond("trying", *(call(f"late-{n}") for n in range(9)))
    hand.snapshot = await store.read_chat("c1")
    await hand.dies()
    sql(store_url, "UPDATE chats SET state = 'failed', worker = NULL, wake_at = NULL WHERE id = 'c1'")
    assert set(rows_of(store_url, "c1")) == {"chats", *TABLES}
    assert await store.delete_chat("c1") == ("c1",)
    assert (rows_of(store_url, "c1"), remnants(store_url)) == ({}, [])
    hand.close()


async def test_a_large_family_is_deleted_whole_and_its_rows_go_in_slices(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    sql(store_url, "UPDATE chats SET parent_id = 'top', root_id = 'top', depth = 1 WHERE id = 'c1'")
    await store.create_chat(new_chat(None, id="top"))
    deleted, left = await store.large_chats.take_out("top", "include")
    assert (sorted(deleted), left) == (["c1", "top"], True)
    for chat_id in deleted:
        await is_not_there(store, chat_id)
    await store.sweep()
    assert (rows_of(store_url, "c1"), rows_of(store_url, "top"), remnants(store_url)) == ({}, {}, [])
    hand.close()


async def test_a_chat_made_again_while_the_rows_of_the_one_before_go_has_nothing_of_it(
    store: Store, store_url: str
) -> None:
    hand = await a_long_chat(store)
    cursor = (await store.read_journal("c1")).cursor
    _, left = await store.large_chats.take_out("c1", "refuse")
    assert left
    await store.create_chat(new_chat("a new life", id="c1"))
    assert len(await journal(store, "c1")) == rows_of(store_url, "c1")["journal"]
    assert [message.text for message in await history(store, "c1")] == ["a new life"]
    assert await store.read_compaction("c1") is None
    assert remnants(store_url) == []
    with pytest.raises(Exception, match="another chat"):
        await store.read_journal("c1", cursor)
    await hand.take("c1")
    await hand.end_turn("it goes on")
    await check(store, "c1")
    await store.sweep()
    assert [message.text for message in await history(store, "c1")] == ["a new life", "it goes on"]
    hand.close()


async def test_a_fork_onto_the_id_of_a_chat_whose_rows_go_has_nothing_of_it(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    await store.fork_chat("c1", "c2")
    _, left = await store.large_chats.take_out("c1", "refuse")
    assert left
    await store.fork_chat("c2", "c1", upto=4)
    assert said(await store.read_history("c1")) == said((await store.read_history("c2"))[:5])
    assert remnants(store_url) == []
    await check(store, "c1")
    hand.close()


async def test_no_chat_is_spawned_among_the_rows_of_another(store: Store) -> None:
    hand = await a_long_chat(store)
    await store.create_chat(new_chat("do it", id="parent"))
    _, left = await store.large_chats.take_out("c1", "refuse")
    assert left
    await hand.take("parent")
    await hand.respond(call("k1"), start=False)
    spawn = cmd.Delegate(
        by=hand.by, call_id="k1", external=External.CHILD, spawn=new_chat("go", id="c1"), child_turn=1
    )
    with pytest.raises(Occupied):
        await hand.commit(spawn, cmd.Park(by=hand.by))
    await store.sweep()
    await hand.commit(spawn, cmd.Park(by=hand.by))
    assert [message.text for message in await history(store, "c1")] == ["go"]
    await check(store, "c1")
    hand.close()


async def test_a_source_that_is_edited_while_it_is_copied_is_copied_anew(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    assert await store.large_chats.fork_slice(forking("c2")) is None
    spot = (await store.read_history("c1"))[0]
    epoch = (await store.read_chat("c1")).chat.epoch
    await store.submit("c1", cmd.Edit(pos=0, role=spot.role, epoch=epoch, message=user("something else")))
    for n in range(6):
        await hand.take("c1") if n == 0 else None
        await hand.respond(f"step {n}", call(f"new-{n}"))
        await hand.finish(f"new-{n}", "done")
    await store.fork_chat("c1", "c2")
    assert said(await store.read_history("c2")) == said(await store.read_history("c1"))
    assert remnants(store_url) == []
    await check(store, "c2")
    hand.close()


async def test_a_source_that_goes_on_while_it_is_copied_is_forked_as_it_is_at_the_end(store: Store) -> None:
    hand = await a_long_chat(store)
    await store.submit("c1", cmd.Send(message=user("fourth question")))
    await hand.take("c1")
    await hand.respond("three at once", call("open-1"), call("open-2"), call("open-3"))
    asked, slices = forking("c2"), 0
    while await store.large_chats.fork_slice(asked) is None:
        slices += 1
        if slices == 2:
            await hand.finish("open-2", "two came first")
    fork = await history(store, "c2")
    results = [part for message in fork[-3:] for part in message.parts]
    assert [getattr(part, "synthetic", None) for part in results] == [
        *(Synthetic.NOT_CARRIED_OVER, None, Synthetic.NOT_CARRIED_OVER)
    ]
    assert isinstance(results[1], ToolResult)
    assert results[1].content == "two came first"
    await check(store, "c2")
    hand.close()


async def test_a_source_that_is_deleted_while_it_is_copied_leaves_nothing_behind(
    store: Store, store_url: str
) -> None:
    hand = await a_long_chat(store)
    assert await store.large_chats.fork_slice(forking("c2")) is None
    await store.delete_chat("c1")
    with pytest.raises(NotFound):
        await store.fork_chat("c1", "c2")
    await is_not_there(store, "c2")
    await store.large_chats.give_up_fork("c2")
    await store.sweep()
    assert (rows_of(store_url, "c2"), remnants(store_url)) == ({}, [])
    hand.close()


async def test_a_fork_that_is_asked_for_again_goes_on_with_what_is_copied(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    for _ in range(3):
        assert await store.large_chats.fork_slice(forking("c2")) is None
    [(before,)] = sql(store_url, "SELECT stamp FROM journal WHERE chat_id = 'c2' AND pos = 0")
    key = Key(principal="ada", key="k1")
    first = await store.fork_chat("c1", "c2", key=key)
    assert sql(store_url, "SELECT stamp FROM journal WHERE chat_id = 'c2' AND pos = 0") == [(before,)]
    assert await store.fork_chat("c1", "c2", key=key) == first
    assert said(await store.read_history("c2")) == said(await store.read_history("c1"))
    with pytest.raises(RefusedError, match="already"):
        await store.large_chats.fork_slice(forking("c2"))
    hand.close()


async def test_whoever_wants_the_id_of_a_fork_that_is_not_whole_gets_it(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    assert await store.large_chats.fork_slice(forking("c2")) is None
    await store.create_chat(new_chat("mine", id="c2"))
    assert [message.text for message in await history(store, "c2")] == ["mine"]
    with pytest.raises(RefusedError, match="already"):
        await store.large_chats.fork_slice(forking("c2"))
    assert remnants(store_url) == []
    await check(store, "c2")
    hand.close()


async def test_a_fork_that_nobody_goes_on_with_is_swept_and_one_that_moves_is_not(
    store: Store, store_url: str, clock: FakeClock
) -> None:
    hand = await a_long_chat(store)
    asked = forking("moves")
    for new_id in ("moves", "dead"):
        assert await store.large_chats.fork_slice(forking(new_id)) is None
    await store.sweep()
    clock.advance(ABANDONED_MS - 1)
    assert await store.large_chats.fork_slice(asked) is None
    await store.sweep()
    assert remnants(store_url) == ["dead", "moves"]
    clock.advance(1)
    await store.sweep()
    assert (remnants(store_url), rows_of(store_url, "dead")) == (["moves"], {})
    while await store.large_chats.fork_slice(asked) is None:
        pass
    assert said(await store.read_history("moves")) == said(await store.read_history("c1"))
    hand.close()


async def test_a_fork_that_was_taken_for_dead_begins_again(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    assert await store.large_chats.fork_slice(forking("c2")) is None
    await store.large_chats.give_up_fork("c2")
    with pytest.raises(Occupied):
        await store.large_chats.fork_slice(forking("c2"))
    await store.fork_chat("c1", "c2")
    assert said(await store.read_history("c2")) == said(await store.read_history("c1"))
    assert remnants(store_url) == []
    hand.close()


async def test_what_a_process_left_goes_when_the_next_one_opens_the_store(store: Store, store_url: str) -> None:
    hand = await a_long_chat(store)
    _, left = await store.large_chats.take_out("c1", "refuse")
    assert left
    hand.close()
    await store.close()
    async with open_store(store_url, StoreOptions()) as other:
        await until(lambda: remnants(store_url) == [])
        assert rows_of(store_url, "c1") == {}
        await until(lambda: other.large_chats.remnant_count == 0)


async def test_a_chat_at_work_is_not_taken_out(store: Store, store_url: str) -> None:
    hand = await in_state(store, State.RUNNING)
    with pytest.raises(RefusedError):
        await store.large_chats.take_out("c1", "refuse")
    assert remnants(store_url) == []
    hand.close()


# --- what a slice holds ---------------------------------------------------------------------------------------------


def test_a_slice_is_bounded_in_rows_and_in_bytes_and_holds_one_row_however_large() -> None:
    bound = Slice(rows=3, bytes=100)
    assert [rows_within([(0, size)] * 9, bound) for size in (0, 1, 33, 34, 50, 51, 100, 101, 10**9)] == [
        *(3, 3, 3, 2, 2, 1, 1, 1, 1)
    ]
    assert rows_within([], bound) == 0
    assert rows_within([(0, 60), (1, 60), (2, 1)], bound) == 1


async def test_the_last_slice_is_never_empty_and_no_other_goes_beyond_an_open_call(store: Store) -> None:
    hand = await a_long_chat(store)
    source = await store.read_chat("c1")
    sizes = [(pos, 1) for pos in range(4)]
    first = next_copy(None, source, 6, sizes, SMALL)
    assert (first.start, first.seq, first.upto, first.whole) == (0, 1, 3, False)
    left = Remnant(chat_id="c2", source_id="c1", pos=3, seq=4)
    last = next_copy(left, source, 6, [(3, 1), (4, 1), (5, 1)], SMALL)
    assert (last.start, last.seq, last.upto, last.whole) == (3, 4, 6, True)
    hand.close()


def test_a_watch_tells_what_does_not_move_from_what_does() -> None:
    watch = RemnantWatch()
    still = Remnant(chat_id="a", source_id="s", pos=3)
    assert watch.abandoned([still, Remnant(chat_id="gone")], 0) == []
    assert watch.abandoned([still, Remnant(chat_id="gone")], ABANDONED_MS) == [still]
    moved = Remnant(chat_id="a", source_id="s", pos=4)
    assert watch.abandoned([moved], ABANDONED_MS) == []
    assert watch.abandoned([], 2 * ABANDONED_MS) == []
    assert watch.abandoned([moved], 2 * ABANDONED_MS) == []


async def test_a_slice_of_a_fork_that_was_given_up_since_it_began_adds_nothing_to_what_came_after(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url, StoreOptions()) as store:
        assert isinstance(store.large_chats, PostgresLargeChats)
        store.large_chats.slice = SMALL
        hand = await a_long_chat(store)
        assert await store.large_chats.fork_slice(forking("c2")) is None
        copy = store.large_chats._copy_slice
        made: list[Answer] = []

        async def late(*given: Any) -> bool:
            if not made:
                made.append(await store.create_chat(new_chat("mine", id="c2")))
            return await copy(*given)

        monkeypatch.setattr(store.large_chats, "_copy_slice", late)
        with pytest.raises(RefusedError, match="already"):
            await store.fork_chat("c1", "c2")
        assert len(made) == 1
        await store.sweep()
        assert [message.text for message in await history(store, "c2")] == ["mine"]
        assert len(await journal(store, "c2")) == rows_of(postgres_url, "c2")["journal"]
        assert (remnants(postgres_url), await store.find_torn()) == ([], [])
        hand.close()


async def test_the_record_of_rows_that_go_is_gone_with_the_last_of_them(store: Store, store_url: str) -> None:
    """So that the journal's key refuses who looked before there was one, and makes a chat after it."""
    hand = await a_long_chat(store)
    for n in range(4):
        await store.create_chat(new_chat(None, id=f"z{n}"))
        sql(store_url, f"UPDATE chats SET parent_id = 'c1', root_id = 'c1', depth = 1 WHERE id = 'z{n}'")
    deleted, left = await store.large_chats.take_out("c1", "include")
    while left:
        with_lines = {id for (id,) in sql(store_url, "SELECT DISTINCT chat_id FROM journal")}
        assert set(remnants(store_url)) == with_lines
        left = await store.large_chats.clear_slice(deleted)
    assert remnants(store_url) == []
    hand.close()
