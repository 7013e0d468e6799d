"""The app of a dashboard's storm: `holdfast serve bench.weathered:app`. Agents with good days and with bad ones."""

import asyncio
import random

from holdfast import Agent, App, ModelFacts, Price, RetryPolicy, tool
from holdfast.models.scripted import Step
from holdfast.testing import Call, Count, Fail, Say, ScriptedModel

PRICES = {
    "large": ModelFacts(price=Price(input=3, output=15)),
    "small": ModelFacts(price=Price(input=0.3, output=1.5)),
}
WORDS = "I will have a look at that and come back with what I find. "


@tool(replay="pure")
async def search(text: str) -> str:
    """Search."""
    await asyncio.sleep(random.uniform(0.05, 0.6))
    return "found it"


@tool(replay="pure", deadline_s=1.0)
async def charge(amount: int) -> str:
    """Charge a card."""
    dice = random.random()
    if dice < 0.15:
        raise ConnectionError("the bank does not answer")
    await asyncio.sleep(2.0 if dice < 0.25 else 0.2)
    return "charged"


def says(pace_s: float) -> Say:
    return Say(text=WORDS * 2, pace_s=pace_s)


def agents() -> list[Agent]:
    looks = Call(name="search", arguments={"text": "it"})
    pays = Call(name="charge", arguments={"amount": 7})
    large: list[Step] = [Count(input_tokens=2_400, output_tokens=180), says(0.04)]
    small: list[Step] = [Count(input_tokens=800, output_tokens=90), says(0.02)]
    support = ScriptedModel([*large, looks], [*large, looks], large, name="large")
    down: list[Step] = [Fail(status=529, message="overloaded", attempts=1)]
    billing = ScriptedModel([*down, *small, pays], small, name="small")
    refused = ScriptedModel([Fail(status=402, message="out of credit")], name="small")
    return [
        Agent("support", support, tools=[search]),
        Agent("billing", billing, tools=[charge]),
        Agent("broke", refused),
    ]


app = App(agents=agents(), models=PRICES, retry=RetryPolicy(base_s=0.2, delay_max_s=1.0))
