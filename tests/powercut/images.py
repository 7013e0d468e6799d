"""What a power cut left of a store, opened by the store itself and judged.

Several runs of the scenario share the store. Each marks every step that was answered, so every image says how far
each run has to be: exactly where its last answer left it, or one step further.
"""

from pathlib import Path

from holdfast.errors import SchemaError, StoreCorrupt
from holdfast.store.records import StoreOptions
from holdfast.store.sqlite.store import SqliteStore
from holdfast.system.clock import FakeClock
from tests.crash.reference import Reference, portion
from tests.support.aftermath import Successor, find_faults
from tests.support.leases import silence
from tests.support.powercut import Crash, Recorder, materialise
from tests.support.rows import Rows, read_rows
from tests.support.scenario import STEPS

PREFIXES = ("0-", "1-", "2-", "3-")
SHARED_STEPS = [step for step in STEPS if not step.alone]
OPENING, *SHARED_STEPS = SHARED_STEPS
EVERY_NTH_TO_THE_END = 10


async def judge_all(
    recorder: Recorder, folder: Path, references: dict[str, Reference], *, seed: int, count: int
) -> dict[str, list[str]]:
    """By verdict, the crashes that came to it. Now and then, all work that an image holds is also finished."""
    verdicts: dict[str, list[str]] = {}
    for number, crash in enumerate(recorder.crashes(seed=seed, count=count)):
        image = materialise(crash.files, folder / f"image-{number}")
        verdict = await judge(crash, image, references, finish=number % EVERY_NTH_TO_THE_END == 0)
        verdicts.setdefault(verdict, []).append(f"{image}: {crash.point}")
    return verdicts


async def judge(crash: Crash, image: Path, references: dict[str, Reference], *, finish: bool = False) -> str:
    """ok, lost (an answered step is gone), mangled (no run ever looked like this) or corrupt."""
    clock = FakeClock()
    try:
        async with SqliteStore(f"/{image}/holdfast.db", StoreOptions(clock=clock)) as store:
            if await store.check_integrity():
                return "corrupt"
            found = read_rows(f"sqlite:///{image}/holdfast.db")
            verdicts = {_judge_run(portion(found, prefix), prefix, crash, references[prefix]) for prefix in PREFIXES}
            if finish and verdicts == {"ok"}:
                await _finish(store, clock)
    except (StoreCorrupt, SchemaError):  # the latter: some pages of the schema came through, and others did not
        return "corrupt"
    return next(verdict for verdict in ("mangled", "lost", "ok") if verdict in verdicts)


def _judge_run(found: Rows, prefix: str, crash: Crash, reference: Reference) -> str:
    answered = sum(whose == prefix for whose, _ in crash.acknowledged)
    states = [{}, *(reference.after(step.name) for step in SHARED_STEPS)]
    if found in states[answered : answered + 2]:
        return "ok"
    return "lost" if found in states[:answered] else "mangled"


async def _finish(store: SqliteStore, clock: FakeClock) -> None:
    """The machine is up again, its workers are not: everything can be taken over and brought to an end."""
    await silence(store, clock)
    await store.sweep()
    assert await find_faults(store) == []
    await Successor(store, clock).finish_everything()
    assert await find_faults(store) == []
