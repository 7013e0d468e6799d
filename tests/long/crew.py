"""A crew of worker processes on one database, on one machine or several, and what they really did.

A member can be on a machine of its own: another boot id, and a folder for temporary files that others cannot see.
Then nobody sees its lock, and its death shows by its silence alone, as that of a lost host does.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.app import App
from holdfast.core.records import State
from holdfast.errors import StoreError
from tests.long.member import Orders
from tests.support import behind
from tests.support.chats import new_chat
from tests.support.programs import ROOT
from tests.support.waiting import eventually, until
from tests.worker.evidence import Line, read_evidence

CALM_S = 100.0
"""Within which everything is done that the design says is done within seconds, however slow the machine is."""

MOUNTED = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && mount -t tmpfs none "$2" && shift 2 && exec "$@"'
BOOTED = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift 1 && exec "$@"'


class Member:
    def __init__(self, life: str, process: "subprocess.Popen[bytes]") -> None:
        self.life = life
        self.process = process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Crew:
    """`with Crew(url, folder) as crew:` whoever still lives at the end is killed."""

    def __init__(
        self, url: str, folder: Path, *, ttl_s: float = 5.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.folder = folder
        self.ttl_s = ttl_s
        self._environment = dict(environment or {})
        self.members: list[Member] = []
        self.evidence_path = folder / "evidence"
        self.words_path = folder / "words"

    def launch(self, *, boot: str | None = None, elsewhere: bool = False) -> Member:
        """`boot`: under this boot id, on this machine; `elsewhere`: on a machine of its own."""
        life = f"w{len(self.members) + 1}"
        orders = Orders(self.url, str(self.folder), life, self.ttl_s)
        command = [sys.executable, "-m", "tests.long.member", msgspec.json.encode(orders).decode()]
        with self.words_path.open("ab") as words:
            process = subprocess.Popen(
                [*self._machine(life, boot, elsewhere), *command],
                cwd=ROOT,
                stderr=words,
                env={**os.environ, **self._environment, **({"TMPDIR": self._tmp(life)} if elsewhere else {})},
            )
        member = Member(life, process)
        self.members.append(member)
        return member

    def _machine(self, life: str, boot: str | None, elsewhere: bool) -> list[str]:
        if boot is None and not elsewhere:
            return []
        file = self.folder / f"boot-{life}"
        file.write_text(f"{boot or uuid.uuid4()}\n")
        if not elsewhere:
            return ["unshare", "--mount", "sh", "-c", BOOTED, "sh", str(file)]
        return ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", str(file), self._tmp(life)]

    def _tmp(self, life: str) -> str:
        path = self.folder / f"tmp-{life}"
        path.mkdir(exist_ok=True)
        return str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.process.kill()  # also ends what is stopped
            member.process.wait(30)

    # --- what happened

    def open_gate(self, gate: str = "a") -> None:
        (self.folder / f"open-{gate}").touch()

    def evidence(self) -> list[Line]:
        return read_evidence(self.evidence_path) if self.evidence_path.exists() else []

    def entered(self) -> Counter[str]:
        """How often the body of each call was begun."""
        return Counter(line.call_id for line in self.evidence() if line.what == "entered")

    def asked(self) -> int:
        return sum(line.what == "asked" for line in self.evidence())

    def words(self) -> str:
        return self.words_path.read_text(errors="replace") if self.words_path.exists() else ""

    async def at_the_gate(self, count: int, life: str | None = None) -> None:
        """So many bodies were begun, by this member or by all together."""
        await until(lambda: self._entries(life) >= count, CALM_S)

    def _entries(self, life: str | None) -> int:
        return sum(line.what == "entered" and line.life == (life or line.life) for line in self.evidence())


# --- what the database says


async def create(app: App, agent: str, count: int) -> list[str]:
    """Chats of an agent that only the crew knows, each acknowledged when this returns."""
    news = [new_chat(agent=agent) for _ in range(count)]
    for new in news:
        await app.store.create_chat(new)
    return [new.id for new in news]


def leases(url: str) -> dict[str, tuple[int, int]]:
    """By worker: its process, and what its last renewal left, which is another after each."""
    rows = behind.sql(url, "SELECT id, pid, renewed_at FROM workers")
    return {worker: (pid, renewed_at) for worker, pid, renewed_at in rows}


async def registered(url: str, members: Sequence[Member]) -> dict[str, str]:
    """The worker ids of members by life, once all of them have a lease."""

    def missing() -> bool:
        pids = {pid for pid, _ in leases(url).values()}
        return not all(member.process.pid in pids for member in members)

    await until(lambda: not missing(), CALM_S)
    by_pid = {pid: worker for worker, (pid, _) in leases(url).items()}
    return {member.life: by_pid[member.process.pid] for member in members}


async def renewed(url: str, workers: Iterable[str], times: int) -> None:
    """Until each of them has renewed its lease so often from now on, or has lost it."""
    left = dict.fromkeys(workers, times)
    last = leases(url)

    def all_did() -> bool:
        now = leases(url)
        for worker in left:
            if worker not in now:
                left[worker] = 0
            elif now[worker] != last.get(worker):
                last[worker] = now[worker]
                left[worker] -= 1
        return max(left.values()) <= 0

    await until(all_did, CALM_S)


async def rest(app: App, chat_ids: Iterable[str], deadline_s: float = CALM_S) -> float:
    """Until all of these chats are idle; how long that took. If it never comes, what they are instead."""
    began = time.monotonic()
    wanted = list(chat_ids)
    while busy := await _busy(app, wanted):
        assert time.monotonic() - began < deadline_s, busy
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _busy(app: App, chat_ids: Sequence[str]) -> list[str]:
    try:
        chats = [(await app.store.read_chat(chat_id)).chat for chat_id in chat_ids]
    except StoreError as error:  # a database that moves to another server is away for a moment
        return [str(error)]
    return [
        f"{chat.id} of {chat.agent} is {chat.state}, version {chat.version}, worker {chat.worker}, {chat.error}"
        for chat in chats
        if chat.state is not State.IDLE
    ]


async def taken_over(app: App, chat_ids: Iterable[str], before: Mapping[str, int]) -> float:
    """Until somebody has claimed each of these chats again, after the fences of before; how long that took."""
    began = time.monotonic()

    async def all_are() -> bool:
        chats = [(await app.store.read_chat(chat_id)).chat for chat_id in chat_ids]
        return all(chat.fence > before[chat.id] for chat in chats)

    await eventually(all_are, CALM_S)
    return time.monotonic() - began


async def fences(app: App, chat_ids: Iterable[str]) -> dict[str, int]:
    return {chat_id: (await app.store.read_chat(chat_id)).chat.fence for chat_id in chat_ids}


def doctor(url: str, home: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """`holdfast doctor` as a person runs it: its exit code, and its findings by code."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", "--json", "--database", url, "--home", str(home)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["code"], []).append(finding)
    return done.returncode, found
