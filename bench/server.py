"""The HTTP server under load, its clients on the same machine: delays, completeness, memory, idle streams.

`python -m bench.server` (with arguments URL HOME) is the server process itself.
"""

import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2 as httpx
import psutil  # type: ignore[import-untyped]

from bench.figures import Figures
from holdfast import Agent, App
from holdfast.server.serve import serve
from holdfast.testing import ScriptedModel

CHATS = 20
READERS = 10
TOKENS = 500
PACE_S = 0.02  # 50 tokens a second
IDLE_STREAMS = 2_000
IDLE_S = 25.0  # two heartbeats and a half
POSTS = 200
FEW_READERS = 10
MANY_READERS = 110

_AT = re.compile(rb'"at":(\d+)')


def program(url: str, home: str) -> None:
    words = " ".join(f"token{n}" for n in range(TOKENS))
    agents = [
        Agent("talker", ScriptedModel(words, per="turn", pace_s=PACE_S)),
        Agent("echo", ScriptedModel(after="echo")),
    ]
    app = App(url, agents=agents, home=home, port=0, streams_per_client_max=5_000)
    asyncio.run(serve(app))


class Server:
    def __init__(self, process: "subprocess.Popen[str]", url: str, token: str) -> None:
        self.process = psutil.Process(process.pid)
        self.port = int(url.rpartition(":")[2])
        self.token = token
        headers = {"Authorization": f"Bearer {token}"}
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0, trust_env=False)

    async def create(self, agent: str, message: str | None = None) -> str:
        answer = await self.client.post("/api/chats", json={"agent": agent, "message": message})
        chat_id: str = answer.raise_for_status().json()["id"]
        return chat_id

    async def stream(
        self, chat_id: str, *, follow: bool, more: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare socket: what a client library costs is not ours to measure."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        path = f"/api/chats/{chat_id}/events?follow={'true' if follow else 'false'}{more}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer


@contextlib.contextmanager
def serving(program: str = "bench.server", url: str | None = None) -> Iterator[Server]:
    """A server process on a database, or on a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        process = subprocess.Popen(
            [sys.executable, "-m", program, url or f"sqlite:///{folder}/bench.db", str(home)],
            cwd=Path(__file__).resolve().parents[1],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            while "listening on" not in (line := process.stderr.readline()):
                assert line, "the server ended"
            found = Server(process, line.split()[-1], (home / "token").read_text().strip())
            yield found
        finally:
            process.terminate()
            process.wait()
            process.stderr.close()


async def server(figures: Figures) -> None:
    print(f"\nHTTP server, clients on the same {psutil.cpu_count()} cores")
    with serving() as found:
        await measured(figures, found)


async def measured(figures: Figures, found: Server) -> None:
    async with found.client:
        await posts(figures, found)
        await load(figures, found)
        await each_reader(figures, found)
        await idle(figures, found)


async def posts(figures: Figures, found: Server) -> None:
    """From the moment a message is posted, on a kept connection, until it is acknowledged, and until its first event
    is read from an open stream.
    """
    chat_id = await found.create("echo")
    reader, writer = await found.stream(chat_id, follow=True)
    await reader.readuntil(b'"chat.created"')
    times, acknowledged = [], []

    async def post(n: int) -> None:
        posted = time.perf_counter()
        answer = await found.client.post(f"/api/chats/{chat_id}/messages", json={"message": f"m{n}"})
        answer.raise_for_status()
        acknowledged.append((time.perf_counter() - posted) * 1e3)

    for n in range(POSTS):
        began = time.perf_counter()
        sending = asyncio.create_task(post(n))
        await reader.readuntil(b"event: turn.started")
        times.append((time.perf_counter() - began) * 1e3)
        await sending
        await reader.readuntil(b"event: turn.ended")
        await reader.readuntil(b"\n\n")
    writer.close()
    figures.add("POST a message to its acknowledgement, p50", statistics.median(acknowledged), "ms")
    figures.add("POST a message to its acknowledgement, p99", percentile(acknowledged, 99), "ms")
    figures.add("POST a message to its first event, p50", statistics.median(times), "ms", at_most=25.0)
    figures.add("POST a message to its first event, p99", percentile(times, 99), "ms")


async def load(figures: Figures, found: Server) -> None:
    before = found.process.cpu_times()
    began = time.perf_counter()
    chats = [await found.create("talker", "go") for _ in range(CHATS)]
    readers = [read(found, chat_id) for chat_id in chats for _ in range(READERS)]
    results = await asyncio.gather(*readers)
    took_s = time.perf_counter() - began
    after = found.process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    delays = [delay for _, delays in results for delay in delays]
    complete = sum(whole for whole, _ in results)
    note = f"{CHATS} chats at {1 / PACE_S:.0f} tokens/s, {READERS} readers each, {len(delays):,} events"
    figures.add("streams that got everything", complete, f"of {len(results)}", at_least=len(results), note=note)
    figures.add("journal to client, p50", statistics.median(delays), "ms")
    figures.add("journal to client, p99", percentile(delays, 99), "ms")
    figures.add("the server's share of a core meanwhile", cpu_s / took_s, "cores")
    figures.add(
        "CPU per event and reader", cpu_s / len(delays) * 1e6, "µs", note="with the turns that make the events"
    )


async def each_reader(figures: Figures, found: Server) -> None:
    """What one more reader of a chat costs for each event, with and without HTML."""
    for name, more in (("CPU per event and reader", ""), ("CPU per event and reader, render=html", "&render=html")):
        few, many = [await _cpu_of_readers(found, count, more) for count in (FEW_READERS, MANY_READERS)]
        figures.add(name, (many - few) / (MANY_READERS - FEW_READERS) / TOKENS * 1e6, "µs")


async def _cpu_of_readers(found: Server, count: int, more: str) -> float:
    before = found.process.cpu_times()
    chat_id = await found.create("talker", "go")
    await asyncio.gather(*(read(found, chat_id, more) for _ in range(count)))
    after = found.process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


async def read(found: Server, chat_id: str, more: str = "") -> tuple[bool, list[float]]:
    """Whether it all came, and for each event how long after its commit."""
    reader, writer = await found.stream(chat_id, follow=False, more=more)
    connected_ms = time.time() * 1e3  # what was said before is history: it is read, not awaited
    delays: list[float] = []
    text = b""
    while b"event: end" not in (data := await reader.read(65536)) and data:
        now_ms = time.time() * 1e3
        delays.extend(now_ms - int(at) for at in _AT.findall(data) if int(at) > connected_ms)
        text += data
    writer.close()
    return b"turn.ended" in text + data and f"token{TOKENS - 1}".encode() in text + data, delays


async def idle(figures: Figures, found: Server) -> None:
    chats = [await found.create("echo") for _ in range(IDLE_STREAMS)]
    await asyncio.sleep(1.0)
    before = found.process.memory_info().rss
    streams = []
    for at in range(0, IDLE_STREAMS, 100):
        streams += await asyncio.gather(*(found.stream(chat_id, follow=True) for chat_id in chats[at : at + 100]))
    grown = found.process.memory_info().rss - before
    cpu_before = found.process.cpu_times()
    alive = await asyncio.gather(*(_heartbeats(reader) for reader, _ in streams))
    cpu_after = found.process.cpu_times()
    cpu = (cpu_after.user + cpu_after.system - cpu_before.user - cpu_before.system) / IDLE_S
    figures.add("idle streams that were held", sum(alive), f"of {IDLE_STREAMS}", at_least=IDLE_STREAMS)
    figures.add("memory per idle stream", grown / IDLE_STREAMS / 1024, "KiB")
    figures.add("the server's share of a core meanwhile", cpu, "cores")
    for _, writer in streams:
        writer.close()


async def _heartbeats(reader: asyncio.StreamReader) -> bool:
    """At least two came, and the stream is still open."""
    beats = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(IDLE_S):
            while data := await reader.read(65536):
                beats += data.count(b": \n\n")
            return False
    return beats >= 2


def percentile(values: Sequence[float], share: int) -> float:
    return statistics.quantiles(values, n=100)[share - 1]


if __name__ == "__main__":
    program(*sys.argv[1:])
