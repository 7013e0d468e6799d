"""Cells: a compaction is asked for, and is done or was not possible."""

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.turn import retry
from holdfast.core.change import Refusal
from holdfast.core.draft import Draft
from holdfast.core.records import Compaction, Phase, State
from holdfast.core.spending import SpendingKind


def begin_compaction(draft: Draft, command: cmd.Compact) -> None:
    """A failed chat that owes a response goes on with it afterwards: most were compacted to get there."""
    draft.set(compact=True)
    if draft.chat.state is State.FAILED and draft.chat.phase is Phase.MODEL:
        retry(draft, command)
        return
    draft.unarchive()
    draft.set(error=None, unclean=0, silent="")
    draft.run()


def note_compaction(draft: Draft, command: cmd.Compact) -> None:
    draft.set(compact=True)


def finish_compaction(draft: Draft, command: cmd.FinishCompaction) -> None:
    _check_cut(draft, command)
    draft.set(compact=False)
    in_turn = draft.chat.turn_started_at is not None
    draft.spend(SpendingKind.SUMMARY, command.tokens, command.cost, command.bill, in_turn=in_turn)
    if command.error:
        draft.tell(journal.CompactionFailed(error=command.error, why=command.why, tokens=command.tokens))
    if command.summary is None:
        if not command.error:
            draft.tell(journal.Noted(topic="compaction", text="There was nothing to compact."))
        return
    if draft.chat.unclean:
        draft.set(unclean=0, silent="")
    trimmed = bool(command.error)
    draft.effects["compaction"] = Compaction(upto=command.upto, summary=command.summary, created_at=draft.now)
    draft.tell(
        journal.Compacted(
            upto=command.upto,
            summary=command.summary,
            why=command.why,
            trimmed=trimmed,
            tokens=0 if trimmed else command.tokens,
        )
    )


def _check_cut(draft: Draft, command: cmd.FinishCompaction) -> None:
    if command.summary is None:
        return
    if not 0 < command.upto <= draft.chat.length:
        raise Refusal("no_such_message", f"a compaction up to {command.upto} of {draft.chat.length} positions")
    if draft.has_open_calls() and command.upto >= draft.calls[0].pos:
        raise Refusal("open_calls", f"a compaction up to {command.upto} covers calls that have no result yet")
    if draft.calls and draft.calls[0].pos <= command.upto <= draft.calls[-1].pos:
        raise Refusal("wrong_message", f"a compaction up to {command.upto} parts a call from its results")
