"""Plays the programs of schedules (`store/schedule_steps.py`) in a write transaction of SQLite."""

from typing import Any, TypeVar

from msgspec.structs import astuple

from holdfast.core.limits import Limits
from holdfast.faults import reach
from holdfast.store import schedule_steps as steps
from holdfast.store.decisions import decided
from holdfast.store.receipts import answer_of
from holdfast.store.records import Answer
from holdfast.store.schedule_statements import KEY_LENGTH, moving_row, swap_row
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.transactions import Transaction, Transactor

T = TypeVar("T")


class SqlitePlayer:
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        self._transactor = transactor
        self._limits = limits

    async def __call__(self, program: steps.ProgramOf[T]) -> T:
        def work(transaction: Transaction) -> T:
            playing = steps.Playing(program)
            while playing.step is not None:
                playing.answer(self._answer(transaction, playing.step))
            return playing.result

        return await self._transactor.write(work)

    def _answer(self, transaction: Transaction, step: steps.Step) -> Any:
        rows = transaction.rows
        match step:
            case steps.Now():
                return transaction.now
            case steps.Rows(statement, values):
                return rows(statement, *values)
            case steps.FiredOf(ids):
                return {id: rows(sql.SCHEDULES.seen, id) for id in ids}
            case steps.Put(occurrences):
                written = [rows(sql.SCHEDULES.put, *astuple(one)) for one in occurrences]
                return {astuple(one)[:KEY_LENGTH] for one, found in zip(occurrences, written, strict=True) if found}
            case steps.Move(occurrences):
                return transaction.change_each(sql.SCHEDULES.move, map(moving_row, occurrences))
            case steps.Swap(schedules):
                return {id for pair in schedules for (id,) in rows(sql.SCHEDULES.swap, *swap_row(*pair))}
            case steps.Tell(notices):
                return transaction.notice(*notices)
            case steps.Ring(topics):
                return transaction.ring(topics)
            case steps.MakeChats():
                return self._make(transaction, step)
            case steps.SendTo():
                try:
                    return self._send(transaction, step)
                except steps.REFUSALS as refusal:
                    return refusal

    def _make(self, transaction: Transaction, step: steps.MakeChats) -> Any:
        found = steps.made_chats(step, transaction.now, self._limits)
        for made in found.made:
            transaction.write(made.writes)
        reach("schedule.chat")
        transaction.tell(found.changes)
        return found.answers

    def _send(self, transaction: Transaction, step: steps.SendTo) -> Answer:
        """What refuses does so before anything is written."""
        made = decided(transaction.apply(transaction.must_load(step.chat_id), step.commands))
        transaction.write(made.writes)
        reach("schedule.chat")
        transaction.tell(made.changes)
        return answer_of(steps.sent_in(made.changes))
