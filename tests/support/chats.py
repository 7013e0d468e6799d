"""Short ways to say what a test is about: messages, and a worker that drives one chat by hand."""

import os
from collections.abc import Sequence
from itertools import count

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.journal import AnyEntry, MessageAdded
from holdfast.core.records import (
    External,
    LeaseEnd,
    Message,
    NewChat,
    Part,
    Replay,
    Role,
    Snapshot,
    Text,
    ToolCall,
    attempt_id,
)
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.records import WorkerInfo

_numbers = count(1)
_hands: list["Hand"] = []


def unique(prefix: str) -> str:
    return f"{prefix}-{next(_numbers)}"


def user(text: str = "hello", id: str | None = None) -> Message:
    return Message(id=id or unique("user"), role=Role.USER, parts=(Text(text=text),))


def assistant(*parts: Part | str, id: str | None = None) -> Message:
    typed = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return Message(id=id or unique("assistant"), role=Role.ASSISTANT, parts=typed)


def call(id: str, name: str = "tool", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id=id, name=name, arguments=arguments)


def new_chat(text: str | None = "hello", *, id: str | None = None, agent: str = "agent", owner: str = "") -> NewChat:
    message = user(text) if text is not None else None
    return NewChat(id=id or unique("chat"), agent=agent, owner=owner, message=message)


class Hand:
    """A worker that does nothing on its own: each method is one commit of a runner."""

    def __init__(self, store: Store, name: str | None = None, lock_path: str | None = None) -> None:
        self.store = store
        self.name = name or unique("worker")
        self.line: LeaseLine = store.lease_line()
        self.line.register(WorkerInfo(worker=self.name, host="", pid=os.getpid(), lock_path=lock_path))
        self.snapshot: Snapshot | None = None
        self.attempts = 0
        _hands.append(self)

    async def dies(self) -> None:
        """As a sweeper that finds its lock free has it: its chats are taken back."""
        await self.store.recovery.end_lease(self.name, LeaseEnd.DIED)
        await self.store.expire_workers()

    def close(self) -> None:
        if self in _hands:
            _hands.remove(self)
            self.line.close()

    async def claim(self, *agents: str, limit: int = 100) -> list[Snapshot]:
        return await self.store.claim_chats(self.name, dict.fromkeys(agents or ("agent",), limit), limit)

    async def take(self, chat_id: str) -> Snapshot:
        """Claim until this chat is ours; others that came along stay ours too."""
        for snapshot in await self.claim():
            if snapshot.chat.id == chat_id:
                self.snapshot = snapshot
                return snapshot
        raise AssertionError(f"{chat_id} was not to be had")

    @property
    def held(self) -> Snapshot:
        assert self.snapshot is not None
        return self.snapshot

    @property
    def by(self) -> cmd.Writer:
        chat = self.held.chat
        return cmd.Writer(self.name, chat.fence, chat.epoch)

    async def commit(self, *commands: cmd.Command, commit_id: str | None = None) -> Snapshot:
        self.snapshot = await self.store.commit(self.held, commands, commit_id or unique("commit"))
        return self.snapshot

    def response(
        self, *parts: Part | str, start: bool = True, replay: Replay = Replay.UNSAFE, id: str | None = None
    ) -> cmd.Respond:
        self.attempts += 1
        message = assistant(*parts, id=id)
        plans = tuple(cmd.PlannedCall(id=part.call_id, replay=replay, start=start) for part in message.calls)
        return cmd.Respond(
            by=self.by, message=message, attempt=attempt_id(self.held.chat.fence, self.attempts), plans=plans
        )

    def attempt(self) -> int:
        """A new attempt of the model, not ended yet."""
        self.attempts += 1
        return attempt_id(self.held.chat.fence, self.attempts)

    async def respond(
        self, *parts: Part | str, start: bool = True, replay: Replay = Replay.UNSAFE, id: str | None = None
    ) -> Snapshot:
        return await self.commit(self.response(*parts, start=start, replay=replay, id=id))

    async def finish(self, call_id: str, content: str = "done", *, error: bool = False) -> Snapshot:
        return await self.commit(cmd.Outcome(by=self.by, call_id=call_id, content=content, error=error))

    async def end_turn(self, text: str = "that is all") -> Snapshot:
        return await self.commit(self.response(text), cmd.FinishTurn(by=self.by))

    async def park_for_client(self, call_id: str, *, expires_at: int | None = None) -> Snapshot:
        await self.respond(call(call_id), start=False)
        return await self.commit(
            cmd.Delegate(by=self.by, call_id=call_id, external=External.CLIENT, expires_at=expires_at),
            cmd.Park(by=self.by),
        )


def close_all_hands() -> None:
    for hand in list(_hands):
        hand.close()


async def history(store: Store, chat_id: str) -> list[Message]:
    messages = []
    for row in await store.read_history(chat_id):
        entry = decode_entry(row.body)
        assert isinstance(entry, MessageAdded)
        messages.append(entry.message)
    return messages


async def journal(store: Store, chat_id: str) -> list[AnyEntry]:
    """All entries, read page by page."""
    entries: list[AnyEntry] = []
    after = None
    while True:
        page = await store.read_journal(chat_id, after)
        entries += [decode_entry(item.body) for item in page.items if item.seq is not None]
        after = page.cursor
        if not page.more:
            return entries


async def told(store: Store, chat_id: str) -> str:
    """The whole journal as its bytes say it."""
    return b"\n".join([item.body for item in (await store.read_journal(chat_id, limit=10_000)).items]).decode()


def texts(messages: Sequence[Message]) -> list[str]:
    """What a history says, shortened: the text of messages, the content of results."""
    said = []
    for message in messages:
        part = message.parts[0]
        said.append(part.content if hasattr(part, "content") else message.text)
    return said
