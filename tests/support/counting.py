"""A model that counts the tokens of what it is asked, by its own rule, and refuses what it cannot hold."""

import re
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from holdfast.core.records import Text, ToolCall, ToolResult
from holdfast.core.retry import ErrorFields
from holdfast.models.base import Request, StreamPart, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.models.wires.failures import provider_error

_TOKEN = re.compile(r"\w{1,4}|[^\w\s]")


def tokens_of(text: str) -> int:
    return len(_TOKEN.findall(text))


def tokens_in(request: Request) -> int:
    total = 0
    for message in request.messages:
        total += 4
        for part in message.parts:
            match part:
                case Text(text=text):
                    total += tokens_of(text)
                case ToolCall(name=name, arguments=arguments):
                    total += 4 + tokens_of(name) + tokens_of(arguments)
                case ToolResult(content=content):
                    total += 4 + tokens_of(content)
                case _:
                    pass
    for tool in request.tools:
        total += tokens_of(msgspec.json.encode(tool.schema).decode())
    return total


class CountingModel(ScriptedModel):
    """`holds`: the tokens that it really takes; `context_limit` is what it says, which may be nothing or wrong."""

    holds = 4_096

    def __init__(self, *responses: object, holds: int = 4_096, **options: object) -> None:
        super().__init__(*responses, **options)  # type: ignore[arg-type]
        self.holds = holds
        self.counts: deque[int] = deque(maxlen=10_000)  # of requests that it took
        self.refused = 0

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        count = tokens_in(request)
        if count > self.holds:
            self.requests.append(request)
            self.refused += 1
            said = f"This model's maximum context length is {self.holds} tokens, and you sent {count}."
            raise provider_error(self.name, 400, ErrorFields(message=said, code="context_length_exceeded"))
        self.counts.append(count)
        pieces = 0
        async with aclosing(super().stream(request)) as parts:
            async for part in parts:
                pieces += 1
                yield Usage(input_tokens=count, output_tokens=pieces) if isinstance(part, Usage) else part
