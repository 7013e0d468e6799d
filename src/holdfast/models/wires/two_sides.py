"""Wires on which two sides take turns: a tool's result is something the user's side says.

What one side says in a row becomes one message, so that all results of a batch stand together, right after their
calls, as these wires want it.
"""

from collections.abc import Sequence

from holdfast.core.records import Message, Role
from holdfast.models.wires.fragments import Fragments

# Looking a member up in its enum takes longer than all else that is done with a message here.
_SYSTEM, _ASSISTANT = Role.SYSTEM, Role.ASSISTANT


def split_system(messages: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
    """The system's words, wherever they stand, and the rest: these wires have a place of its own for them."""
    system = [message for message in messages if message.role is _SYSTEM]
    return system, [message for message in messages if message.role is not _SYSTEM] if system else messages


class Turns:
    """The JSON text of what the sides say, in pieces. `users` and `models` open a message, `]}` closes one.

    A long history has a thousand pieces: each is looked at once, and joined once, by the sender.
    """

    __slots__ = ("_turned_at", "pieces")

    def __init__(self, known: Fragments, messages: Sequence[Message], *, users: bytes, models: bytes) -> None:
        by_models = [message.role is _ASSISTANT for message in messages]
        openings = {False: b"]}," + users, True: b"]}," + models}
        self.pieces: list[bytes] = []
        self._turned_at = 0  # where the last turn is opened
        last: bool | None = None
        add = self.pieces.append
        for fragment, by_model in zip(known.each(messages), by_models, strict=True):
            if not fragment:
                continue
            if by_model is last:
                add(b",")
            else:
                self._turned_at = len(self.pieces)
                add(openings[by_model])
                last = by_model
            add(fragment)
        if self.pieces:
            self.pieces[0] = self.pieces[0].removeprefix(b"]},")  # there is nothing before it to close
            add(b"]}")

    def mark_last_two(self, mark: bytes) -> None:
        """Put a mark into the last block of the last turn, and of the one before it."""
        ends = [len(self.pieces) - 2, self._turned_at - 1] if self.pieces else []
        for end in ends:
            if end > 0:
                self.pieces[end] = marked(self.pieces[end], mark)


def marked(blocks: bytes, mark: bytes) -> bytes:
    """With one more field in the last of some JSON objects."""
    return blocks[:-1] + mark + b"}"
