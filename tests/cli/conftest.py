"""The command line as people use it: as a process, on a pseudo-terminal, and, for quick looks, in this process."""

import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pytest

from holdfast.cli.main import main
from holdfast.ids import new_id
from tests.support.forks import Fork, fork_command, run_command
from tests.support.programs import ROOT

APP = "tests.cli.desk:app"
WAIT_S = 90.0


class Done(NamedTuple):
    code: int
    out: str
    err: str


# Somebody's; a process of the test runner has some, too, and what is buffered for people must be buffered here.
TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED")

# What the interpreter reads when it begins, and modules when they are loaded.
WHILE_IT_LOADS = {"PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "FORCE_COLOR"}


class Desk:
    """A folder of its own, with nothing of this machine's settings in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environ = {
            **{name: value for name, value in kept.items() if not name.endswith("_API_KEY") and name not in TERMINAL},
            "PYTHONPATH": path,
            "HOLDFAST_TRUSTED": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config of mine"),
            "TERM": "xterm-256color",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", "-m", "holdfast", *arguments]

    def start(self, *arguments: str, **options: Any) -> Fork:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return fork_command(arguments, self.folder, self.environ, **streams)

    def run(self, *arguments: str, given: str | None = None) -> Done:
        if not WHILE_IT_LOADS & {*self.environ}:
            return Done(*run_command(arguments, self.folder, self.environ, given or "", 60))
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environ, text=True, timeout=60,
            input=given if given is not None else "", capture_output=True,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def terminal(self, *arguments: str, columns: int = 100) -> "Terminal":
        return Terminal(self.command(*arguments), self.folder, self.environ, columns)

    def open_the_gate(self) -> None:
        (self.folder / "gate").touch()

    @staticmethod
    def wait_at_the_gate(process: Fork) -> None:
        """Until the tool of the agent `gated` runs, which is said on standard error: the answer comes at the end."""
        assert process.stderr is not None
        while "at the gate" not in (said := process.stderr.readline()):
            assert said, "it ended"


def ids_in_order(count: int) -> list[str]:
    """For chats, the oldest first. Two that are made in the same millisecond have no order of their own."""
    return sorted(new_id("chat") for _ in range(count))


class Terminal:
    """A person at a pseudo-terminal. Killed at the end, if it still lives."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str], columns: int) -> None:
        self.seen = io.StringIO()
        self._child = pexpect.spawn(
            command[0], command[1:], cwd=str(folder), env=environ, encoding="utf-8", dimensions=(30, columns),
            timeout=WAIT_S, echo=False,
        )  # fmt: skip
        self._child.logfile_read = self.seen

    def sees(self, text: str) -> None:
        self._child.expect_exact(text)

    def sees_one_of(self, *texts: str) -> str:
        """Whichever comes first."""
        found: int = self._child.expect_exact(list(texts))
        return texts[found]

    def sees_like(self, pattern: str) -> None:
        self._child.expect(pattern)

    def types(self, text: str) -> None:
        self._child.send(text + "\r")

    def presses(self, keys: str) -> None:
        self._child.send(keys)

    def interrupts(self) -> None:
        """What Ctrl-C is while nobody reads keys."""
        self._child.kill(signal.SIGINT)

    def ends(self) -> int:
        """Its exit code."""
        self._child.expect(pexpect.EOF)
        self._child.wait()  # who is on the way out: `close` would kill it after a tenth of a second
        self._child.close()
        code: int | None = self._child.exitstatus
        assert code is not None, f"it died of signal {self._child.signalstatus}"
        return code

    def close(self) -> None:
        if self._child.isalive():
            self._child.kill(9)
            self._child.wait()
        self._child.close()


CTRL_C, CTRL_D, CTRL_Z, ALT_ENTER = "\x03", "\x04", "\x1a", "\x1b\r"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*arguments: str, columns: int = 100) -> Terminal:
        opened.append(desk.terminal(*arguments, columns=columns))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Done]]:
    """A command in this process, in an empty folder: for what needs neither a terminal nor signals."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HOLDFAST_") or name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_TRUSTED", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config of mine"))
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    before = root.handlers[:], root.level, ours.level

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capsys.readouterr()
        code = left.value.code
        return Done(code if isinstance(code, int) else 1, out, err)

    yield call
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
