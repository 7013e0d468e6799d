"""The spans of what a runner does in a turn: each attempt at a response, each tool's body, hooks, compactions.

Each hangs under the turn's root, of which only the id is known while the turn goes on. What was said is put into a
span only where the app asks for it (`trace_content`): bounded, and without the app's secrets.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.core.codec import encode
from holdfast.core.records import (
    Call,
    ChatRecord,
    Expansion,
    File,
    Message,
    NewChat,
    Part,
    Phase,
    Reasoning,
    Role,
    Snapshot,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.models.base import Model, Request, Usage
from holdfast.models.calls import Completed, FailedAttempt, Stopped
from holdfast.redaction import Secrets
from holdfast.spans import NO_SPAN, Attribute, OpenSpan, SpanPlace, digest
from holdfast.turn_spans import (
    TurnPlace,
    TurnSpans,
    about_chat,
    about_tool,
    call_place,
    lost_attempt_place,
)
from holdfast.worker.history_cache import HistoryCache

CONTENT_CHARS_MAX = 16_000  # of one attribute
PART_CHARS_MAX = 4_000  # of one text in it
MESSAGES_MAX = 20  # of a request: its last ones

# As the conventions write them, where a provider's name is another here.
_PROVIDERS = {"google": "gcp.gemini"}


class RunnerSpans:
    """Of one runner. `arrive` before anything is begun in a turn."""

    def __init__(self, spans: TurnSpans, secrets: Secrets, history: HistoryCache) -> None:
        self._spans = spans
        self._traces = spans.traces
        self._secrets = secrets
        self._history = history
        self._chat: ChatRecord | None = None
        self._turn: TurnPlace | None = None
        self._last_attempt: SpanPlace | None = None  # of the step that is being asked for

    @property
    def content(self) -> bool:
        return self._traces.content

    async def arrive(self, snapshot: Snapshot) -> None:
        """In the turn that the chat is in. Costs nothing where there are no spans."""
        if not self._spans.on:
            return
        known, chat = self._chat, snapshot.chat
        self._chat = chat
        if known is None or (known.turn, known.turn_started_at) != (chat.turn, chat.turn_started_at):
            self._last_attempt = None
            if chat.turn_started_at is None:
                self._turn = None
                return
            self._turn = self._spans.learn_sender(chat, await self._history.turn_opener(snapshot))
            if chat.unclean and chat.phase is Phase.MODEL:
                self._last_attempt = lost_attempt_place(self._turn, chat, chat.fence - 1)
        elif known.step != chat.step:
            self._last_attempt = None

    def _start(
        self,
        name: str,
        about: Mapping[str, Attribute],
        *,
        span_id: int | None = None,
        links: Sequence[SpanPlace] = (),
    ) -> OpenSpan:
        chat, turn = self._chat, self._turn
        if chat is None:
            return NO_SPAN
        under = turn.root if turn is not None else None  # else it is no turn's: a compaction at rest
        return self._traces.start(name, {**about_chat(chat), **about}, under=under, span_id=span_id, links=links)

    # --- model calls ------------------------------------------------------------------------------------

    def attempt(self, attempt: int, n: int, model: Model, request: Request) -> OpenSpan:
        """The n-th request to a provider for one response, linked to the one before it, which came to nothing."""
        chat, turn = self._chat, self._turn
        if chat is None or turn is None:
            return NO_SPAN
        name, settings = model_name(model.name), request.settings
        about: dict[str, Attribute] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _PROVIDERS.get(model.provider, model.provider),
            "gen_ai.request.model": name,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.top_p": settings.top_p,
            "gen_ai.request.max_tokens": settings.max_tokens,
            "gen_ai.request.seed": settings.seed,
            "gen_ai.request.stop_sequences": settings.stop or None,
            "gen_ai.output.type": "json" if settings.output is not None else None,
            "holdfast.step": chat.step + 1,
            "holdfast.attempt": n,
        }
        if self.content:
            about["gen_ai.input.messages"] = self._messages(request.messages)
        links = () if self._last_attempt is None else (self._last_attempt,)
        span_id = digest(8, chat.id, chat.life, "attempt", attempt)
        self._last_attempt = turn.root._replace(span_id=span_id)
        return self._start(f"chat {name}", about, span_id=span_id, links=links)

    def completed(self, span: OpenSpan, outcome: Completed, cost: float) -> None:
        if span is NO_SPAN:
            return
        span.set("gen_ai.response.model", model_name(outcome.message.model or ""))
        span.set("gen_ai.response.id", outcome.finished.response_id)
        reason = outcome.finished.provider_reason or outcome.finished.reason
        span.set("gen_ai.response.finish_reasons", (reason,))
        span.set("holdfast.request_id", outcome.request_id)
        count(span, outcome.usage, cost)
        if self.content:
            span.set("gen_ai.output.messages", self._messages((outcome.message,)))
        span.end()

    def stopped(self, span: OpenSpan, outcome: Stopped, cost: float) -> None:
        count(span, outcome.usage, cost)
        span.set("holdfast.cause", str(outcome.cause))
        span.failed("stopped")
        span.end()

    def attempt_failed(self, span: OpenSpan, failed: FailedAttempt, cost: float) -> None:
        span.set("http.response.status_code", failed.status)
        span.set("holdfast.request_id", failed.request_id)
        span.set("holdfast.retry_in_ms", failed.retry_in_ms)
        onward = failed.next_model
        span.set("holdfast.next", "none" if onward is None else "retry" if onward == failed.model else "fallback")
        count(span, failed.usage, cost)
        span.failed(failed.code)
        span.end()

    # --- tools ------------------------------------------------------------------------------------------

    def tool(self, call: Call, arguments: str, *, served: bool) -> OpenSpan:
        """A call's body, ours or a tool server's. One that a dead worker began is linked to what is told of that."""
        chat, turn = self._chat, self._turn
        if chat is None or turn is None:
            return NO_SPAN
        about = about_tool(call.id, call.name, call.starts, "extension" if served else "function")
        if self.content:
            about["gen_ai.tool.call.arguments"] = self._bounded(arguments)
        earlier = (call_place(turn, chat, call.id, call.starts - 1),) if call.starts > 1 else ()
        span_id = call_place(turn, chat, call.id, call.starts).span_id
        return self._start(f"execute_tool {call.name}", about, span_id=span_id, links=earlier)

    def returned(self, span: OpenSpan, content: str) -> None:
        if self.content:
            span.set("gen_ai.tool.call.result", self._bounded(content))

    def spawning(self, call: Call, new: NewChat) -> NewChat:
        """The call that makes a child, and the child, whose first turn goes on in this trace."""
        chat, turn = self._chat, self._turn
        if chat is None or turn is None:
            return new
        place = call_place(turn, chat, call.id, 0)
        about = {**about_tool(call.id, call.name, call.starts), "holdfast.child": new.id}
        self._start(f"execute_tool {call.name}", about, span_id=place.span_id).end()
        return self._spans.spawned(new, place)

    # --- what else takes time ---------------------------------------------------------------------------

    @contextmanager
    def hooks(self, point: str, names: Sequence[str]) -> Iterator[OpenSpan]:
        if not names or not self._spans.on:
            yield NO_SPAN
            return
        about: dict[str, Attribute] = {"holdfast.hook.point": point, "holdfast.hook.names": names}
        with self._start(f"hook {point}", about).current() as span:
            yield span

    @contextmanager
    def compaction(self, why: str) -> Iterator[OpenSpan]:
        if not self._spans.on:
            yield NO_SPAN
            return
        with self._start("compact", {"holdfast.why": why}).current() as span:
            yield span

    # --- content ----------------------------------------------------------------------------------------

    def _bounded(self, text: str, chars_max: int = CONTENT_CHARS_MAX) -> str:
        """Secrets first: a cut may go through one."""
        clean = self._secrets.taken_out_of_log(text)
        return clean if len(clean) <= chars_max else f"{clean[:chars_max]}… ({len(text):,} characters)"

    def _messages(self, messages: Sequence[Message]) -> str:
        """The last of them, as the conventions write messages: JSON, whole however little of it is left."""
        told: list[dict[str, Any]] = []
        left = CONTENT_CHARS_MAX
        for n in range(1, min(len(messages), MESSAGES_MAX) + 1):
            message = messages[-n]
            one = {"role": str(message.role), "parts": [self._part(part) for part in message.parts]}
            if message.role is Role.ASSISTANT:
                one["finish_reason"] = message.finish or ("tool_call" if message.calls else "stop")
            left -= len(encode(one))
            if told and left < 0:
                break
            told.insert(0, one)
        return encode(told).decode()

    def _part(self, part: Part) -> dict[str, Any]:
        match part:
            case Text(text=text) | Expansion(text=text):
                return {"type": "text", "content": self._bounded(text, PART_CHARS_MAX)}
            case Reasoning(text=text):
                return {"type": "reasoning", "content": self._bounded(text, PART_CHARS_MAX)}
            case File():
                return {"type": "uri", "mime_type": part.media_type, "uri": self._bounded(part.uri, PART_CHARS_MAX)}
            case ToolCall(call_id=call_id, name=name, arguments=text):
                given = self._bounded(text, PART_CHARS_MAX)
                return {"type": "tool_call", "id": call_id, "name": name, "arguments": given}
            case ToolResult(call_id=call_id, content=text):
                given = self._bounded(text, PART_CHARS_MAX)
                return {"type": "tool_call_response", "id": call_id, "response": given}


def model_name(name: str) -> str:
    """As its provider calls it: without the name of the provider, and of the place where it is reached."""
    _, colon, rest = name.partition(":")
    return (rest.partition("@")[0] if colon else name) or name


def count(span: OpenSpan, usage: Usage | None, cost: float) -> None:
    if usage is None:
        return
    span.set("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens or None)
    # Both names are in use: the conventions have moved from the one to the other.
    span.set("gen_ai.usage.cache_write.input_tokens", usage.cache_write_tokens or None)
    span.set("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens or None)
    span.set("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens or None)
    span.set("gen_ai.usage.cost", cost or None)
    span.set("holdfast.usage_estimated", usage.estimated or None)
