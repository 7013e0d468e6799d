"""The app that the clients talk to: `holdfast serve tests.clients.desk:app`. Its model does what the prompt says.

A prompt holds steps in double brackets, `[[call weather {"city": "Bern"}]] [[say {result}]]`. The model plays them
one by one: as many of its answers as follow the prompt, so many steps are behind it. That holds for clients that
send the whole conversation anew, for those that leave it to the server, and for a server that was killed in between.
"""

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast import Agent, App, tool
from holdfast.core.records import File, Message, Role, ToolResult
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
from holdfast.models.scripted import ScriptedModel
from holdfast.models.wires.failures import provider_error

STEP = re.compile(r"\[\[(\w+) ?(.*?)\]\]", re.DOTALL)
WORD = re.compile(r"\s*\S+\s*")
PACE_S = 0.01  # so that a stream has more than one piece
NOTES = Path(os.environ.get("DESK_NOTES", "notes"))


class Puppet(ScriptedModel):
    """Without state: what it does follows from the request alone."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        yield Opened()
        verb, words = step_of(request)
        match verb:
            case "say":
                parts = spoken(filled(words, request))
            case "call":
                name, _, arguments = words.partition(" ")
                parts = called(name, filled(arguments or "{}", request, escaped=True))
            case "answer":
                parts = answered(filled(words, request, escaped=True), request)
            case "tell":
                gate, before, after = words.split("|")
                for part in spoken(before):
                    yield part
                await passed(Path(gate))
                parts = spoken(after)
            case "break":
                for part in spoken(words):
                    yield part
                raise provider_error("puppet", 400, ErrorFields(message="the desk is on fire"), headers={})
            case _:
                raise provider_error("puppet", 400, ErrorFields(message=words or f"no step {verb!r}"), headers={})
        for part in parts:
            yield part
            await asyncio.sleep(PACE_S)
        yield Usage(input_tokens=len(request.messages), output_tokens=7)
        yield ResponseFinished(reason="tool_calls" if isinstance(part, CallEnded) else "stop")


def step_of(request: Request) -> tuple[str, str]:
    """The last message with steps; some clients give a tool's result, or a reminder, in the user's name."""
    answers = 0
    for message in reversed(request.messages):
        if message.role is Role.ASSISTANT:
            answers += 1
        elif message.role is Role.USER and (steps := STEP.findall(message.text)):
            verb, words = steps[min(answers, len(steps) - 1)]
            return verb, words.strip()
    return "say", "heard {heard}"


def filled(words: str, request: Request, *, escaped: bool = False) -> str:
    """What the request holds, where the prompt asks for it; `escaped` as in a JSON string."""
    said = [message for message in request.messages if message.role is not Role.ASSISTANT]
    users = " ".join(message.text for message in said if message.role is Role.USER)
    system = " ".join(message.text for message in said if message.role is Role.SYSTEM)
    values = {
        "heard": " ".join(dict.fromkeys(re.findall(r"kelp-\w+", users))),
        "rules": " ".join(dict.fromkeys(re.findall(r"rule-\w+", system))),
        "result": result_in(said[-1]),
        "images": " ".join(images_in(said)),
        "tools": " ".join(sorted(spec.name for spec in request.tools)),
    }
    return re.sub(
        r"\{(heard|rules|result|images|tools)\}",
        lambda found: json.dumps(values[found[1]])[1:-1] if escaped else values[found[1]],
        words,
    )


def result_in(message: Message) -> str:
    return " ".join(part.content for part in message.parts if isinstance(part, ToolResult)) or message.text


def images_in(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, File):
                yield f"{part.media_type} {len(base64.b64decode(part.uri.partition(',')[2]))}"


def spoken(text: str) -> Iterator[StreamPart]:
    for word in WORD.findall(text):
        yield TextDelta(text=word)


def called(name: str, arguments: str) -> Iterator[StreamPart]:
    yield CallStarted(index=0, name=name, provider_id="puppet-0")
    yield CallArguments(index=0, text=arguments)
    yield CallEnded(index=0)


def answered(words: str, request: Request) -> Iterator[StreamPart]:
    """As the client asks for it: a text of its format, or a call of the tool that takes the answer."""
    value: dict[str, Any] = json.loads(words)
    takers = [spec.name for spec in request.tools if _takes(spec.schema, value)]
    if request.settings.output is None and takers:
        return called(takers[0], words)
    return spoken(words)


def _takes(schema: Raw | Mapping[str, Any], value: dict[str, Any]) -> bool:
    told = json.loads(bytes(schema)) if isinstance(schema, Raw) else schema
    return set(told.get("properties", {})) == set(value)


async def passed(gate: Path) -> None:
    gate.with_suffix(".reached").touch()
    while not gate.exists():  # noqa: ASYNC110  the judge makes it, in another process
        await asyncio.sleep(0.01)


@tool(replay="pure")
async def lookup(word: str) -> str:
    """Look a word up."""
    return f"{word} is an alga"


@tool
def note(line: str) -> str:
    """Write a line down."""
    with NOTES.open("a") as notes:
        notes.write(f"{line}\n")
    return "noted"


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def make_app() -> App:
    once = RetryPolicy(attempts_max=1)
    agents = [
        Agent("desk", Puppet(), instructions="Be exact. rule-desk", tools=[lookup, note, pay], retry=once),
        Agent("titles", ScriptedModel("A title", per="turn")),  # some clients have a small model name their chats
    ]
    return App(agents=agents, no_plugins=True, grace_s=1.0, poll_s=0.5, lease_ttl_s=5.0)


app = make_app()
