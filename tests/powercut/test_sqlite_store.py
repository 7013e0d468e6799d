"""The SQLite store under power cuts: what was acknowledged is on the disk, and nothing is there by half.

Several runs of the scenario at once, with a restart in the middle. Then the power is cut after any write, sync or
answer, in many ways. The same judge has to find losses where SQLite is told to sync less.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from holdfast.store.records import StoreOptions
from holdfast.store.sqlite import writer as sqlite_writer
from holdfast.store.sqlite.store import SqliteStore
from holdfast.system.clock import FakeClock
from tests.crash.reference import Reference
from tests.powercut.images import OPENING, PREFIXES, SHARED_STEPS, judge_all
from tests.support.powercut import PowerCutVFS
from tests.support.scenario import Run, Step

RESTARTED_AFTER = "finish_the_superseded_work"
IMAGES = 150


@pytest.fixture(autouse=True)
def checkpoints_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_PAGES", 60)


async def work(disk: PowerCutVFS, path: Path, synchronous: str) -> Counter[str]:
    """All runs, all steps, every answer marked. Returns what the store says it did."""
    clock, did = FakeClock(), Counter[str]()
    store = SqliteStore(f"/{path}", StoreOptions(clock=clock), vfs=disk.name, synchronous=synchronous)
    runs = [Run(store, clock, "", prefix=prefix) for prefix in PREFIXES]

    async def play(run: Run, steps: list[Step]) -> None:
        for step in steps:
            await run.play(step)
            disk.recorder.mark((run.prefix, step.name))

    restart = 1 + [step.name for step in SHARED_STEPS].index(RESTARTED_AFTER)
    for steps in (SHARED_STEPS[:restart], SHARED_STEPS[restart:]):
        await runs[0].play(OPENING)
        disk.recorder.mark(("", OPENING.name))
        await asyncio.gather(*(play(run, steps) for run in runs))
        did.update({name: value for name, value in store.stats().items() if isinstance(value, int)})
        for run in runs:
            run.close()
        await store.close()
    return did


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_power_cut_loses_an_acknowledged_write(
    disk: PowerCutVFS, tmp_path: Path, references: dict[str, Reference], seed: int
) -> None:
    did = await work(disk, tmp_path / "holdfast.db", "FULL")
    assert did["write_jobs"] > did["write_transactions"], "nobody ever shared a transaction"
    assert did["checkpoints"] >= 4
    verdicts = await judge_all(disk.recorder, tmp_path, references, seed=seed, count=IMAGES)
    assert verdicts.keys() == {"ok"}, verdicts


@pytest.mark.long
async def test_with_fewer_syncs_the_same_judge_finds_what_is_lost(
    disk: PowerCutVFS, tmp_path: Path, references: dict[str, Reference]
) -> None:
    """synchronous=NORMAL syncs for checkpoints only: what is found is sound, but acknowledged writes are gone."""
    await work(disk, tmp_path / "holdfast.db", "NORMAL")
    verdicts = await judge_all(disk.recorder, tmp_path, references, seed=1, count=IMAGES)
    assert verdicts.keys() == {"ok", "lost"}, verdicts


async def test_without_syncs_the_same_judge_finds_losses_and_damage(
    disk: PowerCutVFS, tmp_path: Path, references: dict[str, Reference]
) -> None:
    await work(disk, tmp_path / "holdfast.db", "OFF")
    verdicts = await judge_all(disk.recorder, tmp_path, references, seed=1, count=IMAGES)
    assert {"lost", "corrupt"} <= verdicts.keys(), verdicts.keys()
