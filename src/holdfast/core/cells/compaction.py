"""Cells: a compaction is asked for, and is done or was not possible."""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.turn import retry
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.records import Compaction, Phase, State


def begin_compaction(draft: Draft, event: cmd.Compact) -> None:
    """A failed chat that owes a response goes on with it afterwards: most were compacted to get there."""
    draft.set(compact=True)
    if draft.chat.state is State.FAILED and draft.chat.phase is Phase.MODEL:
        retry(draft, event)
        return
    draft.unarchive()
    draft.set(error=None, unclean=0, silent="")
    draft.run()


def note_compaction(draft: Draft, event: cmd.Compact) -> None:
    draft.set(compact=True)


def finish_compaction(draft: Draft, event: cmd.FinishCompaction) -> None:
    _check_cut(draft, event)
    draft.set(compact=False)
    if draft.chat.turn_started_at is not None and event.tokens:
        chat = draft.chat
        draft.set(turn_tokens=chat.turn_tokens + event.tokens, turn_cost=chat.turn_cost + event.cost)
    if event.error:
        draft.tell(journal.CompactionFailed(error=event.error, why=event.why, tokens=event.tokens))
    if event.summary is None:
        if not event.error:
            draft.tell(journal.Noted(topic="compaction", text="There was nothing to compact."))
        return
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    trimmed = bool(event.error)
    draft.effects["compaction"] = Compaction(upto=event.upto, summary=event.summary, created_at=draft.now)
    draft.tell(
        journal.Compacted(
            upto=event.upto,
            summary=event.summary,
            why=event.why,
            trimmed=trimmed,
            tokens=0 if trimmed else event.tokens,
        )
    )


def _check_cut(draft: Draft, event: cmd.FinishCompaction) -> None:
    if event.summary is None:
        return
    if not 0 < event.upto <= draft.chat.length:
        raise Refusal("no_such_message", f"a compaction up to {event.upto} of {draft.chat.length} positions")
    if draft.has_open_calls() and event.upto >= draft.calls[0].pos:
        raise Refusal("open_calls", f"a compaction up to {event.upto} covers calls that have no result yet")
    if draft.calls and draft.calls[0].pos <= event.upto <= draft.calls[-1].pos:
        raise Refusal("wrong_message", f"a compaction up to {event.upto} parts a call from its results")
