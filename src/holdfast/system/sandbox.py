"""A sandbox: what a process of a tool has, and that it has nothing else.

    shell_tool(root=".", sandbox=Sandbox())

Plain data, and what follows from it on this machine. `sandbox_process.py` makes it, by system calls of Linux; nothing
here starts a process, except to try whether one can be started so.
"""

import glob
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs

from holdfast.errors import ConfigError
from holdfast.system import cover
from holdfast.system.landlock import MISSING, landlock_abi
from holdfast.system.mounting import HIDE, PIN
from holdfast.system.sandbox_process import EMPTY, READ, TEMPORARY, WRITE
from holdfast.system.starter import PACKAGES, View

MEMORY_BYTES_MAX = 4 << 30
PROCESSES_MAX = 1024
PROCESSES_MAX_MIN = 512  # Linux keeps some three hundred numbers for itself
TMP_BYTES_MAX = 1 << 30
TRY_AGAIN_S = 60.0
LINKS_MAX = 40  # as the kernel has it

# Where programs, their libraries and their settings lie, whatever system it is.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store")
# Who commits, and what git passes over; not the file in which it keeps passwords.
OF_HOME = ("~/.gitconfig", "~/.config/git/config", "~/.config/git/ignore", "~/.config/git/attributes")
# What root could read of these; to others they are closed anyhow.
SECRET = ("/etc/shadow*", "/etc/gshadow*", "/etc/ssh/*_key", "/etc/ssl/private")  # patterns


class Sandbox(Struct, frozen=True, kw_only=True):
    """What a process of a tool has: its root, which it can write, a `/tmp` of its own, and the system's programs to
    read. The rest of the files is not there, home folders included, nor other processes, nor the network.

    >>> Sandbox(readable=["~/datasets"], hidden=["secrets.env"]).network
    False

    `readable`, `writable` and `hidden` name more folders and files; a relative path begins at the tool's root. Of one
    that lies in another, what is said of the inner one holds. `network=True` is the whole network of this machine:
    by host it cannot be opened here. `memory_bytes_max` is per process, `tmp_bytes_max` for `/tmp` and its like, and
    `processes_max` for processes and threads together; None is no limit. docs/how-to/shell.md says what it holds
    against.
    """

    network: bool = False
    readable: Sequence[str | Path] = ()
    writable: Sequence[str | Path] = ()
    hidden: Sequence[str | Path] = ()
    memory_bytes_max: int | None = MEMORY_BYTES_MAX
    processes_max: int | None = PROCESSES_MAX
    tmp_bytes_max: int = TMP_BYTES_MAX

    def __post_init__(self) -> None:
        for field in ("readable", "writable", "hidden"):
            value = getattr(self, field)
            if isinstance(value, str | Path):
                raise ConfigError(f"sandbox: {field} is a list of paths, not one")
            structs.force_setattr(self, field, tuple(value))
        least = {"memory_bytes_max": 1 << 20, "tmp_bytes_max": 1 << 16, "processes_max": PROCESSES_MAX_MIN}
        for field, minimum in least.items():
            value = getattr(self, field)
            if value is not None and value < minimum:
                raise ConfigError(f"sandbox: {field} must be at least {minimum:,}, it is {value:,}")


def view_of(sandbox: Sandbox, root: str | Path | None, needed: Iterable[str] = ()) -> View:
    """On this machine, for a tool that works in `root` and reads what is `needed`. Symlinks on the way to what is
    named are followed now and not later, when a tool may have written them. Raises ConfigError.
    """
    base = os.path.abspath(root or "/tmp")
    places = _Places()
    places.add_needed(EMPTY, "~")
    for path in (*SYSTEM, *OF_HOME, *_python(), *needed, *(_NAMES if sandbox.network else ())):
        places.add_needed(READ, path)
    if root is not None:
        places.add(WRITE, base)
    if os.geteuid() == 0:
        for path in (found for pattern in SECRET for found in glob.iglob(pattern)):
            places.add(HIDE, path)
    for kind, paths in ((READ, sandbox.readable), (WRITE, sandbox.writable), (HIDE, sandbox.hidden)):
        for path in paths:
            places.add(kind, os.path.join(base, os.path.expanduser(path)))
    limits = (sandbox.memory_bytes_max or 0, sandbox.processes_max or 0, sandbox.tmp_bytes_max)
    return places.told(), list(places.links.items()), sandbox.network, *limits


_OWN = ("/", "/proc", "/dev", *map(os.fsdecode, TEMPORARY))  # which a sandboxed process has itself
_NAMES = ("/etc/resolv.conf",)  # which may be a link to where no other place is


def _python() -> tuple[str, ...]:
    """The one that runs us. Where it lies in a tool's root, it is not to be written: what stands there, we run."""
    return sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))


class _Places:
    """What a process sees, by its real path. What is named last counts."""

    def __init__(self) -> None:
        self._home = os.path.realpath(os.path.expanduser("~"))
        self._kinds: dict[str, str] = {}
        self.links: dict[bytes, bytes] = {}

    def add(self, kind: str, path: str) -> None:
        links, real = _followed(path)
        if real in _OWN or any(_below(real, own) for own in ("/proc", "/dev") if not _below(real, "/dev/shm")):
            raise ConfigError(f"sandbox: {path} cannot be given to a process, which has one of its own")
        self.links.update(links)
        self._kinds.pop(real, None)
        self._kinds[real] = kind

    def add_needed(self, kind: str, path: str) -> None:
        """What nobody named: not as far as all of `/tmp` or a whole home would come along with it."""
        _, real = _followed(path)
        if kind == EMPTY or not any(_below(private, real) for private in (*_OWN, self._home)):
            with suppress(ConfigError):
                self.add(kind, path)

    def told(self) -> list[tuple[str, bytes]]:
        """A folder before what lies in it, without what is seen anyhow."""
        found = {path: kind for path, kind in self._kinds.items() if self._differs(path, kind)}
        for path, kind in tuple(found.items()):
            if kind in (READ, HIDE):
                found = {**dict.fromkeys(self._on_the_way(path), PIN), **found}
        ordered = sorted(found.items(), key=lambda place: (place[1] == HIDE, place[0].count("/")))
        return [(kind, os.fsencode(path)) for path, kind in ordered]

    def _differs(self, path: str, kind: str) -> bool:
        above = next((self._kinds[folder] for folder in _above(path) if self._kinds.get(folder, HIDE) != HIDE), None)
        if kind == EMPTY:
            return above != WRITE  # a home in the root of a tool is the tool's
        return kind == HIDE or above != kind

    def _on_the_way(self, path: str) -> list[str]:
        """The folders by which it could be moved to where nothing is said of it."""
        folders: list[str] = []
        for folder in _above(path):
            if folder in self._kinds:
                return folders if self._kinds[folder] == WRITE else []
            folders.append(folder)
        return []


def _followed(path: str) -> tuple[dict[bytes, bytes], str]:
    """The symlinks on the way to a path, and where it leads."""
    links: dict[bytes, bytes] = {}
    rest, real = [part for part in os.path.abspath(os.path.expanduser(path)).split("/") if part], ""
    while rest:
        step = f"{real}/{rest.pop(0)}"
        if len(links) < LINKS_MAX and os.path.islink(step):
            target = os.readlink(step)
            links[os.fsencode(step)] = os.fsencode(target)
            whole = os.path.normpath(os.path.join(real or "/", target))
            rest, real = [part for part in whole.split("/") if part] + rest, ""
        else:
            real = step
    return links, real or "/"


def _above(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != "/":
        yield path


def _below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


# --- whether there can be one ----------------------------------------------------------------------------


class _Trial:
    """Of this process. What could be once is not asked again; what could not is, after a while."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.problem: str | None = None
        self.tried_at: float | None = None

    def run(self) -> str | None:
        with self.lock:
            stale = self.problem is not None and time.monotonic() - (self.tried_at or 0.0) > TRY_AGAIN_S
            if self.tried_at is None or stale:
                self.problem = cover.try_view(view_of(Sandbox(), None))
                self.tried_at = time.monotonic()
            return self.problem


_trial = _Trial()


def problem() -> str | None:
    """Why no process can be put into a sandbox here; None if it can. Takes a moment the first time: it is tried."""
    return _trial.run()


def abilities() -> str:
    """What one is made of here, in words."""
    landlock = f", Landlock {abi}" if (abi := landlock_abi()) else ""
    return f"namespaces, a filter of system calls{landlock}"


def rest() -> str:
    """What there is where a whole one cannot be, in words for the person who is asked."""
    if not landlock_abi():
        return "It would run without."
    return f"It would have a part of it, Landlock, which keeps it to its files and off the network; but {MISSING}."


_STAND_IN = "import sys; sys.path.append(sys.argv[1]); from holdfast.system.landlock import main; main()"


def stand_in(view: View) -> tuple[str, ...]:
    """The beginning of a command line that has what part of a sandbox there is; empty if that is none."""
    if not landlock_abi():
        return ()
    places, _, network, memory_bytes_max, _, _ = view
    rules = {
        "readable": [os.fsdecode(path) for kind, path in places if kind == READ],
        "writable": [os.fsdecode(path) for kind, path in places if kind == WRITE],
        "network": network,
        "memory_bytes_max": memory_bytes_max,
    }
    return sys.executable, "-I", "-S", "-c", _STAND_IN, PACKAGES, json.dumps(rules)


def figures() -> dict[str, int | str | None]:
    """For /health, from any thread."""
    return {"sandboxed": cover.sandboxed(), "problem": _trial.problem}


def _begin_anew_in_a_fork() -> None:
    global _trial  # its lock may be held by a thread that is not here
    _trial = _Trial()


os.register_at_fork(after_in_child=_begin_anew_in_a_fork)
