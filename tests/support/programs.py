"""Running a module of the tests as a program of its own: a real process, with a real death."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forks import fork_module

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """`with Program("tests.fleet.claimer", url) as program:` It is killed on the way out, if it still lives.

    What it prints is read line by line; `say` writes a line to it, `finish` waits for its end and its last words.
    With `errors`, its standard error is a pipe to us; `environ` is added to our own variables.
    """

    def __init__(
        self, module: str, *arguments: str, errors: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = module.rpartition(".")[2]
        self.process = fork_module(
            module,
            *arguments,
            environ=environ,
            folder=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors else None,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """Its next line; an empty one if it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def finish(self, timeout_s: float = 60.0) -> str:
        """What it still prints; it must end well."""
        printed, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, f"{self.name} ended with {self.process.returncode}: {printed}"
        return printed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
