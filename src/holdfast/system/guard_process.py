"""The guard: a small program that outlives its worker, ends what the worker left running, and then itself.

    python -I -S guard_process.py MARK WORKER_PID HARD_LIMIT_S [FROZEN_S WRITE_LOCK ...]

`worker/guard.py` starts it, one per worker. It imports nothing of holdfast, so that it is up in 20 ms; it stands at
the bottom of holdfast because `processes.py` looks at processes, and proves whose they are, with the same eyes.

Standard input is a pipe whose write end only the worker has. Its lines:

    add PGID START     this process group is the worker's; START is the start time of its leader, 0 if unknown
    remove PGID        it no longer is
    beat               the worker's event loop runs; from now on it must go on beating
    rest               the worker's loop need not beat, until it does again

End of file means that the worker is gone, whatever ended it. Then every listed group, and every process that carries
the worker's mark in its environment, gets SIGTERM and after two seconds SIGKILL. The guard also holds the worker's
lock (`store/host_lock.py`) and drops it only by exiting, so no worker on this host takes its chats over before
its children are gone. An alarm ends the guard after ten seconds even if the kernel does not let it finish.

It never signals what it cannot prove to be the worker's: a group counts if its leader is the process that was
announced (by start time), if a member was seen together with that leader, or if a member carries the mark; a single
process, only if it carries the mark. So pids that were reused are safe. What it cannot find: a process that left its
group and then cleared its environment (`env -i`) or replaces itself every few milliseconds, and one that it may not
look at (another user's). On macOS `ps` stands in for /proc: the system hides the environment of its own binaries
there, start times are whole seconds, and so escapees are found less surely than groups.

A worker whose loop stops beating for HARD_LIMIT_S gets SIGXCPU, on which it dumps its stacks and exits (see
`worker/watchdog.py`), and five seconds later SIGKILL. Time in which the worker was stopped, or this process itself
did not run (a suspended machine, a paused VM), does not count.

A worker that is stopped (SIGSTOP, Ctrl-Z) while it holds a WRITE_LOCK, one of the locks of a SQLite file, keeps every
process from writing for as long as it stands still. Once it has been seen so for FROZEN_S, its lease's TTL, it gets
SIGKILL. One that holds no such lock is in no one's way and may stand still for as long as its user likes; so may one
that a debugger has stopped. Time in which this process did not run does not count here either.
"""

import fcntl
import os
import select
import signal
import sys
import time

if sys.platform != "linux":
    import subprocess

TYPE_CHECKING = False  # as in typing, which would cost this program half of its start
if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "HOLDFAST_MARK"
TERM_S = 2.0
WORK_S = 10
INSIST_S = 5.0
LINE_MAX = 4096
PAUSE_S = 0.005
PAUSE_MAX_S = 0.1
LOOK_S_MAX = 5.0
LOOKS_IN_VAIN = 2  # a process that forks and exits can slip through one look

Groups = dict[int, int]


class SeenProcess:
    """One process, as it was a moment ago."""

    __slots__ = ("_entries", "dead", "frozen", "pgid", "pid", "start", "stopped")

    def __init__(
        self, pid: int, pgid: int, start: int, state: str, entries: "tuple[bytes, ...] | None" = None
    ) -> None:
        self.pid = pid
        self.pgid = pgid
        self.start = start
        self.dead = state in "ZXx"
        self.stopped = state in "Tt"
        self.frozen = state == "T"  # not by a debugger
        self._entries = entries

    def carries(self, mark: bytes) -> bool:
        return mark in (self._entries if self._entries is not None else environment(self.pid))


if sys.platform == "linux":

    def glance() -> "Iterator[SeenProcess]":
        """One process after the other, so that who must not block for long can pause between them."""
        for name in os.listdir("/proc"):
            if name.isdigit() and (seen := look_at(int(name))):
                yield seen

    def look_at(pid: int) -> "SeenProcess | None":
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return SeenProcess(pid, int(fields[2]), int(fields[19]), fields[0].decode())
        except (OSError, ValueError, IndexError):
            return None  # gone, or not for us to see

    def environment(pid: int) -> tuple[bytes, ...]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return tuple(file.read().split(b"\0"))
        except OSError:
            return ()

    def start_of(pid: int) -> int:
        """By clock ticks since boot: exact. 0 if there is no such process."""
        seen = look_at(pid)
        return seen.start if seen is not None else 0

    def same(announced: int, seen: int) -> bool:
        return announced == seen

else:

    def glance() -> "Iterator[SeenProcess]":
        yield from _ps("-A")

    def look_at(pid: int) -> "SeenProcess | None":
        found = _ps("-p", str(pid))
        return found[0] if found else None

    def environment(pid: int) -> tuple[bytes, ...]:
        seen = look_at(pid)
        return seen._entries or () if seen is not None else ()

    def start_of(pid: int) -> int:
        """The time now: a process that takes the same pid later starts later."""
        return int(time.time())

    def same(announced: int, seen: int) -> bool:
        return seen <= announced + 1

    def _ps(*which: str) -> list[SeenProcess]:
        command = ["/bin/ps", *which, "-E", "-ww", "-o", "pid=,pgid=,stat=,lstart=,command="]
        printed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"LC_ALL": "C"})
        found = []
        for line in printed.stdout.splitlines():
            try:
                pid, pgid, state, *began = line.split(None, 8)[:8]
                start = int(time.mktime(time.strptime(b" ".join(began).decode(), "%a %b %d %H:%M:%S %Y")))
                found.append(SeenProcess(int(pid), int(pgid), start, chr(state[0]), tuple(line.split()[8:])))
            except (ValueError, IndexError):
                continue
        return found


def holds(pid: int, path: str) -> bool:
    """Whether this process has the flock of this file. Where the system does not say whose it is: whether anybody
    keeps it from us.
    """
    try:
        if sys.platform == "linux":
            return pid in lock_holders(path, "FLOCK")
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def lock_holders(path: str, kind: str) -> list[int]:
    """Who holds a lock of this kind (FLOCK, POSIX) on this file, as Linux lists them; 0 is one in another namespace.
    Raises OSError where there is no such list.
    """
    with open("/proc/locks", encoding="ascii", errors="replace") as file:
        lines = file.read().splitlines()
    found = os.stat(path)
    # On some file systems (overlay, btrfs) a file's own device is not that of its mount, by which locks are listed.
    places = {_place(device, found.st_ino) for device in (found.st_dev, _mounted_device(path))}
    return holders_in(lines, kind, places)


def holders_in(lines: list[str], kind: str, places: set[str]) -> list[int]:
    """`7: FLOCK  ADVISORY  WRITE 4711 00:2f:1234 0 EOF`; one that waits has an arrow behind its number."""
    rows = [line.split() for line in lines]
    return [int(row[4]) for row in rows if row[5:] and row[1] == kind and row[5] in places and row[4].isdigit()]


def _place(device: int, inode: int) -> str:
    return f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"


def _mounted_device(path: str) -> int:
    """Without opening it for reading: to close a SQLite file drops the locks that this process has on it."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            mount = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        with open("/proc/self/mountinfo", encoding="ascii", errors="replace") as file:  # paths are just bytes
            devices = [words[2] for words in map(str.split, file) if words[0] == mount]
        major, _, minor = devices[0].partition(":") if devices else ("0", "", "0")
        return os.makedev(int(major), int(minor))
    finally:
        os.close(fd)


# --- while the worker lives --------------------------------------------------------------------------


class Listener:
    """Hears the worker until the end of file."""

    def __init__(
        self, worker: int, hard_limit_s: float, frozen_s: float = 0.0, write_locks: "tuple[str, ...]" = ()
    ) -> None:
        self.groups: Groups = {}
        self._worker = worker
        self._limit_s = hard_limit_s
        self._frozen_limit_s = frozen_s if write_locks else 0.0
        self._write_locks = write_locks
        limits = [limit for limit in (self._limit_s, self._frozen_limit_s) if limit > 0]
        self._tick_s = min([limit / 10 for limit in limits] + [LOOK_S_MAX])
        self._watching = False
        self._silent_s = 0.0
        self._frozen_s = 0.0
        self._warned = False

    def listen(self) -> Groups:
        rest = b""
        last = time.monotonic()
        while True:
            looks = self._watching or self._frozen_limit_s > 0
            ready, _, _ = select.select([0], [], [], self._tick_s if looks else None)
            now = time.monotonic()
            # Capped: what is more than a tick late, this process slept through, and perhaps the worker too.
            passed_s = min(now - last, 1.5 * self._tick_s)
            last = now
            self._silent_s += passed_s
            if ready:
                data = os.read(0, 65536)
                if not data:
                    return self.groups
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:LINE_MAX]
                for line in lines:
                    self._obey(line.split())
            if not ready and self._frozen_limit_s > 0:
                self._watch_frozen(passed_s)
            if self._watching:
                self._watch()

    def _watch_frozen(self, passed_s: float) -> None:
        """A worker that stands still says nothing: only then it is looked at."""
        seen = look_at(self._worker)
        self._frozen_s = self._frozen_s + passed_s if seen is not None and seen.frozen else 0.0
        if self._frozen_s < self._frozen_limit_s or os.getppid() != self._worker:
            return
        if any(holds(self._worker, lock) for lock in self._write_locks):
            send(self._worker, signal.SIGKILL)

    def _obey(self, words: list[bytes]) -> None:
        """What is not understood is ignored: no line may ever end the guard, or make it kill."""
        try:
            match words:
                case [b"add", pgid, start]:
                    if int(pgid) > 1 and int(pgid) != os.getpgrp():
                        self.groups[int(pgid)] = int(start)
                case [b"remove", pgid]:
                    self.groups.pop(int(pgid), None)
                case [b"beat"]:
                    self._watching, self._silent_s, self._warned = self._limit_s > 0, 0.0, False
                case [b"rest"]:
                    self._watching = False
        except ValueError:
            return

    def _watch(self) -> None:
        if self._silent_s < self._tick_s:
            return
        seen = look_at(self._worker)
        if seen is None or seen.stopped:
            self._silent_s = 0.0
        if self._silent_s < self._limit_s or os.getppid() != self._worker:
            return
        send(self._worker, signal.SIGKILL if self._warned else signal.SIGXCPU)
        self._warned = True
        self._silent_s = self._limit_s - INSIST_S


# --- when it is gone ---------------------------------------------------------------------------------


class Reaper:
    """Ends what is left: first asks, then kills, until two looks in a row find nothing."""

    def __init__(self, groups: Groups, mark: bytes) -> None:
        self._groups = groups
        self._mark = mark
        self._asked: set[int] = set()
        self._proven: set[tuple[int, int]] = set()  # pid and start: they stay ours when their leader is gone

    def run(self) -> int:
        """How many groups and escapees there were."""
        kill_at = time.monotonic() + TERM_S
        pause_s, in_vain = PAUSE_S, 0
        while True:
            found = self._round(signal.SIGKILL if time.monotonic() >= kill_at else signal.SIGTERM)
            in_vain = 0 if found else in_vain + 1
            if in_vain == LOOKS_IN_VAIN:
                return len(self._asked)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _round(self, signum: int) -> bool:
        """One look at all processes, however many groups there are. Groups first: they need no environment read,
        which is the one thing here that can be slow."""
        members: dict[int, list[SeenProcess]] = {}
        ours: set[int] = set()
        others: list[SeenProcess] = []
        for seen in glance():
            if seen.pid == seen.pgid and same(self._groups.get(seen.pgid, -1), seen.start):
                ours.add(seen.pgid)
            if not seen.dead and seen.pid != os.getpid():
                members.setdefault(seen.pgid, []).append(seen)
        for pgid, group in members.items():
            if pgid in self._groups and any((seen.pid, seen.start) in self._proven for seen in group):
                ours.add(pgid)
        for pgid in ours & members.keys():
            self._proven.update((seen.pid, seen.start) for seen in members[pgid])
            self._signal_group(pgid, signum)
        for pgid, group in members.items():
            if pgid in ours:
                continue
            marked = [seen for seen in group if seen.carries(self._mark)]
            if marked and pgid in self._groups:
                ours.add(pgid)
                self._signal_group(pgid, signum)
            else:
                others += marked
        for seen in others:
            self._signal_process(seen.pid, signum)
        return bool(ours & members.keys() or others)

    def _signal_group(self, pgid: int, signum: int) -> None:
        if signum == signal.SIGKILL or pgid not in self._asked:
            self._asked.add(pgid)
            try:
                os.killpg(pgid, signum)
                os.killpg(pgid, signal.SIGCONT)  # one that was stopped hears of it, too
            except OSError:
                return  # just gone, or not ours to signal

    def _signal_process(self, pid: int, signum: int) -> None:
        if signum == signal.SIGKILL or pid not in self._asked:
            self._asked.add(pid)
            send(pid, signum, self._mark)


def send(pid: int, signum: int, mark: bytes | None = None) -> None:
    """Through a pidfd where there are such: what is signalled is then the very process that was looked at."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS, an old kernel, a sandbox
        fd = -1
    try:
        if mark is not None and mark not in environment(pid):
            return
        if fd >= 0:
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(pid, signum)
    except OSError:
        return
    finally:
        if fd >= 0:
            os.close(fd)


def say(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        return  # the worker is gone, as it may


def main(mark: str, worker: int, hard_limit_s: float, frozen_s: float, write_locks: "tuple[str, ...]") -> None:
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGUSR1", "SIGUSR2")
    for name in names:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    listener = Listener(worker, hard_limit_s, frozen_s, write_locks)
    say("ready")
    groups = listener.listen()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(WORK_S)
    found = Reaper(groups, f"{VARIABLE}={mark}".encode()).run()
    say(f"found {found}")


if __name__ == "__main__":
    frozen_after_s, *locks = sys.argv[4:] or ["0"]
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(frozen_after_s), tuple(locks))
