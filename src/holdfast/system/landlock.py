"""Landlock: the kernel keeps a process from files, and from signals and sockets, that nobody named to it.

On top of a sandbox it keeps signals and abstract sockets inside. Where a process may make no namespaces it stands in
for one: `stand_in` holds a process to the files of its view and, with a filter of system calls, off the network. What
it cannot give, `MISSING` says.

    python -I -S -c … RULES PROGRAM ARGUMENT…      restricts itself, and becomes the program

Imports nothing of holdfast but what talks to the kernel.
"""

import ctypes
import json
import os
import resource
import stat
import struct
import sys

from holdfast.system.call_filter import FAMILIES, filter_calls
from holdfast.system.mounting import check, libc, system_call

SCOPES_ABI = 6
MISSING = (
    "it sees other processes and a /tmp that others use, files that were to be hidden are not, nor are those of "
    "holdfast's own in its root"
)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many there are, by ABI; then no more
_TCP = 3  # to bind, and to connect
_SCOPES = 3  # abstract sockets, and signals
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")


def landlock_abi() -> int:
    """0: this kernel has none, or it is turned off."""
    if sys.platform != "linux":
        return 0
    try:
        return system_call(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def keep_inside() -> None:
    """Signals, and sockets with a name that is no file's, which a shared network would let out. Raises OSError."""
    if landlock_abi() >= SCOPES_ABI:
        _restrict(_ruleset(0, 0, _SCOPES))


def _ruleset(files: int, network: int, scopes: int) -> int:
    packed = struct.pack("=QQQ", files, network, scopes)
    size = 8 * max((n + 1 for n, value in enumerate((files, network, scopes)) if value), default=1)
    return system_call(_CREATE_RULESET, ctypes.create_string_buffer(packed, 24), size, 0)


def _restrict(rules: int) -> None:
    system_call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    """A path that is not there is passed over."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        system_call(_ADD_RULE, rules, 1, rule, 0)
    finally:
        os.close(fd)


def stand_in(readable: "list[str]", writable: "list[str]", network: bool, memory_bytes_max: int) -> None:
    """From now on, for this process and all that it starts. Raises OSError."""
    abi = landlock_abi()
    every = (1 << _FILE_RIGHTS.get(abi, 16)) - 1
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    rules = _ruleset(every, 0 if network or abi < 4 else _TCP, _SCOPES if abi >= SCOPES_ABI else 0)
    for path in ("/proc", *readable):
        _allow(rules, path, _READ & every)
    for path in (*_DEVICES, *_SHARED, *writable):
        _allow(rules, path, every)
    _restrict(rules)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if memory_bytes_max:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    filter_calls(FAMILIES if network else ())


def main() -> None:
    stand_in(**json.loads(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
