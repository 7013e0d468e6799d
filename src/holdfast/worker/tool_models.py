"""Models that the body of a tool asks: by the one path of all model calls. What they take is spent by the call."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.records import File, Message, Role, Text
from holdfast.errors import ConfigError, ModelCallFailed, ToolFailed
from holdfast.models.base import Model, Request, Usage
from holdfast.models.calls import Completed, FailedAttempt, Observer, used_at_least
from holdfast.tools.context import ToolContext
from holdfast.worker.held_chat import HeldChat

Spend = Callable[[str, Usage | None], None]


class _Spending(Observer):
    """Attempts that came to nothing and are billed all the same."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend
        self.begun: str | None = None  # the model that an attempt is under way on

    async def attempt_started(self, n: int, model: Model) -> None:
        self.begun = model.name

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        self.begun = None
        self._spend(failed.model, failed.usage)


async def ask_model(held: HeldChat, context: ToolContext, name: str, text: str, files: Sequence[File]) -> str:
    """Raises ToolFailed; also where nothing is left of the budgets."""
    left = await context.budget_left()
    if left.tokens == 0 or left.cost == 0:
        raise ToolFailed(f"{name} was not asked: of the budget no {'tokens are' if left.cost else 'money is'} left")
    try:
        model = held.shared.models.get(name)
    except ConfigError as error:
        raise ToolFailed(str(error)) from error
    request = Request(messages=(Message(id="asked", role=Role.USER, parts=(*files, Text(text=text))),))

    def spend(model: str, usage: Usage | None) -> None:
        if usage is not None:
            cost = held.agent.cost_of(model, usage, held.shared.models.facts)
            context.spent(tokens=usage.input_tokens + usage.output_tokens, cost=cost)

    observer = _Spending(spend)
    try:
        outcome = await held.shared.caller.call([model], request, observer=observer)
    except asyncio.CancelledError:
        if observer.begun is not None:
            spend(observer.begun, used_at_least(request))
        raise
    except ModelCallFailed as error:
        raise ToolFailed(f"{name} gave no answer: {error}") from error
    spend(outcome.model, outcome.usage)
    assert isinstance(outcome, Completed), "nobody stops it but by cancelling"
    if not (said := outcome.message.text):
        raise ToolFailed(f"{name} gave no answer in words")
    return said
