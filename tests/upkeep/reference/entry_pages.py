"""docs/reference/events.md and updates.md: every kind of journal entry and of update, each with an example.

An example is taken from a chat that the core was told command by command (`tellings`).
"""

import inspect
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

from msgspec import NODEFAULT, Raw, Struct
from msgspec.structs import fields

from holdfast.core import journal as jn
from holdfast.core import updates as up
from holdfast.core.codec import encode
from holdfast.core.fold import fold
from tests.upkeep.reference import tellings

_EVENTS = """# Events

What a chat's journal tells: each line of `chat.events()`, of `GET /api/chats/CHAT/events` and of `holdfast chats
tail --json` is one of these kinds, or a `delta` while a response is streamed. `kind` is what JSON says; the class
is what Python matches on. Newer code may add kinds and fields: a reader passes over what it does not know. Who
shows a chat reads [updates](updates.md) instead.
"""
_UPDATES = """# Updates

What `chat.stream()` yields, in Python and in [JavaScript](../how-to/javascript.md): the journal, with streamed and
committed text reconciled. Every update also has `turn`, the turn as it stands after it, and `cursor`, the place to
go on from. [Turns](../how-to/turns.md) shows a reader.
"""


def kinds() -> dict[str, type[jn.Entry]]:
    return {str(kind.__struct_config__.tag): kind for kind in get_args(jn.AnyEntry)}


def events_page() -> str:
    examples = _entries()
    parts = [_EVENTS]
    for kind, found in kinds().items():
        parts.append(_section(f"`{kind}`", found, _json(encode(examples[kind]))))
    pieces = [delta for told in tellings.all_of_them() for _, _, delta in told.streamed]
    parts.append(_section("`delta`", jn.Delta, _json(encode(pieces[0]))))
    return "\n".join(parts)


def _entries() -> dict[str, jn.Entry]:
    """The first of each kind."""
    found: dict[str, jn.Entry] = {}
    everything = [entry for told in tellings.all_of_them() for entry in told.journal]
    for entry in (*everything, *tellings.repaired()):
        found.setdefault(str(type(entry).__struct_config__.tag), entry)
    return found


def _json(raw: bytes) -> str:
    return f"```json\n{json.dumps(json.loads(raw), ensure_ascii=False)}\n```"


def updates_page() -> str:
    examples: dict[str, up.Update] = {}
    for told in tellings.all_of_them():
        for update in fold(told.events()):
            if not isinstance(update, up.Happened) or isinstance(update.entry, jn.MessageQueued):
                examples.setdefault(type(update).__name__, update)
    parts = [_UPDATES]
    for kind in get_args(up.Update):
        example = f"```text\n{_shown(examples[kind.__name__])}\n```"
        parts.append(_section(f"`{kind.__name__}`", kind, example))
    return "\n".join(parts)


def _section(title: str, kind: type[Struct], example: str) -> str:
    own = kind.__dict__.get("__doc__")
    words = " ".join(inspect.cleandoc(own).split()) if own else ""
    named = title.strip("`") == kind.__name__
    lines = [f"## {title}\n"]
    if not named or words:
        lines.append(f"{'' if named else f'`{kind.__name__}`. '}{words}".strip() + "\n")
    told = [f"- {field}" for field in _fields(kind)]
    if told:
        lines += [*told, ""]
    return "\n".join([*lines, "<!-- shown: made by make reference -->", example, ""])


def _fields(kind: type[Struct]) -> Iterator[str]:
    """Name and type, as JSON has them."""
    for field in fields(kind):
        if field.name in ("turn", "cursor") and issubclass(kind, up.TextAdded.__mro__[1]):
            continue
        optional = "" if field.default is NODEFAULT and field.default_factory is NODEFAULT else ", optional"
        name = field.encode_name
        yield f"`{name}`: {_type(field.type)}{optional}"


def _type(hint: Any) -> str:
    if hint is Raw:
        return "a message"
    if hint is type(None):
        return "null"
    arguments = get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"`{member.value}`" for member in hint)
    if not arguments:
        return {"str": "text", "int": "number", "float": "number", "bool": "true or false"}.get(
            getattr(hint, "__name__", ""), f"`{getattr(hint, '__name__', hint)}`"
        )
    if all(isinstance(argument, str) for argument in arguments):
        return " or ".join(f"`{argument}`" for argument in arguments)
    origin = getattr(hint, "__origin__", None)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is not None:
        return "object"
    if len(arguments) > 4:
        return "an [entry of the journal](events.md)"
    return " or ".join(_type(argument) for argument in arguments if argument is not type(None))


def _shown(value: Any) -> str:
    """A record with what it says, without what is at its default."""
    if isinstance(value, Enum):
        return f"{str(value.value)!r}"
    if isinstance(value, Raw):
        return json.dumps(json.loads(bytes(value)), ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if not isinstance(value, Struct):
        return repr(value)
    told = []
    for field in fields(value):
        found = getattr(value, field.name)
        hidden = field.name.startswith("_") or (field.name in ("turn", "cursor") and isinstance(value, up.Update))
        if not hidden and found != field.default:
            told.append(f"{field.name}={_shown(found)}")
    return f"{type(value).__name__}({', '.join(told)})"
