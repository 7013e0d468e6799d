"""The wire of Gemini's generateContent, and of the servers that speak it. Pure mapping, both ways.

A signature belongs to the part it came with. It is kept as reasoning right before that part, and goes back on the
same part, to the provider that signed it and to no other. Unknown parts and fields are passed over.
"""

import base64
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from holdfast.core.records import Expansion, File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.core.retry import SIGNATURES
from holdfast.errors import LostResult
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
    leave_out,
    not_in_a_message,
    response_id,
    schema_of,
)
from holdfast.models.wires.two_sides import Turns, split_system

AMENDABLE = frozenset(
    {SIGNATURES, *(f"generationConfig.{name}" for name in ("temperature", "topP", "seed", "thinkingConfig"))}
)

# Models up to 2.5 are told how long to think, newer ones how hard.
BUDGETS: Mapping[str, int] = {"none": 0, "minimal": 128, "low": 2_048, "medium": 8_192, "high": 24_576}
LEVELS: Mapping[str, str] = {"none": "minimal", "xhigh": "high", "max": "high"}
_BUDGETED = ("gemini-1", "gemini-2")

# The first call of a message must be signed. This stands in where another provider made the call, as documented.
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator")


# --- the request -----------------------------------------------------------------------------------


def encode_request(model: str, request: Request, *, known: Fragments) -> bytes:
    """The body. What changes from step to step comes last. Raises `ProviderError` for what this wire cannot carry."""
    system, messages = split_system(request.messages)
    config = _settings(model, request.settings)
    body: dict[str, Any] = {"generationConfig": config} if config else {}
    leave_out(body, sorted(request.unsupported & AMENDABLE))
    if SIGNATURES in request.unsupported:
        known = new_fragments(NO_PROVIDER)
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in request.tools]}]
        if request.settings.tool_choice is not None:
            body["toolConfig"] = {"functionCallingConfig": _tool_choice(request.settings.tool_choice)}
    body.update(request.settings.extra)
    body.pop("contents", None)
    if texts := [part.text for message in system for part in message.parts if isinstance(part, Text) and part.text]:
        body["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    turns = Turns(known, messages, users=b'{"role":"user","parts":[', models=b'{"role":"model","parts":[')
    return b"".join([encode(body)[:-1], b',"contents":[' if body else b'"contents":[', *turns.pieces, b"]}"])


def _settings(model: str, settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "maxOutputTokens": settings.max_tokens,
        "stopSequences": settings.stop or None,
        "seed": settings.seed,
    }
    if (effort := settings.reasoning_effort) is not None:
        values["thinkingConfig"] = _thinking(model, effort)
    if (output := settings.output) is not None:
        values["responseMimeType"] = "application/json"
        values["responseJsonSchema"] = None if output.any_object else schema_of(output.schema)
    return {name: value for name, value in values.items() if value is not None}


def _thinking(model: str, effort: str) -> dict[str, Any]:
    if model.rpartition("/")[2].startswith(_BUDGETED):
        return {"includeThoughts": effort != "none", "thinkingBudget": BUDGETS.get(effort, BUDGETS["high"])}
    return {"includeThoughts": effort != "none", "thinkingLevel": LEVELS.get(effort, effort).upper()}


def _tool_choice(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
    if choice in modes:
        return {"mode": modes[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": schema_of(tool.schema)}


def encode_message(message: Message, provider: str) -> bytes:
    """The parts of one message, with commas between; nothing if there is nothing to say."""
    if message.role is Role.ASSISTANT:
        return b",".join(_model_parts(message.parts, provider))
    if message.role is Role.TOOL:
        result = message.parts[0]
        assert isinstance(result, ToolResult)
        answer = {"error" if result.error else "output": result.content}
        answered = encode({"functionResponse": {"id": result.call_id, "name": result.name, "response": answer}})
        return b",".join([answered, *[encode(_user_part(file)) for file in result.files]])
    return b",".join([encode(_user_part(part)) for part in message.parts])


def _model_parts(parts: tuple[Part, ...], provider: str) -> list[bytes]:
    made: list[bytes] = []
    signature = b""
    must_sign = True
    for part in parts:
        if isinstance(part, Reasoning):
            kept = _kept_by(provider, part)
            if kept is not None and kept.thought:
                made.append(_part(b'"text":' + encode(part.text) + b',"thought":true', encode(kept.thoughtSignature)))
            elif kept is not None:
                signature = encode(kept.thoughtSignature)
        elif isinstance(part, Text) and part.text:
            made.append(_part(b'"text":' + encode(part.text), signature))
            signature = b""
        elif isinstance(part, ToolCall):
            if must_sign and not signature:
                signature = encode(UNSIGNED.decode())
            made.append(_part(_call(part), signature))
            signature, must_sign = b"", False
    if signature:  # it came with an empty text, at the end
        made.append(_part(b'"text":""', signature))
    return made


def _part(fields: bytes, signature: bytes) -> bytes:
    return b"{" + fields + (b',"thoughtSignature":' + signature if signature else b"") + b"}"


def _call(call: ToolCall) -> bytes:
    named = b'"functionCall":{"id":' + encode(call.call_id) + b',"name":' + encode(call.name)
    return named + b',"args":' + arguments_object(call.arguments) + b"}"


def _kept_by(provider: str, part: Reasoning) -> "_Signature | None":
    if part.provider != provider:
        return None
    try:
        return _signature.decode(part.signature)
    except msgspec.DecodeError:
        return None  # of another wire


def _user_part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text | Expansion):
        return {"text": part.text}
    if not isinstance(part, File):
        raise not_in_a_message(part)
    if (data := inline_data(part)) is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": data}}
    return {"fileData": {"mimeType": part.media_type, "fileUri": part.uri}}


# --- the response ----------------------------------------------------------------------------------


class _Signature(Struct, gc=False):
    """What is kept of a signed part. `thought`: the part is the reasoning itself, not what follows it."""

    thoughtSignature: str
    thought: bool = False


_signature = msgspec.json.Decoder(_Signature)


class _FunctionCall(Struct, gc=False):
    id: Any = None
    name: Any = None
    args: Any = None


class _Part(Struct, gc=False):
    text: Any = None
    thought: Any = None
    thoughtSignature: Any = None
    functionCall: _FunctionCall | None = None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False):
    content: _Content | None = None
    finishReason: str | None = None
    finishMessage: Any = None
    index: int | str | None = None


class _Usage(Struct, gc=False):
    promptTokenCount: Any = None
    toolUsePromptTokenCount: Any = None
    candidatesTokenCount: Any = None
    thoughtsTokenCount: Any = None
    cachedContentTokenCount: Any = None


class _Feedback(Struct, gc=False):
    blockReason: Any = None


class _Chunk(Struct, gc=False):
    responseId: Any = None
    candidates: list[_Candidate] | None = None
    usageMetadata: _Usage | None = None
    promptFeedback: _Feedback | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)

_REASONS: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "refused",
    "RECITATION": "refused",
    "BLOCKLIST": "refused",
    "PROHIBITED_CONTENT": "refused",
    "SPII": "refused",
    "IMAGE_SAFETY": "refused",
}
# The model stumbled over its own words; another try gives another answer.
_STUMBLES = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"})


class Decoder:
    """The chunks of one response, in order. Nothing but the end of the stream says that no more will come."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._calls = 0
        self._reason: str | None = None
        self._id: str | None = None  # of the response
        self._blocked = False
        self._usage: Usage | None = None
        self._told = False
        self.done = False

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def feed(self, event: SseEvent) -> list[StreamPart]:
        """Raises `ProviderError` for an error in the stream, `LostResult` for what is no JSON."""
        chunk = decode_event(_chunk, event.data, self._who)
        if chunk.error is not None or event.name == b"error":
            raise provider_error(self._who, None, fields_of({"error": chunk.error}))
        parts: list[StreamPart] = []
        self._id = self._id or response_id(chunk.responseId)
        for candidate in chunk.candidates or ():
            if candidate.index in (0, None):
                self._read_candidate(candidate, parts)
        if chunk.promptFeedback is not None and chunk.promptFeedback.blockReason and self._reason is None:
            self._blocked, self._reason = True, str(chunk.promptFeedback.blockReason)
        if chunk.usageMetadata is not None:
            self._usage = _usage(chunk.usageMetadata)
            if parts and not self._told:  # with every chunk it comes anew; a stop needs what was sent
                self._told = True
                parts.append(self._usage)
        return parts

    def end(self) -> list[StreamPart]:
        if self._reason is None:
            return []
        reason = "refused" if self._blocked else _REASONS.get(self._reason, "other")
        if self._calls and reason == "stop":
            reason = "tool_calls"
        parts: list[StreamPart] = [] if self._usage is None else [self._usage]
        return [*parts, ResponseFinished(reason=reason, provider_reason=self._reason, response_id=self._id)]

    def _read_candidate(self, candidate: _Candidate, parts: list[StreamPart]) -> None:
        for part in (candidate.content and candidate.content.parts) or ():
            self._read_part(part, parts)
        if candidate.finishReason in _STUMBLES:
            raise LostResult(
                f"{self._who} could not finish: {candidate.finishReason}: {candidate.finishMessage or ''}"
            )
        if candidate.finishReason:
            self._reason = str(candidate.finishReason)

    def _read_part(self, part: _Part, parts: list[StreamPart]) -> None:
        signature = part.thoughtSignature if isinstance(part.thoughtSignature, str) else ""
        text = part.text if isinstance(part.text, str) else ""
        if part.thought:
            if signature:
                parts.append(ReasoningDelta(text=text, signature=_kept(signature, thought=True)))
            elif text:
                parts.append(ReasoningDelta(text=text))
            return
        if signature:
            parts.append(ReasoningDelta(signature=_kept(signature)))
        if text:
            parts.append(TextDelta(text=text))
        if (call := part.functionCall) is not None:
            index, self._calls = self._calls, self._calls + 1
            id = call.id if isinstance(call.id, str) else None
            parts.append(CallStarted(index=index, name=str(call.name or ""), provider_id=id))
            if given := arguments_text(call.args):
                parts.append(CallArguments(index=index, text=given))
            parts.append(CallEnded(index=index))


def _kept(signature: str, *, thought: bool = False) -> Raw:
    return Raw(encode({"thoughtSignature": signature, **({"thought": True} if thought else {})}))


def _usage(usage: _Usage) -> Usage:
    thoughts = count_of(usage.thoughtsTokenCount)
    return Usage(
        input_tokens=count_of(usage.promptTokenCount) + count_of(usage.toolUsePromptTokenCount),
        output_tokens=count_of(usage.candidatesTokenCount) + thoughts,
        cached_tokens=count_of(usage.cachedContentTokenCount),
        reasoning_tokens=thoughts,
    )


class Gemini:
    """The wire as `models.http` wants it. `provider`: whose signatures go back."""

    amendable = AMENDABLE

    def __init__(self, model: str, *, provider: str, fragments: Fragments | None = None) -> None:
        self._model = model
        self._fragments = new_fragments(provider) if fragments is None else fragments
        place = model if "/" in model else f"models/{model}"
        self.path = f"/{quote(place)}:streamGenerateContent?alt=sse"

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"x-goog-api-key": key}  # never in the URL, which others log

    def encode(self, request: Request) -> bytes:
        return encode_request(self._model, request, known=self._fragments)

    def decoder(self, who: str) -> Decoder:
        return Decoder(who)


def new_fragments(provider: str) -> Fragments:
    return Fragments(partial(encode_message, provider=provider))
