"""`holdfast serve --processes 2` as a person starts it: real interpreters, which load their code anew."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.waiting import eventually, until

pytestmark = pytest.mark.timeout(600)
KEY = "sk-ant-a-key-that-no-other-process-may-read"
PROGRAM = """
from holdfast import Agent, App

app = App("sqlite:///kelp.db", agents=[Agent("{name}", "scripted")], home="home", port=0, grace_s=2.0)
"""


class Command:
    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.said: list[str] = []
        assert process.stderr is not None
        self._ear = threading.Thread(target=self._hear, args=(process.stderr,), daemon=True)
        self._ear.start()

    def _hear(self, words: Any) -> None:
        for line in words:
            self.said.append(line.strip())

    async def says(self, words: str) -> None:
        await until(lambda: any(words in line for line in self.said) or self.process.poll() is not None, 300.0)
        assert any(words in line for line in self.said), self.said

    @property
    def url(self) -> str:
        return next(line.rpartition(" ")[2] for line in self.said if "listening on" in line)

    async def get(self, path: str) -> Any:
        """Over a connection of its own."""
        token = (self.folder / "home" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=30.0) as client:
            return (await client.get(path)).json()

    async def pids(self) -> set[int]:
        return {process["pid"] for process in (await self.get("/health"))["processes"]}

    async def agents(self) -> list[str]:
        return [agent["name"] for agent in (await self.get("/api/agents"))["agents"]]


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Command]:
    words = [sys.executable, "-W", "error", "-m", "holdfast", "serve", "kelp:app", *options]
    environ = {**os.environ, "ANTHROPIC_API_KEY": KEY}
    with subprocess.Popen(words, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Command(process, folder)
        finally:
            if process.poll() is None:
                process.kill()


def write(folder: Path, name: str) -> None:
    (folder / "kelp.py").write_text(PROGRAM.format(name=name))


async def test_a_rolling_restart_loads_the_program_as_it_is_now_and_one_that_is_broken_changes_nothing(
    tmp_path: Path,
) -> None:
    write(tmp_path, "first")
    with serving(tmp_path, "--processes", "2") as command:
        await command.says("2 processes are ready")
        before = await command.pids()
        assert len(before) == 2
        for pid in (command.process.pid, *before):
            assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert await command.agents() == ["first"]

        write(tmp_path, "second")
        command.process.send_signal(signal.SIGHUP)

        async def is_replaced() -> bool:
            now = await command.pids()
            return len(now) == 2 and not now & before

        await eventually(is_replaced, 400.0)
        assert await command.agents() == ["second"]

        (tmp_path / "kelp.py").write_text("this is no Python")
        after = await command.pids()
        command.process.send_signal(signal.SIGHUP)
        await command.says("those that run stay")
        assert await command.pids() == after
        assert await command.agents() == ["second"]

        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(60.0) == 0


async def test_what_is_wrong_with_the_program_is_said_once_and_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "kelp.py").write_text("this is no Python")
    with serving(tmp_path, "--processes", "2") as command:
        assert command.process.wait(120.0) == 1
        await command.says("cannot be imported")
        assert sum("cannot be imported" in line for line in command.said) == 1


async def test_an_app_that_says_how_many_processes_is_told_where_to_say_it(tmp_path: Path) -> None:
    (tmp_path / "kelp.py").write_text(PROGRAM.format(name="first").replace("port=0", "port=0, processes=2"))
    with serving(tmp_path) as command:
        assert command.process.wait(120.0) == 1
        await command.says("App(processes=…) comes too late")
