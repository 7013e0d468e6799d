"""Which changes are told to programs outside, and what is told: ids and names, nothing that was said."""

from typing import Any

import msgspec
import pytest

from holdfast.core import commands as cmd
from holdfast.core.change import Change
from holdfast.core.notices import NOTICE_KINDS, Notice, notices_of
from holdfast.core.records import Cause
from tests.support.situations import (
    call_asking_beside_started,
    calls_planned,
    model_next,
    said,
    said_with_queue,
    waiting_for_approval,
    waiting_for_child,
)
from tests.support.story import BOOM, Story


def data_of(notice: Notice) -> dict[str, Any]:
    return dict(msgspec.json.decode(notice.data))


def only(change: Change) -> Notice:
    (notice,) = notices_of(change)
    return notice


def test_the_end_of_a_turn_names_the_chat_the_turn_and_its_line_in_the_journal() -> None:
    story = said()
    notice = only(story.does(cmd.FinishTurn(by=story.by)))
    assert (notice.kind, notice.chat_id, notice.turn, notice.at) == ("turn.ended", "chat", 1, story.now)
    told = {"chat_id": "chat", "agent": "agent", "seq": story.chat.seq, "turn": 1, "state": "idle"}
    assert data_of(notice) == told, "no owner, no cause: neither is said"


def test_the_line_is_the_turns_end_though_the_next_turn_begins_in_the_same_change() -> None:
    story = said_with_queue()
    notice = only(story.does(cmd.FinishTurn(by=story.by)))
    assert data_of(notice)["state"] == "running"
    line = story.journal[data_of(notice)["seq"] - 1]
    assert type(line).__name__ == "TurnEnded"


def test_a_failure_is_told_by_its_code_alone() -> None:
    story = model_next()
    notice = only(story.does(cmd.Fail(by=story.by, error=BOOM)))
    told = data_of(notice)
    assert (notice.kind, told["state"], told["error"]) == ("turn.failed", "failed", BOOM.code)
    assert BOOM.message not in bytes(notice.data).decode()


def test_a_turn_cut_short_by_a_budget_is_told_twice_as_what_it_is() -> None:
    story = said()
    ended, budget = notices_of(story.does(cmd.FinishTurn(by=story.by, cause=Cause.BUDGET)))
    assert (ended.kind, data_of(ended)["cause"]) == ("turn.ended", "budget")
    assert (budget.kind, data_of(budget)["turn"]) == ("budget.reached", 1)


def test_a_turn_that_waits_names_the_calls_that_people_and_clients_answer() -> None:
    story = Story().claimed().calls("a", "b", "c").asks("a", 60_000)
    story.delegates("b", "client").delegates("c", "timer", 1_000)
    told = data_of(only(story.does(cmd.Park(by=story.by))))
    assert [(call["call_id"], call["kind"]) for call in told["calls"]] == [("a", "approval"), ("b", "client")]
    assert told["calls"][0] == {
        "call_id": "a",
        "tool": story.call("a").name,
        "kind": "approval",
        "digest": story.call("a").digest,
        "expires_at": story.now + 60_000,
    }
    assert "expires_at" not in told["calls"][1]


def test_a_turn_that_waits_for_the_clock_or_a_child_is_nobodys_to_answer() -> None:
    story = Story().claimed().calls("a").delegates("a", "timer", 1_000)
    assert notices_of(story.does(cmd.Park(by=story.by))) == []


def test_a_sub_agents_end_is_no_notice_and_what_it_asks_a_person_is() -> None:
    story = waiting_for_child()
    story.chat_id = next(chat_id for chat_id in story.store.chats if chat_id != "chat")
    story.claimed().calls("below").asks("below")
    asked = only(story.does(cmd.Park(by=story.by)))
    assert (asked.kind, data_of(asked)["root_id"]) == ("turn.waiting", "chat")
    ended = story.does(cmd.Stop())
    assert ended.turn_over is not None
    assert notices_of(ended) == []


@pytest.mark.parametrize("telling", [model_next, calls_planned, call_asking_beside_started])
def test_what_does_not_end_a_turn_nor_wait_tells_nothing(telling: Any) -> None:
    story = telling()
    assert notices_of(story.sends("later")) == []
    assert notices_of(story.stops()) == [], "it is told when it has stopped"


def test_a_stop_of_a_waiting_turn_is_its_end() -> None:
    story = waiting_for_approval()
    notice = only(story.stops())
    assert (notice.kind, data_of(notice)["cause"]) == ("turn.ended", "user")


def test_an_endpoint_cannot_choose_a_ping() -> None:
    assert "ping" not in NOTICE_KINDS
    assert len(NOTICE_KINDS) == 6
