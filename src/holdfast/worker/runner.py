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
from typing import assert_never

from holdfast import log_context
from holdfast.agent import Agent
from holdfast.core import commands as cmd
from holdfast.core.codec import storable
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
from holdfast.core.records import Cause, Failure, Snapshot, State
from holdfast.errors import ConfigError, HoldfastError, OwnershipLost, StoreError, UnknownRecord
from holdfast.log_context import logger
from holdfast.models.base import Model
from holdfast.stops import StopSignal
from holdfast.store.notify.bell import control_topic
from holdfast.tracebacks import traceback_text
from holdfast.worker.compaction.step import Compactor
from holdfast.worker.draws import BudgetReached
from holdfast.worker.held_chat import ContextTooLong, HeldChat, Shared, TurnCannotGoOn
from holdfast.worker.history_cache import HistoryCache, Moved
from holdfast.worker.model_step import ModelStep
from holdfast.worker.tool_calls import RunningTool, ToolCalls

log = logger("holdfast.runner")

LOOK_INTERVAL_S = 1.0  # how often a runner looks for what no hint told it


class Runner:
    def __init__(self, shared: Shared, agent: Agent, snapshot: Snapshot) -> None:
        self._shared = shared
        self._held = HeldChat(shared, agent, snapshot)
        self._model_step = ModelStep(self._held)
        self._tool_calls = ToolCalls(self._held)
        self._compactor = Compactor(self._held)
        self.chat_id = snapshot.chat.id
        self.agent = agent.name

    # --- for its worker ---------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        return self._held.snapshot

    @property
    def stop(self) -> StopSignal[Cause]:
        return self._held.stop

    @property
    def draining(self) -> bool:
        return self._held.draining

    @property
    def holds(self) -> bool:
        """As far as it knows: the chat is this worker's, and there is something to do."""
        return self._held.holds

    @property
    def missed(self) -> int:
        """Steps in a row that came to nothing."""
        return self._held.missed

    @property
    def history(self) -> HistoryCache:
        return self._held.history

    @property
    def history_size(self) -> int:
        return self.history.size

    @property
    def abandoned(self) -> int:
        """Bodies that ignored their cancellation."""
        return self._tool_calls.abandoned

    def running_tools(self) -> list[RunningTool]:
        """From any thread."""
        return self._tool_calls.running_tools()

    def drain(self) -> None:
        """Let the step finish, then release the chat."""
        self._held.drain()

    def interrupt(self, cause: Cause) -> None:
        """End what runs, now. The first cause stays, but a chat that is lost is left whatever else was to be done."""
        self._held.interrupt(cause)

    # --- the loop ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the chat rests, waits, was released or was lost. Raises what the store could not do."""
        with log_context.bound(self._held.log_fields):
            self._shared.outcomes.claimed(self.snapshot, self._held.now)
            await self._drive()

    async def _drive(self) -> None:
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            while not await self._leaves():
                try:
                    await self._step()
                except Moved as moved:
                    log.debug("moved", extra={"action": "moved", "why": str(moved)})
                    await self._held.look_again()
                    if not self._held.lost:
                        self._held.miss(moved)
                except (StoreError, OwnershipLost, UnknownRecord):
                    raise
                except Exception as error:
                    await self._give_up(error)
                    raise
        finally:
            watch.cancel()
            await self._tool_calls.end()
            await self._model_step.enter_rest()
            await asyncio.wait((watch,))
        if self._tool_calls.broken is not None:
            raise self._tool_calls.broken

    async def _leaves(self) -> bool:
        held = self._held
        if held.lost:
            return True
        # A stop that is being carried out is finished first: what it cut off is in this runner's hands.
        at_a_boundary = not self._tool_calls.busy and held.holds and held.snapshot.chat.state is State.RUNNING
        if held.stop.cause is Cause.SHUTDOWN or (held.draining and at_a_boundary):
            await self._release()
            return True
        return False

    async def _step(self) -> None:
        if self._tool_calls.broken is not None:
            raise self._tool_calls.broken
        try:
            await self._act()
        except TurnCannotGoOn as failed:
            await self._fail(failed.failure)
        except BudgetReached as reached:
            await self._end_by_budget(reached.detail)

    async def _act(self) -> None:
        held = self._held
        await held.spans.arrive(held.snapshot)
        action = next_action(held.snapshot, self._shared.worker, held.agent.limits, held.worked_ms)
        match action:
            case AskModel() | RunCalls() if self._waits_for_bodies(action):
                await held.await_change()
            case AskModel():
                await self._ask_model()
            case RunCalls(calls=calls):
                await held.make_deps()
                await self._tool_calls.run(calls)
            case AwaitBodies():
                await held.await_change()
            case ParkChat():
                await held.commit(cmd.Park(by=held.by))
            case EndTurn(cause=cause, detail=detail):
                in_turn = held.snapshot.chat.turn_started_at is not None  # else it was woken for a compaction
                await held.commit(cmd.FinishTurn(by=held.by, cause=cause, detail=detail))
                if in_turn:
                    await self._turn_ended()
            case EndStop():
                await self._end_stop()
            case CompactNow():
                await self._compactor.on_demand()
            case Leave():
                held.leave()
            case _:
                assert_never(action)

    async def _end_by_budget(self, detail: str) -> None:
        """No call may begin. A compaction that is owed is not made; else the turn ends, and can go on later."""
        held = self._held
        chat = held.snapshot.chat
        if chat.compact:
            rest = () if chat.turn_started_at is not None else (cmd.FinishTurn(by=held.by),)
            await held.commit(cmd.FinishCompaction(by=held.by, error=detail), *rest)
            return
        await held.commit(cmd.FinishTurn(by=held.by, cause=Cause.BUDGET, detail=detail))
        await self._turn_ended()

    def _waits_for_bodies(self, action: AskModel | RunCalls) -> bool:
        """An outcome is committed before its body is at its end, as its hooks follow: until then no model is asked.
        Who drains begins no call beside those that run: it would be cut off.
        """
        return self._tool_calls.busy and (self._held.draining or isinstance(action, AskModel))

    async def _ask_model(self) -> None:
        held = self._held
        turn = held.snapshot.chat.turn
        await held.make_deps()
        if await self._compactor.make_room():
            return  # what the summary cost counts: decide again
        try:
            message = await self._model_step.ask()
        except ContextTooLong:
            if await self._compactor.after_refusal():
                return
            raise
        if message is None:
            return
        self._ask_for_title()
        await held.run_hooks("on_step", message)
        self._tool_calls.begin_started(message)
        if not held.holds or held.snapshot.chat.turn != turn:
            await self._turn_ended()

    def _ask_for_title(self) -> None:
        held = self._held
        if held.agent.title_model is not None and held.snapshot.chat.title is None:
            agent, facts = held.agent, self._shared.models.facts
            self._shared.titles.ask(
                held.snapshot.chat,
                self._title_model,
                held.history.opening,
                lambda model, usage: agent.cost_of(model, usage, facts),
                agent,
            )

    async def _title_model(self) -> Model:
        """Raises ConfigError if a function gives none: the turn itself goes on without a title."""
        assert self._held.agent.title_model is not None
        try:
            return await self._held.model(self._held.agent.title_model)
        except (TurnCannotGoOn, Moved) as error:
            raise ConfigError(str(error)) from error

    async def _end_stop(self) -> None:
        await self._tool_calls.end()
        await self._model_step.commit_stop()
        self._held.end_stop()
        await self._turn_ended()

    async def _fail(self, failure: Failure) -> None:
        held = self._held
        await held.run_hooks("on_error", failure)
        await held.commit(cmd.Fail(by=held.by, error=failure))
        if held.stop:
            await held.look_again()
        await self._turn_ended()

    async def _turn_ended(self) -> None:
        if self._held.memory is not None:
            self._shared.chronicler.want()
        await self._held.run_hooks("on_turn_end", self._held.snapshot)

    async def _give_up(self, error: Exception) -> None:
        """An unforeseen error: the chat fails and says why. If it stayed ours, no worker would drive it again."""
        await self._tool_calls.end()
        code = error.code if isinstance(error, HoldfastError) else "internal"
        # What is for a person to mend, such as a key that is not set, needs no name of ours before it.
        message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, ConfigError):
            self._held.keep_trace("runner", "", type(error).__name__, traceback_text(error))
        failure = Failure(code=code, message=storable(message))
        with contextlib.suppress(Moved):
            await self._held.commit(cmd.Fail(by=self._held.by, error=failure))

    async def _release(self) -> None:
        """Hand the chat over. What is still running counts as crashed; what never began is planned again."""
        held = self._held
        await self._tool_calls.end()
        if held.holds:
            with contextlib.suppress(Moved):
                await held.commit(cmd.Release(by=held.by, never_begun=self._tool_calls.never_begun()))

    async def _watch(self) -> None:
        """Notices what others do to the chat: a stop, an edit, an approval, another owner."""
        held = self._held
        with self._shared.store.bell.listen(control_topic(self.chat_id)) as listener:
            while True:
                await listener.wait(LOOK_INTERVAL_S)
                if not self._shared.trusted():
                    held.interrupt(Cause.LEASE_LOST)
                    return
                try:
                    await held.notice()
                except HoldfastError:
                    continue  # the next read for work will say so
                except Exception as error:  # whatever it was: a runner that looks no more never hears of a stop
                    extra = {"action": "look_failed", "error": type(error).__name__}
                    log.error("a runner could not look at its chat", extra=extra, exc_info=error)
