"""The fold over a journal, case by case. `test_random_readers.py` reads lives that nobody thought of."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import journal as jn
from holdfast.core.codec import encode
from holdfast.core.fold import Fold, fold
from holdfast.core.records import (
    CallState,
    Cause,
    External,
    Failure,
    Message,
    Part,
    Reasoning,
    Role,
    State,
    Text,
    ToolCall,
    ToolResult,
    result_message,
)
from holdfast.core.update_cursor import Mark, cursor_of, parse_cursor
from holdfast.core.updates import (
    CallAnswered,
    CallAsked,
    CallBegan,
    CallDone,
    CallDrafted,
    CallProgress,
    CallView,
    Finished,
    Happened,
    Paused,
    Prose,
    ReasoningAdded,
    Responded,
    Restarted,
    Retrying,
    TextAdded,
    TurnUsage,
    TurnView,
    Update,
    with_call,
)
from holdfast.errors import WrongCursor
from tests.support.screens import Screen, shown


class Journal:
    """Numbers what happens, as a store does."""

    def __init__(self) -> None:
        self.events: list[jn.Event] = []
        self.seq = 0
        self.tell(jn.TurnStarted(turn=1))

    def tell(self, entry: jn.AnyEntry) -> None:
        self.seq += 1
        self.events.append(
            jn.Event(cursor=f"{self.seq}", at=1_000 * self.seq, body=entry, raw=encode(entry), seq=self.seq)
        )

    def stream(self, attempt: int, *pieces: str, part: Any = "text") -> None:
        for k, piece in enumerate(pieces):
            body = jn.Delta(part=part, text=piece)
            self.events.append(
                jn.Event(cursor=f"{self.seq}.{attempt}.{k}", at=0, body=body, raw=b"", attempt=attempt, k=k)
            )

    def respond(self, attempt: int, *parts: Part | str, started: tuple[str, ...] = (), **fields: Any) -> None:
        whole = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
        message = Message(id=f"r{attempt}", role=Role.ASSISTANT, parts=whole, **fields)
        self.tell(jn.MessageAdded(raw=Raw(encode(message)), attempt=attempt, started=started))

    def result(self, call_id: str, content: str, state: CallState = CallState.DONE) -> None:
        message = result_message(ToolResult(call_id=call_id, name="pay", content=content), 0)
        self.tell(jn.MessageAdded(raw=Raw(encode(message)), call_state=state))

    def end(self, cause: Cause | None = None, state: State = State.IDLE) -> None:
        self.tell(jn.TurnEnded(turn=1, state=state, cause=cause))

    def updates(self, *, settled: bool = False) -> list[Update]:
        """Behind the beginning of the turn."""
        return list(fold(self.events, settled=settled))[1:]


def told(updates: list[Update]) -> list[str]:
    """The words of it: what is added, and how much is taken back."""
    found = []
    for update in updates:
        if isinstance(update, TextAdded):
            found.append(update.text)
        elif isinstance(update, Restarted):
            found.append(f"-{update.dropped}")
    return found


def test_the_tail_that_was_never_streamed_comes_with_the_message() -> None:
    journal = Journal()
    journal.stream(1, "It ", "rains")
    journal.respond(1, "It rains in Bern.")
    assert told(journal.updates()) == ["It ", "rains", " in Bern."]
    assert told(journal.updates(settled=True)) == ["It rains in Bern."]


def test_an_attempt_that_says_the_same_again_takes_nothing_back() -> None:
    journal = Journal()
    journal.stream(1, "It rains")
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.stream(2, "It", " ra", "ins in", " Bern")
    journal.respond(2, "It rains in Bern.")
    assert told(journal.updates()) == ["It rains", " in", " Bern", "."]


def test_what_two_attempts_have_in_common_stays() -> None:
    journal = Journal()
    journal.stream(1, "It rains in Bern")
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.stream(2, "It ", "snows")
    journal.respond(2, "It snows.")
    assert told(journal.updates()) == ["It rains in Bern", "-13", "snows", "."]
    assert shown(journal.updates()) == "It snows."


def test_a_new_attempt_of_which_nothing_was_seen_is_compared_when_it_is_committed() -> None:
    journal = Journal()
    journal.stream(1, "It rains in Bern")
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.respond(2, "It rains.")
    assert told(journal.updates()) == ["It rains in Bern", "-8", "."]


def test_text_that_a_turn_ends_without_is_taken_back() -> None:
    journal = Journal()
    journal.stream(1, "It rains")
    journal.end(Cause.SUPERSEDED)
    updates = journal.updates()
    assert told(updates) == ["It rains", "-8"]
    assert isinstance(updates[-1], Finished)
    assert (updates[-1].turn.state, updates[-1].turn.cause, updates[-1].turn.text) == ("stopped", "superseded", "")


def test_who_began_to_read_when_an_edit_had_cut_the_turn_away_is_told_which_turn_ended() -> None:
    journal = Journal()
    journal.end(Cause.SUPERSEDED)
    (finished,) = fold(journal.events[1:])
    assert (finished.turn.number, finished.turn.state) == (1, "stopped")


def test_a_stop_keeps_what_it_committed() -> None:
    journal = Journal()
    journal.stream(1, "It rains and")
    journal.tell(jn.StopRequested(cause=Cause.USER))
    journal.respond(1, "It rains and", stopped=Cause.USER)
    journal.end(Cause.USER)
    updates = journal.updates()
    assert told(updates) == ["It rains and"]
    assert [update.turn.state for update in updates] == ["running", "stopping", "stopping", "stopped"]


def test_reasoning_is_reconciled_as_text_is() -> None:
    journal = Journal()
    journal.stream(1, "Hm, ra", part="reasoning")
    journal.stream(1, "Yes")
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.respond(2, Reasoning(text="Hm, no."), "No")
    updates = journal.updates()
    screen = Screen()
    for update in updates:
        screen.take(update)
    assert (screen.text, screen.reasoning) == ("No", "Hm, no.")
    (restarted,) = [update for update in updates if isinstance(update, Restarted)]
    assert (restarted.dropped, restarted.reasoning_dropped) == (3, 2)
    assert [update.text for update in updates if isinstance(update, ReasoningAdded)] == ["Hm, ra", "no."]


def test_each_response_has_an_answer_and_the_turn_all_text() -> None:
    journal = Journal()
    journal.stream(1, "I look. ")
    journal.respond(1, "I look. ", ToolCall(call_id="c1", name="pay", arguments="{}"), started=("c1",))
    journal.result("c1", "seen")
    journal.stream(2, "It ")
    journal.respond(2, "It rains.", input_tokens=7, output_tokens=3)
    journal.end()
    last = journal.updates()[-1].turn
    assert (last.text, last.answer, last.state) == ("I look. It rains.", "It rains.", "done")
    assert last.response is not None
    assert last.response.text == "It rains."
    assert last.usage == TurnUsage(responses=2, input_tokens=7, output_tokens=3, total_tokens=10)


def test_a_turn_adds_up_what_it_took_until_its_end_says_it() -> None:
    journal = Journal()
    lost = jn.AttemptFailed(attempt=1, model="m", error="gone", retry_in_ms=5, tokens=20)
    journal.tell(lost)
    journal.tell(jn.Compacted(upto=1, summary="so far", why="near_limit", tokens=300))
    journal.respond(2, "It rains.", estimated_tokens=4_000)
    journal.tell(jn.Noted(topic="spent", call_id="a", tokens=30_000, cost=0.25))
    journal.tell(jn.ChatRenamed(title="Rain", tokens=20_000, cost=0.5))
    running = journal.updates()[-1].turn
    assert (running.usage.total_tokens, running.cost) == (54_320, None)
    assert (running.usage.responses, running.usage.input_tokens) == (1, 0), "estimates are no counts"
    journal.tell(jn.TurnEnded(turn=1, state=State.IDLE, tokens=60_000, cost=1.25))
    journal.tell(jn.ChatRenamed(title="Rain in Bern", tokens=7, cost=0.25))  # made beside the turn, told after it
    journal.tell(jn.Compacted(upto=1, summary="so far", why="asked", tokens=900))  # of a chat at rest
    last = journal.updates()[-1].turn
    assert (last.usage.total_tokens, last.cost) == (60_007, 1.5)


def test_a_turn_that_older_code_ended_has_what_was_added_up_and_no_cost() -> None:
    journal = Journal()
    journal.respond(1, "It rains.", input_tokens=7, output_tokens=3)
    journal.end()
    last = journal.updates()[-1].turn
    assert (last.usage.total_tokens, last.cost) == (10, None)


def test_an_edit_takes_the_response_from_a_turn_that_goes_on_and_not_from_one_that_is_over() -> None:
    edited, over = Journal(), Journal()
    for journal in (edited, over):
        journal.respond(1, "I look. ", ToolCall(call_id="c1", name="pay", arguments="{}"))
    over.end()
    for journal in (edited, over):
        journal.tell(jn.HistoryCut(length=0, epoch=1))
    edited.end(Cause.SUPERSEDED)
    cut, kept = edited.updates()[-1].turn, over.updates()[-1].turn
    assert (cut.response, cut.answer, cut.text) == (None, "", "I look. ")
    assert kept.response is not None
    assert kept.answer == "I look. "


def test_a_compaction_at_rest_that_fails_is_none_of_the_turn_before_it() -> None:
    journal = Journal()
    journal.respond(1, "Done.")
    journal.end()
    failed = jn.ChatFailed(error=Failure(code="crash", message="five workers were lost", cause=Cause.CRASH))
    journal.tell(failed)
    *_, last = journal.updates()
    assert isinstance(last, Happened)
    assert last.entry == failed
    assert (last.turn.state, last.turn.error) == ("done", None)


def test_a_call_is_told_from_its_start_to_its_end() -> None:
    journal = Journal()
    journal.respond(1, ToolCall(call_id="c1", name="pay", arguments='{"n":1}'), started=("c1",))
    journal.tell(jn.Noted(topic="progress", text="half, ", call_id="c1"))
    journal.tell(jn.Noted(topic="progress", text="whole", call_id="c1"))
    journal.result("c1", "paid")
    updates = journal.updates()
    assert [type(update) for update in updates] == [Responded, CallBegan, CallProgress, CallProgress, CallDone]
    began, half, whole, done = (update.call for update in updates[1:])  # type: ignore[union-attr]
    assert (began.name, began.arguments, began.state, began.began_at) == ("pay", '{"n":1}', "started", 2_000)
    assert (half.progress, whole.progress, done.progress) == ("half, ", "half, whole", "half, whole")
    assert (done.result, done.state, done.ended_at) == ("paid", "done", 5_000)
    assert updates[-1].turn.calls == (done,)


def test_a_turn_pauses_when_only_people_can_go_on_and_says_for_what() -> None:
    journal = Journal()
    journal.respond(1, "I pay.", ToolCall(call_id="c1", name="pay"), ToolCall(call_id="c2", name="team"))
    journal.tell(jn.CallChanged(call_id="c1", name="pay", state=CallState.ASKING, question="Pay?", arguments="5"))
    journal.tell(
        jn.CallChanged(call_id="c2", name="team", state=CallState.EXTERNAL, external=External.CHILD, child_id="x")
    )
    journal.tell(jn.TurnWaiting(call_ids=("c1", "c2")))
    journal.tell(jn.CallChanged(call_id="c1", name="pay", state=CallState.APPROVED, by="ann"))
    journal.tell(jn.TurnResumed())
    asked, began, paused, answered, _ = journal.updates()[2:]
    assert isinstance(asked, CallAsked)
    assert (asked.call.kind, asked.call.question, asked.call.arguments) == ("approval", "Pay?", "5")
    assert isinstance(began, CallBegan)
    assert began.call.child_id == "x"
    assert isinstance(paused, Paused)
    assert paused.open == (asked.call,)
    assert isinstance(answered, CallAnswered)
    assert (answered.call.by, answered.turn.open) == ("ann", ())


def test_what_a_sub_agent_asks_pauses_the_turn_that_waits_for_it() -> None:
    journal = Journal()
    journal.respond(1, ToolCall(call_id="c1", name="team"))
    journal.tell(
        jn.CallChanged(call_id="c1", name="team", state=CallState.EXTERNAL, external=External.CHILD, child_id="x")
    )
    journal.tell(jn.TurnWaiting(call_ids=("c1",)))
    waiting = journal.updates()[-1]
    assert isinstance(waiting, Happened), "a sub-agent works: nobody has to act"
    journal.tell(
        jn.DescendantAsking(chat_id="x", agent="a", call_id="c1", name="pay", state=CallState.ASKING, question="Pay?")
    )
    asked, paused = journal.updates()[-2:]
    assert isinstance(asked, CallAsked)
    assert isinstance(paused, Paused)
    assert [(call.chat_id, call.id) for call in paused.open] == [("x", "c1")]
    assert [call.name for call in paused.turn.calls] == ["team"], "its own calls are another matter"
    journal.tell(jn.DescendantAnswered(chat_id="x", call_id="c1", name="pay", state=CallState.DENIED))
    assert journal.updates()[-1].turn.open == ()


def test_a_retry_says_why_when_and_which_one() -> None:
    journal = Journal()
    journal.tell(jn.AttemptFailed(attempt=1, model="m", error="429", retry_in_ms=500, next_model="n"))
    journal.tell(jn.PreviewReset(attempt=1))
    journal.tell(jn.PreviewReset(attempt=9, cause=Cause.SHUTDOWN))
    first, second = journal.updates()
    assert isinstance(first, Retrying)
    assert (first.reason, first.at, first.attempt, first.model) == ("429", 2_500, 2, "n")
    assert isinstance(second, Retrying)
    assert (second.reason, second.at, second.attempt) == ("shutdown", 4_000, 3)


def test_a_failed_turn_is_finished_once_with_its_error_and_a_retry_goes_on_with_it() -> None:
    journal = Journal()
    journal.respond(1, "Well. ")
    journal.stream(2, "And th")
    journal.end(state=State.FAILED)
    journal.tell(jn.ChatFailed(error=Failure(code="boom", message="it broke")))
    finished = journal.updates()[-1]
    assert isinstance(finished, Finished)
    assert finished.turn.error is not None
    assert (finished.turn.state, finished.turn.error.code, finished.turn.text) == ("failed", "boom", "Well. ")
    assert sum(isinstance(update, Finished) for update in journal.updates()) == 1
    journal.tell(jn.ChatRetried())
    journal.respond(3, "Done.")
    journal.end()
    last = journal.updates()[-1].turn
    assert (last.state, last.error, last.text) == ("done", None, "Well. Done.")


def test_what_newer_code_wrote_is_passed_over() -> None:
    journal = Journal()
    journal.tell(jn.MessageAdded(raw=Raw(b'{"id":"r","role":"assistant","parts":[{"kind":"hologram"}]}'), attempt=1))
    journal.events.append(jn.Event(cursor="x", at=0, body=jn.UnknownEntry(problem="?"), raw=b"{}", seq=3))
    journal.respond(2, "Yes.")
    assert told(journal.updates()) == ["Yes."]


# --- readers that come back ------------------------------------------------------------------------


def resumed(journal: Journal, cursor: str, *later: jn.Event) -> list[Update]:
    """What another process tells from there on: of the deltas only those that there still are."""
    place, mark = parse_cursor(cursor)
    assert mark is not None
    seq = int(place.partition(".")[0])
    fold = Fold()
    for event in journal.events:
        if event.seq is not None and mark.turn <= event.seq <= seq:
            fold.take(event)
    fold.resume(mark, place)
    entries = [event for event in journal.events if event.seq is not None and event.seq > seq]
    return [update for event in (*entries, *later) for update in fold.take(event)]


def test_a_reader_that_comes_back_when_the_attempt_is_over_is_told_the_rest_alone() -> None:
    journal = Journal()
    journal.stream(1, "It rai")
    cursor = journal.updates()[-1].cursor
    journal.respond(1, "It rains.")
    assert told(resumed(journal, cursor)) == ["ns."]


def test_what_it_was_shown_of_an_attempt_that_is_gone_is_taken_back_where_it_does_not_stand() -> None:
    journal = Journal()
    journal.stream(1, "It rai")
    cursor = journal.updates()[-1].cursor
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.respond(2, "It snows.")
    assert told(resumed(journal, cursor)) == ["-6", "It snows."]


def test_between_taking_back_and_adding_a_reader_may_leave() -> None:
    journal = Journal()
    journal.stream(1, "It rains")
    journal.tell(jn.PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.respond(2, "It snows.")
    (restarted,) = [update for update in journal.updates() if isinstance(update, Restarted)]
    assert restarted.dropped == 5
    assert told(resumed(journal, restarted.cursor)) == ["snows."]


def test_calls_that_begin_with_a_message_are_told_once_wherever_a_reader_leaves() -> None:
    journal = Journal()
    calls = [ToolCall(call_id=f"c{n}", name="pay") for n in range(3)]
    journal.respond(1, "I pay.", *calls, started=("c0", "c1", "c2"))
    whole = journal.updates()
    for n, update in enumerate(whole, 1):
        rest = resumed(journal, update.cursor)
        assert [type(one) for one in rest] == [type(one) for one in whole[n:]]
        assert (rest[-1] if rest else update).turn == whole[-1].turn


def test_what_was_told_of_a_line_is_not_taken_off_the_next_one_by_code_that_cannot_read_it() -> None:
    journal = Journal()
    calls = [ToolCall(call_id=f"c{n}", name="pay") for n in range(2)]
    journal.respond(1, "I pay.", *calls, started=("c0", "c1"))
    _, responded, *_ = journal.updates()
    assert isinstance(responded, Responded)
    journal.result("c0", "paid")
    journal.events[1] = replace(journal.events[1], body=jn.UnknownEntry(problem="newer"))
    assert [type(update) for update in resumed(journal, responded.cursor)] == [CallDone]


def test_a_cursor_that_is_none_is_refused() -> None:
    for wrong in ("x~y", "x~", "x~" + "A" * 200, cursor_of("x", Mark(turn=-1))):
        with pytest.raises(WrongCursor):
            parse_cursor(wrong)
    assert parse_cursor("an event's") == ("an event's", None)


# --- cost ------------------------------------------------------------------------------------------


def test_no_piece_of_a_stream_costs_a_copy_of_the_text_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    journal.stream(1, *["some words "] * 1_000)
    journal.respond(1, "some words " * 1_000)
    joined: list[int] = []
    join = Prose.__str__

    def counted(prose: Prose) -> str:
        joined.append(prose.chars)
        return join(prose)

    monkeypatch.setattr(Prose, "__str__", counted)
    updates = journal.updates()
    assert len(updates) == 1_001
    assert [chars for chars in joined if chars] == [11_000], "once, to be compared with the message"


def test_the_answer_of_a_turn_is_its_last_response_that_was_kept() -> None:
    journal = Journal()
    journal.respond(1, "I look it up.", ToolCall(call_id="c1", name="pay", arguments="{}"))
    journal.stream(2, "It is")  # and then a stop came before any of it was kept
    journal.end(Cause.USER)
    *_, last = journal.updates()
    assert (last.turn.text, last.turn.answer) == ("I look it up.", "I look it up.")


def test_the_stop_of_a_compaction_at_rest_is_none_of_the_turn_before_it() -> None:
    journal = Journal()
    journal.respond(1, "Done.")
    journal.end()
    journal.tell(jn.StopRequested(cause=Cause.USER))
    *_, last = journal.updates()
    assert (last.turn.state, last.turn.cause) == ("done", None)


def test_a_reader_may_pause_only_where_a_turn_waits_for_people() -> None:
    journal, fold = Journal(), Fold()
    journal.respond(1, ToolCall(call_id="c1", name="pay", arguments="{}"))
    journal.tell(jn.CallChanged(call_id="c1", name="pay", state=CallState.ASKING))
    journal.tell(jn.TurnWaiting(call_ids=("c1",)))
    journal.tell(jn.CallChanged(call_id="c1", name="pay", state=CallState.EXTERNAL, external=External.CHILD))
    found = []
    for event in journal.events:
        fold.take(event)
        found.append(fold.paused)
    assert found == [False, False, False, True, False], "asked while others run; paused; a sub-agent works"


def test_a_call_that_the_model_writes_is_told_once_in_each_attempt() -> None:
    journal = Journal()

    def write(attempt: int, *call_ids: str | None) -> None:
        for k, call_id in enumerate(call_ids):
            body = jn.Delta(part="arguments", text="{", call_id=call_id, name="pay" if call_id == "c1" else None)
            journal.events.append(
                jn.Event(cursor=f"{journal.seq}.{attempt}.{k}", at=0, body=body, raw=b"", attempt=attempt, k=k)
            )

    write(1, "c1", "c1", None, "c2")
    write(2, "c3")
    drafted = [(one.call.id, one.call.name) for one in journal.updates() if isinstance(one, CallDrafted)]
    assert drafted == [("c1", "pay"), ("c2", ""), ("c3", "")]
    updates = journal.updates()
    place, mark = parse_cursor(updates[1].cursor)
    assert mark is not None
    assert (mark.turn, mark.drafts) == (1, (1, 2))
    again = Fold()
    again.take(journal.events[0])
    again.resume(mark, place)
    told = [update for event in journal.events[1:] for update in again.take(event)]
    assert [one.call.id for one in told if isinstance(one, CallDrafted)] == ["c3"], "those of the first were told"


def test_what_a_tool_says_is_progress_of_its_call_and_other_notes_are_told_as_they_are() -> None:
    journal = Journal()
    journal.tell(jn.Noted(topic="progress", text="half", call_id="c1"))
    journal.tell(jn.Noted(topic="progress", text="loading"))
    journal.tell(jn.Noted(topic="error", text="oh", call_id="c1"))
    assert [type(update) for update in journal.updates()] == [CallProgress, Happened, Happened]


def test_a_result_says_how_its_call_ended() -> None:
    journal = Journal()
    message = result_message(ToolResult(call_id="c1", name="pay", content="paid"), 0)
    journal.tell(jn.MessageAdded(raw=Raw(encode(message))))  # older code did not say
    journal.result("c2", "stopped", CallState.CANCELLED)
    ends = [update.call for update in journal.updates() if isinstance(update, CallDone)]
    assert [(call.id, call.state, call.over) for call in ends] == [("c1", "done", True), ("c2", "cancelled", True)]


def test_an_answer_in_a_sub_agent_is_told_also_to_who_never_heard_the_question() -> None:
    journal = Journal()
    journal.tell(jn.DescendantAnswered(chat_id="below", call_id="c1", name="pay", state=CallState.APPROVED))
    (answered,) = journal.updates()
    assert isinstance(answered, CallAnswered)
    call = answered.call
    assert (call.chat_id, call.id, call.name, call.over) == ("below", "c1", "pay", False)


def test_an_end_that_tells_tokens_and_no_cost_leaves_what_was_added_up() -> None:
    journal = Journal()
    journal.respond(1, "It rains.", input_tokens=7, output_tokens=3)
    journal.tell(jn.TurnEnded(turn=1, state=State.IDLE, tokens=99))
    last = journal.updates()[-1].turn
    assert (last.usage.total_tokens, last.cost) == (10, None)


def test_older_versions_of_a_text_and_of_calls_stay_what_they_were() -> None:
    one = Prose().plus("a")
    two, other = one.plus("b"), one.plus("c")
    assert [str(text) for text in (one, two, other, two.plus("d"))] == ["a", "ab", "ac", "abd"]
    assert str(Prose().plus("z")) == "z", "the empty one is shared by all"
    assert two == Prose(("ab",)) != other
    assert two.cut(2) is two
    empty = TurnView()
    first = with_call(empty, CallView(id="c1", name="pay"))
    both, second = with_call(first, CallView(id="c2", name="pay")), with_call(first, CallView(id="c3", name="pay"))
    ids = [
        [call.id for call in turn.calls]
        for turn in (empty, first, both, second, with_call(both, CallView(id="c4", name="x")))
    ]
    assert ids == [[], ["c1"], ["c1", "c2"], ["c1", "c3"], ["c1", "c2", "c4"]]
    assert both != second
    assert both == with_call(first, CallView(id="c2", name="pay"))


@pytest.mark.parametrize("external", External)
def test_people_and_clients_are_asked_for_a_call_only_while_it_is_theirs(external: External) -> None:
    asked = {External.QUESTION: "question", External.CLIENT: "client"}.get(external)
    for state in CallState:
        kind = CallView(id="c1", name="pay", state=state, external=external).kind
        assert kind == ("approval" if state is CallState.ASKING else asked if state is CallState.EXTERNAL else None)
