"""Clients that would take the server from everybody else: what each gets, and how long `/health` of the others takes
meanwhile. `make bench BENCH_ARGS=hostile`; the table of docs/operating.md is made of it.
"""

import asyncio
import collections
import contextlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.figures import Figures
from bench.server import Server, percentile, serving

ROOT = Path(__file__).resolve().parents[1]
MEANWHILE_S = 8.0
MANY = 10_000
AIM_MS = 100.0

Told = collections.Counter[str]
Attack = Callable[[Server, Told], Awaitable[None]]

HEAD = b"POST /api/chats HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def hostile(figures: Figures) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"\nHostile clients, on the same {psutil.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    for name, attack in ATTACKS.items():
        with serving() as found:
            async with found.client:
                await judged(figures, found, name, attack)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def judged(figures: Figures, found: Server, name: str, attack: Attack) -> None:
    told: Told = collections.Counter()
    attacking = asyncio.ensure_future(attack(found, told))
    await asyncio.sleep(1.0)
    probe = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.hostile", str(found.port), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    answer, _ = await probe.communicate()
    times, states = json.loads(answer)
    attacking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attacking
    rss = found.process.memory_info().rss / (1 << 20)
    got = ", ".join(f"{what} × {count:,}" for what, count in told.most_common(4)) or "nothing"
    healths = ", ".join(f"{state} × {count}" for state, count in states.items())
    note = f"{got}; p50 {statistics.median(times):.1f} ms ({healths}), {rss:.0f} MiB"
    figures.add(f"{name}: /health of others, p99", percentile(times, 99), "ms", at_most=AIM_MS, note=note)


@contextlib.asynccontextmanager
async def connected(
    found: Server, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def status_of(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    return line.split()[1].decode() if line else "closed"


async def sending(found: Server, told: Told, data: bytes, more: bytes = b"", *, count: int = 20) -> None:
    """So many clients at once, each again and again: `data`, then `more` for as long as the server lets it."""

    async def one() -> None:
        while True:
            with contextlib.suppress(ConnectionError, OSError):
                async with connected(found) as (reader, writer):
                    writer.write(data)
                    told[await status_of(reader)] += 1
                    while more:
                        writer.write(more)
                        await writer.drain()
                        await asyncio.sleep(0.05)
                    continue
            told["closed"] += 1

    await asyncio.gather(*(one() for _ in range(count)))


def _with_token(found: Server, body: bytes) -> bytes:
    return HEAD + b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (found.token.encode(), len(body)) + body


async def wrong_list(found: Server, told: Told) -> None:
    await sending(found, told, _with_token(found, b"[" + b"1," * 6_500_000 + b"1]"), count=2)


async def many_elements(found: Server, told: Told) -> None:
    await sending(found, told, _with_token(found, b'{"message":[' + b"1," * 99_000 + b"1]}"), count=2)


async def unknown_fields(found: Server, told: Told) -> None:
    await sending(found, told, _with_token(found, json.dumps({f"f{n}": 1 for n in range(99_000)}).encode()), count=2)


async def large_text(found: Server, told: Told) -> None:
    body = json.dumps({"agent": "echo", "message": None, "title": "x" * 8_000_000}).encode()
    await sending(found, told, _with_token(found, body), count=2)


async def body_after_refusal(found: Server, told: Told) -> None:
    await sending(found, told, HEAD + b"Content-Length: 1000000000\r\n\r\n", b"x" * 1000, count=200)


async def chunks_of_a_byte(found: Server, told: Told) -> None:
    await sending(found, told, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000, count=10)


async def chunks_with_a_token(found: Server, told: Told) -> None:
    head = HEAD + b"Authorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n" % found.token.encode()
    await sending(found, told, head + b"1\r\nx\r\n" * 40_000, count=5)


async def slow_heads(found: Server, told: Told) -> None:
    await sending(found, told, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-A: b\r\n", count=500)


async def readers_of_much(found: Server, told: Told) -> None:
    chat_id = await found.create("echo", "x" * 8_000_000)
    await found.client.get(f"/api/chats/{chat_id}/turn", params={"wait_s": 60})  # its turn is not what is measured
    path = f"/api/chats/{chat_id}/events?follow=true"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {found.token}\r\n\r\n"

    async def one() -> None:
        async with connected(found) as (reader, writer):
            writer.write(head.encode())
            told[await status_of(reader)] += 1
            await asyncio.sleep(3600)

    await asyncio.gather(*(one() for _ in range(100)))


async def ten_thousand(found: Server, told: Told) -> None:
    """Kept connections, from several addresses of this machine; each asks once, then stays."""
    async with contextlib.AsyncExitStack() as open_ones:
        for n in range(MANY):
            try:
                reader, writer = await open_ones.enter_async_context(connected(found, f"127.0.0.{2 + n % 8}"))
            except OSError as error:
                told[f"errno {error.errno}"] += 1
                continue
            if n % 10 == 0:
                writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                told[await status_of(reader)] += 1
            else:
                told["connected"] += 1
        await asyncio.sleep(3600)


async def nothing(found: Server, told: Told) -> None:
    await asyncio.sleep(3600)


ATTACKS: dict[str, Attack] = {
    "no attack": nothing,
    "a list of 13 MB for an object": wrong_list,
    "a message of 99,000 numbers": many_elements,
    "99,000 unknown fields": unknown_fields,
    "a field of 8 MB that may have 200 characters": large_text,
    "bodies that go on after a 401": body_after_refusal,
    "chunks of a byte after a 401": chunks_of_a_byte,
    "chunks of a byte with a token": chunks_with_a_token,
    "slow heads": slow_heads,
    "readers of 8 MB messages that read nothing": readers_of_much,
    "10,000 connections": ten_thousand,
}


def probe(port: int) -> None:
    """As a process of its own, which waits for the server and for nothing else: a client that asks on a kept
    connection, as a load balancer does, and comes back where it is closed.
    """
    times: list[float] = []
    states: collections.Counter[str] = collections.Counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60.0)
    until = time.monotonic() + MEANWHILE_S
    while time.monotonic() < until:
        began = time.perf_counter()
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            answer.read()
            states[str(answer.status)] += 1
        except (HTTPException, OSError) as error:
            states[type(error).__name__] += 1
            connection.close()
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.02)
    print(json.dumps([times, states]))


if __name__ == "__main__":
    probe(int(sys.argv[1]))
