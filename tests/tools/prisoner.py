"""Run inside of a sandbox, by `prison.py`: tries to get out, by every way it knows, and tells which led somewhere.

    python prisoner.py FACTS

A way is a function. It counts as open if it returns something, as closed if it raises OSError or returns None. An
open one does no harm: this runs on the machines of those who change the sandbox, as root.
"""

import ctypes
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
FACTS: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
OUTSIDE, SHARED = Path(FACTS["outside"]), Path(FACTS["shared"])
PID = FACTS["pid"]
BIND, REMOUNT, NEWUSER = 4096, 32, 0x10000000
X86 = os.uname().machine == "x86_64"

WAYS: dict[str, Callable[[], object]] = {}


def way(function: Callable[[], object]) -> Callable[[], object]:
    WAYS[function.__name__] = function
    return function


def call(name: str, *arguments: object) -> int:
    found = int(getattr(libc, name)(*arguments))
    if found == -1:
        raise OSError(ctypes.get_errno(), name)
    return found


def syscall(on_x86: int, elsewhere: int, *arguments: object) -> int:
    return call("syscall", ctypes.c_long(on_x86 if X86 else elsewhere), *arguments)


def writes(path: Path | str) -> str:
    Path(path).write_text("written from inside")
    return f"wrote {path}"


# --- files ----------------------------------------------------------------------------------------------


@way
def write_by_absolute_path() -> object:
    return writes(OUTSIDE / "new")


@way
def write_by_dots() -> object:
    return writes(f"../{OUTSIDE.name}/new")


@way
def write_through_own_symlink() -> object:
    Path("own-link").symlink_to(OUTSIDE)
    return writes("own-link/new")


@way
def write_through_symlink_that_was_there() -> object:
    return writes("link/new")


@way
def write_what_is_shown() -> object:
    return writes(SHARED / "shown")


@way
def make_what_was_not_there() -> object:
    return writes(SHARED / "new")


@way
def write_a_hard_link() -> object:
    os.link(SHARED / "shown", "hard")
    return writes("hard")


@way
def move_there() -> object:
    Path("mine").write_text("written from inside")
    Path("mine").rename(SHARED / "shown")
    return "moved"


@way
def change_rights() -> object:
    (SHARED / "shown").chmod(0o777)
    return "changed"


@way
def change_rights_of_a_device() -> object:
    Path("/dev/null").chmod(stat.S_IMODE(Path("/dev/null").stat().st_mode))
    return "changed"


@way
def write_the_system() -> list[str]:
    found = []
    for folder in ("/usr", "/etc", "/", "/dev", FACTS["prefix"]):
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY)  # it has no name, and so nothing is left of it
            found.append(folder)
            os.close(descriptor)
        except OSError:
            continue
    return found


@way
def write_settings_of_the_kernel() -> list[str]:
    found = []
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            found.append(path)
        except OSError:
            continue
    return found


@way
def read_what_is_hidden() -> list[str]:
    found = []
    for path in FACTS["secrets"]:
        try:
            found.append(Path(path).read_text())
        except OSError:
            continue
    return found


@way
def move_a_folder_away_with_what_is_hidden_in_it() -> object:
    Path("sub").rename("moved")
    return Path("moved/hidden/secret").read_text()


@way
def find_it_by_its_handle() -> object:
    if FACTS["handle"] is None:
        return None
    kind, handle = FACTS["handle"]
    data = bytes.fromhex(handle)
    buffer = ctypes.create_string_buffer(
        len(data).to_bytes(4, "little") + kind.to_bytes(4, "little", signed=True) + data
    )
    here = os.open(".", os.O_RDONLY)
    try:
        return call("open_by_handle_at", here, buffer, os.O_RDONLY)
    finally:
        os.close(here)


@way
def leave_by_a_descriptor() -> list[str]:
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return [str(n) for n in numbers if n > 2 and os.path.exists(f"/proc/self/fd/{n}/..")]  # noqa: PTH110


# --- mounts and namespaces ------------------------------------------------------------------------------


@way
def bind_mount() -> object:
    Path("target").mkdir()
    return call("mount", b"/usr", b"target", None, BIND, None) or "mounted"


@way
def remount_writable() -> object:
    return call("mount", b"none", os.fsencode(SHARED), None, BIND | REMOUNT, None) or "mounted"


@way
def unmount() -> list[str]:
    found = []
    for path in ("/proc", "/tmp", str(SHARED), "/"):
        try:
            found.append(f"{path} {call('umount2', os.fsencode(path), 4)}")
        except OSError as error:  # the first time it is only marked, for the next time
            if error.errno in (errno.EAGAIN, errno.EBUSY):
                found.append(path)
    return found


@way
def change_root() -> object:
    os.chroot("/")
    return "changed"


@way
def regain_rights_in_a_user_namespace() -> object:
    return call("unshare", NEWUSER) or "a namespace"


@way
def regain_rights_by_clone() -> object:
    return syscall(56, 220, ctypes.c_long(NEWUSER | signal.SIGCHLD), 0, 0, 0, 0) or os._exit(0)


@way
def regain_rights_by_clone3() -> object:
    arguments = ctypes.create_string_buffer(NEWUSER.to_bytes(8, "little") + bytes(24) + b"\x11", 64)
    return syscall(435, 435, arguments, ctypes.c_long(64)) or os._exit(0)


@way
def regain_rights_with_a_program() -> object:
    return "made" if subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode == 0 else None


@way
def enter_the_namespaces_of_another() -> object:
    return [os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY) for pid in (1, PID)]


@way
def have_rights() -> object:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)
    return hex(effective) if effective & ~0b11011 or (effective and os.geteuid()) else None  # over files, as root


@way
def gain_rights_by_a_setuid_program() -> object:
    found = subprocess.run(["./setuid", "-u"], capture_output=True, text=True).stdout.strip()
    return found if found != str(os.getuid()) else None


@way
def become_another_user() -> object:
    os.setuid(1)
    return "became"


# --- other processes ------------------------------------------------------------------------------------


def looks(pid: int | str) -> Iterator[str]:
    for name in ("environ", "mem", "maps", "io", "root/etc/passwd", "cwd/x", "fd/0", "stack"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123
                file.read(1)
            yield name
        except OSError:
            continue


@way
def look_into_the_worker() -> list[str]:
    return list(looks(PID))


@way
def look_into_what_holds_the_sandbox() -> list[str]:
    return list(looks(1))


@way
def see_processes_of_others() -> list[str]:
    family = {"1", str(os.getpid()), str(os.getppid()), "thread-self", "self"}
    return [name for name in os.listdir("/proc") if name.isdigit() and name not in family]  # noqa: PTH208


@way
def trace_others() -> list[str]:
    found = []
    for pid in (1, PID):
        try:
            found.append(f"{pid} {call('ptrace', 16, pid, 0, 0)}")
        except OSError:
            continue
    return found


@way
def signal_others() -> list[str]:
    found = []
    for pid in (PID, FACTS["sleeper"]):
        try:
            os.kill(pid, 0)
            found.append(str(pid))
        except OSError:
            continue
    return found


@way
def end_what_holds_the_sandbox() -> object:
    if b"starter_process" not in Path("/proc/1/cmdline").read_bytes():
        return "the first process is not ours"
    os.kill(1, signal.SIGKILL)
    return None  # and go on telling


# --- the network ----------------------------------------------------------------------------------------


def connects(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> object:
    with socket.socket(family, kind) as client:
        client.settimeout(5.0)
        client.connect(address)
        client.send(b"x")
        if kind == socket.SOCK_DGRAM and family == socket.AF_INET:
            client.recv(1)
    return f"reached {address}"


@way
def reach_a_server_by_tcp() -> object:
    return connects(socket.AF_INET, ("127.0.0.1", FACTS["tcp"]))


@way
def reach_a_server_by_udp() -> object:
    return connects(socket.AF_INET, ("127.0.0.1", FACTS["udp"]), socket.SOCK_DGRAM)


@way
def reach_an_abstract_socket() -> object:
    return connects(socket.AF_UNIX, "\0" + FACTS["abstract"])


@way
def reach_a_socket_that_is_a_file() -> object:
    return connects(socket.AF_UNIX, str(OUTSIDE / "socket"))


@way
def reach_the_host_of_a_virtual_machine() -> object:
    return socket.socket(40, socket.SOCK_STREAM).fileno()


@way
def reach_the_net() -> object:
    return connects(socket.AF_INET, ("192.0.2.1", 80))


# --- the kernel -----------------------------------------------------------------------------------------


@way
def make_a_device() -> object:
    os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with open("device", "rb") as device:  # noqa: PTH123
        return device.read(1)


@way
def open_a_device_that_is_there() -> object:
    with open("made-device", "rb") as device:  # noqa: PTH123
        return device.read(1)


@way
def open_devices_of_the_machine() -> list[str]:
    known = {
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "ptmx",
        "pts",
        "fd",
        "shm",
        "stdin",
        "stdout",
        "stderr",
    }
    return sorted(set(os.listdir("/dev")) - known)  # noqa: PTH208


@way
def use_keys_of_the_kernel() -> object:
    return syscall(250, 219, 0, -3, 0)


@way
def load_a_program_into_the_kernel() -> object:
    return syscall(321, 280, 0, ctypes.create_string_buffer(64), 64)


@way
def watch_events_of_the_kernel() -> object:
    return syscall(298, 241, ctypes.create_string_buffer((1).to_bytes(4, "little") + b"\x40", 64), 0, -1, -1, 0)


@way
def handle_memory_faults() -> object:
    return syscall(323, 282, 1)


@way
def queue_calls_past_the_filter() -> object:
    return syscall(425, 425, 1, ctypes.create_string_buffer(120))


@way
def raise_the_limits() -> list[str]:
    import resource  # noqa: PLC0415

    found = []
    for which in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        try:
            resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            found.append(str(which))
        except (OSError, ValueError):
            continue
    return found


@way
def name_the_machine() -> object:
    socket.sethostname(socket.gethostname())
    return "named"


def main() -> None:
    told = {}
    for name, function in WAYS.items():
        try:
            told[name] = function()
        except OSError:
            told[name] = None
    print("REPORT", json.dumps({name: str(found) for name, found in told.items() if found}), len(told))  # noqa: T201


main()
