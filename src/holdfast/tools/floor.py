"""What no tool touches, whatever it is asked and a person approves: the files that hold holdfast itself.

    home, database and what lies beside it      neither read nor written: chats of others, tokens, leases
    holdfast.toml, .git, .gitconfig             not written: what stands in them runs the next time they are read;
                                                nor is the list of folders whose holdfast.toml a person trusts
    .ssh, .gnupg, .netrc and the like           neither: keys
    /proc                                       neither: the environment and memory of other processes

A name is enough to be refused, in any case of its letters. What belongs to an app that is open in this process is
known by its inode as well, so that no hard link, bind mount, other spelling or moved folder gets past. The home that
is missing for a moment is remembered by the inode that it had.

One home of the rule: `tools/files/root.py` asks it for every folder and file on the way, `tools/permissions/paths.py`
and `tools/shell/tool.py` for the acts of a call. What a program does that is started with a person's consent is not
judged here: these files are out of its sight (`system/cover.py`).
"""

import os
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise

from holdfast.system import cover
from holdfast.system.cover import Own

ENTRIES_MAX = 10_000  # of a folder that a database lies in

_SECRET = frozenset({".holdfast", ".ssh", ".gnupg", ".netrc", ".pgpass", ".git-credentials", ".aws", ".kube"})
_RUNS = frozenset({".git", ".gitconfig", "holdfast.toml"})
_RUNS_BELOW = {".config": frozenset({"git"}), "holdfast": frozenset({"trusted"})}  # whose settings a person trusts
_KINDS = {
    "secret": "is not for tools: it holds keys, or what holdfast itself remembers",
    "runs": "is not written by tools: what stands in it is run later, unasked",
    "proc": "is not for tools: it shows other processes",
}

Identity = tuple[int, int]  # of a file or folder: device and inode


def own(home: str, lock_folder: str, database: str | None) -> Own:
    return Own((os.path.abspath(home), os.path.abspath(lock_folder)), database, root=cover.absolute(None))


class Floor:
    """What is protected at this moment: looked up once for a call of a tool."""

    def __init__(
        self,
        own: frozenset[Identity],
        names: dict[Identity, tuple[str, ...]],
        paths: frozenset[str],
        proc: int | None,
    ) -> None:
        self._own = own
        self._names = names  # by the folder they are in: what is there, or may be, and begins like that
        self._paths = paths
        self._proc = proc

    def objection(
        self,
        parts: Sequence[str],
        found: os.stat_result | None,
        above: os.stat_result | None = None,
        *,
        writes: bool,
    ) -> str | None:
        """To the file or folder `found` (None: it does not exist) at the end of these names, in the folder `above`.
        Each name is a real one: no symlink is among them.
        """
        kind = self._kind(parts, found, writes)
        if kind is None and above is not None:
            begins = self._names.get((above.st_dev, above.st_ino), ())
            kind = "secret" if plain(parts[-1]).startswith(begins) else None
        return _KINDS[kind] if kind is not None else None

    def _kind(self, parts: Sequence[str], found: os.stat_result | None, writes: bool) -> str | None:
        names = [plain(part) for part in parts]
        if found is not None and found.st_dev == self._proc:
            return "proc"
        if not _SECRET.isdisjoint(names):
            return "secret"
        if found is not None and (found.st_dev, found.st_ino) in self._own:
            return "secret"
        if writes and not _RUNS.isdisjoint(names):
            return "runs"
        if writes and any(below in _RUNS_BELOW.get(above, ()) for above, below in pairwise(names)):
            return "runs"
        return None

    def objection_to(self, path: str, root: str, *, writes: bool) -> str | None:
        """The same for an absolute path that need not exist, by every folder on its way; not by those that lead to
        the root of the tool, which a person chose.
        """
        real, base = os.path.realpath(path), os.path.realpath(root).rstrip("/") + "/"
        parts = [part for part in real.split("/") if part]
        given = base.count("/") - 1 if f"{real}/".startswith(base) else 0
        above = _stat("/" + "/".join(parts[:given]))
        for end in range(given + 1, len(parts) + 1):
            found = _stat("/" + "/".join(parts[:end]))
            if reason := self.objection(parts[end - 1 : end], found, above, writes=writes):
                return reason
            above = found
        return self.objection(parts[given:], None, writes=writes)

    def lies_below(self, folder: str) -> bool:
        """Whether something that no tool may read is somewhere in a folder."""
        real = os.path.realpath(folder).rstrip("/") + "/"
        if any(path.startswith(real) for path in self._paths):
            return True
        with suppress(OSError), os.scandir(folder) as entries:
            return any(plain(entry.name) in _SECRET for entry in islice(entries, ENTRIES_MAX))
        return False


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def plain(name: str) -> str:
    """As file systems that do not tell letters apart see it; some of them pass over characters without a shape."""
    if name.isascii():
        return name.lower()
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn"))


_lock = threading.Lock()
_owned: "Counter[Own]" = Counter()
_last_seen: dict[str, Identity] = {}


def protect(own: Own) -> None:
    """From now on. An app calls it when it is opened, and `release` when it is closed."""
    with _lock:
        _owned[own] += 1
        for path in _roots(own):
            _identity(path)
    cover.protect(own)


def release(own: Own) -> None:
    with _lock:
        _owned[own] -= 1
        if _owned[own] <= 0:
            del _owned[own]
            for path in _roots(own):
                _last_seen.pop(path, None)
    cover.release(own)


def floor() -> Floor:
    """As it is now, from any thread."""
    with _lock:
        owned = tuple(_owned)
        own = frozenset(found for one in owned for found in _identities(one))
    real = frozenset(os.path.realpath(path) for one in owned for path in _roots(one))
    names: dict[Identity, tuple[str, ...]] = {}
    for path in real:
        folder, name = os.path.split(path)
        if (above := _stat(folder)) is not None:
            key = above.st_dev, above.st_ino
            names[key] = (*names.get(key, ()), plain(name))
    proc = _stat("/proc/self")  # None on macOS
    return Floor(own, names, frozenset(filter(os.path.lexists, real)), proc.st_dev if proc is not None else None)


def _roots(own: Own) -> tuple[str, ...]:
    return own.folders if own.database is None else (*own.folders, own.database)


def _identities(own: Own) -> Iterator[Identity]:
    for path in _roots(own):
        if (found := _identity(path)) is not None:
            yield found
    for folder in own.folders:
        yield from _entries(folder, "")
    if own.database is not None:
        folder, name = os.path.split(os.path.realpath(own.database))
        yield from _entries(folder, name)  # -wal, -shm, .lock, -workers, .before-restore and whatever comes


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return _last_seen.get(path)
    _last_seen[path] = found.st_dev, found.st_ino
    return _last_seen[path]


def _entries(folder: str, prefix: str) -> Iterable[Identity]:
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, ENTRIES_MAX):
            if entry.name.startswith(prefix):
                with suppress(OSError):  # gone since
                    seen = entry.stat(follow_symlinks=False)
                    found.append((seen.st_dev, seen.st_ino))
    return found
