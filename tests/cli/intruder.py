"""A program that a tool starts, and that tries by every way we know to reach what belongs to holdfast.

    python intruder.py ROOT REPORT [looks]

What it could read, and which attempts to change something went through, is its report. It needs nothing but Python:
it runs as the shell's command, inside an isolated body and as a tool server.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, BIND, REMOUNT, MOVE, REC, DETACH = 0x20000, 0x10000000, 4096, 32, 8192, 16384, 2
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
SECRETS = (".holdfast/token", ".holdfast/holdfast.db", ".holdfast/holdfast.db-wal")
SETTINGS = ("holdfast.toml", ".git/config", ".git/hooks/pre-commit", ".config/holdfast/trusted/forged")


def _done(result: int) -> bool:
    return result == 0


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> bool:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    return _done(libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


class Intruder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: dict[str, str] = {}  # by the way it was got at
        self.changed: list[str] = []
        self.uid, self.gid = os.getuid(), os.getgid()

    def tell(self, file: Path) -> None:
        file.write_text(json.dumps({"read": self.read, "changed": self.changed}))

    # --- what it looks for --------------------------------------------------------------------------------

    def look(self, way: str, root: str | None = None) -> None:
        for name in SECRETS:
            path = f"{root or self.root}/{name}"
            with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123  any path
                self.read[f"{way}: {name}"] = file.read(4096).decode(errors="replace")

    def change(self, way: str, act: Callable[[], object]) -> None:
        with suppress(OSError):
            if act() is not False:
                self.changed.append(way)

    def write(self, way: str, root: str | None = None) -> None:
        for name in (*SETTINGS, *SECRETS):
            path = Path(f"{root or self.root}/{name}")
            # Only what is there, or what is its folder: to make a holdfast.toml of its own is another matter.
            if path.exists() or (name in SETTINGS and path.parent.exists()):
                self.change(f"{way}: appended to {name}", partial(_append, path))
                self.change(f"{way}: moved {name}", partial(_moved_and_back, path))

    # --- its ways -----------------------------------------------------------------------------------------

    def by_path(self) -> None:
        self.look("by path")
        self.write("by path")
        link = self.root / f"link-{os.getpid()}"
        link.symlink_to(self.root)
        self.look("by a symbolic link", str(link))
        link.unlink()
        for name in SECRETS:
            self.change(f"linked {name}", partial(os.link, self.root / name, f"hard-{os.getpid()}"))
        for name in (".holdfast", ".git"):
            self.change(f"moved {name}", partial(_moved_and_back, self.root / name))

    def by_other_processes(self) -> None:
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208
            self.look(f"by the root of {pid}", f"/proc/{pid}/root{self.root}")
            self.look(f"by the folder of {pid}", f"/proc/{pid}/cwd")
            self._by_descriptors(pid)
            self._by_environment(pid)

    def _by_environment(self, pid: int) -> None:
        """Of the command, and of the shell above it; no process of a tool has that variable."""
        with suppress(OSError):
            if b"HOLDFAST_TRUSTED=" in Path(f"/proc/{pid}/environ").read_bytes():
                self.read[f"by the environment of {pid}"] = "HOLDFAST_TRUSTED"

    def _by_descriptors(self, pid: int) -> None:
        """What processes of tools have open of holdfast's code, while they load it, is for everybody."""
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with suppress(OSError):
                    file = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
                    if "holdfast" in file and not file.endswith((".py", ".pyc", ".so")):
                        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
                        self.read[f"{file} of {pid}"] = os.read(opened, 100).decode(errors="replace")
                        os.close(opened)

    def by_debugging(self) -> None:
        """One that is being debugged stands still until it is let go."""
        for pid in self._ancestors():
            if _done(libc.ptrace(PTRACE_ATTACH, pid, 0, 0)):
                os.waitpid(pid, 0)
                libc.ptrace(PTRACE_DETACH, pid, 0, 0)
                self.changed.append(f"debugged {pid}")

    def _ancestors(self) -> Iterator[int]:
        """Those that are a command of holdfast's: what runs an isolated body is covered like us."""
        pid = os.getpid()
        while pid > 1:
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                return
            if b"\0-m\0holdfast\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid

    def by_namespaces_of_others(self) -> None:
        for pid in [*self._ancestors(), 1]:
            for kinds in (("user", "mnt"), ("mnt",)):
                self.in_a_fork(f"entered {kinds} of {pid}", partial(self._enter, pid, kinds))

    def _enter(self, pid: int, kinds: tuple[str, ...]) -> None:
        for kind in kinds:
            fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            if not _done(libc.setns(fd, 0)):
                return
        self.look(f"in {kinds} of {pid}")

    def by_mounts(self) -> None:
        self.in_a_fork("with mounts", self._undo)
        self.in_a_fork("in namespaces of its own", self._undo_in_its_own)

    def _make_namespaces(self) -> bool:
        if not _done(libc.unshare(NEWUSER | NEWNS)):
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {self.uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {self.gid} 1")
        return True

    def _undo_in_its_own(self) -> None:
        if self._make_namespaces():
            self._undo()

    def _undo(self) -> None:
        elsewhere = f"{self.root}/elsewhere-{os.getpid()}"
        os.mkdir(elsewhere)  # noqa: PTH102
        for name in (".holdfast", ".git/config", ".git/hooks", ".git", "holdfast.toml", ".config/holdfast/trusted"):
            for flags in (0, DETACH):
                if _done(libc.umount2(os.fsencode(f"{self.root}/{name}"), flags)):
                    self.changed.append(f"unmounted {name}")
            _mount("none", f"{self.root}/{name}", None, REMOUNT | BIND)
        for source, flags in ((str(self.root), BIND), ("/", BIND), (str(self.root), BIND | REC), ("/", BIND | REC)):
            if _mount(source, elsewhere, None, flags):
                self.look(f"in another place, {flags:x}", elsewhere)
                self.look(f"in another place, {flags:x}", f"{elsewhere}{self.root}")
        for below in (str(self.root), "/"):  # it lays folders over each other, as they are without their mounts
            if _mount("overlay", elsewhere, "overlay", 0, f"lowerdir={below}:{elsewhere}"):
                self.look(f"laid over {below}", elsewhere)
                self.look(f"laid over {below}", f"{elsewhere}{self.root}")
        if _mount(f"{self.root}/.holdfast", elsewhere, None, MOVE):
            self.look("with the cover moved away")
        self.look("with mounts")
        self.write("with mounts")

    def by_handles(self) -> None:
        """A file's handle outlives every name: somebody outside made them."""
        handles = self.root / "handles.json"
        for name, (kind, value) in json.loads(handles.read_text()).items():
            data = bytes.fromhex(value)
            handle = len(data).to_bytes(4, "little") + kind.to_bytes(4, "little", signed=True) + data
            fd = libc.open_by_handle_at(os.open(self.root, os.O_RDONLY), handle, os.O_RDONLY)
            if fd >= 0:
                self.read[f"by a handle: {name}"] = os.read(fd, 100).decode(errors="replace")

    def by_the_machine(self) -> None:
        for folder, _, names in os.walk("/dev"):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):
                    if path.is_block_device():
                        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                        self.changed.append(f"opened {path}")
                        os.close(fd)
        found = Path("/sys/class/block")
        for device in found.iterdir() if found.is_dir() else ():
            number = os.makedev(*map(int, (device / "dev").read_text().split(":")))
            name = f"disk-{os.getpid()}-{device.name}"
            self.change(f"made {device.name}", partial(os.mknod, name, 0o60600, number))
        pattern = Path("/proc/sys/kernel/core_pattern")
        self.change("told the kernel what to run", lambda: os.close(os.open(pattern, os.O_WRONLY)))

    def in_a_fork(self, way: str, act: Callable[[], object]) -> None:
        """For what cannot be taken back. What it finds comes over a file."""
        found = Path(f"found-{os.getpid()}")
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                act()
            with suppress(BaseException):
                self.tell(found)
            os._exit(0)
        os.waitpid(pid, 0)
        with suppress(OSError, ValueError):
            told = json.loads(found.read_text())
            self.read |= {f"{way}, {key}": value for key, value in told["read"].items() if key not in self.read}
            self.changed += [f"{way}, {each}" for each in told["changed"] if each not in self.changed]
            found.unlink()

    def with_git(self) -> None:
        self.change("git config", lambda: subprocess.run(["git", "config", "alias.x", "!id"], check=True, stderr=-3))


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"# was here\n")


def _moved_and_back(path: Path) -> None:
    aside = path.with_name(f"aside-{os.getpid()}")
    path.rename(aside)
    aside.rename(path)


def main(root: str, report: str, *only: str) -> None:
    signal.alarm(60)
    os.chdir(root)
    intruder = Intruder(Path(root))
    if only:  # for where it would get in, and is to do no harm
        intruder.look("by path")
        intruder.tell(Path(report))
        return
    for way in (
        intruder.by_path,
        intruder.by_other_processes,
        intruder.by_debugging,
        intruder.by_namespaces_of_others,
        intruder.by_mounts,
        intruder.by_handles,
        intruder.by_the_machine,
        intruder.with_git,
    ):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            way()
    intruder.tell(Path(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
