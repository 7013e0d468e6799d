"""The providers' own SDKs judge our wires: what we send is their request type, what we read is what they read.

`judge` has the one for Chat Completions. All are pointed at a server on loopback, with their retries off. Each SDK is
loaded when it is first asked: that takes a second or two, and every process that collects the tests imports this.
"""

import json
import warnings
from collections.abc import Awaitable, Callable
from functools import cache
from types import ModuleType
from typing import Any

from msgspec import Struct
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from holdfast.core.records import Part, Reasoning, Text, ToolCall
from holdfast.models.base import Usage
from holdfast.models.calls import Completed
from holdfast.models.wires.openai_responses import PARAGRAPH
from tests.models import judge
from tests.support.chat_server import ChatServer


@cache
def google() -> ModuleType:
    """Google's SDK; its types are `google().types`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its source has an escape sequence that Python complains of, once
        from google import genai  # noqa: PLC0415
        from google.genai import types  # noqa: F401, PLC0415

    return genai


class Made(Struct):
    """What came of a stream: comparable, whoever read it."""

    text: str
    thought: str
    calls: list[tuple[str, Any]]
    finish: str | None
    usage: tuple[int, int, int, int] | None


def ours(done: Completed) -> Made:
    return of_parts(done.message.parts, done.finished.provider_reason, done.usage)


def of_parts(parts: tuple[Part, ...], finish: str | None, usage: Usage | None) -> Made:
    return Made(
        text=_said([part.text for part in parts if isinstance(part, Text)]),
        thought="".join(part.text for part in parts if isinstance(part, Reasoning)),
        calls=[(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)],
        finish=finish,
        usage=None
        if usage is None
        else (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens),
    )


def _said(texts: list[str]) -> str:
    """Without the empty line that we put between the messages of one response."""
    return "".join([*texts[:1], *(text.removeprefix(PARAGRAPH) for text in texts[1:])])


# --- what they make of a stream


async def chat(server: ChatServer) -> Made:
    made = await judge.theirs(judge.sdk(server.url))
    calls = [(name, json.loads(arguments)) for name, arguments in made.calls]
    # This SDK leaves reasoning to servers that are not OpenAI.
    return Made(text=made.text, thought="", calls=calls, finish=made.finish, usage=made.usage)


async def responses(server: ChatServer) -> Made:
    final: Any = None
    async with (
        AsyncOpenAI(base_url=server.url, api_key="sk-test", max_retries=0) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        async for event in stream:
            if event.type == "response.incomplete":
                final = event.response  # the SDK has no accumulated response for this end
        final = final or await stream.get_final_response()
    text, thought, calls = "", "", []
    for item in final.output:
        if isinstance(item, ResponseOutputMessage):
            text += "".join(part.text if part.type == "output_text" else part.refusal for part in item.content)
        elif isinstance(item, ResponseReasoningItem):
            thought += "".join(part.text for part in item.summary)
        elif isinstance(item, ResponseFunctionToolCall):
            calls.append((item.name, json.loads(item.arguments)))
    usage = final.usage
    reason = final.incomplete_details.reason if final.incomplete_details else final.status
    return Made(
        text=text,
        thought=thought,
        calls=calls,
        finish=reason,
        usage=usage
        and (
            usage.input_tokens,
            usage.output_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens_details.reasoning_tokens,
        ),
    )


async def anthropic(server: ChatServer) -> Made:
    from anthropic import AsyncAnthropic  # noqa: PLC0415
    from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock  # noqa: PLC0415

    messages: Any = [{"role": "user", "content": "hi"}]
    async with (
        AsyncAnthropic(base_url=server.root, api_key="sk-test", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=9, messages=messages) as stream,
    ):
        final = await stream.get_final_message()
    text, thought, calls = "", "", []
    for block in final.content:
        if isinstance(block, TextBlock):
            text += block.text
        elif isinstance(block, ThinkingBlock):
            thought += block.thinking
        elif isinstance(block, ToolUseBlock):
            calls.append((block.name, block.input))
    usage, details = final.usage, final.usage.output_tokens_details
    read, made = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    counted = (usage.input_tokens + read + made, usage.output_tokens, read, details.thinking_tokens if details else 0)
    return Made(text=text, thought=thought, calls=calls, finish=final.stop_reason, usage=counted)


async def gemini(server: ChatServer) -> Made:
    options = google().types.HttpOptions(base_url=server.root, api_version="v1beta")
    client = google().Client(api_key="sk-test", http_options=options)
    text, thought, finish, usage = "", "", None, None
    calls: list[tuple[str, Any]] = []
    try:
        async for chunk in await client.aio.models.generate_content_stream(model="m", contents="hi"):
            usage = chunk.usage_metadata or usage
            for candidate in chunk.candidates or []:
                finish = candidate.finish_reason.value if candidate.finish_reason else finish
                for part in (candidate.content and candidate.content.parts) or []:
                    if part.function_call:
                        calls.append((part.function_call.name or "", part.function_call.args))
                    elif part.thought:
                        thought += part.text or ""
                    else:
                        text += part.text or ""
    finally:
        await client.aio.aclose()
        client.close()
    thoughts = (usage and usage.thoughts_token_count) or 0
    return Made(
        text=text,
        thought=thought,
        calls=calls,
        finish=finish,
        usage=usage
        and (
            usage.prompt_token_count or 0,
            (usage.candidates_token_count or 0) + thoughts,
            usage.cached_content_token_count or 0,
            thoughts,
        ),
    )


THEIRS: dict[str, Callable[[ChatServer], Awaitable[Made]]] = {
    "compatible": chat,
    "compatible-responses": responses,
    "compatible-anthropic": anthropic,
    "compatible-google": gemini,
}


# --- what they take for a request


@cache
def _messages() -> TypeAdapter[Any]:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming  # noqa: PLC0415

    return TypeAdapter(MessageCreateParamsStreaming)


@cache
def _responses() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseCreateParamsStreaming)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [_plain(inner) for inner in value]  # their lists are lazy


def as_anthropic_reads_it(body: Any) -> Any:
    # Its types know only what its newest models take; older ones, and other servers, take these two as well.
    sampling = {name: body[name] for name in ("temperature", "top_p") if name in body}
    return {**_plain(_messages().validate_python(body)), **sampling}


def as_openai_reads_it(body: Any) -> Any:
    return _plain(_responses().validate_python(body))


def as_google_reads_it(body: Any) -> Any:
    """Through the SDK's models of each part of the body; they refuse what they do not know."""

    def through(model: Any, value: Any) -> Any:
        return model.model_validate(value).model_dump(mode="json", by_alias=True, exclude_none=True)

    types = google().types
    read = dict(body)
    read["contents"] = [through(types.Content, content) for content in body["contents"]]
    if "systemInstruction" in body:
        read["systemInstruction"] = through(types.Content, body["systemInstruction"])
    if "tools" in body:
        read["tools"] = [through(types.Tool, tool) for tool in body["tools"]]
    if "toolConfig" in body:
        read["toolConfig"] = through(types.ToolConfig, body["toolConfig"])
    if "generationConfig" in body:
        read["generationConfig"] = through(types.GenerationConfig, body["generationConfig"])
    return read
