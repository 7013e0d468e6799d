"""The other side of the random turns: somebody who sends, stops, edits and approves, and readers who follow along.

Everything that was acknowledged is written down, and what a reader saw, in the order it saw it.
"""

import asyncio
from typing import Any

from msgspec import Struct

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_message
from holdfast.core.records import CallState, External, Message, Role, SendMode, Snapshot, Text
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.store.contract import Store
from holdfast.store.records import Answer, Item


class Sent(Struct):
    """A message that was taken. `refused`: it was not, and must have left no trace."""

    chat_id: str
    id: str
    text: str
    refused: bool = False


class Followed(Struct):
    """One chat as its client knows it."""

    chat: Chat
    number: int  # of its script
    is_fork: bool = False
    edits: int = 0
    stops: int = 0
    approved: set[str] = set()
    denied: set[str] = set()
    whole_stops: dict[int, tuple[str, ...]] = {}  # by journal number, the workers that saw a stop through
    stopping: tuple[int, tuple[str, ...]] | None = None  # since which journal number, under which workers
    items: list[Item] = []


class Clients:
    def __init__(self, app: App) -> None:
        self.app = app
        self.followed: list[Followed] = []
        self.sent: list[Sent] = []
        self.dropped: set[str] = set()
        self._readers: list[asyncio.Task[None]] = []
        self._texts = 0

    @property
    def store(self) -> Store:
        return self.app.store

    # --- readers

    def follow(self, chat: Chat, number: int, *, is_fork: bool = False) -> Followed:
        followed = Followed(chat=chat, number=number, is_fork=is_fork)
        self.followed.append(followed)
        self._readers.append(asyncio.get_running_loop().create_task(self._read(followed)))
        return followed

    async def _read(self, followed: Followed) -> None:
        """Drops out after every page, and after every third in the middle of it, and comes back by its cursor."""
        after: str | None = None
        pages = 0
        while True:
            page = await self.store.wait_journal(followed.chat.id, after, deadline_s=1.0)
            items = page.items
            pages += 1
            if pages % 3 == 0 and len(items) > 1:
                items = items[: len(items) // 2]
            followed.items += items
            after = items[-1].cursor if items else after

    async def read_to_the_end(self) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.wait(self._readers)
        for followed in self.followed:
            after = followed.items[-1].cursor if followed.items else None
            while (page := await self.store.read_journal(followed.chat.id, after)).items:
                followed.items += page.items
                after = page.cursor

    async def have_read_all(self) -> bool:
        for followed in self.followed:
            after = followed.items[-1].cursor if followed.items else None
            if (await self.store.read_journal(followed.chat.id, after)).items:
                return False
        return True

    # --- acts

    async def create(self, number: int) -> None:
        message = self._message()
        chat = await self.app.create(f"agent-{number}", message)
        self.sent.append(Sent(chat.id, message.id, message.text))
        self.follow(chat, number)

    def _message(self) -> Message:
        self._texts += 1
        return Message(id=f"u{self._texts}", role=Role.USER, parts=(Text(text=f"text {self._texts}"),))

    async def act(self, op: str, which: int, pick: int, workers: tuple[str, ...]) -> None:
        """What the chat's state does not allow is refused, and that is an answer too."""
        followed = self.followed[which % len(self.followed)]
        try:
            answer = await getattr(self, f"_{op}")(followed, pick)
        except (RefusedError, NotFound, InvalidInput):
            return
        if isinstance(answer, Answer):
            self.dropped |= {decode_message(body).id for body in answer.dropped}
            if answer.state == "stopping" and followed.stopping is None:
                followed.stopping = (answer.seq, workers)

    async def _say(self, followed: Followed, mode: SendMode) -> Answer:
        message = self._message()
        sent = Sent(followed.chat.id, message.id, message.text, refused=True)
        self.sent.append(sent)
        answer = (await followed.chat.send(message, mode)).answer
        sent.refused = False
        return answer

    async def _send(self, followed: Followed, pick: int) -> Answer:
        return await self._say(followed, "queue")

    async def _interrupt(self, followed: Followed, pick: int) -> Answer:
        return await self._say(followed, "interrupt")

    async def _steer(self, followed: Followed, pick: int) -> Answer:
        return await self._say(followed, "steer")

    async def _edit(self, followed: Followed, pick: int) -> Answer | None:
        users = [message for message in await followed.chat.messages() if message.role is Role.USER]
        if not users:
            return None
        message = self._message()
        sent = Sent(followed.chat.id, message.id, message.text, refused=True)
        self.sent.append(sent)
        answer = (await followed.chat.edit(users[-1 - pick % len(users)].id, message)).answer
        sent.refused = False
        followed.edits += 1
        return answer

    async def _stop(self, followed: Followed, pick: int) -> Answer:
        answer = await followed.chat.stop()
        followed.stops += 1
        return answer

    async def _stop_and_clear(self, followed: Followed, pick: int) -> Answer:
        answer = await followed.chat.stop(clear_queue=True)
        followed.stops += 1
        return answer

    async def _queued(self, followed: Followed, pick: int, command: Any) -> Answer | None:
        queue = (await followed.chat.snapshot()).queue
        if not queue:
            return None
        return await self.store.submit(followed.chat.id, command(message_id=queue[pick % len(queue)].id))

    async def _promote(self, followed: Followed, pick: int) -> Answer | None:
        return await self._queued(followed, pick, cmd.Promote)

    async def _withdraw(self, followed: Followed, pick: int) -> Answer | None:
        return await self._queued(followed, pick, cmd.Withdraw)

    async def _approve(self, followed: Followed, pick: int) -> None:
        for call in (await followed.chat.snapshot()).calls:
            if call.state is CallState.ASKING:
                await followed.chat.approve(call.id)
                followed.approved.add(call.id)

    async def _deny(self, followed: Followed, pick: int) -> None:
        for call in (await followed.chat.snapshot()).calls:
            if call.state is CallState.ASKING:
                await followed.chat.deny(call.id, "no")
                followed.denied.add(call.id)

    async def _answer(self, followed: Followed, pick: int) -> None:
        for call in (await followed.chat.snapshot()).calls:
            if call.state is CallState.EXTERNAL and call.external is External.QUESTION:
                await followed.chat.submit(call.id, "I looked: it happened.")

    async def _retry(self, followed: Followed, pick: int) -> Answer:
        return await followed.chat.retry()

    async def _compact(self, followed: Followed, pick: int) -> Answer:
        return await followed.chat.compact()

    async def _archive(self, followed: Followed, pick: int) -> Answer:
        return await followed.chat.archive()

    async def _fork(self, followed: Followed, pick: int) -> None:
        if len(self.followed) < 5:
            self.follow(await followed.chat.fork(), followed.number, is_fork=True)

    async def answer_everything(self) -> None:
        """Be everybody whom a chat waits for."""
        for which in range(len(self.followed)):
            await self.act("approve", which, 0, ())
            await self.act("answer", which, 0, ())

    async def snapshots(self) -> list[tuple[Followed, Snapshot]]:
        return [(followed, await followed.chat.snapshot()) for followed in self.followed]
