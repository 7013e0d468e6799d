"""Processes are asked of the starter off the event loop, one after the other.

A starter may be frozen by any process of our user. Then its answer is waited for here, in a thread, and a caller
on a loop can leave: what it asked for is not started, or is ended as soon as it is there.
"""

import os
import signal
import subprocess
import threading
from contextlib import suppress

from holdfast.errors import OutcomeUnknown
from holdfast.system import cover, sandbox, threads
from holdfast.system.cover import ProcessSpec
from holdfast.system.guard_process import glance, send
from holdfast.system.starter import Process


async def spawn(spec: ProcessSpec, mark: bytes) -> Process:
    """As `cover.spawn`. `mark` is an entry of the environment that no other process has: what was started without our
    being told is found by it, and ended.
    """
    if spec.view is None and not cover.asks_starter():
        return cover.spawn(spec)
    order = _SpawnOrder(spec, mark)
    try:
        process = await _queue.run(order)
    except BaseException:
        order.leave()
        raise
    return process if process is not None else cover.spawn_uncovered(spec)


async def sandbox_problem() -> str | None:
    """As `sandbox.problem`."""
    found: str | None = await _queue.run(lambda _: sandbox.problem())
    return found


class _SpawnOrder:
    """Holds its own copies of the descriptors: who asked may leave and close theirs."""

    def __init__(self, spec: ProcessSpec, mark: bytes) -> None:
        self._spec = spec
        self._mark = mark
        self._fds = [fd if fd == subprocess.DEVNULL else os.dup(fd) for fd in spec.fds]
        self._lock = threading.Lock()
        self._begun = self._left = False
        self._process: Process | None = None

    def __call__(self, _: object) -> Process | None:
        with self._lock:
            if self._left:
                return None
            self._begun = True
        try:
            process = cover.spawn_covered(self._spec, self._fds)
        except OutcomeUnknown:
            _end_marked(self._mark)
            raise
        finally:
            self._close()
        with self._lock:
            self._process = process
            left = self._left
        if left and process is not None:
            _end(process)
        return process

    def leave(self) -> None:
        with self._lock:
            self._left = True
            begun, process = self._begun, self._process
        if not begun:
            self._close()
        elif process is not None:
            threads.start("reaper", lambda: _end(process))

    def _close(self) -> None:
        for fd in self._fds:
            if fd != subprocess.DEVNULL:
                os.close(fd)


def _end(process: Process) -> None:
    with suppress(OSError):  # just gone
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_marked(mark: bytes) -> None:
    """Every process with this mark, at once: one that was started, and that no caller was told of."""
    for seen in glance():
        if not seen.dead and seen.carries(mark):
            send(seen.pid, signal.SIGKILL, mark)


def _new_queue() -> threads.Pool:
    return threads.Pool("starter", 1)


def _begin_anew_in_a_fork() -> None:
    global _queue  # its thread is not here
    _queue = _new_queue()


_queue = _new_queue()
os.register_at_fork(after_in_child=_begin_anew_in_a_fork)
