"""Mounts, by system call: what the starter and the sandbox it makes share. Linux only; imports nothing of holdfast.

A path is hidden (an empty folder, a file that cannot be opened), kept (read, and not written, replaced or moved) or
pinned (not replaced or moved). The functions raise OSError, and leave what they did.
"""

import ctypes
import os

HIDE, KEEP, PIN = "hide", "keep", "pin"

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19
CLOSED = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC

libc = ctypes.PyDLL(None, use_errno=True)  # it holds the GIL, so that a process that it makes has it


def check(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def system_call(number: int, *arguments: "int | bytes | ctypes.Array[ctypes.c_char] | None") -> int:
    """Raises OSError."""
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return check(libc.syscall(ctypes.c_long(number), *given))


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    check(libc.mount(source, target, kind, ctypes.c_ulong(flags), data))


def lay(kind: str, path: bytes) -> None:
    if kind == HIDE and os.path.isdir(path):
        mount(b"none", path, b"tmpfs", CLOSED, b"size=4k,nr_inodes=1,mode=555")
    elif kind == HIDE:
        bury(path)
    elif kind == KEEP:
        keep(path)
    else:
        mount(path, path, None, MS_BIND | MS_REC)


def keep(path: bytes) -> None:
    mount(path, path, None, MS_BIND | MS_REC)
    forbid_writing(path)


def bury(path: bytes) -> None:
    """A device on a mount without devices: every process that opens it is refused, root's too."""
    mount(b"/dev/null", path, None, MS_BIND)
    mount(b"none", path, None, MS_REMOUNT | MS_BIND | CLOSED)


def forbid_writing(path: bytes) -> None:
    """With what the mount forbids already: that cannot be taken away here."""
    flags = os.statvfs(path).f_flag & CLOSED
    mount(b"none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
