"""Drives a client through the cases: one life of its program for all that leave the server alone, then one each."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.cases import CASES, IMAGE, Case, Told
from tests.clients.clients import Client
from tests.clients.install import BUILD
from tests.clients.server import DeskServer

CASE_S = 300.0  # only against a client that waits for ever; aider asks again for more than a minute
# Nothing leaves this machine: no client tells its makers anything, and none asks another host for news.
QUIET = {
    "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "AI_SDK_LOG_WARNINGS": "false",
    "HF_HUB_OFFLINE": "1",
    **dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], "http://127.0.0.1:9"),
    **dict.fromkeys(["NO_PROXY", "no_proxy"], "127.0.0.1,localhost"),
}
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR")


@dataclass(frozen=True)
class Cell:
    """`reason` is empty for what is as it should be; `way` says how, where there is more than one."""

    reason: str = ""
    way: str = "ok"

    @property
    def is_good(self) -> bool:
        return not self.reason


NONE = Cell(way="–")  # the client has no such thing


class Program:
    """A client's program while it runs: what it says, line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.has_seen_text = False
        self._ear = threading.Thread(target=self._listen)
        self._ear.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"seen"'):
                self.has_seen_text = True
            else:
                self._lines.put(line)
        self._lines.put(None)

    @property
    def has_spoken(self) -> bool:
        return not self._lines.empty()

    def hear(self, name: str) -> dict[str, Any] | None:
        """What it says of this case; None: nothing, in all that time or for the rest of its life."""
        until = time.monotonic() + CASE_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                return None
            if line is None:
                return None
            if line.startswith('{"case"'):  # a client may print more
                told: dict[str, Any] = json.loads(line)
                if told.get("case") == name:
                    return told
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30.0)
        self._ear.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Bench:
    """A client, and the server that it talks to."""

    def __init__(self, client: Client, command: Sequence[str], desk: DeskServer, folder: Path) -> None:
        self._client = client
        self._command = command
        self._desk = desk
        self._folder = folder

    def run_calm(self, cases: Sequence[Case]) -> dict[str, Cell]:
        """Up to the first case of which the program says nothing: the rest is for another life of it."""
        cells: dict[str, Cell] = {}
        with self._running(cases) as program:
            for case in cases:
                said = program.hear(case.name)
                cells[case.name] = self._judged(case, said)
                if said is None:
                    break
        return cells

    def run_through(self, case: Case) -> Cell:
        """The server goes in the middle of the answer, and another one comes in its place."""
        gate = self._gate(case)
        with self._running([case]) as program:
            if not self._is_reached(gate, program, is_streamed=case.name != "deploy"):
                return self._judged(case, program.hear(case.name))
            self._desk.end(signal.Signals[case.signal or ""])
            gate.touch()
            self._desk.start()
            said = program.hear(case.name)
            return self._judged(case, said, self._desk.kept())

    def _is_reached(self, gate: Path, program: Program, *, is_streamed: bool) -> bool:
        """That the answer is half told; not, if the program says something first, or ends."""
        reached, until = gate.with_suffix(".reached"), time.monotonic() + CASE_S
        while not reached.exists() or (is_streamed and self._client.shows_text and not program.has_seen_text):
            if program.has_spoken or time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _judged(self, case: Case, said: dict[str, Any] | None, kept: str | None = None) -> Cell:
        if said is not None and "none" in said:
            return NONE
        said = said or {}
        told = Told(said.get("got"), said.get("error"), self._desk.notes(self._mark(case)), kept)
        reason = case.judge(told)
        way = "ok, error" if case.signal and told.error is not None else "ok"
        return Cell(
            reason=f"{reason} ({said.get('error')})" if reason and told.error not in (None, reason) else reason or "",
            way=way,
        )

    def _gate(self, case: Case) -> Path:
        return self._folder / f"{case.name}.gate"

    def _mark(self, case: Case) -> str:
        return f"{self._folder.name}-{case.name}"

    def _prompt(self, case: Case) -> str:
        return case.prompt.replace("NOTE", self._mark(case)).replace("GATE", str(self._gate(case)))

    @contextmanager
    def _running(self, cases: Sequence[Case]) -> Iterator[Program]:
        home = self._folder / "client"
        home.mkdir(exist_ok=True)
        environment = {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            **QUIET,
            "HOME": str(home),
            "OPENAI_BASE_URL": f"{self._desk.url}/v1",
            "OPENAI_API_KEY": self._desk.token,
            "PROMPTS": json.dumps({case.name: self._prompt(case) for case in CASES}),
            "IMAGE": IMAGE,
            "CLIENT_FOLDER": str(BUILD / self._client.install),
            **self._client.environment,
        }
        with (self._folder / "client.log").open("a") as log:
            process = subprocess.Popen(
                [*self._command, *(case.name for case in cases)],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        program = Program(process)
        try:
            yield program
        finally:
            program.end()


def drive(client: Client, command: Sequence[str], folder: Path, cases: Sequence[Case] = CASES) -> dict[str, Cell]:
    """`folder`: where its server keeps its data, and where its log is afterwards."""
    cells: dict[str, Cell] = {}
    with DeskServer(folder) as desk:
        bench = Bench(client, command, desk, folder)
        while calm := [case for case in cases if case.signal is None and case.name not in cells]:
            cells.update(bench.run_calm(calm))
        cells.update({case.name: bench.run_through(case) for case in cases if case.signal is not None})
    return cells


def expected(client: Client, name: str, cell: Cell) -> Cell:
    """A cell with a known reason shows it; one that is green all the same has a reason too many."""
    reason = client.reason_for(name)
    if reason is None:
        return cell
    return Cell(reason=f"is green, but known to be red: {reason}") if cell.is_good else Cell(way=f"no: {reason}")
