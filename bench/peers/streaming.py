"""Streamed text on its whole way: from a model through the journal and the server to clients that read events.

Every token is the time at which the model said it, so whoever reads it knows how long it was under way.
`python -m bench.peers.streaming URL HOME` is the server process.
"""

import asyncio
import re
import statistics
import sys
import time
from collections.abc import AsyncGenerator

from msgspec import Struct

from bench.server import Server, percentile, serving
from holdfast import Agent, App
from holdfast.models.base import Request, StreamPart, TextDelta
from holdfast.server.serve import serve
from holdfast.testing import ScriptedModel
from tests.support.postgres import PostgresServer

PACE_S = 0.02  # 50 tokens a second
PACED_TOKENS = 250
FAST_TOKENS = {1: 20_000, 10: 5_000, 100: 1_000}
LANES = 2  # a provider has 64 calls open in a process: a hundred chats need two
STREAM_S = 300.0
_TOKEN = re.compile(rb"t(\d{10,})t")
_FRAMING = re.compile(rb"\r\n[0-9a-f]+\r\n")  # of HTTP's chunks: a large event goes in several


class Streamed(Struct, kw_only=True):
    chats: int
    tokens_a_second: float  # as fast as they come
    cpu_us: float  # of the server, for a token
    delay_p50_ms: float  # at 50 tokens a second and chat
    delay_p99_ms: float
    paced_a_second: float  # tokens that arrived, then


class Talker(ScriptedModel):
    """Says so many tokens, each the time; `lane` is a provider of its own."""

    def __init__(self, tokens: int, pace_s: float, lane: int) -> None:
        super().__init__("token " * tokens, per="turn", pace_s=pace_s)
        self._lane = lane

    @property
    def provider(self) -> str:
        return f"talker-{self._lane}"

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        async for part in super().stream(request):
            yield TextDelta(text=f"t{time.monotonic_ns()}t ") if isinstance(part, TextDelta) else part


def program(url: str, home: str) -> None:
    agents = [
        Agent(f"{kind}-{tokens}-{lane}", Talker(tokens, pace_s, lane))
        for kind, tokens, pace_s in (
            ("paced", PACED_TOKENS, PACE_S),
            *(("fast", tokens, 0.0) for tokens in FAST_TOKENS.values()),
        )
        for lane in range(LANES)
    ]
    asyncio.run(serve(App(url, agents=agents, home=home, port=0, chats_max=200, streams_per_client_max=1_000)))


def stream_all(server: PostgresServer, counts: tuple[int, ...] = tuple(FAST_TOKENS)) -> dict[str, list[Streamed]]:
    """On both stores, for each number of chats."""
    found = {}
    for name, url in (("SQLite", None), ("PostgreSQL", server.create_database())):
        with serving("bench.peers.streaming", url) as at:
            found[name] = asyncio.run(_measured(at, counts))
    return found


async def _measured(at: Server, counts: tuple[int, ...]) -> list[Streamed]:
    async with at.client:
        await _streams(at, 1, "fast", FAST_TOKENS[1])  # warms up
        return [await _of(at, chats) for chats in counts]


async def _of(at: Server, chats: int) -> Streamed:
    before = at.process.cpu_times()
    fast = await _streams(at, chats, "fast", FAST_TOKENS[chats])
    after = at.process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    paced = await _streams(at, chats, "paced", PACED_TOKENS)
    delays = [(arrived - said) / 1e6 for said, arrived in paced]
    return Streamed(
        chats=chats,
        tokens_a_second=_rate(fast),
        cpu_us=1e6 * cpu_s / len(fast),
        delay_p50_ms=statistics.median(delays),
        delay_p99_ms=percentile(delays, 99),
        paced_a_second=_rate(paced),
    )


def _rate(seen: list[tuple[int, int]]) -> float:
    """From the first word of a model to the last arrival."""
    return len(seen) / ((max(arrived for _, arrived in seen) - min(said for said, _ in seen)) / 1e9)


async def _streams(at: Server, chats: int, kind: str, tokens: int) -> list[tuple[int, int]]:
    """When each token was said, and when it arrived. All of them arrived, or this fails."""
    async with asyncio.timeout(STREAM_S):
        made = await asyncio.gather(*(at.create(f"{kind}-{tokens}-{n % LANES}", "go") for n in range(chats)))
        read = await asyncio.gather(*(_read(at, chat_id) for chat_id in made))
    missing = [len(seen) for seen in read if len(seen) != tokens]
    if missing:
        raise RuntimeError(f"streams with {missing} of {tokens} tokens")
    return [pair for seen in read for pair in seen.items()]


async def _read(at: Server, chat_id: str) -> dict[int, int]:
    """The message that is committed at the end says all of it again: a token counts when it is first seen."""
    reader, writer = await at.stream(chat_id, follow=False)
    seen: dict[int, int] = {}
    rest = b""
    try:
        while b"event: end" not in rest and (data := await reader.read(65536)):
            now = time.monotonic_ns()
            for token in _TOKEN.findall(rest := _FRAMING.sub(b"", rest[-40:] + data)):
                seen.setdefault(int(token), now)
    finally:
        writer.close()
    return seen


if __name__ == "__main__":
    program(*sys.argv[1:])
