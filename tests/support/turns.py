"""Driving chats through the public surface: an app with a worker, tools that wait at a gate, what was said."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.config import ModelFacts
from holdfast.core.history import problems
from holdfast.core.records import Message, State, ToolResult
from holdfast.core.retry import RetryPolicy
from holdfast.models.scripted import ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.tools.base import Tool, tool
from holdfast.worker.worker import Worker

QUICK = RetryPolicy(base_s=0.001, delay_max_s=0.01)
WAIT_S = 30.0


class Gate:
    """A tool body that waits until the test lets it go, and says when it is there."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.starts = 0

    def tool(self, **options: Any) -> Tool:
        async def gate() -> str:
            """Wait for the gate."""
            self.starts += 1
            self.entered.set()
            await self.opened.wait()
            return "through"

        made: Tool = tool(**options)(gate) if options else tool(gate)
        return made


@asynccontextmanager
async def running(
    url: str, agent: Agent, *, models: dict[str, ModelFacts] | None = None, **options: Any
) -> AsyncIterator[tuple[App, Worker]]:
    app = App(url, agents=[agent], retry=QUICK, options=StoreOptions(lease_ttl_ms=10_000), models=models)
    async with app, app.worker(poll_s=0.5, **options) as worker:
        yield app, worker
    for request in agent.model.requests if isinstance(agent.model, ScriptedModel) else ():
        assert problems(request.messages) == [], "every request held a history that a provider accepts"


async def rested(chat: Chat) -> State:
    return await chat.wait(WAIT_S)


def said(messages: list[Message]) -> list[tuple[str, str]]:
    result = []
    for message in messages:
        part = message.parts[0]
        result.append((str(message.role), part.content if isinstance(part, ToolResult) else message.text))
    return result


async def entries(chat: Chat) -> list[Any]:
    return [event.body async for event in chat.events() if event.seq is not None]


@tool(replay="pure")
async def weather(city: str) -> str:
    """Weather of a city."""
    return f"rain in {city}"
