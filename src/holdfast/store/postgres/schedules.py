"""Plays the programs of schedules (`store/schedule_steps.py`) in a write transaction of PostgreSQL.

Schedules are locked first, then the chats they reach, from the top of their families down. Whatever their number,
what is asked of them at once goes as JSON, in one round trip.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import astuple

from holdfast.core.change import Change
from holdfast.core.codec import encode
from holdfast.core.limits import Limits
from holdfast.core.schedules import Occurrence, ScheduleRecord
from holdfast.faults import reach
from holdfast.store import schedule_steps as steps
from holdfast.store.decisions import decided
from holdfast.store.postgres import sql
from holdfast.store.postgres.transactions import Transaction, Transactor
from holdfast.store.receipts import answer_of
from holdfast.store.records import Answer
from holdfast.store.rows import Row
from holdfast.store.schedule_statements import OCCURRENCE_COLUMNS, SWAPPED_COLUMNS, swap_values

T = TypeVar("T")


class PostgresPlayer:
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        self._transactor = transactor
        self._limits = limits

    async def __call__(self, program: steps.ProgramOf[T]) -> T:
        async def work(transaction: Transaction) -> T:
            playing = steps.Playing(program)
            await transaction.begin()
            play = _Play(transaction, self._limits)
            while playing.step is not None:
                playing.answer(await play.answer(playing.step))
            await transaction.commit()
            transaction.tell(play.changes)
            transaction.ring(play.topics)
            return playing.result

        return await self._transactor.write(work, "work")


class _Play:
    def __init__(self, transaction: Transaction, limits: Limits) -> None:
        self._transaction = transaction
        self._limits = limits
        self.changes: list[Change] = []  # told once they are committed
        self.topics: set[str] = set()

    async def answer(self, step: steps.Step) -> Any:
        rows = self._transaction.rows
        match step:
            case steps.Now():
                return await self._transaction.look_at_clock()
            case steps.Rows(statement, values):
                return await rows(statement, *values)
            case steps.FiredOf(ids):
                return by_first(await rows(sql.FIRED_OF_SCHEDULES, encode(ids).decode()))
            case steps.Put(occurrences):
                return set(await rows(sql.PUT_OCCURRENCES, _occurrences(occurrences)))
            case steps.Move(occurrences):
                return await rows(sql.MOVE_OCCURRENCES, _occurrences(occurrences))
            case steps.Swap(schedules):
                return {id for (id,) in await rows(sql.SWAP_SCHEDULES, _schedules(schedules))}
            case steps.Tell(notices):
                return await self._transaction.notice(*notices)
            case steps.Ring(topics):
                return self.topics.update(topics)
            case steps.MakeChats():
                return await self._make(step)
            case steps.SendTo():
                try:
                    return await self._send(step)
                except steps.REFUSALS as refusal:
                    return refusal

    async def _make(self, step: steps.MakeChats) -> Any:
        found = steps.made_chats(step, self._transaction.now, self._limits)
        await self._transaction.write([write for made in found.made for write in made.writes])
        reach("schedule.chat")
        self.changes += found.changes
        return found.answers

    async def _send(self, step: steps.SendTo) -> Answer:
        """What refuses does so before anything is written."""
        transaction = self._transaction
        made = decided(await transaction.apply(await transaction.must_load(step.chat_id), step.commands))
        await transaction.write(made.writes)
        reach("schedule.chat")
        self.changes += made.changes
        return answer_of(steps.sent_in(made.changes))


def by_first(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _occurrences(occurrences: Sequence[Occurrence]) -> str:
    return encode([dict(zip(OCCURRENCE_COLUMNS, astuple(one), strict=True)) for one in occurrences]).decode()


def _schedules(pairs: Sequence[tuple[ScheduleRecord, ScheduleRecord]]) -> str:
    return encode([dict(zip(SWAPPED_COLUMNS, swap_values(*pair), strict=True)) for pair in pairs]).decode()
