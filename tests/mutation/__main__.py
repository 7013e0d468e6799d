"""Run the core's tests against every mutant of the core: `make mutants`, or `python -m tests.mutation [FILE …]`.

A FILE is a path below core/, such as `cells/turn.py`.

The tests are collected once and run once, while it is noted which lines each of them runs. Then each mutant lives in
a fork of this process: its code is put in place of the original's, and those tests run that pass its line, the
shortest first, until one fails. A mutant that none of them notices survives. It is shown with its line; either a test
is missing, or the code says more than it means. Tests with random examples are left out: each would cost every mutant
seconds, and whether it notices one is luck.
"""

import gc
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TextIO

import pytest
from _pytest.runner import runtestprotocol

from bench.figures import Figures
from tests.mutation.mutants import Mutant, find_mutants, mutated

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "holdfast" / "core"
TESTS = "tests/core"
LEFT_OUT = ("diagrams.py",)  # draws pictures for the documentation
KILLED_AIM = 0.95
CPU_S_MAX = 120  # of one mutant, in which a loop may have lost its end
PARALLEL = 2
KILLED, SURVIVED, UNSEEN = 0, 3, 4

Line = tuple[str, int]


class Victim(NamedTuple):
    file: Path
    mutant: Mutant
    items: list[pytest.Item]


class Hunt:
    """A plugin of pytest: takes the place of its loop over the tests."""

    def __init__(self, files: Sequence[Path], out: TextIO) -> None:
        self._files = list(files)
        self._out = out  # pytest takes what is printed for the tests' own
        self.count = 0
        self.survivor_count = 0
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        seen = self._run_all(session.items)
        if self.failed:
            return True
        victims = list(self._victims(seen))
        self.count = len(victims)
        waiting, running = victims[::-1], dict[int, Victim]()
        while waiting or running:
            while waiting and len(running) < PARALLEL:
                victim = waiting.pop()
                if not victim.items:
                    self._survives(victim, "no test runs this line")
                elif child := os.fork():
                    running[child] = victim
                else:
                    _live(victim)
            if running:
                child, status = os.wait()
                victim = running.pop(child)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status) == SURVIVED:
                    self._survives(victim, f"{len(victim.items)} tests run this line")
        return True

    def _survives(self, victim: Victim, why: str) -> None:
        self.survivor_count += 1
        file, mutant, _ = victim
        print(
            f"  {file.relative_to(ROOT)}:{mutant.line}: {mutant.before}  →  {mutant.after}  ({why})",
            file=self._out,
            flush=True,
        )

    def _run_all(self, items: Sequence[pytest.Item]) -> dict[Line, list[tuple[float, pytest.Item]]]:
        """Each line of the files, and the tests that run it with what they cost."""
        names = {str(file) for file in self._files}
        seen: dict[Line, list[tuple[float, pytest.Item]]] = {}
        for number, item in enumerate(items):
            lines: set[Line] = set()

            def trace(frame: FrameType, event: str, _: Any, lines: set[Line] = lines) -> Any:
                if frame.f_code.co_filename not in names:
                    return None
                if event == "line":
                    lines.add((frame.f_code.co_filename, frame.f_lineno))
                return trace

            began = time.process_time()
            sys.settrace(trace)
            reports = runtestprotocol(item, log=False, nextitem=_at(items, number + 1))
            sys.settrace(None)
            cost = time.process_time() - began
            self.failed += [f"{item.nodeid}: {report.longreprtext}" for report in reports if report.failed]
            for line in lines:
                seen.setdefault(line, []).append((cost, item))
        return seen

    def _victims(self, seen: dict[Line, list[tuple[float, pytest.Item]]]) -> Iterator[Victim]:
        for file in self._files:
            for mutant in find_mutants(file.read_text()):
                passing = {item: cost for line in mutant.lines for cost, item in seen.get((str(file), line), ())}
                yield Victim(file, mutant, sorted(passing, key=lambda item: passing[item]))


def _live(victim: Victim) -> None:
    """In the fork, which does not come back from here."""
    code = UNSEEN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
        gc.unfreeze()  # the functions of the core are among what was imported before the tests
        put_in_place(victim.file, victim.mutant)
        code = SURVIVED if all(_passes(victim.items, number) for number in range(len(victim.items))) else KILLED
    finally:
        os._exit(code)


def _passes(items: Sequence[pytest.Item], number: int) -> bool:
    reports = runtestprotocol(items[number], log=False, nextitem=_at(items, number + 1))
    return not any(report.failed for report in reports)


def _at(items: Sequence[pytest.Item], number: int) -> pytest.Item | None:
    return items[number] if number < len(items) else None


def put_in_place(file: Path, mutant: Mutant) -> None:
    """Every function that was made from this file gets the code that the mutant has for it, wherever it is kept."""
    module = compile(mutated(file.read_text(), mutant), str(file), "exec", dont_inherit=True)
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(file):
            old = function.__code__
            if (new := codes.get((old.co_qualname, old.co_firstlineno))) is not None:
                function.__code__ = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def files_of_the_core(names: Sequence[str]) -> list[Path]:
    """Those of these names, which are paths below core/; without a name all of them."""
    every = {str(file.relative_to(CORE)): file for file in sorted(CORE.rglob("*.py"))}
    return [file for name, file in every.items() if name not in LEFT_OUT and (not names or name in names)]


def main(names: Sequence[str]) -> bool:
    hunt = Hunt(files_of_the_core(names), os.fdopen(os.dup(1), "w"))
    unseen = [f"-pno:{plugin}" for plugin in ("terminal", "cacheprovider", "xdist")]
    pytest.main([TESTS, "-mnot hypothesis", *unseen, "-oaddopts=--import-mode=importlib"], plugins=[hunt])
    if hunt.failed or not hunt.count:
        print("\n".join(hunt.failed) or "There are no mutants.")
        return False
    killed = hunt.count - hunt.survivor_count
    figures = Figures()
    figures.add("mutants of the core that its tests kill", 100 * killed / hunt.count, "%", at_least=100 * KILLED_AIM,
                note=f"{killed} of {hunt.count}")  # fmt: skip
    figures.write()
    return killed / hunt.count >= KILLED_AIM


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
