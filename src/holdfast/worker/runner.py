"""A runner drives one claimed chat: decide, act, commit, until there is nothing left to do.

It holds no rule that belongs to the core and no state that the store does not have: it can be dropped at any instant,
and another one goes on from the snapshot. Work is ended with a cause, and the cause decides what is committed:

    user, superseded   the chat is `stopping`: end what runs, commit the partial response and an answer for every
                       open call, in one commit made outside of what was cancelled
    shutdown           commit nothing of the step that was cut; release the chat, which stays `running`
    lease_lost         commit nothing at all
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import events as ev
from holdfast.core.codec import decode_delta, storable
from holdfast.core.decide import (
    AskModel,
    AwaitBodies,
    CompactNow,
    EndStop,
    EndTurn,
    Leave,
    ParkChat,
    RunCalls,
    next_action,
)
from holdfast.core.journal import Delta
from holdfast.core.records import (
    Call,
    CallState,
    Cause,
    Failure,
    Frozen,
    Message,
    Role,
    Snapshot,
    State,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    attempt_id,
    result_message,
)
from holdfast.errors import (
    HoldfastError,
    ModelCallFailed,
    OutputInvalid,
    OwnershipLost,
    RefusedError,
    StaleWriter,
    StoreError,
    UnknownRecord,
)
from holdfast.ids import new_id
from holdfast.models.assemble import parts_of_deltas
from holdfast.models.base import Model, Request, Usage
from holdfast.models.calls import Caller, Completed, FailedAttempt, Observer, Stopped, failure_of
from holdfast.models.resolve import Models
from holdfast.stops import Stop
from holdfast.store.base import Store
from holdfast.store.bell import control_topic
from holdfast.store.cursor import Cursor
from holdfast.telemetry import Durations, Span, Traces
from holdfast.tools.base import Tool
from holdfast.tools.context import ToolContext
from holdfast.worker.agents import Agent, tool_specs
from holdfast.worker.bodies import Body, SyncPool
from holdfast.worker.deltas import DeltaFlusher, Stream
from holdfast.worker.hooks import Arguments, Ask, Change, Hook, HookFailed, Hooks, Point, RunContext, Veto, unchanged
from holdfast.worker.output import REPAIRS_MAX, correction
from holdfast.worker.past import Past
from holdfast.worker.titles import Titles

log = logging.getLogger("holdfast.runner")

LOOK_INTERVAL_S = 1.0  # how often a runner looks for what no hint told it
COMMIT_RETRY_S_MAX = 2.0


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
    clock: Clock
    trusted: Callable[[], bool]  # may this worker still act?
    commits: Durations
    traces: Traces
    history_limit: int


class RunningTool(Frozen):
    """A tool's body that runs now."""

    chat_id: str
    call_id: str
    tool: str
    age_s: float
    deadline_s: float


class _Moved(Exception):
    """The chat is not what the runner thought: look again and decide again."""


class _TurnFailed(Exception):
    """This turn cannot go on, and trying again would not help."""

    def __init__(self, code: str, message: str, *chain: str) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, chain=chain)


class Runner:
    def __init__(self, shared: Shared, agent: Agent, snapshot: Snapshot) -> None:
        self._shared = shared
        self._agent = agent
        self.snapshot = snapshot
        self.chat_id = snapshot.chat.id
        self.agent = snapshot.chat.agent
        self.since = time.monotonic()
        self.stop: Stop[Cause] = Stop()
        self._draining = False
        self._lost = False  # the chat is not ours any more: whatever else was asked for, nothing is to be done
        self._attempts = 0
        self._past = Past(shared.store, self.chat_id, shared.history_limit)
        self._bodies: dict[str, Body] = {}
        self._body_tasks: set[asyncio.Task[bool]] = set()
        self._entered: set[str] = set()  # calls whose bodies began, so that they may have done something
        self._changed = asyncio.Event()
        self._behind = False  # somebody else wrote to the chat: look before deciding
        self._commits = asyncio.Lock()
        self._partial: Stopped | None = None
        self._partial_length = 0
        self._hooks = (*shared.plugins, *agent.hooks)
        self._deps: Any = None
        self._deps_made = agent.deps is None
        self._active: tuple[tuple[int, int], dict[str, Tool]] | None = None  # by turn and epoch
        self._broken: BaseException | None = None  # what kept a call's outcome from being committed
        self.abandoned = 0

    # --- for health -----------------------------------------------------------------------------------

    @property
    def history_size(self) -> int:
        return self._past.size

    def running_tools(self) -> list[RunningTool]:
        """From any thread."""
        now = time.monotonic()
        return [
            RunningTool(
                chat_id=self.chat_id,
                call_id=body.call_id,
                tool=body.tool.name,
                age_s=round(now - body.since, 3),
                deadline_s=body.tool.deadline_s,
            )
            for body in list(self._bodies.values())
        ]

    # --- from outside -------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let the step finish, then release the chat."""
        self._draining = True
        self._changed.set()

    def interrupt(self, cause: Cause) -> None:
        """End what runs, now. The first cause stays, but a chat that is lost is left whatever else was to be done."""
        self._lost = self._lost or cause is Cause.LEASE_LOST
        self._draining = self._draining or cause is Cause.SHUTDOWN
        if self.stop.set(cause):
            self._changed.set()
            for body in self._bodies.values():
                body.cancel(cause)

    # --- the loop -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the chat rests, waits, was released or was lost. Raises what the store could not do."""
        chat = self.snapshot.chat
        about = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": chat.agent, **self._span_of_chat}
        with self._shared.traces.span(f"invoke_agent {chat.agent}", about) as span:
            await self._drive()
            span.set("holdfast.state", self.snapshot.chat.state)
            span.set("holdfast.cause", self.snapshot.chat.cause)
            if self.snapshot.chat.error is not None:
                span.failed(self.snapshot.chat.error.code)

    @property
    def _span_of_chat(self) -> dict[str, str | int]:
        chat = self.snapshot.chat
        return {"gen_ai.conversation.id": chat.id, "holdfast.turn": chat.turn, "holdfast.fence": chat.fence}

    async def _drive(self) -> None:
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            while not await self._leaves():
                try:
                    await self._step()
                except _Moved as moved:
                    log.debug("moved", extra={"action": "moved", "chat": self.chat_id, "why": str(moved)})
                    await self._look_again()
                except (StoreError, OwnershipLost, UnknownRecord):
                    raise
                except Exception as error:
                    await self._give_up(error)
                    raise
        finally:
            watch.cancel()
            await self._end_bodies()
            await asyncio.wait((watch,))
        if self._broken is not None:
            raise self._broken

    async def _step(self) -> None:
        try:
            await self._act()
        except _TurnFailed as failed:
            await self._fail(failed.failure)

    async def _give_up(self, error: Exception) -> None:
        """Nobody foresaw this. The chat fails and says why; if it stayed ours, nobody would ever drive it again."""
        await self._end_bodies()
        code = error.code if isinstance(error, HoldfastError) else "internal"
        failure = Failure(code=code, message=storable(f"{type(error).__name__}: {error}"))
        with contextlib.suppress(_Moved):
            await self._commit(ev.Fail(by=self._by, error=failure))

    async def _leaves(self) -> bool:
        if self._lost:
            return True
        # A stop that is being carried out is finished first: what it cut off is in this runner's hands.
        at_a_boundary = not self._body_tasks and self.holds and self.snapshot.chat.state is State.RUNNING
        if self.stop.cause is Cause.SHUTDOWN or (self._draining and at_a_boundary):
            await self._release()
            return True
        return False

    @property
    def holds(self) -> bool:
        """As far as it knows: the chat is this worker's, and there is something to do."""
        chat = self.snapshot.chat
        return chat.worker == self._shared.worker and chat.state in (State.RUNNING, State.STOPPING)

    async def _act(self) -> None:
        if self._broken is not None:
            raise self._broken
        action = next_action(self.snapshot, self._shared.worker, self._agent.budget, self._shared.clock.wall_ms())
        match action:
            case AskModel():
                await self._ask_model()
            case RunCalls(calls=calls):
                await self._run_calls(calls)
            case AwaitBodies():
                await self._await_change()
            case ParkChat():
                await self._commit(ev.Park(by=self._by))
            case EndTurn(cause=cause, detail=detail):
                await self._commit(ev.FinishTurn(by=self._by, cause=cause, detail=detail))
                await self._turn_ended()
            case EndStop():
                await self._end_stop()
            case CompactNow():
                # Compaction comes with the models' context limits; until then the request is answered, not ignored.
                await self._commit(ev.FinishCompaction(by=self._by, error="compaction is not available yet"))
            case Leave():
                self._lost = True
            case _:
                assert_never(action)

    async def _watch(self) -> None:
        """Notices what others do to the chat: a stop, an edit, an approval, another owner."""
        with self._shared.store.bell.listen(control_topic(self.chat_id)) as listener:
            while True:
                await listener.wait(LOOK_INTERVAL_S)
                if not self._shared.trusted():
                    self.interrupt(Cause.LEASE_LOST)
                    return
                try:
                    seen = await self._shared.store.read_chat(self.chat_id)
                except StoreError:
                    continue
                self._notice(seen)

    def _notice(self, seen: Snapshot) -> None:
        chat, mine = seen.chat, self.snapshot.chat
        if chat.version <= mine.version:
            return
        self._behind = True
        if (chat.worker, chat.fence) != (mine.worker, mine.fence):
            if chat.fence > mine.fence or chat.worker is None:
                self.interrupt(Cause.LEASE_LOST)
        elif chat.state is State.STOPPING:
            self.interrupt(chat.cause or Cause.USER)
        else:
            self._changed.set()

    async def _look_again(self) -> None:
        while True:
            try:
                self._behind = False
                self._take(await self._shared.store.read_chat(self.chat_id))
                break
            except StoreError:
                if not self._shared.trusted():
                    raise
                await asyncio.sleep(0.1)
        self._heed_stop()

    def _take(self, snapshot: Snapshot) -> None:
        """A body's commit and a look may overtake one another; what is newer stays."""
        if snapshot.chat.version > self.snapshot.chat.version:
            self.snapshot = snapshot

    def _heed_stop(self) -> None:
        if self.snapshot.chat.state is State.STOPPING:
            if not self.stop:
                self.interrupt(self.snapshot.chat.cause or Cause.USER)
        elif self.stop.cause in (Cause.USER, Cause.SUPERSEDED):
            self.stop = Stop()  # that stop is over: the turn it was to end failed

    # --- commits ----------------------------------------------------------------------------------------

    @property
    def _by(self) -> ev.Writer:
        chat = self.snapshot.chat
        return ev.Writer(self._shared.worker, chat.fence, chat.epoch)

    async def _commit(self, *events: ev.Event) -> Snapshot:
        """Durable when it returns. A failing store is asked again, under the same commit id, while the lease is
        trusted; then its error goes up as itself. Raises _Moved when the chat is not what the events were made for.
        """
        commit_id = new_id("commit")
        delay_s = 0.05
        async with self._commits:
            while True:
                try:
                    with self._shared.commits.timed():
                        after = await self._shared.store.commit(self.snapshot, events, commit_id)
                    self._take(after)
                    return after
                except StaleWriter as error:
                    raise _Moved(str(error)) from error
                except RefusedError as error:
                    await self._check_moved(error)
                    raise _Moved(str(error)) from error
                except StoreError as error:
                    log.warning(
                        "commit failed",
                        extra={"action": "commit_failed", "chat": self.chat_id, "error": f"{error.code}: {error}"},
                    )
                    if not self._shared.trusted() or self.stop.cause is Cause.LEASE_LOST:
                        raise
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, COMMIT_RETRY_S_MAX)

    async def _check_moved(self, refused: RefusedError) -> None:
        """A refusal by a chat that nobody else has touched would come again and again, paid for each time."""
        seen = await self._shared.store.read_chat(self.chat_id)
        if seen.chat.version == self.snapshot.chat.version:
            raise _TurnFailed("refused", str(refused)) from refused

    async def _release(self) -> None:
        """Hand the chat over. What is still running counts as crashed; what never began is planned again."""
        await self._end_bodies()
        if not self.holds:
            return
        never_begun = tuple(
            call.id
            for call in self.snapshot.calls
            if call.state is CallState.STARTED and call.id not in self._entered
        )
        try:
            await self._commit(ev.Release(by=self._by, never_begun=never_begun))
        except _Moved:
            return

    # --- the model --------------------------------------------------------------------------------------

    async def _ask_model(self) -> None:
        await self._make_deps()
        request = await self._request()
        models = [self._model(model) for model in (self._agent.model, *self._agent.fallbacks)]
        self._partial, self._partial_length = None, self.snapshot.chat.length
        observer = _Watcher(self)
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": models[0].name, **self._span_of_chat}
        try:
            with self._shared.traces.span(f"chat {models[0].name}", about) as span:
                outcome = await self._shared.caller.call(
                    models, request, observer=observer, stop=self.stop, policy=self._agent.retry
                )
                _describe(span, outcome)
        except ModelCallFailed as error:
            await observer.close()
            await self._fail(failure_of(error))
            return
        await observer.close()
        match outcome:
            case Stopped():
                self._partial = outcome
                if outcome.cause not in (Cause.SHUTDOWN, Cause.LEASE_LOST):
                    raise _Moved("stopped")
            case Completed():
                limits = {model.name: model.context_limit for model in models}
                limit = limits.get(outcome.message.model or "") or self._agent.context_limit
                await self._take_response(outcome, observer.attempt, limit)
            case _:
                assert_never(outcome)

    def _model(self, model: str | Model) -> Model:
        return self._shared.models.get(model) if isinstance(model, str) else model

    async def _request(self) -> Request:
        messages = await self._past.messages(self.snapshot)
        if self._agent.instructions:
            system = Message(id="instructions", role=Role.SYSTEM, parts=(Text(text=self._agent.instructions),))
            messages = [system, *messages]
        settings = self._agent.settings
        if self._agent.output is not None and settings.output is None:
            settings = replace(settings, output=self._agent.output.spec)
        request = Request(
            messages=messages,
            tools=tool_specs(await self._tools()),
            settings=settings,
            deadlines=self._agent.deadlines,
        )
        for answer in await self._run_hooks("before_model", request, _as_changed):
            if isinstance(answer, Request):
                request = answer
            elif isinstance(answer, HookFailed):
                raise _TurnFailed("hook_failed", f"the model was not asked: {answer.error}")
        return request

    async def _tools(self) -> dict[str, Tool]:
        """What is active in this turn: the agent's tools, narrowed by the agent, the chat and the turn's opener."""
        chat = self.snapshot.chat
        turn = chat.turn, chat.epoch
        if self._active is None or self._active[0] != turn:
            opener = await self._past.turn_opener(self.snapshot)
            limit = opener.active_tools if opener is not None else None
            self._active = turn, self._agent.offered(chat.active_tools, limit)
        return self._active[1]

    async def _take_response(self, outcome: Completed, attempt: int, context_limit: int | None) -> None:
        await self._run_hooks("after_model", outcome)
        message = replace(
            outcome.message,
            parts=outcome.message.parts or (Text(text=""),),
            agent_fingerprint=self._agent.fingerprint,
            context_limit=context_limit,
        )
        tools = await self._tools()
        before = self.snapshot
        responded = ev.Responded(
            by=self._by,
            message=message,
            attempt=attempt,
            plans=self._plans(message, tools),
            tokens=_tokens(outcome.usage),
            cost=self._agent.cost_of(message.model or "", outcome.usage),
        )
        try:
            if message.calls:
                await self._commit(responded)
            else:
                await self._commit_with(responded, await self._what_follows(message))
        except _Moved:
            # If it was a stop, it keeps what the model had said, which is all of it.
            whole = message if outcome.message.parts else None
            self._partial = Stopped(cause=self.stop.cause or Cause.USER, message=whole, n=outcome.n)
            raise
        self._past.learn(self.snapshot, {before.chat.length: message})
        self._ask_for_title()
        await self._run_hooks("on_step", message)
        self._begin_started(message)
        if not self.holds or self.snapshot.chat.turn != before.chat.turn:
            await self._turn_ended()

    async def _what_follows(self, message: Message) -> list[ev.Event]:
        """After a response without calls: the end of the turn, or once more if it does not fit the output type."""
        end = ev.FinishTurn(by=self._by, answer=message.text)
        if self._agent.output is None:
            return [end]
        try:
            self._agent.output.read(message.text)
        except OutputInvalid as problem:
            turn = await self._past.turn(self.snapshot)
            repairs = sum(earlier.synthetic is Synthetic.INVALID_OUTPUT for earlier in turn)
            again = correction(new_id("msg"), problem, self._shared.clock.wall_ms())
            ask = ev.AskAgain(by=self._by, message=again)
            if repairs < REPAIRS_MAX:
                return [ask]
            return [ask, ev.Fail(by=self._by, error=Failure(code=problem.code, message=str(problem)))]
        return [end]

    async def _commit_with(self, responded: ev.Responded, follows: Sequence[ev.Event]) -> None:
        """With what follows, in one commit, unless something joined the turn meanwhile."""
        try:
            await self._commit(responded, *follows)
        except _Moved:
            await self._look_again()
            if self.stop:
                raise
            await self._commit(replace(responded, by=self._by))

    def _ask_for_title(self) -> None:
        model = self._agent.title_model
        if model is not None and self.snapshot.chat.title is None:
            self._shared.titles.ask(self.chat_id, [self._model(model)], self._past.opening)

    def _plans(self, message: Message, tools: dict[str, Tool]) -> tuple[ev.PlannedCall, ...]:
        free = self._agent.parallel_calls_max - len(self._bodies)
        plans: list[ev.PlannedCall] = []
        for call in message.calls:
            plans.append(self._plan(call, tools, free=free > 0))
            free -= plans[-1].start
        return tuple(plans)

    def _plan(self, call: ToolCall, tools: dict[str, Tool], *, free: bool) -> ev.PlannedCall:
        tool = tools.get(call.name)
        if tool is None or call.cut:
            return ev.PlannedCall(id=call.call_id)
        guarded = tool.needs_approval or any(hook.point == "before_tool" for hook in self._hooks)
        return ev.PlannedCall(
            id=call.call_id,
            replay=tool.replay,
            on_unknown=tool.on_unknown,
            start=not guarded and free and self._shared.trusted(),
        )

    async def _fail(self, failure: Failure) -> None:
        await self._run_hooks("on_error", failure)
        await self._commit(ev.Fail(by=self._by, error=failure))
        if self.stop:
            await self._look_again()
        await self._turn_ended()

    async def _turn_ended(self) -> None:
        await self._run_hooks("on_turn_end", self.snapshot)

    # --- hooks and what they share ------------------------------------------------------------------------

    @property
    def _context(self) -> RunContext:
        chat = self.snapshot.chat
        return RunContext(
            chat_id=chat.id,
            agent=chat.agent,
            owner=chat.owner,
            metadata=chat.metadata,
            turn=chat.turn,
            step=chat.step,
            deps=self._deps,
        )

    async def _run_hooks(self, point: Point, about: Any, change: Change = unchanged) -> list[Any]:
        return await self._shared.hooks.run(self._hooks, point, about, self._context, change) if self._hooks else []

    async def _make_deps(self) -> None:
        if self._deps_made:
            return
        assert self._agent.deps is not None
        made = await self._shared.hooks.make(self._agent.deps, self._context)
        if isinstance(made, HookFailed):
            raise _TurnFailed("deps_failed", f"the agent's deps could not be made: {made.error}")
        self._deps, self._deps_made = made, True

    # --- calls ------------------------------------------------------------------------------------------

    async def _run_calls(self, calls: Sequence[Call]) -> None:
        await self._make_deps()
        message = await self._past.response_of(self.snapshot, calls[0].id)
        if message is None:
            raise _Moved(f"the response that asked for call {calls[0].id} is not in history")
        parts = {part.call_id: part for part in message.calls}
        free = self._agent.parallel_calls_max - len(self._bodies)
        ready: dict[str, str | None] = {}
        for call in calls:
            prepared = await self._prepare(call, parts[call.id])
            if isinstance(prepared, ev.Event):
                await self._commit(prepared)
            else:
                ready[call.id] = prepared
        begin = list(ready)[:free]
        if begin:
            changed = {call_id: text for call_id in begin if (text := ready[call_id]) is not None}
            await self._commit(ev.StartCalls(by=self._by, call_ids=tuple(begin), arguments=changed))
            self._begin_started(message)
        elif ready:
            await self._await_change()

    async def _prepare(self, call: Call, part: ToolCall) -> ev.Event | str | None:
        """What stands between a planned call and its start, as an event. Else it can start: with the arguments that a
        hook wants, or with its own (None).
        """
        active = await self._tools()
        tool = active.get(call.name)
        if tool is None:
            names = ", ".join(sorted(active)) or "none"
            kind = "not active" if call.name in self._agent.tools else "not a tool of this agent"
            text = f"{call.name} is {kind}. Active tools: {names}."
            return ev.Refuse(by=self._by, call_id=call.id, content=text)
        if part.cut:
            text = "The arguments were cut off before they were complete. Send the call again."
            return ev.Refuse(by=self._by, call_id=call.id, content=text)
        if call.answered_by is not None or call.state is CallState.APPROVED or call.starts:
            return (
                None  # a person decided, or it is the rerun of a call that was let through: same arguments, same key
            )
        return await self._consult(call, part, tool)

    async def _consult(self, call: Call, part: ToolCall, tool: Tool) -> ev.Event | str | None:
        question = f"Run {call.name}?" if tool.needs_approval else None
        expires_at = None
        changed = None
        for verdict in await self._run_hooks("before_tool", part, _with_arguments):
            match verdict:
                case Veto(reason=reason):
                    return ev.Refuse(by=self._by, call_id=call.id, content=storable(reason), denied=True)
                case HookFailed(error=error):
                    text = f"Denied: a guard could not decide ({error})."
                    return ev.Refuse(by=self._by, call_id=call.id, content=text, denied=True)
                case Ask():
                    question = storable(verdict.question)
                    if verdict.expires_s is not None:
                        expires_at = self._shared.clock.wall_ms() + int(verdict.expires_s * 1000)
                case Arguments(text=text):
                    changed = text
                case _:
                    continue
        if question is None:
            return changed
        return ev.AskApproval(
            by=self._by, call_id=call.id, question=question, arguments=changed, expires_at=expires_at
        )

    def _begin_started(self, message: Message) -> None:
        """Begin the bodies of calls whose start is committed. If nobody wants them any more, a stop answers them or a
        release plans them again.
        """
        if not self._shared.trusted():
            self.interrupt(Cause.LEASE_LOST)
        if self.stop or self._lost:
            return
        for call in self.snapshot.calls:
            if call.state is CallState.STARTED and call.id not in self._bodies:
                self._begin(call, message)

    def _begin(self, call: Call, message: Message) -> None:
        tool = self._agent.tools[call.name]
        part = next(part for part in message.calls if part.call_id == call.id)
        chat = self.snapshot.chat
        context = ToolContext(
            call_id=call.id,
            chat_id=self.chat_id,
            owner=chat.owner,
            metadata=chat.metadata,
            deps=self._deps,
        )
        body = self._bodies[call.id] = Body(tool, call.id, context, self._entered)
        task = asyncio.get_running_loop().create_task(self._run_body(body, call, call.arguments or part.arguments))
        self._body_tasks.add(task)
        task.add_done_callback(self._body_done)

    def _body_done(self, task: "asyncio.Task[bool]") -> None:
        self._body_tasks.discard(task)
        self._changed.set()
        if task.cancelled():
            self._behind = True
        elif (error := task.exception()) is not None:
            log.error("a call's outcome was not committed", extra={"action": "outcome_lost"}, exc_info=error)
            self._broken = self._broken or error
        else:
            self._behind |= not task.result()

    async def _run_body(self, body: Body, call: Call, arguments: str) -> bool:
        """True if its outcome is committed, so that our snapshot knows of it."""
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            **self._span_of_chat,
        }
        with self._shared.traces.span(f"execute_tool {call.name}", about) as span:
            returned = await body.run(arguments, self._shared.sync.run)
            if returned is None or returned.error:
                span.failed(str(body.context.cause or "tool_error"))
        self.abandoned += body.abandoned
        if returned is not None:
            outcome = ev.Outcome(by=self._by, call_id=call.id, content=returned.content, error=returned.error)
            try:
                after = await self._commit(outcome)
            except _Moved:
                return False  # the successor has answered it
            result = ToolResult(call_id=call.id, name=call.name, content=returned.content, error=returned.error)
            self._past.learn(after, {call.pos: result_message(result, after.chat.updated_at)})
            await self._run_hooks("after_tool", result)
        del self._bodies[call.id]
        return returned is not None

    async def _await_change(self) -> None:
        """Until a body ends, or somebody outside does something. What bodies of ours did, our snapshot shows."""
        with self.stop.scope():
            await self._changed.wait()
        self._changed.clear()
        if self.stop.cause in (Cause.SHUTDOWN, Cause.LEASE_LOST):
            return
        if self._behind:
            await self._look_again()
        else:
            self._heed_stop()

    async def _end_bodies(self) -> None:
        """Bounded: a body that ignores its cancellation is left behind."""
        for body in self._bodies.values():
            body.cancel(self.stop.cause or Cause.SHUTDOWN)
        if self._body_tasks:
            await asyncio.wait(set(self._body_tasks))

    # --- stopping ---------------------------------------------------------------------------------------

    async def _end_stop(self) -> None:
        await self._end_bodies()
        partial, attempt = await self._cut_off()
        await self._commit(ev.FinishStop(by=self._by, partial=partial, attempt=attempt, length=self._partial_length))
        self._partial = None
        self.stop = Stop()
        await self._turn_ended()

    async def _cut_off(self) -> tuple[Message | None, int | None]:
        """What was streamed of the response that the stop cut off: by this runner, or by one that died since."""
        if self._partial is not None:
            message = self._partial.message
            if message is not None:
                message = replace(message, stopped=self.snapshot.chat.cause)
            # The attempt is named even if nothing came of it: its preview ends with the stop.
            return message, attempt_id(self.snapshot.chat.fence, self._attempts) if self._partial.n else None
        self._partial_length = self.snapshot.chat.length
        place = Cursor(self.snapshot.chat.seq, 0, -1)
        page = await self._shared.store.read_journal(self.chat_id, str(place), limit=100_000)
        deltas = [item for item in page.items if item.attempt is not None]
        if not deltas:
            return None, None
        last = max(item.attempt or 0 for item in deltas)
        parts = parts_of_deltas(decode_delta(item.body) for item in deltas if item.attempt == last)
        if not parts:
            return None, None
        message = Message(
            id=new_id("msg"),
            role=Role.ASSISTANT,
            parts=parts,
            created_at=self._shared.clock.wall_ms(),
            stopped=self.snapshot.chat.cause,
        )
        return message, last


def _describe(span: Span, outcome: Completed | Stopped) -> None:
    message, usage = outcome.message, outcome.usage
    span.set("gen_ai.response.model", message.model if message is not None else None)
    span.set("gen_ai.usage.input_tokens", usage.input_tokens if usage is not None else None)
    span.set("gen_ai.usage.output_tokens", usage.output_tokens if usage is not None else None)
    span.set("holdfast.attempts", outcome.n)
    if isinstance(outcome, Stopped):
        span.set("holdfast.cause", outcome.cause)


def _tokens(usage: Usage | None) -> int:
    return usage.input_tokens + usage.output_tokens if usage is not None else 0


def _as_changed(request: Any, answer: Any) -> Any:
    return answer if isinstance(answer, Request) else request


def _with_arguments(part: Any, answer: Any) -> Any:
    return replace(part, arguments=answer.text) if isinstance(answer, Arguments) else part


class _Watcher(Observer):
    """Tells the chat how a model call goes: deltas to the flusher, failed attempts to the journal."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._stream: Stream | None = None
        self.attempt = 0

    async def attempt_started(self, n: int, model: Model) -> None:
        runner = self._runner
        runner._attempts += 1
        chat = runner.snapshot.chat
        self.attempt = attempt_id(chat.fence, runner._attempts)
        await self.close()
        self._stream = runner._shared.deltas.open(runner.chat_id, runner._shared.worker, chat.fence, self.attempt)

    def delta(self, delta: Delta) -> None:
        if self._stream is not None:
            self._runner._shared.deltas.add(self._stream, delta)

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        runner = self._runner
        await self.close()
        if self.attempt == 0:
            runner._attempts += 1
            self.attempt = attempt_id(runner.snapshot.chat.fence, runner._attempts)
        try:
            await runner._commit(
                ev.AttemptLost(
                    by=runner._by,
                    attempt=self.attempt,
                    model=failed.model,
                    error=failed.error,
                    code=failed.code,
                    provider=failed.provider,
                    status=failed.status,
                    request_id=failed.request_id,
                    retry_in_ms=failed.retry_in_ms,
                    next_model=failed.next_model,
                    duration_ms=failed.duration_ms,
                    tokens=_tokens(failed.usage),
                    cost=runner._agent.cost_of(failed.model, failed.usage),
                )
            )
        except _Moved:
            # Stopped, or lost: the call's own stop ends it; the record of this attempt goes with it.
            await runner._look_again()

    async def close(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await self._runner._shared.deltas.close(stream)
