"""What the ledger of a run says: how long cycles took, how many there were a second, what was done twice."""

import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    kind: str  # model, tool
    chat: str
    cycle: int
    at_ns: int
    pid: int


def entries(path: Path) -> list[Entry]:
    """Of whole lines: a process that is killed may leave the beginning of one."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [_entry(line) for line in whole.splitlines()]


def _entry(line: str) -> Entry:
    kind, chat, cycle, at_ns, pid = line.split()
    return Entry(kind, chat, int(cycle), int(at_ns), int(pid))


def cycle_ms(lines: list[Entry]) -> list[float]:
    """Of one chat: from each call of the tool to the next."""
    times = [line.at_ns for line in lines if line.kind == "tool"]
    return [(after - before) / 1e6 for before, after in pairwise(times)]


def mean_ms(lines: list[Entry]) -> float:
    took = cycle_ms(lines)
    return sum(took) / len(took)


def ages_ms(lines: list[Entry], how_many: int = 50) -> tuple[float, float]:
    """The median of the first cycles and of the last."""
    took = cycle_ms(lines)
    return statistics.median(took[:how_many]), statistics.median(took[-how_many:])


def rate(lines: list[Entry]) -> float:
    """Cycles a second, of all chats together, from the first call to the last."""
    times = sorted(line.at_ns for line in lines if line.kind == "tool")
    return (len(times) - 1) / ((times[-1] - times[0]) / 1e9)


def done_twice(lines: list[Entry]) -> tuple[int, int]:
    """Responses that were asked for again, and calls that ran again."""
    counts = Counter((line.kind, line.chat, line.cycle) for line in lines)
    again = Counter[str]()
    for (kind, _, _), count in counts.items():
        again[kind] += count - 1
    return again["model"], again["tool"]
