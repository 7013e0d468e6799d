"""The worker's side of its guard: starts it, tells it which process groups are ours, starts it again if it dies.

What starts a child process of any kind gives it `guard.environment`, starts it in a process group of its own, and
says `guard.add(pgid)`; `guard.remove(pgid)` when the whole group is gone. From then on the child cannot outlive this
process, however it ends. What the guard does, and what it cannot find, is told in `system/guard_process.py`.

The guard shares none of our open files but the worker's lock, which it holds until its work is done: a takeover on
this host waits for it, ten seconds at most, and the end of the lease ends that wait in any case.
"""

import os
import select
import subprocess
import sys
import threading
import time
import weakref

from holdfast.errors import ConfigError
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.system import guard_process, threads
from holdfast.system.guard_process import VARIABLE, WORK_S, start_of

log = logger("holdfast.guard")

START_S = 10.0
STOP_S = WORK_S + 2.0
WRITE_S = 5.0
RESTART_S = 1.0  # a guard that lived less long is not replaced before this has passed
WORDS_MAX = 2_000
_CHUNK = 65_536
# What an interpreter may need to find its own libraries. Nothing else of our environment is the guard's business.
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


class Guard:
    """`start` and `stop` block, within bounds: call them off the event loop. All else is quick, from any thread.

    `lock_fd` is the descriptor of the worker's host lock. Without a hard limit, a loop that stalls is never ended.
    `write_locks` are the paths of locks that others need: a worker stopped with one of them for `frozen_s` is ended.
    """

    def __init__(
        self,
        lock_fd: int | None = None,
        hard_limit_s: float | None = None,
        *,
        frozen_s: float = 0.0,
        write_locks: tuple[str, ...] = (),
    ) -> None:
        self.mark = new_id("mark")
        self._lock_fd = lock_fd
        self._hard_limit_s = hard_limit_s or 0.0
        self._frozen_s = frozen_s
        self._write_locks = write_locks
        self._mutex = threading.Lock()
        self._groups: dict[int, int] = {}
        self._pipe: int | None = None  # to the guard
        self._told = False  # whether it knows of every group, so that changes can be told as they come
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._settled = threading.Event()  # it is ready, or it is known why not
        self.alive = False
        self.restarts = 0
        self.found_at_stop: int | None = None
        self.last_error: str | None = None
        _guards.add(self)

    # --- for those who start children --------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """What every child must have in its environment."""
        return {VARIABLE: self.mark}

    def add(self, pgid: int) -> None:
        """Call it at once, before the group's leader is waited for: then its start time proves that it is ours."""
        if pgid <= 1 or pgid == os.getpgrp():
            raise ValueError(f"{pgid} is not the process group of a child: start it in a group of its own")
        start = start_of(pgid)
        with self._mutex:
            if self._stopping.is_set():
                raise RuntimeError("the guard is stopped: no child may be started any more")
            self._groups[pgid] = start
            self._tell(b"add %d %d\n" % (pgid, start))

    def remove(self, pgid: int) -> None:
        with self._mutex:
            if self._groups.pop(pgid, None) is not None:
                self._tell(b"remove %d\n" % pgid)

    # --- for the watchdog --------------------------------------------------------------------------

    def beat(self) -> None:
        """The loop runs. If no beat follows within the hard limit, the guard ends this process."""
        with self._mutex:
            self._tell(b"beat\n")

    def rest(self) -> None:
        """There is no loop to watch."""
        with self._mutex:
            self._tell(b"rest\n")

    # --- figures -----------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def group_count(self) -> int:
        return len(self._groups)

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the guard is there. Raises ConfigError if it cannot be."""
        self._thread = threads.start("guard", self._serve)
        if not self._settled.wait(START_S) or not self.alive:
            reason = self.last_error or f"no sign of life within {START_S:g} s"
            self.stop()
            raise ConfigError(f"the guard process of this worker does not start with {sys.executable!r}: {reason}")

    def stop(self, wait_s: float = STOP_S) -> None:
        """Lets the guard end what is still left of our children, and waits until it has. Bounded by `wait_s`."""
        with self._mutex:
            self._stopping.set()
            if self._told:  # else the thread is still writing to it, and closes it when it is done
                self._close_pipe()
        if self._thread is None:
            return
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self.last_error = f"the guard did not finish within {wait_s:g} s"
            log.error("guard", extra={"action": "guard_hangs", "groups": self.group_count})
            with self._mutex:
                self._kill()
            self._thread.join(1.0)

    def _serve(self) -> None:
        """Thread: one guard after the other, until we are told to stop."""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._live()
            except OSError as error:
                self.last_error = str(error)
            self._settled.set()
            if self._stopping.is_set():
                return
            self.restarts += 1
            log.warning("guard died", extra={"action": "guard_died", "error": self.last_error})
            self._stopping.wait(max(0.0, RESTART_S - (time.monotonic() - began)))

    def _live(self) -> None:
        """One guard, from its start to its end."""
        ear, mouth = os.pipe()
        try:
            pipe, process = self._spawn(mouth)
        except BaseException:
            os.close(ear)
            raise
        try:
            self._catch_up(pipe)
            self._hear(ear)
        finally:
            # Killed and reaped before its pipe is closed: the end of that pipe would mean that we are dead.
            self.alive = False
            with self._mutex:
                self._told = False
                if not self._stopping.is_set():
                    self._kill()
                self._process = None  # from here on its pid may be another process's
            process.wait()
            os.close(ear)
            with self._mutex:
                self._close_pipe()

    def _spawn(self, mouth: int) -> tuple[int, "subprocess.Popen[bytes]"]:
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        arguments = [self.mark, str(os.getpid()), str(self._hard_limit_s)]
        if self._write_locks:
            arguments += [str(self._frozen_s), *self._write_locks]
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard_process.__file__, *arguments],
                stdin=theirs,
                stdout=mouth,
                stderr=mouth,
                cwd="/",
                env={name: os.environ[name] for name in _LOADER if name in os.environ},
                pass_fds=() if self._lock_fd is None else (self._lock_fd,),
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
            os.close(mouth)
        with self._mutex:
            self._process, self._pipe, self._told = process, ours, False
        return ours, process

    def _catch_up(self, pipe: int) -> None:
        """Tell a new guard what there is; what changes meanwhile is told next. Only this thread waits for it."""
        told: dict[int, int] = {}
        while True:
            with self._mutex:
                lines = [b"remove %d\n" % pgid for pgid in told.keys() - self._groups.keys()]
                lines += [b"add %d %d\n" % item for item in self._groups.items() if told.get(item[0]) != item[1]]
                if not lines:
                    self._told = True
                    if self._stopping.is_set():
                        self._close_pipe()
                    return
                told = dict(self._groups)
            if not _write(pipe, b"".join(lines)):
                with self._mutex:
                    self._kill()
                return

    def _hear(self, ear: int) -> None:
        """Until the guard is gone: no other process has the other end."""
        words = b""
        while said := os.read(ear, 4096):
            words = (words + said)[-WORDS_MAX:]
            if words.startswith(b"ready\n"):
                words = words[6:]
                self.alive = True
                self._settled.set()
        if words.startswith(b"found "):
            self.found_at_stop = int(words.split()[1])
        else:
            self.last_error = words.decode(errors="replace").strip() or "killed"

    def _tell(self, line: bytes) -> None:
        """Under the mutex. Shorter than PIPE_BUF, so it is written whole or not at all, and never waits."""
        if self._pipe is None or not self._told:
            return  # the guard that is being started gets the whole list
        try:
            os.write(self._pipe, line)
        except OSError:  # it is gone, or has not read for thousands of lines: the next one gets the whole list
            self._told = False
            self._kill()

    def _kill(self) -> None:
        """Under the mutex, and never after it was waited for."""
        if self._process is not None:
            self._process.kill()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _let_go(self) -> None:
        """In a forked child that does not exec: it must not keep the guard from seeing our end."""
        self._close_pipe()
        self._groups = {}
        self._process = None


def _write(pipe: int, data: bytes) -> bool:
    """All of it, waiting for room; False if the guard does not take it."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    view = memoryview(data)
    try:
        while view:
            if not poll.poll(WRITE_S * 1000):
                return False
            view = view[os.write(pipe, view[:_CHUNK]) :]
    except OSError:
        return False
    return True


_guards: "weakref.WeakSet[Guard]" = weakref.WeakSet()


def _let_go_in_a_fork() -> None:
    for guard in _guards:
        guard._let_go()


os.register_at_fork(after_in_child=_let_go_in_a_fork)
