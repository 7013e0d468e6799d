"""The wire of OpenAI Chat Completions, and of the many servers that speak it. Pure mapping, both ways.

A request holds the history's messages, in their order, and nothing else. What this wire has no place for is left out:
files that a model returned, and reasoning. Only what came as `reasoning_content` goes back, to the server that
sent it: DeepSeek and Moonshot refuse a history without it. Reading is lenient where servers are known to differ:
whole calls in one chunk, calls without an index or an id, arguments as an object, content as a list of parts.
"""

import hashlib
import string
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core.records import Expansion, File, Message, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.core.retry import REASONING_MISSING, RESULT_FILES, SHORT_IDS
from holdfast.errors import LostResult, ProviderError
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
from holdfast.models.wires import fragments
from holdfast.models.wires.failures import fields_of, provider_error
from holdfast.models.wires.mapping import (
    NO_PROVIDER,
    arguments_object,
    count_of,
    decode_event,
    response_id,
    said_text,
    schema_of,
)

PATH = "/chat/completions"
REASONING = "reasoning_content"

# Parameters with another form. None: left out. Servers differ on the first two, in both directions.
AMENDMENTS: Mapping[str, str | None] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": None,
    "top_p": None,
    "stop": None,
    "seed": None,
    "parallel_tool_calls": None,
    "reasoning_effort": None,
    "stream_options": None,
    REASONING: None,
}
FORMS = frozenset(
    {REASONING, REASONING_MISSING, RESULT_FILES, SHORT_IDS}
)  # what a server may want otherwise in messages
AMENDABLE = frozenset(AMENDMENTS) | FORMS

_encode = msgspec.json.Encoder().encode


# --- the request -----------------------------------------------------------------------------------


def encode_request(
    model: str, request: Request, *, max_tokens_as: str = "max_tokens", known: "OpenAIChatFragments | None" = None
) -> bytes:
    """The body. Raises `ProviderError` (bad_request) for what this wire cannot carry."""
    known = OpenAIChatFragments() if known is None else known
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_settings(request.settings, max_tokens_as),
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    else:
        body.pop("parallel_tool_calls", None)  # refused when there are no tools
        body.pop("tool_choice", None)
    for name in sorted(request.unsupported & body.keys()):
        other, value = AMENDMENTS.get(name), body.pop(name)
        if other is not None and other not in request.unsupported:
            body[other] = value
    body.update(request.settings.extra)
    body.pop("messages", None)
    after = b"]," + _encode(body)[1:]
    texts = known.each(request.messages)
    if known.saw_files:
        texts = list(_with_files(request.messages, texts, taken=RESULT_FILES not in known.form))
    return fragments.joined(texts, before=b'{"messages":[', after=after)


_TOOL = Role.TOOL
FILES_OF_RESULTS = "(files that the tools above returned)"


def _files_of(message: Message) -> tuple[File, ...]:
    result = message.parts[0]
    return result.files if isinstance(result, ToolResult) else ()


def _with_files(messages: Sequence[Message], texts: Sequence[bytes], *, taken: bool) -> Iterator[bytes]:
    """A result is text on this wire. Its images follow in a message of the user, behind all results of the batch."""
    files: list[File] = []
    for message, text in zip(messages, texts, strict=True):
        if message.role is not _TOOL and files:
            yield _shown(files, taken)
            files = []
        if message.role is _TOOL:
            files += _files_of(message)
        yield text
    if files:
        yield _shown(files, taken)


def _shown(files: Sequence[File], taken: bool) -> bytes:
    """To a model that takes no files, what they are: it can say so, or use another tool."""
    parts = (Text(text=FILES_OF_RESULTS), *files)
    if not taken:
        names = ", ".join(f"{file.name or 'one without a name'} ({file.media_type})" for file in files)
        parts = (Text(text=f"(the tools above returned files, and this model is not able to see them: {names})"),)
    return _PLAIN[Role.USER] + _encode([_content_part(part) for part in parts]) + b"}"


def _settings(settings: Settings, max_tokens_as: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        max_tokens_as: settings.max_tokens,
        "stop": settings.stop or None,
        "seed": settings.seed,
        "parallel_tool_calls": settings.parallel_calls,
        "reasoning_effort": settings.reasoning_effort,
        "tool_choice": _tool_choice(settings.tool_choice),
    }
    if (output := settings.output) is not None:
        schema = {"name": output.name, "schema": schema_of(output.schema), "strict": output.strict}
        named = {"type": "json_schema", "json_schema": schema}
        values["response_format"] = {"type": "json_object"} if output.any_object else named
    return {name: value for name, value in values.items() if value is not None}


def _tool_choice(choice: str | None) -> Any:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": schema_of(tool.schema)}
    return {"type": "function", "function": function}


_PLAIN = {role: b'{"role":"' + role.encode() + b'","content":' for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)}


class OpenAIChatFragments(fragments.Fragments):
    """The messages of this wire, as `provider` gets them. `form`: of `FORMS`, what was refused there.

    `saw_files`: a tool's result had files. Only then are histories looked through for them, message by message.
    """

    def __init__(
        self,
        provider: str = NO_PROVIDER,
        bytes_max: int = fragments.FRAGMENT_BYTES_MAX,
        *,
        form: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(partial(_encode_message, provider=provider, form=form), bytes_max)
        self.form = form
        self.saw_files = False

    def _add(self, message: Message) -> bytes:
        self.saw_files = self.saw_files or (message.role is _TOOL and bool(_files_of(message)))
        return super()._add(message)


def _encode_message(message: Message, provider: str, form: frozenset[str]) -> bytes:
    parts, by_model = message.parts, message.role is Role.ASSISTANT
    if len(parts) == 1 and type(parts[0]) is Text and not (by_model and REASONING_MISSING in form):  # most of them
        return _PLAIN[message.role] + _encode(parts[0].text) + b"}"
    if by_model:
        return _encode_assistant(message, provider, form)
    if message.role is Role.TOOL:
        result = parts[0]
        assert isinstance(result, ToolResult)
        call_id, content = _encode_id(result.call_id, form), _encode(result.content)
        return b'{"role":"tool","tool_call_id":' + call_id + b',"content":' + content + b"}"
    if message.role is Role.SYSTEM:
        parts = tuple(part for part in parts if isinstance(part, Text))
        if not parts:
            return b""
    if message.expansions and not any(isinstance(part, File) for part in parts):  # many servers take only a text
        return _PLAIN[message.role] + _encode("\n\n".join(_content_part(part)["text"] for part in parts)) + b"}"
    return _PLAIN[message.role] + _encode([_content_part(part) for part in parts]) + b"}"


def _encode_assistant(message: Message, provider: str, form: frozenset[str]) -> bytes:
    text = [part.text for part in message.parts if isinstance(part, Text)]
    calls = [_encode_call(part, form) for part in message.parts if isinstance(part, ToolCall)]
    if not text and not calls:
        return b""  # only reasoning or files
    fields = [b'"role":"assistant"']
    if text:
        fields.append(b'"content":' + _encode("".join(text)))
    if calls:
        fields.append(b'"tool_calls":[' + b",".join(calls) + b"]")
    thought = [part.text for part in message.parts if isinstance(part, Reasoning) and _is_for(provider, part)]
    if (thought and REASONING not in form) or REASONING_MISSING in form:
        fields.append(b'"reasoning_content":' + _encode("".join(thought)))
    return b"{" + b",".join(fields) + b"}"


def _is_for(provider: str, part: Reasoning) -> bool:
    try:
        return part.provider == provider and _signature.decode(part.signature).type == REASONING
    except msgspec.DecodeError:
        return False  # of another wire


def _encode_id(call_id: str, form: frozenset[str]) -> bytes:
    """Ours, or the nine letters and digits that Mistral takes: the same for the same call, always."""
    if SHORT_IDS not in form:
        return _encode(call_id)
    number, short = int.from_bytes(hashlib.blake2b(call_id.encode(), digest_size=8).digest()), ""
    for _ in range(_SHORT_ID_CHARS):
        number, at = divmod(number, len(_DIGITS))
        short += _DIGITS[at]
    return _encode(short)


_SHORT_ID_CHARS = 9
_DIGITS = string.digits + string.ascii_lowercase


def _encode_call(call: ToolCall, form: frozenset[str]) -> bytes:
    call_id, name, arguments = _encode_id(call.call_id, form), _encode(call.name), _encode(call.arguments)
    function = b'{"name":' + name + b',"arguments":' + arguments + b"}"
    return b'{"id":' + call_id + b',"type":"function","function":' + function + b"}"


def _content_part(part: object) -> dict[str, Any]:
    if isinstance(part, Text | Expansion):
        return {"type": "text", "text": part.text}
    if isinstance(part, File):
        if part.media_type.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": part.uri}}
        if (text := said_text(part)) is not None:
            return {"type": "text", "text": text}
        if part.uri.startswith("data:"):
            return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.uri}}
        raise ProviderError(
            f"this model takes files of type {part.media_type} only inline: give it as a data: URI",
            code="bad_request",
        )
    raise ProviderError(f"a user's message cannot hold a {type(part).__name__}", code="bad_request")


# --- the response ----------------------------------------------------------------------------------


class _Signature(Struct, gc=False):
    """What is kept of a piece of reasoning that is to be given back: under which name it came."""

    type: str


_signature = msgspec.json.Decoder(_Signature)
_KEPT = ReasoningDelta(signature=Raw(_encode(_Signature(type=REASONING))))


class _Function(Struct, gc=False):
    name: Any = None
    arguments: Any = None


class _Call(Struct, gc=False):
    index: int | str | None = None
    id: Any = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None  # DeepSeek, vLLM, llama.cpp
    reasoning: Any = None  # OpenRouter, Groq
    refusal: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None  # of a server that does not stream
    finish_reason: Any = None
    index: Any = 0
    error: Any = None


class _Details(Struct, gc=False):
    cached_tokens: Any = None
    cache_write_tokens: Any = None  # OpenRouter
    reasoning_tokens: Any = None


class _Usage(Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(Struct, gc=False):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}


class _OpenCall:
    __slots__ = ("id", "index", "name", "pieces")

    def __init__(self, index: int, id: str | None, name: str) -> None:
        self.index = index
        self.id = id
        self.name = name
        self.pieces: list[str] = []  # of its arguments

    def ends_before(self, id: Any, name: str, arguments: Any) -> bool:
        """Whether a piece with the same index and a name begins another call: some servers number all of them 0."""
        if id and self.id:
            return bool(id != self.id)
        if name != self.name:
            return True
        begins = isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip()[:1] == "{")
        return begins and arguments_object("".join(self.pieces), b"") != b""


class Decoder:
    """The events of one response, in order. `finished`: it is complete; `done`: nothing more will come."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._calls: list[_OpenCall] = []
        self._by_index: dict[Any, _OpenCall] = {}
        self._reason: str | None = None
        self._id: str | None = None  # of the response
        self._refused = False
        self._thinking = False  # in what has to be given back
        self._pairs = _SurrogatePairs()
        self.done = False

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def feed(self, event: SseEvent) -> list[StreamPart]:
        """Raises `ProviderError` for an error in the stream, `LostResult` for what is no JSON."""
        if event.data == b"[DONE]":
            self.done = True
            return []
        chunk = decode_event(_chunk, event.data, self._who)
        if chunk.error is not None or event.name == b"error":
            raise provider_error(self._who, None, fields_of({"error": chunk.error}))
        parts: list[StreamPart] = []
        self._id = self._id or response_id(chunk.id)
        for choice in chunk.choices or ():
            if choice.index in (0, None):
                self._read_choice(choice, parts)
        if chunk.usage is not None:
            parts.append(_usage(chunk.usage))
        return parts

    def end(self) -> list[StreamPart]:
        """What closes the response; nothing if it is not complete."""
        if self._reason is None:
            return []
        parts: list[StreamPart] = [CallEnded(index=call.index) for call in self._calls]
        if self._thinking:
            parts.insert(0, _KEPT)
        reason = _REASONS.get(self._reason, "other")
        if self._refused and reason == "stop":
            reason = "refused"
        elif self._calls and reason == "stop":
            reason = "tool_calls"  # some servers say "stop" whatever they did
        parts.append(ResponseFinished(reason=reason, provider_reason=self._reason, response_id=self._id))
        return parts

    def _read_choice(self, choice: _Choice, parts: list[StreamPart]) -> None:
        if choice.error is not None or choice.finish_reason == "error":
            raise provider_error(self._who, None, fields_of({"error": choice.error}))
        delta = choice.delta or choice.message
        if delta is not None:
            thought = delta.reasoning_content if delta.reasoning_content is not None else delta.reasoning
            if thought and (text := self._text("reasoning", thought)):
                parts.append(ReasoningDelta(text=text))
                self._thinking = delta.reasoning_content is not None
            if self._thinking and (delta.content or delta.refusal or delta.tool_calls):
                self._thinking = False
                parts.append(_KEPT)
            if delta.content and (text := self._text("text", delta.content)):
                parts.append(TextDelta(text=text))
            if delta.refusal and (text := self._text("text", delta.refusal)):
                self._refused = True
                parts.append(TextDelta(text=text))
            for call in delta.tool_calls or ():
                self._read_call(call, parts)
        if choice.finish_reason:
            self._reason = str(choice.finish_reason)

    def _text(self, channel: Any, value: Any) -> str:
        if isinstance(value, list):  # Mistral: parts; those that are text count
            value = "".join(part.get("text") or "" for part in value if isinstance(part, dict))
        return self._pairs.join(channel, value) if isinstance(value, str) else ""

    def _read_call(self, call: _Call, parts: list[StreamPart]) -> None:
        function = call.function or _Function()
        name = function.name if isinstance(function.name, str) and function.name else None
        known = self._known_call(call, name)
        if known is None:
            if name is None:
                raise LostResult(f"{self._who} sent arguments of a call that it never named")
            id = call.id if isinstance(call.id, str) and call.id else None
            known = _OpenCall(len(self._calls), id, name)
            self._calls.append(known)
            if call.index is not None:
                self._by_index[call.index] = known
            parts.append(CallStarted(index=known.index, name=name, provider_id=id))
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = _encode(arguments).decode()
        if arguments and (text := self._text(known.index, arguments)):
            known.pieces.append(text)
            parts.append(CallArguments(index=known.index, text=text))

    def _known_call(self, call: _Call, name: str | None) -> _OpenCall | None:
        """The open call that a piece belongs to; None if it begins one."""
        if call.index is not None:
            known = self._by_index.get(call.index)
            arguments = call.function.arguments if call.function is not None else None
            if known is not None and name is not None and known.ends_before(call.id, name, arguments):
                return None
            return known
        if call.id:
            return next((known for known in self._calls if known.id == call.id), None)
        return self._calls[-1] if self._calls and name is None else None


def _usage(usage: _Usage) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        input_tokens=count_of(usage.prompt_tokens),
        output_tokens=count_of(usage.completion_tokens),
        cached_tokens=count_of(prompt.cached_tokens) if prompt else 0,
        reasoning_tokens=count_of(completion.reasoning_tokens) if completion else 0,
        cache_write_tokens=count_of(prompt.cache_write_tokens) if prompt else 0,
    )


class _SurrogatePairs:
    """Joins the halves of a character that came in two chunks. A half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[Any, str] = {}

    def join(self, channel: Any, text: str) -> str:
        if text.isascii() and not self._held:
            return text
        text = self._held.pop(channel, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class OpenAIChat:
    """The wire as `models.http` wants it. `max_tokens_as`: what the server calls that setting."""

    path = PATH
    amendable = AMENDABLE

    def __init__(
        self,
        model: str,
        *,
        provider: str = NO_PROVIDER,
        max_tokens_as: str = "max_tokens",
        fragments: OpenAIChatFragments | None = None,
    ) -> None:
        self._model = model
        self._provider = provider
        self._max_tokens_as = max_tokens_as
        self._fragments = OpenAIChatFragments(provider) if fragments is None else fragments
        self._other: dict[frozenset[str], OpenAIChatFragments] = {}  # by their form

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def encode(self, request: Request) -> bytes:
        known = self._known(request.unsupported)
        return encode_request(self._model, request, max_tokens_as=self._max_tokens_as, known=known)

    def _known(self, unsupported: frozenset[str]) -> OpenAIChatFragments:
        form = unsupported & FORMS
        if not form:
            return self._fragments
        if form not in self._other:
            self._other[form] = OpenAIChatFragments(self._provider, form=form)
        return self._other[form]

    def decoder(self, who: str) -> Decoder:
        return Decoder(who)
