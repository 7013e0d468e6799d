"""What the promises' tests share. All of it is made of public names: nothing here that a user could not write.

Histories are judged by `core.history.problems`, which states the rules of promise 4 and knows nothing of how a
history came about; by the provider's own SDK; and once more by rules of this module, on what goes over the wire.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from holdfast import Agent, App, Chat, RetryPolicy, StoreOptions, Tool, tool
from holdfast.core.history import problems
from holdfast.models.wires.openai_chat import OpenAIChat
from holdfast.testing import ScriptedModel
from tests.models.judge import as_the_sdk_reads_it

QUICK = RetryPolicy(base_s=0.001, delay_max_s=0.01)
# A wait that a provider asks for, longer than any test lives. One that we choose is a random share of the longest,
# and may be nothing.
LATER = "60"
WAIT_S = 30.0


def app_of(url: str, *agents: Agent, **options: Any) -> App:
    return App(url, agents=agents, options=StoreOptions(**{"lease_ttl_ms": 10_000, **options}))


async def journal(chat: Chat) -> list[dict[str, Any]]:
    """Everything clients were told so far, without the streamed pieces."""
    upto = (await chat.snapshot()).chat.seq
    told: list[dict[str, Any]] = []
    async for item in chat.events():
        if item.seq is not None:
            told.append(json.loads(item.raw))
        if item.seq == upto:
            break
    return told


async def told_of(chat: Chat, kind: str) -> dict[str, Any]:
    """The first entry of this kind, as soon as it is in the journal."""
    async for item in chat.events():
        entry: dict[str, Any] = json.loads(item.raw)
        if item.seq is not None and entry["kind"] == kind:
            return entry
    raise AssertionError(f"the chat rests, and nobody was told of {kind}")


async def streamed(chat: Chat) -> str:
    """The first piece of a response that is durable, as soon as it is."""
    async for item in chat.events():
        if item.attempt is not None:
            text: str = json.loads(item.raw)["text"]
            return text
    raise AssertionError("the chat rests, and nothing was streamed")


def tool_texts(messages: Sequence[Any]) -> list[str]:
    return [message.parts[0].content for message in messages if message.role == "tool"]


def judge(*models: ScriptedModel) -> None:
    """Every request that these models got is one that a provider accepts, and none had to be repaired for it."""
    for model in models:
        for request in model.requests:
            assert problems(request.messages) == []
            results = [part for message in request.messages for part in message.parts if message.role == "tool"]
            assert [part for part in results if getattr(part, "synthetic", None) == "repaired"] == []
            sent = as_the_sdk_reads_it(json.loads(OpenAIChat("gpt-5").encode(request)))
            assert refusals(sent["messages"]) == []


def refusals(sent: list[dict[str, Any]]) -> list[str]:
    """Why a provider would refuse these messages, by its own documentation and by none of our code."""
    found: list[str] = []
    owed: list[str] = []
    for at, message in enumerate(sent):
        if message["role"] == "tool":
            if not owed or owed.pop(0) != message["tool_call_id"]:
                found.append(f"message {at} answers {message['tool_call_id']}, which is not next")
            continue
        if owed:
            found.append(f"message {at} stands before the results of {owed}")
        calls = message.get("tool_calls") or []
        if not calls and not message.get("content"):
            found.append(f"message {at} ({message['role']}) is empty")
        for call in calls:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                found.append(f"the arguments of {call['id']} are no object")
        owed = [call["id"] for call in calls]
    return found if not owed else [*found, f"nothing answers {owed}"]


class Stubborn:
    """A tool that is told to end and holds on, until the test lets it go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.let_go = asyncio.Event()

    def tool(self, **options: Any) -> Tool:
        async def stubborn() -> str:
            """Hold on."""
            self.entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                await self.let_go.wait()
            return "too late"

        made: Tool = tool(**options)(stubborn)
        return made


@tool(replay="pure")
async def weather(city: str) -> str:
    """Weather of a city."""
    return f"rain in {city}"
