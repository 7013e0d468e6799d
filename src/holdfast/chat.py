"""`Chat`: what a program holds of one conversation."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, Protocol

from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.config import Config
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry
from holdfast.core.journal import Event, MessageAdded
from holdfast.core.kept_files import inline_bytes, kept_digest
from holdfast.core.records import Always, ClientTool, File, Message, Role, SendMode, Snapshot, State, Terms, Text
from holdfast.core.updates import Update
from holdfast.errors import InvalidInput, NotFound, SlashCommandFailed, TurnTimeout
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.output import OutputT_co
from holdfast.slash_commands import called_in
from holdfast.standing import Standing, standing_of
from holdfast.store.chat_store import ChatStore
from holdfast.store.driver_watch import DriverWatch, Patience
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.receipts import request_hash
from holdfast.store.records import QUIET, Answer, HistoryRow, Key
from holdfast.store.sub_agents import SubAgent
from holdfast.store.turn_reader import TurnRead, TurnReader
from holdfast.store.update_reader import UpdateReader, event_cursor, event_of
from holdfast.tools.base import Tool
from holdfast.turn import TURN_TIMEOUT_S, OpenCall, Sent, Turn

log = logger("holdfast.chats")


class ChatHome(Protocol):
    """What a handle needs of where its chat is: an `App` has it, and so has what the server gives a principal."""

    @property
    def store(self) -> ChatStore: ...

    @property
    def agents(self) -> Mapping[str, Agent[Any]]: ...

    @property
    def config(self) -> Config: ...

    @property
    def drivers(self) -> DriverWatch: ...

    def agent(self, agent: Agent[Any] | str) -> Agent[Any]: ...

    def sent(self, message: Message) -> Message: ...

    async def expanded(self, message: Message, agent: str) -> Message: ...


class Chat(Generic[OutputT_co]):
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

    def __init__(self, app: ChatHome, chat_id: str) -> None:
        self._app = app
        self._store = app.store
        self.id = chat_id

    def __repr__(self) -> str:
        return f"<Chat {self.id}>"

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
    ) -> Sent[OutputT_co]:
        """Once this returns, the message is durable; its `turn()` is what comes of it.

        `active_tools` limits the tools of the turn that this message begins, and `client_tools` adds some that the
        client runs; a message that steers begins none. With a `length` it is refused unless the chat rests and its
        history has so many positions: nothing was said since the sender read it.
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
        keyed = with_digest(key, "send", self.id, text, mode, active_tools, declared, length)
        message = await self._expanded(message, keyed)
        command = cmd.Send(message=self._app.sent(message), mode=mode, length=length)
        return self._sent(await self._submit(command, keyed))

    async def _expanded(self, message: Message, key: Key | None) -> Message:
        if called_in(message) is None:
            return message
        return await expanded(self._app, self._store, message, (await self.snapshot()).chat.agent, key)

    async def give(
        self,
        messages: Sequence[Message] = (),
        *,
        agent: str | None = None,
        length: int | None = None,
        key: Key | str | None = None,
    ) -> Answer:
        """Before its first turn: add messages that were said elsewhere, as `create(past=…)` does, and name another
        agent for it, or either. Refused once it has begun, and with a `length` unless its history has so many
        positions.
        """
        if agent is not None:
            self._app.agent(agent)
        keyed = with_digest(key, "give", self.id, tuple(messages), agent)
        return await self._submit(cmd.Give(messages=tuple(messages), agent=agent, length=length), keyed)

    async def edit(self, message_id: str, text: str | Message, *, key: Key | str | None = None) -> Sent[OutputT_co]:
        """Replace a user message and everything after it. `dropped` holds the queued messages that this removed."""
        keyed = with_digest(key, "edit", self.id, message_id, text)
        try:
            spot = await self._store.locate_message(self.id, message_id)
        except NotFound:
            if keyed is not None and (answer := await self._store.recall(keyed)) is not None:
                return self._sent(answer)  # asked again, or twice at once: what was edited is no longer there
            raise
        message = self._app.sent(await self._expanded(as_message(text), keyed))
        command = cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=message)
        return self._sent(await self._submit(command, keyed))

    def _sent(self, answer: Answer) -> Sent[OutputT_co]:
        """By its key, a request that was made before may have gone to another chat: a fork of this one."""
        return Sent(self if answer.chat_id == self.id else Chat(self._app, answer.chat_id), answer)

    async def promote(self, message_id: str, *, key: Key | str | None = None) -> Answer:
        """Take a queued message next: what is running now is superseded."""
        return await self._submit(cmd.Promote(message_id=message_id), key)

    async def withdraw(self, message_id: str, *, key: Key | str | None = None) -> Answer:
        """Take a queued message back; the answer holds it."""
        return await self._submit(cmd.Withdraw(message_id=message_id), key)

    async def stop(
        self, *, clear_queue: bool = False, turn: int | None = None, key: Key | str | None = None
    ) -> Answer:
        """Stops what the chat does and everything below it, at any depth, in one transaction: also of a chat at rest
        that left sub-agents at work. With a `turn` it is refused once the chat is in another one.
        """
        return await self._submit(cmd.Stop(clear_queue=clear_queue, turn=turn), key)

    async def retry(self, *, key: Key | str | None = None) -> Answer:
        return await self._submit(cmd.Retry(), key)

    async def go_on(self, *, key: Key | str | None = None) -> Answer:
        """A turn that a budget ended goes on from there, without a new message, as another turn with a turn's worth
        of budget. What bounds chat, family or owner has to be raised first. Refused where no budget ended the last.
        """
        return await self._submit(cmd.GoOn(), key)

    async def compact(self, *, key: Key | str | None = None) -> Answer:
        """From now on a summary stands for the older part of the conversation; the messages stay. A worker makes it:
        at once in a chat at rest, before the next response in one that runs. A failed turn then goes on.
        """
        return await self._submit(cmd.Compact(), key)

    async def approve(
        self,
        call_id: str,
        *,
        by: str = "",
        digest: str | None = None,
        always: Always | None = None,
        for_s: float | None = None,
        key: Key | str | None = None,
    ) -> Answer:
        """With the `digest` of an `OpenCall` it is refused unless what would run is what was shown there.

        `always` keeps the rules that the call offers, with the approval or not at all: for this chat, for its owner's
        chats with this agent, or for all chats of its owner; for `for_s` seconds, or until they are revoked. Refused
        where it offers none.
        """
        always_ms = None if for_s is None else int(for_s * 1000) if math.isfinite(for_s) else 0
        command = cmd.Approve(call_id=call_id, by=by, digest=digest, always=always, always_ms=always_ms)
        return await self._submit(command, key)

    async def deny(self, call_id: str, words: str = "", *, by: str = "", key: Key | str | None = None) -> Answer:
        answer = await self._submit(cmd.Deny(call_id=call_id, words=words, by=by), key)
        extra = {"action": "call.denied", "chat": self.id, "call": call_id, "by": by}
        log.warning("a call was denied by a person", extra=extra)
        return answer

    async def submit(
        self,
        call_id: str,
        content: str,
        *,
        error: bool = False,
        files: Sequence[File] = (),
        terms: Terms | None = None,
        key: Key | str | None = None,
    ) -> Answer:
        """The result of a call that the client ran, or the answer to a question; the model is shown the `files` with
        it. `terms`: what the client asks of the turn from here on, in place of what was asked when it began.
        """
        command = cmd.Submit(call_id=call_id, content=content, error=error, files=tuple(files), terms=terms)
        return await self._submit(command, key)

    async def rename(self, title: str, *, key: Key | str | None = None) -> Answer:
        return await self._submit(cmd.Rename(title=title), key)

    async def why(self) -> Standing:
        """What it does or waits for, since when, under which deadline, and what happens next: one look."""
        return await standing_of(self._store, self.id, self._app.agents)

    async def open_calls(self) -> list[OpenCall]:
        """What people and clients have to answer, in this chat and in those of its sub-agents: approvals, questions,
        calls of client tools. Each is a handle that answers it in its own chat: `await call.approve(by="ann")`.
        """
        return [self._handle(record) for record in await self._store.open_calls(self.id)]

    async def children(self, *, deep: bool = False) -> list[SubAgent]:
        """The chats that calls of this one spawned, or with `deep` all that are below it: those at work first, then
        the newest, 200 at most. Each says what it works on, what it answered last and what its turn took;
        `app.chat(child.chat_id)` is a handle on it.
        """
        return await self._store.sub_agents(self.id, deep=deep)

    async def open_call(self, call_id: str) -> OpenCall:
        """An open call of this very chat, with the whole of its arguments. Raises NotFound."""
        return self._handle(await self._store.read_open_call(self.id, call_id))

    def _handle(self, record: OpenCallRecord) -> OpenCall:
        return OpenCall(self if record.chat_id == self.id else Chat(self._app, record.chat_id), record)

    async def archive(self, archived: bool = True) -> Answer:
        return await self._submit(cmd.Archive(archived=archived))

    async def fork(
        self, *, upto: int | None = None, owner: str | None = None, key: Key | str | None = None
    ) -> "Chat[OutputT_co]":
        keyed = with_digest(key, "fork", self.id, upto, owner)
        answer = await self._store.fork_chat(self.id, new_id("chat"), upto=upto, owner=owner, key=keyed)
        return Chat(self._app, answer.chat_id)

    async def delete(self, *, children: bool = False) -> tuple[str, ...]:
        """Really gone, and with `children` the chats that it spawned. Returns the ids."""
        return await self._store.delete_chat(self.id, children="include" if children else "refuse")

    async def _submit(self, command: cmd.Command, key: Key | str | None = None) -> Answer:
        return await self._store.submit(self.id, command, _key(key))

    async def history(self, start: int = 0, limit: int = 1_000) -> list[HistoryRow]:
        """Positions of the history from `start` on, as they are stored."""
        return await self._store.read_history(self.id, start=start, limit=limit)

    async def messages(self) -> list[Message]:
        """The whole history, in order, with the bytes of its files in data: URIs: of the newest 64 MiB of them. The
        others are said to be left out; `read_file` reads them all.
        """
        found: list[Message] = []
        start = 0
        while rows := await self._store.read_history(self.id, start=start):
            for row in rows:
                entry = decode_entry(row.body)
                assert isinstance(entry, MessageAdded)
                found.append(entry.message)
            start = rows[-1].pos + 1
        return list(await self._store.whole_messages(self.id, found))

    async def read_file(self, file: File) -> bytes:
        """The bytes of a file that a message or a result of this chat names. Raises NotFound for one that it does
        not hold, and InvalidInput for one that lies elsewhere: its `uri` is a link.
        """
        digest = kept_digest(file)
        if digest is not None:
            return await self._store.read_file(self.id, digest)
        if (data := inline_bytes(file)) is None:
            raise InvalidInput("file", f"lies elsewhere, at {file.uri[:200]}")
        return data

    async def events(self, after: str | None = None) -> AsyncIterator[Event]:
        """Everything that happens, from a cursor on, until the chat rests and all was told: the journal's entries,
        and the pieces of a response while it streams. `event.body` is a value to match on, `event.raw` its bytes.

        Raises NoWorker as `turn` does: go on from the last event's `cursor`.
        """
        patience = self._patience()
        page = await self._store.read_journal(self.id, event_cursor(after))  # at rest nothing is waited for
        while True:
            for item in page.items:
                yield event_of(item)
            if page.at_rest:
                return
            page = await self._store.wait_journal(self.id, page.cursor, self._look_s)
            if not page.items:
                await self._check_worker(patience)

    async def stream(
        self, after: str | None = None, *, settled: bool = False, follow: bool = False
    ) -> AsyncIterator[Update]:
        """What there is to show, reconciled: text as it grows, calls, retries, the end of the turn. A program that
        prints `TextAdded` and takes back what `Restarted` says shows the exact text at every moment. With `settled`,
        text comes once it is committed and nothing is ever taken back, but for what the cursor of a stream without it
        says was shown.

        Begins with the turn that goes on, or the last one; with the `cursor` of an update, behind that update, on any
        process; with an empty one, at the beginning of the chat. Ends when the chat rests, or waits for a person or a
        client; with `follow` it goes on.

        Raises NoWorker as `turn` does, with `follow` too, once a turn is due: go on from the last update's `cursor`.
        A chat that rests, or waits for people, needs no worker, and its reader is told of none.
        """
        reader, patience = UpdateReader(self._store, self.id, after, settled=settled), self._patience()
        told = await reader.next(0.0)
        while True:
            for update in told.found:
                yield update
            if told.quiet and not follow:
                return
            told = await reader.next(self._look_s)
            if not told.found and not told.quiet:
                await self._check_worker(patience)

    # --- turns --------------------------------------------------------------------------------------------------

    async def turn(self, number: int | None = None, *, timeout_s: float = TURN_TIMEOUT_S) -> Turn[OutputT_co]:
        """The turn that the chat is in, or was in last: waits until the chat rests, or waits for people or clients. A
        sub-agent and the clock are waited for. With a `number`: that turn, once it is over or waits. Never raises for
        how the turn ended: `turn.state` says it.

        Raises NoTurn where there is none yet, TurnTimeout, and NoWorker once no worker that lives could drive the
        chat for `worker_wait_s`. With a timeout of 0 it only looks.
        """
        return await self._await(TurnReader(self._store, self.id, self._patience(), number=number), timeout_s)

    async def text(self, *, timeout_s: float = TURN_TIMEOUT_S) -> str:
        """The answer of that turn. Raises as `turn`, and TurnWaits, TurnStopped or TurnFailed where there is none."""
        return (await self.turn(timeout_s=timeout_s)).text

    async def output(self, *, timeout_s: float = TURN_TIMEOUT_S) -> OutputT_co:
        """The answer of that turn as a value of the agent's output type. Raises as `text`, and OutputInvalid."""
        return (await self.turn(timeout_s=timeout_s)).output

    async def wait(self, deadline_s: float = TURN_TIMEOUT_S) -> State:
        """Until the chat rests or waits, be it for people, for a sub-agent or for the clock. Raises TimeoutError,
        and NoWorker as `turn` does.
        """

        async def quiet(snapshot: Snapshot) -> State | None:
            return snapshot.chat.state if snapshot.chat.state in QUIET else None

        async with asyncio.timeout(deadline_s):
            return await TurnReader(self._store, self.id, self._patience()).until(quiet)

    async def _turn_of(self, answer: Answer, timeout_s: float) -> Turn[OutputT_co]:
        return await self._await(TurnReader(self._store, self.id, self._patience(), answer), timeout_s)

    def _patience(self) -> Patience:
        return Patience(self._app.drivers, self._app.config.worker_wait_s)

    @property
    def _look_s(self) -> float:
        """Between two looks for a worker of one who reads on."""
        return self._store.options.poll_interval_s

    async def _check_worker(self, patience: Patience) -> None:
        await patience.check(await self.snapshot(), self._store.options.clock.boot_ms())

    async def _await(self, reader: TurnReader, timeout_s: float) -> Turn[OutputT_co]:
        if timeout_s > 0:
            try:
                async with asyncio.timeout(timeout_s) as deadline:
                    return self._turn(await reader.wait())
            except TimeoutError:
                if not deadline.expired():
                    raise
        turn = self._turn(await reader.now())
        if turn.state not in ("running", "queued"):
            return turn
        words = f"chat {self.id!r} is {turn.state} after {timeout_s:g} s (timeout_s); it goes on, ask for it again"
        raise TurnTimeout(words, turn, timeout_s)

    def _turn(self, read: TurnRead) -> Turn[OutputT_co]:
        response, agent = read.response, self._app.agents.get(read.agent)
        output = agent.output if agent is not None else None
        said = response.text if response is not None else ""
        answer = response.answer if response is not None else ""
        return Turn(
            chat=self,
            number=read.number,
            state=read.state,
            cause=read.cause,
            detail=read.detail,
            error=read.error,
            finish=response.finish if response is not None else None,
            open=tuple(self._handle(record) for record in read.open),
            usage=read.usage,
            cost=read.cost,
            partial_text=read.said or said,
            _read_output=(lambda: output.read(answer)) if output is not None else None,
        )


def _key(key: Key | str | None) -> Key | None:
    """A program's own keys share one name space, apart from those of other principals."""
    return Key(principal="app", key=key) if isinstance(key, str) else key


def with_digest(key: Key | str | None, *asked: object) -> Key | None:
    """With a digest of what was asked for: ids that are made here differ each time, the request does not."""
    found = _key(key)
    if found is None or found.request is not None:
        return found
    return replace(found, request=request_hash(*asked))


async def expanded(home: ChatHome, store: ChatStore, message: Message, agent: str, key: Key | None) -> Message:
    """With what its slash command stands for. Where that cannot be had, and this very request was accepted before,
    its answer is in the store, and the message is of no account.
    """
    try:
        return await home.expanded(message, agent)
    except SlashCommandFailed:
        if key is not None and await store.recall(key) is not None:
            return message
        raise


def as_message(text: str | Message) -> Message:
    if isinstance(text, Message):
        return text
    return Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=text),))
