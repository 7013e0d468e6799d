"""What must hold of a store whose writer was killed: judged from the writer's own log and an undisturbed run."""

from collections.abc import Sequence

import msgspec

from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.crash.reference import Reference, portion
from tests.crash.writer import Line
from tests.support.aftermath import Successor, find_faults
from tests.support.rows import Rows, difference, read_rows
from tests.support.scenario import STEP_NAMES, Run, step_named


class Judge:
    """Judges one run of the scenario, by what its process had written down when it died."""

    def __init__(self, log: Sequence[Line], reference: Reference, store: Store, clock: FakeClock, url: str) -> None:
        assert log, "the process died before it asked for anything"
        self.answered = [line for line in log if line.answered]
        self.in_flight = None if log[-1].answered else log[-1]
        self.last = log[-1]
        self.prefix = self.last.prefix
        self.about_to = {line.step: line for line in log if not line.answered}
        self.reference = reference
        self.run = Run(store, clock, url, prefix=self.prefix)
        self.store = store
        self.url = url
        assert [line.step for line in self.answered] == _steps_before(log)

    async def judge(self) -> None:
        try:
            self.every_answered_step_is_there_and_no_half_one()
            await self.whatever_was_answered_is_answered_the_same_again()
            await self.what_was_in_flight_happens_exactly_once()
        finally:
            self.run.close()

    def rows(self) -> Rows:
        return portion(read_rows(self.url), self.prefix)

    def every_answered_step_is_there_and_no_half_one(self) -> None:
        found = self.rows()
        if self.in_flight is None:
            assert difference(found, self.reference.after(self.last.step)) == []
            return
        possible = self.reference.committed[self.in_flight.step]
        if found not in possible:
            ways = [f"against state {n}: {difference(found, state)}" for n, state in enumerate(possible)]
            raise AssertionError(f"killed in {self.in_flight.step}, found what no transaction left: {ways}")

    async def whatever_was_answered_is_answered_the_same_again(self) -> None:
        """A client that did not hear the answer asks again with its key, a runner with its commit id."""
        if self.last.step == "prune_receipts":
            return  # the answers are being forgotten
        before = self.rows()
        for line in self.answered:
            step = step_named(line.step)
            if step.kind in ("create", "client", "fork") or self._is_last_commit(line, before):
                self._remember(line.step)
                again = msgspec.json.encode(await self.run.play(step, repeating=True))
                if step.kind != "commit":
                    assert again == bytes(line.answer), f"{line.step} was answered {line.answer!r}, now {again!r}"
        assert difference(self.rows(), before) == []

    async def what_was_in_flight_happens_exactly_once(self) -> None:
        if self.in_flight is None:
            return
        step = step_named(self.in_flight.step)
        self._remember(step.name)
        await self.run.play(step, repeating=True)
        if step.is_one_transaction:
            assert difference(self.rows(), self.reference.after(step.name)) == []

    def _is_last_commit(self, line: Line, rows: Rows) -> bool:
        """Of each chat the last commit's id is kept: a runner has one commit on its way at a time."""
        if step_named(line.step).kind != "commit":
            return False
        ids = [values.get("commit_id") for found in rows.values() for table, values in found if table == "chats"]
        return f"commit {self.prefix}{line.step}" in ids

    def _remember(self, step: str) -> None:
        """Know what the dead process knew when it asked for this step."""
        line = self.about_to[step]
        self.run.held = dict(line.held)


def _steps_before(log: Sequence[Line]) -> list[str]:
    """The log itself is in order: asked, answered, asked, answered, …"""
    asked = [line.step for line in log if not line.answered]
    assert asked == sorted(asked, key=STEP_NAMES.index)
    return asked if log[-1].answered else asked[:-1]


async def work_goes_on(store: Store, clock: FakeClock) -> None:
    """The dead process is noticed, everything it held is taken over and finished, nobody is stranded."""
    await store.sweep()
    assert await store.find_violations() == []
    assert [lease for lease in await store.list_workers() if lease.lock_path is not None] == []
    assert await find_faults(store) == []
    await Successor(store, clock).finish_everything()
    assert await find_faults(store) == []


async def reopen_and_judge(url: str, log: list[Line], reference: Reference) -> None:
    clock = FakeClock(wall_ms=log[-1].wall_ms)
    async with open_store(url, StoreOptions(clock=clock)) as store:
        await Judge(log, reference, store, clock, url).judge()
        await work_goes_on(store, clock)
        if url.startswith("sqlite"):
            assert await store.check_integrity() == []  # type: ignore[attr-defined]
