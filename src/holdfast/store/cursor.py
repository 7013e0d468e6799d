"""A reader's place in a chat's journal, as an opaque string.

Inside: the last journal number seen, and the last delta (attempt, k) seen. Both only grow and neither is ever
given to anything else, so a cursor means the same on every server process, for the whole life of the chat.
"""

import base64

from msgspec import Struct

from holdfast.errors import InvalidInput

_VERSION = 1


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
    if version != _VERSION or seq < 0 or attempt < 0 or k < -1:
        raise InvalidInput("cursor", f"{text[:80]!r} is not one; use the id of an event you were sent")
    return Cursor(seq, attempt, k)
