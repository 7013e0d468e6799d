"""Plays the programs of schedules (`store/schedule_programs.py`) in a write transaction of SQLite."""

from typing import Any, TypeVar

from holdfast.core.apply import create
from holdfast.core.limits import Limits
from holdfast.faults import reach
from holdfast.store.checks import check_new_chat
from holdfast.store.decisions import decided
from holdfast.store.receipts import answer_of
from holdfast.store.records import Answer
from holdfast.store.schedule_programs import (
    REFUSALS,
    MakeChat,
    Now,
    ProgramOf,
    Ring,
    Rows,
    SendTo,
    Step,
    Tell,
    sent_in,
)
from holdfast.store.sqlite.transactions import Transaction, Transactor

T = TypeVar("T")


class SqlitePlayer:
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        self._transactor = transactor
        self._limits = limits

    async def __call__(self, program: ProgramOf[T]) -> T:
        def work(transaction: Transaction) -> T:
            reach("schedule.before")
            steps = program()
            answer: Any = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as stop:
                    reach("schedule.after")
                    result: T = stop.value
                    return result
                answer = self._answer(transaction, step)

        return await self._transactor.write(work)

    def _answer(self, transaction: Transaction, step: Step) -> Any:
        if isinstance(step, Rows):
            return transaction.rows(step.statement, *step.values)
        if isinstance(step, Now):
            return transaction.now
        if isinstance(step, Tell):
            return transaction.notice(*step.notices)
        if isinstance(step, Ring):
            return transaction.ring(step.topics)
        try:
            return self._write(transaction, step)
        except REFUSALS as refusal:
            return refusal

    def _write(self, transaction: Transaction, step: MakeChat | SendTo) -> Answer:
        """What refuses does so before anything is written."""
        if isinstance(step, MakeChat):
            check_new_chat(step.new, self._limits)
            made = decided((create(step.new, transaction.now, self._limits),))
        else:
            made = decided(transaction.apply(transaction.must_load(step.chat_id), step.commands))
        transaction.write(made.writes)
        reach("schedule.chat")
        transaction.tell(made.changes)
        return answer_of(sent_in(made.changes))
