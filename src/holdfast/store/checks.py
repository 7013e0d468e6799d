"""What callers give the store, checked before anything is asked of a database. Raises InvalidInput, LimitReached."""

import math
from collections.abc import Sequence
from datetime import date
from typing import Any, get_args

import msgspec

from holdfast.core.codec import JSON_DEPTH_MAX, check_text, is_too_deep, too_deep
from holdfast.core.commands import Approve, Command, Edit, Give, Send, Submit
from holdfast.core.history import TOOL_NAME
from holdfast.core.limits import Limits
from holdfast.core.records import NOTHING, Always, ClientTool, Message, NewChat, Sampling, Terms, Text
from holdfast.errors import InvalidInput, LimitReached, RefusedError
from holdfast.store.records import DeleteChildren, Key

LISTED_MAX = 10_000


def check_new_chat(new: NewChat, limits: Limits) -> None:
    for name in ("id", "agent", "owner"):
        check_text(name, getattr(new, name), bytes_max=512)
    if not new.id or not new.agent:
        raise InvalidInput("id" if not new.id else "agent", "is empty")
    if new.title is not None:
        check_text("title", new.title, bytes_max=4 * limits.title_chars_max)
    check_names(new.active_tools, limits)
    check_client_tools(new.client_tools, limits)
    metadata = bytes(new.metadata)
    if len(metadata) > limits.metadata_bytes_max:
        raise LimitReached(
            "metadata in bytes",
            len(metadata),
            limits.metadata_bytes_max,
            "keep it in a store of yours",
        )
    check_json_object("metadata", metadata)
    for message in new.messages:
        check_message(message, limits)


def check_fork(new_id: str, owner: str | None, key: Key | None) -> None:
    """For `fork_chat`, before anything else."""
    check_text("id", new_id, bytes_max=512)
    if not new_id:
        raise InvalidInput("id", "is empty")
    check_text("owner", owner or "", bytes_max=512)
    check_key(key)


def check_days(**days: str | None) -> None:
    for name, day in days.items():
        if day is not None and not is_day(day):
            raise InvalidInput(name, f"{day!r} is no day: write it as 2026-11-17")


def is_day(text: str) -> bool:
    """In the one form that is compared; `date` takes others as well."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def check_command(command: Command, limits: Limits) -> None:
    if isinstance(command, Send | Edit):
        check_message(command.message, limits)
    if isinstance(command, Give):
        _check_given(command, limits)
    if isinstance(command, Submit):
        _check_result(command, limits)
    if isinstance(command, Approve):
        _check_always(command)
    for name in command.__struct_fields__:
        value = getattr(command, name)
        if isinstance(value, str):
            check_text(name, value, bytes_max=limits.message_bytes_max)


def _check_given(command: Give, limits: Limits) -> None:
    check_text("agent", command.agent or "", bytes_max=512)
    if command.agent == "":
        raise InvalidInput("agent", "is empty")
    for message in command.messages:
        check_message(message, limits)


def _check_always(command: Approve) -> None:
    if command.always is not None and command.always not in get_args(Always):
        raise InvalidInput("always", f"is one of {', '.join(get_args(Always))}")
    if command.always_ms is not None and (command.always is None or not 0 < command.always_ms < 1 << 48):
        raise InvalidInput("for_s", "says for how long `always` is meant: give both, and a time above 0")


def _check_result(command: Submit, limits: Limits) -> None:
    limit = limits.message_bytes_max
    size = len(command.content) + (_check_terms(command.terms, limits) if command.terms is not None else 0)
    for file in command.files:
        for name in ("media_type", "uri", "name"):
            check_text(f"file {name}", getattr(file, name) or "", bytes_max=limit)
        size += len(file.uri)
    if size > limit:
        raise InvalidInput("content", f"is over {limit:,} bytes; send large content as file references")


def _check_terms(terms: Terms, limits: Limits) -> int:
    """Returns how long they are, but for what has a limit of its own."""
    check_names(terms.active_tools, limits)
    check_client_tools(terms.client_tools, limits)
    check_text("instructions", terms.instructions or "", bytes_max=limits.message_bytes_max)
    size = check_sampling(terms.sampling) if terms.sampling is not None else 0
    if terms.metadata != NOTHING:
        check_json("message metadata", bytes(terms.metadata))
        size += len(bytes(terms.metadata))
    return size


def check_message(message: Message, limits: Limits) -> None:
    check_text("message id", message.id, bytes_max=512)
    size = _check_terms(message.asked, limits)
    if not message.id or not message.parts:
        raise InvalidInput("message", "needs an id and at least one part")
    limit = limits.message_bytes_max
    for part in message.parts:
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if isinstance(value, str):
                check_text(f"message {type(part).__name__.lower()} {name}", value, bytes_max=limit)
                size += len(value)
    if not any(not isinstance(part, Text) or part.text for part in message.parts):
        raise InvalidInput("message", "says nothing; send some text or a file")
    if size > limit:
        raise InvalidInput("message", f"is over {limit:,} bytes; send large content as file references")


def check_names(names: tuple[str, ...] | None, limits: Limits) -> None:
    limit = limits.active_tools_max
    if names is not None and len(names) > limit:
        raise LimitReached("active tools", len(names), limit, "name fewer")
    for name in names or ():
        check_text("active_tools", name, bytes_max=512)


def check_client_tools(tools: tuple[ClientTool, ...], limits: Limits) -> None:
    if len(tools) > limits.client_tools_max:
        raise LimitReached("client tools", len(tools), limits.client_tools_max, "declare fewer")
    size = 0
    for tool in tools:
        if not TOOL_NAME.fullmatch(tool.name):
            raise InvalidInput(
                "client_tools", f"names a tool {tool.name!r}; a name has 1 to 64 letters, digits, _ or -"
            )
        check_text(f"client_tools {tool.name} description", tool.description, bytes_max=limits.message_bytes_max)
        schema = bytes(tool.schema)
        check_json_object(f"client_tools {tool.name} schema", schema)
        if tool.expires_ms is not None and not 0 < tool.expires_ms < 1 << 53:
            raise InvalidInput("client_tools", f"{tool.name}: expires_ms is {tool.expires_ms}; give more than 0")
        size += len(schema) + len(tool.description.encode())
    if size > limits.client_tools_bytes_max:
        raise LimitReached("client tools in bytes", size, limits.client_tools_bytes_max, "describe them shorter")
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidInput("client_tools", "names a tool twice")


def check_sampling(sampling: Sampling) -> int:
    """Returns how long it is."""
    output = sampling.output
    words = (sampling.reasoning_effort or "", sampling.tool_choice or "", output.name if output is not None else "")
    for text in (*sampling.stop, *words):
        check_text("sampling", text, bytes_max=512)
    for number in (sampling.temperature, sampling.top_p):
        if number is not None and not math.isfinite(number):
            raise InvalidInput("sampling", f"{number} is no number that a provider takes")
    schema = bytes(output.schema) if output is not None else b""
    if schema:
        check_json_object("sampling output schema", schema)
    return sum(map(len, sampling.stop)) + len(schema)


def check_key(key: Key | None) -> None:
    if key is not None:
        check_text("principal", key.principal, bytes_max=1_100)  # it may hold an owner and a chat's id
        check_text("key", key.key, bytes_max=512)
        if not key.key:
            raise InvalidInput("key", "is empty")


def page_size(limit: int) -> int:
    if not 1 <= limit <= LISTED_MAX:
        raise InvalidInput("limit", f"is {limit}; it can be 1 to {LISTED_MAX:,}")
    return limit


def check_json(field: str, data: bytes) -> object:
    """It is kept byte for byte, so one that cannot be read now could never be read again."""
    if is_too_deep(data):
        raise InvalidInput(field, too_deep(JSON_DEPTH_MAX))
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error
    if b"\\u0000" in data:
        raise InvalidInput(field, "holds a NUL character; remove it")
    return value


def check_json_object(field: str, data: bytes) -> None:
    if not isinstance(check_json(field, data), dict):
        raise InvalidInput(field, "is not a JSON object")


def check_childless(family: Sequence[Sequence[Any]], chat_id: str, children: DeleteChildren) -> None:
    """For `delete_chat`: the chat itself comes first in its family, each with its state."""
    if len(family) > 1 and children == "refuse":
        raise RefusedError(
            f"chat {chat_id!r} has {len(family) - 1} spawned chats: delete them too (children='include')",
            reason="children",
            state=family[0][1],
            command="delete",
        )


def check_expired(found: Sequence[object], chat_id: str, state: str) -> None:
    """For `delete_chat` with `archived_before`: what the look inside its transaction found."""
    if not found:
        raise RefusedError(f"chat {chat_id!r} is in use again", reason="state", state=state, command="delete")
