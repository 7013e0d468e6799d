"""The wire of Anthropic Messages, and of the servers that speak it. Pure mapping, both ways.

Reasoning goes back with its signature, to the provider that signed it and to no other. Prompt caching is explicit
here: the last system block and the last two messages are marked, nothing else, so that each step reads what the step
before it wrote. Unknown events, blocks and fields are passed over.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.records import Expansion, File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.core.retry import SIGNATURES
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
    arguments_object,
    arguments_text,
    count_of,
    decode_event,
    encode,
    inline_data,
    inline_text,
    is_url,
    leave_out,
    not_carried,
    not_in_a_message,
    response_id,
    schema_of,
)
from holdfast.models.wires.two_sides import Turns, marked, split_system

PATH = "/messages"
VERSION = "2023-06-01"

EAGER = "eager_input_streaming"
JSON_OBJECT = "Answer with one JSON object, and with nothing else."
MAX_TOKENS = 16_000  # this wire wants to know; no more than the model can, where that is known
AMENDABLE = frozenset(
    {"temperature", "top_p", "stop_sequences", "thinking", "output_config.effort", EAGER, SIGNATURES}
)

# How much models think that do not decide it themselves. The wire takes no fewer than 1,024 tokens.
BUDGETS: Mapping[str, int] = {"minimal": 1_024, "low": 2_048, "medium": 10_000, "high": 16_384, "xhigh": 32_768}
TOP_P_MIN = 0.95  # of a model that thinks
EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BUDGETED = ("claude-3", "claude-sonnet-4-0", "claude-sonnet-4-2", "claude-sonnet-4-5", "claude-haiku-4",
             "claude-opus-4-0", "claude-opus-4-1", "claude-opus-4-2", "claude-opus-4-5")  # fmt: skip
# Claude models that still take a temperature; those of other makers do.
_SAMPLED = (*_BUDGETED, "claude-sonnet-4", "claude-opus-4-6")

_MARK = b',"cache_control":{"type":"ephemeral"}'


# --- the request -----------------------------------------------------------------------------------


def encode_request(
    model: str, request: Request, *, known: Fragments, output_limit: int | None = None, eager: bool = False
) -> bytes:
    """The body. What changes from step to step comes last. Raises `ProviderError` for what this wire cannot carry.

    `eager`: arguments are to come as they are written. Anthropic's own servers keep each of them back until it is
    whole otherwise, and say nothing meanwhile: minutes, for a file.
    """
    system, messages = split_system(request.messages)
    body: dict[str, Any] = {"model": model, "stream": True, **_settings(model, request.settings, output_limit)}
    if request.tools:
        early = {EAGER: True} if eager and EAGER not in request.unsupported else {}
        body["tools"] = [{**_tool(tool), **early} for tool in request.tools]
    else:
        body.pop("tool_choice", None)
    leave_out(body, sorted(request.unsupported & AMENDABLE))
    if SIGNATURES in request.unsupported:
        body.pop("thinking", None)  # it would want the thoughts before a call back
        known = new_fragments(NO_PROVIDER)
    _reconcile(body)
    body.update(request.settings.extra)
    for name in ("system", "messages"):
        body.pop(name, None)
    pieces = [encode(body)[:-1]]
    blocks = [block for block in map(_encode_system, system) if block]
    if request.settings.output is not None and request.settings.output.any_object:
        blocks.append(_text(JSON_OBJECT))  # this wire takes objects of a schema, and this one has none
    if blocks:
        pieces.append(b',"system":[' + marked(b",".join(blocks), _MARK) + b"]")
    turns = Turns(known, messages, users=b'{"role":"user","content":[', models=b'{"role":"assistant","content":[')
    turns.mark_last_two(_MARK)
    return b"".join([*pieces, b',"messages":[', *turns.pieces, b"]}"])


def _settings(model: str, settings: Settings, output_limit: int | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "max_tokens": settings.max_tokens or min(MAX_TOKENS, output_limit or MAX_TOKENS),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": settings.stop or None,
        "tool_choice": _tool_choice(settings),
    }
    if model.startswith("claude-"):
        if not model.startswith(_SAMPLED):
            values["temperature"] = values["top_p"] = None
        elif settings.temperature is not None:
            values["top_p"] = None  # one of the two is all that they take
    config: dict[str, Any] = {}
    if settings.reasoning_effort is not None:
        _think(model, settings, output_limit, values, config)
    if (output := settings.output) is not None and not output.any_object:
        config["format"] = {"type": "json_schema", "schema": schema_of(output.schema)}
    values["output_config"] = config or None
    return {name: value for name, value in values.items() if value is not None}


def _think(
    model: str, settings: Settings, output_limit: int | None, values: dict[str, Any], config: dict[str, Any]
) -> None:
    """Older models are told how long to think, newer ones how hard."""
    effort = settings.reasoning_effort or ""
    if effort == "none":
        values["thinking"] = {"type": "disabled"}
        return
    if not model.startswith(_BUDGETED):
        # Left out, newer Claude models would show nothing of it, and be silent for as long as they think.
        shown = {"display": "summarized"} if model.startswith("claude-") else {}
        values["thinking"] = {"type": "adaptive", **shown}
        config["effort"] = effort if effort in EFFORTS else "low"
        return
    budget = BUDGETS.get(effort, BUDGETS["high"])
    if settings.max_tokens is None:  # it counts what is thought, too
        more = values["max_tokens"] + budget
        values["max_tokens"] = more if output_limit is None else min(more, output_limit)
    budget = min(budget, values["max_tokens"] // 2)
    if budget >= BUDGETS["minimal"]:
        values["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _reconcile(body: dict[str, Any]) -> None:
    """Thinking goes neither with a call that is forced, which comes first, nor with sampling, which comes last."""
    if body.get("thinking", {}).get("type") not in ("enabled", "adaptive"):
        return
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        del body["thinking"]
        return
    body.pop("temperature", None)
    if body.get("top_p", 1) < TOP_P_MIN:
        del body["top_p"]


def _tool_choice(settings: Settings) -> dict[str, Any] | None:
    kinds = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
    chosen = settings.tool_choice
    if chosen is None and settings.parallel_calls is None:
        return None
    choice: dict[str, Any] = {"type": kinds.get(chosen, "tool")}
    if choice["type"] == "tool":
        choice["name"] = chosen
    if settings.parallel_calls is not None and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = not settings.parallel_calls
    return choice


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": schema_of(tool.schema)}


def _encode_system(message: Message) -> bytes:
    return b",".join([_text(part.text) for part in message.parts if isinstance(part, Text) and part.text.strip()])


def encode_message(message: Message, provider: str) -> bytes:
    """The blocks of one message, with commas between; nothing if there is nothing to say."""
    if message.role is Role.ASSISTANT:
        return b",".join(_assistant_blocks(message.parts, provider))
    if message.role is Role.TOOL:
        result = message.parts[0]
        assert isinstance(result, ToolResult)
        call_id, content = encode(result.call_id), encode(result.content)
        if result.files:
            blocks = [_user_block(Text(text=result.content)), *[_user_block(file) for file in result.files]]
            content = b"[" + b",".join([block for block in blocks if block]) + b"]"
        error = b',"is_error":true' if result.error else b""
        return b'{"type":"tool_result","tool_use_id":' + call_id + error + b',"content":' + content + b"}"
    blocks = [_user_block(part) for part in message.parts]
    return b",".join([block for block in blocks if block]) or _text("(no text)")


def _assistant_blocks(parts: tuple[Part, ...], provider: str) -> list[bytes]:
    blocks: list[bytes] = []
    spoken = 0
    for part in parts:
        if isinstance(part, Text) and part.text.strip():  # a block of white space is refused
            blocks.append(_text(part.text))
            spoken = len(blocks)
        elif isinstance(part, ToolCall):
            call_id, name, given = encode(part.call_id), encode(part.name), arguments_object(part.arguments)
            blocks.append(b'{"type":"tool_use","id":' + call_id + b',"name":' + name + b',"input":' + given + b"}")
            spoken = len(blocks)
        elif isinstance(part, Reasoning) and part.provider == provider and (block := _thinking(part)):
            blocks.append(block)
    return blocks[:spoken]  # reasoning that a stop cut off from what it led to is refused as the last block


def _thinking(part: Reasoning) -> bytes:
    try:
        signature = _signature.decode(part.signature)
    except msgspec.DecodeError:
        return b""  # of another wire
    if signature.type == "redacted_thinking":
        return b'{"type":"redacted_thinking","data":' + encode(signature.data) + b"}"
    if signature.type != "thinking":
        return b""
    return (
        b'{"type":"thinking","thinking":' + encode(part.text) + b',"signature":' + encode(signature.signature) + b"}"
    )


def _text(text: str) -> bytes:
    return b'{"type":"text","text":' + encode(text) + b"}"


def _user_block(part: Part) -> bytes:
    if isinstance(part, Text | Expansion):
        return _text(part.text) if part.text.strip() else b""
    if isinstance(part, File):
        return encode(_file(part))
    raise not_in_a_message(part)


def _file(file: File) -> dict[str, Any]:
    image, pdf = file.media_type.startswith("image/"), file.media_type == "application/pdf"
    kind = "image" if image else "document"
    title = {} if image or file.name is None else {"title": file.name}
    if (image or pdf) and is_url(file):
        return {"type": kind, "source": {"type": "url", "url": file.uri}, **title}
    if (image or pdf) and (data := inline_data(file)) is not None:
        return {"type": kind, "source": {"type": "base64", "media_type": file.media_type, "data": data}, **title}
    if file.is_text and (text := inline_text(file)) is not None:
        return {"type": kind, "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    raise not_carried(file, "Anthropic Messages", "images and PDFs go as data: URIs or URLs, text as data: URIs")


# --- the response ----------------------------------------------------------------------------------


class _Signature(Struct, gc=False):
    """What is kept of a piece of reasoning, to be given back."""

    type: str
    signature: str = ""
    data: str = ""


_signature = msgspec.json.Decoder(_Signature)


class _Block(Struct, gc=False):
    type: str | None = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None
    id: Any = None
    name: Any = None
    input: Any = None


class _Delta(Struct, gc=False):
    type: str | None = None
    text: Any = None
    partial_json: Any = None
    thinking: Any = None
    signature: Any = None
    stop_reason: Any = None


class _Details(Struct, gc=False):
    thinking_tokens: Any = None


class _Usage(Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None
    output_tokens_details: _Details | None = None


class _Message(Struct, gc=False):
    id: Any = None
    usage: _Usage | None = None


class _Event(Struct, gc=False):
    type: str | None = None
    index: int | str | None = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | str | None = None
    usage: _Usage | None = None
    error: Any = None
    content: list[_Block] | None = None  # with what follows: a whole message, of a server that does not stream
    stop_reason: Any = None


_event = msgspec.json.Decoder(_Event)

_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
}


class _OpenBlock:
    __slots__ = ("call", "kind", "signature", "whole")

    def __init__(self, kind: str, call: int = -1, whole: str = "") -> None:
        self.kind = kind
        self.call = call
        self.whole = whole  # arguments that came with the start of the block, for want of any that stream
        self.signature = ""


class Decoder:
    """The events of one response, in order. `finished`: it is complete; `done`: nothing more will come."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._blocks: dict[Any, _OpenBlock] = {}
        self._calls = 0
        self._ended: set[int] = set()
        self._reason: str | None = None
        self._id: str | None = None  # of the response
        self._counted = _Usage()
        self._usage = Usage()
        self._usage_due = False
        self._readers: dict[Any, Callable[[_Event, list[StreamPart]], None]] = {
            "content_block_delta": self._read_delta,
            "content_block_start": self._start_block,
            "content_block_stop": self._stop_block,
            "message_start": self._start_message,
            "message_delta": self._end_message,
            "message": self._whole_message,
        }
        self.done = False

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def feed(self, event: SseEvent) -> list[StreamPart]:
        """Raises `ProviderError` for an error in the stream, `LostResult` for what is no JSON."""
        read = decode_event(_event, event.data, self._who)
        if read.type == "error" or read.error is not None or event.name == b"error":
            raise provider_error(self._who, None, fields_of({"error": read.error, "message": read.message}))
        if read.type == "message_stop":
            self.done = self.finished
        parts: list[StreamPart] = []
        if (reader := self._readers.get(read.type)) is not None:
            reader(read, parts)
        if parts and self._usage_due:
            self._usage_due = False
            parts.append(self._usage)  # known from the start, but no part of the response: it comes with the first
        return parts

    def end(self) -> list[StreamPart]:
        if self._reason is None:
            return []
        parts: list[StreamPart] = [CallEnded(index=n) for n in range(self._calls) if n not in self._ended]
        reason = _REASONS.get(self._reason, "other")
        if self._calls and reason == "stop":
            reason = "tool_calls"
        return [*parts, ResponseFinished(reason=reason, provider_reason=self._reason, response_id=self._id)]

    def _start_message(self, event: _Event, parts: list[StreamPart]) -> None:
        if isinstance(event.message, _Message):
            self._id = response_id(event.message.id)
            if event.message.usage is not None:
                self._count(event.message.usage)
                self._usage_due = True

    def _end_message(self, event: _Event, parts: list[StreamPart]) -> None:
        if event.usage is not None:
            self._count(event.usage)
            parts.append(self._usage)
        if event.delta is not None and event.delta.stop_reason:
            self._reason = str(event.delta.stop_reason)

    def _whole_message(self, event: _Event, parts: list[StreamPart]) -> None:
        for index, block in enumerate(event.content or ()):
            here = _Event(index=index, content_block=block)
            self._start_block(here, parts)
            self._stop_block(here, parts)
        self._end_message(_Event(usage=event.usage, delta=_Delta(stop_reason=event.stop_reason)), parts)

    def _start_block(self, event: _Event, parts: list[StreamPart]) -> None:
        block = event.content_block or _Block()
        opened = self._blocks[event.index] = _OpenBlock(str(block.type))
        if block.type == "text":
            _add_text(parts, block.text)
        elif block.type == "thinking":
            _add_thought(parts, block.thinking)
            opened.signature = block.signature if isinstance(block.signature, str) else ""
        elif block.type == "redacted_thinking" and isinstance(block.data, str):
            kept = _Signature(type="redacted_thinking", data=block.data)
            parts.append(ReasoningDelta(signature=_kept(kept)))
        elif block.type == "tool_use":
            opened.call, self._calls = self._calls, self._calls + 1
            opened.whole = arguments_text(block.input)
            id = block.id if isinstance(block.id, str) else None
            parts.append(CallStarted(index=opened.call, name=str(block.name or ""), provider_id=id))

    def _read_delta(self, event: _Event, parts: list[StreamPart]) -> None:
        delta = event.delta
        if delta is None:
            return
        if delta.type == "text_delta":
            _add_text(parts, delta.text)
        elif delta.type == "thinking_delta":
            _add_thought(parts, delta.thinking)
        elif (block := self._blocks.get(event.index)) is None:
            return
        elif delta.type == "input_json_delta" and block.call >= 0:
            if delta.partial_json:
                block.whole = ""
                parts.append(CallArguments(index=block.call, text=str(delta.partial_json)))
        elif delta.type == "signature_delta" and isinstance(delta.signature, str):
            block.signature = delta.signature

    def _stop_block(self, event: _Event, parts: list[StreamPart]) -> None:
        block = self._blocks.pop(event.index, None)
        if block is None:
            return
        if block.call >= 0:
            if block.whole:
                parts.append(CallArguments(index=block.call, text=block.whole))
            self._ended.add(block.call)
            parts.append(CallEnded(index=block.call))
        elif block.signature:
            kept = _Signature(type="thinking", signature=block.signature)
            parts.append(ReasoningDelta(signature=_kept(kept)))

    def _count(self, usage: _Usage) -> None:
        """Later figures replace earlier ones, field by field."""
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._counted, name, value)
        counted, details = self._counted, self._counted.output_tokens_details
        read, made = count_of(counted.cache_read_input_tokens), count_of(counted.cache_creation_input_tokens)
        self._usage = Usage(
            input_tokens=count_of(counted.input_tokens) + read + made,  # cached ones are counted apart here
            output_tokens=count_of(counted.output_tokens),
            cached_tokens=read,
            reasoning_tokens=count_of(details.thinking_tokens) if details else 0,
            cache_write_tokens=made,
        )


def _add_text(parts: list[StreamPart], text: Any) -> None:
    if text and isinstance(text, str):
        parts.append(TextDelta(text=text))


def _add_thought(parts: list[StreamPart], text: Any) -> None:
    if text and isinstance(text, str):
        parts.append(ReasoningDelta(text=text))


def _kept(signature: _Signature) -> Raw:
    value = {"type": signature.type, "signature": signature.signature, "data": signature.data}
    return Raw(encode({name: text for name, text in value.items() if text}))


class Anthropic:
    """The wire as `models.http` wants it. `provider`: whose signatures go back."""

    path = PATH
    amendable = AMENDABLE

    def __init__(
        self, model: str, *, provider: str, output_limit: int | None = None, fragments: Fragments | None = None
    ) -> None:
        self._model = model
        self._output_limit = output_limit
        self._eager = provider == "anthropic"  # others refuse what they do not know
        self._fragments = new_fragments(provider) if fragments is None else fragments

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if key is None else {"x-api-key": key})}

    def encode(self, request: Request) -> bytes:
        return encode_request(
            self._model, request, known=self._fragments, output_limit=self._output_limit, eager=self._eager
        )

    def decoder(self, who: str) -> Decoder:
        return Decoder(who)


def new_fragments(provider: str) -> Fragments:
    return Fragments(partial(encode_message, provider=provider))
