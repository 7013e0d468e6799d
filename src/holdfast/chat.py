"""`Chat`: what a program holds of one conversation."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.journal import Event, MessageAdded
from holdfast.core.records import ClientTool, Message, Role, SendMode, Snapshot, State, Text
from holdfast.core.updates import Update
from holdfast.errors import ConfigError, NotFound, TurnFailed
from holdfast.ids import new_id
from holdfast.store.notify.bell import rest_topic
from holdfast.store.open_calls import OpenCall
from holdfast.store.receipts import request_hash
from holdfast.store.records import QUIET, Answer, HistoryRow, Key
from holdfast.store.update_reader import UpdateReader, event_cursor, event_of
from holdfast.tools.base import Tool

if TYPE_CHECKING:
    from holdfast.app import App


class Chat:
    """A handle: it holds nothing but the id, so it is as good as any other handle on the same chat.

    >>> async def main() -> None:
    ...     app = App("sqlite:///example.db", agents=[Agent("echo", "scripted")])
    ...     async with app.worker():
    ...         chat = await app.create("echo", "hello")
    ...         async for event in chat.events():  # ends when the chat rests; event.cursor is the place to go on from
    ...             pass
    ...         await chat.send("and again")
    ...         print(await chat.text())
    ...         first = (await chat.messages())[0]
    ...         await chat.edit(first.id, "rather this")
    ...         print(await chat.text(), len(await chat.messages()))
    ...         copy = await chat.fork()
    ...         print(await chat.delete() == (chat.id,), (await copy.state()).value)
    >>> asyncio.run(main())
    You said: and again
    You said: rather this 2
    True idle
    """

    def __init__(self, app: "App", chat_id: str) -> None:
        self._app = app
        self._store = app.store
        self.id = chat_id

    async def snapshot(self) -> Snapshot:
        return await self._store.read_chat(self.id)

    async def state(self) -> State:
        return (await self.snapshot()).chat.state

    async def send(
        self,
        text: str | Message,
        mode: SendMode = "queue",
        *,
        active_tools: Sequence[str] | None = None,
        client_tools: Sequence[Tool | ClientTool] = (),
        length: int | None = None,
        key: Key | str | None = None,
    ) -> Answer:
        """`active_tools` limits the tools of the turn that this message begins, and `client_tools` adds some that the
        client runs; a message that steers begins none. With a `length` it is refused unless the chat rests and its
        history has so many positions: nobody has said anything since the sender read it.
        """
        message = as_message(text)
        declared: tuple[ClientTool, ...] = ()
        if active_tools is not None or client_tools or message.client_tools:
            agent = self._app.agent((await self.snapshot()).chat.agent)
            agent.check_tools(active_tools)
            declared = agent.check_client_tools((*message.client_tools, *client_tools))
            message = replace(
                message,
                active_tools=message.active_tools if active_tools is None else tuple(active_tools),
                client_tools=declared,
            )
        event = cmd.Send(message=message, mode=mode, length=length)
        asked = (text, mode, active_tools, declared, length)
        return await self._submit(event, with_digest(key, "send", self.id, *asked))

    async def edit(self, message_id: str, text: str | Message, *, key: Key | str | None = None) -> Answer:
        """Replace a user message and everything after it. The answer holds the queued messages this dropped."""
        keyed = with_digest(key, "edit", self.id, message_id, text)
        try:
            spot = await self._store.locate_message(self.id, message_id)
        except NotFound:
            if keyed is not None and (answer := await self._store.recall(keyed)) is not None:
                return answer  # asked again, or twice at once: what was edited is no longer there
            raise
        event = cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=as_message(text))
        return await self._submit(event, keyed)

    async def promote(self, message_id: str, *, key: Key | str | None = None) -> Answer:
        """Take a queued message next: what is running now is superseded."""
        return await self._submit(cmd.Promote(message_id=message_id), key)

    async def withdraw(self, message_id: str, *, key: Key | str | None = None) -> Answer:
        """Take a queued message back; the answer holds it."""
        return await self._submit(cmd.Withdraw(message_id=message_id), key)

    async def stop(
        self, *, clear_queue: bool = False, turn: int | None = None, key: Key | str | None = None
    ) -> Answer:
        """With a `turn` it is refused once the chat is in another one."""
        return await self._submit(cmd.Stop(clear_queue=clear_queue, turn=turn), key)

    async def retry(self, *, key: Key | str | None = None) -> Answer:
        return await self._submit(cmd.Retry(), key)

    async def compact(self, *, key: Key | str | None = None) -> Answer:
        """From now on a summary stands for the older part of the conversation; the messages stay. A worker makes it:
        at once in a chat at rest, before the next response in one that runs. A failed turn then goes on.
        """
        return await self._submit(cmd.Compact(), key)

    async def approve(
        self, call_id: str, *, by: str = "", digest: str | None = None, key: Key | str | None = None
    ) -> Answer:
        """With the `digest` of an `OpenCall` it is refused unless what would run is what was shown there."""
        return await self._submit(cmd.Approve(call_id=call_id, by=by, digest=digest), key)

    async def deny(self, call_id: str, words: str = "", *, by: str = "", key: Key | str | None = None) -> Answer:
        return await self._submit(cmd.Deny(call_id=call_id, words=words, by=by), key)

    async def submit(
        self, call_id: str, content: str, *, error: bool = False, key: Key | str | None = None
    ) -> Answer:
        return await self._submit(cmd.Submit(call_id=call_id, content=content, error=error), key)

    async def rename(self, title: str, *, key: Key | str | None = None) -> Answer:
        return await self._submit(cmd.Rename(title=title), key)

    async def open_calls(self) -> list[OpenCall]:
        """What people and clients have to answer, in this chat and in those of its sub-agents: approvals, questions,
        calls of client tools. Each is answered in its own chat: `app.chat(call.chat_id).approve(call.call_id,
        digest=call.digest)`. One whose arguments are not `whole` is read whole by `open_call` of its chat.
        """
        return await self._store.open_calls(self.id)

    async def open_call(self, call_id: str) -> OpenCall:
        """One that somebody has to answer in this very chat, with the whole of its arguments. Raises NotFound."""
        return await self._store.read_open_call(self.id, call_id)

    async def archive(self, archived: bool = True) -> Answer:
        return await self._submit(cmd.Archive(archived=archived))

    async def fork(
        self, *, upto: int | None = None, owner: str | None = None, key: Key | str | None = None
    ) -> "Chat":
        keyed = with_digest(key, "fork", self.id, upto, owner)
        answer = await self._store.fork_chat(self.id, new_id("chat"), upto=upto, owner=owner, key=keyed)
        return Chat(self._app, answer.chat_id)

    async def delete(self, *, children: bool = False) -> tuple[str, ...]:
        """Really gone, and with `children` the chats that it spawned. Returns the ids."""
        return await self._store.delete_chat(self.id, children="include" if children else "refuse")

    async def _submit(self, event: cmd.Command, key: Key | str | None = None) -> Answer:
        return await self._store.submit(self.id, event, _key(key))

    async def history(self, start: int = 0, limit: int = 1_000) -> list[HistoryRow]:
        """Positions of the history from `start` on, as they are stored."""
        return await self._store.read_history(self.id, start=start, limit=limit)

    async def messages(self) -> list[Message]:
        """The whole history, in order."""
        found: list[Message] = []
        start = 0
        while rows := await self._store.read_history(self.id, start=start):
            for row in rows:
                entry = decode_entry(row.body)
                assert isinstance(entry, MessageAdded)
                found.append(entry.message)
            start = rows[-1].pos + 1
        return found

    async def events(self, after: str | None = None) -> AsyncIterator[Event]:
        """Everything that happens, from a cursor on, until the chat rests and all was told: the journal's entries,
        and the pieces of a response while it streams. `event.body` is a value to match on, `event.raw` its bytes.
        """
        page = await self._store.read_journal(self.id, event_cursor(after))  # at rest nothing is waited for
        while True:
            for item in page.items:
                yield event_of(item)
            if page.at_rest:
                return
            page = await self._store.wait_journal(self.id, page.cursor, deadline_s=60.0)

    async def stream(
        self, after: str | None = None, *, settled: bool = False, follow: bool = False
    ) -> AsyncIterator[Update]:
        """What there is to show, reconciled: text as it grows, calls, retries, the end of the turn. A program that
        prints `TextAdded` and takes back what `Restarted` says shows the exact text at every moment. With `settled`,
        text comes once it is committed and nothing is ever taken back.

        Begins with the turn that goes on, or the last one; with the `cursor` of an update, behind that update, on any
        process; with an empty one, at the beginning of the chat. Ends when the chat rests or waits for somebody who
        is asked; with `follow` it goes on.
        """
        reader = UpdateReader(self._store, self.id, after, settled=settled)
        told = await reader.next(0.0)
        while True:
            for update in told.found:
                yield update
            if told.quiet and not follow:
                return
            told = await reader.next(60.0)

    async def wait(self, deadline_s: float = 3600.0) -> State:
        """Until the chat rests or waits for somebody. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            with self._store.bell.listen(rest_topic(self.id)) as listener:
                while (state := await self.state()) not in QUIET:
                    await listener.wait(self._store.options.poll_interval_s)
                return state

    async def text(self) -> str:
        """The last answer: waits until the chat rests, then returns what the model said last. Raises TurnFailed."""
        said = await self._last_response()
        return said.text if said is not None else ""

    async def _last_response(self) -> Message | None:
        await self.wait()
        chat = (await self.snapshot()).chat
        if chat.state is State.FAILED and chat.error is not None:
            raise TurnFailed(chat.error.code, chat.error.message, chat.error.chain)
        for message in reversed(await self.messages()):
            if message.role is Role.ASSISTANT:
                return message
        return None

    async def output(self) -> Any:
        """The last answer as a value of the agent's output type. Raises TurnFailed, and OutputInvalid where a turn
        ended before there was a whole answer.
        """
        agent = self._app.agent((await self.snapshot()).chat.agent)
        if agent.output is None:
            raise ConfigError(f"agent {agent.name!r} declares no output type; give it output=…, or ask for text()")
        said = await self._last_response()
        return agent.output.read(said.answer if said is not None else "")


def _key(key: Key | str | None) -> Key | None:
    """A program's own keys share one name space, apart from those of other principals."""
    return Key(principal="app", key=key) if isinstance(key, str) else key


def with_digest(key: Key | str | None, *asked: object) -> Key | None:
    """With a digest of what was asked for: ids that are made here differ each time, the request does not."""
    found = _key(key)
    if found is None or found.request is not None:
        return found
    return replace(found, request=request_hash(*asked))


def as_message(text: str | Message) -> Message:
    if isinstance(text, Message):
        return text
    return Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=text),))
