"""A real `holdfast serve` with the desk, its database and its port, through any number of its lives."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2 as httpx

ROOT = Path(__file__).resolve().parents[2]
SETTLE_S = 60.0


class DeskServer:
    """`with DeskServer(folder) as desk:` Open approvals are given as they appear, by another client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = folder / "notes"
        self._log = folder / "server.log"
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._over = threading.Event()
        self._approving = threading.Thread(target=self._approve)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.start()
        self._approving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._approving.join()
        self.end(signal.SIGKILL)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def token(self) -> str:
        return (self._folder / "token").read_text().strip()

    def start(self) -> None:
        database = f"sqlite:///{self._folder}/holdfast.db"
        command = ["serve", "tests.clients.desk:app", "--home", str(self._folder), "--database", database]
        with self._log.open("a") as log:
            log.write("--- a life begins\n")
            start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *command, "--port", str(self._port)],
                cwd=ROOT,
                env={**os.environ, "DESK_NOTES": str(self._notes)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self._port = self._listening(start)

    def _listening(self, start: int) -> int:
        assert self._process is not None
        while self._process.poll() is None:
            said = self._log.read_bytes()[start:].decode()
            for line in said.splitlines(keepends=True):
                if "listening on" in line and line.endswith("\n"):
                    return int(line.rstrip().rpartition(":")[2])
            self._over.wait(0.02)
        raise AssertionError(f"the server ended: {self._log.read_text()}")

    def end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(60.0)

    def notes(self, line: str) -> int:
        return self._notes.read_text().splitlines().count(line) if self._notes.exists() else 0

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=f"{self.url}/api/", headers=headers, timeout=SETTLE_S + 10, trust_env=False)

    def kept(self) -> str | None:
        """The answer of the newest turn of the desk, once it is over."""
        with self.client() as client:
            chats = client.get("chats", params={"limit": 50}).json()["chats"]
            newest = next(chat["id"] for chat in chats if chat["agent"] == "desk")
            turn = client.get(f"chats/{newest}/turn", params={"wait_s": SETTLE_S})
            assert turn.status_code == 200, turn.text
            text: str | None = turn.json()["text"]
            return text

    def _approve(self) -> None:
        while not self._over.wait(0.1):
            try:
                self._approve_open()
            except (httpx.HTTPError, OSError):
                continue  # it is between two lives

    def _approve_open(self) -> None:
        with self.client() as client:
            for chat in client.get("chats", params={"state": "waiting"}).json()["chats"]:
                for call in client.get(f"chats/{chat['id']}/calls").json()["calls"]:
                    if call["kind"] == "approval":
                        client.post(f"chats/{chat['id']}/calls/{call['call_id']}/approve")
