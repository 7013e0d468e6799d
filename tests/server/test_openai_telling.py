"""A response as the journal tells it: the same items and numbers for every reader, wherever it left and came back."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.journal import (
    CallChanged,
    ChatFailed,
    ChatRenamed,
    Delta,
    Entry,
    Event,
    MessageAdded,
    PreviewReset,
    TurnEnded,
    TurnResumed,
    TurnStarted,
    TurnWaiting,
)
from holdfast.core.records import CallState, Cause, External, Failure, Message, State, ToolResult, result_message
from holdfast.server.openai.completions import finish_reason
from holdfast.server.openai.ids import ResponsePlace, parse_call_id, parse_response_id
from holdfast.server.openai.response_state import Telling
from holdfast.server.openai.responses import Events
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of
from tests.support.chats import assistant, call, user

PLACE = ResponsePlace(chat_id="chat_1", start=1)


class Journal:
    """Entries and deltas in the order of their writing, as a live reader sees them; and as a late one does."""

    def __init__(self) -> None:
        self._seq = 0
        self.live: list[Event] = []
        self.late: list[Event] = []

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            self._seq += 1
            item = Item(cursor="", at=1000 * self._seq, body=encode(entry), seq=self._seq)
            event = event_of(item)
            self.live.append(event)
            self.late.append(event)

    def stream(self, attempt: int, *texts: str) -> None:
        """They are gone once the attempt is over."""
        for k, text in enumerate(texts):
            item = Item(cursor="", at=0, body=encode(Delta(part="text", text=text)), attempt=attempt, k=k)
            self.live.append(event_of(item))


def message(written: Message, attempt: int | None = None) -> MessageAdded:
    return MessageAdded(raw=Raw(encode(written)), attempt=attempt)


def a_stormy_turn() -> Journal:
    """A lost attempt, an answer with an agent's own tool, two more lost ones, a title in between, and an end."""
    journal = Journal()
    journal.add(TurnStarted(turn=1), message(user("go")))
    journal.stream(1, "Lost ", "words ")
    journal.add(PreviewReset(attempt=1, cause=Cause.CRASH))
    journal.stream(2, "First", ", I ")
    journal.add(ChatRenamed(title="A title"))
    journal.stream(2, "look.")
    journal.add(message(assistant("First, I look.", call("a", "lookup")), attempt=2))
    journal.add(message(result_message(ToolResult(call_id="a", name="lookup", content="x"), 0)))
    journal.add(PreviewReset(attempt=3))
    journal.stream(4, "Half")
    journal.add(PreviewReset(attempt=4))
    journal.stream(5, "Now ", "I know", ".")
    journal.add(message(assistant("Now I know."), attempt=5), TurnEnded(turn=1, state=State.IDLE))
    return journal


def events_of(frames: Sequence[Event], after: int = -1, place: ResponsePlace = PLACE) -> list[dict[str, Any]]:
    telling, encode_events = Telling(place, after), Events("agent", after)
    data = encode_events.begin(Telling(place))
    for frame in frames:
        data += encode_events(telling, telling.take(frame))
    return [json.loads(event.split(b"\ndata: ")[1]) for event in data.split(b"\n\n")[:-1]]


def texts_of(events: Sequence[dict[str, Any]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return texts


def test_a_live_reader_is_told_what_was_lost_and_that_it_was() -> None:
    events = events_of(a_stormy_turn().live)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert list(texts_of(events).values()) == ["Lost words ", "First, I look.", "Half", "Now I know."]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["status"], len(item["content"])) for item in done] == [
        ("incomplete", 0), ("completed", 1), ("incomplete", 0), ("completed", 1),
    ]  # fmt: skip
    indexes = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert indexes == [0, 1, 2, 3], "clients keep items in a list, and look them up by their index"
    final = events[-1]["response"]
    assert [item["content"][0]["text"] for item in final["output"]] == ["First, I look.", "Now I know."]
    assert [item["id"] for item in final["output"]] == [item["id"] for item in done if item["status"] == "completed"]


def test_a_reader_may_leave_anywhere_and_come_back_as_often_as_it_likes() -> None:
    journal = a_stormy_turn()
    live, late = events_of(journal.live), events_of(journal.late)
    for seen in range(1, len(live) + 1):
        told = live[:seen]
        rest = events_of(journal.late, after=told[-1]["sequence_number"])
        whole = [*told, *rest]
        numbers = [event["sequence_number"] for event in whole]
        assert numbers == sorted(set(numbers)), f"after {seen}"
        completed = [
            event["item"]["id"]
            for event in whole
            if event["type"] == "response.output_item.done" and event["item"]["status"] == "completed"
        ]
        texts = texts_of(whole)
        assert [texts[item_id] for item_id in completed] == ["First, I look.", "Now I know."], f"after {seen}"
        added = [event["item"]["id"] for event in whole if event["type"] == "response.output_item.added"]
        ended = [event["item"]["id"] for event in whole if event["type"] == "response.output_item.done"]
        assert added == ended, f"after {seen}: every item that was begun is ended, once"
        indexes = [event["output_index"] for event in whole if event["type"] == "response.output_item.added"]
        assert indexes == list(range(len(added))), f"after {seen}"
        assert whole[-1]["response"] == live[-1]["response"] == late[-1]["response"]


def test_a_reader_that_changes_its_process_again_and_again_keeps_its_indexes() -> None:
    """The first process saw what was lost, the next did not, the third sees everything once more."""
    journal = a_stormy_turn()
    first = events_of(journal.live)
    for left in range(1, len(first)):
        second = events_of(journal.late, after=first[left - 1]["sequence_number"])
        for left_again in range(1, len(second)):
            told = [*first[:left], *second[:left_again]]
            whole = [*told, *events_of(journal.live, after=told[-1]["sequence_number"])]
            added = [event for event in whole if event["type"] == "response.output_item.added"]
            assert [event["output_index"] for event in added] == list(range(len(added))), (left, left_again)
            assert len({event["item"]["id"] for event in added}) == len(added)


def test_an_answer_without_a_word_takes_no_index() -> None:
    """The commonest turn: the model says nothing and calls a tool of its agent, then it answers."""
    journal = Journal()
    journal.add(TurnStarted(turn=1), message(user("go")), message(assistant(call("a", "lookup")), attempt=1))
    journal.add(message(result_message(ToolResult(call_id="a", name="lookup", content="x"), 0)))
    journal.add(PreviewReset(attempt=2), message(assistant("Found."), attempt=3), TurnEnded(turn=1, state=State.IDLE))
    added = [event for event in events_of(journal.late) if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0]


def test_a_reader_may_come_back_while_an_attempt_streams() -> None:
    journal = a_stormy_turn()
    for upto in range(len(journal.live)):
        live = events_of(journal.live[:upto])
        for event in live:
            rest = events_of(journal.live[:upto], after=event["sequence_number"])
            assert [later["sequence_number"] for later in rest] == [
                later["sequence_number"] for later in live if later["sequence_number"] > event["sequence_number"]
            ]


def waiting_for_client(external: External) -> Journal:
    journal = Journal()
    journal.add(TurnStarted(turn=1), message(user("go")))
    journal.add(message(assistant(call("a"), call("b"), call("c")), attempt=1))
    journal.add(CallChanged(call_id="a", name="tool", state=CallState.EXTERNAL, external=external))
    journal.add(TurnWaiting(call_ids=("a",)))
    return journal


@pytest.mark.parametrize(
    ("external", "over"), [("client", True), ("question", True), ("child", False), ("timer", False)]
)
def test_a_response_ends_only_where_its_client_has_to_act(external: str, over: bool) -> None:
    telling = Telling(PLACE)
    for frame in waiting_for_client(External(external)).late:
        telling.take(frame)
    assert (telling.over, list(telling.pending)) == (over, ["a"] if over else [])


def test_a_response_that_results_began_does_not_tell_what_was_before() -> None:
    journal = waiting_for_client(External.CLIENT)
    journal.add(message(result_message(ToolResult(call_id="a", name="tool", content="x"), 0)), TurnResumed())
    start = 7
    journal.add(message(assistant("So."), attempt=2), TurnEnded(turn=1, state=State.IDLE))
    place = ResponsePlace(chat_id="chat_1", start=start)
    events = events_of(journal.late[start - 1 :], place=place)
    assert [item["content"][0]["text"] for item in events[-1]["response"]["output"]] == ["So."]
    assert events[0]["sequence_number"] == 0


@pytest.mark.parametrize(
    ("cause", "status", "event"),
    [
        (None, "completed", "response.completed"),
        (Cause.USER, "cancelled", "response.incomplete"),
        (Cause.SUPERSEDED, "cancelled", "response.incomplete"),
        (Cause.BUDGET, "incomplete", "response.incomplete"),
        (Cause.DEADLINE, "incomplete", "response.incomplete"),
    ],
)
def test_how_a_turn_ended_is_the_responses_status(cause: Cause | None, status: str, event: str) -> None:
    journal = Journal()
    journal.add(message(user()), TurnEnded(turn=1, state=State.IDLE, cause=cause))
    last = events_of(journal.late)[-1]
    assert (last["type"], last["response"]["status"]) == (event, status)


@pytest.mark.parametrize(
    ("finish", "status", "why", "reason"),
    [
        (None, "completed", None, "stop"),
        ("length", "incomplete", "max_output_tokens", "length"),
        ("refused", "incomplete", "content_filter", "content_filter"),
    ],
)
def test_an_answer_that_is_not_whole_says_so_in_both_protocols(
    finish: str | None, status: str, why: str | None, reason: str
) -> None:
    journal = Journal()
    journal.add(message(user()), message(replace(assistant("So"), finish=finish), attempt=1))
    journal.add(TurnEnded(turn=1, state=State.IDLE))
    last = events_of(journal.late)[-1]
    assert (last["type"], last["response"]["status"]) == (f"response.{status}", status)
    assert last["response"]["incomplete_details"] == (None if why is None else {"reason": why})
    telling = Telling(PLACE)
    for frame in journal.late:
        telling.take(frame)
    assert finish_reason(telling) == reason


def test_only_the_last_message_of_a_turn_says_whether_the_answer_is_whole() -> None:
    journal = Journal()
    cut = replace(assistant("I will lo", call("a", "lookup")), finish="length")
    journal.add(message(user()), message(cut, attempt=1))
    journal.add(message(result_message(ToolResult(call_id="a", name="lookup", content="x"), 0)))
    journal.add(message(assistant("Found."), attempt=2), TurnEnded(turn=1, state=State.IDLE))
    final = events_of(journal.late)[-1]["response"]
    assert (final["status"], final["incomplete_details"]) == ("completed", None)
    assert [item["status"] for item in final["output"]] == ["incomplete", "completed"]


def test_a_failed_turn_is_told_with_its_reason_and_nothing_after_it() -> None:
    journal = Journal()
    journal.add(message(user()), TurnEnded(turn=1, state=State.FAILED, detail="rate_limit"))
    journal.add(ChatFailed(error=Failure(code="rate_limit", message="slow down")))
    journal.add(TurnStarted(turn=2), message(assistant("later"), attempt=9), TurnEnded(turn=2, state=State.IDLE))
    last = events_of(journal.late)[-1]
    assert (last["type"], last["response"]["output"]) == ("response.failed", [])
    error = {"code": "rate_limit_exceeded", "message": "slow down", "type": "server_error", "param": None}
    assert last["response"]["error"] == error


def test_ids_name_their_place() -> None:
    assert parse_response_id(ResponsePlace(chat_id="my_chat-7_x", start=12).response_id) == ResponsePlace(
        chat_id="my_chat-7_x", start=12
    )
    assert parse_call_id("call_1-chat_2-x") == ("call_1", "chat_2-x")
    assert parse_call_id("call_1") == ("call_1", None)


def test_a_client_runs_what_a_hook_made_of_its_call() -> None:
    journal = Journal()
    journal.add(TurnStarted(turn=1), message(user("go")))
    journal.add(message(assistant("", call("a", "open_tab", '{"path":"a"}')), attempt=1))
    changed = CallChanged(
        call_id="a", name="open_tab", state=CallState.EXTERNAL, external=External.CLIENT, arguments='{"path":"b"}'
    )
    journal.add(changed, TurnWaiting(call_ids=("a",)))
    telling = Telling(PLACE)
    for frame in journal.live:
        telling.take(frame)
    assert [part.arguments for part in telling.pending.values()] == ['{"path":"b"}']
    assert telling.outputs == list(telling.pending.values())
