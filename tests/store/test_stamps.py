"""One writer, whatever became of the database: a write is refused unless what its writer knew is in the chat's past.

Counters come back after a restore, a lost claim or a deletion: worker, fence, epoch and version can all be equal to
those of a writer that belongs to another past. Stamps cannot.
"""

from collections.abc import AsyncIterator

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import ChatRecord, Snapshot, State
from holdfast.errors import NotFound, OwnershipLost, StaleWriter, WrongCursor
from holdfast.store.contract import Store
from holdfast.store.cursor import Cursor
from holdfast.store.records import DeltaBatch
from holdfast.system.clock import FakeClock
from tests.support.asked import asking
from tests.support.behind import sql
from tests.support.chats import Hand, call, history, new_chat, texts, told, unique, user
from tests.support.leases import silence
from tests.support.rewinding import Backup


@pytest.fixture
async def hand(store: Store) -> AsyncIterator[Hand]:
    hand = Hand(store)
    await store.create_chat(new_chat("hello", id="c1"))
    yield hand
    hand.close()


def place(snapshot: Snapshot) -> tuple[object, ...]:
    chat = snapshot.chat
    return chat.worker, chat.fence, chat.epoch, chat.version


async def test_a_chat_made_again_under_its_id_takes_no_late_commit_of_the_one_before(
    store: Store, hand: Hand, clock: FakeClock
) -> None:
    await hand.take("c1")
    late = hand.response("of another life", call("k1"))
    await silence(store, clock)
    successor = Hand(store)
    await successor.take("c1")
    await successor.end_turn()
    await store.delete_chat("c1")
    await store.create_chat(new_chat("another chat", id="c1"))
    await successor.take("c1")
    assert place(successor.held)[1:] == place(hand.held)[1:], "by its numbers it is the same"
    before = await store.read_chat("c1")
    with pytest.raises(StaleWriter):
        await store.commit(hand.held, [late], unique("late"))
    assert await store.read_chat("c1") == before
    assert texts(await history(store, "c1")) == ["another chat"]
    successor.close()


async def test_a_claim_that_the_database_lost_does_not_write_beside_the_one_that_came_after(
    store: Store, store_url: str, hand: Hand
) -> None:
    """As after a failover to a standby that had not got it."""
    backup = Backup(store_url)
    await hand.take("c1")
    backup.put_back()
    second = Hand(store)
    await second.take("c1")
    assert second.held.chat.fence == hand.held.chat.fence
    before = await store.read_chat("c1")
    with pytest.raises(StaleWriter):
        await hand.respond("I start it", call("pay"))
    assert await store.read_chat("c1") == before
    await second.end_turn("mine")
    assert texts(await history(store, "c1")) == ["hello", "mine"]
    second.close()


async def test_a_commit_that_a_restore_undid_is_not_built_upon_though_every_number_is_the_same_again(
    store: Store, store_url: str, hand: Hand
) -> None:
    await hand.take("c1")
    backup = Backup(store_url)
    await hand.respond("let me see", call("k1"))
    backup.put_back()
    await store.submit("c1", cmd.Send(message=user("one more")))
    before = await store.read_chat("c1")
    assert place(before) == place(hand.held)
    with pytest.raises(StaleWriter):
        await hand.finish("k1", "done for nobody")
    assert await store.read_chat("c1") == before
    assert texts(await history(store, "c1")) == ["hello"]


@pytest.mark.parametrize("messages", [0, 1, 2, 5])
async def test_an_event_that_any_state_takes_is_not_applied_to_another_past(
    store: Store, store_url: str, hand: Hand, messages: int
) -> None:
    """Not by comparing, and not by applying it to what is there now."""
    await hand.take("c1")
    backup = Backup(store_url)
    await hand.commit(cmd.Note(by=hand.by, topic="progress", text="lost"))
    await hand.commit(cmd.Note(by=hand.by, topic="progress", text="lost as well"))
    backup.put_back()
    for n in range(messages):
        await store.submit("c1", cmd.Send(message=user(f"message {n}")))
    before = await store.read_chat("c1")
    with pytest.raises(StaleWriter):
        await hand.commit(cmd.Note(by=hand.by, topic="progress", text="of another past"))
    assert await store.read_chat("c1") == before
    assert "of another past" not in await told(store, "c1")


async def test_a_commit_is_applied_to_what_came_after_all_that_its_writer_knew(store: Store, hand: Hand) -> None:
    await hand.take("c1")
    for n in range(3):
        await store.submit("c1", cmd.Send(message=user(f"before {n}")))
        await hand.commit(cmd.Note(by=hand.by, topic="progress", text=f"note {n}"))
        await store.submit("c1", cmd.Compact())  # which tells nothing
        hand.snapshot = await store.read_chat("c1")
        await store.submit("c1", cmd.Send(message=user(f"after {n}")))
        await hand.respond("let me see", call(f"k{n}"))
        await store.submit("c1", cmd.Compact())
        await hand.finish(f"k{n}")
    assert (await store.read_chat("c1")).chat.state is State.RUNNING


async def test_a_commit_that_was_undone_is_made_once_when_it_is_asked_for_again(
    store: Store, store_url: str, hand: Hand
) -> None:
    await hand.take("c1")
    backup = Backup(store_url)
    before, command = hand.held, hand.response("let me see", call("k1"))
    await store.commit(before, [command], "x1")
    backup.put_back()
    again = await store.commit(before, [command], "x1")
    assert await store.commit(before, [command], "x1") == again
    assert texts(await history(store, "c1")) == ["hello", "let me see"]


async def test_a_commit_that_was_undone_is_not_answered_as_done_under_another_claim(
    store: Store, store_url: str, hand: Hand
) -> None:
    backup = Backup(store_url)
    await hand.take("c1")
    before, command = hand.held, hand.response("let me see", call("k1"))
    await store.commit(before, [command], "x1")
    backup.put_back()
    second = Hand(store)
    await second.take("c1")
    with pytest.raises(OwnershipLost):
        await store.commit(before, [command], "x1")
    second.close()


async def test_a_claim_of_the_same_worker_under_the_same_fence_is_another_claim(
    store: Store, store_url: str, hand: Hand
) -> None:
    backup = Backup(store_url)
    old = await hand.take("c1")
    late = hand.response("of the claim that was lost")
    backup.put_back()
    new = await hand.take("c1")
    assert place(new) == place(old)
    with pytest.raises(StaleWriter):
        await store.commit(old, [late], unique("late"))
    assert await store.read_chat("c1") == new


async def test_text_that_is_streamed_for_another_past_is_refused(store: Store, store_url: str, hand: Hand) -> None:
    def batch(of: Snapshot, attempt: int) -> DeltaBatch:
        return DeltaBatch(chat=of.chat, attempt=attempt, first_k=0, bodies=(b'{"kind":"delta"}',))

    backup = Backup(store_url)
    await hand.take("c1")
    lost = batch(hand.held, hand.attempt())
    backup.put_back()
    await hand.take("c1")
    assert await store.add_deltas([lost]) == ("c1",), "begun under a claim that was lost"
    assert await store.add_deltas([batch(hand.held, hand.attempt())]) == ()


async def test_text_that_is_streamed_after_a_step_that_was_undone_is_refused(
    store: Store, store_url: str, hand: Hand
) -> None:
    await hand.take("c1")
    backup = Backup(store_url)
    await hand.respond("let me see", call("k1"))
    await hand.finish("k1")
    batch = DeltaBatch(chat=hand.held.chat, attempt=hand.attempt(), first_k=0, bodies=(b"{}",))
    assert await store.add_deltas([batch]) == ()
    await store.submit("c1", cmd.Send(message=user("meanwhile")))
    assert await store.add_deltas([batch]) == (), "a message does not disturb it"
    backup.put_back()
    assert await store.add_deltas([batch]) == ("c1",)
    await store.submit("c1", cmd.Send(message=user("one more")))
    assert await store.add_deltas([batch]) == ("c1",)
    assert await store.read_deltas("c1", batch.attempt) == []


# --- readers ------------------------------------------------------------------------------------------------------


async def test_a_readers_place_in_what_a_restore_undid_is_refused_though_its_number_is_given_again(
    store: Store, store_url: str, hand: Hand
) -> None:
    """It would miss what has that number now, and take what follows for what follows the lost line."""
    first = (await store.read_journal("c1")).cursor
    backup = Backup(store_url)
    await store.submit("c1", cmd.Rename(title="lost"))
    lost = (await store.read_journal("c1")).cursor
    assert (await store.read_journal("c1", lost)).items == ()
    backup.put_back()
    for n in range(2):
        await store.submit("c1", cmd.Rename(title=f"title {n}"))
    with pytest.raises(WrongCursor, match="not in this chat's past"):
        await store.read_journal("c1", lost)
    assert len((await store.read_journal("c1", first)).items) == 2, "what was before it is a place still"


async def test_a_readers_place_in_text_of_a_lost_claim_is_refused_though_its_number_is_given_again(
    store: Store, store_url: str, hand: Hand
) -> None:
    def batch(attempt: int) -> DeltaBatch:
        bodies = (b'{"part":"text","text":"one"}', b'{"part":"text","text":"two"}')
        return DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=bodies)

    backup = Backup(store_url)
    await hand.take("c1")
    attempt = hand.attempt()
    assert await store.add_deltas([batch(attempt)]) == ()
    lost = (await store.read_journal("c1")).cursor
    assert (await store.read_journal("c1", lost)).items == ()
    backup.put_back()
    await hand.take("c1")
    with pytest.raises(WrongCursor, match="not in this chat's past"):
        await store.read_journal("c1", lost)
    assert await store.add_deltas([batch(attempt)]) == ()
    with pytest.raises(WrongCursor, match="not in this chat's past"):
        await store.read_journal("c1", lost)


async def test_a_place_that_our_own_code_names_by_number_becomes_a_readers_place(store: Store, hand: Hand) -> None:
    seq = (await store.read_chat("c1")).chat.seq
    page = await store.read_journal("c1", Cursor(seq=seq))
    assert page.items == ()
    assert (await store.read_journal("c1", page.cursor)).items == ()
    await store.submit("c1", cmd.Rename(title="new"))
    assert len((await store.read_journal("c1", page.cursor)).items) == 1


async def test_a_chat_that_did_not_move_is_followed_by_two_numbers_and_one_that_did_is_read(
    store: Store, store_url: str, hand: Hand
) -> None:
    known = await hand.take("c1")
    with asking(store) as asked:
        assert await store.follow_chat(known) is known
    assert asked.count == 1
    await store.submit("c1", cmd.Rename(title="another title"))
    moved = await store.follow_chat(known)
    assert moved.chat.title == "another title"
    sql(store_url, "UPDATE chats SET version = version + 1, title = 'by older code' WHERE id = 'c1'")
    assert (await store.follow_chat(moved)).chat.title == "by older code"


# --- lines without their chat -------------------------------------------------------------------------------------

ORPHAN = "INSERT INTO journal (chat_id, seq, at, role, pos, ref, body) VALUES ('c1', ?, 1, 'user', ?, 'm', '{}')"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and made again"])
async def test_a_chat_that_is_deleted_between_two_looks_is_not_a_database_that_went_back(
    store: Store, hand: Hand, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A runner whose chat went to another looks at the chat, and then at the line that it knows."""
    known = await hand.take("c1")
    await hand.dies()
    successor = Hand(store)
    await successor.take("c1")
    await successor.end_turn()
    look = store._line_stamp

    async def look_late(chat: ChatRecord) -> int | None:
        await store.delete_chat("c1")
        if again:
            await store.create_chat(new_chat(id="c1"))
        return await look(chat)

    monkeypatch.setattr(store, "_line_stamp", look_late)
    with pytest.raises(StaleWriter if again else NotFound):
        await store.follow_chat(known)
    assert not store.incidents.counts
    successor.close()


@pytest.mark.parametrize("held", [False, True], ids=["idle", "running"])
async def test_a_chat_whose_journal_has_lines_beyond_its_row_is_found_and_mended(
    store: Store, store_url: str, hand: Hand, held: bool
) -> None:
    """Older code could leave such lines, and every write to the chat failed for good."""
    await hand.take("c1")
    if not held:
        await hand.end_turn()
    chat = (await store.read_chat("c1")).chat
    sql(store_url, ORPHAN, (chat.seq + 1, chat.length))
    with pytest.raises(Exception, match=r"(?i)constraint|such a row already"):
        await store.submit("c1", cmd.Rename(title="cannot be"))
    for n in range(3):
        await store.create_chat(new_chat(None, id=f"other{n}"))
    assert [(found.chat_id, found.reason) for found in await store.find_torn()] == [("c1", "journal_ahead_of_chat")]
    assert await store.sweep() == {"journal_ahead_of_chat": 1}
    assert await store.find_torn() == []
    await store.submit("c1", cmd.Rename(title="can be"))
    if held:
        await hand.end_turn("goes on")
    assert "m" not in [row.message_id for row in await store.read_history("c1")]
    assert (await store.read_chat("c1")).chat.title == "can be"
