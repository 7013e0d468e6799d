"""`App` wires everything: a store, agents, models; and `Chat` is what a program holds of one conversation."""

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast import __version__
from holdfast.agent import Agent
from holdfast.config import Config, changed, load_config
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_entry, decode_message, encode
from holdfast.core.journal import MessageAdded
from holdfast.core.records import ClientTool, Message, NewChat, Role, SendMode, Snapshot, State, Text
from holdfast.errors import ConfigError, NotFound, TurnFailed, UnknownAgent
from holdfast.health.checks import diagnose
from holdfast.ids import new_id
from holdfast.mcp_servers import McpServer
from holdfast.models.calls import Caller
from holdfast.models.providers import Providers
from holdfast.models.resolve import Models
from holdfast.redaction import Secrets
from holdfast.store import open_store
from holdfast.store.base import (
    QUIET,
    Answer,
    ChatFilter,
    ChatLine,
    HistoryRow,
    Item,
    Key,
    Store,
    StoreOptions,
    request_hash,
)
from holdfast.store.notify.bell import rest_topic
from holdfast.store.open_calls import OpenCall
from holdfast.system.disk import make_home
from holdfast.tools import floor
from holdfast.tools.base import Tool
from holdfast.worker.plugins import load_plugins
from holdfast.worker.process import run_until_told
from holdfast.worker.worker import Worker


class App:
    """A store, agents and models, wired together. Use as an async context manager, or enter a worker.

    >>> async def main() -> None:
    ...     app = App("sqlite:///example.db", agents=[Agent("echo", "scripted")])
    ...     async with app.worker():
    ...         chat = await app.create("echo", "hello", metadata={"customer": "7"})
    ...         print(await chat.text())
    ...         print([line.state for line in await app.chats()])
    >>> asyncio.run(main())
    You said: hello
    [<State.IDLE: 'idle'>]
    """

    def __init__(
        self,
        url: str | None = None,
        agents: Sequence[Agent] = (),
        *,
        config: Config | None = None,
        options: StoreOptions | None = None,
        caller: Caller | None = None,
        **settings: Any,
    ) -> None:
        if config is None:
            config = load_config(**settings)
        elif settings:
            raise ConfigError(f"give either config, or {', '.join(settings)}")
        self.config = config
        self.agents: dict[str, Agent] = {}
        for agent in agents:
            if agent.name in self.agents:
                raise ConfigError(f"two agents are named {agent.name!r}: give one of them another name")
            agent.check_prices(config.models)
            self.agents[agent.name] = agent
        self._serve(config.mcp)
        self._named_no_database = not url
        url = url or config.database_url
        self.secrets = Secrets(os.environ)
        self.secrets.add_url("database password", url)
        self._hide_keys_of_servers()
        self.store: Store = open_store(url, options or _store_options(config))
        # Whoever finds no slot of a local model waits here, where no deadline of an answer runs yet.
        self.caller = caller or Caller(Providers(limits={"local": config.local_slots}))
        self.models = Models(facts=config.models, config=config)
        self.workers: list[Worker] = []  # those that run in this process
        self.loop: asyncio.AbstractEventLoop | None = None  # while it is open
        self._plugins = () if config.no_plugins else load_plugins(config.plugins)
        self._users = 0  # blocks that have it open
        self._opening_or_closing = asyncio.Lock()

    def _serve(self, servers: Sequence[McpServer]) -> None:
        """Give each agent the tool servers that the configuration has for it."""
        for server in servers:
            for name in server.agents or ():
                if name not in self.agents:
                    raise ConfigError(f"agents of mcp.{server.name}: {self._no_agent(name)}")
        for name, agent in self.agents.items():
            own = [server for server in servers if server.agents is None or name in server.agents]
            self.agents[name] = agent.with_servers(own)

    def _hide_keys_of_servers(self) -> None:
        for server in {server.name: server for agent in self.agents.values() for server in agent.servers}.values():
            self.secrets.add_named(server.env)
            self.secrets.add_url(f"password of {server.name}", server.url)
            for header, value in server.headers.items():
                self.secrets.add(f"{header} of {server.name}", value)
            for header, variable in server.headers_env.items():
                self.secrets.add(f"{header} of {server.name}", os.environ.get(variable))

    async def __aenter__(self) -> "App":
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    @asynccontextmanager
    async def open_patiently(self) -> AsyncIterator[None]:
        """As `async with app:`, for what runs until it is told to go: waits for a database server that restarts at
        the same time, or comes up later, for as long as `store_wait_s` says.
        """
        await self._open(self.config.store_wait_s)
        try:
            yield
        finally:
            await self._close()

    async def _open(self, wait_s: float = 0.0) -> None:
        if self._users == 0 and not self._opening_or_closing.locked():
            self._opening_or_closing = asyncio.Lock()  # somebody waited for the last one in another event loop, maybe
        self._users += 1  # at once: who is about to close it for want of users sees us
        try:
            async with self._opening_or_closing:
                if self.loop is None:
                    if self._named_no_database and not self.config.database:
                        have_home(self.config)
                    await self.store.open(wait_s)
                    self._own = floor.own(self.config.home, self.store.lock_folder, self.store.file)
                    floor.protect(self._own)
                    self.loop = asyncio.get_running_loop()
                    _open.add(self)
        except BaseException:
            self._users -= 1
            raise

    async def _close(self) -> None:
        self._users -= 1
        async with self._opening_or_closing:
            if self._users > 0 or self.loop is None:
                return
            _open.discard(self)
            self.loop = None
            floor.release(self._own)
            try:
                await self.models.aclose()
            finally:
                await self.store.close()

    def worker(self, **settings: Any) -> "RunningWorker":
        """`async with app.worker():` claims and runs chats in this process until the block ends.

        Settings of the app can be given anew for this worker: `app.worker(grace_s=60)`.
        """
        return RunningWorker(self, self.new_worker(**settings))

    async def run_worker(self, **settings: Any) -> None:
        """A worker until SIGTERM or Ctrl-C, in the main thread: then it drains, and this returns."""
        async with self.open_patiently():
            worker = self.new_worker(**settings)
            self.workers.append(worker)
            try:
                await run_until_told(worker, worker.config.grace_s)
            finally:
                self.workers.remove(worker)

    def new_worker(self, **settings: Any) -> Worker:
        config = changed(self.config, **settings)
        return Worker(self.store, self.agents, self.caller, self.models, config, self._plugins, self.secrets)

    # --- chats ----------------------------------------------------------------------------------------

    async def create(
        self,
        agent: str,
        text: str | Message | None = None,
        *,
        owner: str = "",
        metadata: dict[str, Any] | None = None,
        active_tools: Sequence[str] | None = None,
        client_tools: Sequence[Tool | ClientTool] = (),
        title: str | None = None,
        past: Sequence[Message] = (),
        since: Sequence[Message] = (),
        chat_id: str | None = None,
        key: Key | str | None = None,
    ) -> "Chat":
        """A new chat; with a text it starts to run. `active_tools` limits its tools for good: None is all of the
        agent's, an empty list is none. `client_tools` are tools that the client runs, beside the agent's.

        `past` is a conversation that was held elsewhere before this text, `since` what the model and its tools had
        already said to the text: it goes on from there.
        """
        self.agent(agent).check_tools(active_tools)
        message = _message(text) if text is not None else None
        self.agent(agent).check_client_tools(message.client_tools if message is not None else ())
        declared = self.agent(agent).check_client_tools(client_tools)
        new = NewChat(
            id=chat_id or new_id("chat"),
            agent=agent,
            owner=owner,
            metadata=Raw(encode(metadata or {})),
            active_tools=tuple(active_tools) if active_tools is not None else None,
            client_tools=declared,
            title=title,
            past=tuple(past),
            message=message,
            since=tuple(since),
        )
        asked = (agent, text, owner, metadata, active_tools, declared, title, past, since, chat_id)
        answer = await self.store.create_chat(new, _keyed(key, "create", *asked))
        return Chat(self, answer.chat_id)

    async def chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        """Newest first, in pages: `before` is the id of the last chat of the page before."""
        return await self.store.list_chats(filter, before=before, limit=limit)

    async def run(self, agent: str, text: str | Message, **chat: Any) -> str:
        """One turn of a new chat, from question to answer; some worker must run. The rest is as in `create`."""
        return await (await self.create(agent, text, **chat)).text()

    def run_sync(self, agent: str, text: str | Message, **chat: Any) -> str:
        """`run` for programs that are not async, with a worker of its own for as long as it takes.

        >>> app = App("sqlite:///example.db", agents=[Agent("echo", "scripted")])
        >>> app.run_sync("echo", "hello")
        'You said: hello'
        """

        async def turn() -> str:
            async with self.worker():
                return await self.run(agent, text, **chat)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(turn())
        raise ConfigError(
            "run_sync() is for programs without an event loop; here: `await app.run(…)` beside a worker"
        )

    def chat(self, chat_id: str) -> "Chat":
        return Chat(self, chat_id)

    def agent(self, name: str) -> Agent:
        if name not in self.agents:
            raise UnknownAgent(self._no_agent(name))
        return self.agents[name]

    def _no_agent(self, name: str) -> str:
        return f"there is no agent {name!r}; this app has: {', '.join(sorted(self.agents)) or 'none'}"


_open: "weakref.WeakSet[App]" = weakref.WeakSet()


def diagnostics(*, detailed: bool = False) -> dict[str, Any]:
    """How this process is: a status with reason codes, and figures beside their limits.

    Cheap, without secrets, from any thread, with or without a running event loop; never raises. `detailed` is for
    operators: it names chats, tools and the stacks of what held up the event loop.
    """
    return diagnose(list(_open), __version__, detailed=detailed)


class RunningWorker:
    def __init__(self, app: App, worker: Worker) -> None:
        self._app = app
        self._worker = worker

    async def __aenter__(self) -> Worker:
        await self._app.__aenter__()
        try:
            await self._worker.start()
            self._app.workers.append(self._worker)
        except BaseException:
            await self._app.__aexit__()
            raise
        return self._worker

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._worker.stop()
        finally:
            self._app.workers.remove(self._worker)
            await self._app.__aexit__()


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

    def __init__(self, app: App, chat_id: str) -> None:
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
        message = _message(text)
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
        return await self._submit(event, _keyed(key, "send", self.id, *asked))

    async def edit(self, message_id: str, text: str | Message, *, key: Key | str | None = None) -> Answer:
        """Replace a user message and everything after it. The answer holds the queued messages this dropped."""
        keyed = _keyed(key, "edit", self.id, message_id, text)
        try:
            spot = await self._store.locate_message(self.id, message_id)
        except NotFound:
            if keyed is not None and (answer := await self._store.recall(keyed)) is not None:
                return answer  # asked again, or twice at once: what was edited is no longer there
            raise
        event = cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=_message(text))
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
        keyed = _keyed(key, "fork", self.id, upto, owner)
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
                found.append(decode_message(entry.message))
            start = rows[-1].pos + 1
        return found

    async def events(self, after: str | None = None) -> AsyncIterator[Item]:
        """Everything that happens, from a cursor on, until the chat rests and all was told."""
        page = await self._store.read_journal(self.id, after)  # where it rests already, nothing is waited for
        while True:
            for item in page.items:
                yield item
            if page.at_rest:
                return
            page = await self._store.wait_journal(self.id, page.cursor, deadline_s=60.0)

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


def have_home(config: Config) -> None:
    """Make the folder of the data, if it is not there. Raises ConfigError."""
    home = Path(config.home)
    try:
        make_home(home)
    except OSError as error:
        why = "it is not a folder" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise ConfigError(
            f"the home {str(home)!r} cannot be made: {why}. Choose another: --home, HOLDFAST_HOME, or `home` in the "
            "settings"
        ) from error


def _store_options(config: Config) -> StoreOptions:
    return StoreOptions(lease_ttl_ms=int(config.lease_ttl_s * 1000), deadline_s=config.store_deadline_s)


def _key(key: Key | str | None) -> Key | None:
    """A program's own keys share one name space, apart from those of other principals."""
    return Key(principal="app", key=key) if isinstance(key, str) else key


def _keyed(key: Key | str | None, *asked: object) -> Key | None:
    """With a digest of what was asked for: ids that are made here differ each time, the request does not."""
    found = _key(key)
    if found is None or found.request is not None:
        return found
    return replace(found, request=request_hash(*asked))


def _message(text: str | Message) -> Message:
    if isinstance(text, Message):
        return text
    return Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=text),))
