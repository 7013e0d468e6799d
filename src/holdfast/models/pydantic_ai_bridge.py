"""Models of pydantic-ai, for providers that have no wire of ours: `pydantic-ai:groq:llama-3.3-70b-versatile`.

Their retries are off: what is repeated, and when, is decided where it is for every model. Slower than our own wires,
which the bench shows: the SDKs behind it build and check every message anew with every call, and importing them takes
seconds. Needs the extra `holdfast[pydantic-ai]`.
"""

import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec
from msgspec import Raw
from pydantic_ai import exceptions, messages
from pydantic_ai.models import Model as TheirModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from holdfast.core.records import Expansion, File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.core.retry import Kind
from holdfast.errors import ConfigError, LostResult, ProviderError
from holdfast.models.advice import Access, advice_on
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    FinishReason,
    Opened,
    ReasoningDelta,
    Request,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)
from holdfast.models.wires.failures import fields_of, provider_error
from holdfast.models.wires.mapping import arguments_text, is_url

__all__ = ["PydanticAI"]

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool_calls",
    "content_filter": "refused",
}
_IN_PROCESS = ("test", "function")  # they have no stream that could be cut, and give no reason for its end

# Errors without a status of their own, the special before the general.
_KINDS: tuple[tuple[type[Exception], Kind], ...] = (
    (exceptions.ModelContextWindowExceededError, Kind.CONTEXT_TOO_LONG),
    (exceptions.ModelAuthenticationError, Kind.AUTHENTICATION),
    (exceptions.ModelNotFoundError, Kind.NOT_FOUND),
    (exceptions.ModelRateLimitError, Kind.RATE_LIMIT),
    (exceptions.ModelQuotaExceededError, Kind.PAYMENT),
    (exceptions.ModelUnavailableError, Kind.OVERLOADED),
    (exceptions.ModelTimeoutError, Kind.TIMEOUT),
    (exceptions.ModelRequestTimeout, Kind.TIMEOUT),
    (exceptions.ModelConnectionError, Kind.CONNECTION),
    (exceptions.ModelRequestRejectedError, Kind.BAD_REQUEST),
    (exceptions.ContentFilterError, Kind.REFUSED),
    (exceptions.UnexpectedModelBehavior, Kind.LOST_RESULT),
    (exceptions.UserError, Kind.BAD_REQUEST),
)


class PydanticAI:
    """A `Model` around one of pydantic-ai's: `Agent(…, model=PydanticAI(MistralModel("mistral-large-latest")))`."""

    def __init__(self, model: TheirModel, name: str | None = None) -> None:
        self._model = model
        self._name = name or f"pydantic-ai:{model.system}:{model.model_name}"
        self._entered = False
        # Most of its providers read their key from PROVIDER_API_KEY; of a model that a program made, only that knows.
        made_by_name = name is not None and model.system in name
        keys = (f"{model.system.upper().replace('-', '_')}_API_KEY",) if made_by_name else ()
        url = model.base_url or f"https://{model.system}"
        self._access = Access(model=self._name, url=url, key_variables=keys, keyed=bool(keys))

    @property
    def name(self) -> str:
        return self._name

    @property
    def provider(self) -> str:
        return f"pydantic-ai:{self._model.system}"

    @property
    def context_limit(self) -> int | None:
        return self._model.context_window

    async def aclose(self) -> None:
        """Close its connections. Its maker does that: holdfast, where the model was asked for by name."""
        if self._entered:
            self._entered = False
            await self._model.__aexit__(None, None, None)

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        if not self._entered:
            self._entered = True  # before the wait: another stream must not enter it once more
            await self._model.__aenter__()
        said = list(_messages(request.messages, self.provider))
        try:
            async with self._model.request_stream(said, _settings(request), _parameters(request)) as response:
                yield Opened()
                reading = _Reading()
                async for event in response:
                    for part in reading.read(event):
                        yield part
                for part in self._end(response, reading):
                    yield part
        except (exceptions.AgentRunError, exceptions.UserError) as error:
            told = self._error(error)
            told.advice = advice_on(told, self._access)
            raise told from error

    def _end(self, response: StreamedResponse, reading: "_Reading") -> Iterable[StreamPart]:
        usage = response.usage
        yield Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            reasoning_tokens=int(usage.details.get("reasoning_tokens", 0)),
            cache_write_tokens=usage.cache_write_tokens,
        )
        finish = response.finish_reason
        # A stream that ends without a reason has lost its result. Its OpenAI models then make one up.
        made_up = finish != "content_filter" and not getattr(response, "_has_finish_reason", True)
        if made_up or (finish is None and self._model.system not in _IN_PROCESS):
            return
        reason = _REASONS.get(finish or "stop", "other")
        yield ResponseFinished(
            reason="tool_calls" if reading.calls and reason == "stop" else reason, provider_reason=finish
        )

    def _error(self, error: Exception) -> ProviderError:
        if isinstance(error, exceptions.ModelHTTPError):
            return provider_error(self._name, error.status_code, fields_of(error.body), headers=error.headers or {})
        kind = next((kind for type, kind in _KINDS if isinstance(error, type)), Kind.SERVER_ERROR)
        if kind is Kind.LOST_RESULT:
            return LostResult(f"{self._name}: {error}")
        return ProviderError(f"{self._name} ({kind}): {error}", code=kind)


def made(name: str, rest: str) -> PydanticAI:
    """By its name, which is pydantic-ai's own. Raises `ConfigError`."""
    try:
        return PydanticAI(infer_model(rest), name)
    except (ImportError, ValueError, exceptions.UserError) as error:
        raise ConfigError(f"model {name!r} cannot be made by pydantic-ai: {error}") from error


# --- the request -----------------------------------------------------------------------------------


def _settings(request: Request) -> ModelSettings:
    given = request.settings
    values: dict[str, Any] = {
        "temperature": given.temperature,
        "top_p": given.top_p,
        "max_tokens": given.max_tokens,
        "stop_sequences": list(given.stop) or None,
        "seed": given.seed,
        "parallel_tool_calls": given.parallel_calls,
        "thinking": given.reasoning_effort if given.reasoning_effort != "none" else False,
        "extra_body": dict(given.extra) or None,
    }
    if request.tools and given.tool_choice is not None:
        choice = given.tool_choice
        values["tool_choice"] = choice if choice in ("auto", "none", "required") else [choice]
    said: ModelSettings = {"max_retries": 0, "timeout": request.deadlines.call_s}
    said.update({name: value for name, value in values.items() if value is not None})  # type: ignore[typeddict-item]
    return said


def _parameters(request: Request) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=_schema(tool.schema))
        for tool in request.tools
    ]
    if (output := request.settings.output) is None:
        return ModelRequestParameters(function_tools=tools)
    wanted = OutputObjectDefinition(json_schema=_schema(output.schema), name=output.name, strict=output.strict)
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=wanted)


def _schema(schema: Any) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(schema) if isinstance(schema, Raw) else dict(schema)
    return read


def _messages(history: Iterable[Message], provider: str) -> Iterable[messages.ModelMessage]:
    for message in history:
        if message.role is Role.ASSISTANT:
            said = [part for each in message.parts if (part := _response_part(each, provider)) is not None]
            if said:
                yield messages.ModelResponse(parts=said)
        elif parts := _request_parts(message):
            yield messages.ModelRequest(parts=parts)


def _request_parts(message: Message) -> list[messages.ModelRequestPart]:
    if message.role is Role.SYSTEM:
        return [messages.SystemPromptPart(content=part.text) for part in message.parts if isinstance(part, Text)]
    if message.role is Role.TOOL:
        result = message.parts[0]
        assert isinstance(result, ToolResult)
        answer = messages.ToolReturnPart(tool_name=result.name, content=result.content, tool_call_id=result.call_id)
        files = [_user_content(file) for file in result.files]
        return [answer, messages.UserPromptPart(content=files)] if files else [answer]
    content: list[messages.UserContent] = [_user_content(part) for part in message.parts]
    return [messages.UserPromptPart(content=content)]


def _user_content(part: Part) -> messages.UserContent:
    if isinstance(part, Text | Expansion):
        return part.text
    if isinstance(part, File) and part.uri.startswith("data:"):
        return messages.BinaryContent.from_data_uri(part.uri)
    if isinstance(part, File) and is_url(part):
        if part.media_type.startswith("image/"):
            return messages.ImageUrl(url=part.uri, media_type=part.media_type)
        return messages.DocumentUrl(url=part.uri, media_type=part.media_type)
    raise ProviderError(f"pydantic-ai does not take a {type(part).__name__} like this", code="bad_request")


def _response_part(part: Part, provider: str) -> messages.ModelResponsePart | None:
    if isinstance(part, Text):
        return messages.TextPart(content=part.text)
    if isinstance(part, ToolCall):
        return messages.ToolCallPart(tool_name=part.name, args=part.arguments, tool_call_id=part.call_id)
    if isinstance(part, Reasoning) and part.provider == provider and part.signed:
        return messages.ThinkingPart(content=part.text, **json.loads(bytes(part.signature)))
    return None


# --- the response ----------------------------------------------------------------------------------


class _Reading:
    """Their events to our parts."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}  # their index to ours

    def read(self, event: Any) -> Iterable[StreamPart]:
        if isinstance(event, messages.PartStartEvent):
            yield from self._start(event.index, event.part)
        elif isinstance(event, messages.PartDeltaEvent):
            yield from self._more(event.index, event.delta)
        elif isinstance(event, messages.PartEndEvent):
            yield from self._end(event.index, event.part)

    def _start(self, index: int, part: Any) -> Iterable[StreamPart]:
        if isinstance(part, messages.TextPart) and part.content:
            yield TextDelta(text=part.content)
        elif isinstance(part, messages.ThinkingPart) and part.content:
            yield ReasoningDelta(text=part.content)
        elif isinstance(part, messages.ToolCallPart):
            ours = self.calls[index] = len(self.calls)
            yield CallStarted(index=ours, name=part.tool_name, provider_id=part.tool_call_id)
            if text := arguments_text(part.args):
                yield CallArguments(index=ours, text=text)

    def _more(self, index: int, delta: Any) -> Iterable[StreamPart]:
        if isinstance(delta, messages.TextPartDelta) and delta.content_delta:
            yield TextDelta(text=delta.content_delta)
        elif isinstance(delta, messages.ThinkingPartDelta) and delta.content_delta:
            yield ReasoningDelta(text=delta.content_delta)
        elif isinstance(delta, messages.ToolCallPartDelta) and (text := arguments_text(delta.args_delta)):
            yield CallArguments(index=self.calls[index], text=text)

    def _end(self, index: int, part: Any) -> Iterable[StreamPart]:
        if isinstance(part, messages.ThinkingPart) and part.signature:
            kept = {"signature": part.signature, "id": part.id, "provider_name": part.provider_name}
            yield ReasoningDelta(signature=Raw(msgspec.json.encode(kept)))
        elif index in self.calls:
            yield CallEnded(index=self.calls[index])
