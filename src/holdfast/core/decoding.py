"""How stored bytes become records: one decoder per kind, and an error that says what could not be read, and why."""

from typing import TypeVar

import msgspec

from holdfast.core.records import Message
from holdfast.errors import CorruptRecord, UnknownRecord

T = TypeVar("T")

MESSAGES = msgspec.json.Decoder(Message)


def decode_with(decoder: "msgspec.json.Decoder[T]", data: bytes | str, what: str) -> T:
    """Raises UnknownRecord for what newer code wrote, CorruptRecord for what no code of ours did."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # "Invalid value 'x' - at `$.parts[0].kind`": a kind or enum member of newer code reads like this.
        if "Invalid value" in str(error) or "Invalid enum value" in str(error):
            raise UnknownRecord(f"a {what} was written by newer code: {error}") from error
        raise CorruptRecord(f"stored bytes are not a {what}: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CorruptRecord(f"stored bytes are not a {what}: {error}") from error
