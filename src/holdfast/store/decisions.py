"""What the core decided, ready to be written: changes that are stamped, and one write for each chat.

A `ChatWrite` is the new row of a chat, guarded by what it replaces, and the rows that differ between the snapshots
before and after. How a stamp proves what its writer knew is said in `stamps.py`.
"""

from collections.abc import Sequence
from typing import NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.apply import apply
from holdfast.core.change import Change, Refused
from holdfast.core.codec import encode
from holdfast.core.commands import Command
from holdfast.core.limits import Limits
from holdfast.core.notices import notices_of
from holdfast.core.records import Call, ChatRecord, Compaction, KeptRule, Queued, Snapshot
from holdfast.errors import RefusedError, StaleWriter
from holdfast.ids import new_stamp
from holdfast.store.notices import notice_rows
from holdfast.store.rows import Row, spending_rows


class ChatWrite(Struct, gc=False):
    """Everything one transaction writes for one chat. `before` None: the chat is new."""

    before: ChatRecord | None
    after: ChatRecord
    journal: list[Row] = field(default_factory=list)  # seq, stamp, at, role, pos, ref, body
    cut_from: int | None = None
    calls: list[Call] = field(default_factory=list)
    queue_put: list[Queued] = field(default_factory=list)
    queue_drop: list[str] = field(default_factory=list)
    compaction: Compaction | None = None
    ended_attempt: int | None = None
    kept: tuple[KeptRule, ...] = ()
    notices: list[Row] = field(default_factory=list)  # in the order of NOTICE_COLUMNS
    spending: list[Row] = field(default_factory=list)  # in the order of SPENDING_COLUMNS
    settled: tuple[str, ...] = ()  # reservations

    @property
    def names_agent(self) -> bool:
        return self.before is not None and self.before.agent != self.after.agent


class Decided(Struct, frozen=True, gc=False):
    changes: tuple[Change, ...]  # stamped
    writes: list[ChatWrite]  # one per chat, in order of first touch
    after: Snapshot  # the first chat, after all of them


def decided(changes: Sequence[Change], commit_id: str | None = None) -> Decided:
    """What a transaction writes: each chat gets one new stamp. Nothing is written but through here.

    `commit_id` marks the first chat: a runner's own.
    """
    first_id = changes[0].after.chat.id
    made: list[Change] = []
    latest: dict[str, Snapshot] = {}
    writes: dict[str, ChatWrite] = {}
    for change in changes:
        chat_id = change.after.chat.id
        marks = _marks(change, latest.get(chat_id))
        if commit_id is not None and chat_id == first_id:
            marks["commit_id"] = commit_id
        after = latest[chat_id] = replace(change.after, chat=replace(change.after.chat, **marks))
        change = replace(change, after=after)
        made.append(change)
        write = writes.get(chat_id)
        if write is None:
            before = change.before.chat if change.before is not None else None
            write = writes[chat_id] = ChatWrite(before=before, after=after.chat)
        _add(write, change)
    return Decided(tuple(made), list(writes.values()), latest[first_id])


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


def _marks(change: Change, earlier: Snapshot | None) -> dict[str, int | str]:
    """`earlier`: the chat after the change of this transaction that came before, if any."""
    before = change.before.chat if change.before is not None else None
    known = earlier.chat if earlier is not None else before
    stamp = earlier.chat.stamp if earlier is not None else new_stamp()
    marks: dict[str, int | str] = {"stamp": stamp}
    if known is None:
        return marks | {"life": stamp, "line_stamp": stamp}
    claimed = before is not None and change.after.chat.fence != before.fence
    marks["life"] = known.life
    marks["claim_stamp"] = stamp if claimed else known.claim_stamp
    marks["line_stamp"] = stamp if change.lines else known.line_stamp
    return marks


def _add(write: ChatWrite, change: Change) -> None:
    write.after = change.after.chat
    if change.cut_from is not None:
        # A cut takes back what this very transaction had added behind it.
        write.journal = [
            (seq, stamp, at, role, None if pos is not None and pos >= change.cut_from else pos, ref, body)
            for seq, stamp, at, role, pos, ref, body in write.journal
        ]
        write.cut_from = min(change.cut_from, write.cut_from if write.cut_from is not None else change.cut_from)
    first = change.after.chat.seq - len(change.lines) + 1
    stamp, at = change.after.chat.stamp, change.after.chat.updated_at
    for n, line in enumerate(change.lines):
        write.journal.append((first + n, stamp, at, line.role, line.pos, line.ref, encode(line.entry).decode()))
    before = change.before
    had_calls = before.calls if before is not None else ()
    if change.after.calls is not had_calls:
        known = [id(call) for call in had_calls]
        changed = [call for call in change.after.calls if id(call) not in known]
        if write.calls:  # of an earlier change in this transaction
            again = {(call.batch, call.id) for call in changed}
            changed = [call for call in write.calls if (call.batch, call.id) not in again] + changed
        write.calls = changed
    had_queue = before.queue if before is not None else ()
    if change.after.queue is not had_queue:
        _diff_queue(write, had_queue, change.after.queue)
    if change.compaction is not None:
        write.compaction = change.compaction
    if change.ended_attempt is not None:
        write.ended_attempt = change.ended_attempt
    write.kept += change.kept
    write.notices += notice_rows(notices_of(change))
    write.settled += change.settled
    for spent in change.spent:
        write.spending += spending_rows(spent, change.after.chat, f"{stamp:x}.{len(write.spending)}")


def _diff_queue(write: ChatWrite, before: Sequence[Queued], after: Sequence[Queued]) -> None:
    had = {queued.id: queued for queued in before}
    has = {queued.id: queued for queued in after}
    for gone in had.keys() - has.keys():
        put = [queued for queued in write.queue_put if queued.id == gone]
        write.queue_put = [queued for queued in write.queue_put if queued.id != gone]
        if not put or had[gone] is not put[0]:
            write.queue_drop.append(gone)
    for queued in after:
        if had.get(queued.id) is not queued:
            write.queue_put = [other for other in write.queue_put if other.id != queued.id]
            write.queue_put.append(queued)
