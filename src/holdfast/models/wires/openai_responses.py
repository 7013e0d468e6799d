"""The wire of OpenAI Responses, and of the servers that speak it. Pure mapping, both ways.

Nothing is stored at the provider: the whole history goes with every request, and reasoning goes back in the encrypted
form that the provider gave it, to that provider and to no other. Unknown events, items and fields are passed over.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.records import Expansion, File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.core.retry import SIGNATURES
from holdfast.errors import ProviderError
from holdfast.models.base import (
    CallArguments,
    CallEnded,
    CallStarted,
    FinishReason,
    ReasoningDelta,
    Request,
    ResponseFinished,
    Settings,
    StreamPart,
    TextDelta,
    ToolSpec,
    Usage,
)
from holdfast.models.http.sse import SseEvent
from holdfast.models.wires.failures import fields_of, provider_error
from holdfast.models.wires.fragments import Fragments
from holdfast.models.wires.mapping import (
    NO_PROVIDER,
    arguments_text,
    count_of,
    decode_event,
    encode,
    is_url,
    leave_out,
    not_carried,
    not_in_a_message,
    response_id,
    said_text,
    schema_of,
)

PATH = "/responses"
PARAGRAPH = "\n\n"  # between the messages of one response, for people; the provider gets them as it sent them
AMENDABLE = frozenset(
    {
        "include",
        "max_output_tokens",
        "parallel_tool_calls",
        "reasoning",
        "reasoning.effort",
        "reasoning.summary",
        "store",
        "temperature",
        "top_p",
        SIGNATURES,
    }
)


# --- the request -----------------------------------------------------------------------------------


def encode_request(model: str, request: Request, *, known: Fragments) -> bytes:
    """The body. What changes from step to step comes last. Raises `ProviderError` for what this wire cannot carry."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        **_settings(request.settings),
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    else:
        body.pop("parallel_tool_calls", None)
        body.pop("tool_choice", None)
    leave_out(body, sorted(request.unsupported & AMENDABLE))
    if SIGNATURES in request.unsupported:
        known = new_fragments(NO_PROVIDER)
    body.update(request.settings.extra)
    body.pop("input", None)
    return known.encode(request.messages, before=encode(body)[:-1] + b',"input":[', after=b"]}")


def _settings(settings: Settings) -> dict[str, Any]:
    if settings.stop:
        raise ProviderError(
            "OpenAI Responses has no stop sequences: leave out the setting `stop`, or use openai-chat:MODEL",
            code="bad_request",
        )
    values: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
        "parallel_tool_calls": settings.parallel_calls,
        "tool_choice": _tool_choice(settings.tool_choice),
    }
    if (effort := settings.reasoning_effort) is not None:
        # Without a summary nothing comes while it thinks, which can take longer than any deadline for the first byte.
        values["reasoning"] = {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}
    if (output := settings.output) is not None:
        named = {"name": output.name, "schema": schema_of(output.schema), "strict": output.strict}
        values["text"] = {
            "format": {"type": "json_object"} if output.any_object else {"type": "json_schema", **named}
        }
    return {name: value for name, value in values.items() if value is not None}


def _tool_choice(choice: str | None) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "name": choice}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = schema_of(tool.schema)
    # Left out, `strict` would mean true here, and most schemas are not written for that.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": schema,
        "strict": False,
    }


_PLAIN = {role: b'{"role":"' + role.encode() + b'","content":' for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)}


def encode_message(message: Message, provider: str) -> bytes:
    """The items of one message, with commas between; nothing if there is nothing to say."""
    parts = message.parts
    if len(parts) == 1 and type(parts[0]) is Text and parts[0].phase is None:  # most of them
        return _PLAIN[message.role] + encode(parts[0].text) + b"}"
    if message.role is Role.ASSISTANT:
        return b",".join(_assistant_items(parts, provider))
    if message.role is Role.TOOL:
        result = parts[0]
        assert isinstance(result, ToolResult)
        call_id, output = encode(result.call_id), encode(result.content)
        if result.files:
            shown = ([Text(text=result.content)] if result.content else []) + [*result.files]
            output = encode([_content_part(part) for part in shown])
        return b'{"type":"function_call_output","call_id":' + call_id + b',"output":' + output + b"}"
    if message.role is Role.SYSTEM:
        parts = tuple(part for part in parts if isinstance(part, Text))
        if not parts:
            return b""
    return _PLAIN[message.role] + encode([_content_part(part) for part in parts]) + b"}"


def _assistant_items(parts: tuple[Part, ...], provider: str) -> list[bytes]:
    items: list[bytes] = []
    spoken = 0
    first = True
    for part in parts:
        if isinstance(part, Text) and part.text:
            text = part.text if first else part.text.removeprefix(PARAGRAPH)
            phase = b"" if part.phase is None else b',"phase":' + encode(part.phase)
            items.append(_PLAIN[Role.ASSISTANT] + encode(text) + phase + b"}")
            spoken, first = len(items), False
        elif isinstance(part, ToolCall):
            call_id, name, arguments = encode(part.call_id), encode(part.name), encode(part.arguments)
            named = b'{"type":"function_call","call_id":' + call_id + b',"name":' + name
            items.append(named + b',"arguments":' + arguments + b"}")
            spoken = len(items)
        elif isinstance(part, Reasoning) and part.provider == provider and (item := _reasoning(part)):
            items.append(item)
    return items[:spoken]  # reasoning that a stop cut off from what it led to is refused


def _reasoning(part: Reasoning) -> bytes:
    try:
        kept = _signature.decode(part.signature)
    except msgspec.DecodeError:
        return b""  # of another wire
    if kept.type != "reasoning" or not kept.encrypted_content:
        return b""
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    item = {
        "type": "reasoning",
        "id": kept.id,
        "summary": summary,
        "encrypted_content": kept.encrypted_content,
    }
    return encode(item)


def _content_part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text | Expansion):
        return {"type": "input_text", "text": part.text}
    if not isinstance(part, File):
        raise not_in_a_message(part)
    inline = part.uri.startswith("data:")
    if not inline and not is_url(part):
        raise not_carried(part, "OpenAI Responses", "give it as a data: URI or as a URL")
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": part.uri, "detail": "auto"}
    if (text := said_text(part)) is not None:
        return {"type": "input_text", "text": text}
    if inline:
        return {"type": "input_file", "filename": part.name or "file", "file_data": part.uri}
    return {"type": "input_file", "file_url": part.uri}


# --- the response ----------------------------------------------------------------------------------


class _Signature(Struct, gc=False):
    """What is kept of a piece of reasoning, to be given back."""

    type: str
    id: str = ""
    encrypted_content: str = ""


_signature = msgspec.json.Decoder(_Signature)


class _Piece(Struct, gc=False):
    type: str | None = None
    text: Any = None
    refusal: Any = None


class _Item(Struct, gc=False):
    type: str | None = None
    id: Any = None
    call_id: Any = None
    name: Any = None
    arguments: Any = None
    encrypted_content: Any = None
    summary: list[_Piece] | None = None
    content: list[_Piece] | None = None
    phase: Any = None


class _Details(Struct, gc=False):
    cached_tokens: Any = None
    cache_write_tokens: Any = None
    reasoning_tokens: Any = None


class _Usage(Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Why(Struct, gc=False):
    reason: Any = None


class _Response(Struct, gc=False):
    id: Any = None
    status: Any = None
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Why | None = None
    output: list[_Item] | None = None


class _Event(Struct, gc=False):
    type: str | None = None
    delta: Any = None
    output_index: int | str | None = None
    summary_index: Any = None
    item: _Item | None = None
    arguments: Any = None
    text: Any = None
    refusal: Any = None
    response: _Response | None = None
    error: Any = None
    code: Any = None  # with what follows: of an error
    message: Any = None
    param: Any = None
    object: Any = None


_event = msgspec.json.Decoder(_Event)
_whole = msgspec.json.Decoder(_Response)

_REASONS: Mapping[str, FinishReason] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "refused",
}


class _OpenCall:
    __slots__ = ("begun", "ended", "index", "whole")

    def __init__(self, index: int) -> None:
        self.index = index
        self.begun = False  # some of its arguments have come
        self.whole = ""  # all of them, if they came with its start
        self.ended = False


class Decoder:
    """The events of one response, in order. `finished`: it is complete; `done`: nothing more will come."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._calls: dict[Any, _OpenCall] = {}
        self._spoken: set[Any] = set()  # items whose words have streamed
        self._thought: set[Any] = set()
        self._reason: str | None = None
        self._id: str | None = None  # of the response
        self._refused = False
        self._readers: dict[Any, Callable[[_Event, list[StreamPart]], None]] = {
            "response.output_text.delta": self._read_text,
            "response.refusal.delta": self._read_refusal,
            "response.reasoning_summary_text.delta": self._read_thought,
            "response.reasoning_text.delta": self._read_thought,
            "response.reasoning_summary_part.added": self._next_thought,
            "response.output_text.done": self._end_text,
            "response.refusal.done": self._end_text,
            "response.function_call_arguments.delta": self._read_arguments,
            "response.function_call_arguments.done": self._end_arguments,
            "response.output_item.added": self._start_item,
            "response.output_item.done": self._end_item,
            "response.completed": self._end_response,
            "response.incomplete": self._end_response,
            "response.failed": self._fail,
            "error": self._fail,
        }
        self.done = False

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def feed(self, event: SseEvent) -> list[StreamPart]:
        """Raises `ProviderError` for an error in the stream, `LostResult` for what is no JSON."""
        if event.data == b"[DONE]":
            self.done = True
            return []
        read = decode_event(_event, event.data, self._who)
        parts: list[StreamPart] = []
        if (reader := self._readers.get(read.type)) is not None:
            reader(read, parts)
        elif read.object == "response" and read.type is None:
            self._whole_response(decode_event(_whole, event.data, self._who), parts)
        elif read.error is not None or event.name == b"error":
            self._fail(read, parts)
        return parts

    def end(self) -> list[StreamPart]:
        if self._reason is None:
            return []
        open_calls = [call for call in self._calls.values() if not call.ended]
        reason = _REASONS.get(self._reason, "other")
        if reason == "stop" and self._refused:
            reason = "refused"
        elif reason == "stop" and self._calls:
            reason = "tool_calls"
        parts: list[StreamPart] = []
        for call in open_calls:
            self._end_call(call, "", parts)
        return [*parts, ResponseFinished(reason=reason, provider_reason=self._reason, response_id=self._id)]

    def _read_text(self, event: _Event, parts: list[StreamPart]) -> None:
        if event.delta and isinstance(event.delta, str):
            self._say(event.output_index, event.delta, parts)

    def _say(self, at: Any, text: str, parts: list[StreamPart]) -> None:
        """A message of its own is a piece of text of its own, and a paragraph to people."""
        if self._spoken and at not in self._spoken:
            parts.append(TextDelta(text=PARAGRAPH, begins=True))
        self._spoken.add(at)
        parts.append(TextDelta(text=text))

    def _end_text(self, event: _Event, parts: list[StreamPart]) -> None:
        text = event.text or event.refusal
        if text and isinstance(text, str) and event.output_index not in self._spoken:
            self._refused |= event.refusal is not None
            self._say(event.output_index, text, parts)

    def _read_refusal(self, event: _Event, parts: list[StreamPart]) -> None:
        self._refused = True
        self._read_text(event, parts)

    def _read_thought(self, event: _Event, parts: list[StreamPart]) -> None:
        if event.delta and isinstance(event.delta, str):
            self._thought.add(event.output_index)
            parts.append(ReasoningDelta(text=event.delta))

    def _next_thought(self, event: _Event, parts: list[StreamPart]) -> None:
        if event.output_index in self._thought:
            parts.append(ReasoningDelta(text="\n\n"))

    def _read_arguments(self, event: _Event, parts: list[StreamPart]) -> None:
        call = self._calls.get(event.output_index)
        if call is not None and event.delta and isinstance(event.delta, str):
            call.begun = True
            parts.append(CallArguments(index=call.index, text=event.delta))

    def _end_arguments(self, event: _Event, parts: list[StreamPart]) -> None:
        call = self._calls.get(event.output_index)
        if call is not None and not call.begun and (text := arguments_text(event.arguments)):
            call.begun = True
            parts.append(CallArguments(index=call.index, text=text))

    def _end_call(self, call: _OpenCall, arguments: str, parts: list[StreamPart]) -> None:
        """What has not come piece by piece comes whole, from its end or else from its start."""
        if not call.begun and (text := arguments or call.whole):
            parts.append(CallArguments(index=call.index, text=text))
        call.ended = True
        parts.append(CallEnded(index=call.index))

    def _start_item(self, event: _Event, parts: list[StreamPart]) -> None:
        item = event.item
        if item is not None and item.type == "function_call":
            call = self._calls[event.output_index] = _OpenCall(len(self._calls))
            id = item.call_id if isinstance(item.call_id, str) else None
            call.whole = arguments_text(item.arguments)
            parts.append(CallStarted(index=call.index, name=str(item.name or ""), provider_id=id))

    def _end_item(self, event: _Event, parts: list[StreamPart]) -> None:
        """What has not come piece by piece comes whole."""
        item, at = event.item or _Item(), event.output_index
        if item.type == "function_call":
            if at not in self._calls:
                self._start_item(event, parts)
            self._end_call(self._calls[at], arguments_text(item.arguments), parts)
        elif item.type == "message":
            if at not in self._spoken:
                for piece in item.content or ():
                    self._refused |= piece.type == "refusal"
                    if text := piece.text or piece.refusal:
                        self._say(at, str(text), parts)
            if at in self._spoken and item.phase and isinstance(item.phase, str):
                parts.append(TextDelta(phase=item.phase))
        elif item.type == "reasoning":
            self._end_reasoning(item, at, parts)

    def _end_reasoning(self, item: _Item, at: Any, parts: list[StreamPart]) -> None:
        if at not in self._thought:
            texts = [str(piece.text) for piece in (item.summary or item.content or ()) if piece.text]
            if texts:
                parts.append(ReasoningDelta(text="\n\n".join(texts)))
        if isinstance(item.encrypted_content, str) and item.encrypted_content:
            kept = {"type": "reasoning", "id": str(item.id or ""), "encrypted_content": item.encrypted_content}
            parts.append(ReasoningDelta(signature=Raw(encode(kept))))

    def _whole_response(self, response: _Response, parts: list[StreamPart]) -> None:
        ended = _Event(response=response)
        (self._fail if response.status == "failed" else self._end_response)(ended, parts)

    def _end_response(self, event: _Event, parts: list[StreamPart]) -> None:
        response = event.response or _Response()
        self._id = response_id(response.id)
        if not (self._spoken or self._thought or self._calls):  # nothing streamed: all of it comes with the end
            for at, item in enumerate(response.output or ()):
                self._end_item(_Event(item=item, output_index=at), parts)
        if response.usage is not None:
            parts.append(_usage(response.usage))
        why = response.incomplete_details
        self._reason = str((why and why.reason) or response.status or "completed")
        self.done = True

    def _fail(self, event: _Event, parts: list[StreamPart]) -> None:
        response = event.response or _Response()
        error = event.error or response.error
        if error is None:
            error = {"code": event.code, "message": event.message, "param": event.param}
        raise provider_error(self._who, None, fields_of({"error": error}), amendable=AMENDABLE)


def _usage(usage: _Usage) -> Usage:
    given, made = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        input_tokens=count_of(usage.input_tokens),
        output_tokens=count_of(usage.output_tokens),
        cached_tokens=count_of(given.cached_tokens) if given else 0,
        reasoning_tokens=count_of(made.reasoning_tokens) if made else 0,
        cache_write_tokens=count_of(given.cache_write_tokens) if given else 0,
    )


class OpenAIResponses:
    """The wire as `models.http` wants it. `provider`: whose signatures go back."""

    path = PATH
    amendable = AMENDABLE

    def __init__(self, model: str, *, provider: str, fragments: Fragments | None = None) -> None:
        self._model = model
        self._fragments = new_fragments(provider) if fragments is None else fragments

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def encode(self, request: Request) -> bytes:
        return encode_request(self._model, request, known=self._fragments)

    def decoder(self, who: str) -> Decoder:
        return Decoder(who)


def new_fragments(provider: str) -> Fragments:
    return Fragments(partial(encode_message, provider=provider))
