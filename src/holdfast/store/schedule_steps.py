"""What happens to schedules inside one transaction, written once for both stores: programs, each a generator that
yields what it asks of the transaction and is sent the answer.

Each store has a player for them (`sqlite/schedules.py`, `postgres/schedules.py`). The programs are in
`schedule_changes.py` (what people and declarations do) and `schedule_firing.py` (what instants do). Programs of
several schedules go abreast in one transaction: what they ask in the same round is asked in one question.
"""

from collections.abc import Generator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.core.apply import create
from holdfast.core.change import Change
from holdfast.core.commands import Command
from holdfast.core.limits import Limits
from holdfast.core.notices import Notice
from holdfast.core.records import NewChat
from holdfast.core.schedules import Occurrence, ScheduleRecord
from holdfast.errors import HoldfastError, InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.faults import reach
from holdfast.ids import new_stamp
from holdfast.store.checks import check_new_chat
from holdfast.store.decisions import Decided, decided
from holdfast.store.receipts import answer_of
from holdfast.store.records import Answer
from holdfast.store.schedule_statements import ScheduleStatements, schedule_of, schedule_row

T = TypeVar("T")

SCHEDULES = "schedules"  # the topic that rings when one is made or changed
REFUSALS = (RefusedError, InvalidInput, LimitReached, NotFound)


# --- what a program asks of its transaction ---


class Now(NamedTuple):
    """Answer: the wall clock, in ms: the server's, where there is one."""


class Rows(NamedTuple):
    """Answer: the rows of a statement."""

    statement: str
    values: tuple[Any, ...] = ()


class SendTo(NamedTuple):
    """Answer: an Answer, or the error that refuses it; then nothing of it is written. No chat is sent to twice in
    one transaction.
    """

    chat_id: str
    commands: tuple[Command, ...]


class FiredOf(NamedTuple):
    """Answer: for each schedule that has some, the rows of its fired occurrences with what their chats say."""

    schedule_ids: tuple[str, ...]


class Put(NamedTuple):
    """Answer: the keys of those whose rows were written. A row that is there stays as it is."""

    occurrences: tuple[Occurrence, ...]


class MakeChats(NamedTuple):
    """Answer, by the chat's id: an Answer, or the error that refuses it; then nothing of it is written."""

    chats: tuple[NewChat, ...]


class Move(NamedTuple):
    """Rows of occurrences, as they are from now on."""

    occurrences: tuple[Occurrence, ...]


class Swap(NamedTuple):
    """Answer: the ids of the schedules that were still what they had been; only those are written."""

    schedules: tuple[tuple[ScheduleRecord, ScheduleRecord], ...]  # before and after


class Tell(NamedTuple):
    """Of what happened, to endpoints outside that hear of it."""

    notices: tuple[Notice, ...]


class Ring(NamedTuple):
    """Tell waiters, once it is committed."""

    topics: tuple[str, ...]


Step = Now | Rows | SendTo | FiredOf | Put | MakeChats | Move | Swap | Tell | Ring
Program = Generator[Step, Any, T]
# In the order in which a program comes to them: each holds one tuple, and answers by key.
TOGETHER: tuple[type[Any], ...] = (FiredOf, Put, MakeChats, Move, Swap, Tell, Ring)


def abreast(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """All of them in this transaction. Who is ahead waits for the others, so that they ask together."""
    results: dict[int, T] = {}
    asked: dict[int, Step] = {}

    def go_on(n: int, answer: Any) -> None:
        try:
            asked[n] = programs[n].send(answer)
        except StopIteration as stop:
            asked.pop(n, None)
            results[n] = stop.value

    for n in range(len(programs)):
        go_on(n, None)
    while asked:
        alone = [n for n, step in asked.items() if type(step) not in TOGETHER]
        for n in alone:
            go_on(n, (yield asked[n]))
        if alone:
            continue
        kind = next(kind for kind in TOGETHER if kind in map(type, asked.values()))
        some = [n for n, step in asked.items() if type(step) is kind]
        answer = yield kind(tuple(chain.from_iterable(chain.from_iterable(asked[n] for n in some))))
        for n in some:
            go_on(n, answer)
    return [results[n] for n in range(len(programs))]


# --- who plays it ---


class ProgramOf(Protocol[T]):  # type: ignore[misc]
    """Makes the program anew, where a transaction has to be tried again."""

    def __call__(self) -> Program[T]: ...


class Player(Protocol):
    """Plays a program in one write transaction of its store."""

    async def __call__(self, program: ProgramOf[T]) -> T: ...


class Playing(Generic[T]):
    """A program under way: `step` is what it asks, None once there is the `result`."""

    result: T

    def __init__(self, program: ProgramOf[T]) -> None:
        reach("schedule.before")
        self._steps = program()
        self.step: Step | None = None
        self.answer(None)

    def answer(self, answer: Any) -> None:
        try:
            self.step = self._steps.send(answer)
        except StopIteration as stop:
            self.step = None
            self.result = stop.value
            reach("schedule.after")


class ChatsMade(NamedTuple):
    """What a MakeChats comes to, before it is written."""

    made: list[Decided]
    answers: dict[str, Answer | HoldfastError]

    @property
    def changes(self) -> list[Change]:
        return [change for one in self.made for change in one.changes]


def made_chats(step: MakeChats, now: int, limits: Limits) -> ChatsMade:
    """What refuses does so before anything is written."""
    found = ChatsMade([], {})
    for new in step.chats:
        try:
            check_new_chat(new, limits)
            made = decided((create(new, now, limits),))
        except REFUSALS as refusal:
            found.answers[new.id] = refusal
        else:
            found.made.append(made)
            found.answers[new.id] = answer_of(made.changes)
    return found


def sent_in(changes: Sequence[Change]) -> Sequence[Change]:
    """From the change on that took the message in, if there is one."""
    return next((changes[n:] for n, change in enumerate(changes) if change.sent is not None), changes)


# --- what programs have in common ---


class Programs:
    def __init__(self, sql: ScheduleStatements, limits: Limits) -> None:
        self._sql = sql
        self._limits = limits

    def _locked(self, schedule_id: str) -> Program[ScheduleRecord]:
        found = yield Rows(self._sql.lock, (schedule_id,))
        if not found:
            raise NotFound("schedule", schedule_id)
        return schedule_of(found[0])

    def _write(self, before: ScheduleRecord, after: ScheduleRecord, now: int) -> Program[ScheduleRecord]:
        """All of it. Compare and swap: the row is locked, so a miss is a fault."""
        written = replace(after, stamp=new_stamp(), updated_at=now)
        values = (*schedule_row(written)[1:], before.id, before.stamp)
        if not (yield Rows(self._sql.update, values)):
            raise moved_on(before)
        return written


def moved_on(schedule: ScheduleRecord) -> RefusedError:
    words = f"schedule {schedule.id!r} changed meanwhile: look again"
    return RefusedError(words, reason="moved_on", state="", command="write")
