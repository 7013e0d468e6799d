"""Installs clients from their registries into `build/clients`, once for each lock: what is there is used again.

A client for Python is a lock of pinned requirements and gets an environment of its own; one for Node is a folder
with a `package.json` and its lock. Neither names a registry: which one is asked, the machine says.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.clients.clients import Client

HERE = Path(__file__).parent
BUILD = Path(__file__).resolve().parents[2] / "build" / "clients"
LOCKS = HERE / "locks"
STAMP = ".ready"
INSTALL_S = 900.0


class NotInstalled(Exception):
    """Why a client is not there."""


def installed(client: Client) -> Path:
    """Its folder. Raises NotInstalled."""
    lock = LOCKS / client.install / "package-lock.json" if client.node else LOCKS / f"{client.install}.txt"
    return filled(BUILD / client.install, lock, node_packages if client.node else python_packages)


def filled(folder: Path, lock: Path, fill: Callable[[Path, Path], None]) -> Path:
    """The folder, with what the lock names in it. Raises NotInstalled."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    stamp = folder / STAMP
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fill(lock, folder)
        stamp.write_text(digest)
    return folder


def python_packages(lock: Path, folder: Path) -> None:
    """An environment of its own."""
    uv = [sys.executable, "-m", "uv"]
    _run([*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])
    _run([*uv, "pip", "install", "--quiet", "--no-deps", "--python", str(folder / "bin" / "python"), "-r", str(lock)])


def node_packages(lock: Path, folder: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstalled("npm is not there")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock.parent / name, folder)
    _run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"], cwd=folder)


def _run(command: list[str], cwd: Path | None = None) -> None:
    environment = {**os.environ, "UV_LINK_MODE": "copy"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"not installed after {INSTALL_S:g} s") from error
    if done.returncode != 0:
        raise NotInstalled(f"not installed: {done.stderr.strip()[-300:]}")


def version_of(client: Client) -> str:
    """Of its own package: the first line of the lock, or the first dependency."""
    if client.node:
        lock = json.loads((LOCKS / client.install / "package-lock.json").read_text())
        first = next(iter(lock["packages"][""]["dependencies"]))
        version: str = lock["packages"][f"node_modules/{first}"]["version"]
        return version
    first_line = (LOCKS / f"{client.install}.txt").read_text().splitlines()[0]
    return first_line.removeprefix("# ").partition("==")[2]


def command_of(client: Client, folder: Path) -> list[str]:
    if client.program.endswith(".mjs"):
        for program in (HERE / "node").glob("*.mjs"):  # next to node_modules, where Node looks for packages
            shutil.copy(program, folder)
        return ["node", str(folder / client.program)]
    python = sys.executable if client.node else str(folder / "bin" / "python")
    return [python, str(HERE / "python" / client.program)]
