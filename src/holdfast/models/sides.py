"""Wires on which two sides take turns: a tool's result is something the user's side says.

What one side says in a row becomes one message, so that all results of a batch stand together, right after their
calls, as these wires want it.
"""

from collections.abc import Sequence

from holdfast.core.records import Message, Role
from holdfast.models.fragments import Fragments


def split_system(messages: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
    """The system's words, wherever they stand, and the rest: these wires have a place of its own for them."""
    system = [message for message in messages if message.role is Role.SYSTEM]
    return system, [message for message in messages if message.role is not Role.SYSTEM] if system else messages


def take_turns(known: Fragments, messages: Sequence[Message]) -> tuple[list[bytes], list[bool]]:
    """What the sides say, turn by turn, and whether it is the model who says it."""
    turns: list[bytes] = []
    by_model: list[bool] = []
    last: bool | None = None
    for message, fragment in zip(messages, known.each(messages), strict=True):
        if not fragment:
            continue
        models = message.role is Role.ASSISTANT
        if models is last:
            turns[-1] += b"," + fragment
        else:
            turns.append(fragment)
            by_model.append(models)
            last = models
    return turns, by_model
