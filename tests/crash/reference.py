"""What the scenario leaves behind when nobody disturbs it: every state that was ever committed, step by step.

Also where the crash points are: `occurrence` turns "this point, in that step" into the number that
`HOLDFAST_CRASH_AT` takes.
"""

from dataclasses import dataclass, field

from holdfast import faults
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.rows import Rows, read_rows
from tests.support.scenario import STEP_NAMES, STEPS, Run


@dataclass
class Reference:
    reached: list[tuple[str, str]] = field(default_factory=list)  # (point, step), in the order of the run
    committed: dict[str, list[Rows]] = field(default_factory=dict)  # by step: before it, and after each transaction

    def before(self, step: str) -> Rows:
        return self.committed[step][0]

    def after(self, step: str) -> Rows:
        return self.committed[step][-1]

    def occurrence(self, point: str, step: str) -> int:
        """The time at which the point is reached in the middle of the step, counted from the start of the run."""
        steps = [at for reached, at in self.reached if reached == point]
        here = [number for number, at in enumerate(steps, start=1) if at == step]
        assert here, f"{point} is not reached in {step}"
        return here[len(here) // 2]


async def play_undisturbed(url: str, prefixes: tuple[str, ...] = ("",)) -> dict[str, Reference]:
    """One reference per prefix; several play one after the other."""
    found = {prefix: Reference() for prefix in prefixes}
    clock = FakeClock()
    store = open_store(url, StoreOptions(clock=clock))
    for prefix, reference in found.items():
        run = Run(store, clock, url, prefix=prefix)
        _record_points(run, reference)
        before: Rows = {}
        for step in STEPS:
            if len(prefixes) > 1 and step.alone:
                continue
            reference.committed[step.name] = [before]
            run.step = step
            await run.play(step)
            before = portion(read_rows(url), prefix)
            reference.committed[step.name].append(before)
        run.close()
        faults.disarm()
    await store.close()
    return found


def _record_points(run: Run, reference: Reference) -> None:
    def note(point: str) -> None:
        reference.reached.append((point, run.step.name))
        faults.arm(point, lambda: note(point))
        if point == "commit.after" and not run.step.is_one_transaction:
            reference.committed[run.step.name].append(portion(read_rows(run.url), run.prefix))

    for point in faults.POINTS:
        faults.arm(point, lambda point=point: note(point))  # type: ignore[misc]


def portion(rows: Rows, prefix: str) -> Rows:
    """The rows of one run among several."""
    return {name: found for name, found in rows.items() if name.partition(" ")[2].startswith(prefix)}


assert len(set(STEP_NAMES)) == len(STEP_NAMES)
