"""A fork copies what is committed and carries nothing open over; the source does not notice."""

import pytest

from holdfast.core import commands as cmd
from holdfast.core import history
from holdfast.core.change import Refused
from holdfast.core.journal import ChatCreated, MessageAdded
from holdfast.core.records import Synthetic
from tests.support import invariants
from tests.support.situations import answered, call_started_beside_planned, model_next_with_queue, waiting
from tests.support.story import Story


def forked(story: Story, end: int | None = None) -> Story:
    outcome = story.store.fork(story.chat_id, "copy", story.chat.length if end is None else end, story.now)
    assert not isinstance(outcome, Refused), outcome.message
    story.chat_id = "copy"
    messages, entries = story.history, story.store.numbered_journal("copy")
    assert invariants.everything(story.snapshot, messages, entries, story.workers) == []
    return story


def test_a_fork_has_the_same_messages_byte_for_byte_and_rests() -> None:
    story = answered()
    bodies = [row.body for row in story.store.rows["chat"] if row.pos is not None]
    forked(story)
    assert [row.body for row in story.store.rows["copy"] if row.pos is not None] == bodies
    assert (story.state, story.phase, story.ids) == ("idle", "rest", ["m1", "said"])


def test_a_fork_remembers_where_it_came_from_and_tells_it_first() -> None:
    story = forked(answered(), 1)
    assert (story.chat.forked_from, story.chat.forked_at, story.ids) == ("chat", 1, ["m1"])
    assert story.journal[0] == ChatCreated(agent="agent", forked_from="chat")


def test_open_calls_are_not_carried_over_and_the_model_is_told() -> None:
    for telling in (waiting, call_started_beside_planned):
        story = forked(telling())
        assert (story.state, story.snapshot.calls) == ("idle", ())
        assert story.is_synthetic("a", Synthetic.NOT_CARRIED_OVER)
        assert history.problems(story.history) == []


def test_the_queue_is_not_carried_over() -> None:
    assert forked(model_next_with_queue()).queue == []


def test_a_fork_lives_a_life_of_its_own() -> None:
    story = forked(waiting())
    source = story.store.get("chat")
    story.sends("m2")
    story.claimed().says().finishes()
    assert story.ids == ["m1", "calls-a-b", "a.result", "b.result", "m2", "said"]
    assert story.store.get("chat") == source


def test_a_fork_of_what_was_cut_away_has_what_is_left() -> None:
    story = call_started_beside_planned()
    story.edits(0)
    assert forked(story).ids == []


def test_an_attempt_of_a_fork_is_not_taken_for_one_whose_message_was_copied() -> None:
    """A client knows by an attempt's number which preview a message replaces."""
    story = forked(answered())
    story.sends("m2")
    story.claimed().says().finishes()
    attempts = [entry.attempt for entry in story.journal if isinstance(entry, MessageAdded) and entry.attempt]
    assert len(attempts) == 2
    assert attempts[0] < attempts[1]


@pytest.mark.parametrize("end", [-1, 3])
def test_a_fork_ends_where_the_history_has_a_place(end: int) -> None:
    story = answered()
    refused = story.store.fork("chat", "copy", end, story.now)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.command) == ("no_such_message", "fork")
    assert "copy" not in story.store.chats


def test_the_source_does_not_notice() -> None:
    story = waiting()
    before, entries = story.snapshot, story.journal
    story.does(cmd.Fork())
    forked(story)
    story.chat_id = "chat"
    assert (story.snapshot.calls, story.journal) == (before.calls, entries)
