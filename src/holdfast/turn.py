"""What a program gets of a turn: `Turn` is how it stands, `OpenCall` what it waits for, `Sent` a message of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal

from msgspec import Raw

from holdfast.core.codec import encode
from holdfast.core.records import Always, Cause, Failure, State
from holdfast.core.updates import NO_USAGE, TurnState, TurnUsage
from holdfast.errors import ConfigError, InvalidInput, TurnFailed, TurnRunning, TurnStopped, TurnWaits
from holdfast.output import OutputT_co
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Answer, Key, Placement

if TYPE_CHECKING:
    from holdfast.chat import Chat

TURN_TIMEOUT_S = 3600.0
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Generic[OutputT_co]):
    """How a turn stands: a value, which never changes. Ask `chat.turn()` or `sent.turn()` for a newer one.

    `text` and `output` are the answer, and raise where there is none: TurnWaits, TurnStopped, TurnFailed or
    TurnRunning. `partial_text` is what was said last, however it ended, and never raises.
    """

    chat: "Chat[OutputT_co]"
    number: int | None = None  # counts from 1 in its chat; None: the message that will begin it is still queued
    state: TurnState
    cause: Cause | None = None  # why it was cut short
    detail: str | None = None  # which budget it was, say
    error: Failure | None = None  # why it failed, with the whole chain of causes
    finish: str | None = None  # why the model broke its last response off, if it did: length, refused, other
    open: "tuple[OpenCall, ...]" = ()  # what people and clients have to answer, sub-agents' calls too
    usage: TurnUsage = NO_USAGE
    cost: float | None = None  # by the agent's prices; None: older code ended the turn and did not say
    partial_text: str = ""
    _read_output: "Callable[[], OutputT_co] | None" = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The answer. Raises TurnWaits, TurnStopped, TurnFailed, TurnRunning."""
        self.check()
        return self.partial_text

    @property
    def output(self) -> OutputT_co:
        """The answer as a value of the agent's output type. Raises as `text` does, OutputInvalid where it does not
        fit, and ConfigError where the agent declares no type.
        """
        self.check()
        if self._read_output is None:
            raise ConfigError("this agent declares no output type; give it output=…, or ask for the text")
        return self._read_output()

    def check(self) -> None:
        """Raises TurnWaits, TurnStopped, TurnFailed or TurnRunning unless the turn is done."""
        match self.state:
            case "done":
                return
            case "waiting":
                raise TurnWaits(self._what_waits(), self)
            case "stopped":
                why = f"{self.cause}: {self.detail}" if self.detail else self.cause
                raise TurnStopped(f"{self._name} was cut short ({why}); partial_text has what was said", self)
            case "failed":
                raise TurnFailed(self)
            case "running" | "queued":
                raise TurnRunning(f"{self._name} is not over, it is {self.state}", self)

    @property
    def _name(self) -> str:
        which = f"turn {self.number}" if self.number is not None else "the message's turn"
        return f"{which} of chat {self.chat.id!r}"

    def _what_waits(self) -> str:
        behind = "" if self.number is not None else " behind a turn that waits"
        calls = "".join(f"\n  {call.describe()}" for call in self.open)
        return f"{self._name} waits{behind}; to be answered first:{calls}"


CallKind = Literal["approval", "question", "client"]


class OpenCall:
    """A call that a person or a client has to answer: an approval, a question, a client's tool. It may be one of a
    sub-agent; `chat` is where it is answered, and the methods here answer it there.
    """

    __slots__ = ("chat", "record")

    def __init__(self, chat: "Chat[Any]", record: OpenCallRecord) -> None:
        self.chat = chat
        self.record = record

    def __repr__(self) -> str:
        return f"<OpenCall {self.describe()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenCall) and self.record == other.record

    def __hash__(self) -> int:
        return hash((self.chat.id, self.id))

    @property
    def id(self) -> str:
        return self.record.call_id

    @property
    def kind(self) -> CallKind:
        return self.record.kind

    @property
    def agent(self) -> str:
        return self.record.agent

    @property
    def tool(self) -> str:
        return self.record.name

    @property
    def arguments(self) -> str:
        """The JSON that would run, as hooks left it, without secrets; an excerpt where `whole` is False."""
        return self.record.arguments

    @property
    def whole(self) -> bool:
        return self.record.whole

    @property
    def why(self) -> str | None:
        """What is asked, in words."""
        return self.record.question

    @property
    def digest(self) -> str:
        """Names the call with these arguments."""
        return self.record.digest

    @property
    def expires_at(self) -> int | None:
        """In milliseconds since 1970; None: it waits for as long as it takes."""
        return self.record.expires_at

    @property
    def offer(self) -> tuple[str, ...]:
        """The rules that `approve(always=…)` would keep; empty where that is not offered."""
        return self.record.offer

    def describe(self) -> str:
        """One line for people and logs."""
        shown = self.arguments if len(self.arguments) <= _SHOWN_CHARS else f"{self.arguments[:_SHOWN_CHARS]}…"
        asked = f": {self.why}" if self.why else ""
        return f"{self.kind} of {self.tool}({shown}), {self.id} of agent {self.agent} in {self.chat.id}{asked}"

    async def read(self) -> "OpenCall":
        """The same call with the whole of its arguments, however long. Raises NotFound once it was answered."""
        return await self.chat.open_call(self.id)

    async def approve(
        self,
        *,
        by: str = "",
        always: Always | None = None,
        for_s: float | None = None,
        key: Key | str | None = None,
    ) -> Answer:
        """Let it run with the arguments that are shown here; refused if others would run (RefusedError).

        `always` also keeps the rules of `offer`, for this chat, this agent or this owner, and for so many seconds or
        until they are revoked: see `Chat.approve`.
        """
        if not self.whole:
            raise InvalidInput("call", f"{self.id} is shown in part only: `await call.read()` has all that would run")
        return await self.chat.approve(self.id, by=by, digest=self.digest, always=always, for_s=for_s, key=key)

    async def deny(self, words: str = "", *, by: str = "", key: Key | str | None = None) -> Answer:
        """It does not run; the words reach the model."""
        return await self.chat.deny(self.id, words, by=by, key=key)

    async def answer(self, text: str, *, key: Key | str | None = None) -> Answer:
        """Of a question."""
        return await self.chat.submit(self.id, text, key=key)

    async def submit(self, value: Any, *, error: bool = False, key: Key | str | None = None) -> Answer:
        """The result of a client's tool: a text, or a value that the model gets as JSON. `error`: it failed."""
        content = value if isinstance(value, str) else encode(value).decode()
        return await self.chat.submit(self.id, content, error=error, key=key)


class Sent(Generic[OutputT_co]):
    """A message that a chat has acknowledged: it is durable, and `turn()` is what comes of it."""

    def __init__(self, chat: "Chat[OutputT_co]", answer: Answer) -> None:
        self.chat = chat
        self.answer = answer

    def __repr__(self) -> str:
        return f"<Sent {self.message_id} to {self.chat.id}, {self.placed}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sent) and self.answer == other.answer

    def __hash__(self) -> int:
        return hash((self.answer.chat_id, self.answer.seq))

    @property
    def message_id(self) -> str | None:
        """None: the same call was made before, with its key, and older code answered it."""
        return self.answer.message_id

    @property
    def placed(self) -> Placement | None:
        """Where it was when it was acknowledged: queued, or taken by a turn that it began or joined."""
        return self.answer.placed

    @property
    def state(self) -> State:
        """The chat's, when the message was acknowledged."""
        return self.answer.state

    @property
    def dropped(self) -> tuple[Raw, ...]:
        """Queued messages that an edit has dropped, as JSON."""
        return self.answer.dropped

    async def turn(self, *, timeout_s: float = TURN_TIMEOUT_S) -> Turn[OutputT_co]:
        """The turn that took this message, once it is over or waits for people, whatever is queued before or after.

        Where the message is still queued behind a turn that waits or has failed, that is what it says: `state` is
        `waiting`, with what is open, or `failed`, and `number` is None. Never raises for how the turn ended. Raises
        MessageDropped where no turn will take it, TurnTimeout, NoWorker.
        """
        return await self.chat._turn_of(self.answer, timeout_s)
