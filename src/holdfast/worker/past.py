"""A chat's history in a runner's memory: loaded once, extended with what the runner commits, reloaded when cut."""

from collections.abc import Mapping

from holdfast.core.codec import decode_entry, decode_message
from holdfast.core.history import make_valid, problems
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Message, Role, Snapshot, Text
from holdfast.store.base import Store


class Past:
    def __init__(self, store: Store, chat_id: str) -> None:
        self._store = store
        self._chat_id = chat_id
        self._epoch = -1
        self._start = 0
        self._messages: list[Message] = []
        self._summary: Message | None = None
        self._checked = 0  # messages known to be valid together

    @property
    def size(self) -> int:
        return len(self._messages)

    def learn(self, snapshot: Snapshot, messages: Mapping[int, Message]) -> None:
        """What the runner itself just committed, by position. What does not fit is read from the store later."""
        if snapshot.chat.epoch != self._epoch:
            return
        for pos in sorted(messages):
            if pos == self._start + len(self._messages):
                self._messages.append(messages[pos])

    async def messages(self, snapshot: Snapshot) -> list[Message]:
        """All of it, valid for a provider, with a summary in front where the beginning was compacted."""
        await self._catch_up(snapshot)
        if problems(self._messages[self._checked :]):
            self._messages = make_valid(self._messages)
            self._epoch = -1  # positions no longer line up: read it anew next time
        self._checked = len(self._messages)
        return list(self._messages) if self._summary is None else [self._summary, *self._messages]

    async def _catch_up(self, snapshot: Snapshot) -> None:
        chat = snapshot.chat
        if chat.epoch != self._epoch:
            compaction = await self._store.read_compaction(self._chat_id)
            self._start = compaction.upto if compaction is not None else 0
            self._summary = _summary_message(compaction.summary) if compaction is not None else None
            self._messages = []
            self._checked = 0
            self._epoch = chat.epoch
        known = self._start + len(self._messages)
        while known < chat.length:
            rows = await self._store.read_history(self._chat_id, start=known)
            for row in rows:
                entry = decode_entry(row.body)
                assert isinstance(entry, MessageAdded)
                self._messages.append(decode_message(entry.message))
            if not rows:
                break
            known = self._start + len(self._messages)


def _summary_message(summary: str) -> Message:
    return Message(
        id="summary", role=Role.USER, parts=(Text(text=f"Summary of the conversation so far:\n{summary}"),)
    )
