"""What was tried against budgets at work: cut-off answers, titles that are tried again, waits that outlast a turn,
days at the change of clocks, tools that say nonsense, and what a chat pays that nothing bounds.
"""

import math
from collections import Counter
from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import TextAdded
from holdfast.agent import Agent, AgentLimits, CompactionPolicy
from holdfast.app import App
from holdfast.config import ModelFacts, Price
from holdfast.core.budgets import Estimate
from holdfast.core.journal import TurnEnded
from holdfast.core.records import Cause
from holdfast.core.spending import TOKENS_MAX
from holdfast.models.base import Settings
from holdfast.models.scripted import Call as ToolUse
from holdfast.models.scripted import Fail, Say, ScriptedModel, Stall
from holdfast.owner_limits import Budgets, OwnerLimits
from holdfast.store.budgets import StepRunner
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext
from holdfast.worker.draws import Draws
from tests.support.chats import journal
from tests.support.turns import QUICK, WAIT_S, rested, running
from tests.support.waiting import eventually

PATIENT = StoreOptions(lease_ttl_ms=10_000)


async def spent(app: App) -> dict[str, tuple[int, int]]:
    return {total.kind: (total.lines, total.tokens) for total in await app.usage(["kind"])}


async def test_an_answer_that_a_stop_cut_off_counts_as_far_as_it_came_in_tokens_and_money(store_url: str) -> None:
    """Its provider says what it took in the end, which never comes."""
    model = ScriptedModel([Say(text="word " * 60), Stall()])
    prices = {model.name: ModelFacts(price=Price(input=1_000.0, output=1_000.0))}
    async with running(store_url, Agent("a", model), models=prices) as (app, _):
        chat = await app.create("a", "go " * 100)
        came = 0
        async for update in chat.stream():
            came += len(update.text) if isinstance(update, TextAdded) else 0
            if came == 300:
                break
        await chat.stop()
        await rested(chat)
        (total,) = await app.usage(["kind", "model"])
        record = (await chat.snapshot()).chat
    assert (total.kind, total.model) == ("stopped", model.name)
    assert total.tokens == record.chat_tokens == 100 + 6 + 100, (
        "300 bytes each way are 100 tokens, and 6 for a message"
    )
    assert total.cost == record.chat_cost == pytest.approx(0.206)


async def test_a_title_draws_for_each_attempt_and_each_counts_though_none_came(store_url: str) -> None:
    writer = ScriptedModel([Say(text="half of"), Fail(attempts=9)])
    agent = Agent("a", ScriptedModel("Hi."), title_model=writer, settings=Settings(max_tokens=10))
    app = App(store_url, [agent], retry=QUICK, budgets=Budgets(each=OwnerLimits(tokens=10_000)), options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        chat = await app.create("a", "one")
        await rested(chat)

        async def tried() -> bool:
            return worker.titles.failed == 1 and not worker.titles._tasks

        await eventually(tried)
        found, record = await spent(app), (await chat.snapshot()).chat
        assert worker.draws.granted == 1 + len(writer.requests) == 6
        assert found["title"][0] == len(writer.requests) == 5
        assert record.chat_tokens == found["title"][1] + found["step"][1], "it counts in the chat, too"
        assert (await app.store.budgets.figures()).reservations == 0


async def test_a_wait_for_what_others_reserved_ends_with_the_time_of_the_turn(store_url: str) -> None:
    agent = Agent("a", ScriptedModel("Hi."), limits=AgentLimits(seconds=0.5), settings=Settings(max_tokens=10))
    app = App(store_url, [agent], budgets=Budgets(each=OwnerLimits(tokens=100)), options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        other = (await (await app.create("a", owner="ann")).snapshot()).chat
        await worker.draws.draw(other, agent, lambda: Estimate(tokens=100), lambda: True)
        chat = await app.create("a", "go", owner="ann")
        await rested(chat)  # and not for ten minutes
        ended = [entry for entry in await journal(app.store, chat.id) if isinstance(entry, TurnEnded)]
        assert (await chat.snapshot()).chat.cause is Cause.BUDGET
    assert ended[-1].detail is not None
    assert ended[-1].detail.startswith("max_seconds: ")


async def test_a_summary_that_was_not_there_in_time_counts_as_far_as_it_came(store_url: str) -> None:
    policy = CompactionPolicy(model=ScriptedModel([Say(text="In short, " * 9), Stall()]), deadline_s=0.5)
    agent = Agent("a", ScriptedModel("First.", "Second."), compaction=policy)
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "one " * 50)
        await rested(chat)
        await chat.send("two")
        await rested(chat)
        await chat.compact()
        await rested(chat)
        found, record = await spent(app), (await chat.snapshot()).chat
    assert found["summary"][1] > 30
    assert record.chat_tokens == found["summary"][1] + found["step"][1]


@pytest.mark.parametrize(
    ("tokens", "cost"), [(1 << 63, 0.0), (0, math.nan), (0, math.inf), (-1, 0.0), (math.nan, 0.0)]
)
async def test_a_tool_that_says_nonsense_fails_and_the_turn_goes_on(store_url: str, tokens: Any, cost: float) -> None:
    @tool(replay="pure")
    async def costly(context: ToolContext) -> str:
        """Costs."""
        context.spent(tokens=7)
        context.spent(tokens=tokens, cost=cost)
        return "done"

    async with running(store_url, Agent("a", ScriptedModel([ToolUse(name="costly")], "So."), tools=[costly])) as (
        app,
        _,
    ):
        chat = await app.create("a", "go")
        assert (await chat.turn(timeout_s=WAIT_S)).text == "So."
        assert (await spent(app))["tool"] == (1, 7)


def test_a_call_says_more_than_once_and_never_more_than_a_call_can_spend() -> None:
    context = ToolContext(call_id="c", chat_id="chat")
    context.spent(tokens=TOKENS_MAX - 1)
    context.spent(tokens=1)
    with pytest.raises(ValueError, match="at most"):
        context.spent(tokens=1)
    assert context.spending == (TOKENS_MAX, 0.0)


# By hand: an instant of a zone, and the day that it is there. Clocks go forward at midnight in Cairo and Havana
# (there is no 00:30 on that day), back to the day before in Havana, and a day of Apia never was.
DAYS = [
    ("Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25T22:59:59Z", "2026-10-25"),
    ("Europe/Berlin", "2026-10-25T23:00:00Z", "2026-10-26"),
    ("Africa/Cairo", "2026-04-23T21:59:59Z", "2026-04-23"),
    ("Africa/Cairo", "2026-04-23T22:00:00Z", "2026-04-24"),
    ("America/Havana", "2026-11-01T04:30:00Z", "2026-11-01"),
    ("America/Havana", "2026-11-01T05:30:00Z", "2026-11-01"),
    ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31"),
]


@pytest.mark.parametrize(("zone", "instant", "day"), DAYS)
def test_a_day_is_that_of_the_zone_also_where_midnight_is_missing_or_comes_twice(
    zone: str, instant: str, day: str
) -> None:
    at = datetime.fromisoformat(instant)

    class Clocked:
        def now_ms(self) -> int:
            return round(at.timestamp() * 1000)

    draws = Draws(Clocked(), Budgets(zone=zone), lambda: "w")  # type: ignore[arg-type]
    assert draws.day() == day == at.astimezone(ZoneInfo(zone)).date().isoformat()


class Counting:
    """Passes on what the ledgers ask the store for, and counts the statements."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.statements: Counter[str] = Counter()

    async def run_steps(self, steps: Callable[[], Generator[Any, Any, Any]]) -> Any:
        """Of draws and of what is entered beside commits: what services do in between is not the chat's."""

        def counted() -> Generator[Any, Any, Any]:
            found = steps()
            return self._counted(found) if getattr(found, "__name__", "") in ("drawing", "_entering") else found

        return await self._runner.run_steps(counted)

    def _counted(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        self.statements["transactions"] += 1
        answer = None
        while True:
            try:
                query = steps.send(answer)
            except StopIteration as done:
                return done.value
            self.statements["in them"] += 1
            answer = yield query

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


async def of_a_step(store_url: str, budgets: Budgets, *, set_for: str | None = None) -> dict[str, int]:
    """What the ledgers ask the store for in two steps of a turn, beside the line in each commit."""

    @tool(replay="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", ScriptedModel([ToolUse(name="look")], "So.", per="chat"), tools=[look])
    app = App(store_url, [agent], budgets=budgets, options=PATIENT)
    async with app, app.worker(poll_s=0.2) as worker:
        await worker.sweeper.run_once()
        if set_for is not None:
            await app.set_budget(set_for, OwnerLimits(day_tokens=10**9))
        await app.store.budgets.is_limited("ann")
        ledgers = app.store.budgets
        ledgers._runner = counting = Counting(ledgers._runner)
        try:
            chat = await app.create("a", "go", owner="ann")
            await rested(chat)
        finally:
            ledgers._runner = counting._runner
    return dict(counting.statements)


async def test_a_chat_that_nothing_bounds_pays_nothing_and_a_bounded_one_a_transaction_for_each_step(
    store_url: str, tell: Callable[[str], None]
) -> None:
    free = await of_a_step(store_url, Budgets())
    others = await of_a_step(store_url, Budgets(owners={"bob": OwnerLimits(tokens=5)}), set_for="eve")
    bounded = await of_a_step(store_url, Budgets(each=OwnerLimits(day_tokens=10**9)))
    tell(f"statements for two steps: nothing bounds it {free}, others are bounded {others}, it is bounded {bounded}")
    assert free == others == {}
    assert bounded["transactions"] == 2
    assert bounded["in them"] <= 2 * 5
