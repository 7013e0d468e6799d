"""What a provider accepts as a history, and how any list of messages is made into one.

The rules, for every request whatever the provider:
1. Every tool call is answered by exactly one result, right after its message, in the order of the calls.
2. A result answers a call of the assistant message before it; there are no others.
3. Call ids are unique.
4. Calls and reasoning stand in assistant messages only, expansions in a user's, results in tool messages, one each.
5. A call's arguments are the text of a JSON object.
6. No message is empty; unsigned reasoning is nothing (no provider takes it back).
7. A call's name is one that every provider takes, whatever the model called, and its result has the same one.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.codec import is_json_object
from holdfast.core.records import (
    Expansion,
    Message,
    Part,
    Reasoning,
    Role,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    result_message,
)

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider takes
_ODD = re.compile(r"[^A-Za-z0-9_-]")

_NO_RESULT = "No result was recorded for this call."


def problems(messages: Sequence[Message]) -> list[str]:
    """Why a provider would refuse this history; empty if it would not."""
    found: list[str] = []
    seen: set[str] = set()
    expected: list[str] = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        if message.role is Role.TOOL:
            found += _result_problems(at, message, expected, names)
            continue
        if expected:
            found.append(f"message {at} ({message.role}) comes before the results of {', '.join(expected)}")
            expected = []
        if True not in [_counts(part) for part in message.parts]:
            found.append(f"message {at} ({message.role}) is empty")
        for part in message.parts:
            if not _may_stand(part, message.role):
                found.append(f"message {at} ({message.role}) holds a {type(part).__name__}")
            elif not _counts(part):
                found.append(f"message {at} holds an empty or unsigned {type(part).__name__}")
            elif isinstance(part, ToolCall):
                if part.call_id in seen:
                    found.append(f"call id {part.call_id} is used twice")
                if not is_json_object(part.arguments):
                    found.append(f"the arguments of call {part.call_id} are not a JSON object")
                if not TOOL_NAME.fullmatch(part.name):
                    found.append(f"the name of call {part.call_id} is none that a tool can have")
                names[part.call_id] = part.name
                seen.add(part.call_id)
                expected.append(part.call_id)
    if expected:
        found.append(f"the history ends before the results of {', '.join(expected)}")
    return found


def _result_problems(at: int, message: Message, expected: list[str], names: dict[str, str]) -> list[str]:
    if len(message.parts) != 1 or not isinstance(message.parts[0], ToolResult):
        return [f"message {at} (tool) holds something other than one result"]
    result = message.parts[0]
    if not expected or expected[0] != result.call_id:
        return [f"message {at} answers {result.call_id}, expected is {expected[0] if expected else 'no result'}"]
    expected.pop(0)
    return [] if result.name == names[result.call_id] else [f"message {at} has not the name of its call"]


def make_valid(messages: Iterable[Message]) -> list[Message]:
    """The nearest history that `problems` finds nothing in. Deterministic, and changes nothing that is valid.

    Order is kept; what has no place is left out, what is missing is answered synthetically. A real result beats a
    synthetic one, the earlier beats the later.
    """
    source = list(messages)
    results = _best_results(source)
    valid: list[Message] = []
    seen: set[str] = set()
    for message in source:
        if message.role is Role.TOOL:
            continue  # placed right behind its call
        parts = _valid_parts(message, seen)
        if not parts:
            continue
        valid.append(message if parts == message.parts else msgspec.structs.replace(message, parts=parts))
        for part in parts:
            if isinstance(part, ToolCall):
                seen.add(part.call_id)
                valid.append(_named(results.get(part.call_id) or _missing_result(message, part), part.name))
    return valid


def _named(message: Message, name: str) -> Message:
    result = message.parts[0]
    if not isinstance(result, ToolResult) or result.name == name:
        return message
    return msgspec.structs.replace(message, parts=(msgspec.structs.replace(result, name=name),))


def _best_results(messages: list[Message]) -> dict[str, Message]:
    best: dict[str, tuple[bool, Message]] = {}
    for message in messages:
        for part in message.parts:
            if not isinstance(part, ToolResult):
                continue
            real = part.synthetic is None
            if part.call_id not in best or (real and not best[part.call_id][0]):
                alone = message.role is Role.TOOL and len(message.parts) == 1
                home = message if alone else result_message(part, message.created_at)
                best[part.call_id] = (real, home)
    return {call_id: message for call_id, (_, message) in best.items()}


def _valid_parts(message: Message, seen: set[str]) -> tuple[Part, ...]:
    parts: list[Part] = []
    here: set[str] = set()
    for part in message.parts:
        if not _may_stand(part, message.role) or not _counts(part):
            continue
        if isinstance(part, ToolCall):
            if part.call_id in seen or part.call_id in here:
                continue
            here.add(part.call_id)
            if not is_json_object(part.arguments):
                part = msgspec.structs.replace(part, arguments="{}", cut=True)
            if not TOOL_NAME.fullmatch(part.name):
                part = msgspec.structs.replace(part, name=_ODD.sub("_", part.name)[:64] or "unnamed")
        parts.append(part)
    return tuple(parts)


def _missing_result(message: Message, call: ToolCall) -> Message:
    result = ToolResult(
        call_id=call.call_id, name=call.name, content=_NO_RESULT, error=True, synthetic=Synthetic.REPAIRED
    )
    return result_message(result, message.created_at)


def _may_stand(part: Part, role: Role) -> bool:
    if isinstance(part, ToolCall | Reasoning):
        return role is Role.ASSISTANT
    if isinstance(part, ToolResult):
        return role is Role.TOOL
    if isinstance(part, Expansion):
        return role is Role.USER
    return True


def _counts(part: Part) -> bool:
    """Whether a part is anything to a provider."""
    if isinstance(part, Text | Expansion):
        return bool(part.text)
    if isinstance(part, Reasoning):
        return part.signed
    return True
