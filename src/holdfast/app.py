"""`App` wires everything: a store, agents, models."""

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from msgspec import Raw

from holdfast import __version__, transfer
from holdfast.agent import Agent
from holdfast.chat import Chat, as_message, expanded, with_digest
from holdfast.config import FILE, Config, ConfigSettings, WorkerSettings, changed, changed_for_worker, load_config
from holdfast.core.codec import check_text, encode
from holdfast.core.records import ClientTool, KeptRule, Message, NewChat
from holdfast.core.retry import RETRY, RetryPolicy
from holdfast.declared_schedules import Schedule
from holdfast.errors import ConfigError, HoldfastError, InvalidInput, UnknownAgent
from holdfast.health.checks import diagnose
from holdfast.ids import new_id
from holdfast.mcp_servers import McpServer
from holdfast.memory import AppMemory
from holdfast.models.calls import Caller
from holdfast.models.providers import Providers
from holdfast.models.resolve import Models
from holdfast.output import OutputT
from holdfast.owner_limits import Budgets, OwnerLimits
from holdfast.redaction import Secrets
from holdfast.schedules import AppSchedules
from holdfast.skill_commands import SkillCommands
from holdfast.slash_commands import SlashCommand, SlashCommands
from holdfast.spans import Traces
from holdfast.store import open_store
from holdfast.store.budgets import USAGE_ROWS_MAX, Grouping, OwnerBudget, UsageTotal
from holdfast.store.contract import Store
from holdfast.store.driver_watch import DriverWatch
from holdfast.store.open_calls import OpenCallFilter, OpenCallKind, OpenCallLine
from holdfast.store.records import ChatFilter, ChatLine, Key, StoreOptions
from holdfast.system.cover import Own
from holdfast.system.disk import make_home
from holdfast.timetable import zone_of
from holdfast.tools import floor
from holdfast.tools.base import Tool
from holdfast.tools.permissions.examples import check_permissions
from holdfast.tools.permissions.rules import rule_of
from holdfast.turn import TURN_TIMEOUT_S, Turn
from holdfast.turn_spans import TurnSpans
from holdfast.webhooks import AppWebhooks
from holdfast.worker.plugins import load_plugins
from holdfast.worker.process import run_until_told
from holdfast.worker.server_prompts import ServerPrompts
from holdfast.worker.worker import Worker

OWNERS_TOGETHER = 1_000  # that are read at once


class ChatSettings(TypedDict, total=False):
    """What `create` and `run` can be told of a new chat, beside its agent and its first message."""

    owner: str
    metadata: dict[str, Any] | None
    active_tools: Sequence[str] | None
    client_tools: Sequence[Tool | ClientTool]
    title: str | None
    past: Sequence[Message]
    since: Sequence[Message]
    chat_id: str | None
    key: Key | str | None


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

    `settings` are those of docs/configuration.md, by name; they beat environment and file. `retry` says how often and
    how patiently a model call is repeated, for agents that do not say it themselves. `schedules` start
    agents at times.
    """

    def __init__(
        self,
        url: str | None = None,
        agents: Sequence[Agent[Any]] = (),
        *,
        config: Config | None = None,
        options: StoreOptions | None = None,
        retry: RetryPolicy = RETRY,
        schedules: Sequence[Schedule] = (),
        **settings: Unpack[ConfigSettings],
    ) -> None:
        if config is None:
            config = load_config(**settings)
        elif settings:
            raise ConfigError(f"give either config, or {', '.join(settings)}")
        self.config = config
        self.agents: dict[str, Agent[Any]] = {}
        costs = check_budgets(config.budgets)
        for agent in agents:
            if agent.name in self.agents:
                raise ConfigError(f"two agents are named {agent.name!r}: give one of them another name")
            agent.check_prices(config.models, limited=costs)
            self.agents[agent.name] = agent
        self._given = dict(self.agents)  # before the settings gave them tool servers
        self._serve(config.mcp)
        self._check_permissions()
        self._named_no_database = not url
        url = url or config.database_url
        self.secrets = Secrets(os.environ)
        self.secrets.add_url("database password", url)
        self._hide_keys_of_servers()
        self.store: Store = open_store(url, options or _store_options(config))
        self.drivers = DriverWatch(self.store)
        self.webhooks = self._webhooks()
        self.turn_spans = TurnSpans(Traces(on=config.traces, content=config.trace_content), self.store)
        # A chat that finds no slot of a local model waits here, where no deadline of an answer runs yet.
        self.caller = Caller(Providers(limits={"local": config.local_slots}), policy=retry)
        self.models = Models(facts=config.models, config=config)
        self.workers: list[Worker] = []  # those that run in this process
        self.loop: asyncio.AbstractEventLoop | None = None  # while it is open
        self._plugins = () if config.no_plugins else load_plugins(config.plugins)
        self._users = 0  # blocks that have it open
        self.at_opening: list[Callable[[], object]] = []  # what is to be in the home once it is open
        self._opening_or_closing = asyncio.Lock()
        self.schedules = AppSchedules(self, schedules)
        self.memory = AppMemory(self)
        self.slash = SlashCommands(
            SkillCommands(), ServerPrompts(lambda: [worker.tool_servers for worker in self.workers])
        )

    def _serve(self, servers: Sequence[McpServer]) -> None:
        """Give each agent the tool servers that the configuration has for it."""
        for server in servers:
            for name in server.agents or ():
                if name not in self.agents:
                    raise ConfigError(f"agents of mcp.{server.name}: {self._no_agent(name)}")
        for name, agent in self.agents.items():
            own = [server for server in servers if server.agents is None or name in server.agents]
            self.agents[name] = agent.with_servers(own)

    def _check_permissions(self) -> None:
        """Raises ConfigError for a rule that cannot be read, an example that does not hold, an agent that is none."""
        permissions = self.config.permissions
        if permissions is None:
            return
        try:
            check_permissions(permissions)
        except ConfigError as error:
            raise ConfigError(f"permissions: {error}") from None
        for rule in permissions.rules:
            agent = rule_of(rule).agent
            if self.agents and agent is not None and agent not in self.agents:
                raise ConfigError(f"permissions: the rule `{rule}`: {self._no_agent(agent)}")

    def _hide_keys_of_servers(self) -> None:
        for server in {server.name: server for agent in self.agents.values() for server in agent.servers}.values():
            self.secrets.add_named(server.env)
            self.secrets.add_url(f"password of {server.name}", server.url)
            for header, value in server.headers.items():
                self.secrets.add(f"{header} of {server.name}", value)
            for header, variable in server.headers_env.items():
                self.secrets.add(f"{header} of {server.name}", os.environ.get(variable))
            if server.client_secret_env:
                self.secrets.add(f"client secret of {server.name}", os.environ.get(server.client_secret_env))

    def _webhooks(self) -> AppWebhooks:
        """Raises ConfigError for an endpoint of the settings that cannot be meant."""
        webhooks = AppWebhooks(self.store, self.config, self.secrets)
        webhooks.check_declared()
        return webhooks

    def change(self, **settings: Unpack[ConfigSettings]) -> None:
        """Other settings than the program gave, before the app is opened; None is not given. Raises ConfigError."""
        self.config = changed(self.config, **settings)
        self._check_permissions()
        self.webhooks = self._webhooks()
        if settings.get("database") or (settings.get("home") and not self.config.database):
            self.secrets.add_url("database password", self.config.database_url)
            self.store = open_store(self.config.database_url, self.store.options)
            self.drivers = DriverWatch(self.store)
            self.webhooks = self._webhooks()

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
            self._opening_or_closing = asyncio.Lock()  # the last one may have had a waiter in another event loop
        self._users += 1  # at once: who is about to close it for want of users sees us
        try:
            async with self._opening_or_closing:
                if self.loop is None:
                    if self._named_no_database and not self.config.database:
                        have_home(self.config)
                    for prepare in self.at_opening:
                        prepare()
                    await self.store.open(wait_s)
                    self.turn_spans.open()
                    self._own = self._own_files()
                    floor.protect(self._own)
                    self.loop = asyncio.get_running_loop()
                    _open.add(self)
        except BaseException:
            self._users -= 1
            raise

    def _own_files(self) -> Own:
        """What no tool may touch, and no process of a tool is to see."""
        own = floor.own(self.config.home, self.store.lock_folder, self.store.file)
        return own._replace(keyed_settings=_holds_keys(FILE, self.secrets), wish=self.config.cover_tools)

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
                await self.turn_spans.close()
            finally:
                await self.store.close()

    def worker(self, **settings: Unpack[WorkerSettings]) -> AbstractAsyncContextManager[Worker]:
        """`async with app.worker():` claims and runs chats in this process until the block ends.

        Some settings can be given anew for this worker, such as `app.worker(grace_s=60)`; one that is the app's is
        refused (ConfigError).
        """
        return _RunningWorker(self, self.new_worker(**settings))

    async def run_worker(self, **settings: Unpack[WorkerSettings]) -> None:
        """A worker until SIGTERM or Ctrl-C, in the main thread: then it drains, and this returns."""
        async with self.open_patiently():
            worker = self.new_worker(**settings)
            self.workers.append(worker)
            try:
                await run_until_told(worker, worker.config.grace_s)
            finally:
                self.workers.remove(worker)

    def new_worker(self, **settings: Unpack[WorkerSettings]) -> Worker:
        config = changed_for_worker(self.config, **settings)
        return Worker(
            self.store,
            self.agents,
            self.caller,
            self.models,
            config,
            self._plugins,
            self.secrets,
            self.turn_spans,
            at_start=(self.schedules.declare, self.webhooks.declare),
        )

    def sent(self, message: Message) -> Message:
        """With the trace that it is sent from, if it is sent from within one and traces are on."""
        return self.turn_spans.sent(message)

    async def expanded(self, message: Message, agent: str) -> Message:
        """With what its slash command stands for, if it calls one of the agent's. Raises SlashCommandFailed."""
        known = self.agents.get(agent)
        return message if known is None else await self.slash.expanded(known, message)

    async def slash_commands(self, agent: Agent[Any] | str) -> list[SlashCommand]:
        """What people can call with `/name arguments` in chats with this agent, by name. Raises UnknownAgent."""
        return await self.slash.listed(self.agent(agent))

    # --- chats ----------------------------------------------------------------------------------------

    @overload
    async def create(
        self, agent: Agent[OutputT], text: str | Message | None = None, **chat: Unpack[ChatSettings]
    ) -> Chat[OutputT]: ...
    @overload
    async def create(
        self, agent: str, text: str | Message | None = None, **chat: Unpack[ChatSettings]
    ) -> Chat[Any]: ...
    async def create(
        self,
        agent: Agent[Any] | str,
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
    ) -> Chat[Any]:
        """A new chat; with a text it starts to run. `active_tools` limits its tools for good: None is all of the
        agent's, an empty list is none. `client_tools` are tools that the client runs, beside the agent's.

        `past` is a conversation that was held elsewhere before this text, `since` what the model and its tools had
        already said to the text: it goes on from there.
        """
        known = self.agent(agent)
        known.check_tools(active_tools)
        message = as_message(text) if text is not None else None
        known.check_client_tools(message.client_tools if message is not None else ())
        declared = known.check_client_tools(client_tools)
        asked = (known.name, text, owner, metadata, active_tools, declared, title, past, since, chat_id)
        keyed = with_digest(key, "create", *asked)
        if message is not None:
            message = await expanded(self, self.store, message, known.name, keyed)
        new = NewChat(
            id=chat_id or new_id("chat"),
            agent=known.name,
            owner=owner,
            metadata=Raw(encode(metadata or {})),
            active_tools=tuple(active_tools) if active_tools is not None else None,
            client_tools=declared,
            title=title,
            past=tuple(past),
            message=self.sent(message) if message is not None else None,
            since=tuple(since),
        )
        answer = await self.store.create_chat(new, keyed)
        return Chat(self, answer.chat_id)

    async def chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        """Newest first, in pages: `before` is the id of the last chat of the page before."""
        return await self.store.list_chats(filter, before=before, limit=limit)

    @overload
    async def run(
        self,
        agent: Agent[OutputT],
        text: str | Message,
        *,
        timeout_s: float = TURN_TIMEOUT_S,
        **chat: Unpack[ChatSettings],
    ) -> Turn[OutputT]: ...
    @overload
    async def run(
        self, agent: str, text: str | Message, *, timeout_s: float = TURN_TIMEOUT_S, **chat: Unpack[ChatSettings]
    ) -> Turn[Any]: ...
    async def run(
        self,
        agent: Agent[Any] | str,
        text: str | Message,
        *,
        timeout_s: float = TURN_TIMEOUT_S,
        **chat: Unpack[ChatSettings],
    ) -> Turn[Any]:
        """One turn of a new chat, from question to answer; some worker must run. The rest is as in `create`: with a
        `key` the same question is asked once, and a caller that asks again gets its answer.

        Raises TurnWaits, TurnStopped, TurnFailed or TurnTimeout, each with its `turn`, where there is no answer; and
        NoWorker once no worker that lives could drive the chat for `worker_wait_s`.
        """
        found = await self.create(agent, text, **chat)
        turn = await found.turn(1, timeout_s=timeout_s)
        turn.check()
        return turn

    @overload
    def run_sync(
        self,
        agent: Agent[OutputT],
        text: str | Message,
        *,
        timeout_s: float = TURN_TIMEOUT_S,
        **chat: Unpack[ChatSettings],
    ) -> Turn[OutputT]: ...
    @overload
    def run_sync(
        self, agent: str, text: str | Message, *, timeout_s: float = TURN_TIMEOUT_S, **chat: Unpack[ChatSettings]
    ) -> Turn[Any]: ...
    def run_sync(
        self,
        agent: Agent[Any] | str,
        text: str | Message,
        *,
        timeout_s: float = TURN_TIMEOUT_S,
        **chat: Unpack[ChatSettings],
    ) -> Turn[Any]:
        """`run` for programs that are not async, with a worker of its own for as long as it takes.

        >>> app = App("sqlite:///example.db", agents=[Agent("echo", "scripted")])
        >>> app.run_sync("echo", "hello").text
        'You said: hello'
        """

        async def turn() -> Turn[Any]:
            async with self.worker():
                return await self.run(agent, text, timeout_s=timeout_s, **chat)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(turn())
        raise ConfigError(
            "run_sync() is for programs without an event loop; here: `await app.run(…)` beside a worker"
        )

    async def export_chat(self, chat_id: str, path: str | Path, *, overwrite: bool = False) -> int:
        """Write all of a chat, with those that it spawned, as one file of JSON lines: whole, or not at all. Bytes
        that were written. Raises NotFound, RefusedError for a chat that runs, FileExistsError.
        """
        return await transfer.export_chat(self.store, chat_id, Path(path), overwrite=overwrite)

    async def import_chat(
        self, path: str | Path, *, new_ids: bool = False, owner: str | None = None
    ) -> transfer.Imported:
        """Bring in what `export_chat` wrote, whole or not at all: under its own ids, or `new_ids`; under its own
        owner, or another. Raises InvalidInput for a file that is no whole export, RefusedError where a chat of that
        id is there.
        """
        return await transfer.import_chat(self.store, Path(path), new_ids=new_ids, owner=owner)

    async def owners(self) -> AsyncIterator[tuple[str, int]]:
        """Each owner with the number of its chats, in the order of their names."""
        after: str | None = None
        while page := await self.store.transfers.owners(after, OWNERS_TOGETHER):
            for found in page:
                yield found
            after = page[-1][0]

    async def export_owner(self, owner: str, folder: str | Path, told: transfer.Told = transfer.not_told) -> int:
        """A file for each chat of an owner, with those that it spawned. How many files. `told(n)` after each.
        Raises as `export_chat`, and for the first one: what is written by then stays.
        """
        return await transfer.export_owner(self.store, owner, Path(folder), told)

    async def delete_owner(
        self, owner: str, *, stop: bool = False, told: transfer.Told = transfer.not_told
    ) -> transfer.OwnerDeleted:
        """All chats of an owner, with those that they spawned, its kept rules and its tokens. Run again, it goes on
        where it was ended. Raises RefusedError while chats of it run or wait, unless they are to be stopped first.
        """
        return await transfer.delete_owner(self.store, owner, stop=stop, told=told)

    async def open_calls(
        self,
        *,
        kind: OpenCallKind | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[OpenCallLine]:
        """What people and clients have to answer, in all chats, of every owner or of one: the newest chat first, in
        pages. `before` is the `place` of the last one of the page before. Long arguments are an excerpt.
        """
        return await self.store.list_open_calls(OpenCallFilter(kind=kind, owner=owner), before=before, limit=limit)

    async def kept_rules(
        self, *, owner: str | None = None, chat_id: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[KeptRule]:
        """What people said "always" to, and is in force: newest first, of every owner or of one, or for one chat."""
        return await self.store.kept_rules.page(owner=owner, chat_id=chat_id, before=before, limit=limit)

    async def revoke_kept_rule(self, rule_id: str) -> KeptRule:
        """From now on it counts nowhere: the next call that it would allow is asked about. Raises NotFound."""
        return await self.store.kept_rules.revoke(rule_id)

    async def budgets(
        self, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[OwnerBudget]:
        """What people set for owners, by owner; `after` is the last one of the page before."""
        return await self.store.budgets.page(owner=owner, after=after, limit=limit)

    async def set_budget(self, owner: str, limits: OwnerLimits, *, by: str = "") -> OwnerBudget:
        """What this owner may use, in place of what was set before and of what the app says. Workers heed it within
        seconds. Raises InvalidInput, and ConfigError for a limit on the cost where a model has no price.
        """
        check_text("owner", owner, bytes_max=512)
        if limits.problem is not None:
            raise InvalidInput("limits", limits.problem)
        for agent in self.agents.values():
            agent.check_prices(self.config.models, limited=limits.needs_prices)
        return await self.store.budgets.set(owner, limits, by)

    async def remove_budget(self, owner: str) -> None:
        """What the app says holds again. Raises NotFound."""
        await self.store.budgets.remove(owner)

    async def usage(
        self,
        by: Sequence[Grouping] = ("day", "kind"),
        *,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
        after: UsageTotal | None = None,
        limit: int = USAGE_ROWS_MAX,
    ) -> list[UsageTotal]:
        """Who spent what, by owner, agent, model, kind or day, and in that order; `since` and `until` are days, both
        included. At most 1,000: `after` is the last one of the page before.
        """
        return await self.store.budgets.usage(by, owner=owner, since=since, until=until, after=after, limit=limit)

    def chat(self, chat_id: str) -> Chat[Any]:
        return Chat(self, chat_id)

    def agent(self, agent: Agent[Any] | str) -> Agent[Any]:
        """The agent as it runs here, by its name or itself. Raises UnknownAgent, and ConfigError for one that only
        has the name of an agent of this app.
        """
        name = agent if isinstance(agent, str) else agent.name
        if name not in self.agents:
            raise UnknownAgent(self._no_agent(name))
        known = self.agents[name]
        if not isinstance(agent, str) and agent is not known and agent is not self._given.get(name):
            raise ConfigError(f"this app has another agent that is named {name!r}: give that one, or its name")
        return known

    def _no_agent(self, name: str) -> str:
        return f"there is no agent {name!r}; this app has: {', '.join(sorted(self.agents)) or 'none'}"


_open: "weakref.WeakSet[App]" = weakref.WeakSet()


def diagnostics(*, detailed: bool = False) -> dict[str, Any]:
    """How this process is: a status with reason codes, and figures beside their limits.

    Cheap, without secrets, from any thread, with or without a running event loop; never raises. `detailed` is for
    operators: it names chats, tools and the stacks of what held up the event loop.
    """
    return diagnose(list(_open), __version__, detailed=detailed)


class _RunningWorker(AbstractAsyncContextManager[Worker]):
    """A worker for as long as a block lasts, with the app open around it."""

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


def _holds_keys(file: str, secrets: Secrets) -> bool:
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return secrets.taken_out(text) != text


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


def check_budgets(budgets: Budgets) -> bool:
    """Whether any of them is on cost. Raises ConfigError for one that cannot be."""
    try:
        zone_of(budgets.zone)
    except HoldfastError as error:
        raise ConfigError(f"budgets: {error}") from error
    for limits in budgets.all_limits:
        if limits.problem is not None:
            raise ConfigError(f"budgets: {limits.problem}")
    if budgets.slice_tokens < 1 or budgets.keep_days < 1:
        raise ConfigError("budgets: slice_tokens and keep_days are at least 1")
    return any(limits.needs_prices for limits in budgets.all_limits)


def _store_options(config: Config) -> StoreOptions:
    return StoreOptions(lease_ttl_ms=int(config.lease_ttl_s * 1000), deadline_s=config.store_deadline_s)
