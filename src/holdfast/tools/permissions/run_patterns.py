"""Patterns of commands: `git status *`, `make test`, `*`, `?`. Whole words, and a last `*` for what follows them.

What an allow's `*` stands for is as much as the table of harmless options knows (`tools/shell/harmless.py`); without
one it is the command word for word. A deny or an ask is for every way to write the command that can be seen: by its
path, behind options of its own, behind a program that starts others.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence

from holdfast.errors import ConfigError
from holdfast.system import processes
from holdfast.tools.floor import plain
from holdfast.tools.permissions.acts import Run, Whereabouts
from holdfast.tools.permissions.path_patterns import below
from holdfast.tools.shell.harmless import knows, runs_folder
from holdfast.tools.shell.repository import objection_to_git

UNREADABLE = "?"  # `run(?)`: a line whose programs cannot be told

# fmt: off
# To allow one of these alone is to allow every program there is.
_RUNNERS = frozenset({
    ".", "ash", "bash", "builtin", "busybox", "chroot", "chrt", "command", "dash", "doas", "env", "eval",
    "exec", "fish", "flock", "ionice", "ksh", "nice", "nohup", "nsenter", "parallel", "pkexec", "runuser",
    "script", "setarch", "setpriv", "setsid", "sh", "source", "ssh", "stdbuf", "strace", "su", "sudo",
    "taskset", "time", "timeout", "trap", "unshare", "watch", "xargs", "zsh",
})
# fmt: on
_STARTERS = _RUNNERS | {"find"}
_JOINTS = re.compile(r"[\s;&|()<>\"'`$]+")
WORDS_LOOKED_AT = 32  # of what a program starts


class RunPattern:
    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise ConfigError(f"its words cannot be told apart: {error}") from None
        self.open = words[-1:] == ("*",)
        self.words = words[:-1] if self.open else words
        if not words or not all(self.words):
            raise ConfigError("a command is its words: run(git status *), run(make test), run(*)")
        if any("*" in word for word in self.words):
            raise ConfigError("a `*` stands for what follows the words: it is the last word, and a word by itself")

    def check_allows(self) -> None:
        """Raises ConfigError if an allow of it is no help, or means more than it says."""
        if self.words == (UNREADABLE,):
            raise ConfigError("no allow is for a line that cannot be read: it may be asked about, or denied")
        if not self.words:
            return
        program, *rest = self.words
        named = [word for word in rest if not word.startswith("-") and "=" not in word and not word.isdigit()]
        if program.rpartition("/")[2] in _RUNNERS and not named:
            raise ConfigError("to allow it is to allow every program: name the one that it may run, too")
        if self.open and not knows(self.words):
            known = " ".join(self.words[:2] if program == "git" else self.words[:1])
            raise ConfigError(
                f"`*` stands for what is known to be harmless, and of `{known}` nothing is: name the whole command, "
                "without `*`"
            )

    def begins(self, act: Run) -> bool:
        """Whether an allow is about this command; what follows its words is another question."""
        return bool(act.argv) and act.argv[: len(self.words)] == self.words

    def objection(self, act: Run, where: Whereabouts) -> str | None:
        """Why an allow that is about this command does not cover it."""
        if act.unknown is not None:
            return None if not self.open and act.argv == self.words else act.unknown
        if not self.open and act.argv != self.words:
            return f"`{' '.join(act.argv)[:80]}` is more than that"
        return _objection_to_program(act.argv[0], where) if where.looks else None

    def may_mean(self, act: Run) -> bool:
        if not self.words:
            return True
        if not act.argv:  # any of its words may be a program
            return self.words == (UNREADABLE,) or any(self._is(words) for words in _tails(act.words))
        return any(self._is(argv) for argv in _started(act.argv))

    def _is(self, argv: Sequence[str]) -> bool:
        if plain(argv[0].rpartition("/")[2]) != plain(self.words[0].rpartition("/")[2]):
            return False
        wanted = self.words[1:]
        for at in _behind_options(argv):
            rest = tuple(argv[at:])
            if rest[: len(wanted)] == wanted and (self.open or len(rest) == len(wanted)):
                return True
        return False


def _started(argv: Sequence[str]) -> Iterator[Sequence[str]]:
    """The command, and what it may start."""
    yield argv
    if plain(argv[0].rpartition("/")[2]) in _STARTERS:
        yield from _tails(argv[1:])
        for word in argv[1:]:
            yield from _tails([inner for inner in _JOINTS.split(word) if inner])


def _tails(words: Sequence[str]) -> Iterator[Sequence[str]]:
    return (words[at : at + WORDS_LOOKED_AT] for at in range(len(words)))


def _behind_options(argv: Sequence[str]) -> Iterator[int]:
    """Where the words after the program begin: at once, or behind options of its own, each perhaps with a value."""
    yield 1
    for at in range(2, len(argv) + 1):
        word = argv[at - 1]
        if not word.startswith("-") and not (at > 2 and argv[at - 2].startswith("-")):
            return
        yield at


def _objection_to_program(program: str, where: Whereabouts) -> str | None:
    root = None if where.root is None else os.path.realpath(where.root)
    if not runs_folder(program) and root is not None:
        found = shutil.which(program, path=where.search_path or processes.environment()["PATH"])
        if found is not None and any(
            below(path, root) is not None for path in (os.path.abspath(found), os.path.realpath(found))
        ):
            return f"`{program}` would be the one in the root, {found[:200]}"
    if program == "git":
        return "its settings cannot be looked at" if root is None else objection_to_git(root)
    return None
