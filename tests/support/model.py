"""`ModelStore`: what a store must do with a `Change`, in the fewest words.

It keeps rows as the real stores do and builds every snapshot from them again, so that a change whose snapshot and
rows disagree is caught here. It is a model to compare with, never a store to run on: no durability, no leases.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.apply import create
from holdfast.core.change import Change, Refused
from holdfast.core.codec import decode_entry, encode
from holdfast.core.commands import Command
from holdfast.core.fork import fork
from holdfast.core.journal import AnyEntry, DescendantAnswered, DescendantAsking, MessageAdded
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import Call, ChatRecord, Compaction, Message, NewChat, Queued, Role, Snapshot, State
from holdfast.core.transaction import CountFamily, Need, ReadChat, ReadEntry, transact

AT_WORK = frozenset({State.RUNNING, State.STOPPING, State.WAITING})


class Row(Struct):
    """One journal row. `pos` is taken away when history is cut before it; the row stays."""

    seq: int
    body: bytes
    pos: int | None
    role: Role | None
    ref: str | None


class ModelStore:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.chats: dict[str, ChatRecord] = {}
        self.rows: dict[str, list[Row]] = {}
        self.calls: dict[tuple[str, int, int], Call] = {}  # by chat, batch, pos
        self.queues: dict[str, dict[str, Queued]] = {}
        self.compactions: dict[str, dict[int, Compaction]] = {}  # by chat, then by what each covers
        self.deleted: set[str] = set()

    # --- reading ------------------------------------------------------------------------------------

    def load(self, chat_id: str) -> Snapshot | None:
        chat = self.chats.get(chat_id)
        if chat is None:
            return None
        calls = sorted(
            (call for (owner, batch, _), call in self.calls.items() if owner == chat_id and batch == chat.batch),
            key=lambda call: call.pos,
        )
        queue = sorted(self.queues[chat_id].values(), key=lambda queued: queued.rank)
        return Snapshot(chat=chat, calls=tuple(calls), queue=tuple(queue))

    def get(self, chat_id: str) -> Snapshot:
        snapshot = self.load(chat_id)
        assert snapshot is not None, f"there is no chat {chat_id}"
        return snapshot

    def positions(self, chat_id: str) -> dict[int, Message]:
        rows = sorted((row.pos, row) for row in self.rows[chat_id] if row.pos is not None)
        return {pos: _message_of(row) for pos, row in rows}

    def history(self, chat_id: str) -> list[Message]:
        """In order. While calls are open, the positions kept for their results are missing."""
        return list(self.positions(chat_id).values())

    def journal(self, chat_id: str) -> list[AnyEntry]:
        return [decode_entry(row.body) for row in self.rows[chat_id]]

    def numbered_journal(self, chat_id: str) -> list[tuple[int, AnyEntry]]:
        return [(row.seq, decode_entry(row.body)) for row in self.rows[chat_id]]

    def compaction(self, chat_id: str) -> Compaction | None:
        """The one that covers most; an edit before it uncovers an older one."""
        records = self.compactions.get(chat_id, {})
        return records[max(records)] if records else None

    def busy_below(self, chat_id: str) -> tuple[str, ...]:
        found = [chat for chat in self.chats.values() if chat.state in AT_WORK and chat_id in self._above(chat)]
        return tuple(chat.id for chat in sorted(found, key=lambda chat: (chat.depth, chat.id)))

    def _above(self, chat: ChatRecord) -> set[str]:
        found: set[str] = set()
        while chat.parent_id is not None and chat.parent_id in self.chats:
            chat = self.chats[chat.parent_id]
            found.add(chat.id)
        return found

    def untold_questions(self) -> list[str]:
        """Where a root's journal, read to its end, does not tell what is asked below it. Empty: all is well."""
        found = []
        for root in [chat for chat in self.chats.values() if chat.root_id is None]:
            below = [chat.id for chat in self.chats.values() if chat.root_id == root.id]
            told: dict[tuple[str, str], str] = {}
            for entry in self.journal(root.id):
                if isinstance(entry, DescendantAsking) and entry.chat_id in below:
                    told[entry.chat_id, entry.call_id] = entry.state
                elif isinstance(entry, DescendantAnswered):
                    told.pop((entry.chat_id, entry.call_id), None)
            asked = {(id, call.id): call.state for id in below for call in self.get(id).calls if _asks(call)}
            if told != asked:
                found.append(f"{root.id} tells of {told}, but {asked} are asked")
        return found

    # --- writing ------------------------------------------------------------------------------------

    def create(self, new: NewChat, now: int) -> Change:
        change = create(new, now, self.limits)
        self.write([change])
        return change

    def apply(self, chat_id: str, *commands: Command, now: int) -> tuple[Change, ...] | Refused:
        """All of them in one transaction, with everything that follows from them in other chats."""
        steps = transact(self.get(chat_id), commands, now, self.limits)
        answer: Snapshot | tuple[str, ...] | bytes | int | None = None
        try:
            while True:
                answer = self._read(steps.send(answer))
        except StopIteration as done:
            outcome: tuple[Change, ...] | Refused = done.value
        if not isinstance(outcome, Refused):
            self.write(outcome)
        return outcome

    def fork(self, chat_id: str, new_id: str, end: int, now: int) -> tuple[Change, ...] | Refused:
        outcome = fork(self.get(chat_id), new_id, end, now)
        if isinstance(outcome, Refused):
            return outcome
        created, filled = outcome
        self.write([created])
        copies = [row for row in self.rows[chat_id] if row.pos is not None and row.pos < end]
        for row in sorted(copies, key=lambda row: row.pos or 0):
            self.rows[new_id].append(Row(len(self.rows[new_id]) + 1, row.body, row.pos, row.role, row.ref))
        self._put(filled)
        self._keep_compactions(new_id, self.compactions.get(chat_id, {}), end)
        return outcome

    def write(self, changes: Sequence[Change]) -> None:
        for change in changes:
            chat_id = change.after.chat.id
            assert self.load(chat_id) == change.before, "a change is made from what is stored"
            self._put(change)
        for chat_id in {change.after.chat.id for change in changes if change.gone}:
            self._forget(chat_id)

    def _read(self, need: Need) -> Snapshot | tuple[str, ...] | bytes | int | None:
        if isinstance(need, CountFamily):
            return sum(chat.root_id == need.root_id and chat.state in AT_WORK for chat in self.chats.values())
        if isinstance(need, ReadEntry):
            return self.rows[need.chat_id][need.seq - 1].body
        return self.load(need.chat_id) if isinstance(need, ReadChat) else self.busy_below(need.chat_id)

    def _put(self, change: Change) -> None:
        chat = change.after.chat
        self.chats[chat.id] = chat
        rows = self.rows.setdefault(chat.id, [])
        if change.cut_from is not None:
            self._cut(chat.id, change.cut_from)
        for line in change.lines:
            assert line.pos is None or line.pos not in self.positions(chat.id), f"position {line.pos} is taken"
            rows.append(Row(len(rows) + 1, encode(line.entry), line.pos, line.role, line.ref))
        for call in change.after.calls:
            self.calls[chat.id, call.batch, call.pos] = call
        self.queues[chat.id] = {queued.id: queued for queued in change.after.queue}
        if change.compaction is not None:
            self.compactions.setdefault(chat.id, {})[change.compaction.upto] = change.compaction
        assert self.load(chat.id) == change.after, "the rows say what the snapshot says"

    def _cut(self, chat_id: str, pos: int) -> None:
        for row in self.rows[chat_id]:
            if row.pos is not None and row.pos >= pos:
                row.pos = None
        self._keep_compactions(chat_id, self.compactions.get(chat_id, {}), pos)

    def _keep_compactions(self, chat_id: str, records: dict[int, Compaction], end: int) -> None:
        self.compactions[chat_id] = {upto: record for upto, record in records.items() if upto <= end}

    def _forget(self, chat_id: str) -> None:
        self.deleted.add(chat_id)
        del self.chats[chat_id], self.rows[chat_id], self.queues[chat_id]
        self.compactions.pop(chat_id, None)
        for key in [key for key in self.calls if key[0] == chat_id]:
            del self.calls[key]


def _asks(call: Call) -> bool:
    return call.state == "asking" or (call.state == "external" and call.external in ("client", "question"))


def _message_of(row: Row) -> Message:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return entry.message
