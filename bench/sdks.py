"""The providers' own SDKs, each with the same history in its own words, ready to be asked."""

import json
from typing import Any, ClassVar, Protocol

from anthropic import AsyncAnthropic
from google import genai
from google.genai import types as google
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.core.records import Message, Part, Role, Text, ToolCall, ToolResult
from holdfast.models.base import Request
from holdfast.models.calls import Caller, Completed
from holdfast.models.pydantic_ai_bridge import PydanticAI


class Sdk(Protocol):
    """One SDK on one URL. `version`: what stands behind the URL in the name of our model."""

    name: ClassVar[str]
    wire: ClassVar[str]
    kind: ClassVar[str]
    version: ClassVar[str]

    def __init__(self, url: str, history: list[Message]) -> None: ...
    async def call(self) -> int: ...
    async def close(self) -> None: ...


def _parts(history: list[Message]) -> list[tuple[Role, Part]]:
    return [(message.role, part) for message in history for part in message.parts]


class OpenAIChat:
    name: ClassVar[str] = "OpenAI SDK"
    wire: ClassVar[str] = "Chat Completions"
    kind: ClassVar[str] = "compatible"
    version: ClassVar[str] = "/v1"

    def __init__(self, url: str, history: list[Message]) -> None:
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._messages: list[Any] = [self._said(role, part) for role, part in _parts(history)]

    @staticmethod
    def _said(role: Role, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolResult):
            return {"role": "tool", "tool_call_id": part.call_id, "content": part.content}
        if isinstance(part, ToolCall):
            function = {"name": part.name, "arguments": part.arguments}
            return {
                "role": "assistant",
                "tool_calls": [{"id": part.call_id, "type": "function", "function": function}],
            }
        assert isinstance(part, Text)
        return {"role": str(role), "content": part.text}

    async def call(self) -> int:
        stream = await self._client.chat.completions.create(
            model="bench", messages=self._messages, stream=True, stream_options={"include_usage": True}
        )
        text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return "".join(text).count("word")

    async def close(self) -> None:
        await self._client.close()


class OpenAIResponses:
    name: ClassVar[str] = "OpenAI SDK"
    wire: ClassVar[str] = "Responses"
    kind: ClassVar[str] = "compatible-responses"
    version: ClassVar[str] = "/v1"

    def __init__(self, url: str, history: list[Message]) -> None:
        self._client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._input: list[Any] = [self._said(role, part) for role, part in _parts(history)]

    @staticmethod
    def _said(role: Role, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolResult):
            return {"type": "function_call_output", "call_id": part.call_id, "output": part.content}
        if isinstance(part, ToolCall):
            named = {"call_id": part.call_id, "name": part.name, "arguments": part.arguments}
            return {"type": "function_call", **named}
        assert isinstance(part, Text)
        return {"role": str(role), "content": part.text}

    async def call(self) -> int:
        stream = await self._client.responses.create(model="bench", input=self._input, stream=True, store=False)
        text = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        return "".join(text).count("word")

    async def close(self) -> None:
        await self._client.close()


class Anthropic:
    name: ClassVar[str] = "Anthropic SDK"
    wire: ClassVar[str] = "Anthropic Messages"
    kind: ClassVar[str] = "compatible-anthropic"
    version: ClassVar[str] = ""

    def __init__(self, url: str, history: list[Message]) -> None:
        self._client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        self._messages: list[Any] = [self._said(role, part) for role, part in _parts(history)]

    @staticmethod
    def _said(role: Role, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolResult):
            block = {"type": "tool_result", "tool_use_id": part.call_id, "content": part.content}
            return {"role": "user", "content": [block]}
        if isinstance(part, ToolCall):
            named = {"id": part.call_id, "name": part.name, "input": json.loads(part.arguments)}
            return {"role": "assistant", "content": [{"type": "tool_use", **named}]}
        assert isinstance(part, Text)
        return {"role": str(role), "content": [{"type": "text", "text": part.text}]}

    async def call(self) -> int:
        stream = await self._client.messages.create(
            model="bench", max_tokens=100, messages=self._messages, stream=True
        )
        text = [
            event.delta.text
            async for event in stream
            if event.type == "content_block_delta" and event.delta.type == "text_delta"
        ]
        return "".join(text).count("word")

    async def close(self) -> None:
        await self._client.close()


class Gemini:
    name: ClassVar[str] = "google-genai"
    wire: ClassVar[str] = "Gemini"
    kind: ClassVar[str] = "compatible-google"
    version: ClassVar[str] = "/v1beta"

    def __init__(self, url: str, history: list[Message]) -> None:
        options = google.HttpOptions(base_url=url, api_version="v1beta")
        self._client = genai.Client(api_key="none", http_options=options)
        self._contents: Any = [self._said(role, part) for role, part in _parts(history)]

    @staticmethod
    def _said(role: Role, part: Part) -> google.Content:
        if isinstance(part, ToolResult):
            answer = google.Part.from_function_response(name=part.name, response={"output": part.content})
            return google.Content(role="user", parts=[answer])
        if isinstance(part, ToolCall):
            call = google.Part.from_function_call(name=part.name, args=json.loads(part.arguments))
            return google.Content(role="model", parts=[call])
        assert isinstance(part, Text)
        return google.Content(role="model" if role is Role.ASSISTANT else "user", parts=[google.Part(text=part.text)])

    async def call(self) -> int:
        stream = await self._client.aio.models.generate_content_stream(model="bench", contents=self._contents)
        text = [chunk.text or "" async for chunk in stream]
        return "".join(text).count("word")

    async def close(self) -> None:
        await self._client.aio.aclose()
        self._client.close()


class Bridged:
    """pydantic-ai on the OpenAI SDK, through our bridge."""

    name: ClassVar[str] = "through pydantic-ai"
    wire: ClassVar[str] = "bridge to pydantic-ai"
    kind: ClassVar[str] = "compatible"
    version: ClassVar[str] = "/v1"

    def __init__(self, url: str, history: list[Message]) -> None:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        self._model = PydanticAI(OpenAIChatModel("bench", provider=provider))
        self._request = Request(messages=history)
        self._caller = Caller()

    async def call(self) -> int:
        done = await self._caller.call([self._model], self._request)
        assert isinstance(done, Completed)
        return done.message.text.count("word")

    async def close(self) -> None:
        await self._model.aclose()


SDKS: tuple[type[Sdk], ...] = (OpenAIChat, OpenAIResponses, Anthropic, Gemini)
