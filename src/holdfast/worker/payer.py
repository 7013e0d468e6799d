"""Who pays for a model call beside a turn, a title or an episode: budgets are asked, and what it took counts."""

from collections.abc import Callable
from typing import Any

from holdfast.agent import Agent
from holdfast.core.budgets import Estimate
from holdfast.core.records import ChatRecord
from holdfast.core.spending import Bill, SpendingKind, Spent
from holdfast.models.base import Model, Request, Usage
from holdfast.models.calls import FailedAttempt, Observer, estimated_usage, used_at_least
from holdfast.worker.draws import Drawn, Draws, bill_of


class Payer(Observer):
    """Draws for each attempt, never waiting for it, and counts what it took. Close it at the end."""

    def __init__(
        self,
        draws: Draws,
        kind: SpendingKind,
        chat: ChatRecord,
        agent: Agent[Any],
        request: Request,
        cost_of: Callable[[str, Usage | None], float],
    ) -> None:
        self._kind = kind
        self._draws, self._chat, self._agent, self._request = draws, chat, agent, request
        self._cost_of = cost_of
        self._drawn: Drawn | None = None
        self._under_way = ""  # the model of an attempt that has begun
        self._spent: list[Spent] = []

    async def attempt_wanted(self, n: int, model: Model) -> None:
        """Raises BudgetReached where it would have to wait. What the one before it had reserved is free by then."""
        await self._settle_last()
        given, made = estimated_usage(self._request, ()).input_tokens, self._request.settings.max_tokens or 0
        usage = Usage(input_tokens=given, output_tokens=made)

        def wanted() -> Estimate:
            return Estimate(tokens=given + made, cost=self._cost_of(model.name, usage))

        self._drawn = await self._draws.draw(self._chat, self._agent, wanted, lambda: True, wait_s=0)

    async def attempt_started(self, n: int, model: Model) -> None:
        self._under_way = model.name

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        self.pay(failed.model, failed.usage)

    def pay(self, model: str, usage: Usage | None) -> None:
        self._under_way = ""
        if usage is not None:
            tokens = usage.input_tokens + usage.output_tokens
            self._spent.append(Spent(model=model, tokens=tokens, cost=self._cost_of(model, usage)))

    @property
    def bill(self) -> Bill:
        return bill_of((self._drawn,), self._spent) if self._drawn is not None else Bill(parts=tuple(self._spent))

    def told(self) -> None:
        self._drawn, self._spent = None, []

    def leave(self) -> None:
        self._draws.leave(self._chat, self._kind, self._spent, self._drawn)
        self.told()

    async def _settle_last(self) -> None:
        drawn, spent = self._drawn, self._spent
        self.told()
        if drawn is not None:
            await self._draws.enter(self._chat, self._kind, spent, (drawn,))

    async def close(self) -> None:
        """What no commit tells of."""
        if self._under_way and self._drawn is not None:  # it was cancelled
            self.pay(self._under_way, used_at_least(self._request))
        await self._settle_last()
