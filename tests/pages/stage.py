"""One page, carried out in a folder of its own: files written, programs run, servers started, as a reader would."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.conftest import Desk
from tests.pages.blocks import Block
from tests.support.ports import free_port

WAIT_S = 60.0
BLOCK_S = 240.0
DATABASE = "postgresql://user:password@host/database"  # as the pages write it


class Stage:
    """`said`: text of a page -> what stands for it here, such as the address of a database."""

    def __init__(self, folder: Path, environ: dict[str, str], said: dict[str, str]) -> None:
        self.folder = folder
        port, other = free_port(), free_port()
        self._said = {**said, "127.0.0.1:7433": f"127.0.0.1:{port}", "8000": str(other)}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**Desk(folder).environ, **environ, "PATH": programs, "HOLDFAST_PORT": str(port)}
        self._stays: list[subprocess.Popen[str]] = []
        self._notebook: subprocess.Popen[str] | None = None
        self.printed = ""  # by the last block that ran

    def carry_out(self, block: Block) -> None:
        """Raises AssertionError that says where the page is wrong."""
        text = block.text
        for written, here in self._said.items():
            text = text.replace(written, here)
        match block.fate:
            case "run" if block.language == "python":
                self.printed = self._run_python(block, text)
            case "run":
                self.printed = self._run_shell(block, text, 0)
            case "ends":
                self.printed = self._run_shell(block, text, int(block.note))
            case "serves" | "stays":
                self._start(block, text)
            case "file":
                path = self.folder / block.note
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                if block.note == "holdfast.toml":
                    self._run_shell(block, "holdfast config show", 0)
            case "output":
                assert fits(block.text, self.printed), f"{block.place}: what is printed is\n{self.printed}"
            case "elsewhere" | "shown":
                pass

    def _run_shell(self, block: Block, text: str, code: int) -> str:
        """What it exports is there for the blocks behind it."""
        kept = self.folder / ".environment of the page"
        script = text if code else f"{text}\nenv -0 > '{kept}'\n"
        done = subprocess.run(
            ["sh", "-ec", script], cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=BLOCK_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{block.place} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        if not code:
            pairs = kept.read_text(encoding="utf-8").split("\0")
            self.environ = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            kept.unlink()
        return done.stdout

    def _run_python(self, block: Block, text: str) -> str:
        if self._notebook is None:
            self._notebook = subprocess.Popen(
                [sys.executable, "-m", "tests.pages.notebook"],
                cwd=self.folder, env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._notebook.stdin is not None
        assert self._notebook.stdout is not None
        print(json.dumps({"code": text, "place": block.place}), file=self._notebook.stdin, flush=True)
        line = self._notebook.stdout.readline()
        assert line, f"{block.place} ended the process"
        found = json.loads(line)
        assert not found["problem"], f"{block.place}:\n{found['problem']}"
        printed: str = found["printed"]
        return printed

    def _start(self, block: Block, text: str) -> None:
        """Each line is a program that stays until the page is over."""
        for line in text.splitlines():
            log = self.folder / f".log {len(self._stays)}"
            with log.open("w", encoding="utf-8") as said:
                process = subprocess.Popen(
                    ["sh", "-ec", f"exec {line}"], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL,
                    stdout=said, stderr=said, text=True, start_new_session=True,
                )  # fmt: skip
            self._stays.append(process)
            if block.fate == "serves":
                url = block.note
                for written, here in self._said.items():
                    url = url.replace(written, here)
                self._wait(process, url, log, block)

    def _wait(self, process: "subprocess.Popen[str]", url: str, log: Path, block: Block) -> None:
        give_up_at = time.monotonic() + WAIT_S
        while not answers(url):
            alive = process.poll() is None and time.monotonic() < give_up_at
            assert alive, f"{block.place} does not answer:\n{log.read_text(encoding='utf-8')}"
            time.sleep(0.05)

    def close(self) -> None:
        if self._notebook is not None:
            self._notebook.communicate()
        for process in self._stays:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._stays:
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def stage(folder: Path, environ: dict[str, str], said: dict[str, str]) -> Iterator[Stage]:
    made = Stage(folder, environ, said)
    try:
        yield made
    finally:
        made.close()


def answers(url: str) -> bool:
    """Anything at all: a server that says no is there."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def fits(shown: str, printed: str) -> bool:
    """Line by line, without the spaces at the ends; `…` stands for anything within a line, alone for any lines."""
    pattern = "\n".join(
        ".*" if line.strip() == "…" else "[^\n]*".join(map(re.escape, line.rstrip().split("…")))
        for line in shown.strip().splitlines()
    )
    plain = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, plain, re.DOTALL) is not None
