"""Plays a plan: clients act, workers come, go and die, and in the end a healthy one brings everything to rest."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.app import App
from holdfast.core.codec import decode_entry
from holdfast.core.journal import Compacted
from holdfast.core.limits import LIMITS
from holdfast.core.records import Snapshot, State
from holdfast.store.notify.bell import control_topic
from tests.worker.clients import Clients, Followed
from tests.worker.evidence import Line, read_evidence
from tests.worker.lives import Complaints, Life, SteppedClock, adopt_tasks, agents, evidence_of, options
from tests.worker.plans import CLIENT_OPS, Act, Plan
from tests.worker.toolbox import Gates
from tests.worker.turn_judge import judge

LIVES_MAX = 2  # workers at a time
SETTLE_S = 60.0
MOVED_MAX = 100  # a runner that looks again and again has lost its way


Tamper = Callable[[Clients, list[Line]], object]


class World:
    """Plays one plan on one store."""

    def __init__(self, url: str, folder: Path, plan: Plan, tamper: Tamper | None = None) -> None:
        self.url = url
        self.plan = plan
        self.tamper = tamper  # with what the judge is told, to see that it notices
        self.clock = SteppedClock()
        self.path = folder / "evidence"
        self.lives: list[Life] = []
        self.all_lives: list[Life] = []
        self.wrong: list[str] = []
        self.compactions: Counter[str] = Counter()  # by why they were made

    async def play(self) -> list[str]:
        adopt_tasks(asyncio.get_running_loop())
        own = evidence_of(self.path, 0)
        app = App(self.url, agents(self.plan.scripts, own, Gates()), options=options(self.clock))
        try:
            with Complaints() as complaints:
                async with app:
                    self.clients = Clients(app)
                    await self._live()
                    await self._bring_to_rest()
                    await self.clients.read_to_the_end()
                    self._count_compactions()
                    evidence = read_evidence(self.path)
                    if self.tamper is not None:
                        self.tamper(self.clients, evidence)
                    self.wrong += await judge(app.store, self.clients, evidence)
            self.wrong += complaints.bad
            if complaints.counts["moved"] > MOVED_MAX:
                self.wrong.append(f"runners looked again and again: {complaints.why_moved.most_common(3)}")
        finally:
            for life in self.all_lives:
                life.bury()
            own.close()
        return self.wrong

    def _count_compactions(self) -> None:
        for item in (item for followed in self.clients.followed for item in followed.items if item.seq is not None):
            entry = decode_entry(item.body)
            if isinstance(entry, Compacted):
                self.compactions["left out" if entry.trimmed else entry.why] += 1

    async def _live(self) -> None:
        for number in range(len(self.plan.scripts)):
            await self.clients.create(number)
        await self._start()
        await self._settle()
        for act in self.plan.acts:
            await self._act(act)
            if isinstance(act.pause, int):
                for _ in range(act.pause):
                    await asyncio.sleep(0)
            else:
                await self._settle()
                if act.pause == "read":
                    await self._readers_catch_up()

    async def _act(self, act: Act) -> None:
        if act.op in CLIENT_OPS:
            await self.clients.act(act.op, act.chat, act.pick, self._living())
            for life in self.lives:  # a hint, so that nobody waits until a runner looks by itself
                life.app.store.bell.ring([control_topic(followed.chat.id) for followed in self.clients.followed])
        elif act.op == "start":
            if len(self.lives) < LIVES_MAX:
                await self._start()
        elif act.op == "let_models_go":
            for life in self.lives:
                life.let_models_go()
        elif act.op == "let_bodies_go":
            for life in self.lives:
                life.gates.open()
        elif self.lives:
            await self._end(self.lives.pop(0), act.op)

    def _living(self) -> tuple[str, ...]:
        return tuple(life.name for life in self.lives)

    async def _start(self) -> None:
        life = Life(self.url, self.plan.scripts, evidence_of(self.path, len(self.all_lives) + 1), self.clock)
        self.all_lives.append(life)
        await life.start()
        self.lives.append(life)

    async def _end(self, life: Life, how: str) -> None:
        if how == "drop":
            await life.drop()
            if self.lives:
                await self.lives[0].app.store.sweep()  # the survivors look every few seconds
        else:
            await life.stop(grace_s=0.0 if how == "shut_down" else 0.05)
            self.wrong += life.left_behind()

    # --- waiting

    async def _settle(self) -> None:
        """Until nothing more happens by itself: all rest, wait for somebody, or are held by the test."""
        if not self.lives:
            return
        give_up_at = asyncio.get_running_loop().time() + SETTLE_S
        snapshots = await self.clients.snapshots()
        while busy := [what for followed, snapshot in snapshots if (what := self._busy_with(followed, snapshot))]:
            if asyncio.get_running_loop().time() > give_up_at:
                self.wrong.append(f"never settled: {busy}")
                return
            pass_time(self.clock, snapshots)
            await asyncio.sleep(0.003)
            snapshots = await self.clients.snapshots()
        for followed in self.clients.followed:
            if followed.stopping is not None:
                seq, living = followed.stopping
                if living == self._living():
                    followed.whole_stops[seq] = living
                followed.stopping = None

    async def _readers_catch_up(self) -> None:
        """Until readers have seen all that was said so far."""
        give_up_at = asyncio.get_running_loop().time() + SETTLE_S
        while asyncio.get_running_loop().time() < give_up_at:
            if all(life.has_flushed for life in self.lives) and await self.clients.have_read_all():
                return
            await asyncio.sleep(0.003)
        self.wrong.append("the readers never caught up")

    def _busy_with(self, followed: Followed, snapshot: Snapshot) -> str:
        chat = snapshot.chat
        held = any(life.is_held_at(followed.number) or life.gates.waiting[chat.id] for life in self.lives)
        at_rest = chat.state in (State.IDLE, State.FAILED, State.WAITING)
        at_work = chat.state is State.RUNNING and held
        # A worker holds one chat that lost many workers at a time; the test may be holding another one in it.
        in_turn = chat.worker is None and chat.unclean >= LIMITS.suspect_claims_min
        return "" if at_rest or at_work or in_turn else f"{chat.state}/{chat.phase} of {chat.worker}"

    async def _bring_to_rest(self) -> None:
        """By a healthy worker, with somebody who answers whatever is asked."""
        for life in self.lives:
            life.let_everything_go()
        if not self.lives:
            await self._start()
            self.lives[0].let_everything_go()
        await bring_to_rest(self.clients, self.clock)
        while self.lives:
            await self._end(self.lives.pop(), "drain")


def pass_time(clock: SteppedClock, snapshots: Sequence[tuple[Followed, Snapshot]]) -> None:
    """A chat whose worker was lost again and again rests a while; nobody waits for that."""
    wake_ats = [snapshot.chat.wake_at or 0 for _, snapshot in snapshots]
    clock.ahead_ms += max(0, max(wake_ats) - clock.wall_ms())


async def bring_to_rest(clients: Clients, clock: SteppedClock) -> None:
    """Answer whatever is asked until all rest. If they do not, the judge says so."""
    give_up_at = asyncio.get_running_loop().time() + SETTLE_S
    while asyncio.get_running_loop().time() < give_up_at:
        snapshots = await clients.snapshots()
        pass_time(clock, snapshots)
        states = {snapshot.chat.state for _, snapshot in snapshots}
        if states <= {State.IDLE, State.FAILED}:
            break
        if State.WAITING in states:
            await clients.answer_everything()
        await asyncio.sleep(0.003)
