"""Workers that come, go and die, all in this process, each with a store of its own, as a process would have.

A drop is a death as others see it: all that the worker ran ends where it stands and writes nothing more, its
connections close, and the kernel lets go of its host lock. Whoever comes next finds the free lock.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast import AgentLimits, CompactionPolicy
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.retry import RetryPolicy
from holdfast.hooks import Hook, Point
from holdfast.models.scripted import Fail, Hold, Response, Say, ScriptedModel, Stall, Step
from holdfast.store.records import StoreOptions
from holdfast.system.clock import SystemClock
from holdfast.worker.watchdog import last_words
from holdfast.worker.worker import Worker
from tests.worker.evidence import Evidence, WatchedModel
from tests.worker.toolbox import Gates, toolbox

QUICK = RetryPolicy(base_s=0.001, delay_max_s=0.005)
END_S = 10.0
BACKOFF_MS = 20_000  # above the longest that a chat rests after its worker was lost

# Hooks make room between the steps of the loop for something else to happen.
HOOKED: tuple[Point, ...] = ("after_model", "on_step", "after_tool", "on_error", "on_turn_end")
HOOK_S = 0.003

_life: ContextVar["Life | None"] = ContextVar("life", default=None)


class SteppedClock:
    """The system's time, with a wall clock that can be put forward: nobody waits for a chat that rests a while."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self._system = SystemClock()
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return self._system.wall_ms() + self.ahead_ms

    def boot_ms(self) -> int:
        return self._system.boot_ms()


def options(clock: SteppedClock) -> StoreOptions:
    return StoreOptions(clock=clock, poll_interval_s=0.05)


async def _take_a_moment(about: object, context: object) -> None:
    await asyncio.sleep(HOOK_S)


# Compaction, by the number of the chat: what a summary comes to, what the agent says its model can hold, and how many
# messages it really takes. On demand they are all compacted; the first when it is refused, the others near the limit.
SUMMARIES: tuple[tuple[Step, ...], ...] = (
    (Hold(name="summary"), Say(text="In short, they talked.")),
    (Say(text="In short."),),
    (Fail(status=500),),
)
LIMITS = (None, 660, 660)
HOLDS = (7, None, None)
POLICY = CompactionPolicy(keep_turns=1)


def agents(
    scripts: tuple[tuple[Response, ...], ...], evidence: Evidence, gates: Gates, summary_s: float | None = None
) -> list[Agent]:
    """One per chat, so that each chat has a script of its own. `summary_s`: what is held takes so long instead."""
    made = []
    for number, script in enumerate(scripts):
        model = ScriptedModel(*script, name=f"scripted-{number}", provider=f"p{number}", after="echo")
        steps: tuple[Step, ...] = SUMMARIES[number % 3]
        if summary_s is not None:
            steps = tuple(Stall(for_s=summary_s) if isinstance(step, Hold) else step for step in steps)
        made.append(
            Agent(
                f"agent-{number}",
                WatchedModel(model, evidence, holds=HOLDS[number % 3]),
                compaction=replace(
                    POLICY,
                    model=ScriptedModel(steps, name=f"summaries-{number}", after="repeat"),
                    context_limit=LIMITS[number % 3],
                ),
                limits=AgentLimits(parallel_calls=2, steps=30),  # a script begins anew with what was compacted
                tools=toolbox(evidence, gates),
                hooks=[Hook(point, _take_a_moment) for point in HOOKED],
            )
        )
    return made


class Life:
    """One worker's, from its start to its end."""

    def __init__(self, url: str, scripts: tuple[tuple[Response, ...], ...], evidence: Evidence, clock: SteppedClock):
        self.name = evidence.life
        self.evidence = evidence
        self.gates = Gates()
        self.app = App(url, agents(scripts, evidence, self.gates), retry=QUICK, options=options(clock))
        self.worker: Worker = self.app.new_worker(poll_s=0.1, grace_s=0.0)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.dead = False

    @property
    def models(self) -> list[ScriptedModel]:
        return [model for number in range(len(self.app.agents)) for model in self._models_of(number)]

    def _models_of(self, number: int) -> tuple[ScriptedModel, ScriptedModel]:
        agent = self.app.agents[f"agent-{number}"]
        assert isinstance(agent.model, WatchedModel)
        assert isinstance(agent.compaction.model, ScriptedModel)
        return agent.model.model, agent.compaction.model

    async def start(self) -> None:
        await self.app.store.open()
        token = _life.set(self)
        try:
            await self.worker.start()
        finally:
            _life.reset(token)

    async def stop(self, grace_s: float) -> None:
        await self.worker.stop(grace_s)
        await self.app.store.close()

    async def drop(self) -> None:
        self.dead = True
        self.worker._stopping = asyncio.get_running_loop().create_future()  # the dead do not come back
        running = {task for task in self.tasks if not task.done()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=END_S)
        await self.app.store.close()
        await self._guard_ends()
        lock = self.worker._lock
        assert lock is not None
        assert lock._fd is not None
        os.close(lock._fd)
        lock._fd = None

    async def _guard_ends(self) -> None:
        """It finds its pipe closed, as when the worker's process is gone, and lets go of the lock that it shares."""
        guard, watchdog = self.worker.guard, self.worker.watchdog
        assert guard is not None
        assert watchdog is not None
        watchdog.stop()
        last_words.remove()
        await self.worker._upkeep.run(guard.stop)

    def bury(self) -> None:
        """The lease thread of a dead worker: in a process it would have died with it."""
        if self.dead and self.worker._keeper is not None:
            self.worker._keeper.stop(END_S)
            self.worker.sync.stop()
            self.worker._upkeep.stop()
        self.evidence.close()

    def left_behind(self) -> list[str]:
        return [f"{self.name} left {task!r}" for task in self.tasks if not task.done()]

    # --- what keeps it busy

    @property
    def has_flushed(self) -> bool:
        deltas = self.worker.deltas
        return deltas._in_flight is None and not deltas.buffered_bytes

    def is_held_at(self, chat: int) -> bool:
        """Its model, or that of its summaries, waits for the test."""
        return any(
            model.open_streams > 0 and any(h.reached.is_set() and not h.resumed.is_set() for h in _holds(model))
            for model in self._models_of(chat)
        )

    def let_models_go(self) -> None:
        for model in self.models:
            for hold in _holds(model):
                if hold.reached.is_set():
                    hold.resumed.set()

    def let_everything_go(self) -> None:
        """From now on, nothing waits for the test."""
        for model in self.models:
            for response in model.script.responses:
                for step in response:
                    if isinstance(step, Hold):
                        model.resume(step.name)
        self.gates.open_for_good = True
        self.gates.open()


def _holds(model: ScriptedModel) -> list[Any]:
    return list(model._holds.values())


def adopt_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on every task belongs to the life that made it, the tasks of its store aside."""

    def make(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
    ) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **more)
        life = _life.get()
        code = getattr(coroutine, "cr_code", None)
        if life is not None and not (code and f"{os.sep}holdfast{os.sep}store{os.sep}" in code.co_filename):
            life.tasks.add(task)
            task.add_done_callback(life.tasks.discard)
        return task

    loop.set_task_factory(make)


class Complaints(logging.Handler):
    """What the workers logged that should not happen."""

    BAD = frozenset({"outcome_lost", "runner_failed", "hook_hung", "hook_failed", "lease_failed"})

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.counts: Counter[str] = Counter()
        self.why_moved: Counter[str] = Counter()
        self.bad: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        action = getattr(record, "action", "")
        self.counts[action] += 1
        if action == "moved":
            self.why_moved[str(getattr(record, "why", ""))] += 1
        if action in self.BAD:
            story = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
            self.bad.append(f"{action}: {record.getMessage()} {story}")

    def __enter__(self) -> "Complaints":
        logger = logging.getLogger("holdfast")
        self._level, self._propagates = logger.level, logger.propagate
        logger.propagate = False  # what matters is told by the judge
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("holdfast")
        logger.removeHandler(self)
        logger.setLevel(self._level)
        logger.propagate = self._propagates


def evidence_of(path: Path, number: int) -> Evidence:
    return Evidence(path, f"w{number}")
