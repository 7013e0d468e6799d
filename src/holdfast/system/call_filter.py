"""A filter of system calls (seccomp): what no process of a sandbox may ask the kernel for.

Refused is what would bring rights back (user namespaces, mounts), what no namespace holds (keys, events and programs
of the kernel's, other kinds of sockets), and what few programs need and holes in the kernel were found in. A process
cannot take a filter off.
"""

import ctypes
import errno
import os
import struct

from holdfast.system.mounting import check, libc

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
# Numbers on x86-64, and on the machines that count alike. Mounts and namespaces; keys, programs and events of the
# kernel's; files without a name; memory faults that a process handles itself, by which races in the kernel are won.
_REFUSED = (
    (165, 40),  # mount
    (166, 39),  # umount2
    (155, 41),  # pivot_root
    (161, 51),  # chroot
    (308, 268),  # setns
    (248, 217),  # add_key
    (249, 218),  # request_key
    (250, 219),  # keyctl
    (321, 280),  # bpf
    (298, 241),  # perf_event_open
    (304, 265),  # open_by_handle_at
    (323, 282),  # userfaultfd
    *((number, number) for number in (428, 429, 430, 431, 432, 433, 442)),  # open_tree … fspick, mount_setattr
)
# Whose absence programs know how to deal with: clone3, whose flags a filter cannot see, and io_uring, whose calls.
_ABSENT = ((435, 435), (425, 425), (426, 426), (427, 427))
_CLONE, _UNSHARE, _SOCKET = (56, 220), (272, 97), (41, 198)
_CLONE_NEWUSER = 0x10000000
FAMILIES = (1, 2, 10, 16)  # of sockets: unix, inet, inet6, netlink; not those that no namespace holds
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x50000
_CALL, _MACHINE, _FIRST = 0, 4, 16  # where they stand: the number, the machine, the lower half of the first argument


def filter_calls(families: "tuple[int, ...]" = FAMILIES) -> None:
    """From now on, for this process and all that it starts. Raises OSError."""
    program = call_filter(os.uname().machine, families)
    code = ctypes.create_string_buffer(b"".join(program), 8 * len(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0))


def call_filter(machine: str, families: "tuple[int, ...]" = FAMILIES) -> "list[bytes]":
    """For the kernel to run at each call. Of a line: what to do, how far to jump if it holds and if not, a number."""
    which = 0 if machine == "x86_64" else 1
    other = _REFUSE | errno.ENOSYS
    lines = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, other),  # a program for another machine, whose numbers mean something else
        (_LOAD, 0, 0, _CALL),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, other)]
    for numbers in _REFUSED:
        lines += [(_EQUAL, 0, 1, numbers[which]), (_RETURN, 0, 0, _REFUSE | errno.EPERM)]
    for numbers in _ABSENT:
        lines += [(_EQUAL, 0, 1, numbers[which]), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    for numbers in (_CLONE, _UNSHARE):
        lines += [
            (_EQUAL, 0, 4, numbers[which]),
            (_LOAD, 0, 0, _FIRST),
            (_ANY_BIT, 0, 1, _CLONE_NEWUSER),
            (_RETURN, 0, 0, _REFUSE | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    lines += [(_EQUAL, 0, 2 + len(families), _SOCKET[which]), (_LOAD, 0, 0, _FIRST)]
    lines += [(_EQUAL, len(families) - n, 0, family) for n, family in enumerate(families)]
    lines += [(_RETURN, 0, 0, _REFUSE | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return [struct.pack("=HBBI", *line) for line in lines]
