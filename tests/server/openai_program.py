"""A server with scripted agents, as a process of its own: `python -m tests.server.openai_program URL HOME`."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from holdfast import Agent, App
from holdfast.core.records import ToolResult
from holdfast.core.retry import ErrorFields, RetryPolicy
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    Opened,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.scripted import Call, Fail, Finish, Say, ScriptedModel, Stall
from holdfast.models.wires.failures import provider_error
from holdfast.server.serve import serve
from holdfast.tools.base import tool
from holdfast.tools.outside import ask_user

STORY = " ".join(f"word{number}" for number in range(120))
ONCE = RetryPolicy(attempts_max=1)
SOON = RetryPolicy(base_s=0.01)


class Candid(ScriptedModel):
    """Says what it was asked, and how."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        told = {
            "messages": [[message.role, message.text] for message in request.messages],
            "tools": sorted(spec.name for spec in request.tools),
            "settings": {
                name: getattr(request.settings, name)
                for name in ("temperature", "top_p", "max_tokens", "stop", "seed", "parallel_calls")
            },
            "reasoning_effort": request.settings.reasoning_effort,
            "tool_choice": request.settings.tool_choice,
            "files": [
                file.uri
                for message in request.messages
                for part in message.parts
                if isinstance(part, ToolResult)
                for file in part.files
            ],
            "output": request.settings.output,
        }
        yield TextDelta(text=msgspec.json.encode(told).decode())
        yield ResponseFinished()


class Plain(ScriptedModel):
    """Calls the first tool that it is offered, else it says hello."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        if request.tools and request.messages[-1].role == "user":
            yield CallStarted(index=0, name=request.tools[0].name)
            yield CallArguments(index=0, text='{"location": "San Francisco, CA"}')
            yield CallEnded(index=0)
        else:
            yield TextDelta(text="Hello ")
            yield TextDelta(text="there.")
        yield Usage(input_tokens=30, output_tokens=7, cached_tokens=20, reasoning_tokens=3)
        yield ResponseFinished()


class Handover(Candid):
    """Calls the first of its client's tools, then says what it was asked."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        if request.messages[-1].role == "user":
            yield Opened()
            yield CallStarted(index=0, name=request.tools[0].name)
            yield CallEnded(index=0)
            yield ResponseFinished()
            return
        async for part in super().stream(request):
            yield part


class Payer(ScriptedModel):
    """Pays, and says what came of it."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        last = request.messages[-1].parts[0]
        if isinstance(last, ToolResult):
            yield TextDelta(text=last.content)
        else:
            yield CallStarted(index=0, name="pay")
            yield CallArguments(index=0, text='{"amount": 7}')
            yield CallEnded(index=0)
        yield ResponseFinished()


async def told_to_go_on(request: Request) -> None:
    """The user names a file: whoever has seen what was said so far makes it."""
    gate = Path(request.messages[-1].text)
    while not gate.exists():  # noqa: ASYNC110  another process makes it
        await asyncio.sleep(0.01)


class Fickle(ScriptedModel):
    """Breaks off in its first attempt, once it is told to go on, and says something else in its second."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        for word in ("once ", "upon ") if request.attempt == 1 else ("twice ", "told"):
            yield TextDelta(text=word)
        if request.attempt == 1:
            await told_to_go_on(request)
            raise provider_error("fickle", 500, ErrorFields(message="broke off"), headers={})
        yield ResponseFinished()


class Cliffhanger(ScriptedModel):
    """Tells the story, but its last words only once it is told to go on."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        *words, last = STORY.split(" ")
        for word in words:
            yield TextDelta(text=f"{word} ")
            await asyncio.sleep(0.03)
        await told_to_go_on(request)
        yield TextDelta(text=last)
        yield ResponseFinished()


class Weather(BaseModel):
    celsius: int


@tool(replay="pure")
async def lookup(word: str) -> str:
    "Look a word up."
    return f"{word}: a thing"


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"


def agents() -> list[Agent]:
    calls = [Call(name="weather", arguments={"city": city}) for city in ("Bern", "Basel")]
    ask = Call(name="ask_user", arguments={"question": "Where?"})
    look_up = Call(name="lookup", arguments={"word": "kelp"})
    return [
        Agent("echo", ScriptedModel(after="echo"), instructions="Be brief."),
        Agent("candid", Candid(), instructions="Be candid.", tools=[lookup]),
        Agent("plain", Plain()),
        Agent("handover", Handover()),
        Agent("payer", Payer(), tools=[pay]),
        Agent("story", ScriptedModel(Say(text=STORY, pace_s=0.03), per="turn")),
        Agent("caller", ScriptedModel(["Let me see. ", *calls], "It rains in both.", per="turn")),
        Agent("curious", ScriptedModel([ask, calls[0]], "Thanks.", per="turn"), tools=[ask_user()]),
        Agent("worker", ScriptedModel(["First. ", look_up], "Second.", per="turn"), tools=[lookup]),
        Agent("limited", ScriptedModel([Fail(status=429, message="slow down")]), retry=ONCE),
        Agent("broken", ScriptedModel([Fail(status=500, message="on fire")]), retry=ONCE),
        Agent("stuck", ScriptedModel(["Thinking… ", Stall()], per="turn")),
        Agent("fickle", Fickle(), retry=SOON),
        Agent("cliffhanger", Cliffhanger()),
        Agent("wordy", ScriptedModel(["And then", Finish(reason="length")], per="turn")),
        Agent("judge", ScriptedModel('{"kind": "alga"}', per="turn")),
        Agent("jsonic", ScriptedModel('{"celsius": 7}', per="turn")),
        Agent("typed", ScriptedModel('{"celsius": 7}', per="turn"), output=Weather),
    ]


def main() -> None:
    url, home = sys.argv[1:3]
    limits: dict[str, Any] = {"streams_per_client_max": int(sys.argv[3])} if len(sys.argv) > 3 else {}
    app = App(url, agents(), home=home, port=0, no_plugins=True, grace_s=1.0, **limits)
    asyncio.run(serve(app, say=lambda words: print(words, flush=True)))  # noqa: T201


if __name__ == "__main__":
    main()
