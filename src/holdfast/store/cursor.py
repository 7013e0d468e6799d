"""A reader's place in a chat's journal, as an opaque string.

Inside: the last journal number seen, and the last delta (attempt, k) seen. Both only grow and neither is ever
given to anything else, so a cursor means the same on every server process, for the whole life of the chat. One that
is ahead of its chat is another chat's, or of a life that a backup undid: whoever waited behind it would miss all that
comes before, so it is refused.
"""

import base64

from msgspec import Struct

from holdfast.core.records import fence_of
from holdfast.errors import InvalidInput

_VERSION = 1
_MAX = (1 << 63) - 1  # what both stores can compare


class Cursor(Struct, frozen=True, order=True):
    seq: int = 0
    attempt: int = 0
    k: int = -1

    def __str__(self) -> str:
        plain = f"{_VERSION}.{self.seq}.{self.attempt}.{self.k}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


START = Cursor()


def parse(text: str | None) -> Cursor:
    if not text:
        return START
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        version, seq, attempt, k = (int(field) for field in plain.split("."))
    except ValueError as error:
        raise InvalidInput("cursor", f"{text[:80]!r} is not one; use the id of an event you were sent") from error
    if version != _VERSION or not (0 <= seq <= _MAX and 0 <= attempt <= _MAX and -1 <= k <= _MAX):
        raise InvalidInput("cursor", f"{text[:80]!r} is not one; use the id of an event you were sent")
    return Cursor(seq, attempt, k)


def check_reached(cursor: Cursor, seq: int, fence: int) -> None:
    """Raises InvalidInput for a place that a chat with this last entry and fence cannot have given to anybody."""
    if cursor.seq > seq or fence_of(cursor.attempt) > fence:
        raise InvalidInput("cursor", "is ahead of this chat: it is another chat's; read this one from its beginning")
