"""Runs an adapter as a process of its own, and tells what the operating system saw of it and of its server."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from msgspec import Struct

from bench.peers.ledger import Entry, entries
from bench.peers.peers import Peer
from tests.clients.install import filled, python_packages

HERE = Path(__file__).parent
BUILD = HERE.resolve().parents[1] / "build" / "peers"
RUN_S = 300.0
LOOK_S = 0.002


class Failed(Exception):
    """Why a peer has no figure."""


class Seen(Struct, frozen=True, kw_only=True):
    """What a run took. Of a peer with a server, or a database with one, that is in it, too."""

    lines: list[Entry]
    cpu_s: float
    peak_bytes: int
    started_s: float  # until its first line


def python_of(peer: Peer) -> str:
    if peer.lock is None:
        return sys.executable
    return str(filled(BUILD / peer.lock, HERE / "locks" / f"{peer.lock}.txt", python_packages) / "bin" / "python")


class Servers:
    """The process trees of what serves the adapter: a database, a journal. They are looked at around a run."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]

    def all(self) -> list[psutil.Process]:
        return [process for root in self._roots for process in (root, *root.children(recursive=True))]

    def cpu_s(self) -> float:
        """Of those that are there, and of those that these had and waited for."""
        total = 0.0
        for process in self.all():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def resident_bytes(self) -> int:
        total = 0
        for process in self.all():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total


class Run:
    """One adapter at work. Use it in a `with`: it ends what it started."""

    def __init__(
        self, peer: Peer, database: str, ledger: Path, servers: Servers, *words: str, traced: Path | None = None
    ) -> None:
        self._servers = servers
        self._ledger = ledger
        self._before = len(entries(ledger))
        self._cpu_s = servers.cpu_s()
        program = [python_of(peer), str(HERE / "adapters" / f"{peer.adapter}.py")]
        if peer.option:
            program += ["--option", peer.option]
        arguments = ["--database", database, "--ledger", str(ledger), "--processes", str(peer.processes), *words]
        tracer = [] if traced is None else [*TRACER, str(traced)]
        self._said = (ledger.parent / "said").open("ab")
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [*tracer, *program, *arguments],
            cwd=ledger.parent,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        self._peak = 0

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.kill()
        self._said.close()

    def kill(self) -> float:
        """With -9, and all that it started. When."""
        at = time.monotonic()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return at

    def until(self, kind: str, cycle: int) -> None:
        """Until this line is in the ledger."""
        give_up_at = time.monotonic() + RUN_S
        while not any(line.kind == kind and line.cycle == cycle for line in entries(self._ledger)[self._before :]):
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise Failed(f"it ended before {kind} {cycle}: {self._words()}")
            time.sleep(LOOK_S)

    def first_line_at(self) -> float:
        """When it first said something, on the clock of this process."""
        give_up_at = time.monotonic() + RUN_S
        while len(found := entries(self._ledger)) <= self._before:
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise Failed(f"it said nothing: {self._words()}")
            time.sleep(LOOK_S)
        return found[self._before].at_ns / 1e9

    def to_its_end(self) -> Seen:
        give_up_at = time.monotonic() + RUN_S
        while (ended := os.wait4(self.process.pid, os.WNOHANG))[0] == 0:
            self._look()
            if time.monotonic() > give_up_at:
                raise Failed(f"it took longer than {RUN_S:g} s")
            time.sleep(0.02)
        _, status, usage = ended
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            raise Failed(f"exit {self.process.returncode}: {self._words()}")
        lines = entries(self._ledger)[self._before :]
        return Seen(
            lines=lines,
            cpu_s=usage.ru_utime + usage.ru_stime + self._servers.cpu_s() - self._cpu_s,
            peak_bytes=self._peak,
            started_s=lines[0].at_ns / 1e9 - self._began,
        )

    def _look(self) -> None:
        try:
            adapter = psutil.Process(self.process.pid)
            tree = [adapter, *adapter.children(recursive=True)]
            resident = sum(process.memory_info().rss for process in tree)
        except psutil.Error:
            return  # it is just ending
        self._peak = max(self._peak, resident + self._servers.resident_bytes())

    def _words(self) -> str:
        self._said.flush()
        return (self._ledger.parent / "said").read_text(errors="replace")[-300:].strip()


SYNCS = ("fsync", "fdatasync", "sync_file_range")
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
TRACER = ("strace", "-f", "-qq", "-y", "-s", "0", "-e", f"trace={','.join((*SYNCS, *WRITES))}", "-o")
_SYNC = re.compile(rf"\b(?:{'|'.join(SYNCS)})\(")
# To a file: what goes to a socket or a pipe has no path, a device is none, and the ledger is ours.
_WRITE = re.compile(r"\bp?write(?:64)?\(\d+</(?!dev/)[^>]*(?<!/ledger)>, [^,]*, (\d+)")
_WRITES = re.compile(r"\bp?writev2?\(\d+</(?!dev/)[^>]*>, .*")
ATTACH_S = 10.0


@contextlib.contextmanager
def tracing(servers: Servers, trace: Path) -> Iterator[bool]:
    """What the servers sync meanwhile goes into the file. False: this machine does not let us look."""
    pids = [process.pid for process in servers.all()]
    if not pids:
        yield True
        return
    words = [*TRACER, str(trace), *(word for pid in pids for word in ("-p", str(pid)))]
    tracer = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        give_up_at = time.monotonic() + ATTACH_S
        while not all(map(_is_traced, pids)) and tracer.poll() is None and time.monotonic() < give_up_at:
            time.sleep(LOOK_S)
        yield tracer.poll() is None
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets go of them, and ends
        tracer.wait()


def _is_traced(pid: int) -> bool:
    try:
        return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # it has ended


class Traced(Struct, frozen=True):
    """What was asked of the operating system. (What it counts as written itself is whole parts of its cache.)"""

    syncs: int
    written_bytes: int


def traced_in(*traces: Path) -> Traced:
    text = "\n".join(trace.read_text(errors="replace") for trace in traces if trace.exists())
    pieces = [size for line in _WRITES.findall(text) for size in re.findall(r"iov_len=(\d+)", line)]
    return Traced(len(_SYNC.findall(text)), sum(map(int, [*_WRITE.findall(text), *pieces])))


def can_trace() -> bool:
    return shutil.which("strace") is not None
