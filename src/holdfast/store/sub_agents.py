"""The chats below a chat, as its model, a program and a person see them: what each does, and said last."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Cause, ChatRecord, Frozen, State
from holdfast.errors import RecordError
from holdfast.store.rows import chat_of

SUB_AGENTS_MAX = 200  # in one answer: those at work first, then the newest
EXCERPTS_MAX = 50  # of them with their words
EXCERPTS_BYTES_MAX = 4 << 20  # of messages that are read for that
EXCERPT_CHARS = 200


class SubAgent(Frozen):
    """A chat that a call of another one spawned. `task` and `answer` are the beginnings of what its turn began with
    and of the last answer it gave; tokens and cost are those of its turn, the one that goes on or the last.
    """

    chat_id: str
    parent_id: str
    depth: int
    agent: str
    title: str | None
    state: State
    cause: Cause | None  # why its turn stops, or was cut short
    error: str | None
    turn: int
    queued: int
    task: str
    answer: str
    tokens: int
    cost: float
    created_at: int
    updated_at: int
    tainted: bool = False  # content from outside may speak through it


class ChildRow(Frozen):
    """A row of SUB_AGENTS."""

    chat: ChatRecord
    queued: int


def child_row(row: Sequence[Any]) -> ChildRow:
    *chat, queued = row
    return ChildRow(chat=chat_of(chat), queued=queued)


def excerpt_of(body: bytes | None) -> str:
    """The beginning of a message, from its line in the journal; nothing of one that this code cannot read."""
    if body is None:
        return ""
    try:
        entry = decode_entry(body)
        text = " ".join(entry.message.text.split()) if isinstance(entry, MessageAdded) else ""
    except RecordError:
        return ""
    return text if len(text) <= EXCERPT_CHARS else f"{text[:EXCERPT_CHARS]}…"


def sub_agent(row: ChildRow, task: str, answer: str) -> SubAgent:
    chat = row.chat
    return SubAgent(
        chat_id=chat.id,
        parent_id=chat.parent_id or "",
        depth=chat.depth,
        agent=chat.agent,
        title=chat.title,
        state=chat.state,
        cause=chat.cause,
        error=chat.error.message[:EXCERPT_CHARS] if chat.error is not None else None,
        turn=chat.turn,
        queued=row.queued,
        task=task,
        answer=answer,
        tokens=chat.turn_tokens,
        cost=chat.turn_cost,
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        tainted=chat.tainted_from is not None,
    )
