"""What people do to the chat of a schedule, while its occurrence is open and when the next one comes."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import Role, State
from holdfast.core.schedules import Occurrence, ScheduleRecord
from holdfast.errors import RefusedError
from holdfast.store.contract import Store
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, history, user
from tests.support.schedules import MINUTE, attend, made


async def fired(store: Store, clock: FakeClock, schedule: ScheduleRecord) -> Occurrence:
    clock.advance(MINUTE)
    (one,) = (await attend(store, schedule.id)).fired
    return one


async def edited(store: Store, chat_id: str, pos: int = 0) -> None:
    epoch = (await store.read_chat(chat_id)).chat.epoch
    await store.submit(chat_id, cmd.Edit(pos=pos, role=Role.USER, epoch=epoch, message=user("rather this")))


async def test_a_chat_that_is_archived_goes_on_with_the_next_occurrence(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    first = await fired(store, clock, schedule)
    chat_id = first.chat_id or ""
    with pytest.raises(RefusedError):
        await store.submit(chat_id, cmd.Archive(archived=True))
    await hand.take(chat_id)
    await hand.end_turn()
    await store.submit(chat_id, cmd.Archive(archived=True))
    second = await fired(store, clock, schedule)
    assert second.chat_id == chat_id
    await hand.take(chat_id)
    await hand.end_turn()
    assert [one.outcome for one in (await attend(store, schedule.id)).ended] == ["done"]


async def test_an_occurrence_is_open_in_its_own_chat_and_not_in_a_fork_of_it(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, chat="same", overlap="skip"), Hand(store)
    first = await fired(store, clock, schedule)
    chat_id = first.chat_id or ""
    await store.fork_chat(chat_id, "fork")
    await hand.take(chat_id)
    await hand.end_turn()
    (ended,) = (await attend(store, schedule.id)).ended
    assert (ended.outcome, ended.chat_id) == ("done", chat_id)
    await store.submit("fork", cmd.Send(message=user("by hand")))
    second = await fired(store, clock, schedule)
    assert second.chat_id == chat_id, "a fork that runs keeps no occurrence from its chat"
    assert (await store.schedules.read(schedule.id)).chat_id == chat_id


async def test_an_edit_of_its_message_supersedes_an_occurrence_and_the_next_one_comes(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    first = await fired(store, clock, schedule)
    chat_id = first.chat_id or ""
    await hand.take(chat_id)
    await edited(store, chat_id)
    hand.snapshot = await store.read_chat(chat_id)
    await hand.commit(cmd.FinishStop(by=hand.by))
    await hand.end_turn("to the edited one")
    (ended,) = (await attend(store, schedule.id)).ended
    assert ended.outcome == "superseded"
    second = await fired(store, clock, schedule)
    assert second.chat_id == chat_id
    assert [message.text for message in await history(store, chat_id)] == ["rather this", "to the edited one", "go"]


async def test_an_edit_before_it_drops_a_queued_message_and_ends_its_occurrence(
    store: Store, clock: FakeClock
) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    first = await fired(store, clock, schedule)
    chat_id = first.chat_id or ""
    await hand.take(chat_id)
    await hand.end_turn()
    assert (await attend(store, schedule.id)).ended
    await store.submit(chat_id, cmd.Send(message=user("by hand")))
    second = await fired(store, clock, schedule)
    assert second.turn is None
    await edited(store, chat_id)
    assert second.message_id not in [queued.id for queued in (await store.read_chat(chat_id)).queue]
    (ended,) = (await attend(store, schedule.id)).ended
    assert (ended.at, ended.outcome) == (second.at, "withdrawn")


async def test_an_edit_after_its_end_changes_nothing_of_what_became_of_it(store: Store, clock: FakeClock) -> None:
    schedule, hand = await made(store, chat="same"), Hand(store)
    first = await fired(store, clock, schedule)
    chat_id = first.chat_id or ""
    await hand.take(chat_id)
    await hand.end_turn()
    await edited(store, chat_id)  # before any look found its end
    assert (await store.read_chat(chat_id)).chat.state is State.RUNNING
    (ended,) = (await attend(store, schedule.id)).ended
    assert ended.outcome == "done"
