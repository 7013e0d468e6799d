"""CPU per step in a chat of 20,000 messages against one of 200: `make bench BENCH_ARGS=long-chats`.

What is compared: all that this process does for a step beside sending the history. The model is scripted, so that
nothing is encoded and sent; the agent has a limit that is never reached, so that every request is counted. What a
wire has to encode and send grows with what the model is shown, which compaction bounds: a figure of its own.
"""

import statistics
import tempfile
import time
from pathlib import Path

from bench.cycles import Seat, Stage, staged
from bench.figures import Figures
from holdfast.core.records import Message, Role, Text, ToolCall, ToolResult
from holdfast.models.base import Request
from holdfast.models.wires.openai_chat import OpenAIChatFragments, encode_request
from tests.support.postgres import PostgresServer

SHORT, LONG = 200, 20_000  # messages
CYCLES = 10
ENDLESS = 1_000_000_000  # tokens


async def long_chats(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with staged(f"sqlite:///{Path(folder)}/bench.db", ENDLESS) as stage:
            await cpu_by_length(figures, stage, "sqlite")
    with PostgresServer() as server:
        async with staged(server.create_database(), ENDLESS) as stage:
            await cpu_by_length(figures, stage, "postgres")
    cpu_to_send(figures)


async def cpu_by_length(figures: Figures, stage: Stage, name: str) -> None:
    """CPU of the whole process, in turns, while nothing else happens in it."""
    (long,) = await stage.chats(1)
    await long.cycles(LONG // 2)
    times: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(20):
        (short,) = await stage.chats(1)
        await short.cycles(SHORT // 2)
        for kind, seat in (("short", short), ("long", long)):
            times[kind].append(await _cpu_s(seat))
    short_s, long_s = statistics.median(times["short"]), statistics.median(times["long"])
    note = f"{short_s * 1e3:.2f} → {long_s * 1e3:.2f} ms"
    figures.add(f"{name}: CPU per step at 20,000 messages / at 200", long_s / short_s, "×", at_most=1.2, note=note)


async def _cpu_s(seat: Seat) -> float:
    began = time.process_time()
    await seat.cycles(CYCLES)
    return (time.process_time() - began) / CYCLES


def cpu_to_send(figures: Figures) -> None:
    """What the next step of a chat has to send, whose messages were encoded for the steps before."""
    known = OpenAIChatFragments()
    for length in (SHORT, LONG):
        messages = [message for n in range(length // 2) for message in _step(n)]
        times = []
        for _ in range(15):
            began = time.process_time()
            sent = encode_request("model", Request(messages=messages), known=known)
            times.append(time.process_time() - began)
        note = f"{len(sent) / 1e6:.1f} MB"
        figures.add(f"chat completions: body of {length:,} messages", statistics.median(times) * 1e3, "ms", note=note)


def _step(n: int) -> tuple[Message, Message]:
    call = ToolCall(call_id=f"call_{n}", name="weather", arguments='{"city":"Bern"}')
    result = ToolResult(call_id=call.call_id, name="weather", content="It is 14 degrees and raining in Bern.")
    says = Message(id=f"a_{n}", role=Role.ASSISTANT, parts=(Text(text="I will look that up."), call))
    return says, Message(id=f"t_{n}", role=Role.TOOL, parts=(result,))
