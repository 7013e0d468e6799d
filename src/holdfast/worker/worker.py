"""A worker inside this process: claims chats that are due, drives each with a runner, hands over when it stops."""

import asyncio
import logging
import math
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

from msgspec import Raw

from holdfast import __version__
from holdfast.agent import Agent
from holdfast.config import Config
from holdfast.core.codec import encode
from holdfast.core.records import Cause, Snapshot
from holdfast.errors import (
    ConfigError,
    LeaseLost,
    StoreError,
    StoreUnavailable,
)
from holdfast.hooks import Hook, Hooks
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.models.calls import Caller
from holdfast.models.resolve import Models
from holdfast.redaction import Secrets
from holdfast.spans import Traces
from holdfast.store.claims import is_suspect
from holdfast.store.contract import Store
from holdfast.store.fairness import Shares
from holdfast.store.host_lock import HostLock
from holdfast.store.notify.bell import WORK
from holdfast.store.records import Held, WorkerInfo
from holdfast.store.undriven_chats import published
from holdfast.system.clock import SystemClock, dice
from holdfast.system.siblings import YIELD_S, Siblings
from holdfast.telemetry import Durations
from holdfast.tools.mcp.connection import LoginPlace
from holdfast.turn_spans import TurnSpans
from holdfast.worker.chronicler import Chronicler
from holdfast.worker.compaction.summaries import CompactionFigures
from holdfast.worker.deliverer import Deliverer
from holdfast.worker.deltas import DeltaFlusher
from holdfast.worker.draws import Draws
from holdfast.worker.guard import Guard
from holdfast.worker.held_chat import Misses, Shared
from holdfast.worker.history_cache import HistoryRoom
from holdfast.worker.lease import LeaseKeeper
from holdfast.worker.lease_observer import LeaseObserver
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.pruner import Pruner
from holdfast.worker.runner import Runner
from holdfast.worker.scheduler import Scheduler
from holdfast.worker.stray_chats import Strays, described
from holdfast.worker.sweeper import Sweeper
from holdfast.worker.titles import Titles
from holdfast.worker.tool_body import SyncPool
from holdfast.worker.tool_calls import RunningTool
from holdfast.worker.tool_servers import ToolServers
from holdfast.worker.watchdog import Watchdog, last_words

log = logger("holdfast.worker")

REGISTER_AGAIN_S = 1.0
PASSED_OVER_S = 0.5  # after a claim that brought something, until the next look
TOUCH_S = 1.0
KILL_S = 5.0


class Worker:
    """`async with Worker(...)`; `stop(grace_s)` drains."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        caller: Caller,
        models: Models,
        config: Config,
        plugins: tuple[Hook, ...] = (),
        secrets: Secrets | None = None,
        turn_spans: TurnSpans | None = None,
        at_start: Sequence[Callable[[], Awaitable[object]]] = (),
    ) -> None:
        """`declare`: brings what the program declares into the store, before anything is claimed."""
        self.name = new_id("worker")
        self.config = config
        self.store = store
        self._agents = agents
        self._at_start = at_start  # what the settings declare is brought into the store
        self.secrets = secrets or Secrets()
        self._clock = SystemClock()
        self.started_at = self._clock.wall_ms()
        self.sync = SyncPool()
        self.deltas = DeltaFlusher(store)
        self.histories = HistoryRoom(config.history_bytes)
        self.hooks = Hooks(self.sync.run)
        self._plugins = plugins
        self.draws = Draws(store, config.budgets, lambda: self.name)
        self.titles = Titles(store, caller, self.draws)
        self.chronicler = Chronicler(
            store, agents, caller, models, self.draws, self.hooks, self.secrets, self._note_trouble
        )
        self.tool_servers = ToolServers(agents.values(), self.sync.run, LoginPlace(config.home, self.secrets))
        self.compactions = CompactionFigures()
        # Starting and stopping never wait for a thread that some tool has blocked.
        self._upkeep = SyncPool(2)
        self.siblings: Siblings | None = None  # the processes beside this one, under one supervisor
        self._keeper: LeaseKeeper | None = None
        self._outlived: list[str] = []  # ids under which this worker was taken for dead, until others are told
        self._lock: HostLock | None = None
        self.guard: Guard | None = None
        self.watchdog: Watchdog | None = None
        # By task, not by chat: a chat that rested can be back before its last runner is done.
        self._runners: dict[asyncio.Task[None], Runner] = {}
        self._services: list[asyncio.Task[None]] = []
        self._caller = caller
        self._models = models
        self._stopping: asyncio.Future[None] | None = None
        self.strays = Strays(store, self.secrets, lambda: self.name, self._driven)
        self.errors: deque[BaseException] = deque(maxlen=100)  # what runners ended with, newest last
        self.runner_errors = 0
        self.sweeper = Sweeper(store, self._note_trouble, self.draws.tidy)
        self._observer = LeaseObserver(store, lambda: self.name, self.sweeper.want, self._note_trouble)
        self.pruner = Pruner(store, config.retention, self._note_trouble, keep_days=config.budgets.keep_days)
        self.scheduler = Scheduler(store, config.poll_s, self._note_trouble)
        self.deliverer = Deliverer(store, config, self._note_trouble)
        self._bodies_abandoned = 0
        self._store_failed_at: float | None = None  # since when claims and sweeps fail
        self.claims_taken = 0
        self.claims_skipped = 0  # no room, or no trust in the lease
        self._left_some = True  # the last claim may have had no room for something that is due
        self.claim_times = Durations()
        self.commit_times = Durations()
        self.misses = Misses()
        self.outcomes = Outcomes()
        self._turn_spans = turn_spans or TurnSpans(Traces(), store)

    # --- figures, from any thread ----------------------------------------------------------------------

    @property
    def agents(self) -> list[str]:
        return sorted(self._agents)

    @property
    def running_chats(self) -> list[str]:
        return [runner.chat_id for runner in list(self._runners.values())]

    @property
    def running(self) -> bool:
        """It was started, and not told to stop."""
        return bool(self._services) and self._stopping is None

    @property
    def draining(self) -> bool:
        return self._stopping is not None and not self._stopping.done()

    @property
    def trust_left_ms(self) -> int:
        keeper = self._keeper
        return keeper.trust_left_ms if keeper is not None else 0

    @property
    def store_failing_s(self) -> float:
        since = self._store_failed_at
        return time.monotonic() - since if since is not None else 0.0

    @property
    def history_size(self) -> int:
        """Messages in memory, over all chats."""
        return sum(runner.history_size for runner in list(self._runners.values()))

    @property
    def missed_in_a_row(self) -> list[int]:
        """Of each runner, the steps that came to nothing since the last one that did not."""
        return [runner.missed for runner in list(self._runners.values())]

    @property
    def receipts_pruned(self) -> int:
        return self.pruner.pruned["receipts"].rows

    @property
    def bodies_abandoned(self) -> int:
        return self._bodies_abandoned + sum(runner.abandoned for runner in list(self._runners.values()))

    @property
    def last_error(self) -> str | None:
        if not self.errors:
            return None
        return self.secrets.taken_out(described(self.errors[-1]))

    def running_tools(self) -> list[RunningTool]:
        return [tool for runner in list(self._runners.values()) for tool in runner.running_tools()]

    # --- life ---------------------------------------------------------------------------------------

    def waiting_for(self) -> str:
        tools = [f"{tool.tool} ({tool.age_s:.0f} s)" for tool in self.running_tools()]
        chats = len(self.running_chats)
        words = f"{chats} chat{'s' if chats != 1 else ''}" if chats else "the store"
        return words + (f", running {', '.join(tools[:5])}" if tools else "")

    async def start(self) -> None:
        self._lock = HostLock(f"{self.store.lock_folder}/{self.name}.lock")
        try:
            await self._protect(self._lock)
            await self._join(self.config.store_wait_s, (StoreUnavailable, LeaseLost))
            for prepare in self._at_start:
                await prepare()
        except BaseException:
            await self._leave()
            raise
        self.deltas.start()
        loop = asyncio.get_running_loop()
        services = (
            self._claim_forever(),  # first: a stop waits for it
            self.sweeper.run_forever(),
            self._observer.run_forever(),
            self._doubt_in_time(),
            self.pruner.run_forever(),
            self.scheduler.run_forever(),
            self.strays.run_forever(),
            self.deliverer.run_forever(),
            self.chronicler.run_forever(),
            self.store.pulse.run_forever(),
            *(() if self.siblings is None else (self._tell_siblings(self.siblings),)),
        )
        self._services = [loop.create_task(service) for service in services]
        log.info("ready", extra={"action": "worker.ready", "worker": self.name, "database": str(self.store)})

    async def _protect(self, lock: HostLock) -> None:
        """Before anything is claimed: what ends our children when we die, and us when we hang."""
        limit_s = self.config.stall_limit_s
        frozen_s = self.store.options.lease_ttl_ms / 1000
        guard = self.guard = Guard(lock.fileno(), limit_s, frozen_s=frozen_s, write_locks=self.store.write_lock_paths)
        await self._upkeep.run(guard.start)
        self.tool_servers.guard(guard)
        self._models.guards.join(guard)
        last_words.install()
        self.watchdog = Watchdog(self._clock, guard.beat, guard.rest, self.config.stall_report_s, limit_s)
        self.watchdog.start()

    async def _leave(self) -> None:
        """The children first: no other worker may think that this one is gone while they run."""
        upkeep, guard, keeper = self._upkeep, self.guard, self._keeper
        async with AsyncExitStack() as leaving:
            if self._lock is not None:
                leaving.callback(self._lock.release)
            leaving.callback(upkeep.stop)
            leaving.callback(self.sync.stop)
            leaving.push_async_callback(self._say_at_last_that_we_lived)
            if keeper is not None:
                self._outlived.append(self.name)  # the chats know whether it was ever taken for dead
                leaving.push_async_callback(upkeep.run, lambda: keeper.stop(self.store.options.deadline_s))
            if guard is not None:
                self._models.guards.leave(guard)
                leaving.push_async_callback(upkeep.run, guard.stop)
            if self.watchdog is not None:
                self.watchdog.stop()
                last_words.remove()

    def _describe(self) -> Raw:
        """What the fleet is told of this worker, with every heartbeat. Called from the lease's thread."""
        watchdog = self.watchdog
        return Raw(
            encode(
                {
                    "version": __version__,
                    "hostname": platform.node(),
                    "agents": self.agents,
                    "chats": len(self._runners),
                    "driven": published(stamp for _, stamp in self._driven()),
                    "chats_max": self.config.chats_max,
                    "draining": self.draining,
                    "loop_lag_ms": watchdog.lag_ms if watchdog is not None else None,
                    "commits": self.commit_times.count,
                    "runner_errors": self.runner_errors,
                }
            )
        )

    async def _join(self, wait_s: float, passing: tuple[type[Exception], ...]) -> None:
        """Register as soon as the database lets us: it may be away for a while, also when we start."""
        give_up_at = time.monotonic() + wait_s
        while True:
            try:
                return await self._register()
            except passing as error:
                if time.monotonic() >= give_up_at:
                    raise
                log.warning("registration failed", extra={"action": "register_failed", "error": str(error)})
                await asyncio.sleep(REGISTER_AGAIN_S)
                self.name = new_id("worker")  # the registration that failed may have been written all the same

    async def _register(self) -> None:
        assert self._lock is not None
        loop = asyncio.get_running_loop()
        info = WorkerInfo(
            worker=self.name,
            host="",
            pid=os.getpid(),
            lock_path=self._lock.path,
            info=self._describe(),
        )
        keeper = LeaseKeeper(
            self.store,
            info,
            self._clock,
            on_doubt=lambda: _call_in(loop, lambda: self._lease_doubted(keeper)),
            on_ended=lambda: _call_in(loop, lambda: self._lease_lost(keeper)),
            describe=self._describe,
        )
        self._keeper = keeper
        try:
            await self._upkeep.run(keeper.start)
        except BaseException:
            self._keeper = None
            keeper.abandon()  # it may still get its lease, after we gave up: then it hands it back
            raise

    async def stop(self, grace_s: float | None = None) -> None:
        """Claim no more, let steps finish within the grace, then end them with cause `shutdown` and release all.

        Concurrent stops share one. Bounded, whatever tools and hooks do.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._drain(self.config.grace_s if grace_s is None else grace_s))
        await asyncio.shield(self._stopping)

    async def _drain(self, grace_s: float) -> None:
        """Whatever goes wrong on the way, the rest is done too; the error comes out at the end."""
        async with AsyncExitStack() as leaving:  # last in, first done
            leaving.push_async_callback(self._leave)
            leaving.push_async_callback(self.tool_servers.close)
            leaving.push_async_callback(self.deltas.stop)
            leaving.push_async_callback(self.strays.let_go)  # if possible: the lease's end does the rest
            leaving.push_async_callback(self.titles.stop)
            leaving.push_async_callback(self.chronicler.stop)
            leaving.push_async_callback(self.deliverer.close)
            await self._end_work(grace_s)

    async def _end_work(self, grace_s: float) -> None:
        end_at = time.monotonic() + grace_s
        if self.siblings is not None:
            self._note_load(self.siblings)  # no room: they need not leave anything to us
        self._drain_runners()  # at once: a step that ends while the services do begins no other
        if self._services:
            # A claim that is cut off may have been made: its chats would stay ours until another finds us gone.
            self.store.bell.ring((WORK,))
            await asyncio.wait(self._services[:1], timeout=max(1.0, min(grace_s, self.store.options.deadline_s)))
        await _end(self._services)
        self._drain_runners()
        if self._runners and (left_s := end_at - time.monotonic()) > 0:
            await asyncio.wait(list(self._runners), timeout=left_s)
        for runner in self._runners.values():
            runner.interrupt(Cause.SHUTDOWN)
        if self._runners:
            await asyncio.wait(list(self._runners), timeout=KILL_S)
        await _end(list(self._runners))

    def _drain_runners(self) -> None:
        for runner in self._runners.values():
            runner.drain()

    async def __aenter__(self) -> "Worker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- work ---------------------------------------------------------------------------------------

    async def _claim_forever(self) -> None:
        doubted = False  # a claim failed: the next may bring what that one took, and look for nothing else
        with self.store.bell.listen(WORK) as listener:
            while self._stopping is None:
                keeper = self._keeper
                claimed, again = 0, False
                try:
                    claimed = await self.claim_once()
                    again = claimed > 0 and (self._left_some or doubted)
                    doubted = doubted and claimed > 0
                    self._store_failed_at = None
                except LeaseLost:
                    self._lease_lost(keeper)
                except Exception as error:  # noqa: BLE001  a worker that no longer claims is a dead one
                    doubted = True
                    self._note_trouble("claim_failed", error)
                if not again:
                    yields = self.siblings is not None and self.siblings.yields
                    wait_s = YIELD_S if yields else self.config.poll_s * dice.uniform(0.8, 1.2)
                    # What another transaction had locked just then was passed over, and rings nobody.
                    await listener.wait(min(wait_s, PASSED_OVER_S) if claimed else wait_s)

    async def _tell_siblings(self, siblings: Siblings) -> None:
        """That this event loop runs, and how much it has to do."""
        while True:
            self._note_load(siblings)
            await asyncio.sleep(TOUCH_S)

    def _note_load(self, siblings: Siblings) -> None:
        chats = len(self._runners)
        siblings.touch(chats, self.config.chats_max - chats if self._stopping is None else 0)

    def _note_trouble(self, action: str, error: Exception) -> None:
        if self._store_failed_at is None:
            self._store_failed_at = time.monotonic()
        known = isinstance(error, StoreError)
        extra = {"action": action, "error": f"{type(error).__name__}: {error}"}
        log.log(logging.WARNING if known else logging.ERROR, action, extra=extra, exc_info=None if known else error)

    async def claim_once(self) -> int:
        self._left_some = True  # until it is known: what ends meanwhile may make room for it
        room = self.config.chats_max - len(self._runners)
        if self.siblings is not None:
            room = self.siblings.share(len(self._runners), room)
            if self.siblings.yields:
                return 0
        keeper = self._keeper
        if room <= 0 or keeper is None or not keeper.trusted():
            self.claims_skipped += 1
            return 0
        self.strays.claims_begun += 1
        try:
            with self.claim_times.timed():
                rooms = self._room_by_agent(room)
                snapshots = await self.store.claim_chats(self.name, rooms, room, self._suspect_room, self._shares)
            self.claims_taken += len(snapshots)
            if keeper is not self._keeper:
                return 0  # claimed under a lease that was lost meanwhile: they are taken back like all its others
            for snapshot in snapshots:
                self._drive_or_let_go(snapshot, keeper)
            self._left_some = self._may_have_left(snapshots, rooms, room)
            return len(snapshots)
        finally:
            self.strays.claims_ended += 1

    def _may_have_left(self, taken: Sequence[Snapshot], rooms: Mapping[str, int], room: int) -> bool:
        """Whether something may be due that this claim had no room for: then it is looked for again at once, and when
        a chat ends. Else what becomes due from now on rings by itself.
        """
        if self.siblings is not None or self.config.chats_per_owner_max is not None or self._suspect_room == 0:
            return True
        of_agent = Counter(snapshot.chat.agent for snapshot in taken)
        return len(taken) >= room or any(rooms.get(name, 0) <= of_agent[name] for name in self._agents)

    def _driven(self) -> set[Held]:
        return {(runner.chat_id, runner.snapshot.chat.claim_stamp) for runner in list(self._runners.values())}

    def _drive_or_let_go(self, snapshot: Snapshot, keeper: LeaseKeeper) -> None:
        """What cannot be driven, for an unforeseen reason, keeps the claim's other chats from nothing."""
        try:
            self._drive(snapshot, keeper)
        except Exception as error:  # noqa: BLE001  as above
            self._note_runner_error(snapshot, error)
            self.strays.add(snapshot.chat.id, snapshot.chat.claim_stamp, error)

    def _room_by_agent(self, room: int) -> dict[str, int]:
        """How many more chats of each agent this worker may take. An agent without room is not asked for at all."""
        driven = Counter(runner.agent for runner in self._runners.values())
        rooms = {
            name: room if agent.limits.chats is None else min(room, agent.limits.chats - driven[name])
            for name, agent in self._agents.items()
        }
        return {name: left for name, left in rooms.items() if left > 0}

    @property
    def _shares(self) -> Shares:
        return Shares(held=self.chats_by_owner(), chats_max=self.config.chats_per_owner_max)

    def chats_by_owner(self) -> Counter[str]:
        return Counter(runner.snapshot.chat.owner for runner in list(self._runners.values()))

    @property
    def _suspect_room(self) -> int:
        """One suspect at a time, and the next when it has made progress: if we die, it is clear of what."""
        return (
            0
            if any(is_suspect(runner.snapshot, self.store.options.limits) for runner in self._runners.values())
            else 1
        )

    def _drive(self, snapshot: Snapshot, keeper: LeaseKeeper) -> None:
        shared = Shared(
            store=self.store,
            worker=self.name,
            caller=self._caller,
            models=self._models,
            deltas=self.deltas,
            sync=self.sync,
            hooks=self.hooks,
            plugins=self._plugins,
            titles=self.titles,
            chronicler=self.chronicler,
            compactions=self.compactions,
            clock=self._clock,
            trusted=keeper.trusted,
            commits=self.commit_times,
            misses=self.misses,
            outcomes=self.outcomes,
            turn_spans=self._turn_spans,
            history_limit=self.config.history_limit,
            histories=self.histories,
            children=self.guard,
            secrets=self.secrets,
            tool_servers=self.tool_servers,
            permissions=self.config.permissions,
            draws=self.draws,
        )
        runner = Runner(shared, self._agents[snapshot.chat.agent], snapshot)
        if self._stopping is not None:
            runner.drain()  # the claim was under way when the stop came, and may bring what we have just handed over
        task = asyncio.get_running_loop().create_task(runner.run())
        self._runners[task] = runner
        task.add_done_callback(self._runner_done)
        if self.siblings is not None:
            self._note_load(self.siblings)

    def _runner_done(self, task: "asyncio.Task[None]") -> None:
        runner = self._runners.pop(task)
        if self.siblings is not None:
            self._note_load(self.siblings)
        error = None if task.cancelled() else task.exception()
        if runner.holds:
            self.strays.add(runner.chat_id, runner.snapshot.chat.claim_stamp, error)
        self._bodies_abandoned += runner.abandoned
        if error is None and not task.cancelled():
            self.histories.put_away(runner.history)
        if error is not None:
            self._note_runner_error(runner.snapshot, error)
        if self._left_some:
            self.store.bell.ring((WORK,))

    def _note_runner_error(self, snapshot: Snapshot, error: BaseException) -> None:
        self.errors.append(error)
        self.runner_errors += 1
        # A key that is not set is for the operator to mend: where in our code it was missed does not help.
        trace = None if isinstance(error, ConfigError) else error
        chat = snapshot.chat
        extra = {"action": "runner_failed", "chat": chat.id, "turn": chat.turn, "fence": chat.fence}
        extra["error"] = described(error)
        log.error("a runner failed", extra=extra, exc_info=trace)

    def _lease_doubted(self, keeper: LeaseKeeper) -> None:
        """The database did not say in time that the lease lasts. What runs is ended; the chats stay ours, as far as
        we know: with the next renewal they are let go, and claimed again by the first worker that looks.
        """
        if keeper is self._keeper:
            for runner in self._runners.values():
                runner.interrupt(Cause.LEASE_LOST)

    async def _doubt_in_time(self) -> None:
        """The keeper may hang in a renewal when trust runs out, for longer than the margin before others may act."""
        while True:
            keeper = self._keeper
            if keeper is not None and not keeper.trusted():
                self._lease_doubted(keeper)
            await asyncio.sleep(self.trust_left_ms / 1000 or REGISTER_AGAIN_S)

    def _lease_lost(self, keeper: LeaseKeeper | None) -> None:
        """Drop everything, then go on as a new worker. Others may have counted this as our death: they are told.

        A lease is lost once: what notices next, the claim or the keeper's own renewal, finds another keeper here.
        """
        if keeper is None or keeper is not self._keeper:
            return
        self._keeper = None
        keeper.abandon()
        for runner in self._runners.values():
            runner.interrupt(Cause.LEASE_LOST)
        self._outlived.append(self.name)
        if self._stopping is None:
            task = asyncio.get_running_loop().create_task(self._come_back())
            self._services.append(task)
            task.add_done_callback(self._services.remove)

    async def _come_back(self) -> None:
        self.name = new_id("worker")
        await self._join(math.inf, (Exception,))
        while self._outlived:
            await self._say_that_we_live()
            await asyncio.sleep(REGISTER_AGAIN_S if self._outlived else 0)

    async def _say_at_last_that_we_lived(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.store.options.deadline_s):
                await self._say_that_we_live()

    async def _say_that_we_live(self) -> None:
        """Once for each id; what fails is left for the next time."""
        for name in list(self._outlived):
            try:
                await self.store.outlive_lease(name)
                self._outlived.remove(name)
            except Exception as error:  # noqa: BLE001  as for claims
                self._note_trouble("outlive_failed", error)


def _call_in(loop: asyncio.AbstractEventLoop, callback: "object") -> None:
    try:
        loop.call_soon_threadsafe(callback)  # type: ignore[arg-type]
    except RuntimeError:  # the loop is closed: there is nothing left to tell
        return


async def _end(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=KILL_S)
