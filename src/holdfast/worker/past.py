"""A chat's history in a runner's memory: loaded once, extended with what the runner commits, reloaded when cut.

A step costs the same in a long chat as in a short one: only what is new is read, and only what is new is checked.
"""

from collections.abc import Mapping

from holdfast.core.codec import decode_entry, decode_message
from holdfast.core.history import make_valid, problems
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Message, Phase, Role, Snapshot, Text
from holdfast.store.base import HistoryRow, Store


class Past:
    def __init__(self, store: Store, chat_id: str) -> None:
        self._store = store
        self._chat_id = chat_id
        self._epoch = -1
        self._start = 0
        self._messages: list[Message] = []
        self._summary: Message | None = None
        self._ahead: dict[int, Message] = {}  # results that came before an earlier call's
        self._valid: list[Message] = []  # the first ones, as a provider accepts them
        self._checked = 0  # how many those are here

    @property
    def size(self) -> int:
        return len(self._messages)

    @property
    def opening(self) -> list[Message]:
        """How the conversation begins, as far as it is loaded."""
        return self._messages[:4]

    def learn(self, snapshot: Snapshot, messages: Mapping[int, Message]) -> None:
        """What the runner itself just committed, by position. What does not fit is read from the store later."""
        if snapshot.chat.epoch != self._epoch:
            return
        for pos, message in messages.items():
            if self._known <= pos < snapshot.chat.length:
                self._ahead[pos] = message
        while self._known in self._ahead:
            self._messages.append(self._ahead.pop(self._known))

    @property
    def _known(self) -> int:
        """Positions before this one are in memory."""
        return self._start + len(self._messages)

    async def messages(self, snapshot: Snapshot) -> list[Message]:
        """All of it, valid for a provider, with a summary in front where the beginning was compacted."""
        await self._catch_up(snapshot)
        fresh = self._messages[self._checked :]
        if problems(fresh):
            fresh = make_valid(fresh)
        if snapshot.chat.phase is Phase.CALLS:
            shown = self._valid + fresh  # results are still to come, in place of what stands for them now
        else:
            self._valid += fresh
            self._checked = len(self._messages)
            shown = self._valid.copy()
        return shown if self._summary is None else [self._summary, *shown]

    async def response_of(self, snapshot: Snapshot, call_id: str) -> Message | None:
        """The response that asked for a call, which may still be open."""
        if snapshot.chat.epoch == self._epoch and (known := self._asking(call_id)) is not None:
            return known
        await self._catch_up(snapshot)
        return self._asking(call_id)

    def _asking(self, call_id: str) -> Message | None:
        asked = (message for message in reversed(self._messages) if message.role is Role.ASSISTANT)
        return next((message for message in asked if any(part.call_id == call_id for part in message.calls)), None)

    async def turn(self, snapshot: Snapshot) -> list[Message]:
        """The messages of the current turn, from the one that began it; without those that were compacted away."""
        await self._catch_up(snapshot)
        return self._messages[max(0, snapshot.chat.turn_from - self._start) :]

    async def turn_opener(self, snapshot: Snapshot) -> Message | None:
        """The user message that began the current turn."""
        pos = snapshot.chat.turn_from
        await self._catch_up(snapshot)
        if self._start <= pos < self._start + len(self._messages):
            return self._messages[pos - self._start]
        for row in await self._store.read_history(self._chat_id, start=pos, limit=1):
            return _message_of(row)
        return None

    async def _catch_up(self, snapshot: Snapshot) -> None:
        chat = snapshot.chat
        if chat.epoch != self._epoch:
            compaction = await self._store.read_compaction(self._chat_id)
            self._start = compaction.upto if compaction is not None else 0
            self._summary = _summary_message(compaction.summary) if compaction is not None else None
            self._messages = []
            self._valid = []
            self._checked = 0
            self._ahead = {}
            self._epoch = chat.epoch
        start = self._known
        while self._known < chat.length:
            rows = await self._store.read_history(self._chat_id, start=start)
            if not rows:
                return  # calls are open whose results belong here
            self.learn(snapshot, {row.pos: _message_of(row) for row in rows})
            start = rows[-1].pos + 1


def _message_of(row: HistoryRow) -> Message:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return decode_message(entry.message)


def _summary_message(summary: str) -> Message:
    return Message(
        id="summary", role=Role.USER, parts=(Text(text=f"Summary of the conversation so far:\n{summary}"),)
    )
