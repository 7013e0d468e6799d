"""What the surfaces cost in CPU of the process that has them, on each store: a chat of one step, a turn over HTTP, a
token that is streamed to a reader, and an event for one more reader.

CPU time, not wall time: what else runs on the machine moves it by a few per cent only. To compare two versions, run
them in turns: `python -m bench surface`, and the same with `PYTHONPATH=…/other/src`.

`python -m bench.surface` (with arguments URL HOME) is the server process itself.
"""

import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.figures import Figures
from holdfast import Agent, App
from holdfast.server.serve import serve
from holdfast.testing import ScriptedModel
from tests.support.postgres import PostgresServer

CHATS = 400
AT_ONCE = 32
TURNS = 200
TALKS = 20
TOKENS = 250
PACE_S = 0.02  # 50 tokens a second
FEW_READERS = 10
MANY_READERS = 110

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ID = re.compile(rb'"id":"([^"]+)"')


def program(url: str, home: str) -> None:
    words = " ".join(f"token{n}" for n in range(TOKENS))
    agents = [
        Agent("talker", ScriptedModel(words, per="turn", pace_s=PACE_S)),
        Agent("echo", ScriptedModel(after="echo")),
    ]
    app = App(url, agents=agents, home=home, port=0, streams_per_client_max=5_000)
    asyncio.run(serve(app))


class Connection:
    """Kept, and bare: what a client library costs is not ours to measure."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        self._say(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        assert head.startswith(b"HTTP/1.1 2"), head
        assert found is not None
        return await self._reader.readexactly(int(found[1]))

    async def stream(self, path: str) -> bytes:
        """To its end."""
        self._say("GET", path, b"")
        return await self._reader.readuntil(b"\r\n0\r\n\r\n")

    def _say(self, method: str, path: str, body: bytes) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{head}{kind}\r\n".encode() + body)

    def close(self) -> None:
        self._writer.close()


class Server:
    def __init__(self, pid: int, port: int, token: str) -> None:
        self._process = psutil.Process(pid)
        self._port = port
        self._token = token

    def cpu_s(self) -> float:
        spent = self._process.cpu_times()
        return float(spent.user + spent.system)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=16 << 20)
        yield Connection(reader, writer, self._token)
        writer.close()


async def create(line: Connection, agent: str) -> str:
    made = await line.ask("POST", "/api/chats", b'{"agent":"%s","message":"Go on."}' % agent.encode())
    found = _ID.search(made)
    assert found is not None
    return found[1].decode()


@contextlib.contextmanager
def serving(url: str, home: Path) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.surface", url, str(home)],
        cwd=Path(__file__).resolve().parents[1],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        while "listening on" not in (line := process.stderr.readline()):
            assert line, "the server ended"
        yield Server(process.pid, int(line.rpartition(":")[2]), (home / "token").read_text().strip())
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


async def surface(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres:
        stores = {"sqlite": f"sqlite:///{folder}/one.db", "postgres": postgres.create_database()}
        for name, url in stores.items():
            await one_step_chats(figures, name, url)
        stores = {"sqlite": f"sqlite:///{folder}/http.db", "postgres": postgres.create_database()}
        for name, url in stores.items():
            with serving(url, Path(folder) / name) as server:
                await http_turns(figures, name, server)
                await tokens(figures, name, server)
                await readers(figures, name, server)


async def one_step_chats(figures: Figures, name: str, url: str) -> None:
    """A chat is made, its one turn is awaited: what a batch of questions costs in the process of its app."""
    app = App(url, agents=[Agent("echo", ScriptedModel(after="echo"))])
    async with app.worker(grace_s=0.0):

        async def ask() -> None:
            await (await app.create("echo", "Go on.")).turn()

        async def lane(serial: Iterator[int]) -> None:
            while next(serial) < CHATS:
                await ask()

        for lanes in (1, AT_ONCE):
            await asyncio.gather(*(ask() for _ in range(20)))
            serial = count()
            before = time.process_time()
            await asyncio.gather(*(lane(serial) for _ in range(lanes)))
            spent = (time.process_time() - before) / CHATS
            figures.add(f"{name}: CPU per chat of one step, {lanes} at once", spent * 1e3, "ms")


async def http_turns(figures: Figures, name: str, server: Server) -> None:
    """With a new chat, read as a stream; and with one more message to a chat, the turn awaited."""

    async def streamed(line: Connection) -> None:
        chat_id = await create(line, "echo")
        assert b"event: end" in await line.stream(f"/api/chats/{chat_id}/events?follow=false")

    async with server.connection() as line:
        chat_id = await create(line, "echo")

        async def awaited(line: Connection) -> None:
            await line.ask("POST", f"/api/chats/{chat_id}/messages", b'{"message":"Go on."}')
            assert b'"done"' in await line.ask("GET", f"/api/chats/{chat_id}/turn?wait_s=30")

        for what, turn in (("new chat, streamed", streamed), ("message, turn awaited", awaited)):
            for _ in range(20):
                await turn(line)
            before = server.cpu_s()
            for _ in range(TURNS):
                await turn(line)
            figures.add(f"{name}: CPU per HTTP turn, {what}", (server.cpu_s() - before) / TURNS * 1e3, "ms")


async def talk(server: Server, chat_id: str) -> None:
    async with server.connection() as line:
        told = await line.stream(f"/api/chats/{chat_id}/events?follow=false")
        assert b"event: end" in told
        assert b"token%d" % (TOKENS - 1) in told


async def tokens(figures: Figures, name: str, server: Server) -> None:
    """Chats that stream at once, a reader each."""
    async with server.connection() as line:
        before = server.cpu_s()
        chats = [await create(line, "talker") for _ in range(TALKS)]
        await asyncio.gather(*(talk(server, chat_id) for chat_id in chats))
        spent = (server.cpu_s() - before) / TALKS / TOKENS
        note = f"{TALKS} chats at {1 / PACE_S:.0f} tokens/s, a reader each"
        figures.add(f"{name}: CPU per streamed token", spent * 1e6, "µs", note=note)


async def readers(figures: Figures, name: str, server: Server) -> None:
    """What one more reader of a chat costs for each event."""
    spent = []
    for how_many in (FEW_READERS, MANY_READERS):
        async with server.connection() as line:
            before = server.cpu_s()
            chat_id = await create(line, "talker")
            await asyncio.gather(*(talk(server, chat_id) for _ in range(how_many)))
            spent.append(server.cpu_s() - before)
    each = (spent[1] - spent[0]) / (MANY_READERS - FEW_READERS) / TOKENS
    figures.add(f"{name}: CPU per event and reader", each * 1e6, "µs", note="with its request")


if __name__ == "__main__":
    program(*sys.argv[1:])
