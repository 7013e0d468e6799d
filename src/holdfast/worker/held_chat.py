"""The chat that a runner holds: what it knows of it, how it writes to it, and why it must let go.

Everything that a runner does goes through here: one snapshot, one commit at a time, one stop with one cause. It holds
nothing that the store does not have, but for what runs at this moment.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.config import Permissions
from holdfast.core import commands as cmd
from holdfast.core.budgets import NOTHING, Estimate
from holdfast.core.codec import decode_object, storable
from holdfast.core.decide import exhausted_budget, seconds_left
from holdfast.core.journal import Traced, TraceSource
from holdfast.core.records import STOPS, Cause, Failure, File, Frozen, Snapshot, State
from holdfast.core.spending import NO_BILL, Bill, SpendingKind, Spent
from holdfast.errors import ConfigError, NotFound, OwnershipLost, RefusedError, StaleWriter, StoreError, WentBack
from holdfast.hooks import Change, Hook, HookFailed, Hooks, Point, RunContext, unchanged
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.models.base import Model, Request
from holdfast.models.calls import Caller
from holdfast.models.choice import KeyedModel, ModelContext, ModelFunction, checked, is_function, label_of
from holdfast.models.resolve import Models
from holdfast.redaction import Secrets
from holdfast.stops import StopSignal
from holdfast.store.contract import Store
from holdfast.system.clock import Clock
from holdfast.system.processes import Children
from holdfast.telemetry import OTHER, Durations
from holdfast.tools import results
from holdfast.tools.base import Tool
from holdfast.tools.outside import declared_tool
from holdfast.tools.permissions.decision import ALLOWED, Decision
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tracebacks import traceback_text
from holdfast.turn_spans import TurnSpans
from holdfast.worker.chat_memory import ChatMemory
from holdfast.worker.chronicler import Chronicler
from holdfast.worker.compaction.summaries import CompactionFigures
from holdfast.worker.deltas import DeltaFlusher
from holdfast.worker.draws import WAIT_S_MAX, BudgetReached, Drawn, Draws
from holdfast.worker.history_cache import HistoryRoom, Moved
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.runner_spans import RunnerSpans
from holdfast.worker.skills import HeldSkills
from holdfast.worker.titles import Titles
from holdfast.worker.tool_body import Body, SyncPool
from holdfast.worker.tool_servers import ToolServers

log = logger("holdfast.runner")

COMMIT_RETRY_S_MAX = 2.0
TRACES_MAX = 8  # that wait for a commit
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
    chronicler: Chronicler
    compactions: CompactionFigures
    clock: Clock
    trusted: Callable[[], bool]  # may this worker still act?
    commits: Durations
    misses: Misses
    outcomes: Outcomes
    turn_spans: TurnSpans
    history_limit: int
    histories: HistoryRoom
    children: Children | None  # None only where nothing guards them
    secrets: Secrets  # what must not reach the journal
    tool_servers: ToolServers
    permissions: Permissions | None  # of the app
    draws: Draws


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
        self.history.cut_results(agent.limits.result_chars)
        self.spans = RunnerSpans(shared.turn_spans, shared.secrets, self.history)
        self.stop: StopSignal[Cause] = StopSignal()
        self.draining = False
        self.lost = False  # the chat is not ours any more: whatever else was asked for, nothing is to be done
        self.changed = asyncio.Event()  # something may be there to do
        self.missed = 0  # steps in a row that came to nothing
        self.behind = False  # another writer changed the chat: look before deciding
        self.bodies: dict[str, Body] = {}  # of calls, by id, while they run
        self._chosen: dict[ModelFunction, Model] = {}  # by functions of the agent, in one turn
        self._chosen_in: tuple[int, int] | None = None
        self.hooks = (*shared.plugins, *agent.hooks)
        self._hooked = {hook.point for hook in self.hooks}
        self.rulebook = rulebook_of(shared.permissions, agent.permissions, agent.name)
        self.memory: ChatMemory | None = None
        if agent.memory is not None:
            chat_of = lambda: self.snapshot.chat  # noqa: E731
            self.memory = ChatMemory(shared.store, agent.memory, shared.secrets, chat_of)
        self.deps: Any = None
        self._deps_made = agent.deps is None
        # By turn, epoch, terms, and the skills that people called in the turn.
        self._active: tuple[tuple[int, int, int, frozenset[str]], dict[str, Tool]] | None = None
        # All that were ever active: what was planned can be begun.
        self.known_tools = {results.NAME: results.READER, **agent.tools}
        self.skills = HeldSkills(self)
        self._traces: list[Traced] = []  # that go into the journal with the next commit
        self._own_tools = set(agent.tools)  # of its agent and of the agent's servers
        self._accounts: tuple[str, ...] | None = None  # of chats above, that what its calls spend is entered in
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
    def unattended(self) -> bool:
        """No person is there to be asked."""
        return self.rulebook.mode == "unattended" or bool(self.metadata.get("unattended"))

    def decision_at_once(self, tool: Tool) -> Decision | None:
        """That every call of it is allowed, whatever its arguments are, and nothing has to be looked up to say so.
        None: each is to be judged.
        """
        if self.rulebook.is_empty:  # a tool that is confined keeps to its bounds by itself
            return ALLOWED if tool.acts is None or tool.whereabouts.confined else None
        decision = self.rulebook.judge(tool.acts_of({}), tool.whereabouts) if tool.acts is None else None
        return decision if decision is not None and decision.ruling == "allow" else None

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

    def log_fields(self) -> dict[str, str | int | None]:
        """What every log line of its runner says."""
        chat = self.snapshot.chat
        return {"chat": chat.id, "agent": chat.agent, "turn": chat.turn, "fence": chat.fence}

    def keep_trace(self, source: TraceSource, name: str, error: str, text: str, call_id: str | None = None) -> None:
        """Of an exception, for operators: into the journal with the next commit, if there is one. The log has it."""
        clean = self.shared.secrets.taken_out_of_log
        self._traces = self._traces[-TRACES_MAX + 1 :]
        self._traces.append(
            Traced(
                source=source,
                name=name,
                error=storable(clean(error)),
                text=storable(clean(text)),
                turn=self.snapshot.chat.turn,
                call_id=call_id,
            )
        )

    def note_raised(self, label: str, error: BaseException) -> None:
        """By a hook, or by what stands for one."""
        self.keep_trace("hook", label.removeprefix("hook "), type(error).__name__, traceback_text(error))

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
        self.stop = StopSignal()

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
            self.interrupt(seen.stop_cause)
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
                log.info("a chat is not this runner's any more", extra={"action": "chat_lost", "error": str(error)})
                self.interrupt(Cause.LEASE_LOST)
                return None
            if self.snapshot is known:  # else a body committed meanwhile, and the look may be older than that
                return seen

    def heed_stop(self) -> None:
        if self.snapshot.chat.state is State.STOPPING:
            if not self.stop:
                self.interrupt(self.snapshot.stop_cause)
        elif self.stop.cause in (*STOPS, Cause.SUPERSEDED):
            self.stop = StopSignal()  # that stop is over: the turn it was to end failed

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
        """The agent's, what it finds in its folder, what it remembers, then those of the turn."""
        asked = await self.history.terms(self.snapshot)
        told = await self.skills.told()
        remembered = None if self.memory is None else await self.memory.instructions()
        pieces = (self.agent.instructions, told, remembered, asked.terms.instructions if asked is not None else None)
        return "\n\n".join(piece for piece in pieces if piece)

    async def commit(self, *commands: cmd.Command, patience_s: float | None = None) -> Snapshot:
        """Durable when it returns. A failing store is asked again, under the same commit id, while the lease is
        trusted; then its error goes up as itself. Raises Moved when the chat is not what the commands were made for.

        `patience_s`: for what the turn can do without; the error goes up after so long.
        """
        commit_id = new_id("commit")
        commands, billed = tuple(without_secrets(command, self.shared.secrets) for command in commands), False
        delay_s = 0.05
        give_up_at = None if patience_s is None else asyncio.get_running_loop().time() + patience_s
        async with self._commits:
            worked_ms = self.worked_ms
            if traces := tuple(self._traces):
                noted = [cmd.Note(by=self.by, topic="trace", trace=trace) for trace in traces]
                commands = (*noted, *commands)
            commands = (_worked(commands[0], worked_ms), *commands[1:])
            while True:
                mine = self.snapshot.chat.version
                try:
                    if not billed:
                        commands, billed = await self._billed(commands), True
                    after = await self._timed_commit(commands, commit_id)
                    before, self.snapshot = self.snapshot, after
                    self.missed = 0
                    if traces:
                        self._traces = [trace for trace in self._traces if trace not in traces]
                    self.shared.outcomes.committed(before, after, commands, self.tool_label)
                    self._counted_ms += worked_ms
                    if settled := _reservations(commands):
                        await self.shared.draws.settled(settled)
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
                    extra = {"action": "commit_failed", "error": f"{error.code}: {error}"}
                    log.warning("commit failed", extra=extra)
                    if not self.shared.trusted() or self.stop.cause is Cause.LEASE_LOST:
                        raise
                    if give_up_at is not None and asyncio.get_running_loop().time() >= give_up_at:
                        raise
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, COMMIT_RETRY_S_MAX)

    async def _timed_commit(self, commands: Sequence[cmd.Command], commit_id: str) -> Snapshot:
        commits, began = self.shared.commits, time.perf_counter()
        try:
            return await self.shared.store.commit(self.snapshot, commands, commit_id)
        except BaseException:
            commits.failed += 1
            raise
        finally:
            commits.add(time.perf_counter() - began)

    # --- budgets ----------------------------------------------------------------------------------------

    async def enter_spending(self, kind: SpendingKind, parts: Sequence[Spent], drawn: Sequence[Drawn]) -> None:
        """What no commit tells of. Where the lease is not trusted any more, others may own the chat: then no store is
        waited for.
        """
        draws, chat = self.shared.draws, self.snapshot.chat
        if self.shared.trusted():
            await draws.enter(chat, kind, parts, drawn)
        else:
            draws.leave_all(chat, kind, parts, drawn)

    async def draw(self, model: Model, request: Request, took: Estimate = NOTHING) -> Drawn:
        """What an attempt may use, reserved. `took`: attempts before it, of which the same commit will tell. Raises
        BudgetReached.
        """
        shared, agent = self.shared, self.agent
        left_s = seconds_left(self.snapshot, agent.limits, self.worked_ms)
        try:
            drawn = await shared.draws.draw(
                self.snapshot.chat,
                agent,
                lambda: shared.draws.estimate(agent, model.name, request, shared.models.facts),
                shared.trusted,
                took=took,
                wait_s=WAIT_S_MAX if left_s is None else max(left_s, 0.01),
            )
        except BudgetReached as reached:
            # The time of the turn may have run out while it waited: then that is what ended it.
            late = exhausted_budget(self.snapshot, agent.limits, self.worked_ms)
            raise reached if late is None else BudgetReached(late) from reached
        self._accounts = drawn.accounts
        return drawn

    async def _billed(self, commands: tuple[cmd.Command, ...]) -> tuple[cmd.Command, ...]:
        """What costs is of this day, and on the accounts of the chats above: those of the last draw, or where another
        worker made that one, those that there are now.
        """
        if not any(map(_lacks_a_bill, commands)):
            return commands
        if self._accounts is None:
            self._accounts = await self.shared.store.budgets.accounts_above(self.snapshot.chat.purses)
        bill = Bill(day=self.shared.draws.day(), accounts=self._accounts)
        return tuple(replace(command, bill=bill) if _lacks_a_bill(command) else command for command in commands)

    async def keep_files(self, files: Sequence[File]) -> tuple[File, ...]:
        """As the message has them that names them. The bytes are durable when it returns; a failing store is asked
        again, as for a commit. Raises as `keep_all`.
        """
        delay_s = 0.05
        while True:
            try:
                return await self.shared.store.files.keep_all(self.snapshot.chat.id, files)
            except StoreError as error:
                extra = {"action": "files_not_kept", "error": f"{error.code}: {error}"}
                log.warning("the files of a result could not be kept", extra=extra)
                if not self.shared.trusted() or self.stop.cause is Cause.LEASE_LOST:
                    raise
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, COMMIT_RETRY_S_MAX)

    def _heed_others(self, seen: Snapshot) -> None:
        """Another writer came before our commit, which brought it here: `notice` would take it for known."""
        self.changed.set()
        if seen.chat.state is State.STOPPING:
            self.interrupt(seen.stop_cause)

    def miss(self, moved: Moved) -> None:
        """A step came to nothing: the chat was not what it was made for. The next one is made for what is there, and
        gets through, unless something is wrong that looking does not mend: then the chat is better left. Raises
        StaleWriter after so many in a row.
        """
        self.missed += 1
        self.shared.misses.count += 1
        if self.missed >= MISSES_MAX:
            text = f"{self.missed} steps in a row came to nothing, the last because: {moved}"
            extra = {"action": "steps_missed", "error": text}
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

    async def model(self, model: str | Model | ModelFunction) -> Model:
        """A function is asked once in each turn. Raises TurnCannotGoOn if it gives no model, Moved if a stop came
        first.
        """
        if isinstance(model, str):
            return self.shared.models.get(model)
        return await self._chosen_by(model) if is_function(model) else cast(Model, model)

    async def _chosen_by(self, choose: ModelFunction) -> Model:
        place = self.snapshot.chat.turn, self.snapshot.chat.epoch
        if self._chosen_in != place:
            self._chosen_in, self._chosen = place, {}
        if choose not in self._chosen:
            self._chosen[choose] = await self._ask_for_model(choose)
        return self._chosen[choose]

    async def _ask_for_model(self, choose: ModelFunction) -> Model:
        chat, label = self.snapshot.chat, f"the model's {label_of(choose)}"
        about = ModelContext(chat_id=chat.id, agent=chat.agent, owner=chat.owner, metadata=self.metadata)
        with self.stop.scope():  # a stop does not wait for a function that hangs
            answer = await self.shared.hooks.choose(label, choose, about, self.note_raised)
            return self._taken(answer, label)
        raise Moved("stopped before a model was chosen")

    def _taken(self, answer: Any, label: str) -> Model:
        if isinstance(answer, HookFailed):
            raise TurnCannotGoOn(Failure(code="model_not_chosen", message=answer.error))
        try:
            choice = checked(answer, label)
            if isinstance(choice, KeyedModel):
                self.shared.secrets.add_chosen("key of a chosen model", choice.key)
            model = self.shared.models.chosen(choice) if isinstance(choice, str | KeyedModel) else choice
            self.agent.check_price(model.name, self.shared.models.facts)
        except ConfigError as error:
            text = f"{label} chose none that can be used: {error}"
            raise TurnCannotGoOn(Failure(code="model_not_chosen", message=text)) from error
        return model

    async def tools(self) -> dict[str, Tool]:
        """What is active in this turn: the agent's tools, narrowed by the agent, the chat and the turn's terms, and
        what the client declared for the chat or the turn. Raises Moved if a stop came first.
        """
        chat = self.snapshot.chat
        if self._active is not None and self._active[0][:2] == (chat.turn, chat.epoch) and self.snapshot.open_calls:
            return self._active[
                1
            ]  # as the response that asked for these was offered them; new terms are for the next
        asked = await self.history.terms(self.snapshot)
        turn = chat.turn, chat.epoch, asked.pos if asked is not None else -1, await self.skills.called()
        if self._active is None or self._active[0] != turn:
            limit = asked.terms.active_tools if asked is not None else None
            served = {**await self._served(), **await self.skills.tools()}
            declared = (*chat.client_tools, *(asked.terms.client_tools if asked is not None else ()))
            # A deploy, or a server, may bring a tool of the same name: then that one is meant, not the client's.
            own = self._own_tools = {*self.agent.tools, *served}
            theirs = {tool.name: declared_tool(tool) for tool in declared if tool.name not in own}
            self._active = turn, {**self.agent.offered(chat.active_tools, limit, served=served), **theirs}
            self.known_tools.update(self._active[1])
        return self._active[1]

    async def offered_tools(self) -> dict[str, Tool]:
        """As the model is told of them: with what reads the rest of a long result, once there is one."""
        active = await self.tools()
        return {results.NAME: results.READER, **active} if active and self.history.leaves_out else active

    async def runnable_tools(self) -> dict[str, Tool]:
        """The active ones, with what may have been offered to the response that asks: its worker may be another."""
        return {results.NAME: results.READER, **await self.tools()}

    def tool_label(self, name: str) -> str:
        """In figures: what a client declared, or a model made up, has no name there."""
        return name if name in self._own_tools or name == results.NAME else OTHER

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
        if point not in self._hooked:
            return []
        called = [hook.label for hook in self.hooks if hook.point == point]
        with self.spans.hooks(point, called) as span:
            answers = await self.shared.hooks.run(self.hooks, point, about, self._context, change, self.note_raised)
            if any(isinstance(answer, HookFailed) for answer in answers):
                span.failed("hook_failed")
        return answers

    async def make_deps(self) -> None:
        """Once per runner, before the first model call or tool."""
        if self._deps_made:
            return
        assert self.agent.deps is not None
        made = await self.shared.hooks.make(self.agent.deps, self._context, self.note_raised)
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


def _lacks_a_bill(command: cmd.Command) -> bool:
    return getattr(command, "bill", None) is NO_BILL and bool(command.tokens or command.cost)  # type: ignore[attr-defined]


def _reservations(commands: Sequence[cmd.Command]) -> list[str]:
    return [id for command in commands for id in getattr(command, "bill", NO_BILL).reservations]


def _worked(command: cmd.Command, ms: int) -> cmd.Command:
    if not isinstance(command, cmd.RunnerCommand):
        return command
    return replace(command, by=replace(command.by, worked_ms=ms))


def without_secrets(command: cmd.Command, secrets: Secrets) -> cmd.Command:
    """What tools, hooks and errors say is cleaned for journal and model; what people and models say is theirs."""
    clean = secrets.taken_out
    match command:
        case cmd.Outcome():
            files = tuple(replace(file, uri=clean(file.uri)) for file in command.files)
            return replace(command, content=clean(command.content), files=files)
        case cmd.Refuse():
            return replace(command, content=clean(command.content))
        case cmd.AskApproval():
            told = None if command.arguments is None else clean(command.arguments)
            # A rule without its secret would be another one.
            offer = command.offer if all(clean(rule) == rule for rule in command.offer) else ()
            return replace(command, question=clean(command.question), told=told, offer=offer)
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
            message, advice = clean(failure.message), clean(failure.advice)
            return replace(command, error=replace(failure, message=message, chain=chain, advice=advice))
    return command
