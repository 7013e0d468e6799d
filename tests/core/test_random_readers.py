"""Readers of chats that live at random: whenever they look, wherever they leave, they come to show the exact text.

Chats live as in `test_random_lives.py`, and their models stream what they say, in attempts that are lost, or repeat
themselves, or say something else. Each chat's journal is then read in many ways: at once or as it grew, with pieces
missed that nobody had looked for in time, by readers that leave after any update and go on elsewhere by its cursor.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.fold import Fold
from holdfast.core.journal import Delta, Event, MessageAdded, TurnEnded, TurnStarted
from holdfast.core.records import Phase, Reasoning, State
from holdfast.core.update_cursor import parse_cursor
from holdfast.core.updates import (
    CallDrafted,
    Finished,
    ReasoningAdded,
    Responded,
    Restarted,
    TextAdded,
    TurnView,
    Update,
)
from tests.core.test_random_lives import RandomLives
from tests.support.model import Row
from tests.support.screens import Screen
from tests.support.strategies import next_attempt

# Some begin alike, so that attempts agree for a while.
TEXTS = ("Hi.", "Hi there.", "Grüezi", "Grüezi mitenand", "🦑", "line\nbreak", 'a "quote"')


class Place(NamedTuple):
    """A reader's place, as a store's cursor has it."""

    seq: int = 0
    attempt: int = 0
    k: int = -1

    def __str__(self) -> str:
        return f"{self.seq}.{self.attempt}.{self.k}"


def place_of(text: str) -> Place:
    return Place(*map(int, text.split("."))) if text else Place()


class Moment(NamedTuple):
    """What there was to read of a chat at some time."""

    seq: int
    attempt_ended: int
    deltas: dict[int, tuple[Delta, ...]]


class Shelf:
    """A chat's journal with its past: what a reader would have found in it at any moment."""

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self.moments: list[Moment] = []
        self.deltas: dict[int, tuple[Delta, ...]] = {}

    def entry(self, seq: int, place: Place) -> Event:
        row = self.rows[seq - 1]
        cursor = str(place._replace(seq=seq))
        return Event(cursor=cursor, at=1_000 + seq, body=decode_entry(row.body), raw=row.body, seq=seq)

    def events(self, moment: Moment, place: Place) -> Iterator[Event]:
        """As `read_journal` has them: entries, then what is streamed of an attempt that is not over."""
        for seq in range(place.seq + 1, moment.seq + 1):
            yield self.entry(seq, place)
        for attempt, pieces in sorted(moment.deltas.items()):
            if attempt <= moment.attempt_ended or attempt < place.attempt:
                continue
            for k in range(place.k + 1 if attempt == place.attempt else 0, len(pieces)):
                cursor = str(Place(moment.seq, attempt, k))
                yield Event(cursor=cursor, at=9, body=pieces[k], raw=b"", attempt=attempt, k=k)

    def resume(self, cursor: str, *, settled: bool) -> tuple[Fold, Place]:
        """What `store/update_reader.py` does with a real store."""
        text, mark = parse_cursor(cursor)
        assert mark is not None
        place = place_of(text)
        fold = Fold(settled=settled)
        if mark.turn:
            for seq in range(mark.turn, place.seq + 1):
                fold.take(self.entry(seq, Place()))
        fold.resume(mark, text)
        return fold, Place(place.seq)

    def read(
        self, moments: Sequence[Moment], *, settled: bool, leaves: Callable[[], bool]
    ) -> tuple[list[Update], TurnView]:
        fold, place = Fold(settled=settled), Place()
        told: list[Update] = []
        for moment in moments:
            looking = True
            while looking:
                looking = False
                for event in self.events(moment, place):
                    place = place_of(event.cursor)
                    updates = fold.take(event)
                    left = next((n for n in range(len(updates)) if leaves()), None)
                    told += updates[: None if left is None else left + 1]
                    if left is not None:
                        fold, place = self.resume(updates[left].cursor, settled=settled)
                        looking = True
                        break
        return told, fold.turn

    def committed(self) -> list[tuple[str, str]]:
        """What the model said, and thought, in each turn, up to each of its ends."""
        found: list[tuple[str, str]] = []
        text = reasoning = ""
        for row in self.rows:
            entry = decode_entry(row.body)
            if isinstance(entry, TurnStarted):
                text = reasoning = ""
            elif isinstance(entry, MessageAdded) and entry.attempt is not None:
                message = entry.message
                text += message.text
                reasoning += "".join(part.text for part in message.parts if isinstance(part, Reasoning))
            elif isinstance(entry, TurnEnded):
                found.append((text, reasoning))
        return found


class RandomReaders(RandomLives):
    def __init__(self) -> None:
        super().__init__()
        self.shelves: dict[str, Shelf] = {}
        self.voices: dict[tuple[str, int], list[Delta]] = {}  # what an attempt has yet to say
        self.chance = random.Random(1)

    # --- what happens -------------------------------------------------------------------------------

    def _happens(self, chat_id: str, *happened: cmd.Command) -> None:
        """Before anything happens to a chat whose model is to answer, the model may have begun."""
        chat = self.store.chats[chat_id]
        speaking = chat.state is State.RUNNING and chat.phase is Phase.MODEL and chat.worker is not None
        if speaking and self.chance.random() < 0.8:
            self._stream(chat_id, happened[0])
        super()._happens(chat_id, *happened)
        for other in self.store.chats:
            self._note(other)

    def _stream(self, chat_id: str, what_follows: cmd.Command) -> None:
        attempt = next_attempt(self.store.get(chat_id))
        voice = self.voices.get((chat_id, attempt))
        if voice is None:
            honest = isinstance(what_follows, cmd.Respond) and self.chance.random() < 0.5
            text = what_follows.message.text if honest else self.chance.choice(TEXTS)  # type: ignore[attr-defined]
            voice = self.voices[chat_id, attempt] = self._voice(text)
        shelf = self.shelves.setdefault(chat_id, Shelf())
        for _ in range(min(self.chance.randint(1, 6), len(voice))):
            shelf.deltas[attempt] = (*shelf.deltas.get(attempt, ()), voice.pop(0))
            self._note(chat_id)

    def _voice(self, text: str) -> list[Delta]:
        size = self.chance.randint(1, 4)
        thought = self.chance.choice(((), ("H", "m."), ("Ah",)))
        calls = self.chance.randint(0, 2)
        return [
            *[Delta(part="reasoning", text=piece) for piece in thought],
            *[Delta(part="text", text=text[n : n + size]) for n in range(0, len(text), size)],
            *[Delta(part="arguments", text="", call_id=self._fresh("draft"), name="tool") for _ in range(calls)],
        ]

    def _note(self, chat_id: str) -> None:
        shelf = self.shelves.setdefault(chat_id, Shelf())
        chat = self.store.chats[chat_id]
        moment = Moment(len(self.store.rows[chat_id]), chat.attempt_ended, dict(shelf.deltas))
        if not shelf.moments or shelf.moments[-1] != moment:
            shelf.moments.append(moment)

    # --- what is always true ------------------------------------------------------------------------

    def teardown(self) -> None:
        super().teardown()
        for chat_id in self.store.chats:
            shelf = self.shelves.setdefault(chat_id, Shelf())
            self._note(chat_id)
            shelf.rows = self.store.rows[chat_id]
            self._judge(shelf)

    def _judge(self, shelf: Shelf) -> None:
        chance = random.Random(len(shelf.moments))
        some = [moment for moment in shelf.moments if chance.random() < 0.4]
        ways: list[list[Moment]] = [shelf.moments, [*some, shelf.moments[-1]], shelf.moments[-1:]]
        leaving: list[Callable[[], bool]] = [lambda: False, lambda: True, lambda: chance.random() < 0.3]
        settled = [shelf.read(way, settled=True, leaves=leaves) for way in ways for leaves in leaving]
        live = [shelf.read(way, settled=False, leaves=leaves) for way in ways for leaves in leaving]
        for updates, turn in settled:
            assert [as_told(update) for update in updates] == [as_told(update) for update in settled[0][0]]
            assert not [update for update in updates if isinstance(update, Restarted)], "nothing is ever taken back"
            assert turn == settled[0][1]
        for updates, turn in (*settled, *live):
            judge_text(updates, shelf.committed())
            judge_once(updates)
            assert without_text(updates) == without_text(settled[0][0])
            assert turn == settled[0][1], "all come to the same turn"
        for updates, _ in live[:: len(leaving)]:  # those that never leave
            judge_each(updates)


def as_told(update: Update) -> tuple[str, Any]:
    fields = {name: getattr(update, name) for name in update.__struct_fields__ if name != "cursor"}
    return type(update).__name__, fields


def without_text(updates: Sequence[Update]) -> list[tuple[str, Any]]:
    """What is told once, whoever reads it. The turn beside it has text in it, of which some saw more than others."""
    passing = (TextAdded, ReasoningAdded, Restarted, CallDrafted)
    told = [as_told(update) for update in updates if not isinstance(update, passing)]
    return [(name, {field: value for field, value in fields.items() if field != "turn"}) for name, fields in told]


def judge_text(updates: Sequence[Update], committed: Sequence[tuple[str, str]]) -> None:
    """Whenever something is durable, exactly that is shown."""
    screen, ends = Screen(), []
    for update in updates:
        screen.take(update)
        if isinstance(update, Responded):
            assert screen.text == update.turn.text
            assert update.turn.answer == update.message.text
            assert update.turn.response == update.message
        if isinstance(update, Finished):
            assert (screen.text, screen.reasoning) == (update.turn.text, update.turn.reasoning)
            ends.append((screen.text, screen.reasoning))
    assert ends == list(committed)


def judge_once(updates: Sequence[Update]) -> None:
    drafts = [update.call.id for update in updates if isinstance(update, CallDrafted)]
    assert len(drafts) == len(set(drafts))
    # A reader that takes back all that it showed is where it was before, and may say so.
    cursors = [update.cursor for update in updates if not isinstance(update, Restarted)]
    assert len(cursors) == len(set(cursors))


def judge_each(updates: Sequence[Update]) -> None:
    """Who was there all the time shows what the turn says, at every moment."""
    screen = Screen()
    for update in updates:
        screen.take(update)
        assert (screen.text, screen.reasoning) == (update.turn.text, update.turn.reasoning)


pytestmark = pytest.mark.timeout(900)
TestRandomReaders = RandomReaders.TestCase
TestRandomReaders.settings = settings(
    max_examples=int(os.environ.get("HOLDFAST_RANDOM_LIVES", "20")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
