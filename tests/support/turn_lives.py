"""What the journal of a chat tells of its turns, held against the chat itself."""

from collections.abc import Sequence

from holdfast.core.journal import AnyEntry
from holdfast.core.records import Cause, Chat, State
from holdfast.core.turns import TurnFold

OVER = ("done", "stopped", "failed")


def problems_of_turns(chat: Chat, entries: Sequence[AnyEntry]) -> list[str]:
    """Every turn is told, is over once the next has begun, and the last one stands as its chat does."""
    found = []
    for number in range(1, chat.turn + 1):
        fold = TurnFold(number)
        for entry in entries:
            fold.take(entry)
        if not fold.begun or fold.closed != (number < chat.turn):
            found.append(f"turn {number}: begun {fold.begun}, closed {fold.closed}")
        elif number < chat.turn:
            found += [] if fold.state in OVER else [f"turn {number} is {fold.state}, and the next has begun"]
        elif not _stands(chat, fold):
            found.append(f"turn {number} is {fold.state} ({fold.cause}), its chat is {chat.state} ({chat.cause})")
        elif fold.state in OVER and (fold.usage.total_tokens, fold.cost) != (chat.turn_tokens, chat.turn_cost):
            found.append(f"turn {number} took {fold.usage.total_tokens} tokens, its chat says {chat.turn_tokens}")
    return found


def _stands(chat: Chat, fold: TurnFold) -> bool:
    if chat.turn_started_at is not None:
        return fold.state == ("waiting" if chat.state is State.WAITING else "running")
    if fold.state == "failed":
        return fold.error is not None and chat.error in (None, fold.error)
    # A failure of a chat at rest is none of its last turn's, nor is the stop of a compaction there.
    stopped_at_rest = chat.cause is Cause.USER
    return (fold.cause == chat.cause or stopped_at_rest) and fold.state == (
        "done" if fold.cause is None else "stopped"
    )
