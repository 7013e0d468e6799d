"""A reader's place in a chat's journal, as an opaque string.

Inside: the last journal number seen, the last delta (attempt, k) seen, and whose they are. The numbers only grow and
none is ever given to anything else, so a cursor means the same on every server process, for the whole life of the
chat. One of another chat is refused: a fork's parent, or a chat that was deleted and whose id somebody used again,
has other things at the same numbers. One that is ahead of its chat is of a life that a backup undid, and refused too:
whoever waited behind it would miss all that comes before.

What an earlier form said (it named no chat) is not guessed: it is refused as well, and its reader begins anew.
"""

import base64
import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.records import fence_of
from holdfast.errors import WrongCursor

_VERSION = 2  # 1 named no chat
_CHAT_BYTES = 6
_CHARS_MAX = 64
_MAX = (1 << 63) - 1  # what both stores can compare


class Cursor(Struct, frozen=True):
    """`chat` is whose it is; empty where our own code names a place by its numbers, in the chat that it reads."""

    seq: int = 0
    attempt: int = 0
    k: int = -1
    chat: bytes = b""

    def __str__(self) -> str:
        assert self.chat, "only a cursor that names its chat is for others"
        plain = msgspec.msgpack.encode((_VERSION, self.chat, self.seq, self.attempt, self.k))
        return base64.urlsafe_b64encode(plain).decode().rstrip("=")


START = Cursor()
After = Cursor | str | None  # as a reader brings it; None: from the beginning

_written = msgspec.msgpack.Decoder(tuple[int, bytes, int, int, int])


def parse(after: After) -> Cursor:
    """Raises WrongCursor for a text that no server wrote."""
    if isinstance(after, Cursor):
        return after
    if not after:
        return START
    try:
        version, chat, seq, attempt, k = _written.decode(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _not_one(after) from error
    if version != _VERSION or len(chat) != _CHAT_BYTES or len(after) > _CHARS_MAX:
        raise _not_one(after)
    if not (0 <= seq <= _MAX and 0 <= attempt <= _MAX and -1 <= k <= _MAX):
        raise _not_one(after)
    return Cursor(seq, attempt, k, chat)


def _not_one(text: str) -> WrongCursor:
    return WrongCursor(f"{text[:80]!r} is not one; use the id of an event you were sent, or read from the beginning")


def placed(cursor: Cursor, chat_id: str, life: int, seq: int, fence: int) -> Cursor:
    """As a place in this life of the chat, with its last entry and fence. Raises WrongCursor where it is none."""
    chat = hashlib.blake2b(f"{chat_id} {life}".encode(), digest_size=_CHAT_BYTES).digest()
    if cursor.chat not in (b"", chat):
        raise WrongCursor("is another chat's; read this one from its beginning")
    if cursor.seq > seq or fence_of(cursor.attempt) > fence:
        raise WrongCursor("is ahead of this chat, which a backup took back; read it from its beginning")
    return replace(cursor, chat=chat)
