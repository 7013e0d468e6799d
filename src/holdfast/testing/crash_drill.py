"""`CrashDrill`: an agent of yours is killed with SIGKILL at each of its writes, started again, and looked at.

Every run is a process of its own in a folder of its own, with your app as `MODULE:APP` names it. Nothing is mocked:
the process dies as it would by a power button, and the next one finds what the store has. What your tools did is
yours to look at, in the run's folder or wherever they did it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from msgspec import Struct

from holdfast.faults import POINTS

# Between two writes nothing is known that is not known after the first: these two are all there is to survive.
AROUND_WRITES = ("commit.before", "commit.after")
KILLS_MAX = 500


class Kill(Struct, frozen=True):
    """Where a process is killed: the `at`-th time that it reaches a crash point."""

    point: str
    at: int

    def __str__(self) -> str:
        return f"{self.point}:{self.at}"


class DrillCall(Struct, frozen=True):
    """A tool call of the turn. `state` is done, denied, cancelled, or unknown: its process died while it ran."""

    tool: str
    arguments: str
    state: str
    result: str | None = None


class Survived(Struct, frozen=True):
    """What became of the turn. `kill` is None for the run that was not killed; `folder` is where it ran."""

    kill: Kill | None
    folder: Path
    chat_id: str
    state: str
    text: str
    calls: tuple[DrillCall, ...] = ()
    error: str | None = None

    @property
    def unknown(self) -> tuple[DrillCall, ...]:
        """Calls of `unsafe` tools that the model was told of: they may or may not have happened."""
        return tuple(call for call in self.calls if call.state == "unknown")


class CrashDrill:
    """One turn of an agent, to be run and killed as often as you like.

    `app` is `MODULE:APP`, as for the commands; `folder` is where the runs have their folders, such as `tmp_path`.
    `database` is where they all keep their chats; without one, each run has what the app names in its own folder,
    or a SQLite file there. Calls that ask for approval are approved, unless `approve` is False: then the turn waits.
    """

    def __init__(
        self,
        app: str,
        agent: str,
        message: str,
        *,
        folder: str | Path,
        database: str | None = None,
        approve: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        self._asked = {"app": app, "agent": agent, "message": message, "database": database, "approve": approve}
        self._folder = Path(folder)
        self._timeout_s = timeout_s
        self._runs = 0

    def undisturbed(self) -> Survived:
        """The turn as it is when it is not killed. Raises AssertionError if it does not end."""
        survived = self._run(None)
        assert survived is not None
        return survived

    def kill(self, kill: Kill) -> Survived | None:
        """Kill it there, start it again, and tell what became of it. None: it was over before it came there."""
        if kill.point not in POINTS:
            raise ValueError(f"there is no crash point {kill.point!r}; the points are: {', '.join(POINTS)}")
        return self._run(kill)

    def run(self, points: Sequence[str] = AROUND_WRITES) -> Iterator[Survived]:
        """Kill it at each of these points, each time that it comes there: before and after every write it makes.

        A turn with one tool call has some ten writes. Raises AssertionError for a kill after which the turn does not
        come to its end.
        """
        for point in points:
            for at in count(1):
                assert at <= KILLS_MAX, f"{point} was reached {KILLS_MAX} times in one turn"
                survived = self.kill(Kill(point, at))
                if survived is None:
                    break
                yield survived

    def _run(self, kill: Kill | None) -> Survived | None:
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir(parents=True)
        if kill is not None:
            first = self._start(folder, str(kill))
            if first.returncode == 0:
                return None
            assert first.returncode == -signal.SIGKILL, (
                f"it was to die at {kill}, and ended by itself:\n{first.stderr}"
            )
        done = self._start(folder, "")
        after = f"killed at {kill} and started again" if kill is not None else "undisturbed"
        assert done.returncode == 0, f"{after}, the turn did not come to its end (see {folder}):\n{done.stderr}"
        told = json.loads(done.stdout.splitlines()[-1])
        calls = tuple(DrillCall(**call) for call in told.pop("calls"))
        return Survived(kill=kill, folder=folder, calls=calls, **told)

    def _start(self, folder: Path, crash_at: str) -> "subprocess.CompletedProcess[str]":
        """In the run's folder, with all that can be imported here."""
        kept = {name: value for name, value in os.environ.items() if name != "HOLDFAST_CRASH_AT"}
        imported = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
        environ = {**kept, "PYTHONPATH": imported, **({"HOLDFAST_CRASH_AT": crash_at} if crash_at else {})}
        asked = {**self._asked, "key": f"drill-{folder.parent}-{folder.name}", "timeout_s": self._timeout_s}
        try:
            return subprocess.run(
                [sys.executable, "-m", "holdfast.testing.drill_process", json.dumps(asked)],
                cwd=folder, env=environ, capture_output=True, text=True, timeout=2 * self._timeout_s,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"a run did not end within {2 * self._timeout_s:g} s: {late.stderr!r}") from late
