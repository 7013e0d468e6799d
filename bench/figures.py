"""Timing, and the figures that come of it."""

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

Async = Callable[[], Awaitable[object]]


def keep_on_disk() -> None:
    """Databases of a bench are on a disk: tests keep theirs in memory where there is enough of it. What is in this
    folder outlives a restart of the machine, so it is on one.
    """
    os.environ.setdefault("TMPDIR", "/var/tmp")


class Figures:
    """Collects figures with their aims, prints them as they come, and writes them where BENCH_OUT says."""

    def __init__(self) -> None:
        self._figures: list[dict[str, object]] = []

    def add(self, name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None,
            note: str = "") -> None:  # fmt: skip
        aim = f"≤ {at_most:g}" if at_most is not None else f"≥ {at_least:g}" if at_least is not None else ""
        met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
        verdict = "" if not aim else ("met" if met else "MISSED")
        print(f"  {name:<66} {value:>10.3f} {unit:<10} {aim:<8} {verdict:<7} {note}", flush=True)
        self._figures.append({"name": name, "value": value, "unit": unit, "aim": aim, "met": met, "note": note})

    def write(self) -> None:
        if out := os.environ.get("BENCH_OUT"):
            Path(out).write_text(json.dumps({"figures": self._figures}, indent=2, ensure_ascii=False) + "\n")
            print(f"\nwritten to {out}")


async def interleaved(rounds: int, **variants: Async) -> dict[str, float]:
    """Median seconds of each, measured in turns so that a noisy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            began = time.perf_counter()
            await run()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


async def rate(lanes: list[Async], each: int) -> float:
    """How many times a second, all lanes together."""

    async def lane(run: Async) -> None:
        for _ in range(each):
            await run()

    began = time.perf_counter()
    await asyncio.gather(*(lane(run) for run in lanes))
    return len(lanes) * each / (time.perf_counter() - began)
