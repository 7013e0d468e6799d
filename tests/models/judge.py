"""The provider's own SDK judges our wire: what we send is its request type, what we read is what it reads."""

import itertools
from functools import cache
from typing import Any

import httpx2
from msgspec import Struct
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from holdfast.core.records import Part, Text, ToolCall
from holdfast.models.assembler import Assembler
from holdfast.models.base import Usage
from holdfast.models.http.sse import EventReader
from holdfast.models.wires.openai_chat import Decoder


@cache
def _params() -> TypeAdapter[Any]:
    return TypeAdapter(CompletionCreateParamsStreaming)


def as_the_sdk_reads_it(body: Any) -> Any:
    """A request body through the SDK's own types, which drop what they do not know and refuse what is wrong."""
    return _plain(_params().validate_python(body))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [_plain(inner) for inner in value]  # its lists are lazy


class Made(Struct):
    """What came of a stream: comparable, whoever read it."""

    text: str
    calls: list[tuple[str, str]]
    finish: str | None
    usage: tuple[int, int, int, int] | None


def assembled(stream: bytes) -> Assembler:
    """The pure half of our side, fed with a recorded stream."""
    reader, decoder = EventReader(), Decoder("test")
    numbers = itertools.count()
    made = Assembler(lambda: f"call_{next(numbers)}")
    for event in reader.feed(stream):
        if decoder.done:
            break
        for part in decoder.feed(event):
            made.add(part)
    for part in decoder.end():
        made.add(part)
    return made


def ours(stream: bytes) -> Made:
    made = assembled(stream)
    return of_parts(made.parts(), None if made.finished is None else made.finished.provider_reason, made.usage)


def of_parts(parts: tuple[Part, ...], finish: str | None, usage: Usage | None) -> Made:
    return Made(
        text="".join(part.text for part in parts if isinstance(part, Text)),
        calls=[(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)],
        finish=finish,
        usage=None
        if usage is None
        else (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens),
    )


async def theirs(client: AsyncOpenAI) -> Made:
    """What the SDK's client and its own accumulation make of the answer to a request."""
    state = ChatCompletionStreamState()
    async with client:
        chunks = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in chunks:
            state.handle_chunk(chunk)
    made = state.current_completion_snapshot
    choice = made.choices[0]
    usage = made.usage
    prompt = usage and usage.prompt_tokens_details
    completion = usage and usage.completion_tokens_details
    return Made(
        text=(choice.message.content or "") + (choice.message.refusal or ""),
        calls=[(call.function.name, call.function.arguments or "{}") for call in choice.message.tool_calls or []],
        finish=choice.finish_reason,
        usage=None
        if usage is None
        else (
            usage.prompt_tokens,
            usage.completion_tokens,
            (prompt and prompt.cached_tokens) or 0,
            (completion and completion.reasoning_tokens) or 0,
        ),
    )


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="sk-test", max_retries=0)


def sdk_on_recording(stream: bytes) -> AsyncOpenAI:
    """The SDK's client, answered with recorded bytes."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return AsyncOpenAI(base_url="http://recorded/v1", api_key="sk-test", max_retries=0, http_client=http)
