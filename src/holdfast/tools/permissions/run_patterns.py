"""Patterns of commands: `git status *`, `make test`, `*`, `?`. Whole words, and a last `*` for what follows them.

What an allow's `*` stands for is as much as the table of harmless options knows (`tools/shell/harmless.py`); without
one it is the command word for word. A deny or an ask is for every way to write the command that can be seen: by its
path, behind options of its own, behind a program that starts others.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

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
# fmt: off
_STARTERS = _RUNNERS | {
    "at", "batch", "bwrap", "caffeinate", "capsh", "chpst", "coproc", "cpulimit", "daemonize",
    "dbus-run-session", "dumb-init", "else", "entr", "expect", "fakechroot", "fakeroot", "fd", "fdfind",
    "find", "firejail", "gdb", "gosu", "hyperfine", "i386", "ld.so", "linux32", "linux64", "lldb", "ltrace",
    "multitime", "newgrp", "npx", "numactl", "perf", "pipx", "prlimit", "proot", "proxychains",
    "proxychains4", "rlwrap", "runcon", "rush", "screen", "setuidgid", "sg", "softlimit", "ssh-agent",
    "start-stop-daemon", "su-exec", "systemd-inhibit", "systemd-run", "then", "tini", "tmux", "torify",
    "torsocks", "unbuffer", "uvx", "valgrind", "xvfb-run",
}
# fmt: on
_LOADER = re.compile(r"ld-[\w.-]*\.so[\w.-]*")  # the one of the system: it runs the program that it is given
# Of git: the commands whose words are programs, and the options whose values are.
_GIT_STARTS = frozenset({"bisect", "difftool", "filter-branch", "for-each-repo", "mergetool", "rebase", "submodule"})
_GIT_VALUES = (
    "-O",
    "--open-files-in-pager=",
    "--exec=",
    "--extcmd=",
    "--upload-pack=",
    "--receive-pack=",
    "--config=",
)
_JOINTS = re.compile(r"[\s;&|()<>\"'`$!={}\[\]\\,]+")
WORDS_LOOKED_AT = 32  # of what a program starts
LINES_KEPT = 32
_ByName = dict[str, list[Sequence[str]]]  # commands, by the plain names of their programs


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
            return self.words == (UNREADABLE,) or self._is_among(_begun(act.words))
        return self._is_among(_started(act.argv))

    def may_be_started(self, act: Run) -> bool:
        """Its words, or parts of them, are this command, as a program of which nothing is known could start it; or it
        starts what it is fed.
        """
        return (act.fed and _name(act.argv[0]) in _STARTERS) or self._is_among(_within(act.words))

    def _is_among(self, commands: _ByName) -> bool:
        return any(map(self._is, commands.get(_name(self.words[0]), ())))

    def _is(self, argv: Sequence[str]) -> bool:
        """Of a command whose program has the right name."""
        wanted = self.words[1:]
        for at in _behind_options(argv):
            rest = tuple(argv[at:])
            if rest[: len(wanted)] == wanted and (self.open or len(rest) == len(wanted)):
                return True
        return False


@lru_cache(maxsize=LINES_KEPT)
def _started(argv: tuple[str, ...]) -> _ByName:
    """The command, and what it may start."""
    name = _name(argv[0])
    words: Sequence[str] = ()
    if name in _STARTERS or _LOADER.fullmatch(name):
        words = argv[1:]
    elif name == "git":
        words = argv[1:] if not _GIT_STARTS.isdisjoint(argv) else list(_git_values(argv))
    return _by_name([argv, *_tails(words), *(tail for word in words for tail in _tails(_inner(word)))])


@lru_cache(maxsize=LINES_KEPT)
def _begun(words: tuple[str, ...]) -> _ByName:
    return _by_name(_tails(words))


@lru_cache(maxsize=LINES_KEPT)
def _within(words: tuple[str, ...]) -> _ByName:
    return _by_name([*_tails(words), *_tails([inner for word in words for inner in _inner(word)])])


def _by_name(commands: Iterable[Sequence[str]]) -> _ByName:
    found: _ByName = {}
    for argv in commands:
        found.setdefault(_name(argv[0]), []).append(argv)
    return found


def _name(program: str) -> str:
    return plain(program.rpartition("/")[2])


def _git_values(argv: Sequence[str]) -> Iterator[str]:
    """What git believes for this once, and may start: `-c alias.x=!rm`."""
    for before, word in pairwise(argv):
        if before in ("-c", "--config", "-x", "-u") or word.startswith(_GIT_VALUES):
            yield word


def _inner(word: str) -> list[str]:
    """The words in a word, as in `sh -c 'rm x'`, `env -S'rm x'` and `alias.x=!rm`."""
    attached = word[2:] if word.startswith("-") and not word.startswith("--") else ""
    return [inner for text in (word, attached) for inner in _JOINTS.split(text) if inner]


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
