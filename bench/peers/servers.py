"""The servers beside the adapters: a real PostgreSQL, and Restate's own, from its registry."""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.peers.running import BUILD, HERE, Failed
from tests.clients.install import filled, node_packages
from tests.support.ports import free_port

READY_S = 60.0


class Restate:
    """Where it is reached: by clients, by whoever registers services, and where it looks for the adapter."""

    def __init__(self, process: "subprocess.Popen[bytes]", ingress: int, admin: int) -> None:
        self.pid = process.pid
        self._ingress, self._admin = ingress, admin
        self._port = free_port()

    def words(self) -> list[str]:
        where = f"http://127.0.0.1:{self._ingress},http://127.0.0.1:{self._admin},{self._port}"
        return ["--server", where]


@contextlib.contextmanager
def restate(folder: Path) -> Iterator[Restate]:
    """Fresh, with its data in the folder, on loopback."""
    home = filled(BUILD / "restate-server", HERE / "locks" / "restate" / "package-lock.json", node_packages)
    binaries = list(home.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not binaries:
        raise Failed("there is no Restate for this machine")
    ingress, admin, node = free_port(), free_port(), free_port()
    settings = folder / "restate.toml"
    settings.write_text(
        f'base-dir = "{folder / "restate"}"\nbind-address = "127.0.0.1:{node}"\n'
        f'advertised-address = "http://127.0.0.1:{node}"\n'
        f'[ingress]\nbind-address = "127.0.0.1:{ingress}"\n[admin]\nbind-address = "127.0.0.1:{admin}"\n'
    )
    with (folder / "restate.log").open("wb") as log:
        process = subprocess.Popen(
            [str(binaries[0]), "--config-file", str(settings)], stdout=log, stderr=log, cwd=folder,
            env={"PATH": "/usr/bin:/bin", "DO_NOT_TRACK": "1", "RESTATE_DISABLE_TELEMETRY": "true"},
        )  # fmt: skip
        try:
            _await(f"http://127.0.0.1:{admin}/health", process)
            _await(f"http://127.0.0.1:{ingress}/restate/health", process)
            yield Restate(process, ingress, admin)
        finally:
            process.kill()
            process.wait()


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    give_up_at = time.monotonic() + READY_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise Failed(f"Restate ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise Failed(f"Restate did not answer within {READY_S:g} s")


def version_of(lock: str) -> str:
    """Of a peer, from its lock."""
    if lock == "restate":
        return str(json.loads((HERE / "locks" / "restate" / "package-lock.json").read_text())["packages"][
            "node_modules/@restatedev/restate-server"]["version"])  # fmt: skip
    return (HERE / "locks" / f"{lock}.txt").read_text().splitlines()[0].partition("==")[2]
