"""CPU per step in a chat of 20,000 messages against one of 200: `make bench BENCH_ARGS=long-chats`."""

import statistics
import tempfile
import time
from pathlib import Path

from bench.cycles import Seat, Stage, staged
from bench.figures import Figures

SHORT, LONG = 200, 20_000  # messages
CYCLES = 10


async def long_chats(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with staged(f"sqlite:///{Path(folder)}/bench.db") as stage:
            await cpu_by_length(figures, stage)


async def cpu_by_length(figures: Figures, stage: Stage) -> None:
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
    figures.add("sqlite: CPU per step at 20,000 messages / at 200", long_s / short_s, "×", at_most=1.2, note=note)


async def _cpu_s(seat: Seat) -> float:
    began = time.process_time()
    await seat.cycles(CYCLES)
    return (time.process_time() - began) / CYCLES
