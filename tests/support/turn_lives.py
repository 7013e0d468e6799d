"""What the journal of a chat tells of its turns, held against the chat itself."""

from collections.abc import Iterable, Sequence

from holdfast.core.fold import Fold
from holdfast.core.journal import AnyEntry, Event, TurnStarted
from holdfast.core.records import ChatRecord, State
from holdfast.core.updates import TurnView


def problems_of_turns(chat: ChatRecord, entries: Sequence[AnyEntry]) -> list[str]:
    """Every turn is told, is over once the next has begun, and the last one stands as its chat does."""
    turns = list(_turns(entries))
    if [turn.number for turn in turns] != list(range(1, chat.turn + 1)):
        return [f"turns {[turn.number for turn in turns]} are told, of {chat.turn}"]
    found = [f"turn {turn.number} is {turn.state}, and the next has begun" for turn in turns[:-1] if not turn.over]
    for turn in turns[-1:]:
        if not _stands(chat, turn):
            found.append(f"turn {turn.number} is {turn.state} ({turn.cause}), its chat {chat.state} ({chat.cause})")
        elif turn.over and (turn.usage.total_tokens, turn.cost) != (chat.turn_tokens, chat.turn_cost):
            took = f"{turn.usage.total_tokens} tokens, {turn.cost}"
            found.append(f"turn {turn.number} took {took}; its chat says {chat.turn_tokens}, {chat.turn_cost}")
    return found


def _turns(entries: Sequence[AnyEntry]) -> Iterable[TurnView]:
    """Each as it is just before the next one begins."""
    fold = Fold()
    for seq, entry in enumerate(entries, start=1):
        if isinstance(entry, TurnStarted) and fold.turn.number:
            yield fold.turn
        fold.take(Event(cursor=f"{seq}", at=seq, body=entry, raw=b"", seq=seq))
    if fold.turn.number:
        yield fold.turn


def _stands(chat: ChatRecord, turn: TurnView) -> bool:
    if chat.turn_started_at is not None:
        return turn.state == _OPEN[chat.state]
    if turn.state == "failed":
        return turn.error is not None and chat.error in (None, turn.error)
    # A failure of a chat at rest is none of its last turn's, nor is the stop of a compaction there.
    return turn.cause == chat.cause and turn.state == ("done" if turn.cause is None else "stopped")


_OPEN = {State.RUNNING: "running", State.STOPPING: "stopping", State.WAITING: "waiting"}
