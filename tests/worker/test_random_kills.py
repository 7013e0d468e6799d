"""The same random turns, with real deaths: worker processes that are killed with SIGKILL, one after the other.

Some die at a crash point, armed by `HOLDFAST_CRASH_AT`, in the middle of a commit, a claim or a flush; the others at
whatever they are doing when their time has come. Clients go on all the while. A last worker, in this process, brings
everything to rest, and the judge is that of the random turns.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec
import pytest

from holdfast.app import App
from holdfast.models.scripted import Call, Cut, Fail, Hold, Say, Think, Together
from tests.support.forks import Fork
from tests.support.programs import Program
from tests.support.scale import scaled
from tests.worker.clients import Clients
from tests.worker.evidence import read_evidence
from tests.worker.lives import BACKOFF_MS, Life, SteppedClock, agents, evidence_of, options
from tests.worker.mortal import Scripts, in_a_moment
from tests.worker.toolbox import APPROVED, AT_ONCE, GATED, Gates
from tests.worker.turn_judge import judge
from tests.worker.world import bring_to_rest

KILLS = scaled(8, 12)
IDLE_S_MAX = 60.0  # within which a worker begins something, however slow the machine is
LIFE_S_MAX = 1.5  # a worker that did not reach its crash point by then is killed wherever it is
RESPONSES = 40

# Where a worker's own writes pass, and up to which time it may die there.
POINTS = {
    "write.begun": 20,
    "write.chat.after": 20,
    "write.journal.after": 20,
    "write.calls.after": 10,
    "commit.before": 20,
    "commit.after": 20,
    "ack.before": 20,
    "claim.before": 2,
    "claim.after": 2,
    "deltas.before": 5,
    "deltas.after": 5,
    "lease.after": 1,
    "expire.after": 2,
}
OPS = (
    *("send", "send", "steer", "interrupt", "stop", "stop_and_clear", "edit", "promote", "withdraw"),
    *("approve", "approve", "approve", "answer", "answer", "deny", "retry", "retry", "fork"),
    *("compact", "compact"),
)


def scripts(dice: random.Random) -> Scripts:
    def response() -> tuple[object, ...]:
        kind = dice.randrange(8)
        said = Say(text="A text that comes in many pieces. ", piece_chars=3, pace_s=0.002)
        call = Call(name=dice.choice((*AT_ONCE, *GATED, *APPROVED)))
        both = Together(calls=(Call(name=dice.choice(AT_ONCE)), Call(name=dice.choice(GATED))))
        passing = dice.choice((Fail(status=500, attempts=1), Fail(status=429, attempts=1), Cut(attempts=1)))
        kinds = ((said,), (said, Hold(name="?"), said), (call,), (said, call), (both,), (said, both))
        return (*kinds, (said, passing, call), (Think(text="Hm. "), Hold(name="?"), call))[kind]

    def script() -> tuple[tuple[object, ...], ...]:
        return tuple(response() for _ in range(RESPONSES))

    return msgspec.convert([script() for _ in range(3)], Scripts, from_attributes=True)


class Executioner:
    """Starts worker processes and sees to it that each dies; clients act all the while."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self.url = url
        self.evidence = folder / "evidence"
        self.dice = dice
        self.clock = SteppedClock()
        self.plan = scripts(dice)
        self.died_by_themselves = 0

    async def live_and_die(self, number: int, clients: Clients) -> None:
        """Every other one is not killed before it has done something, however slow the machine is."""
        life = f"w{number}"
        point = self.dice.choice([*POINTS, *[""] * 4])  # "": at any moment
        order = {"HOLDFAST_CRASH_AT": f"{point}:{self.dice.randint(1, POINTS[point])}"} if point else {}
        plan = msgspec.json.encode(self.plan).decode()
        arguments = (self.url, str(self.evidence), life, str(self.clock.ahead_ms), plan)
        with Program("tests.worker.mortal", *arguments, environ=order) as program:
            await asyncio.to_thread(program.hear)  # `ready`, or its end
            life_s = LIFE_S_MAX if point else self.dice.uniform(0.05, 0.6)
            await self._act_until_dead(program.process, clients, life, life_s, at_work=number % 2 == 0)
        assert program.process.returncode == -signal.SIGKILL

    async def _act_until_dead(
        self, process: Fork, clients: Clients, life: str, life_s: float, *, at_work: bool
    ) -> None:
        """`at_work`: its time begins with the first thing that it does."""
        dying = asyncio.ensure_future(process.ended())
        time = asyncio.get_running_loop().time
        idle_until = time() + IDLE_S_MAX
        dies_at = time() + life_s
        while (left_s := dies_at - time()) > 0:
            if at_work and time() < idle_until:
                at_work = not any(line.life == life for line in read_evidence(self.evidence))
                dies_at = time() + life_s
            await clients.act(self.dice.choice(OPS), self.dice.randrange(5), self.dice.randrange(3), (life,))
            done, _ = await asyncio.wait((dying,), timeout=min(left_s, self.dice.uniform(0.0, 0.2)))
            if done:
                self.died_by_themselves += 1
                return
        process.kill()
        await dying


@pytest.mark.timeout(600)  # so many processes are started one after the other: a bound for hangs, not for speed
async def test_workers_that_are_killed_anywhere_lose_nothing_and_repeat_nothing(
    store_url: str, tmp_path: Path
) -> None:
    executioner = Executioner(store_url, tmp_path, random.Random(int(os.environ.get("HOLDFAST_RANDOM_KILLS", "3"))))
    clock, plan, path = executioner.clock, executioner.plan, executioner.evidence
    own = evidence_of(path, 0)
    async with App(store_url, agents(plan, own, Gates()), options=options(clock)) as app:
        clients = Clients(app)
        for number in range(len(plan)):
            await clients.create(number)
        for number in range(1, KILLS + 1):
            clock.ahead_ms += BACKOFF_MS
            await executioner.live_and_die(number, clients)
        clock.ahead_ms += BACKOFF_MS
        last = Life(store_url, in_a_moment(plan), evidence_of(path, KILLS + 1), clock)
        last.let_everything_go()
        await last.start()
        await bring_to_rest(clients, clock)
        await last.stop(grace_s=1.0)
        await clients.read_to_the_end()
        evidence = read_evidence(path)
        assert await judge(app.store, clients, evidence) == []
    last.bury()
    own.close()
    # More, as a rule; but how many of the others get there in their time is for the machine to say.
    assert executioner.died_by_themselves > 0, "the crash points are not where workers pass"
    assert len({line.life for line in evidence}) > 2, "nearly all were killed before they had done anything"
