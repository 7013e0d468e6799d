"""What a model is to the rest of holdfast: a request goes in, typed parts of one response come out as they arrive.

A model keeps no state between calls that a caller could notice, retries nothing by itself, and keeps the request's
deadlines. It raises `ProviderError`, whose `code` is a `Kind` of core/retry.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Raw

from holdfast.core.deadlines import MODEL_DEADLINES, ModelDeadlines
from holdfast.core.records import NOTHING, Frozen, Message

# --- the request -----------------------------------------------------------------------------------


class ToolSpec(Frozen):
    """A tool as the model sees it. `schema` is the JSON schema of its arguments, as a mapping or already as JSON."""

    name: str
    description: str = ""
    schema: Raw | Mapping[str, Any] = Raw(b'{"type":"object","properties":{}}')


class OutputSpec(Frozen):
    """The response has to be JSON of this schema. `any_object`: whatever object it is; the schema says no more."""

    name: str
    schema: Raw | Mapping[str, Any]
    strict: bool = False
    any_object: bool = False


class Settings(Frozen):
    """What a caller may ask for; None leaves it to the provider. `extra` goes into the request as it is."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: str | None = None  # "auto", "none"; of a turn's first response also "required", or a tool's name
    parallel_calls: bool | None = None
    reasoning_effort: str | None = None
    output: OutputSpec | None = None
    extra: Mapping[str, Any] = {}


class Request(Frozen):
    """One model call. `messages` is a history that a provider accepts (core/history), and is sent as it is."""

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    settings: Settings = Settings()
    deadlines: ModelDeadlines = MODEL_DEADLINES
    # The caller sets these two: which try on this model it is, and which parameters this model was seen to refuse.
    attempt: int = 1
    unsupported: frozenset[str] = frozenset()


# --- the response, part by part --------------------------------------------------------------------


class Opened(Frozen):
    """The provider has taken the request. Nothing of the response yet."""

    request_id: str | None = None
    rate_limits: Mapping[str, str] = {}  # the headers that tell what is left, as they came


class Progress(Frozen):
    """Nothing of the response yet, and why: it is being loaded, say. The wait for the first byte begins anew."""

    text: str


class Alive(Frozen):
    """The stream lives, and brought nothing of the response: a ping, a comment, an event without a word."""


class TextDelta(Frozen):
    """`begins`: it is another piece of text than what came before it. `phase` ends a piece, and says what it was."""

    text: str = ""
    begins: bool = False
    phase: str | None = None


class ReasoningDelta(Frozen):
    """`signature` ends a piece of reasoning that the provider wants back as it is; without one it is never sent."""

    text: str = ""
    signature: Raw = NOTHING


class CallStarted(Frozen):
    """A tool call begins. `index` tells the calls of one response apart; the provider's id is only kept for logs."""

    index: int
    name: str
    provider_id: str | None = None


class CallArguments(Frozen):
    index: int
    text: str


class CallEnded(Frozen):
    index: int


class Usage(Frozen):
    """Tokens, as the provider counts them. `cached` and `cache_write` are in `input`, `reasoning` is in `output`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0  # put into the provider's cache with this request
    estimated: bool = False  # by us: the provider counted nothing


FinishReason = Literal["stop", "length", "tool_calls", "refused", "other"]


class ResponseFinished(Frozen):
    """The response is complete. Always the last part; a stream that ends without it has lost its result."""

    reason: FinishReason = "stop"
    provider_reason: str | None = None
    response_id: str | None = None  # the provider's


StreamPart = (
    Opened
    | Progress
    | Alive
    | TextDelta
    | ReasoningDelta
    | CallStarted
    | CallArguments
    | CallEnded
    | Usage
    | ResponseFinished
)


# --- the model -------------------------------------------------------------------------------------


class Model(Protocol):
    @property
    def name(self) -> str:
        """What people write to get it, such as `openai:gpt-6.1-terra`."""

    @property
    def provider(self) -> str:
        """Models with the same provider share a concurrency limit."""

    @property
    def context_limit(self) -> int | None:
        """Tokens of request and response together, if known."""

    def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        """Ask once. Bounded by the request's deadlines; raises `ProviderError`.

        Cancelling the task that waits for a part, or `aclose()`, ends the call and closes its socket at once.
        """
