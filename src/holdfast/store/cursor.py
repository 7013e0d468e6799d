"""A reader's place in a chat's journal, as an opaque string.

Inside: the last journal number seen, the last delta (attempt, k) seen, whose they are, and their stamps. The numbers
only grow, so a cursor means the same on every server process, for the whole life of the chat. One of another chat is
refused: a fork's parent, or a chat that was deleted and whose id was used again, has other things at the same
numbers. So has a chat that a backup took back: a cursor whose line, or whose delta while that is still to be had, is
not there with the same stamp is of a past that is gone. A reader that read on from it would miss something unseen.

What an earlier form said (1 named no chat, 2 had no stamps) is not guessed: it is refused as well, and its reader
begins anew.
"""

import base64
import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.records import fence_of
from holdfast.errors import WrongCursor

_VERSION = 3
_CHAT_BYTES = 6
_STAMP_BYTES = 4
_CHARS_MAX = 64
_MAX = (1 << 63) - 1  # what both stores can compare


class Cursor(Struct, frozen=True):
    """`chat` is whose it is; empty where our own code names a place by its numbers, in the chat that it reads."""

    seq: int = 0
    attempt: int = 0
    k: int = -1
    chat: bytes = b""
    stamp: int = 0  # of line `seq`
    attempt_stamp: int = 0  # of the claim that `attempt` was made under

    def __str__(self) -> str:
        assert self.chat, "only a cursor that names its chat is for others"
        marks = self.chat + _short(self.stamp) + _short(self.attempt_stamp)
        plain = msgspec.msgpack.encode((_VERSION, marks, self.seq, self.attempt, self.k))
        return base64.urlsafe_b64encode(plain).decode().rstrip("=")


START = Cursor()
AfterCursor = Cursor | str | None  # as a reader brings it; None: from the beginning

_written = msgspec.msgpack.Decoder(tuple[int, bytes, int, int, int])


def _short(stamp: int | None) -> bytes:
    """Of a stamp, as much as fits into the head of an event: this guards no write."""
    return (stamp or 0).to_bytes(8, "big", signed=True)[-_STAMP_BYTES:]


def parse(after: AfterCursor) -> Cursor:
    """Raises WrongCursor for a text that no server wrote."""
    if isinstance(after, Cursor):
        return after
    if not after:
        return START
    try:
        found = _written.decode(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _not_one(after) from error
    version, marks, seq, attempt, k = found
    if version != _VERSION or len(marks) != _CHAT_BYTES + 2 * _STAMP_BYTES or len(after) > _CHARS_MAX:
        raise _not_one(after)
    if not (0 <= seq <= _MAX and 0 <= attempt <= _MAX and -1 <= k <= _MAX):
        raise _not_one(after)
    stamps = marks[_CHAT_BYTES:]
    stamp, attempt_stamp = (int.from_bytes(part, "big") for part in (stamps[:_STAMP_BYTES], stamps[_STAMP_BYTES:]))
    return Cursor(seq, attempt, k, marks[:_CHAT_BYTES], stamp, attempt_stamp)


def _not_one(text: str) -> WrongCursor:
    return WrongCursor(f"{text[:80]!r} is not one; use the id of an event you were sent, or read from the beginning")


def _same(stamp: int, found: int | None) -> bool:
    return found is not None and _short(stamp) == _short(found)


class ReadersPlace(Struct, frozen=True):
    """What a chat has now where a cursor says that its reader is."""

    chat_id: str
    life: int
    seq: int  # its last line
    fence: int
    attempt_ended: int
    line_stamp: int | None  # of the cursor's line; None: it is not there
    delta_stamp: int | None  # of the cursor's delta


def placed(cursor: Cursor, place: ReadersPlace) -> Cursor:
    """As a place in this life of the chat. Raises WrongCursor where it is none."""
    chat = hashlib.blake2b(f"{place.chat_id} {place.life}".encode(), digest_size=_CHAT_BYTES).digest()
    if cursor.chat not in (b"", chat):
        raise WrongCursor("is another chat's; read this one from its beginning")
    if cursor.seq > place.seq or fence_of(cursor.attempt) > place.fence:
        raise WrongCursor("is ahead of this chat, which a backup took back; read it from its beginning")
    if cursor.chat:
        # Of an attempt that is over nothing is left to compare: its message, or the next attempt, replaces all of it.
        streams = cursor.k >= 0 and cursor.attempt > place.attempt_ended
        gone = streams and not _same(cursor.attempt_stamp, place.delta_stamp)
        if gone or (cursor.seq and not _same(cursor.stamp, place.line_stamp)):
            raise WrongCursor("is not in this chat's past: a backup took it back; read it from its beginning")
        return cursor
    return replace(cursor, chat=chat, stamp=place.line_stamp or 0, attempt_stamp=place.delta_stamp or 0)
