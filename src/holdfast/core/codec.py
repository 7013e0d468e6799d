"""Records to JSON and back. Decoding is strict about what it knows and says clearly what it cannot read."""

from typing import Any, TypeVar

import msgspec

from holdfast.core.journal import AnyEntry, Delta
from holdfast.core.records import ClientTool, Failure, Message
from holdfast.errors import CorruptRecord, InvalidInput, UnknownRecord

T = TypeVar("T")

NOT_UNICODE = "is not valid Unicode (a lone surrogate, or bytes that are not UTF-8)"

_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(Message)
_entry: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEntry)
_delta = msgspec.json.Decoder(Delta)
_failure = msgspec.json.Decoder(Failure)
_names = msgspec.json.Decoder(tuple[str, ...])
_client_tools = msgspec.json.Decoder(tuple[ClientTool, ...])


def encode(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise InvalidInput("text", f"{NOT_UNICODE} at position {error.start}; decode the input properly") from error


def _decode(decoder: "msgspec.json.Decoder[T]", data: bytes | str, what: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # "Invalid value 'x' - at `$.parts[0].kind`": a kind or enum member of newer code reads like this.
        if "Invalid value" in str(error) or "Invalid enum value" in str(error):
            raise UnknownRecord(f"a {what} was written by newer code: {error}") from error
        raise CorruptRecord(f"stored bytes are not a {what}: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CorruptRecord(f"stored bytes are not a {what}: {error}") from error


def decode_message(data: bytes | str) -> Message:
    return _decode(_message, data, "message")


def decode_entry(data: bytes | str) -> AnyEntry:
    entry: AnyEntry = _decode(_entry, data, "journal entry")
    return entry


def decode_delta(data: bytes | str) -> Delta:
    return _decode(_delta, data, "delta")


def decode_failure(data: bytes | str) -> Failure:
    return _decode(_failure, data, "failure")


def decode_names(data: bytes | str) -> tuple[str, ...]:
    return _decode(_names, data, "list of names")


def decode_client_tools(data: bytes | str) -> tuple[ClientTool, ...]:
    return _decode(_client_tools, data, "list of client tools")


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
        raise InvalidInput(field, f"is {size:,} bytes, the limit is {bytes_max:,}; send it as a file reference")


def storable(text: str) -> str:
    """The nearest text that every store takes, for words that nobody can be asked to mend: an error's, say."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
