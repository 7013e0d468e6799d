"""The fold of the JavaScript client and Python's, driven by the same journals: update for update, cursor for cursor.

Chats live at random as in `tests/core/test_random_readers.py`. Python's fold reads each journal in several ways,
leaving after every update, after some, or never; all that it took and told is written down. Node folds it again.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.core.fold import Fold
from holdfast.core.journal import Delta, Event
from holdfast.core.shown_words import ShownPrefix
from holdfast.core.update_cursor import Mark, cursor_of, parse_cursor
from holdfast.core.updates import CallView, TurnView, Update
from tests.core.test_random_readers import Moment, Place, RandomReaders, Shelf, place_of
from tests.support.client_tools import NODE, run

REPLAY = Path(__file__).parent / "replay.js"
LIVES = int(os.environ.get("HOLDFAST_RANDOM_LIVES", "12"))
_OF_TURN = ("number", "state", "cause", "detail", "error", "retries", "usage", "cost", "response", "text", "answer")


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, TurnView):
        found = {name: plain(getattr(value, name)) for name in (*_OF_TURN, "reasoning")}
        return {**found, "calls": plain(value.calls), "open": plain(value.open)}
    if isinstance(value, CallView):
        names = [name for name in value.__struct_fields__ if not name.startswith("_")]
        return {name: plain(getattr(value, name)) for name in (*names, "progress", "kind")}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return msgspec.json.decode(msgspec.json.encode(value))


def data_of(event: Event) -> dict[str, Any]:
    """As the server sends it."""
    body = plain(event.body)
    if isinstance(event.body, Delta):
        return {"kind": "delta", "attempt": event.attempt, "k": event.k, "at": event.at, **body}
    return {"seq": event.seq, "at": event.at, **body}


def told(update: Update, event: Event) -> dict[str, Any]:
    fields = {name: plain(getattr(update, name)) for name in update.__struct_fields__ if name != "entry"}
    entry = {"entry": data_of(event)} if hasattr(update, "entry") else {}
    return {"kind": type(update).__name__, **fields, **entry}


class Script:
    """What a fold was given, and what it told."""

    def __init__(self, shelf: Shelf, *, settled: bool, leaves: Callable[[], bool]) -> None:
        self.steps: list[dict[str, Any]] = [{"new": {"settled": settled}}]
        self._shelf = shelf
        self._settled = settled
        self._leaves = leaves
        self._fold = Fold(settled=settled)

    def _take(self, event: Event) -> list[Update]:
        updates = self._fold.take(event)
        self.steps.append(
            {"take": data_of(event), "cursor": event.cursor, "told": [told(update, event) for update in updates]}
        )
        return updates

    def _resume(self, cursor: str) -> Place:
        text, mark = parse_cursor(cursor)
        assert mark is not None
        place = place_of(text)
        self._fold = Fold(settled=self._settled)
        self.steps.append({"new": {"settled": self._settled}})
        for seq in range(mark.turn, place.seq + 1) if mark.turn else ():
            self._take(self._shelf.entry(seq, Place()))
        self._fold.resume(mark, text)
        self.steps.append({"resume": cursor})
        return Place(place.seq)

    def read(self, moments: Sequence[Moment]) -> None:
        place = Place()
        for moment in moments:
            looking = True
            while looking:
                looking = False
                for event in self._shelf.events(moment, place):
                    place = place_of(event.cursor)
                    left = next((update for update in self._take(event) if self._leaves()), None)
                    if left is not None:
                        place, looking = self._resume(left.cursor), True
                        break


def test_both_folds_tell_the_same_of_chats_that_live_at_random(tmp_path: Path) -> None:
    written = tmp_path / "lives.jsonl"
    with written.open("w", encoding="utf-8") as lines:

        class Recorded(RandomReaders):
            def _judge(self, shelf: Shelf) -> None:
                chance = random.Random(len(shelf.moments))
                some = [moment for moment in shelf.moments if chance.random() < 0.4]
                ways: list[list[Moment]] = [shelf.moments, [*some, shelf.moments[-1]], shelf.moments[-1:]]
                for way in ways:
                    for leaves in (lambda: False, lambda: True, lambda: chance.random() < 0.3):
                        script = Script(shelf, settled=chance.random() < 0.2, leaves=leaves)
                        script.read(way)
                        lines.write(json.dumps(script.steps) + "\n")

        run_state_machine_as_test(
            Recorded,
            settings=settings(
                max_examples=LIVES,
                stateful_step_count=40,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    said = json.loads(run(NODE, REPLAY, written))
    assert said["updates"] > 100, said


@pytest.mark.parametrize(
    "mark",
    [
        Mark(),
        Mark(
            turn=127,
            told=128,
            text=ShownPrefix(255, b"123456"),
            reasoning=ShownPrefix(256, b"abcdef"),
            drafts=(65_535, 65_536),
        ),
        Mark(turn=(1 << 32) - 1, told=1 << 32, drafts=(7 << 20, (1 << 53) - 1)),
    ],
)
def test_a_cursor_is_the_same_text_in_both_languages(tmp_path: Path, mark: Mark) -> None:
    """Numbers of every size: what was begun in one language goes on in the other."""
    cursor = cursor_of("place", mark)
    steps = [{"new": {}}, {"again": cursor}]
    (tmp_path / "one.jsonl").write_text(json.dumps(steps) + "\n", encoding="utf-8")
    run(NODE, REPLAY, tmp_path / "one.jsonl")


def test_the_clients_fold_passes_over_lines_of_newer_code(tmp_path: Path) -> None:
    newer = {"kind": "hologram", "seq": 2, "at": 1, "of": "kelp"}
    steps = [{"new": {}}, {"take": newer, "cursor": "2", "told": []}]
    (tmp_path / "newer.jsonl").write_text(json.dumps(steps) + "\n", encoding="utf-8")
    run(NODE, REPLAY, tmp_path / "newer.jsonl")
