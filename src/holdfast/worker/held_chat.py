"""The chat that a runner holds: what it knows of it, how it writes to it, and why it must let go.

Everything that a runner does goes through here: one snapshot, one commit at a time, one stop with one cause. It holds
nothing that the store does not have, but for what runs at this moment.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_object
from holdfast.core.records import Cause, Failure, Frozen, Snapshot, State
from holdfast.errors import NotFound, OwnershipLost, RefusedError, StaleWriter, StoreError, WentBack
from holdfast.hooks import Change, Hook, HookFailed, Hooks, Point, RunContext, unchanged
from holdfast.ids import new_id
from holdfast.models.base import Model
from holdfast.models.calls import Caller
from holdfast.models.resolve import Models
from holdfast.redaction import Secrets
from holdfast.stops import Stop
from holdfast.store.contract import Store
from holdfast.system.clock import Clock
from holdfast.system.processes import Children
from holdfast.telemetry import Durations, Traces
from holdfast.tools.base import Tool
from holdfast.tools.outside import declared_tool
from holdfast.worker.compaction.summaries import CompactionFigures
from holdfast.worker.deltas import DeltaFlusher
from holdfast.worker.history_cache import HistoryRoom, Moved
from holdfast.worker.titles import Titles
from holdfast.worker.tool_body import Body, SyncPool
from holdfast.worker.tool_servers import ToolServers

log = logging.getLogger("holdfast.runner")

COMMIT_RETRY_S_MAX = 2.0
MISSES_MAX = 8  # a stop, an edit or a message makes one; each then gets through


class Misses:
    """Steps of all runners of a worker that came to nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.left = 0  # chats that were left because of them


class Shared(Frozen):
    """What all runners of a worker use."""

    store: Store
    worker: str
    caller: Caller
    models: Models
    deltas: DeltaFlusher
    sync: SyncPool
    hooks: Hooks
    plugins: tuple[Hook, ...]  # hooks of every agent
    titles: Titles
    compactions: CompactionFigures
    clock: Clock
    trusted: Callable[[], bool]  # may this worker still act?
    commits: Durations
    misses: Misses
    traces: Traces
    history_limit: int
    histories: HistoryRoom
    children: Children | None  # None only where nothing guards them
    secrets: Secrets  # what must not reach the journal
    tool_servers: ToolServers


class TurnCannotGoOn(Exception):
    """And trying again would not help. `failure` tells the whole story."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ContextTooLong(TurnCannotGoOn):
    """The provider did not take the request: it is too long. A shorter one might do."""


class HeldChat:
    def __init__(self, shared: Shared, agent: Agent, snapshot: Snapshot) -> None:
        self.shared = shared
        self.agent = agent
        self.snapshot = snapshot
        self.chat_id = snapshot.chat.id
        self.history = shared.histories.take(shared.store, self.chat_id, shared.history_limit)
        self.stop: Stop[Cause] = Stop()
        self.draining = False
        self.lost = False  # the chat is not ours any more: whatever else was asked for, nothing is to be done
        self.changed = asyncio.Event()  # something may be there to do
        self.missed = 0  # steps in a row that came to nothing
        self.behind = False  # another writer changed the chat: look before deciding
        self.bodies: dict[str, Body] = {}  # of calls, by id, while they run
        self.hooks = (*shared.plugins, *agent.hooks)
        self.deps: Any = None
        self._deps_made = agent.deps is None
        self._active: tuple[tuple[int, int], dict[str, Tool]] | None = None  # by turn and epoch
        self.known_tools = dict(agent.tools)  # all that were ever active: what was planned can be begun
        self._commits = asyncio.Lock()
        self._counted_ms = shared.clock.boot_ms()  # up to here its work is counted in the turn's time

    @property
    def holds(self) -> bool:
        """As far as it knows: the chat is this worker's, and there is something to do."""
        chat = self.snapshot.chat
        return chat.worker == self.shared.worker and chat.state in (State.RUNNING, State.STOPPING)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        return decode_object(self.snapshot.chat.metadata, "chat's metadata")

    @property
    def by(self) -> cmd.Writer:
        chat = self.snapshot.chat
        return cmd.Writer(self.shared.worker, chat.fence, chat.epoch)

    @property
    def now(self) -> int:
        return self.shared.clock.wall_ms()

    @property
    def worked_ms(self) -> int:
        """Since the last commit, by a clock that cannot be set."""
        return self.shared.clock.boot_ms() - self._counted_ms

    @property
    def span_of_chat(self) -> dict[str, str | int]:
        chat = self.snapshot.chat
        return {"gen_ai.conversation.id": chat.id, "holdfast.turn": chat.turn, "holdfast.fence": chat.fence}

    # --- letting go -------------------------------------------------------------------------------------

    def interrupt(self, cause: Cause) -> None:
        """End what runs, now. The first cause stays, but a chat that is lost is left whatever else was to be done."""
        self.lost = self.lost or cause is Cause.LEASE_LOST
        self.draining = self.draining or cause is Cause.SHUTDOWN
        if self.stop.set(cause):
            self.changed.set()
            for body in self.bodies.values():
                body.cancel(cause)

    def drain(self) -> None:
        """Let the step finish; then the chat is released."""
        self.draining = True
        self.changed.set()

    def leave(self) -> None:
        """There is nothing to do for this runner: whatever else was asked for, it goes."""
        self.lost = True

    def end_stop(self) -> None:
        """The stop is carried out: what comes next is not ended by it."""
        self.stop = Stop()

    def check_trust(self) -> bool:
        """May anything still be begun?"""
        if not self.shared.trusted():
            self.interrupt(Cause.LEASE_LOST)
        return not self.stop and not self.lost

    # --- bodies of calls ----------------------------------------------------------------------------------

    def add_body(self, call_id: str, body: Body) -> None:
        """From now on an interruption ends it too."""
        self.bodies[call_id] = body

    def drop_body(self, call_id: str) -> None:
        del self.bodies[call_id]

    def note_body_end(self, *, known: bool) -> None:
        """`known`: the snapshot has its outcome. Else look before deciding."""
        self.behind = self.behind or not known
        self.changed.set()

    # --- what others did --------------------------------------------------------------------------------

    async def notice(self) -> None:
        """A look at what others did, while something runs. What it finds is taken between two steps."""
        seen = await self._seen()
        if seen is None or seen.chat.stamp == self.snapshot.chat.stamp:
            return
        self.behind = True
        if seen.chat.worker != self.snapshot.chat.worker:
            self.interrupt(Cause.LEASE_LOST)
        elif seen.chat.state is State.STOPPING:
            self.interrupt(seen.chat.cause or Cause.USER)
        else:
            self.changed.set()

    async def look_again(self) -> None:
        """Not beside a commit of a body: what it brings and what the look brings would overtake one another."""
        async with self._commits:
            while True:
                try:
                    self.behind = False
                    seen = await self._seen()
                    break
                except StoreError:
                    if not self.shared.trusted():
                        raise
                    await asyncio.sleep(0.1)
            if seen is not None:
                self.snapshot = seen
        if seen is not None:
            self.heed_stop()

    async def _seen(self) -> Snapshot | None:
        """The chat as it is, where all that we know is in its past. Else it is lost: deleted, another worker's, or of
        a database that went back, and whatever we would do next would build on what never happened.
        """
        while True:
            known = self.snapshot
            try:
                seen = await self.shared.store.follow_chat(known)
            except (OwnershipLost, NotFound) as error:
                extra = {"action": "chat_lost", "chat": self.chat_id, "fence": known.chat.fence, "error": str(error)}
                log.info("a chat is not this runner's any more", extra=extra)
                self.interrupt(Cause.LEASE_LOST)
                return None
            if self.snapshot is known:  # else a body committed meanwhile, and the look may be older than that
                return seen

    def heed_stop(self) -> None:
        if self.snapshot.chat.state is State.STOPPING:
            if not self.stop:
                self.interrupt(self.snapshot.chat.cause or Cause.USER)
        elif self.stop.cause in (Cause.USER, Cause.SUPERSEDED):
            self.stop = Stop()  # that stop is over: the turn it was to end failed

    async def await_change(self) -> None:
        """Until a body ends, or a client or a person does something. What bodies of ours did, our snapshot shows."""
        with self.stop.scope():
            await self.changed.wait()
        self.changed.clear()
        if self.stop.cause in (Cause.SHUTDOWN, Cause.LEASE_LOST):
            return
        if self.behind:
            await self.look_again()
        else:
            self.heed_stop()

    # --- writing ----------------------------------------------------------------------------------------

    async def instructions(self) -> str:
        """The agent's, then those of the message that began the turn."""
        opener = await self.history.turn_opener(self.snapshot)
        pieces = (self.agent.instructions, opener.instructions if opener is not None else None)
        return "\n\n".join(piece for piece in pieces if piece)

    async def commit(self, *commands: cmd.Command, patience_s: float | None = None) -> Snapshot:
        """Durable when it returns. A failing store is asked again, under the same commit id, while the lease is
        trusted; then its error goes up as itself. Raises Moved when the chat is not what the commands were made for.

        `patience_s`: for what the turn can do without; the error goes up after so long.
        """
        commit_id = new_id("commit")
        commands = tuple(without_secrets(command, self.shared.secrets) for command in commands)
        delay_s = 0.05
        give_up_at = None if patience_s is None else asyncio.get_running_loop().time() + patience_s
        async with self._commits:
            worked_ms = self.worked_ms
            commands = (_worked(commands[0], worked_ms), *commands[1:])
            while True:
                mine = self.snapshot.chat.version
                try:
                    with self.shared.commits.timed():
                        after = await self.shared.store.commit(self.snapshot, commands, commit_id)
                    self.snapshot = after
                    self.missed = 0
                    self._counted_ms += worked_ms
                    if after.chat.version > mine + len(commands):
                        self._heed_others(after)
                    return after
                except WentBack as error:
                    self.interrupt(Cause.LEASE_LOST)
                    raise Moved(str(error)) from error
                except (StaleWriter, NotFound) as error:
                    raise Moved(str(error)) from error
                except RefusedError as error:
                    await self._check_moved(error)
                    raise Moved(str(error)) from error
                except StoreError as error:
                    log.warning(
                        "commit failed",
                        extra={"action": "commit_failed", "chat": self.chat_id, "error": f"{error.code}: {error}"},
                    )
                    if not self.shared.trusted() or self.stop.cause is Cause.LEASE_LOST:
                        raise
                    if give_up_at is not None and asyncio.get_running_loop().time() >= give_up_at:
                        raise
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, COMMIT_RETRY_S_MAX)

    def _heed_others(self, seen: Snapshot) -> None:
        """Another writer came before our commit, which brought it here: `notice` would take it for known."""
        self.changed.set()
        if seen.chat.state is State.STOPPING:
            self.interrupt(seen.chat.cause or Cause.USER)

    def miss(self, moved: Moved) -> None:
        """A step came to nothing: the chat was not what it was made for. The next one is made for what is there, and
        gets through, unless something is wrong that looking does not mend: then the chat is better left. Raises
        StaleWriter after so many in a row.
        """
        self.missed += 1
        self.shared.misses.count += 1
        if self.missed >= MISSES_MAX:
            text = f"{self.missed} steps in a row came to nothing, the last because: {moved}"
            extra = {"action": "steps_missed", "chat": self.chat_id, "fence": self.snapshot.chat.fence, "error": text}
            log.error("a chat is left: its steps come to nothing", extra=extra)
            self.shared.misses.left += 1
            self.lost = True
            raise StaleWriter(text) from moved

    async def _check_moved(self, refused: RefusedError) -> None:
        """A refusal by a chat that no other writer has touched would come again and again, paid for each time."""
        if refused.reason == "family_full":
            return  # by others, since it was counted: the next count answers the call
        seen = await self.shared.store.read_chat(self.chat_id)
        if seen.chat.stamp == self.snapshot.chat.stamp:
            raise TurnCannotGoOn(Failure(code="refused", message=str(refused))) from refused

    # --- what the agent brings --------------------------------------------------------------------------

    def model(self, model: str | Model) -> Model:
        return self.shared.models.get(model) if isinstance(model, str) else model

    async def tools(self) -> dict[str, Tool]:
        """What is active in this turn: the agent's tools, narrowed by the agent, the chat and the turn's opener, and
        what the client declared for the chat or the turn. Raises Moved if a stop came first.
        """
        chat = self.snapshot.chat
        turn = chat.turn, chat.epoch
        if self._active is None or self._active[0] != turn:
            opener = await self.history.turn_opener(self.snapshot)
            limit = opener.active_tools if opener is not None else None
            served = await self._served()
            declared = (*chat.client_tools, *(opener.client_tools if opener is not None else ()))
            # A deploy, or a server, may bring a tool of the same name: then that one is meant, not the client's.
            own = {*self.agent.tools, *served}
            theirs = {tool.name: declared_tool(tool) for tool in declared if tool.name not in own}
            self._active = turn, {**self.agent.offered(chat.active_tools, limit, served=served), **theirs}
            self.known_tools.update(self._active[1])
        return self._active[1]

    def look_for_tools(self) -> None:
        """A new step: what tool servers offer may have changed."""
        if self.agent.servers:
            self._active = None

    async def _served(self) -> dict[str, Tool]:
        if not self.agent.servers:
            return {}
        with self.stop.scope():  # a stop does not wait for a server that was never reached
            return await self.shared.tool_servers.tools(self.agent)
        # What it offers is unknown: a runner that went on without its tools would refuse calls that a person has
        # approved.
        raise Moved("stopped while a tool server was not up yet")

    async def run_hooks(self, point: Point, about: Any, change: Change = unchanged) -> list[Any]:
        return await self.shared.hooks.run(self.hooks, point, about, self._context, change) if self.hooks else []

    async def make_deps(self) -> None:
        """Once per runner, before the first model call or tool."""
        if self._deps_made:
            return
        assert self.agent.deps is not None
        made = await self.shared.hooks.make(self.agent.deps, self._context)
        if isinstance(made, HookFailed):
            text = f"the agent's deps could not be made: {made.error}"
            raise TurnCannotGoOn(Failure(code="deps_failed", message=text))
        self.deps, self._deps_made = made, True

    @property
    def _context(self) -> RunContext:
        chat = self.snapshot.chat
        return RunContext(
            chat_id=chat.id,
            agent=chat.agent,
            owner=chat.owner,
            metadata=self.metadata,
            turn=chat.turn,
            step=chat.step,
            deps=self.deps,
        )


def _worked(command: cmd.Command, ms: int) -> cmd.Command:
    if not isinstance(command, cmd.RunnerCommand):
        return command
    return replace(command, by=replace(command.by, worked_ms=ms))


def without_secrets(command: cmd.Command, secrets: Secrets) -> cmd.Command:
    """What tools, hooks and errors say is cleaned for journal and model; what people and models say is theirs."""
    clean = secrets.taken_out
    match command:
        case cmd.Outcome() | cmd.Refuse():
            return replace(command, content=clean(command.content))
        case cmd.AskApproval():
            told = None if command.arguments is None else clean(command.arguments)
            return replace(command, question=clean(command.question), told=told)
        case cmd.Delegate():
            question, told = (text and clean(text) for text in (command.question, command.arguments))
            return replace(command, question=question, told=told)
        case cmd.StartCalls() if command.arguments:
            return replace(command, told={call_id: clean(text) for call_id, text in command.arguments.items()})
        case cmd.Note():
            return replace(command, text=clean(command.text))
        case cmd.AttemptLost() | cmd.FinishCompaction():
            return replace(command, error=clean(command.error))
        case cmd.Fail():
            failure = command.error
            chain = tuple(clean(line) for line in failure.chain)
            return replace(command, error=replace(failure, message=clean(failure.message), chain=chain))
    return command
