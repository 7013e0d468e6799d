"""Keeps holdfast's own files out of sight of the processes that tools start.

What a shell command, a tool server or an isolated body does with a path is beyond `tools/floor.py`: such a process
runs as the same user and opens what it likes. So it is started in a view of the file system in which

    home, database and what lies beside it        are not there
    holdfast.toml, the list of trusted folders    can be read, not written; a holdfast.toml with keys is not there
    .git/config and .git/hooks of its repository  can be read, not written

and from which neither the worker's memory and environment nor those of the user's other processes are open.
`starter_process.py` makes that view, with system calls of Linux, and says what it holds against. There is one such
starter per process, as long as an app is open; a process that it starts is a child of this one like any other.

A process that has a sandbox (`sandbox.py`) starts inside of that view, and is never started without.

Where the system does not let us (macOS, a container without the right to, a kernel that keeps user namespaces from
users), a process is started uncovered, and `problem` says why; or it is not started, if the settings demand that.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.system.disk import make_home
from holdfast.system.git_folders import folders_of
from holdfast.system.mounting import HIDE, KEEP, PIN
from holdfast.system.starter import CannotCover, Cover, Order, Process, StartedProcess, Starter, StartResult, View
from holdfast.system.starter_process import FOLDER, PROGRAM

ENTRIES_MAX = 10_000  # of a folder that a database lies in
MODULES_MAX = 1000  # folders looked at for the modules of a repository
SETTLED_NS = 1_000_000_000
KNOWN_MAX = 20_000  # folders that are remembered
BELOW_MAX = 1000  # folders looked at for repositories below a root, the nearest first
TRIES_MAX = 2  # to ask a starter, which every process of our user can kill
ROOTS_MAX = 64  # folders that processes were started in
SETTINGS = "holdfast.toml"
_OURS = ("token", "address", "history")  # in a home that holds the user's work as well
_BESIDE = ("", "-wal", "-shm", "-journal", ".lock")  # a database, however many other files are in its folder
_STREAMS = 3

Wish = Literal["auto", "always", "never"]


class ProcessSpec(NamedTuple):
    """A process to be started, in a session of its own. `env` is all of its environment."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | Path | None = None
    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.DEVNULL
    stderr: int = subprocess.DEVNULL
    pass_fds: Sequence[int] = ()  # that it has under the same numbers
    view: View | None = None  # inside of a sandbox

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.stdin, self.stdout, self.stderr, *self.pass_fds)


class Own(NamedTuple):
    """What belongs to one app."""

    folders: tuple[str, ...]  # its home, and where its workers keep their locks
    database: str | None  # a file of SQLite's
    root: str | None = None  # where it was opened: its settings are there
    keyed_settings: bool = False  # its holdfast.toml holds keys
    wish: Wish = "auto"


# --- what is covered -------------------------------------------------------------------------------------


class _Wanted:
    """What is to be covered for the apps that are open, and the folders that processes were started in."""

    def __init__(self, owned: Sequence[Own], roots: Sequence[str]) -> None:
        self._owned = owned
        self._roots = dict.fromkeys((*roots, *(one.root for one in owned if one.root is not None)))
        needed = [*roots, sys.prefix, sys.base_prefix, tempfile.gettempdir(), os.path.expanduser("~")]
        self._needed = [os.path.realpath(path) for path in needed]

    def covers(self) -> list[Cover]:
        found = [*self._hidden(), *self._kept()]
        return list(dict.fromkeys((kind, os.fsencode(path)) for kind, path in found))

    def linked(self) -> Iterator[str]:
        """Files that have a second name somewhere, which is not covered."""
        for one in self._owned:
            for path in (*(os.path.join(folder, "token") for folder in one.folders), one.database):
                if path is not None and (found := _stat(path)) is not None and found.st_nlink > 1:
                    yield path

    @property
    def folders(self) -> set[str]:
        """Those that are hidden as a whole: nothing that a process needs is in them."""
        found = {os.path.realpath(folder) for one in self._owned for folder in one.folders}
        return {folder for folder in found if not any(_below(path, folder) for path in self._needed)}

    def _hidden(self) -> Iterator[tuple[str, str]]:
        whole = self.folders
        yield from ((HIDE, folder) for folder in sorted(whole))
        for one in self._owned:
            for folder in {os.path.realpath(folder) for folder in one.folders} - whole:
                yield from ((HIDE, os.path.join(folder, name)) for name in _OURS)
            if one.database is not None:
                folder, name = os.path.split(os.path.realpath(one.database))
                if not any(_below(folder, hidden) for hidden in whole):
                    yield from ((HIDE, path) for path in _siblings(folder, name))

    def _kept(self) -> Iterator[tuple[str, str]]:
        keyed = any(one.keyed_settings for one in self._owned)
        for root in self._roots:
            settings = os.path.join(root, SETTINGS)
            if os.path.lexists(settings):
                yield HIDE if keyed else KEEP, os.path.realpath(settings)
            for found in _repositories(root):
                yield from _repository(found)
        for path in (_trusted(), os.path.expanduser("~/.gitconfig"), os.path.join(_settings_of_user(), "git")):
            yield KEEP, os.path.realpath(path)


def _repositories(root: str) -> Iterator[str]:
    """That a folder is in: a module is in the one that it is a module of. And those that are below it."""
    root = os.path.realpath(root)
    folder, below = root, None
    while folder != below:
        if os.path.lexists(found := os.path.join(folder, ".git")):
            yield found
        folder, below = os.path.dirname(folder), folder
    folders = deque([root])
    for _ in range(BELOW_MAX):
        if not folders:
            return
        with suppress(OSError):
            looked = _looked_at(folders.popleft())
            yield from looked.repository
            folders += looked.folders


class _Looked(NamedTuple):
    """At a folder: which one and as of when, the repository in it, and the folders."""

    state: tuple[int, int, int]
    repository: tuple[str, ...]
    folders: tuple[str, ...]


_known: dict[str, _Looked] = {}  # of folders that did not change since


def _looked_at(folder: str) -> _Looked:
    """The kernel notes every change of a folder's names, and nobody can take that note back. One that is as young as
    its clock is coarse may be of a change that came behind our look.
    """
    seen = os.stat(folder)
    state = seen.st_dev, seen.st_ino, seen.st_ctime_ns
    if (known := _known.get(folder)) is not None and known.state == state:
        return known
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if entry.name == ".git" or entry.is_dir(follow_symlinks=False)]
    looked = _Looked(
        state,
        tuple(entry.path for entry in found if entry.name == ".git"),
        tuple(entry.path for entry in found if entry.name != ".git"),
    )
    if time.time_ns() - seen.st_ctime_ns > SETTLED_NS:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[folder] = looked
    return looked


def _repository(found: str) -> Iterator[tuple[str, str]]:
    """Its settings and hooks, those of its modules, and what says where they are."""
    try:
        own, common = folders_of(found)
    except (OSError, ValueError):  # git takes it for none: what becomes of it is up to the one who repairs it
        yield KEEP if os.path.isfile(found) else PIN, os.path.realpath(found)
        return
    for path in dict.fromkeys((found, own, common)):
        yield KEEP if os.path.isfile(path) else PIN, os.path.realpath(path)
    for folder in dict.fromkeys((own, common, *_modules(common))):
        for name in ("config", "hooks", "config.worktree", "commondir"):
            yield KEEP, os.path.realpath(os.path.join(folder, name))


def _modules(repository: str) -> Iterator[str]:
    folders = [os.path.join(repository, "modules")]
    for _ in range(MODULES_MAX):
        if not folders:
            return
        folder = folders.pop()
        if os.path.lexists(os.path.join(folder, "HEAD")):
            yield folder
            folders.append(os.path.join(folder, "modules"))
        else:
            with suppress(OSError), os.scandir(folder) as entries:
                folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _siblings(folder: str, name: str) -> Iterator[str]:
    yield from (os.path.join(folder, name + end) for end in _BESIDE)
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if entry.name.startswith(name):
                    yield entry.path
                if count == ENTRIES_MAX:
                    return
    except OSError:
        return


def _trusted() -> str:
    """Where it is noted which folders a person trusts: see `cli/trust.py`."""
    return os.path.join(_settings_of_user(), "holdfast", "trusted")


def _settings_of_user() -> str:
    return os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")


def _have_folders(owned: Sequence[Own]) -> None:
    """What is not there cannot be covered, and a process could make it: a home with a token of its own in it."""
    for one in owned:
        for home in one.folders[:1]:
            with suppress(OSError):
                make_home(Path(home))
    with suppress(OSError):
        if os.path.isdir(os.path.expanduser("~")):
            Path(_trusted()).mkdir(mode=0o700, parents=True, exist_ok=True)


def _below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(folder.rstrip("/") + "/")


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


# --- what others use -------------------------------------------------------------------------------------


class _State:
    """Of this process. The starter is spoken with under `lock`, which may take seconds. The apps are noted under
    `apps`, which never does, each time as a new tuple.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.apps = threading.Lock()
        self.owned: tuple[Own, ...] = ()
        self.roots: dict[str, None] = {}  # where processes were started, the newest last
        self.starter: Starter | None = None
        self.folders: set[str] = set()  # that it hides as a whole
        self.is_able = False  # there was a starter: from then on nothing is started without
        self.problem: str | None = None
        self.covered = 0
        self.uncovered = 0
        self.sandboxed = 0

    @property
    def is_wanted(self) -> bool:
        return any(one.wish != "never" for one in self.owned)

    @property
    def is_demanded(self) -> bool:
        return any(one.wish == "always" for one in self.owned)

    def end_starter(self) -> None:
        if self.starter is not None:
            self.starter.end()
            self.starter = None
            self.folders = set()

    def remember(self, root: str) -> None:
        self.roots.pop(root, None)
        self.roots[root] = None
        if len(self.roots) > ROOTS_MAX:
            del self.roots[next(iter(self.roots))]

    def ready(self, wanted: _Wanted, *, needed: bool = True) -> Starter | None:
        """A starter that hides nothing which is to be seen; None where there can be none, and it is not needed.
        Raises ToolFailed.
        """
        if not self.folders <= wanted.folders:
            self.end_starter()
        if self.starter is None and (self.is_able or self.problem is None):
            try:
                self.starter = Starter()
                self.is_able, self.problem = True, None
            except (CannotCover, OSError) as error:
                self.problem = str(error)
        if self.starter is None and (self.is_able or self.is_demanded or needed):
            raise _not_covered(self.problem)
        return self.starter

    def start(self, wanted: _Wanted, order: Order, fds: Sequence[int]) -> StartResult:
        """Raises ToolFailed, OutcomeUnknown."""
        starter = self._asked(wanted, order, fds)
        try:
            problems, started = starter.answer()
        except (OSError, CannotCover) as error:
            self.end_starter()
            raise OutcomeUnknown(f"Whether the process was started is not known: {error}.") from error
        self.folders |= wanted.folders
        self.problem = problems[0] if problems else None
        self.covered += 1
        return started

    def _asked(self, wanted: _Wanted, order: Order, fds: Sequence[int]) -> Starter:
        """A starter that has been asked for it. One that was killed meanwhile is replaced."""
        _have_folders(self.owned)
        covers = wanted.covers()
        for _ in range(TRIES_MAX):
            starter = self.ready(wanted)
            assert starter is not None
            try:
                if self.is_demanded and (problems := starter.cover(covers)):
                    raise _not_covered(problems[0])
                starter.ask(covers, order, fds)
                return starter
            except (OSError, CannotCover) as error:
                self.end_starter()
                self.problem = str(error)
        raise _not_covered(self.problem)


def _not_covered(problem: str | None) -> ToolFailed:
    return ToolFailed(f"Nothing was started: holdfast's own files cannot be kept from it ({problem}).")


_state = _State()


def protect(own: Own) -> None:
    """From now on. An app calls it when it is opened, and `release` when it is closed. They wait for no starter."""
    with _state.apps:
        _state.owned = (*_state.owned, own)
        _state.problem = None


def release(own: Own) -> None:
    with _state.apps:
        owned = list(_state.owned)
        owned.remove(own)
        _state.owned = tuple(owned)
    if not owned:
        _let_starter_go()


def _let_starter_go() -> None:
    if _state.lock.acquire(blocking=False):
        try:
            _state.end_starter()
            _state.roots.clear()
        finally:
            _state.lock.release()
    elif (starter := _state.starter) is not None:
        starter.kill()  # the thread that speaks with it finds it gone


def asks_starter() -> bool:
    """Whether `spawn` waits for the answer of a starter, which can take seconds: then not on an event loop."""
    return _state.is_wanted and (_state.starter is not None or _state.is_able or _state.problem is None)


def spawn(spec: ProcessSpec) -> Process:
    """A process, covered where that can be. From any thread. Raises as Popen does; and ToolFailed if it cannot be
    covered and has to be, OutcomeUnknown if it is unknown whether it was started.
    """
    return spawn_covered(spec, spec.fds) or spawn_uncovered(spec)


def spawn_covered(spec: ProcessSpec, fds: Sequence[int]) -> Process | None:
    """As `spawn`, with these descriptors for those that it names; None: there can be no cover here, and it has no
    sandbox.
    """
    with _state.lock:
        if _state.is_wanted or spec.view is not None:
            _state.remember(root := absolute(spec.cwd))
            wanted = _Wanted(_state.owned, tuple(_state.roots))
            if _state.ready(wanted, needed=spec.view is not None) is not None:
                order = _order(spec, root)
                with _opened(fds[:_STREAMS]) as streams:
                    started = _state.start(wanted, order, (*streams, *fds[_STREAMS:]))
                if not _state.owned:  # the last app was closed meanwhile, or there was none
                    _state.end_starter()
                _state.sandboxed += spec.view is not None
                return _child(started, str(spec.cwd), spec.argv[0])
        if _state.owned:
            _state.uncovered += 1
    return None


def spawn_uncovered(spec: ProcessSpec) -> Process:
    """For what is our own program."""
    if spec.view is not None:
        raise ToolFailed("Nothing was started: it has a sandbox, and there was none.")
    return subprocess.Popen(
        spec.argv,
        cwd=spec.cwd,
        env=spec.env,
        stdin=spec.stdin,
        stdout=spec.stdout,
        stderr=spec.stderr,
        pass_fds=spec.pass_fds,
        start_new_session=True,
    )


def examine(own: Own) -> list[str]:
    """What would keep the files of this app from being covered, or makes it vain. Takes a moment."""
    wanted = _Wanted([own], [absolute(None)])
    try:
        starter = Starter()
    except (CannotCover, OSError) as error:
        return [str(error)]
    try:
        problems = starter.cover(wanted.covers())
    except (CannotCover, OSError) as error:
        problems = [str(error)]
    finally:
        starter.end()
    return [*problems, *(f"{path} has a second name (a hard link), which is not covered" for path in wanted.linked())]


def try_view(view: View) -> str | None:
    """What keeps a process from being started inside of a sandbox like this; None if it can be. Takes a moment."""
    try:
        starter = Starter()
    except (CannotCover, OSError) as error:
        return str(error)
    try:
        with _opened([subprocess.DEVNULL] * _STREAMS) as streams:
            starter.ask([], ([], [], {}, b"/", list(range(_STREAMS)), view), streams)
            _, started = starter.answer()
        if started.pid:
            StartedProcess(started.pid).wait()
    except (CannotCover, OSError) as error:
        return str(error)
    finally:
        starter.end()
    return f"{started.at}: {os.strerror(started.errno)}" if started.errno else None


def is_open() -> bool | None:
    """Whether what tools start here was uncovered; None as long as nothing was started."""
    return None if not (_state.covered or _state.uncovered) else _state.uncovered > 0


def sandboxed() -> int:
    """How many processes were started inside of a sandbox."""
    return _state.sandboxed


def figures() -> dict[str, int | str | None]:
    """For /health, from any thread."""
    return {"covered": _state.covered, "uncovered": _state.uncovered, "problem": _state.problem}


def _child(started: StartResult, folder: str, program: str) -> StartedProcess:
    """Raises OSError, as Popen does."""
    if started.errno == 0:
        return StartedProcess(started.pid)
    if started.pid:
        StartedProcess(started.pid).wait()
    if started.at not in (PROGRAM, FOLDER):
        why = f"{started.at}: {os.strerror(started.errno)}"
        raise ToolFailed(f"Nothing was started: its sandbox could not be made ({why}).")
    raise OSError(started.errno, os.strerror(started.errno), folder if started.at == FOLDER else program)


def _order(spec: ProcessSpec, root: str) -> Order:
    words = [os.fsencode(word) for word in spec.argv]
    env = {**spec.env, **({} if spec.view is None else {"TMPDIR": "/tmp"})}
    entries = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    if any(b"\0" in text for text in (*words, *entries, *entries.values())):
        raise ValueError("embedded null byte")
    if any(b"=" in name for name in entries):
        raise ValueError("illegal environment variable name")
    folders = [b""] if b"/" in words[0] else [os.fsencode(folder) for folder in os.get_exec_path(spec.env)]
    programs = [os.path.join(folder, words[0]) for folder in folders]
    return programs, words, entries, os.fsencode(root), [*range(_STREAMS), *spec.pass_fds], spec.view


@contextmanager
def _opened(streams: Sequence[int]) -> Iterator[list[int]]:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield [null if stream == subprocess.DEVNULL else stream for stream in streams]
    finally:
        os.close(null)


def absolute(cwd: str | Path | None) -> str:
    try:
        return os.path.abspath(cwd or ".")
    except FileNotFoundError:  # ours was removed
        return "/"


def _let_go_in_a_fork() -> None:
    global _state  # its lock may be held by a thread that is not here
    if _state.starter is not None:
        _state.starter.let_go()
    _state = _State()


os.register_at_fork(after_in_child=_let_go_in_a_fork)
