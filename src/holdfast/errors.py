"""Every error holdfast raises, in one tree, by who must act.

    HoldfastError
    ├── CallerError              the caller: the request was wrong; change it
    │   ├── InvalidInput         a value no store or provider accepts (too large, NUL, broken Unicode, …)
    │   │   └── WrongCursor      a reader's place that is none, or another chat's; read from the beginning
    │   ├── NotFound             no such chat, message, call or worker
    │   ├── Unauthorized         the token is none, or is not valid any more; bring another one
    │   ├── Forbidden            the principal may not do this; `scope` says what it lacks, where that is a scope
    │   ├── RefusedError         the chat's state does not allow this now (`state` and `command` say which)
    │   ├── KeyReused            an idempotency key came back with another body
    │   ├── SlashCommandFailed   what `/name` stands for cannot be had now; `name` says which
    │   ├── NoTurn               the chat has not begun that turn, or any; send it a message
    │   ├── MessageDropped       a queued message that no turn will take; `why` says who dropped it
    │   ├── LimitReached         a documented limit; `limit` and `value` say which and how far
    │   │   ├── TooManyStreams   readers that are connected at the same time; leave some, or come back later
    │   │   └── TooManyRequests  of one client in a minute; `retry_after_s` says when to come back
    │   └── ConfigError          a setting or URL is wrong
    │       └── UnknownAgent     no agent of that name; the message lists those that there are
    ├── OwnershipLost            this worker may no longer act
    │   ├── LeaseLost            the worker's lease ended; everything it holds is lost to it
    │   └── StaleWriter          the chat moved on: another claim or epoch
    │       └── WentBack         what this worker had written is not there any more: the database went back in time
    ├── RecordError              stored bytes that this code cannot read
    │   ├── UnknownRecord        written by newer code: leave it to a worker that knows it
    │   └── CorruptRecord        not a record at all
    ├── ModelError               a model provider
    │   ├── ProviderError        one attempt failed; `code` names its row in core/retry.py, which says what follows
    │   │   ├── ConnectionFailed     no connection, or it broke
    │   │   ├── ProviderTimeout      a deadline passed; `deadline` and `value_s` say which
    │   │   │   ├── ConnectTimeout   no connection in time
    │   │   │   ├── FirstByteTimeout nothing of the response in time
    │   │   │   ├── SilenceTimeout   it began, then nothing more came; pings do not count
    │   │   │   ├── CallTimeout      the whole call took too long
    │   │   │   ├── LoadTimeout      a local model was not loaded in time
    │   │   │   └── AdmissionTimeout the attempt could not even start: no free slot, or the provider cools down
    │   │   └── LostResult           the stream ended before the response did, or cannot be read
    │   ├── ModelCallFailed      no attempt on any model succeeded; `attempts` lists all, `__cause__` holds all errors
    │   └── OutputInvalid        an answer that does not fit the agent's output type
    ├── ToolFailed               a tool: its message goes to the model, the chat goes on
    │   ├── OutcomeUnknown       it began, and whether it had an effect is not known; tools of your own raise it, too
    │   └── McpError             a tool server; `server` says which
    │       ├── McpUnavailable   it is not there: it does not start, cannot be reached, or was lost
    │       │   └── McpNeedsLogin  a person has to log in: `holdfast mcp login NAME`
    │       ├── McpLoginFailed   a login, or the renewal of its tokens, came to nothing
    │       ├── McpOutcomeUnknown a call was sent and no answer came; an OutcomeUnknown, too
    │       └── McpTimeout       a deadline passed; `deadline` and `value_s` say which
    │           ├── McpConnectTimeout  no session in time
    │           ├── McpListTimeout     no list of its tools in time
    │           ├── McpCallTimeout     no answer to a call in time
    │           └── McpPingTimeout     no sign of life after a call went unanswered
    ├── TurnError                a turn that has no answer to give; `turn` is what there is of it
    │   ├── TurnWaits            people or clients have to act first; the message names the calls of `turn.open`
    │   ├── TurnStopped          it was cut short; `cause` says by what
    │   ├── TurnFailed           it ended in a failure; `code` and `chain` tell the whole story
    │   └── TurnRunning          it is not over; ask again later
    │       └── TurnTimeout      it was not over within `timeout_s`, and goes on; a TimeoutError, too
    ├── NoWorker                 the operator: no living worker could drive the chat; start one that has its `agent`
    └── StoreError               the store
        ├── StoreUnavailable     cannot be reached now; `outcome` says whether the write may have happened
        ├── StoreTimeout         no answer within its deadline; same `outcome`
        ├── StoreFull            no room on disk; nothing was written, retry when there is room
        ├── StoreReadOnly        the file or server does not accept writes
        ├── StoreBusy            others use it, and what was asked for needs it alone
        ├── StoreGone            the database file was deleted or replaced under us
        ├── StoreAuth            the server refused the credentials
        ├── StoreCorrupt         not a database, or damaged
        ├── StoreClosed          used after close
        ├── DrainFailed          stopped, but something did not let go; `errors` says what
        └── SchemaError          the schema is not one this code can run on

Messages say what was wrong and what to do next; fields carry the same facts for programs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from holdfast.turn import Turn

Outcome = Literal["not_written", "unknown"]
DropCause = Literal["withdrawn", "cleared", "edited"]


class HoldfastError(Exception):
    """The root of every error raised by holdfast."""

    code = "error"


class CallerError(HoldfastError):
    code = "caller"


class InvalidInput(CallerError):
    code = "invalid_input"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class SlashCommandFailed(CallerError):
    code = "slash_command_failed"

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"/{name}: {problem}")
        self.name = name


class WrongCursor(InvalidInput):
    code = "wrong_cursor"

    def __init__(self, problem: str) -> None:
        super().__init__("cursor", problem)


class NotFound(CallerError):
    code = "not_found"

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"there is no {what} {id!r}: check the id, or whether it was deleted")
        self.what = what
        self.id = id


class Unauthorized(CallerError):
    code = "unauthorized"


class Forbidden(CallerError):
    code = "forbidden"

    def __init__(self, message: str, *, scope: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class RefusedError(CallerError):
    code = "refused"

    def __init__(self, message: str, *, reason: str, state: str, command: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.state = state
        self.command = command


class KeyReused(CallerError):
    code = "key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"idempotency key {key!r} was used before with another body: use a new key for a new request"
        )
        self.key = key


class NoTurn(CallerError):
    code = "no_turn"

    def __init__(self, chat_id: str, number: int | None = None) -> None:
        which = "any turn" if number is None else f"turn {number}"
        super().__init__(f"chat {chat_id!r} has not begun {which}: send it a message first")
        self.chat_id = chat_id
        self.number = number


class MessageDropped(CallerError):
    code = "message_dropped"

    def __init__(self, message_id: str, why: DropCause) -> None:
        super().__init__(f"no turn takes message {message_id!r}: {_DROPPED[why]}. Send it again if it still counts")
        self.message_id = message_id
        self.why = why


_DROPPED: dict[DropCause, str] = {
    "withdrawn": "it was withdrawn while it was queued",
    "cleared": "a stop cleared the queue that it was in",
    "edited": "an edit of an earlier message dropped the queue that it was in",
}


class LimitReached(CallerError):
    code = "limit_reached"

    def __init__(self, what: str, value: int, limit: int, advice: str) -> None:
        super().__init__(f"{what} is {value:,}, the limit is {limit:,}: {advice}")
        self.what = what
        self.value = value
        self.limit = limit


class TooManyStreams(LimitReached):
    code = "too_many_streams"


class TooManyRequests(LimitReached):
    code = "too_many_requests"

    def __init__(self, per_minute: int, retry_after_s: int) -> None:
        super().__init__("requests of a minute", per_minute, per_minute, f"come back in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class ConfigError(CallerError):
    code = "config"


class UnknownAgent(ConfigError):
    code = "unknown_agent"


class OwnershipLost(HoldfastError):
    code = "ownership_lost"


class LeaseLost(OwnershipLost):
    code = "lease_lost"

    def __init__(self, worker: str) -> None:
        super().__init__(f"the lease of worker {worker!r} has ended: drop its chats and register as a new worker")
        self.worker = worker


class StaleWriter(OwnershipLost):
    code = "stale_writer"


class WentBack(StaleWriter):
    code = "database_went_back"

    def __init__(self, chat_id: str, message: str) -> None:
        super().__init__(message)
        self.chat_id = chat_id


class RecordError(HoldfastError):
    code = "record"


class UnknownRecord(RecordError):
    code = "unknown_record"


class CorruptRecord(RecordError):
    code = "corrupt_record"


class ModelError(HoldfastError):
    code = "model"


class ProviderError(ModelError):
    """One attempt failed. `code` is a `Kind` of core/retry.py; nothing in it ever holds a key."""

    code = "server_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        parameter: str | None = None,
        advice: str = "",
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.status = status
        self.retry_after_s = retry_after_s  # as the provider asked for it, capped; None: it did not
        self.request_id = request_id
        self.parameter = parameter  # one that is not supported, and that can be sent in another form or left out
        self.advice = advice  # which variable or setting to change; empty: none


class ConnectionFailed(ProviderError):
    code = "connection"


class LostResult(ProviderError):
    code = "lost_result"


class ProviderTimeout(ProviderError):
    code = "timeout"
    deadline = "timeout_s"

    def __init__(self, message: str, value_s: float, *, request_id: str | None = None) -> None:
        super().__init__(message, request_id=request_id)
        self.value_s = value_s


class ConnectTimeout(ProviderTimeout):
    deadline = "connect_s"


class FirstByteTimeout(ProviderTimeout):
    deadline = "first_byte_s"


class SilenceTimeout(ProviderTimeout):
    deadline = "silence_s"


class CallTimeout(ProviderTimeout):
    deadline = "call_s"


class LoadTimeout(ProviderTimeout):
    deadline = "local_load_s"


class AdmissionTimeout(ProviderTimeout):
    deadline = "total_s"


class ModelCallFailed(ModelError):
    """`code` is that of the last attempt. The errors of all attempts are in `errors`, and all in `__cause__`."""

    def __init__(self, message: str, *, errors: "tuple[ProviderError, ...]", attempts: tuple[object, ...]) -> None:
        super().__init__(message)
        self.errors = errors
        self.attempts = attempts  # of models.calls.FailedAttempt
        # Of each model once, for its last attempt.
        self.advice = "; ".join(dict.fromkeys(error.advice for error in errors if error.advice))
        if errors:
            self.code = errors[-1].code


class OutputInvalid(ModelError):
    code = "invalid_output"


class ToolFailed(HoldfastError):
    """A tool says why it cannot, to the model. `untrusted`: its words quote what came from outside."""

    code = "tool_failed"
    untrusted = False


class OutcomeUnknown(ToolFailed):
    """Raised by the body of a tool that began to do something and cannot tell what came of it.

    The call then ends as after a crash: an `unsafe` one is told to the model as unknown, or put before a person; an
    `idempotent` one runs again with the same key, a few times at most. For a `pure` one it is an error like any
    other.
    """

    code = "outcome_unknown"


class McpError(ToolFailed):
    code = "mcp"

    def __init__(self, server: str, message: str) -> None:
        super().__init__(f"MCP server {server!r}: {message}")
        self.server = server
        self.words = message


class McpUnavailable(McpError):
    code = "mcp_unavailable"


class McpNeedsLogin(McpUnavailable):
    code = "mcp_needs_login"


class McpLoginFailed(McpError):
    code = "mcp_login_failed"


class McpOutcomeUnknown(McpError, OutcomeUnknown):
    code = "mcp_outcome_unknown"


class McpTimeout(McpError):
    code = "mcp_timeout"
    deadline = "timeout_s"

    def __init__(self, server: str, what: str, value_s: float) -> None:
        super().__init__(server, f"{what} within {value_s:g} s ({self.deadline})")
        self.value_s = value_s


class McpConnectTimeout(McpTimeout):
    deadline = "connect_s"


class McpListTimeout(McpTimeout):
    deadline = "list_s"


class McpCallTimeout(McpTimeout):
    deadline = "call_s"


class McpPingTimeout(McpTimeout):
    deadline = "ping_s"


class TurnError(HoldfastError):
    """`turn` is the turn as far as it went: `partial_text`, the calls that are open, its usage."""

    code = "turn"

    def __init__(self, message: str, turn: "Turn[Any]") -> None:
        super().__init__(message)
        self.turn = turn


class TurnWaits(TurnError):
    code = "turn_waits"


class TurnStopped(TurnError):
    code = "turn_stopped"

    def __init__(self, message: str, turn: "Turn[Any]") -> None:
        super().__init__(message, turn)
        self.cause = turn.cause


class TurnFailed(TurnError):
    """`code` is that of the failure."""

    def __init__(self, turn: "Turn[Any]") -> None:
        error = turn.error
        self.code = "failed" if error is None else error.code
        self.chain: tuple[str, ...] = () if error is None else error.chain
        self.advice = "" if error is None else error.advice
        words = "the turn failed" if error is None else error.message
        told = (f"{self.code}: {words}", *filter(None, [self.advice]), *self.chain)
        super().__init__("\n  ".join(told), turn)


class TurnRunning(TurnError):
    code = "turn_running"


class TurnTimeout(TurnRunning, TimeoutError):
    code = "turn_timeout"

    def __init__(self, message: str, turn: "Turn[Any]", timeout_s: float) -> None:
        super().__init__(message, turn)
        self.timeout_s = timeout_s


class NoWorker(HoldfastError):
    code = "no_worker"

    def __init__(self, chat_id: str, agent: str, waited_s: float) -> None:
        super().__init__(
            f"there has been no worker for {waited_s:g} s (worker_wait_s) that could drive chat {chat_id!r}: none "
            f"that lives has the agent {agent!r}. Start one: `async with app.worker():`, `holdfast serve` or "
            "`holdfast worker`. Nothing is lost: the chat goes on when one comes"
        )
        self.chat_id = chat_id
        self.agent = agent
        self.waited_s = waited_s


class StoreError(HoldfastError):
    code = "store"


class StoreUnavailable(StoreError):
    code = "store_unavailable"

    def __init__(self, message: str, *, outcome: Outcome = "not_written") -> None:
        super().__init__(message)
        self.outcome = outcome


class StoreTimeout(StoreUnavailable):
    code = "store_timeout"


class StoreFull(StoreError):
    code = "store_full"


class StoreReadOnly(StoreError):
    code = "store_read_only"


class StoreBusy(StoreError):
    """Others use it, and what was asked for needs it alone."""

    code = "store_busy"


class StoreGone(StoreError):
    code = "store_gone"


class StoreAuth(StoreError):
    code = "store_auth"


class StoreCorrupt(StoreError):
    code = "store_corrupt"


class StoreClosed(StoreError):
    code = "store_closed"


class DrainFailed(StoreError):
    """Raised after the stop is complete, never instead of it; to every caller that asked for it."""

    code = "drain_failed"

    def __init__(self, errors: Sequence[BaseException]) -> None:
        super().__init__(
            "stopped, but not everything let go in good order: " + "; ".join(str(error) for error in errors)
        )
        self.errors = tuple(errors)
        self.__cause__ = errors[0] if len(errors) == 1 else BaseExceptionGroup("letting go", errors)


class SchemaError(StoreError):
    code = "schema"
