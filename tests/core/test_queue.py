"""The queue: putting a message first, taking one back."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core.journal import MessagePromoted, MessagesDropped
from holdfast.core.records import Cause, Synthetic
from tests.support.situations import answered, failed, model_next, stopped, waiting
from tests.support.story import Story


def running() -> Story:
    story = model_next()
    for message_id in ("q1", "q2", "q3"):
        story.sends(message_id)
    return story


def test_promoting_in_a_running_chat_supersedes_what_runs() -> None:
    story = running()
    story.does(cmd.Promote(message_id="q2"))
    assert (story.state, story.chat.cause, story.queue) == ("stopping", Cause.SUPERSEDED, ["q2", "q1", "q3"])
    assert story.chat.epoch == 1
    assert story.tells(MessagePromoted) == [MessagePromoted(message_id="q2")]
    story.finishes_stop()
    assert (story.ids, story.queue) == (["m1", "q2"], ["q1", "q3"])


def test_promoting_in_a_stopping_chat_only_puts_the_message_first() -> None:
    story = stopped(running)
    epoch = story.chat.epoch
    story.does(cmd.Promote(message_id="q3"))
    assert (story.state, story.queue, story.chat.epoch) == ("stopping", ["q3", "q1", "q2"], epoch)
    assert story.chat.cause is Cause.USER


def test_promoting_in_a_waiting_chat_answers_its_calls_and_starts_the_turn() -> None:
    story = waiting(queued=True)
    story.sends("q2")
    story.does(cmd.Promote(message_id="q2"))
    assert (story.state, story.ids[-1], story.queue) == ("running", "q2", ["q1"])
    assert story.is_synthetic("b", Synthetic.CANCELLED)


def test_promoting_in_a_failed_chat_starts_the_turn_and_clears_the_error() -> None:
    story = failed(queued=True)
    story.does(cmd.Promote(message_id="q2"))
    assert (story.state, story.chat.error, story.ids, story.queue) == ("running", None, ["m1", "q2"], ["q1"])


def test_an_idle_chat_has_nothing_to_promote() -> None:
    answered().refuses(cmd.Promote(message_id="q1"), reason="state")


def test_the_first_message_stays_the_first_when_promoted() -> None:
    story = stopped(running)
    story.does(cmd.Promote(message_id="q1"))
    assert story.queue == ["q1", "q2", "q3"]


def test_promoting_again_and_again_keeps_the_order_of_the_others() -> None:
    story = stopped(running)
    for message_id in ("q3", "q2", "q3", "q1"):
        story.does(cmd.Promote(message_id=message_id))
    assert story.queue == ["q1", "q3", "q2"]


@pytest.mark.parametrize("telling", [running, lambda: stopped(running), lambda: waiting(queued=True), failed])
def test_a_message_that_is_not_queued_is_neither_promoted_nor_withdrawn(telling: type[Story]) -> None:
    story = telling()
    story.refuses(cmd.Promote(message_id="nobody"), reason="no_such_message")
    story.refuses(cmd.Withdraw(message_id="nobody"), reason="no_such_message")


@pytest.mark.parametrize(
    "telling", [running, lambda: stopped(running), lambda: waiting(queued=True), lambda: failed(queued=True)]
)
def test_a_queued_message_can_be_taken_back(telling: type[Story]) -> None:
    story = telling()
    state, queue = story.state, story.queue
    change = story.does(cmd.Withdraw(message_id="q1"))
    assert [queued.id for queued in change.dropped] == ["q1"]
    assert (story.state, story.queue) == (state, queue[1:])
    assert story.tells(MessagesDropped) == [MessagesDropped(message_ids=("q1",), why="withdrawn")]


def test_when_an_edit_is_withdrawn_the_chat_rests_where_history_was_cut() -> None:
    story = model_next()
    story.edits(0)
    story.does(cmd.Withdraw(message_id="edited"))
    story.finishes_stop()
    assert (story.state, story.ids) == ("idle", [])
