"""How hard it blows, and what the chats do meanwhile: everything that the fleet and its judge must agree on."""

import asyncio
import random
import time
from pathlib import Path

from msgspec import Struct

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.models.scripted import Call, Response, Say, ScriptedModel, Together
from holdfast.tools.base import Tool, tool
from holdfast.tools.context import ToolContext
from tests.worker.evidence import Evidence, Line, WatchedModel

AGENTS = 8
SAFE = ("look", "pay")  # are run again when their outcome was lost
UNSAFE = ("launch", "launch_in_a_thread")


class Weather(Struct, frozen=True):
    """`brisk` is what `make test` has time for; `real` has the figures that a deployment has."""

    workers: int
    chats: int = 300
    steps: int = 4  # of each chat, at most; one less is the least
    storm_s: float = 9.0
    blow_s: float = 0.7  # on average, from one blow to the next
    pace_s: float = 0.02  # between two words of a model
    tool_s: float = 0.15  # at most
    ttl_s: float = 2.0
    grace_s: float = 1.0
    poll_s: float = 0.5
    held_max: int = 60  # chats held at the same time, by all workers together


def brisk(workers: int) -> Weather:
    return Weather(workers=workers)


def real(workers: int, storm_s: float) -> Weather:
    """The default figures of a deployment. There is work for all of the storm, and a freeze outlasts the lease."""
    return Weather(
        workers=workers,
        steps=9,
        storm_s=storm_s,
        blow_s=6.0,
        pace_s=0.2,
        tool_s=2.0,
        ttl_s=30.0,
        grace_s=25.0,
        poll_s=5.0,
        held_max=100,
    )


class Orders(Struct, frozen=True):
    """What a member of the fleet is told on its command line."""

    url: str
    evidence: str
    life: str
    weather: Weather


def scripts(weather: Weather) -> list[list[Response]]:
    """By agent. The same in every process, and all end by themselves."""
    dice = random.Random(weather.steps)
    return [[*_calls(dice, weather, number), (_say(weather, 6),)] for number in range(AGENTS)]


def _calls(dice: random.Random, weather: Weather, number: int) -> list[Response]:
    def response() -> Response:
        one, other = Call(name=dice.choice((*SAFE, *UNSAFE))), Call(name=dice.choice((*SAFE, *UNSAFE)))
        return (_say(weather, dice.randint(4, 10)), Together(calls=(one, other)) if dice.random() < 0.3 else one)

    return [response() for _ in range(weather.steps - 1 - number % 2)]


def _say(weather: Weather, words: int) -> Say:
    return Say(text="word " * words, pace_s=weather.pace_s)


def agents(weather: Weather, evidence: Evidence) -> list[Agent]:
    tools = toolbox(weather, evidence)
    return [
        Agent(
            f"agent-{number}", WatchedModel(ScriptedModel(*script, name=f"scripted-{number}"), evidence), tools=tools
        )
        for number, script in enumerate(scripts(weather))
    ]


def toolbox(weather: Weather, evidence: Evidence) -> list[Tool]:
    dice = random.Random(evidence.life)

    def enter(name: str, context: ToolContext) -> str:
        """On the disk before anything else happens."""
        call_id, chat_id, key = context.call_id, context.chat_id, context.key
        line = Line(what="entered", life=evidence.life, call_id=call_id, chat_id=chat_id, key=key, tool=name)
        evidence.write(line)
        return f"{name} did {context.call_id} in {evidence.life}"

    async def work(name: str, context: ToolContext) -> str:
        did = enter(name, context)
        await asyncio.sleep(dice.uniform(0, weather.tool_s))
        return did

    @tool(replay="pure")
    async def look(context: ToolContext) -> str:
        return await work("look", context)

    @tool(replay="idempotent")
    async def pay(context: ToolContext) -> str:
        return await work("pay", context)

    @tool
    async def launch(context: ToolContext) -> str:
        return await work("launch", context)

    @tool
    def launch_in_a_thread(context: ToolContext) -> str:
        did = enter("launch_in_a_thread", context)
        time.sleep(dice.uniform(0, weather.tool_s))
        return did

    return [look, pay, launch, launch_in_a_thread]


def make_app(orders: Orders) -> App:
    weather = orders.weather
    return App(
        orders.url,
        agents(weather, Evidence(Path(orders.evidence), orders.life)),
        lease_ttl_s=weather.ttl_s,
        grace_s=weather.grace_s,
        poll_s=weather.poll_s,
        chats_max=max(1, weather.held_max // weather.workers),
    )
