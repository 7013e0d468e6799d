"""The starter: a small program in a view of the file system of its own, from which the processes of tools start.

`starter.py` starts it, one per process, and speaks with it over its standard input, a socket. Of holdfast it imports
only what it does: `mounting.py` and `sandbox_process.py`. First it makes a user and a mount namespace, and asks to
have the users mapped to themselves. Then it obeys:

    [(kind, path)…]     to be covered. hide: a folder is empty, a file cannot be opened; keep: it can be read, and
                        not be written, replaced or moved; pin: it cannot be replaced or moved
    a process           to be started, which sees the files so; with a view of its own, inside of a sandbox
                        (`sandbox_process.py`). It is a child of the one that asked, not of this one

What it starts cannot undo that. It has no right over this mount namespace, and one that it makes itself has the same
mounts, locked. It cannot look into a process outside of the user namespace, so neither the environment, the root nor
the namespaces of one are open to it: not the worker's, and not those of the user's other processes.

A mount is gone when a process outside replaces the file that it lies on. So each time the list of mounts is looked
at, which makes good what is missing. A path that does not exist is passed over, and looked at again the next time.
"""

import array
import ctypes
import errno
import fcntl
import marshal
import os
import signal
import socket
import stat
import sys

from holdfast.system import sandbox_process
from holdfast.system.mounting import (
    HIDE,
    MS_REC,
    MS_SLAVE,
    bury,
    check,
    forbid_writing,
    keep,
    lay,
    libc,
    mount,
)
from holdfast.system.sandbox_process import SandboxFailed

TYPE_CHECKING = False  # as in typing, which would cost this program a good part of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

FDS_MAX = 64
PROGRAM, FOLDER = "program", "folder"  # what could not be had
# Each of them lets a process see what others have, or change what it sees itself: SYS_MODULE, SYS_RAWIO, SYS_PTRACE,
# SYS_ADMIN, MKNOD, PERFMON, BPF, CHECKPOINT_RESTORE.
CAPABILITIES = (16, 17, 19, 21, 27, 38, 39, 40)
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220, "riscv64": 220}

_CLONE_PARENT, _CLONE_NEWNS, _CLONE_NEWUSER = 0x8000, 0x20000, 0x10000000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
# By which root reads a disk past its files: beside block devices, those that pass commands on to one.
_RAW = (b"sg", b"bsg", b"ng", b"nvme", b"mem", b"kmem", b"port")
# Where only our own user is mapped, ssh finds that these files belong to no user it trusts, and gives up.
_SSH = b"/etc/ssh/ssh_config.d"


# --- the view ------------------------------------------------------------------------------------------


def enter() -> None:
    if os.uname().machine not in CLONE_NUMBERS or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"processes cannot be started so on {os.uname().machine}")
    check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))


def settle() -> "list[tuple[bytes, str]]":
    """Once the users are mapped: nothing of ours is seen outside, and what is started has no right over it. What
    could not be closed, and why.
    """
    mount(b"none", b"/", None, MS_REC | MS_SLAVE)
    problems = list(_close_machine()) if os.geteuid() == 0 else []
    if os.geteuid() != 0 and os.path.isdir(_SSH):
        lay(HIDE, _SSH)
    for number in CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # one that this kernel does not know is not there
    check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    return problems


def _close_machine() -> "Iterator[tuple[bytes, str]]":
    """What root reads and changes past the files: disks, and settings of the kernel that make it run programs."""
    devices = [os.path.join(folder, name) for folder, _, names in os.walk(b"/dev") for name in names]
    acts = [(bury, path) for path in devices if _is_raw(path)]
    acts += [(keep, b"/proc/sys"), (forbid_writing, b"/sys")]
    for act, path in acts:
        try:
            act(path)
        except FileNotFoundError:  # a device that was unplugged, a container without
            continue
        except OSError as error:
            yield path, os.strerror(error.errno or 0)


def _is_raw(path: bytes) -> bool:
    try:
        kind = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and path[5:].startswith(_RAW))


class Mount:
    __slots__ = ("device", "id", "inner", "point")

    def __init__(self, line: bytes) -> None:
        fields = line.split(b" ")
        self.id, self.device = fields[0], fields[2]
        self.inner, self.point = (_unescaped(field) for field in fields[3:5])


def mounts() -> "list[Mount]":
    with open("/proc/self/mountinfo", "rb") as file:
        return [Mount(line) for line in file.read().splitlines()]


def _unescaped(field: bytes) -> bytes:
    first, *rest = field.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


_laid: "dict[bytes, bytes]" = {}  # the mount that covers it


def cover(wanted: "list[tuple[str, bytes]]") -> "list[tuple[bytes, str]]":
    """What could not be covered, and why."""
    found = mounts()
    ids = {each.id for each in found}
    missing = [(kind, path) for kind, path in wanted if _laid.get(path) not in ids]
    problems = []
    for kind, path in missing:
        try:
            for name in _names(path, found):
                lay(kind, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problems.append((path, os.strerror(error.errno or 0)))
        found = mounts()
        _laid[path] = next((each.id for each in reversed(found) if each.point == path), b"")
    return problems


def _names(path: bytes, found: "list[Mount]") -> "list[bytes]":
    """Under which names it is seen: a folder can be mounted at several places. Raises OSError."""
    identity = _identity(path)
    # Of several at the same place, the one that was mounted last is seen.
    home = max((each for each in reversed(found) if _below(path, each.point)), key=lambda each: len(each.point))
    inner = _joined(home.inner, path[len(home.point.rstrip(b"/")) :])
    names = [path]
    for each in found:
        if each.device != home.device:
            continue
        if _below(inner, each.inner):
            name = _joined(each.point, inner[len(each.inner.rstrip(b"/")) :])
            if name not in names and os.path.lexists(name) and _identity(name) == identity:
                names.append(name)
        elif _below(each.inner, inner) and each.point not in names:  # a part of it
            names.append(each.point)
    return [name for name in names if os.path.lexists(name)]


def _below(path: bytes, folder: bytes) -> bool:
    return (path.rstrip(b"/") + b"/").startswith(folder.rstrip(b"/") + b"/")


def _joined(folder: bytes, rest: bytes) -> bytes:
    return (folder.rstrip(b"/") + b"/" + rest.strip(b"/")).rstrip(b"/") or b"/"


def _identity(path: bytes) -> "tuple[int, int]":
    found = os.stat(path)
    return found.st_dev, found.st_ino


# --- processes -----------------------------------------------------------------------------------------


class Order:
    """A process to be."""

    def __init__(
        self,
        programs: "list[bytes]",  # the first of them that there is
        argv: "list[bytes]",
        env: "dict[bytes, bytes]",
        cwd: bytes,
        targets: "list[int]",  # the numbers that its descriptors get
        view: "tuple[Any, ...] | None",  # inside of a sandbox: `sandbox_process.View`
    ) -> None:
        self.view = sandbox_process.View(*view) if view is not None else None
        self.programs = programs
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.targets = targets


def start(order: Order, fds: "list[int]") -> "tuple[int, int, str]":
    """Its id; what kept it from running, if anything; and at what: its folder, a part of its sandbox, the program."""
    ear, mouth = os.pipe()
    try:
        # Not os.fork: the process is to be a child of the one that asked, which waits for it and ends it.
        numbers = CLONE_NUMBERS[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0
        pid = check(libc.syscall(*map(ctypes.c_long, numbers)))
    except OSError as error:
        os.close(ear)
        os.close(mouth)
        return 0, error.errno or errno.EAGAIN, PROGRAM
    if pid == 0:
        _become(order, fds, mouth)
    os.close(mouth)
    with open(ear, "rb") as answer:
        said = answer.read()
    number, at = marshal.loads(said) if said else (0, PROGRAM)
    return pid, number, at


def _become(order: Order, fds: "list[int]", mouth: int) -> "NoReturn":
    """In the new process. Everything that is open here closes by itself when the program runs."""
    at = PROGRAM
    try:
        os.setsid()
        if order.view is not None:
            sandbox_process.divide(order.view)  # from here on we are another process
        free = max(order.targets) + 1
        mouth = fcntl.fcntl(mouth, fcntl.F_DUPFD_CLOEXEC, free)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for fd in fds]
        for source, target in zip(moved, order.targets, strict=True):
            os.dup2(source, target, inheritable=True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        at = FOLDER
        os.chdir(order.cwd)
        at = PROGRAM
        _execute(order)
    except SandboxFailed as error:
        os.write(mouth, marshal.dumps((error.errno, error.what)))
    except OSError as error:
        os.write(mouth, marshal.dumps((error.errno or errno.EIO, at)))
    finally:
        os._exit(255)


def _execute(order: Order) -> None:
    """The first of them that there is. Raises OSError: what is wrong with one that is there says more than that
    another is not.
    """
    if not order.programs:  # it was only to be tried whether there can be one
        os._exit(0)
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for program in order.programs:
        try:
            os.execve(program, order.argv, order.env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


# --- the conversation ----------------------------------------------------------------------------------


def receive(channel: socket.socket) -> "tuple[Any, list[int]]":
    """A message, and the descriptors that came with it. EOFError: who would speak is gone."""
    room = socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize)
    head, ancillary, _, _ = channel.recvmsg(4, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return marshal.loads(_exactly(channel, int.from_bytes(head + _exactly(channel, 4 - len(head)), "big"))), list(fds)


def _exactly(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = channel.recv(min(size - len(found), 1 << 20))
        if not piece:
            raise EOFError
        found += piece
    return found


def send(channel: socket.socket, message: "Any", fds: "Sequence[int]" = ()) -> None:
    data = marshal.dumps(message)
    head = len(data).to_bytes(4, "big")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([head], rights)
    channel.sendall(data)


_FAILED = {"enter": "namespaces cannot be made", "settle": "nothing can be mounted in a namespace of our own"}


def _answer(channel: socket.socket, act: "Callable[..., Any]", *arguments: "Any") -> bool:
    try:
        result, problem = act(*arguments), None
    except OSError as error:
        result, problem = None, f"{_FAILED.get(act.__name__, act.__name__)}: {error.strerror}"
    send(channel, (result, problem))
    return problem is None


def carry_out(
    wanted: "list[tuple[str, bytes]]", order: "Order | None", fds: "list[int]"
) -> "tuple[list[tuple[bytes, str]], tuple[int, int, str]]":
    problems = cover(wanted)
    return problems, start(order, fds) if order is not None else (0, 0, PROGRAM)


def main() -> None:
    channel = socket.socket(fileno=0)
    try:
        if not _answer(channel, enter):
            return
        receive(channel)  # the users are mapped
        if not _answer(channel, settle):
            return
        while True:
            (wanted, order), fds = receive(channel)
            try:
                _answer(channel, carry_out, wanted, Order(*order) if order else None, fds)
            finally:
                for fd in fds:
                    os.close(fd)
    except (EOFError, OSError):  # the process that we start processes for is gone, or wants us no more
        return
