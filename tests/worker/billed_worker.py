"""A worker whose models are those of a provider that keeps a bill.

`python -m tests.worker.billed_worker ORDERS`, which are JSON. It lives until it is told to stop, or killed.
"""

import asyncio
import json
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.agent import Agent, CompactionPolicy
from holdfast.app import App
from holdfast.core.retry import RetryPolicy
from holdfast.models.base import Settings
from holdfast.owner_limits import Budgets, OwnerLimits
from holdfast.tools.base import tool
from holdfast.tools.context import ToolContext
from holdfast.tools.sub_agents import agent_tools
from tests.support.billing import UNIT, BillingProvider, Tariff, buy
from tests.support.provider import Answer
from tests.support.speakers import Call

SLICE = 100  # tokens that an answer may have: more than any has
BOUGHT_TOKENS, BOUGHT_UNITS = 11, 123_457
# A call of each model, in hundredths for a million tokens: input, output, read from the cache, written to it.
TARIFFS = {
    "parent": Tariff(300, 1_500, 30, 375),
    "child": Tariff(25, 125, 3, 31),
    "title": Tariff(7, 11, 1, 9),
    "summary": Tariff(110, 550, 11, 137),
    "talker": Tariff(1_700, 7_500, 150, 1_875),
    "buyer": Tariff(333, 777, 33, 444),
}
STALLS = frozenset({"talker"})
RETRY = RetryPolicy(attempts_max=50, base_s=0.001, delay_max_s=0.01)


class Orders(Struct, frozen=True):
    url: str
    provider: str
    day_tokens: int
    day_cost: float
    lease_s: float = 10.0


def parents_answer(results: Sequence[str]) -> Answer:
    if not results:
        return Answer(calls=(Call("spawn_agent", (json.dumps({"agent": "child", "task": "help"}),)),))
    if len(results) == 1:
        start = results[0].index("chat")
        child = results[0][start:].split("\\")[0].split('"')[0]
        return Answer(calls=(Call("wait_agent", (json.dumps({"agent_id": child}),)),))
    return Answer(text=("Done.",))


def childs_answer(results: Sequence[str]) -> Answer:
    return Answer(text=("Ok.",))


def buyers_answer(results: Sequence[str]) -> Answer:
    return Answer(text=("Bought.",)) if results else Answer(calls=(Call("pay"), Call("pay")))


CHOICES = {
    "parent": parents_answer,
    "child": childs_answer,
    "title": childs_answer,
    "summary": childs_answer,
    "buyer": buyers_answer,
}


def make_app(orders: Orders) -> App:
    provider = BillingProvider(CHOICES, TARIFFS, STALLS)
    provider.url = orders.provider

    @tool(replay="pure")
    def pay(context: ToolContext) -> str:
        """Buy something."""
        buy(orders.provider, BOUGHT_TOKENS, BOUGHT_UNITS)
        context.spent(tokens=BOUGHT_TOKENS, cost=BOUGHT_UNITS * UNIT)
        return "bought"

    settings = Settings(max_tokens=SLICE)
    names = {model: provider.name(model) for model in TARIFFS}
    agents = [
        Agent("parent", names["parent"], tools=agent_tools(["child"]), settings=settings, title_model=names["title"]),
        Agent("child", names["child"], settings=settings),
        Agent("talker", names["talker"], settings=settings),
        Agent(
            "buyer",
            names["buyer"],
            tools=[pay],
            settings=settings,
            compaction=CompactionPolicy(model=names["summary"]),
        ),
    ]
    limits = OwnerLimits(day_tokens=orders.day_tokens, day_cost=orders.day_cost)
    return App(
        orders.url,
        agents,
        retry=RETRY,
        models=provider.facts(),
        budgets=Budgets(owners={"ann": limits}, slice_tokens=SLICE),
        lease_ttl_s=orders.lease_s,
        poll_s=0.2,
        grace_s=1.0,
    )


if __name__ == "__main__":
    asyncio.run(make_app(msgspec.json.decode(sys.argv[1], type=Orders)).run_worker())
