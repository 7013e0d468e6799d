"""The page's timeline and its time travel, in Node: what they make of journals that the core wrote.

Chats that live at random give journals of every kind; at each of their moments, the chat as of that place is the chat
that there was. The stories below are those that a person looks at the picture for.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.core import commands as cmd
from holdfast.core.records import Replay, State
from holdfast.core.states import OPEN
from tests.core.test_random_lives import RandomLives
from tests.support.client_tools import NODE, run
from tests.support.model import ModelStore
from tests.support.story import START, Story, assistant

TIMELINE = Path(__file__).parent / "timeline.js"
LIVES = 12


def pictures(folder: Path, *journals: dict[str, Any]) -> list[Any]:
    written = folder / "journals.jsonl"
    written.write_text("".join(json.dumps(journal) + "\n" for journal in journals), encoding="utf-8")
    found: list[Any] = json.loads(run(NODE, TIMELINE, written))
    return found


# --- every kind of journal ----------------------------------------------------------------------------


def moment_of(store: ModelStore, chat_id: str) -> dict[str, Any]:
    snapshot = store.get(chat_id)
    chat = snapshot.chat
    tells = chat.turn_started_at is not None or chat.state not in (State.RUNNING, State.STOPPING)
    return {
        "seq": chat.seq,
        "messages": [[pos, message.id] for pos, message in store.positions(chat_id).items()],
        "calls": {call.id: str(call.state) for call in snapshot.calls if call.state in OPEN},
        "queue": [queued.id for queued in snapshot.queue],
        "length": chat.length,
        "state": str(chat.state) if tells else None,  # a compaction at rest is not told until it is over
    }


class RecordedLives(RandomLives):
    written: ClassVar[list[dict[str, Any]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.moments: dict[str, list[dict[str, Any]]] = {}
        self.instants: dict[str, list[int]] = {}

    def _happens(self, chat_id: str, *happened: cmd.Command) -> None:
        super()._happens(chat_id, *happened)
        for other in self.store.chats:
            self._note(other)

    def _note(self, chat_id: str) -> None:
        at = self.instants.setdefault(chat_id, [])
        at += [self.now] * (len(self.store.rows[chat_id]) - len(at))
        self.moments.setdefault(chat_id, []).append(moment_of(self.store, chat_id))

    def teardown(self) -> None:
        super().teardown()
        for chat_id in self.store.chats:
            self._note(chat_id)
            rows = zip(self.store.rows[chat_id], self.instants[chat_id], strict=True)
            events = [{"seq": row.seq, "at": at, **msgspec.json.decode(row.body)} for row, at in rows]
            RecordedLives.written.append({"events": events, "moments": self.moments[chat_id], "now": self.now})


def test_at_every_place_of_any_journal_the_chat_is_shown_as_it_was_then(tmp_path: Path) -> None:
    RecordedLives.written.clear()
    run_state_machine_as_test(
        RecordedLives,
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    moments = sum(len(journal["moments"]) for journal in RecordedLives.written)
    assert moments > 50
    assert len(pictures(tmp_path, *RecordedLives.written)) == len(RecordedLives.written)


# --- what a person looks for --------------------------------------------------------------------------


class Told(Story):
    """A story whose journal has instants, and pieces of answers between its entries."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__("m1")
        self._note()
        self.later(40).claimed("w1")

    def _note(self) -> None:
        known = sum(1 for event in self.events if event["kind"] != "delta")
        for row in self.store.rows[self.chat_id][known:]:
            self.events.append({"seq": row.seq, "at": self.now, **msgspec.json.decode(row.body)})

    def all_of(self, *commands: cmd.Command) -> Any:
        done = super().all_of(*commands)
        self._note()
        return done

    def later(self, ms: int) -> "Told":
        super().later(ms)
        return self

    def claimed(self, worker: str = "w1") -> "Told":
        super().claimed(worker)
        return self

    def streams(self, text: str) -> "Told":
        attempt = (self.chat.fence << 20) + self.attempts + 1
        self.events.append(
            {"kind": "delta", "attempt": attempt, "k": 0, "at": self.now, "part": "text", "text": text}
        )
        return self

    def dies(self, heard_at: int) -> "Told":
        assert self.chat.worker is not None
        self.does(cmd.LeaseExpired(worker=self.chat.worker, heard_at=heard_at))
        return self

    def journal_file(self, **more: Any) -> dict[str, Any]:
        return {"events": self.events, "now": self.now, "moments": [moment_of(self.store, self.chat_id)], **more}


def spans(picture: Any, *kinds: str) -> list[tuple[Any, ...]]:
    found = [span for span in picture["spans"] if span["kind"] in kinds]
    return [(s["kind"], s["state"], s["from"] - START, s["until"] and s["until"] - START, s["worker"]) for s in found]


def test_a_kill_in_mid_tool_has_its_gap_from_the_last_sign_to_the_next_workers_first(tmp_path: Path) -> None:
    story = Told()
    story.later(1_000).calls("a", "b", start=True, replay=Replay.PURE)
    story.later(500).does(cmd.Note(by=story.by, topic="progress", text="half", call_id="a"))
    story.later(900).dies(heard_at=story.now - 300)
    story.later(600).claimed("w2").starts("a", "b")
    story.later(200).returns("a").returns("b")
    story.later(300).says(text="Done.").finishes()
    (picture,) = pictures(tmp_path, story.journal_file(at_rest=True))
    assert picture["lanes"] == ["chat", "w1", "w2"]
    assert spans(picture, "gap") == [("gap", "over", 2_140, 3_040, "w1")], "its lease was renewed 300 ms before"
    assert spans(picture, "call") == [
        ("call", "lost", 1_040, 2_140, "w1"),
        ("call", "lost", 1_040, 2_140, "w1"),
        ("call", "done", 3_040, 3_240, "w2"),
        ("call", "done", 3_040, 3_240, "w2"),
    ]
    assert spans(picture, "attempt") == [
        ("attempt", "answered", 0, 1_040, "w1"),
        ("attempt", "answered", 3_240, 3_540, "w2"),
    ]
    (gap,) = [span for span in picture["spans"] if span["kind"] == "gap"]
    assert gap["words"] == (
        "Worker w1 died while it held the chat. It was missed 300 ms after its last sign. "
        "After 900 ms worker w2 went on."
    )


def test_what_may_have_happened_is_marked_where_it_was_lost(tmp_path: Path) -> None:
    story = Told()
    story.later(1_000).calls("pay", start=True)
    story.later(900).dies(heard_at=story.now)
    story.later(600).claimed("w2")
    (picture,) = pictures(tmp_path, story.journal_file())
    assert spans(picture, "call") == [("call", "unknown", 1_040, 1_940, "w1")]
    (call,) = [span for span in picture["spans"] if span["kind"] == "call"]
    assert "outcome unknown" in call["words"]


def test_a_kill_in_mid_stream_loses_the_attempt_and_the_next_worker_asks_again(tmp_path: Path) -> None:
    story = Told()
    story.later(400).streams("It rai")
    story.later(900).dies(heard_at=START)
    open_gap = story.journal_file()
    (before,) = pictures(tmp_path, {**open_gap, "events": list(story.events)})
    story.later(2_000).claimed("w2").later(100).streams("It")
    story.later(1_000).says(text="It snows.").finishes()
    (after,) = pictures(tmp_path, story.journal_file(at_rest=True))
    assert spans(before, "gap") == [("gap", "running", 440, None, "w1")], "nobody has it: it goes on"
    assert spans(after, "gap") == [("gap", "over", 440, 3_340, "w1")], "from the last piece that came"
    assert spans(after, "attempt") == [
        ("attempt", "lost", 0, 440, "w1"),
        ("attempt", "answered", 3_340, 4_440, "w2"),
    ]


def test_a_journal_of_an_older_version_has_the_kill_without_names(tmp_path: Path) -> None:
    story = Told()
    story.later(400).streams("It rai")
    story.later(900).dies(heard_at=START)
    story.later(2_000).claimed("w2")
    story.later(1_000).says(text="It snows.").finishes()
    older = [event for event in story.events if not event["kind"].startswith(("chat.handed", "chat.taken"))]
    for seq, event in enumerate((event for event in older if event["kind"] != "delta"), start=1):
        event["seq"] = seq
    (picture,) = pictures(tmp_path, {"events": older, "now": story.now, "at_rest": True})
    assert picture["lanes"] == ["chat", "a worker"]
    assert spans(picture, "gap") == [("gap", "over", 440, 4_340, None)], "until the next worker wrote something"


def test_waits_retries_stops_and_clean_handovers_are_told_apart(tmp_path: Path) -> None:
    story = Told()
    lost = cmd.AttemptLost(
        by=story.by, attempt=story.next_attempt(), model="m", error="busy", code="overloaded",
        retry_in_ms=700, next_model="m",
    )  # fmt: skip
    story.later(100).does(lost)
    story.later(1_000).calls("pay").asks("pay").parks()
    story.later(90_000).does(cmd.Approve(call_id="pay", by="ann"))
    story.later(50).claimed("w2").starts("pay")
    story.later(100).does(cmd.Release(by=story.by))
    story.later(300).claimed("w1")
    story.later(100).does(cmd.Stop())
    story.later(200).finishes_stop()
    (picture,) = pictures(tmp_path, story.journal_file(at_rest=True))
    assert spans(picture, "retry", "approval", "due", "handover", "stop") == [
        ("retry", "over", 140, 840, None),
        ("approval", "over", 1_140, 91_140, None),
        ("due", "over", 91_140, 91_190, None),
        ("handover", "over", 91_290, 91_590, "w2"),
        ("stop", "over", 91_690, 91_890, "w1"),
    ]
    assert picture["width"] < 10_000, "the minute and a half that it waited for a person is folded"


def test_a_fork_of_the_past_has_no_answer_that_came_later(tmp_path: Path) -> None:
    story = Told()
    story.calls("a", start=True).returns("a")
    (picture,) = pictures(tmp_path, story.journal_file())
    asked, answered = (n for n, event in enumerate(story.events) if event["kind"] == "message" and n > 2)
    assert picture["forks"][asked] == {"length": 1, "open": ["tool"], "cut": False}
    assert picture["forks"][answered] == {"length": 3, "open": [], "cut": False}


def test_what_an_edit_cut_away_cannot_be_forked_any_more(tmp_path: Path) -> None:
    story = Told()
    story.says("r1", text="One.").finishes()
    story.sends("m2")
    story.claimed("w1").says("r2", text="Two.").finishes()
    length = story.chat.length
    story.edits(2, "m3")
    story.claimed("w1").does(story.response(assistant("r3")))
    (picture,) = pictures(tmp_path, story.journal_file())
    cut = [event["kind"] for event in story.events].index("history.cut")
    assert length == 4
    assert picture["forks"][cut - 1] == {"length": 2, "open": [], "cut": True}, "of four messages two are left"
    assert picture["forks"][2] == {"length": 1, "open": [], "cut": False}
    assert [mark["kind"] for mark in picture["marks"]].count("history.cut") == 1
