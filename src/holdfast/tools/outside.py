"""Tools that are answered from outside: `ask_user`, `sleep_until`, and those that the client runs.

None of them has a body: the call is handed over in one commit, the chat waits without a worker, for days if need be,
and the answer and the resume are one transaction.
"""

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.codec import decode_json, storable
from holdfast.core.records import ClientTool, External, Replay
from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import Delegation, Tool, signature_of
from holdfast.tools.context import ToolContext
from holdfast.tools.schemas import accepted

CLIENT_EXPIRES_S = 300.0
SLEEP_DAYS_MAX = 366


def ask_user(*, expires_s: float | None = None) -> Tool:
    """The model may ask the person a question. Any message of theirs, or `chat.submit`, answers it."""

    def ask_user(question: str) -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        return Delegation(
            external=External.QUESTION, question=storable(arguments["question"]), expires_at=_in(expires_s, now)
        )

    text = "Ask the user a question and wait for the answer. Use it when you cannot go on without them."
    return does_nothing(outside(ask_user, text, delegate))


def sleep_until() -> Tool:
    """The model may wait for a point in time: a timer of the chat, not a sleeping worker."""

    def sleep_until(time: datetime.datetime) -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        time: datetime.datetime = arguments["time"]
        at = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        at_ms = int(at.timestamp() * 1000)
        if at_ms > now + SLEEP_DAYS_MAX * 86_400_000:
            raise ToolFailed(f"{time.isoformat()} is more than {SLEEP_DAYS_MAX} days ahead: choose an earlier time.")
        return Delegation(external=External.TIMER, expires_at=max(at_ms, now))

    text = "Do nothing until a point in time (ISO 8601, with an offset such as +02:00; without one it is UTC)."
    return does_nothing(outside(sleep_until, text, delegate))


def client_tool(
    name: str,
    description: str = "",
    schema: Mapping[str, Any] | None = None,
    *,
    expires_s: float | None = CLIENT_EXPIRES_S,
    needs_approval: bool = False,
) -> Tool:
    """A tool that the client runs: a file on the user's machine, a page in their browser. `schema` is the JSON schema
    of its arguments. The client reads the call in the chat's events and answers with `chat.submit(call_id, …)`.

    It belongs to an agent (`Agent(tools=[…])`), or a client brings it along: `app.create(client_tools=[…])` for a
    chat, `chat.send(client_tools=[…])` for the turn that the message begins.
    """
    if not name:
        raise ConfigError("a client tool needs a name")
    try:
        encoded = Raw(msgspec.json.encode(schema or {"type": "object", "properties": {}}))
    except (TypeError, msgspec.MsgspecError) as error:
        raise ConfigError(f"client tool {name!r}: its schema is no JSON: {error}") from error
    return declared_tool(
        ClientTool(
            name=name,
            description=description,
            schema=encoded,
            expires_ms=None if expires_s is None else int(expires_s * 1000),
            needs_approval=needs_approval,
        )
    )


def declared_tool(client: ClientTool) -> Tool:
    """What a client declared, as a tool."""

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        expires_at = None if client.expires_ms is None else now + client.expires_ms
        return Delegation(external=External.CLIENT, expires_at=expires_at)

    return Tool(
        name=client.name,
        description=client.description,
        schema=accepted(bytes(client.schema)),
        function=_never,
        validate=_any_object,
        replay=Replay.PURE,  # nothing of it runs here
        needs_approval=client.needs_approval,
        delegate=delegate,
        client=client,
    )


def outside(function: Any, description: str, delegate: Any) -> Tool:
    """A tool with the arguments of `function`, which is never called."""
    _, schema, validate = signature_of(function)
    return Tool(
        name=function.__name__,
        description=description,
        schema=schema,
        function=_never,
        validate=validate,
        replay=Replay.PURE,  # nothing of it runs here
        delegate=delegate,
    )


def does_nothing(tool: Tool) -> Tool:
    """A call of it only waits: there is nothing to permit."""
    return replace(tool, acts=lambda _: ())


def _never(*_: Any, **__: Any) -> Any:
    raise ToolFailed("This tool is answered from outside; it has no body to call.")


def _any_object(arguments: str) -> dict[str, Any]:
    """The client knows what fits; here it has to be an object at all."""
    try:
        found: dict[str, Any] = msgspec.convert(decode_json(arguments or "{}"), dict[str, Any])
    except ValueError as error:
        raise ToolFailed(f"The arguments do not fit: {error}") from None
    return found


def _in(seconds: float | None, now_ms: int) -> int | None:
    return None if seconds is None else now_ms + int(seconds * 1000)
