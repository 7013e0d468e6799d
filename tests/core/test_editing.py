"""Editing a message: history is cut there, work on what was cut is superseded, nothing vanishes silently."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core.change import Change
from holdfast.core.journal import HistoryCut, MessageAdded, MessagesDropped, TurnEnded
from holdfast.core.records import Cause, Role, Synthetic
from tests.support.situations import answered, failed, model_next, stopped, waiting
from tests.support.story import assistant, user


def dropped(change: Change) -> list[str]:
    return [queued.id for queued in change.dropped]


def test_editing_in_an_idle_chat_cuts_history_and_starts_a_turn() -> None:
    story = answered()
    change = story.edits(0)
    assert (story.state, story.ids, story.chat.epoch, change.cut_from) == ("running", ["edited"], 1, 0)
    assert story.tells(HistoryCut) == [HistoryCut(length=0, epoch=1)]


def test_editing_a_later_message_keeps_what_was_before_it() -> None:
    story = answered()
    story.sends("m2")
    story.claimed().says("r2").finishes()
    story.edits(2)
    assert story.ids == ["m1", "said", "edited"]


def test_editing_in_a_failed_chat_clears_the_error_and_returns_its_queue() -> None:
    story = failed(queued=True)
    assert dropped(story.edits(0)) == ["q1", "q2"]
    assert (story.state, story.chat.error, story.queue, story.ids) == ("running", None, [], ["edited"])


def test_editing_in_a_running_chat_cuts_at_once_and_the_message_waits_until_the_work_is_dead() -> None:
    story = model_next()
    story.edits(0)
    assert (story.state, story.chat.cause) == ("stopping", Cause.SUPERSEDED)
    assert (story.ids, story.queue, story.chat.epoch) == ([], ["edited"], 1)
    story.finishes_stop()
    assert (story.state, story.ids, story.chat.turn) == ("running", ["edited"], 2)


def test_editing_returns_the_queued_messages_it_drops_and_the_journal_names_them() -> None:
    story = model_next()
    story.sends("m2")
    story.sends("s1", "steer")
    assert dropped(story.edits(0)) == ["m2", "s1"]
    assert story.queue == ["edited"]
    assert story.tells(MessagesDropped) == [MessagesDropped(message_ids=("m2", "s1"), why="edited")]


def test_editing_again_while_stopping_returns_the_first_edit() -> None:
    story = answered()
    story.sends("m2")
    story.claimed()
    story.edits(2, "first")
    assert dropped(story.edits(0, "second")) == ["first"]
    assert (story.ids, story.queue, story.chat.epoch) == ([], ["second"], 2)


def test_editing_in_a_chat_that_a_user_stopped_keeps_the_users_cause() -> None:
    story = stopped(model_next)
    story.edits(0)
    assert (story.state, story.chat.cause) == ("stopping", Cause.USER)
    story.finishes_stop()
    assert (story.state, story.ids) == ("running", ["edited"])


def test_editing_in_a_waiting_chat_resolves_its_calls_off_history_and_starts_a_turn() -> None:
    story = waiting(queued=True)
    assert dropped(story.edits(0)) == ["q1"]
    assert (story.state, story.ids, story.off_history()) == ("running", ["edited"], ["a", "b"])
    assert story.is_synthetic("a", Synthetic.CANCELLED)
    (ended,) = story.tells(TurnEnded)
    assert isinstance(ended, TurnEnded)
    assert ended.cause is Cause.SUPERSEDED


def test_the_outcome_of_a_call_that_was_edited_away_goes_to_the_journal_and_not_into_history() -> None:
    """Promise 3 and "an edit over a started unsafe call": it happened, so it is recorded."""
    story = model_next().calls("a", start=True)
    before = story.by
    story.edits(0)
    story.does(cmd.Outcome(by=before, call_id="a", content="charged 10 EUR"))
    assert (story.ids, story.off_history()) == ([], ["a"])
    assert story.result("a").content == "charged 10 EUR"
    last = story.journal[-1]
    assert isinstance(last, MessageAdded)
    assert last.off_history
    story.finishes_stop()
    assert story.ids == ["edited"]


def test_a_call_edited_away_and_never_heard_of_again_is_answered_off_history() -> None:
    story = model_next().calls("a", start=True)
    story.edits(0)
    story.finishes_stop()
    assert (story.ids, story.off_history()) == (["edited"], ["a"])
    assert "Cancelled while it ran" in story.result("a").content


def test_what_was_streamed_for_a_message_that_was_edited_never_enters_history() -> None:
    story = model_next()
    attempt, length = story.next_attempt(), story.chat.length
    story.edits(0)
    half = assistant("half")
    story.does(cmd.FinishStop(by=story.by, partial=half, attempt=attempt, length=length))
    assert story.ids == ["edited"]


def test_not_even_a_successor_that_knows_only_the_cut_length_brings_it_back() -> None:
    story = model_next()
    attempt = story.next_attempt()
    story.edits(0)
    story.lost().claimed("w2")
    story.finishes_stop(assistant("half"), attempt)
    assert story.ids == ["edited"]


def test_the_old_runner_cannot_write_into_the_history_that_was_cut() -> None:
    story = model_next()
    response = story.response(assistant("late"))
    story.edits(0)
    story.refuses(response, reason="stale_epoch")
    story.finishes_stop()
    story.refuses(response, reason="stale_epoch")


def test_only_user_messages_are_edited() -> None:
    story = answered()
    command = cmd.Edit(pos=1, role=Role.ASSISTANT, epoch=0, message=user("m2"))
    story.refuses(command, reason="not_a_user_message")


def test_a_message_is_edited_into_a_user_message_and_nothing_else() -> None:
    answered().refuses(cmd.Edit(pos=0, role=Role.USER, epoch=0, message=assistant("x")), reason="wrong_message")


@pytest.mark.parametrize("pos", [-1, 2, 99])
def test_a_position_that_does_not_exist_is_not_edited(pos: int) -> None:
    command = cmd.Edit(pos=pos, role=Role.USER, epoch=0, message=user("m2"))
    answered().refuses(command, reason="no_such_message")


def test_a_position_looked_up_before_a_cut_is_not_edited() -> None:
    story = answered()
    looked_up = cmd.Edit(pos=0, role=Role.USER, epoch=0, message=user("m3"))
    story.edits(0)
    story.refuses(looked_up, reason="stale_position")


def test_editing_takes_the_chat_out_of_the_archive() -> None:
    story = answered()
    story.does(cmd.Archive())
    story.edits(0)
    assert not story.chat.archived


def test_a_started_call_of_an_edited_chat_that_is_lost_is_unknown_off_history() -> None:
    story = model_next().calls("a", start=True)
    story.edits(0)
    story.lost().claimed("w2")
    assert story.is_synthetic("a", Synthetic.UNKNOWN)
    assert story.off_history() == ["a"]
    story.finishes_stop()
    assert story.ids == ["edited"]
