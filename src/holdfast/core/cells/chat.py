"""Cells: the chat as a whole. Its title, its place in the archive, its deletion; and what changes nothing in it."""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.call_words import SPENT, spent_text
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.spending import SpendingKind


def archive(draft: Draft, command: cmd.Archive) -> None:
    if draft.chat.archived != command.archived:
        draft.set(archived=command.archived)
        draft.tell(journal.ChatArchived(archived=command.archived))


def rename(draft: Draft, command: cmd.Rename) -> None:
    if command.unless_titled and draft.chat.title is not None:
        raise Refusal("titled", "the chat has a title")
    title = " ".join(command.title.split())
    if not 0 < len(title) <= draft.limits.title_chars_max:
        raise Refusal(
            "wrong_title", f"a title has 1 to {draft.limits.title_chars_max} characters, this one {len(title):,}"
        )
    draft.spend(SpendingKind.TITLE, command.tokens, command.cost, command.bill)
    if title != draft.chat.title:
        draft.set(title=title)
        draft.tell(journal.ChatRenamed(title=title, tokens=command.tokens, cost=command.cost))


def count_spending(draft: Draft, command: cmd.CountSpending) -> None:
    chat = draft.chat
    if command.life != chat.life:
        raise Refusal("another_life", "another chat spent it, which had the same id")
    in_turn = chat.turn_started_at is not None and command.turn == chat.turn
    draft.spend(command.kind, command.tokens, command.cost, command.bill, in_turn=in_turn)
    if command.tokens or command.cost:
        tokens, cost = (command.tokens, command.cost) if in_turn else (0, 0.0)
        words = spent_text(command.tokens, command.cost)
        draft.tell(journal.Noted(topic=SPENT, text=words, tokens=tokens, cost=cost))


def delete(draft: Draft, command: cmd.Delete) -> None:
    """Allowed. A parent that waits for a later turn of this chat is told that none will come."""
    draft.effects["gone"] = True


def leave(draft: Draft, command: cmd.Command) -> None:
    """Allowed, and nothing in this chat changes by it."""


def ignore(draft: Draft, command: cmd.Command) -> None:
    """Too late to matter."""
