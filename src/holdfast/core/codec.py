"""Records to JSON and back. Decoding is strict about what it knows and says clearly what it cannot read."""

import re
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core.decoding import MESSAGES, decode_with
from holdfast.core.journal import AnyEntry, Delta
from holdfast.core.records import ClientTool, Failure, Message, Purse
from holdfast.errors import InvalidInput

# How deep JSON that others wrote may be nested. Each of its readers gives up somewhere, each elsewhere, and one that
# does spoils more than the chat that holds it: SQLite's functions at 1,000 and PostgreSQL's where the stack ends,
# both in the midst of a listing. Decoders in C used to stop at Python's 1,000 frames; since 3.12 they read on.
JSON_DEPTH_MAX = 100

NOT_UNICODE = "is not valid Unicode (a lone surrogate, or bytes that are not UTF-8)"

_encode = msgspec.json.Encoder().encode
_entry: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEntry)
_delta = msgspec.json.Decoder(Delta)
_failure = msgspec.json.Decoder(Failure)
_object = msgspec.json.Decoder(dict[str, Any])
_texts = msgspec.json.Decoder(dict[str, str])
_names = msgspec.json.Decoder(tuple[str, ...])
_client_tools = msgspec.json.Decoder(tuple[ClientTool, ...])
_purses = msgspec.json.Decoder(tuple[Purse, ...])


def encode(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise InvalidInput("text", f"{NOT_UNICODE} at position {error.start}; decode the input properly") from error
    except RecursionError as error:
        raise InvalidInput("value", too_deep(JSON_DEPTH_MAX)) from error


# A string that has no end goes to the end of the text, so that nothing is looked at twice.
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def too_deep(depth_max: int) -> str:
    return f"is nested more than {depth_max} deep; keep it flatter, or send it as text"


def is_too_deep(data: bytes, depth_max: int = JSON_DEPTH_MAX) -> bool:
    """Whether this JSON is nested deeper than that. In linear time, whatever it is."""
    if data.count(b"[") + data.count(b"{") <= depth_max:
        return False
    depth = 0
    for token in _STRUCTURE.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > depth_max:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def decode_json(data: bytes | str) -> Any:
    """What others wrote. Raises ValueError for what is no JSON, and for what is nested too deep."""
    raw = data if isinstance(data, bytes) else data.encode()
    if is_too_deep(raw):
        raise ValueError(f"it {too_deep(JSON_DEPTH_MAX)}")
    return msgspec.json.decode(raw)


def is_json_object(text: str) -> bool:
    """A model can write what it likes."""
    try:
        return isinstance(decode_json(text), dict)
    except ValueError:  # msgspec's and Unicode's errors are such
        return False


def decode_keepsakes(text: str) -> dict[str, str]:
    """What the tools of a chat kept, oldest first."""
    return decode_with(_texts, text, "what tools kept") if text else {}


def decode_message(data: bytes | str) -> Message:
    return decode_with(MESSAGES, data, "message")


def decode_entry(data: bytes | str) -> AnyEntry:
    entry: AnyEntry = decode_with(_entry, data, "journal entry")
    return entry


def decode_delta(data: bytes | str) -> Delta:
    return decode_with(_delta, data, "delta")


def decode_failure(data: bytes | str) -> Failure:
    return decode_with(_failure, data, "failure")


def decode_object(data: bytes | Raw, what: str) -> dict[str, Any]:
    return decode_with(_object, bytes(data), what)


def decode_names(data: bytes | str) -> tuple[str, ...]:
    return decode_with(_names, data, "list of names")


def decode_client_tools(data: bytes | str) -> tuple[ClientTool, ...]:
    return decode_with(_client_tools, data, "list of client tools")


def decode_purses(data: bytes | str) -> tuple[Purse, ...]:
    return decode_with(_purses, data, "list of limits of the chats above")


def check_text(field: str, text: str, *, bytes_max: int) -> None:
    """Refuse what a store or a provider would choke on later: NUL, lone surrogates, too much of it."""
    if (at := text.find("\x00")) >= 0:
        raise InvalidInput(field, f"has a NUL character at position {at}; remove it")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(
            field, f"is not valid Unicode at position {error.start} (a lone surrogate); decode the input properly"
        ) from error
    if size > bytes_max:
        raise InvalidInput(field, f"is {size:,} bytes, the limit is {bytes_max:,}: make it shorter")


def storable(text: str) -> str:
    """The nearest text that every store takes, for words that no caller can be asked to mend: an error's, say."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
