"""Child processes: started in a session of their own under the worker's guard, ended for certain.

    child = await start_covered(spec, children=guard)  # its leader; the whole group is ours
    await child.exited()                               # its leader is gone; what it left may still run
    await child.end()                                  # TERM to all, KILL after 2 s; none is left

`end` is free within three seconds, whatever the processes do. It finds the group by its number, which the kernel
keeps from others until we have reaped the leader, and escapees (`setsid`) by a mark of this child in their
environment. What it cannot find is what the guard cannot find either (`guard_process.py`): an escapee that also
cleared its environment. None escapes from a sandbox: all that is in it ends with the first of its processes, which is
in the group. On macOS the leader is reaped before its group is looked for, and the system hides the
environment of its own programs.

A child gets a minimal environment, so that no secret of the worker's is in it, and no terminal; holdfast's own files
are out of its sight (`cover.py`). There is no thread for a child: the loop watches its pidfd, or looks every few
milliseconds where there are none.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.ids import new_id
from holdfast.stops import ended_within
from holdfast.system import cover, spawn_queue
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.guard_process import LOOKS_IN_VAIN, PAUSE_MAX_S, PAUSE_S, TERM_S, glance, send, start_of
from holdfast.system.starter import Process, View

CHILDREN_MAX = 256  # of this process, at the same time
CHILD_VARIABLE = "HOLDFAST_CHILD"
FREE_S = 2.8  # after which no caller waits for the end of a child any more; it is still brought about
LINGER_S = 0.25  # for what outlives its leader and still holds the output, such as a `tee`, to say its last
LOOK_CHUNK = 32  # processes looked at (27 µs each) before others get their turn
INHERITED = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"

_children: "set[Child]" = set()  # that live, or may
_endings: "set[asyncio.Task[None]]" = set()  # the loop itself keeps no task alive


def keep(ending: "asyncio.Task[None]") -> None:
    """Until it is done, whether a caller waits for it or not."""
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child may know: where things are, who and where the user is, in which language; and `extra`."""
    found = {name: value for name, value in os.environ.items() if name in INHERITED or name.startswith("LC_")}
    # A relative entry would let the working directory, which a model writes to, bring programs of its own.
    folders = [folder for folder in found.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    found["PATH"] = os.pathsep.join(folders) or PATH_DEFAULT
    return {**found, **(extra or {})}


class Children(Protocol):
    """Where child processes are registered, so that none of them outlives the worker.

    A child is started in a process group of its own, with `environment` added to its own.
    """

    @property
    def environment(self) -> Mapping[str, str]: ...

    def add(self, pgid: int) -> None: ...

    def remove(self, pgid: int) -> None:
        """The whole group is gone."""


class Guards:
    """`Children` of the whole process: each of its guards knows all of them, from its start to its stop.

    They carry no guard's mark, since guards come and go; a guard knows them by the start of their group's leader.
    """

    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self._guards: list[Children] = []
        self._groups: set[int] = set()

    def join(self, guard: Children) -> None:
        self._guards.append(guard)
        for pgid in self._groups:
            guard.add(pgid)

    def leave(self, guard: Children) -> None:
        """Before it is stopped, or what others use would end with it."""
        if guard in self._guards:
            self._guards.remove(guard)
            for pgid in self._groups:
                guard.remove(pgid)

    def add(self, pgid: int) -> None:
        self._groups.add(pgid)
        for guard in self._guards:
            guard.add(pgid)

    def remove(self, pgid: int) -> None:
        self._groups.discard(pgid)
        for guard in self._guards:
            guard.remove(pgid)


class Child:
    """A child that was started, with everything it starts. Belongs to the event loop that started it."""

    def __init__(self, process: Process, mark: str, children: Children | None) -> None:
        self._process = process
        self.pid = process.pid
        self._start = start_of(self.pid)
        self._mark = f"{CHILD_VARIABLE}={mark}".encode()
        self._children = children
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._asked: set[int] = set()
        self._ending: asyncio.Task[None] | None = None
        self._pidfd = -1
        self._watch()

    async def exited(self) -> None:
        """Until its leader has ended, whatever became of its output. Not reaped before `end`."""
        await self._exited.wait()

    @property
    def alive(self) -> bool:
        """As far as the loop has noticed."""
        return not self._exited.is_set()

    @property
    def returncode(self) -> int | None:
        """As subprocess has it: minus the signal that ended it. Known after `end`."""
        return self._process.returncode

    @property
    def abandoned(self) -> bool:
        return self._loop.is_closed()

    async def end(self) -> bool:
        """Nothing of it is left; False if the kernel keeps a process so long that it was not waited for. To be called
        however the child ends. A caller that is cancelled meanwhile changes nothing.
        """
        if self._ending is None:
            self._signal_group(signal.SIGTERM)
            self._ending = self._loop.create_task(self._end())
            keep(self._ending)
        return await ended_within(self._ending, FREE_S)

    async def memory_bytes(self) -> int:
        """What its group takes, as of now: what each process has for itself, and what they share, once, as far as one
        of them has it. Linux tells; elsewhere it is nothing, and so is what there is no descriptor to look at.
        """
        if sys.platform != "linux":
            return 0
        own = shared = 0
        with suppress(OSError):
            for count, seen in enumerate(glance()):
                if seen.pgid == self.pid and not seen.dead:
                    anonymous, shmem = _resident_bytes(seen.pid)
                    own, shared = own + anonymous, max(shared, shmem)
                if count % LOOK_CHUNK == LOOK_CHUNK - 1:
                    await asyncio.sleep(0)
        return own + shared

    def stand_still(self) -> None:
        """Its group computes nothing until `go_on`, or `end`."""
        self._signal_stopped(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_stopped(signal.SIGCONT)

    def _signal_stopped(self, signum: signal.Signals) -> None:
        if self._ending is None:  # then the number is no other group's: its leader is not reaped
            with suppress(OSError):
                os.killpg(self.pid, signum)

    # --- its exit -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # macOS, an old kernel, a sandbox
            self._poll(PAUSE_S)
        else:
            self._loop.add_reader(self._pidfd, self._on_exit)

    def _poll(self, pause_s: float) -> None:
        if self._process.poll() is not None:
            self._exited.set()
        else:
            self._loop.call_later(pause_s, self._poll, min(2 * pause_s, PAUSE_MAX_S))

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._exited.set()

    # --- its end ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        kill_at = time.monotonic() + TERM_S
        signum = signal.SIGTERM
        pause_s, in_vain = PAUSE_S, 0
        while True:
            if signum != signal.SIGKILL and time.monotonic() >= kill_at:
                signum, pause_s = signal.SIGKILL, PAUSE_S
            in_vain = 0 if await self._signal_all(signum) else in_vain + 1
            if in_vain >= LOOKS_IN_VAIN and self._exited.is_set():
                break
            await asyncio.sleep(min(pause_s, max(0.0, kill_at - time.monotonic()) or pause_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        self._process.wait()
        _children.discard(self)
        if self._children is not None:
            self._children.remove(self.pid)

    async def _signal_all(self, signum: signal.Signals) -> bool:
        """One look at the processes of this host; whether any of them is ours and lives. A look for which there is no
        descriptor proves no end, and the group hears the signal all the same.
        """
        group, escapees = False, []
        blind = not _is_descriptor_free()
        try:
            for count, seen in enumerate(glance()):
                if not seen.dead and seen.start >= self._start:
                    if seen.pgid == self.pid:
                        group = True
                    elif seen.carries(self._mark):
                        escapees.append(seen.pid)
                if count % LOOK_CHUNK == LOOK_CHUNK - 1:
                    await asyncio.sleep(0)
        except OSError:
            blind = True
        blind = blind or not _is_descriptor_free()
        if group or (blind and self._process.returncode is None):
            self._signal_group(signum)
        for pid in escapees:
            if signum == signal.SIGKILL or pid not in self._asked:
                self._asked.add(pid)
                send(pid, signum, self._mark)
        return group or bool(escapees) or blind

    def _signal_group(self, signum: signal.Signals) -> None:
        """Safe while the leader is not reaped: until then the number is no other process's."""
        if signum == signal.SIGKILL or self.pid not in self._asked:
            self._asked.add(self.pid)
            with suppress(OSError):  # just gone
                os.killpg(self.pid, signum)
                os.killpg(self.pid, signal.SIGCONT)  # one that was stopped hears of it, too


def _is_descriptor_free() -> bool:
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError:
        return False
    return True


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Of its own, and in memory that it may share with others."""
    try:
        told = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        own, shared = (int(told[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, ValueError):
        return 0, 0  # just gone
    return own, shared


def start(spec: ProcessSpec, *, children: Children | None) -> Child:
    """Our own program, which is not covered. Marks are added to its environment. Raises OSError if it cannot be
    started, ToolFailed if there are too many already, and OutcomeUnknown if it was started and no guard would end it.
    """
    _check_room()
    marked, mark = _marked(spec, children)
    return _watched(cover.spawn_uncovered(marked), mark, children)


async def start_covered(spec: ProcessSpec, *, children: Children | None) -> Child:
    """As `start`, with holdfast's own files out of its sight (`cover.py`). Waits for the starter off the event loop:
    who is cancelled meanwhile is free, and what was asked for is ended. Raises ToolFailed also if it cannot be
    covered and has to be, OutcomeUnknown also if it is unknown whether it was started.
    """
    _check_room()
    marked, mark = _marked(spec, children)
    return _watched(await spawn_queue.spawn(marked, f"{CHILD_VARIABLE}={mark}".encode()), mark, children)


def _check_room() -> None:
    if (running := running_children()) >= CHILDREN_MAX:
        raise ToolFailed(f"{running} processes of tools are running, which is the limit: try again later.")


def _marked(spec: ProcessSpec, children: Children | None) -> tuple[ProcessSpec, str]:
    mark = new_id("child")
    marks = {CHILD_VARIABLE: mark, **(children.environment if children is not None else {})}
    return spec._replace(env={**spec.env, **marks}), mark


def _watched(process: Process, mark: str, children: Children | None) -> Child:
    try:
        if children is not None:
            children.add(process.pid)
        child = Child(process, mark, children)
        _children.add(child)
        return child
    except BaseException as error:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, Exception):  # it ran for a moment, and what it did is unknown
            raise OutcomeUnknown(f"The process was ended as soon as it was started: {error}.") from error
        raise


def running_children() -> int:
    """From any thread. Those of an event loop that is closed are the guard's: nothing else ends them any more."""
    _children.difference_update([child for child in tuple(_children) if child.abandoned])
    return len(_children)


def figures() -> dict[str, int]:
    """For /health, from any thread."""
    return {"running": running_children(), "running_max": CHILDREN_MAX, "ending": len(_endings)}


class Ended(Struct, frozen=True):
    """How a command ended. `returncode` is None if the kernel had not let go of it when we stopped waiting."""

    returncode: int | None
    output: str
    timed_out: bool


async def run(
    argv: Sequence[str],
    *,
    children: Children | None,
    deadline_s: float,
    bytes_max: int,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    heard: Callable[[bytes], None] | None = None,
    cut_off: Callable[[], None] | None = None,
    view: View | None = None,
    stdin: int = subprocess.DEVNULL,
    errors: Kept | None = None,
) -> Ended:
    """Run a command to its end, with standard output and error as one stream and `stdin` to read; with `errors`,
    standard error goes there, apart. It ends with all
    that it started: at its own end, at the deadline, or when the caller is cancelled; `cut_off` is called for
    these two. With a `view` it runs inside of a sandbox (`sandbox.py`).
    """
    kept = Kept(bytes_max)
    pipes = [os.pipe() for _ in range(1 if errors is None else 2)]
    known = environment() if env is None else env
    try:
        spec = ProcessSpec(argv, known, cwd, stdin, pipes[0][1], pipes[-1][1], view=view)
        child = await start_covered(spec, children=children)
    except BaseException:
        for ours, _ in pipes:
            os.close(ours)
        raise
    finally:
        for _, theirs in pipes:
            os.close(theirs)
    over = timed_out = False
    readers = [PipeReader(pipes[0][0], kept, heard)]
    if errors is not None:
        readers.append(PipeReader(pipes[1][0], errors))
    try:
        async with asyncio.timeout(deadline_s):
            await child.exited()
            over = True
        for reader in readers:
            await reader.ended(LINGER_S)
    except TimeoutError:
        timed_out = True
    finally:
        if not over and cut_off is not None:
            cut_off()
        await child.end()
        for reader in readers:
            reader.close()
    return Ended(returncode=child.returncode, output=kept.text, timed_out=timed_out)


def cause_of(returncode: int) -> str:
    """The signal that ended a process, in words."""
    number = -returncode
    if number not in signal.valid_signals():
        return f"a signal: number {number}"
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    hint = ", perhaps by the system for want of memory" if number == signal.SIGKILL else ""
    return f"a signal: {(signal.strsignal(number) or name).lower()} ({name}){hint}"
