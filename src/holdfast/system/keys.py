"""The keys of a process that runs tools, kept where what it starts cannot read them.

The environment that a process was started with can be read by every other process of its user, for as long as it
lives (`/proc/PID/environ`); to clear a variable does not clear that. So a command that runs chats starts itself
anew, under its process id, without its keys, and gets them over a pipe. In Python they are where they were: in
`os.environ`.

And it closes its memory: it is not dumpable, and what it starts as root cannot have the capabilities with which a
process looks into others all the same. What cannot be done here is kept (`exposures`), and `doctor` says it. A
program that has an App inside of it is not started anew: its keys stay where its user put them.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

COMMANDS = frozenset({"serve", "worker", "run", "chat", "doctor"})
VARIABLE = "HOLDFAST_SEALED_FD"
PIPE_BYTES = 1 << 20
STREAMS = 3  # the standard ones have the numbers below it
ANCESTORS_MAX = 32

_F_SETPIPE_SZ = 1031
_PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = 4, 23, 24, 47, 4
# Each of them lets a process see the memory of others, or become what can: SYS_MODULE, SYS_RAWIO, SYS_PTRACE,
# SYS_ADMIN, PERFMON, BPF.
_CAPABILITIES = (16, 17, 19, 21, 38, 39)
_CAPABILITY_VERSION = 0x20080522


class Exposure(NamedTuple):
    """A way in which the keys of this process can still be read by what it starts."""

    words: str
    ours: bool  # what this process is to prevent; else it lies in what surrounds it


_found: list[Exposure] = []
_sealed = False


def seal(arguments: Sequence[str]) -> None:
    """At the very start of a command, before there is a thread. Does not return if it starts the process anew."""
    taken = _take()
    if not arguments or arguments[0] not in COMMANDS or {"-h", "--help"} & set(arguments):
        return
    if not taken:
        _start_anew()
    global _sealed
    _sealed = True
    _found[:] = [*_shown_by_environment(), *_shown_by_ancestors(), *_close_memory()]


def is_sealed() -> bool:
    """Whether this is one of our commands; what surrounds it may show its keys all the same: see `exposures`."""
    return _sealed


def exposures() -> list[Exposure]:
    """As the seal of this process left them; none where nothing was sealed."""
    return list(_found)


# --- the environment -------------------------------------------------------------------------------------


def _secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    from holdfast.redaction import is_secret  # noqa: PLC0415  `--help` does without

    return {name: value for name, value in environ.items() if is_secret(name, value)}


def _start_anew() -> None:
    if not sys.executable:
        return
    with handed_on() as (environ, pipe):  # left only if it could not be: `doctor` tells
        if pipe is not None:
            with contextlib.suppress(OSError):
                os.set_inheritable(pipe, True)
                os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


@contextlib.contextmanager
def handed_on() -> Iterator[tuple[dict[str, str], int | None]]:
    """The environment for a command that this process starts, without keys, and the pipe that holds these. Where they
    cannot be handed on so, there is no pipe, and the environment has them.
    """
    secret = _secrets_of(os.environ)
    if not secret:
        yield dict(os.environ), None
        return
    import fcntl  # noqa: PLC0415  only who is started anew pays

    data = json.dumps(secret).encode()  # ASCII: what is no text in a value survives as an escape
    taken, theirs = os.pipe()
    # Where a standard stream is closed, the pipe has its number, and the program would take it for that stream.
    ours = fcntl.fcntl(taken, fcntl.F_DUPFD_CLOEXEC, STREAMS)
    os.close(taken)
    try:
        _make_room(theirs)
        os.set_blocking(theirs, False)
        try:
            whole = os.write(theirs, data) == len(data)  # the rest could not be read before we are gone
        except OSError:
            whole = False
        os.close(theirs)
        theirs = -1
        if whole:
            left = {name: value for name, value in os.environ.items() if name not in secret}
            yield {**left, VARIABLE: str(ours)}, ours
        else:
            yield dict(os.environ), None
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def _make_room(pipe: int) -> None:
    import fcntl  # noqa: PLC0415  only who is started anew pays

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, PIPE_BYTES)
    except (OSError, ValueError):  # macOS, or the user's limit: what it has must do
        return


def _take() -> bool:
    """What the process that we were has left for us in the pipe."""
    number = os.environ.pop(VARIABLE, "")
    if not number.isdigit():
        return False
    try:
        with open(int(number), "rb") as pipe:  # noqa: PTH123  a descriptor
            os.environ.update(json.loads(pipe.read()))
    except (OSError, ValueError):  # another program's variable of that name
        return False
    return True


def _shown_by_environment() -> Iterator[Exposure]:
    if names := _secret_names("self"):
        words = f"{', '.join(names)} can be read from the environment that this process was started with"
        yield Exposure(words, ours=True)


def _shown_by_ancestors() -> Iterator[Exposure]:
    """A shell or supervisor above us that has them in its own environment shows them all the same."""
    pid = os.getppid()
    for _ in range(ANCESTORS_MAX):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # gone, hidden, or no /proc
            return
        if names := [name for name in _secret_names(str(pid)) if name in os.environ]:
            words = f"{', '.join(names)} can be read from the environment of process {pid}, which started this one"
            yield Exposure(words, ours=False)
        if parent <= 0:
            return
        pid = parent


def _secret_names(pid: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            entries = file.read().decode(errors="surrogateescape").split("\0")
    except OSError:  # not for us, and so not for what we start; or macOS
        return []
    return sorted(_secrets_of(dict(entry.split("=", 1) for entry in entries if "=" in entry)))


# --- the memory ------------------------------------------------------------------------------------------


def _close_memory() -> Iterator[Exposure]:
    if sys.platform != "linux":
        yield Exposure("on this system other processes of the same user may look into this one", ours=False)
        return
    import ctypes  # noqa: PLC0415  only who is sealed pays

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        yield Exposure("other processes of the same user can read the memory of this one", ours=True)
    _clear_inheritable(libc)
    left = [number for number in _CAPABILITIES if libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1]
    kept = [number for number in left if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0]
    if kept and os.geteuid() == 0:
        words = "what this process starts as root can read its memory: its capabilities cannot be taken away"
        yield Exposure(words, ours=True)


def _clear_inheritable(libc: object) -> None:
    """A capability that is handed on past the bounding set would be had all the same."""
    import ctypes  # noqa: PLC0415

    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; and the same for the upper half
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)  # type: ignore[attr-defined]
    if libc.capget(header, data) == 0:  # type: ignore[attr-defined]
        data[2] = data[5] = 0
        libc.capset(header, data)  # type: ignore[attr-defined]
