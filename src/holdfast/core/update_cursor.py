"""An update's cursor: the store's place in the journal, and what a reader was shown beyond that (`Mark`)."""

import base64
from typing import NamedTuple

import msgspec

from holdfast.core.shown_words import NOTHING_SHOWN, ShownPrefix
from holdfast.errors import WrongCursor

_MARK_CHARS_MAX = 96
_BETWEEN = "~"  # the store's part and the mark


class Mark(NamedTuple):
    """What a cursor of an update says beyond its place in the journal. `turn` is the number of the line that began
    the turn (0: none did), `told` how many updates of the line after that place were told, those of text not counted.
    `drafts` is an attempt, and how many of the calls that it writes were told.
    """

    turn: int = 0
    told: int = 0
    text: ShownPrefix = NOTHING_SHOWN
    reasoning: ShownPrefix = NOTHING_SHOWN
    drafts: tuple[int, int] = (0, 0)


_marks = msgspec.msgpack.Decoder(tuple[int, int, int, bytes, int, bytes, int, int])


def cursor_of(place: str, mark: Mark) -> str:
    """One opaque text. `place` is the store's."""
    plain = msgspec.msgpack.encode((mark.turn, mark.told, *mark.text, *mark.reasoning, *mark.drafts))
    return f"{place}{_BETWEEN}{base64.urlsafe_b64encode(plain).decode().rstrip('=')}"


def parse_cursor(cursor: str) -> tuple[str, Mark | None]:
    """The store's part, and the mark; None: it is not an update's, but an event's. Raises WrongCursor."""
    place, between, text = cursor.partition(_BETWEEN)
    if not between:
        return place, None
    try:
        if len(text) > _MARK_CHARS_MAX:
            raise ValueError(text)
        found = _marks.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _not_one(cursor) from error
    turn, told, chars, digest, reasoning_chars, reasoning_digest, attempt, drafts = found
    if min(turn, told, chars, reasoning_chars) < 0:
        raise _not_one(cursor)
    said, thought = ShownPrefix(chars, digest), ShownPrefix(reasoning_chars, reasoning_digest)
    return place, Mark(turn, told, said, thought, (attempt, drafts))


def _not_one(text: str) -> WrongCursor:
    return WrongCursor(f"{text[:160]!r} is not one; use that of an update, or begin anew")
