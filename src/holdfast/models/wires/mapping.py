"""What the wires share: reading an event's JSON, files by their URI, arguments as an object, parameters left out."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Raw

from holdfast.core.codec import is_json_object
from holdfast.core.records import File
from holdfast.errors import LostResult, ProviderError

T = TypeVar("T")

ID_CHARS_MAX = 200
NO_PROVIDER = ""  # what was signed goes back to none

encode = msgspec.json.Encoder().encode


def decode_event(decoder: msgspec.json.Decoder[T], data: bytes, who: str) -> T:
    """Raises `LostResult` for what is no event of this wire."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        try:
            # Half of a surrogate pair, escaped, is JSON to other parsers; some servers cut emoji in two.
            return msgspec.convert(json.loads(data.decode("utf-8", "replace")), decoder.type)
        except (ValueError, RecursionError):
            shown = data[:200].decode("utf-8", "replace")
            raise LostResult(f"{who} sent what is no chunk of a response: {error}: {shown}") from error


def response_id(given: Any) -> str | None:
    """As the provider names its response; what is no name is none."""
    return given[:ID_CHARS_MAX] if isinstance(given, str) and given else None


def schema_of(schema: Raw | Mapping[str, Any]) -> Any:
    return schema if isinstance(schema, Raw) else dict(schema)


def arguments_object(text: str, otherwise: bytes = b"{}") -> bytes:
    """A call's arguments as the JSON object that they are the text of; an empty one if they are not."""
    return text.encode() if is_json_object(text) else otherwise


def arguments_text(value: Any) -> str:
    """Arguments that came as a JSON value; nothing is an empty text."""
    if isinstance(value, str):
        return value
    return encode(value).decode() if value else ""


TOKENS_MAX = 1 << 32  # of one response; no database could hold the sum of what some servers might write


def count_of(value: Any) -> int:
    """Tokens, as some server wrote them: 3, 3.0 or "3". What is no count is none, and loses no response."""
    try:
        count = int(float(value)) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0
    return count if 0 < count <= TOKENS_MAX else 0


def leave_out(body: dict[str, Any], names: Iterable[str]) -> None:
    """Takes parameters out of a body; `a.b` is one inside another, which goes too when nothing is left in it."""
    for name in names:
        outer, _, inner = name.partition(".")
        if not inner:
            body.pop(outer, None)
        elif isinstance(body.get(outer), dict):
            leave_out(body[outer], (inner,))
            if not body[outer]:
                del body[outer]


# --- files -----------------------------------------------------------------------------------------


def inline_data(file: File) -> str | None:
    """The bytes of a data: URI, in base64; None if the file lives elsewhere. Raises `ProviderError`."""
    if not file.uri.startswith("data:"):
        return None
    head, comma, data = file.uri.partition(",")
    if not comma:
        raise ProviderError(f"the data: URI of {file.name or 'a file'} has no comma", code="bad_request")
    if head.endswith(";base64"):
        return unquote_to_bytes(data).decode("latin-1") if "%" in data else data
    return base64.b64encode(unquote_to_bytes(data)).decode()


def inline_text(file: File) -> str | None:
    """The same as text. Raises `ProviderError` if it is none."""
    data = inline_data(file)
    if data is None:
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ProviderError(
            f"{file.name or 'a file'} is said to be text and is not: {error}", code="bad_request"
        ) from (error)


def said_text(file: File) -> str | None:
    """An inline text as something that is said, for wires on which files are for PDFs; None if it is none."""
    if not file.is_text or (text := inline_text(file)) is None:
        return None
    return f"[file {file.name or 'without a name'}]\n{text}"


def is_url(file: File) -> bool:
    return file.uri.startswith(("https://", "http://"))


def not_carried(file: File, wire: str, instead: str) -> ProviderError:
    """For what a wire has no place for."""
    where = "inline" if file.uri.startswith("data:") else file.uri.partition(":")[0] + ": URIs"
    return ProviderError(f"{wire} does not take {file.media_type} as {where}: {instead}", code="bad_request")


def not_in_a_message(part: object) -> ProviderError:
    return ProviderError(f"a user's message cannot hold a {type(part).__name__}", code="bad_request")
