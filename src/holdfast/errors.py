"""Every error holdfast raises, in one tree, by who must act.

    HoldfastError
    ├── CallerError              the caller: the request was wrong; change it
    │   ├── InvalidInput         a value no store or provider accepts (too large, NUL, broken Unicode, …)
    │   │   └── WrongCursor      a reader's place that is none, or another chat's; read from the beginning
    │   ├── NotFound             no such chat, message, call or worker
    │   ├── RefusedError         the chat's state does not allow this now (`refusal` says state and event)
    │   ├── KeyReused            an idempotency key came back with another body
    │   ├── LimitReached         a documented limit; `limit` and `value` say which and how far
    │   │   └── TooManyStreams   readers that are connected at the same time; leave some, or come back later
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
    │       ├── McpOutcomeUnknown a call was sent and no answer came; an OutcomeUnknown, too
    │       └── McpTimeout       a deadline passed; `deadline` and `value_s` say which
    │           ├── McpConnectTimeout  no session in time
    │           ├── McpListTimeout     no list of its tools in time
    │           ├── McpCallTimeout     no answer to a call in time
    │           └── McpPingTimeout     no sign of life after a call went unanswered
    ├── TurnFailed               a turn ended in a failure; `code` and `chain` tell the whole story
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
from typing import Literal

Outcome = Literal["not_written", "unknown"]


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


class RefusedError(CallerError):
    code = "refused"

    def __init__(self, message: str, *, reason: str, state: str, event: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.state = state
        self.event = event


class KeyReused(CallerError):
    code = "key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"idempotency key {key!r} was used before with another body: use a new key for a new request"
        )
        self.key = key


class LimitReached(CallerError):
    code = "limit_reached"

    def __init__(self, what: str, value: int, limit: int, advice: str) -> None:
        super().__init__(f"{what} is {value:,}, the limit is {limit:,}: {advice}")
        self.what = what
        self.value = value
        self.limit = limit


class TooManyStreams(LimitReached):
    code = "too_many_streams"


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
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.status = status
        self.retry_after_s = retry_after_s  # as the provider asked for it, capped; None: it did not
        self.request_id = request_id
        self.parameter = parameter  # one that is not supported, and that can be sent in another form or left out


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
        if errors:
            self.code = errors[-1].code


class OutputInvalid(ModelError):
    code = "invalid_output"


class ToolFailed(HoldfastError):
    code = "tool_failed"


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


class McpUnavailable(McpError):
    code = "mcp_unavailable"


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


class TurnFailed(HoldfastError):
    def __init__(self, code: str, message: str, chain: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join((f"{code}: {message}", *chain)))
        self.code = code
        self.chain = chain


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
