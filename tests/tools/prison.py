"""Runs `prisoner.py` inside of a sandbox, and looks at what it reached: as whichever user started this program.

python prison.py FOLDER     a folder of its own, empty; prints JSON
"""

import asyncio
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast import Sandbox, shell_tool
from holdfast.tools import floor


def handle_of(path: Path) -> tuple[int, str] | None:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer, mount = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return None
    size, kind = int.from_bytes(buffer.raw[0:4], "little"), int.from_bytes(buffer.raw[4:8], "little", signed=True)
    return kind, buffer.raw[8 : 8 + size].hex()


def echo_forever(server: socket.socket) -> None:
    while True:
        data, sender = server.recvfrom(10)
        server.sendto(data, sender)


def build(folder: Path) -> None:
    for name in ("root/sub/hidden", "root/.holdfast", "outside", "shared", "home/.ssh"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("root/sub/hidden/secret", "root/.env", "root/.holdfast/token", "outside/secret", "home/.ssh/id"):
        (folder / name).write_text("SECRET")
    (folder / "shared/shown").write_text("shown")
    (folder / "root/link").symlink_to(folder / "outside")
    shutil.copy(Path(__file__).with_name("prisoner.py"), folder / "root")


def all_below(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


async def main(folder: Path, **options: Any) -> dict[str, Any]:
    build(folder)
    os.environ |= {"HOME": str(folder / "home"), "SECRET_OF_THE_WORKER": "SECRET"}
    os.chdir(folder)
    before = all_below(folder / "outside") | all_below(folder / "shared")
    servers = [
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX),
    ]
    servers[1].bind(("127.0.0.1", 0))
    threading.Thread(target=echo_forever, args=(servers[1],), daemon=True).start()
    servers[2].bind(f"\0holdfast-{os.getpid()}")
    servers[3].bind(str(folder / "outside/socket"))
    for server in servers[2:]:
        server.listen()
    sleeper = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220
    facts = {
        "outside": str(folder / "outside"),
        "shared": str(folder / "shared"),
        "prefix": sys.prefix,
        "secrets": [str(folder / name) for name in ("root/.env", "root/.holdfast/token", "home/.ssh/id")]
        + [str(folder / name) for name in ("outside/secret", "root/sub/hidden/secret")]
        + ["/etc/shadow", f"/proc/{os.getpid()}/environ", "/proc/1/environ"],
        "handle": handle_of(folder / "outside/secret"),
        "pid": os.getpid(),
        "sleeper": sleeper.pid,
        "tcp": servers[0].getsockname()[1],
        "udp": servers[1].getsockname()[1],
        "abstract": f"holdfast-{os.getpid()}",
    }
    (folder / "root/facts.json").write_text(json.dumps(facts))
    sandbox = Sandbox(readable=[folder / "shared"], hidden=[".env", "sub/hidden"], **options)
    shell = shell_tool(root=folder / "root", sandbox=sandbox, bash=True)
    own = floor.own(str(folder / "root/.holdfast"), str(folder / "root/.holdfast/locks"), None)
    floor.protect(own)
    try:
        python, mark = sys.executable, f"mark-{os.getpid()}"
        said = await shell(
            command=f"echo x > made; touch {{/dev/shm,/tmp,/var/tmp}}/{mark}; {python} prisoner.py facts.json"
        )
    finally:
        floor.release(own)
    report, _, tried = said.rpartition("REPORT ")[2].partition("\n")[0].rpartition(" ")
    alive = sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()
    return {
        "said": said,
        "open": json.loads(report),
        "tried": int(tried),
        "changed": before != all_below(folder / "outside") | all_below(folder / "shared")
        or any(Path(name, mark).exists() for name in ("/dev/shm", "/tmp", "/var/tmp")),
        "alive": alive,
        "owner": (folder / "root/made").stat().st_uid,
    }


if __name__ == "__main__":
    network = {"network": True} if "network" in sys.argv[2:] else {}
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), **network))))  # noqa: T201
