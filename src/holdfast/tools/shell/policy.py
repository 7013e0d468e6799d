"""Which command lines a shell runs without asking: those whose every act is allowed, or known to be harmless.

A line is taken for its acts (`tools/shell/acts.py`). To run unasked,

- each `run` begins with words that the operator allowed, and the table (`tools/shell/harmless.py`) knows everything
  after them; or it is, word for word, what the operator allowed;
- its program does not lie in the root, where a tool could have put another in its place; git finds no settings
  that start programs (`tools/shell/repository.py`);
- each `read` leads to a file or folder under the root, with every link on the way followed;
- there is no `write` but to /dev/null, no `reach`, and no `run(?)`.

Everything else asks. What leads to a protected file (`tools/floor.py`) is refused and not even asked about.

The policy keeps a model from running what the operator did not mean; it is no sandbox for what was allowed by name:
`pytest` runs whatever the folder holds.
"""

import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, assert_never

from holdfast.errors import ConfigError, ToolFailed
from holdfast.system import processes
from holdfast.tools.confinement import UNATTENDED
from holdfast.tools.context import ToolContext
from holdfast.tools.floor import floor
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Write
from holdfast.tools.shell.acts import acts_of
from holdfast.tools.shell.harmless import runs_folder
from holdfast.tools.shell.repository import objection_to_git

MATCHES_MAX = 1_000  # of a pattern that are looked at
NOWHERE = "/dev/null"

# fmt: off
# To allow one of these alone is to allow every program there is.
_RUNNERS = frozenset({
    ".", "ash", "bash", "builtin", "busybox", "chroot", "command", "dash", "doas", "env", "eval", "exec",
    "fish", "flock", "ksh", "nice", "nohup", "nsenter", "parallel", "script", "setsid", "sh", "source", "ssh",
    "stdbuf", "su", "sudo", "time", "timeout", "trap", "unshare", "watch", "xargs", "zsh",
})
# fmt: on


class _Ask(Exception):
    """Why a line is not run unasked."""


class ShellPolicy:
    """`ShellPolicy(allow=[("git", "status"), ("ls",)])`: what begins with one of these runs, if the rest of it is
    known to be harmless; everything else asks.

    In a chat whose metadata say `"unattended": true` no person would answer, so there it is denied, and the model is
    told why; `unattended="ask"` lets such a chat wait for an answer all the same.
    """

    def __init__(self, *, allow: Sequence[Sequence[str]] = (), unattended: Literal["deny", "ask"] = "deny") -> None:
        if unattended not in ("deny", "ask"):
            raise ConfigError(f"unattended is {unattended!r}; it can be 'deny' or 'ask'")
        self.allow = tuple(_checked(prefix) for prefix in allow)
        self.unattended = unattended

    def bind(
        self, root: Path | None, search_path: str | None = None
    ) -> Callable[[dict[str, Any], ToolContext], str | None]:
        """The decision of a tool whose `command` runs in `root`, and finds programs in `search_path`: for its
        `needs_approval`."""

        def decide(arguments: dict[str, Any], context: ToolContext) -> str | None:
            command = arguments["command"]
            if root is not None:
                refuse_protected(acts_of(command), root)
            reason = self.objection(command, root, search_path)
            if reason is None:
                return None
            if self.unattended == "deny" and context.metadata.get(UNATTENDED):
                raise ToolFailed(f"Denied: no person is there to be asked, and {reason}.")
            return f"Run this command? It is not run unasked: {reason}.\n{command}"

        return decide

    def objection(self, command: str, root: Path | None = None, search_path: str | None = None) -> str | None:
        """Why this line is not run unasked; None if it is. Without a root, where it runs cannot be looked at: then it
        writes nothing, reads what it likes, and git asks."""
        judge = _Judge(self.allow, root, search_path or processes.environment()["PATH"])
        try:
            for act in acts_of(command):
                judge.check(act)
        except _Ask as why:
            return str(why)
        return None


def _checked(prefix: Sequence[str]) -> tuple[str, ...]:
    words = tuple(prefix)
    if isinstance(prefix, str) or not words or not all(words):
        raise ConfigError(f"allow holds {prefix!r}: each entry is a tuple of words, such as ('git', 'status')")
    program, *rest = words
    named = [word for word in rest if not word.startswith("-") and "=" not in word and not word.isdigit()]
    if program.rpartition("/")[2] in _RUNNERS and not named:
        raise ConfigError(
            f"to allow {' '.join(words)!r} is to allow every program: name the one that it may run, too"
        )
    return words


def refuse_protected(acts: Iterable[Act], root: Path) -> None:
    """Raises ToolFailed if a line reads or writes what no tool may touch, as far as the line itself tells."""
    protected = floor()
    for act in acts:
        if isinstance(act, Read | Write):
            for path in _meant(act, root):
                if os.path.realpath(path).startswith("/proc/"):  # most of it is harmless: a person may say so
                    continue
                if why := protected.objection_to(path, str(root), writes=isinstance(act, Write)):
                    raise ToolFailed(f"Denied: `{act.path[:80]}` {why}.")


def _meant(act: Read | Write, root: Path) -> list[str]:
    """The paths that a word stands for. One that stands for no file stands for itself, to the shell."""
    path = os.path.join(os.path.realpath(root), act.path)
    if not act.pattern or "\x00" in path:
        return [path]
    # To some shells `?` is a character, to others a byte.
    matches = chain(glob.iglob(path), map(os.fsdecode, glob.iglob(os.fsencode(path))) if "?" in path else ())
    return list(islice(dict.fromkeys(matches), MATCHES_MAX + 1)) or [path]


def _is_beyond(pattern: str) -> bool:
    """Whether a shell may see more in it than `_meant`: to some `.*` stands for `..`, too, and a `[` was quoted."""
    parts = [part for part in pattern.split("/") if part.startswith(".") and set(part) & set("*?")]
    return "[" in pattern or any(fnmatchcase(folder, part) for part in parts for folder in (".", ".."))


class _Judge:
    def __init__(self, allow: Sequence[tuple[str, ...]], root: Path | None, search_path: str) -> None:
        self._allow = allow
        self._root = None if root is None else os.path.realpath(root)
        self._search_path = search_path

    def check(self, act: Act) -> None:
        match act:
            case Run():
                self._check_run(act)
            case Read():
                self._check_read(act)
            case Write():
                if act.path != NOWHERE:
                    raise _Ask(f"it writes to `{act.path[:80]}`")
            case CallTool():
                raise _Ask(f"it calls `{act.tool[:80]}`")
            case Reach():
                raise _Ask(f"it reaches `{act.address[:80]}`")
            case _:
                assert_never(act)

    def _check_run(self, act: Run) -> None:
        if not act.argv:
            raise _Ask(act.unknown or "it cannot be told what it runs")
        if not any(act.argv[: len(prefix)] == prefix for prefix in self._allow):
            raise _Ask(f"`{' '.join(act.argv[:2])[:80]}` is not allowed")
        if act.unknown is not None:
            if act.argv not in self._allow:
                raise _Ask(act.unknown)
            return
        program = act.argv[0]
        if not runs_folder(program):
            self._check_whereabouts(program)
        if program == "git":
            why = "its settings cannot be looked at" if self._root is None else objection_to_git(self._root)
            if why is not None:
                raise _Ask(why)

    def _check_whereabouts(self, program: str) -> None:
        found = shutil.which(program, path=self._search_path)
        if self._root is None or found is None:
            return
        if any(_under(self._root, path) for path in (os.path.abspath(found), os.path.realpath(found))):
            raise _Ask(f"`{program}` would be the one in the root, {found[:200]}")

    def _check_read(self, act: Read) -> None:
        if act.path == NOWHERE or self._root is None:
            return
        if act.moved:
            raise _Ask(f"it reads `{act.path[:80]}`, and it changes the folder: it cannot be told where that leads")
        if act.pattern and _is_beyond(act.path):
            raise _Ask(f"it cannot be told what `{act.path[:80]}` stands for")
        paths = _meant(act, Path(self._root))
        if len(paths) > MATCHES_MAX:
            raise _Ask(f"`{act.path[:80]}` stands for more than {MATCHES_MAX:,} files")
        for path in paths:
            self._check_path(path, act)

    def _check_path(self, path: str, act: Read) -> None:
        assert self._root is not None
        try:
            found = os.path.realpath(path)
            inside = _under(self._root, found)
            mode = os.stat(found).st_mode if inside and os.path.exists(found) else None
        except (OSError, ValueError):
            inside, mode = False, None
        if not inside or (mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)):
            raise _Ask(f"it reads `{act.path[:80]}`, which is no plain file or folder under the root")
        protected = floor()
        if why := protected.objection_to(found, self._root, writes=False):
            raise _Ask(f"`{act.path[:80]}` {why}")
        if act.extent == "anywhere" and mode is not None and stat.S_ISDIR(mode):
            raise _Ask(f"it reads everything in `{act.path[:80]}`, through symlinks that may lead anywhere")
        if act.extent == "below" and protected.lies_below(found):
            raise _Ask(f"it reads everything in `{act.path[:80]}`, where keys or holdfast's own files lie")


def _under(root: str, path: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
