"""Plays the programs of schedules (`store/schedule_programs.py`) in a write transaction of PostgreSQL.

The schedule is locked first, then the chats it reaches, from the top of their families down.
"""

from typing import Any, TypeVar

from holdfast.core.apply import create
from holdfast.core.change import Change
from holdfast.core.limits import Limits
from holdfast.faults import reach
from holdfast.store.checks import check_new_chat
from holdfast.store.decisions import decided
from holdfast.store.postgres.transactions import Transaction, Transactor
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

T = TypeVar("T")


class PostgresPlayer:
    def __init__(self, transactor: Transactor, limits: Limits) -> None:
        self._transactor = transactor
        self._limits = limits

    async def __call__(self, program: ProgramOf[T]) -> T:
        async def work(transaction: Transaction) -> T:
            reach("schedule.before")
            await transaction.begin()
            play = _Play(transaction, self._limits)
            steps = program()
            answer: Any = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    break
                answer = await play.answer(step)
            reach("schedule.after")
            await transaction.commit()
            transaction.tell(play.changes)
            transaction.ring(play.topics)
            return result

        return await self._transactor.write(work, "work")


class _Play:
    def __init__(self, transaction: Transaction, limits: Limits) -> None:
        self._transaction = transaction
        self._limits = limits
        self.changes: list[Change] = []  # told once they are committed
        self.topics: set[str] = set()

    async def answer(self, step: Step) -> Any:
        if isinstance(step, Rows):
            return await self._transaction.rows(step.statement, *step.values)
        if isinstance(step, Now):
            return await self._transaction.look_at_clock()
        if isinstance(step, Tell):
            return await self._transaction.notice(*step.notices)
        if isinstance(step, Ring):
            return self.topics.update(step.topics)
        try:
            return await self._write(step)
        except REFUSALS as refusal:
            return refusal

    async def _write(self, step: MakeChat | SendTo) -> Answer:
        """What refuses does so before anything is written."""
        transaction = self._transaction
        if isinstance(step, MakeChat):
            check_new_chat(step.new, self._limits)
            made = decided((create(step.new, transaction.now, self._limits),))
        else:
            made = decided(await transaction.apply(await transaction.must_load(step.chat_id), step.commands))
        await transaction.write(made.writes)
        reach("schedule.chat")
        self.changes += made.changes
        return answer_of(sent_in(made.changes))
