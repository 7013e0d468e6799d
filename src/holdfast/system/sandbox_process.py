"""The sandbox, from the inside: what the starter makes around a process that has a view of its own.

`sandbox.py` says what the view holds. There are three processes:

    outer    the child that the worker knows, in its process group. It ends as the program ends
    init     the first of a process namespace. It makes the view, gives up every right, and reaps; with it all ends
    program  the one that was asked for

Namespaces: processes, mounts, IPC, and the network unless that is wanted. The root is a small file system in memory
that holds the places of the view and nothing else; the old one is detached, so there is no way back to it. Then all
capabilities go (root keeps those over files that it owns anyhow), no program gains any more (`no_new_privs`), and a
filter of system calls refuses what would bring new ones or leads past the namespaces (`call_filter.py`). Where the
kernel has Landlock's scopes, they keep signals and abstract sockets inside as well (`landlock.py`).
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct

from holdfast.system.call_filter import filter_calls
from holdfast.system.landlock import keep_inside
from holdfast.system.mounting import (
    HIDE,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REMOUNT,
    PIN,
    check,
    forbid_writing,
    lay,
    libc,
    mount,
    system_call,
)

TYPE_CHECKING = False  # as in typing, which would cost the starter a good part of its start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

READ, WRITE, EMPTY = "read", "write", "empty"  # what a place of a view is; or HIDE, or PIN
DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
TEMPORARY = (b"/tmp", b"/var/tmp", b"/dev/shm")
PIDS_MAX = 1 << 22
PIDS_PER_NAMESPACE = (6, 14)  # the Linux that counts them so; before, the number is the whole machine's
# Over files: CHOWN, DAC_OVERRIDE, FOWNER, FSETID. What root's tools need to work in a folder of another user's.
CAPABILITIES_OF_ROOT = (0, 1, 3, 4)
CAPABILITIES_MAX = 64

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = 0x20000, 0x8000000, 0x20000000, 0x40000000
_MNT_DETACH = 2
_NO_CORE = (1, 1)  # neither a file nor, which 0 would allow, a program of the machine's that is given the memory
_AT_EMPTY_PATH, _AT_RECURSIVE, _OPEN_TREE_CLONE = 0x1000, 0x8000, 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_RESOLVE_NO_SYMLINKS = 4
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = (
    22,
    24,
    38,
    47,
    4,
)
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

# The same on every machine: calls that were added since they all count alike.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442


class View:
    """What a sandboxed process has."""

    def __init__(
        self,
        places: "list[tuple[str, bytes]]",  # real paths, a folder before what is in it
        links: "list[tuple[bytes, bytes]]",  # symlinks that lead to them, and what stands in these
        network: bool,
        memory_bytes_max: int,  # 0 is no limit
        processes_max: int,
        tmp_bytes_max: int,
    ) -> None:
        self.places = places
        self.links = links
        self.network = network
        self.memory_bytes_max = memory_bytes_max
        self.processes_max = processes_max
        self.tmp_bytes_max = tmp_bytes_max


class SandboxFailed(OSError):
    """`what` could not be done, and so nothing was started."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(number, os.strerror(number))
        self.what = what


def _done(what: str, act: "Callable[..., object]", *arguments: object) -> None:
    try:
        act(*arguments)
    except OSError as error:
        raise SandboxFailed(error.errno or errno.EIO, what) from error


# --- three processes -----------------------------------------------------------------------------------


def divide(view: View) -> None:
    """Returns in the process that is to become the program, and in no other. Raises SandboxFailed."""
    ear, mouth = os.pipe()
    _done("a namespace for processes", lambda: check(libc.unshare(_CLONE_NEWPID)))
    if init := os.fork():
        _end_as_it_ends(init, ear)
    os.close(ear)
    try:
        counted = _enter(view)
    except SandboxFailed:
        raise
    except Exception as error:  # whatever it was, nothing may run without
        raise SandboxFailed(getattr(error, "errno", None) or errno.EIO, f"its root ({error})") from error
    if program := os.fork():
        _reap(program, mouth)
    os.close(mouth)
    _limit(view, counted)


def _end_as_it_ends(init: int, ear: int) -> "NoReturn":
    """The outer one. A signal to the group is for the program, which is in it."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33):  # the last two are the C library's
            signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, _NO_CORE)
    _close_all_but(ear)
    said = os.read(ear, 5)
    if not said:  # killed, or the view could not be made
        os.kill(os.getpid(), signal.SIGKILL)
    status, alone = struct.unpack("=i?", said)
    if alone:
        os.waitpid(init, 0)  # else it goes on until the rest is gone, as a process that outlives its parent does
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # not reached: what ended the program ends us


def _reap(program: int, mouth: int) -> "NoReturn":
    """The first process of the namespace: signals do not reach it, except those by which the worker ends all."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _close_all_but(mouth)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
            if pid == program:
                os.write(mouth, struct.pack("=i?", status, _is_alone()))
                os.close(mouth)
        except ChildProcessError:
            os._exit(0)


def _is_alone() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _close_all_but(fd: int) -> None:
    """What they would keep open, the worker would wait for."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) != fd:
            try:
                os.close(int(name))
            except OSError:  # the one that the list was read by
                continue


# --- the view ------------------------------------------------------------------------------------------


def _enter(view: View) -> bool:
    """As init. Whether the namespace counts its processes itself."""
    kinds = _CLONE_NEWNS | _CLONE_NEWIPC | (0 if view.network else _CLONE_NEWNET)
    _done("namespaces for mounts and the network", lambda: check(libc.unshare(kinds)))
    if not view.network:
        _done("a loopback of its own", _raise_loopback)
    trees = [(kind, path, _tree(kind, path)) for kind, path in view.places if kind in (READ, WRITE)]
    devices = [(name, _device(name)) for name in DEVICES]
    _done("a root of its own", _change_root)
    counted = _count_processes(view.processes_max)
    _done("/proc", forbid_writing, b"/proc")
    _make_devices(devices)
    for folder in TEMPORARY:
        _done(folder.decode(), _empty, folder, b"mode=1777", view.tmp_bytes_max)
    _place(view, {path: fd for _, path, fd in trees if fd is not None})
    for kind, path in view.places:
        if kind == HIDE and os.path.lexists(path):
            _done(f"hiding {os.fsdecode(path)}", lay, HIDE, path)
    _done("the root", mount, b"none", b"/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    _give_up_rights()
    return counted


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack("16xh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def _tree(kind: str, path: bytes) -> "int | None":
    """A copy of what is mounted there, with all that is mounted in it. None: it is not there."""
    forbidden = MS_NOSUID | MS_NODEV | (MS_RDONLY if kind == READ else 0)
    try:
        return _copied(path, forbidden)
    except FileNotFoundError:
        if kind == READ:
            return None
        raise SandboxFailed(errno.ENOENT, os.fsdecode(path)) from None
    except OSError as error:
        raise SandboxFailed(error.errno or errno.EIO, os.fsdecode(path)) from error


def _device(name: bytes) -> int:
    """It can be written to all the same; root cannot change who else may."""
    try:
        return _copied(b"/dev/" + name, MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    except OSError as error:
        raise SandboxFailed(error.errno or errno.EIO, f"/dev/{name.decode()}") from error


def _copied(path: bytes, forbidden: int) -> int:
    """No symlink is followed: a tool that wrote one where a place was would choose what it is shown. The flags of
    mount and those of mount_setattr are the same.
    """
    how = ctypes.create_string_buffer(struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS), 24)
    found = system_call(_OPENAT2, -100, path, how, 24)
    try:
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
        tree = system_call(_OPEN_TREE, found, b"", flags)
    finally:
        os.close(found)
    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", forbidden, 0, MS_PRIVATE, 0), 32)
    system_call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, 32)
    return tree


def _change_root() -> None:
    """To an empty one. It is made where every system has a folder; what is there has been copied."""
    base = b"/usr"
    mount(b"none", base, b"tmpfs", MS_NOSUID | MS_NODEV, b"size=1m,mode=755")
    os.mkdir(base + b"/proc")
    # While the old one is in sight: without it, the kernel would not give us one.
    mount(b"proc", base + b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(base)
    system_call({"x86_64": 155}.get(os.uname().machine, 41), b".", b".")  # pivot_root; the old one is on top of it
    check(libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _count_processes(processes_max: int) -> bool:
    """By the highest number that a process can get, which is this namespace's own."""
    release = [int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2]]
    if tuple(release) < PIDS_PER_NAMESPACE or not processes_max:
        return False
    while processes_max < PIDS_MAX:
        try:
            with open("/proc/sys/kernel/pid_max", "w") as file:
                file.write(str(processes_max))
        except OSError as error:
            if error.errno != errno.EINVAL:
                return False
            processes_max *= 2  # a machine of many processors takes no number that small
        else:
            return True
    return False


def _make_devices(devices: "list[tuple[bytes, int]]") -> None:
    os.makedirs("/dev/pts")
    for name, tree in devices:
        _done(f"/dev/{name.decode()}", _attach, tree, b"/dev/" + name)
    options = b"newinstance,ptmxmode=0666,mode=0620"
    _done("/dev/pts", mount, b"devpts", b"/dev/pts", b"devpts", MS_NOSUID | MS_NOEXEC, options)
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{stream}")


def _place(view: View, trees: "dict[bytes, int]") -> None:
    for kind, path in view.places:
        if kind == EMPTY:
            os.makedirs(path, exist_ok=True)
            _done(os.fsdecode(path), _empty, path, b"mode=700", view.tmp_bytes_max)
        elif kind == PIN and os.path.isdir(path):
            _done(os.fsdecode(path), lay, PIN, path)
        elif path in trees:
            _done(os.fsdecode(path), _attach, trees[path], path)
    for path, target in view.links:
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)


def _attach(tree: int, path: bytes) -> None:
    if not os.path.lexists(path):
        is_folder = stat.S_ISDIR(os.fstat(tree).st_mode)
        os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
    system_call(_MOVE_MOUNT, tree, b"", -100, path, _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def _empty(path: bytes, mode: bytes, bytes_max: int) -> None:
    os.makedirs(path, exist_ok=True)
    mount(b"none", path, b"tmpfs", MS_NOSUID | MS_NODEV, b"%s,size=%d" % (mode, bytes_max))


def _limit(view: View, counted: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, _NO_CORE)
    if view.memory_bytes_max:
        _lower(resource.RLIMIT_DATA, view.memory_bytes_max)
    if view.processes_max and not counted:
        _lower(resource.RLIMIT_NPROC, view.processes_max)


def _lower(which: int, limit: int) -> None:
    hard = resource.getrlimit(which)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(which, (limit, limit))


# --- rights --------------------------------------------------------------------------------------------


def _give_up_rights() -> None:
    kept = CAPABILITIES_OF_ROOT if os.geteuid() == 0 else ()
    for number in range(CAPABILITIES_MAX):
        if number not in kept:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # one that this kernel does not know is not there
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    mask = sum(1 << number for number in kept)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("=IIIIII", mask, mask, 0, 0, 0, 0)
    _done("giving up rights", lambda: check(libc.capset(header, data)))
    _done("no_new_privs", lambda: check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    _done("Landlock", keep_inside)
    _done("a filter of system calls", filter_calls)
