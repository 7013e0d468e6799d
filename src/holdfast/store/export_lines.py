"""The lines of an export: which there are, what each holds, and how one is written and read.

A file that is imported may come from anyone. So a line is taken only if it has the fields that an export writes,
each of its type and within bounds. Whether the lines of a chat fit each other, `arrivals.py` says.
"""

from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from holdfast.core.codec import JSON_DEPTH_MAX, decode_entry, decode_message, encode, is_too_deep, too_deep
from holdfast.core.journal import FOR_OPERATORS, AnyEntry, MessageAdded, MessageQueued, Traced
from holdfast.core.records import Call, ChatRecord, Message, Role, SendMode
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.store.rows import CALL_COLUMNS, CHAT_COLUMNS, Row, chat_of

FORMAT = 1
LINE_BYTES_MAX = 64 << 20
BODY_DEPTH_MAX = JSON_DEPTH_MAX + 10  # what others wrote lies some way down in an entry

HEAD, CHAT, FILE, END, CUT = "holdfast-export", "chat", "file", "end", "cut"
WITHHELD = encode(Traced(source="runner", name="", error="", text="")).decode()  # in place of what operators are told


class Heap(NamedTuple):
    """The rows of a chat in one table. The last column is the large one."""

    table: str
    key: tuple[str, ...]
    columns: tuple[str, ...]


# Without what a call offers: that is of the rules where it was judged, and not of the rules where it comes in.
_CALLS = (*(name for name in CALL_COLUMNS if name not in ("arguments", "offer")), "arguments")
HEAPS = {  # in the order of a file
    heap.table: heap
    for heap in (
        Heap("journal", ("seq",), ("seq", "stamp", "at", "role", "pos", "ref", "body")),
        Heap("calls", ("batch", "pos"), _CALLS),
        Heap("queue", ("id",), ("id", "rank", "mode", "body")),
        Heap("compactions", ("upto",), ("upto", "created_at", "summary")),
    )
}
FIRST = {"journal": (0,), "calls": (-(2**62), -(2**62)), "queue": ("",), "compactions": (-1,)}


# --- out ------------------------------------------------------------------------------------------------------------


def line_of(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def cut_line(why: str) -> bytes:
    """The last one of an export that ends before its end."""
    return line_of({"kind": CUT, "why": why})


def for_client(heap: Heap, row: Row) -> Row:
    """Without what only operators are told: tracebacks, and arguments with the secrets that a hook put into them. The
    line itself stays, or the numbers of the journal would have gaps.
    """
    if heap.table == "journal" and row[-1].startswith(FOR_OPERATORS.decode()):
        return (*row[:-1], WITHHELD)
    if heap.table == "calls" and row[-1] is not None:
        return (*row[:-1], row[heap.columns.index("told")])
    return row


# --- in: the fields -------------------------------------------------------------------------------------------------

Stamp = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, lt=1 << 40)]  # a fence is shifted by 20 bits, and has to fit a column then
Attempt = Annotated[int, Meta(ge=0, lt=1 << 62)]
Instant = Annotated[int, Meta(ge=0, lt=1 << 53)]
Cost = Annotated[float, Meta(ge=0)]
Json = Annotated[str, Meta(min_length=1)]

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("life", "stamp", "claim_stamp", "line_stamp"), Stamp),
    "rank": Annotated[int, Meta(gt=-(1 << 62), lt=1 << 62)],  # others go before and behind it
    "attempt_ended": Attempt,
    "metadata": Json,
    **dict.fromkeys(("active_tools", "client_tools", "error", "purses"), Json | None),
}
# What exports of older code do not have. It did not look where a result came from.
_LATER: dict[str, Any] = {"purses": None, "chat_tokens": 0, "chat_cost": 0.0, "spawned": 0, "tainted_from": 0}
_BOUNDED = {int: Count, int | None: Count | None, float: Cost}


def _kind(name: str, kind: Any) -> Any:
    if name in _KINDS:
        return _KINDS[name]
    if name.endswith("_at") or name == "at":
        return Instant | None if kind == int | None else Instant
    return _BOUNDED.get(kind, kind)


def _line(name: str, columns: tuple[str, ...], kinds: dict[str, Any]) -> type[Struct]:
    fields = [(column, _kind(column, kinds[column]), _LATER.get(column, msgspec.NODEFAULT)) for column in columns]
    return msgspec.defstruct(
        name, fields, tag=name, tag_field="kind", forbid_unknown_fields=True, frozen=True, kw_only=True
    )


_ROWS: dict[str, dict[str, Any]] = {
    "journal": {
        "seq": int,
        "stamp": int,
        "at": int,
        "role": Role | None,
        "pos": int | None,
        "ref": str | None,
        "body": str,
    },
    "calls": get_type_hints(Call),
    "queue": {"id": str, "rank": int, "mode": SendMode, "body": str},
    "compactions": {"upto": int, "created_at": int, "summary": str},
}


class Head(Struct, tag=HEAD, tag_field="kind", frozen=True):
    format: int
    chats: list[str] = []


class FileLine(Struct, tag=FILE, tag_field="kind", forbid_unknown_fields=True, frozen=True):
    """The bytes of a file that messages of the chat above name, as base64."""

    digest: str
    data: bytes


class End(Struct, tag=END, tag_field="kind", frozen=True):
    lines: int
    digest: str


class Cut(Struct, tag=CUT, tag_field="kind", frozen=True):
    why: str = ""


class _Any(Struct):
    kind: str


_LINES: dict[str, type[Struct]] = {
    HEAD: Head,
    CHAT: _line(CHAT, CHAT_COLUMNS, get_type_hints(ChatRecord)),
    FILE: FileLine,
    END: End,
    CUT: Cut,
    **{table: _line(table, heap.columns, _ROWS[table]) for table, heap in HEAPS.items()},
}
_any = msgspec.json.Decoder(_Any)
_decoders = {kind: msgspec.json.Decoder(line) for kind, line in _LINES.items()}


def line_in(data: bytes, number: int) -> tuple[str, Any]:
    """Its kind, and the line. Raises InvalidInput for what no export writes."""
    if is_too_deep(data, 2):
        raise InvalidInput(f"line {number}", "is no line of an export: it is nested")
    try:
        kind = _any.decode(data).kind
        if kind not in _decoders:
            raise InvalidInput(f"line {number}", f"is of a kind that no export has: {kind[:40]!r}")
        line = _decoders[kind].decode(data)
    except msgspec.ValidationError as error:
        words = f"is no line of an export, or of another version: {error}"
        raise InvalidInput(f"line {number}", words) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"line {number}", f"is no JSON: {error}") from error
    if any(isinstance(value, str) and "\0" in value for value in astuple(line)):
        raise InvalidInput(f"line {number}", "has a NUL character")
    return kind, line


def row_of(line: Struct) -> Row:
    """In the order of the columns of its heap."""
    return astuple(line)


def chat_in(line: Struct, number: int) -> ChatRecord:
    """Raises InvalidInput."""
    try:
        return chat_of(astuple(line))
    except HoldfastError as error:
        raise InvalidInput(f"line {number}", f"is no chat: {error}") from error


def entry_in(body: str, number: int) -> AnyEntry:
    """Raises InvalidInput. What it holds is read, too: a reader would fail on it later."""
    _check_depth(body, number)
    try:
        entry = decode_entry(body)
        if isinstance(entry, MessageAdded | MessageQueued):
            decode_message(bytes(entry.raw))
    except HoldfastError as error:
        raise InvalidInput(f"line {number}", f"holds no entry of a journal: {error}") from error
    return entry


def message_in(body: str, number: int) -> Message:
    """Raises InvalidInput."""
    _check_depth(body, number)
    try:
        return decode_message(body)
    except HoldfastError as error:
        raise InvalidInput(f"line {number}", f"holds no message: {error}") from error


def _check_depth(body: str, number: int) -> None:
    if is_too_deep(body.encode(), BODY_DEPTH_MAX):
        raise InvalidInput(f"line {number}", too_deep(BODY_DEPTH_MAX))
