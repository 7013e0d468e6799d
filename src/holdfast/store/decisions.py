"""What the core decided, ready to be written: changes that are stamped, and one write for each chat."""

from collections.abc import Sequence
from typing import NoReturn

from holdfast.core.apply import apply
from holdfast.core.change import Change, Refused
from holdfast.core.commands import Command
from holdfast.core.limits import Limits
from holdfast.core.records import Frozen, Snapshot
from holdfast.errors import RefusedError, StaleWriter
from holdfast.store.rows import ChatWrite, writes_of
from holdfast.store.stamps import stamped


class Decided(Frozen):
    """Changes that are stamped, and ready to be written."""

    changes: tuple[Change, ...]
    writes: list[ChatWrite]

    @property
    def after(self) -> Snapshot:
        """What the first chat looks like after them."""
        chat_id = self.changes[0].after.chat.id
        return next(change.after for change in reversed(self.changes) if change.after.chat.id == chat_id)


def decided(changes: Sequence[Change], commit_id: str | None = None) -> Decided:
    """What a transaction writes. Nothing is written but through here."""
    made = stamped(changes, commit_id)
    return Decided(changes=made, writes=writes_of(made))


def decide_ahead(
    snapshot: Snapshot, commands: Sequence[Command], commit_id: str, now: int, limits: Limits
) -> Decided | None:
    """A runner's commit decided on the runner's own snapshot, so that the store has only to compare and swap.

    None where the store must look for itself: the snapshot refuses, or other chats are reached.
    """
    changes: list[Change] = []
    after = snapshot
    for command in commands:
        outcome = apply(after, command, now, limits)
        if isinstance(outcome, Refused) or outcome.reaches_others:
            return None
        changes.append(outcome)
        after = outcome.after
    return decided(changes, commit_id)


def raise_refused(refused: Refused) -> NoReturn:
    message = f"{refused.command} refused while the chat is {refused.state}: {refused.message}"
    if refused.reason in ("stale_writer", "stale_epoch"):
        raise StaleWriter(message)
    raise RefusedError(message, reason=refused.reason, state=refused.state, command=refused.command)
