"""The invariants catch what they are for: each is shown something broken, and says so."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.journal import AnyEntry, MessageAdded
from holdfast.core.records import CallState, Cause, Message, Phase, Queued, Role, Snapshot, State, Text, ToolCall
from tests.support import invariants
from tests.support.situations import answered, calls_planned, failed, model_next, stopped, waiting
from tests.support.story import BOOM, Story, assistant, user


def chat(snapshot: Snapshot, **fields: Any) -> Snapshot:
    return replace(snapshot, chat=replace(snapshot.chat, **fields))


def calls(snapshot: Snapshot, **fields: Any) -> Snapshot:
    return replace(snapshot, calls=(replace(snapshot.calls[0], **fields), *snapshot.calls[1:]))


QUEUED = Queued(id="q1", rank=0, mode="queue", body=Raw(b"{}"))
IDLE, RUNNING, WAITING = answered().snapshot, model_next().snapshot, waiting().snapshot
CALLING, STOPPING, FAILED = calls_planned().snapshot, stopped(model_next).snapshot, failed().snapshot

STRANDED = {
    "held by a dead worker": (chat(RUNNING, worker="w9"), "which is dead"),
    "neither held nor called": (chat(RUNNING, worker=None), "held by nobody, and wakes at None"),
    "stopping and neither": (chat(STOPPING, worker=None), "held by nobody, and wakes at None"),
    "both held and called": (chat(RUNNING, wake_at=1), "held by w1, and wakes at 1"),
    "waiting and held": (chat(WAITING, worker="w1"), "waiting, but held by w1"),
    "waiting for nobody": (replace(WAITING, calls=()), "nobody outside owes an answer"),
    "waiting without its expiry": (calls(WAITING, expires_at=7), "waiting until None, but the next expiry is 7"),
    "at rest and held": (chat(IDLE, worker="w1"), "idle, but held by w1"),
    "at rest and called": (chat(FAILED, wake_at=1), "failed, but wakes at 1"),
}


@pytest.mark.parametrize("name", STRANDED)
def test_a_stranded_chat_is_found(name: str) -> None:
    snapshot, said = STRANDED[name]
    assert any(said in problem for problem in invariants.promise_7(snapshot, {"w1"}))


@pytest.mark.parametrize("snapshot", [IDLE, RUNNING, WAITING, CALLING, STOPPING, FAILED])
def test_a_healthy_chat_is_not(snapshot: Snapshot) -> None:
    assert invariants.promise_7(snapshot, {"w1"}) == []
    assert invariants.consistency(snapshot) == []


INCONSISTENT = {
    "calls have a batch": chat(CALLING, batch=None),
    "all calls are of the current batch": calls(CALLING, batch=99),
    "calls stand in order": calls(CALLING, pos=99),
    "call ids are unique": calls(CALLING, id="b"),
    "says who answers it": calls(CALLING, state=CallState.EXTERNAL),
    "counts its starts": calls(CALLING, state=CallState.STARTED),
    "the queue is in order": replace(RUNNING, queue=(QUEUED, replace(QUEUED, id="q2"))),
    "a message is queued once": replace(RUNNING, queue=(QUEUED, replace(QUEUED, rank=1))),
    "failed, and says why": chat(FAILED, error=None),
    "somebody outside owes an answer": calls(replace(WAITING, calls=WAITING.calls[:1]), state=CallState.DONE),
    "nothing is runnable": calls(WAITING, state=CallState.APPROVED),
    "calls are next": chat(WAITING, phase=Phase.MODEL),
    "calls are next exactly while one is open": chat(CALLING, phase=Phase.MODEL),
    "without a turn the model owes nothing": chat(RUNNING, turn_started_at=None),
    "no call is open": chat(CALLING, state=State.FAILED, error=BOOM),
    "no turn is open": chat(IDLE, turn_started_at=1),
    "no compaction is owed": chat(IDLE, compact=True),
    "the queue is empty": replace(IDLE, queue=(QUEUED,)),
    "nothing is owed": chat(IDLE, phase=Phase.MODEL),
    "only a chat at rest is archived": chat(RUNNING, archived=True),
    "says why": chat(STOPPING, cause=None),
}


@pytest.mark.parametrize("said", INCONSISTENT)
def test_a_chat_that_contradicts_itself_is_found(said: str) -> None:
    assert any(said in problem for problem in invariants.consistency(INCONSISTENT[said]))


def next_version(snapshot: Snapshot, **fields: Any) -> Snapshot:
    return chat(snapshot, version=snapshot.chat.version + 1, **fields)


BACKWARDS = {
    "seq fell": (RUNNING, next_version(RUNNING, seq=0)),
    "fence fell": (RUNNING, next_version(RUNNING, fence=0)),
    "turn fell": (RUNNING, next_version(RUNNING, turn=0)),
    "epoch fell": (chat(RUNNING, epoch=2), next_version(RUNNING, epoch=1)),
    "attempt_ended fell": (chat(RUNNING, attempt_ended=9), next_version(RUNNING)),
    "the version did not grow": (RUNNING, RUNNING),
    "agent changed": (RUNNING, next_version(RUNNING, agent="other")),
    "history shrank": (RUNNING, next_version(RUNNING, length=0)),
    "without a new fence": (chat(RUNNING, worker=None), next_version(RUNNING)),
    "took the chat from": (RUNNING, next_version(RUNNING, worker="w2", fence=2)),
    "was over and changed": (
        calls(CALLING, state=CallState.DONE),
        next_version(calls(CALLING, state=CallState.DONE, name="other")),
    ),
    "vanished while it was open": (CALLING, next_version(replace(CALLING, calls=CALLING.calls[1:]))),
}


@pytest.mark.parametrize("said", BACKWARDS)
def test_a_step_backwards_is_found(said: str) -> None:
    before, after = BACKWARDS[said]
    assert any(said in problem for problem in invariants.step(before, after))


def test_history_may_shrink_with_a_new_epoch() -> None:
    assert invariants.step(RUNNING, next_version(RUNNING, length=0, epoch=1)) == []


def journal_of(*messages: Message) -> list[tuple[int, AnyEntry]]:
    return [(n, MessageAdded(raw=Raw(encode(message)))) for n, message in enumerate(messages, start=1)]


def said_of(snapshot: Snapshot, entries: list[tuple[int, AnyEntry]]) -> str:
    return "\n".join(invariants.journal_problems(chat(snapshot, seq=len(entries)), entries))


def result(call_id: str) -> Message:
    story = Story().claimed().calls(call_id, start=True).returns(call_id)
    return story.history[-1]


ASKED = Message(id="r", role=Role.ASSISTANT, parts=(ToolCall(call_id="a", name="t"),))


def test_a_gap_in_the_journal_is_found() -> None:
    entries = journal_of(user("m1"), user("m2"))
    assert "the journal's numbers are [2]" in said_of(IDLE, entries[1:])


def test_a_user_message_between_a_call_and_its_result_is_found() -> None:
    said = said_of(IDLE, journal_of(user("m1"), ASKED, user("m2"), result("a")))
    assert "entry 3: a user message entered while ['a'] were open" in said


def test_a_call_that_is_over_and_has_no_result_or_two_is_found() -> None:
    assert "call a is over and has no result" in said_of(IDLE, journal_of(user("m1"), ASKED))
    assert "call a has 2 results" in said_of(IDLE, journal_of(user("m1"), ASKED, result("a"), result("a")))


def test_a_result_of_a_call_that_is_still_open_is_found() -> None:
    assert "call a is open and has result" in said_of(CALLING, journal_of(user("m1"), ASKED, result("a")))


def test_a_result_that_nobody_asked_for_is_found() -> None:
    assert "which nobody asked for" in said_of(IDLE, journal_of(user("m1"), result("a")))


def test_a_complete_history_must_be_valid_as_it_stands() -> None:
    one_call = [user("m1"), ASKED]
    assert invariants.history_problems(chat(IDLE, length=2), one_call) != []
    assert invariants.history_problems(chat(IDLE, length=1), [user("m1")]) == []
    assert invariants.history_problems(chat(IDLE, length=2), [user("m1")]) != []


def test_only_a_message_that_was_cut_off_may_be_flawed() -> None:
    half = Message(
        id="r",
        role=Role.ASSISTANT,
        parts=(Text(text=""), ToolCall(call_id="a", name="tool", arguments='{"', cut=True)),
        stopped=Cause.USER,
    )
    snapshot = chat(IDLE, length=3)
    assert invariants.history_problems(snapshot, [user("m1"), half, result("a")]) == []
    whole = replace(half, stopped=None)
    assert len(invariants.history_problems(snapshot, [user("m1"), whole, result("a")])) == 2


def test_everything_is_everything() -> None:
    story = model_next()
    messages, entries = story.history, story.store.numbered_journal(story.chat_id)
    assert invariants.everything(story.snapshot, messages, entries, {"w1"}) == []
    assert invariants.everything(story.snapshot, messages, entries, {"w2"}) != []
    assert invariants.everything(story.snapshot, messages, entries[:-1], {"w1"}) != []
    assert invariants.everything(story.snapshot, [*messages, assistant("x")], entries, {"w1"}) != []
    assert invariants.everything(chat(story.snapshot, compact=True, archived=True), messages, entries, {"w1"}) != []
