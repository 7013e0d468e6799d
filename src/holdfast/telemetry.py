"""What is measured while it happens: durations, and counts by label. Spans are made in `turn_spans.py`."""

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OLDER = 0.9  # how much the moving average keeps of what it was


class Durations:
    """Of one kind of operation: how many, how long of late, how long at most. For /health; costs a few additions."""

    __slots__ = ("average_ms", "count", "failed", "longest_ms")

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self.average_ms: float | None = None
        self.longest_ms = 0.0

    def add(self, seconds: float) -> None:
        ms = seconds * 1000
        self.count += 1
        self.average_ms = ms if self.average_ms is None else _OLDER * self.average_ms + (1 - _OLDER) * ms
        self.longest_ms = max(self.longest_ms, ms)

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed += 1
            raise
        finally:
            self.add(time.perf_counter() - began)


LABELS_MAX = 200  # sets of labels of one tally: a monitor pays for each of them
OTHER = "other"


class Tally:
    """Counts by labels, of which there are at most so many sets: what comes after them counts as `other`."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        self.counts: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1.0) -> None:
        if values not in self.counts and len(self.counts) >= LABELS_MAX:
            values = (OTHER,) * len(self.labels)
        self.counts[values] = self.counts.get(values, 0.0) + by

    def told(self) -> dict[str, Any]:
        """From any thread."""
        return {
            "labels": list(self.labels),
            "counts": [[*values, count] for values, count in list(self.counts.items())],
        }


class Distribution:
    """How long things took, by labels: how many within each bound, and their sum."""

    def __init__(self, bounds_s: tuple[float, ...], *labels: str) -> None:
        self.bounds_s = bounds_s
        self.labels = labels
        self._rows: dict[tuple[str, ...], list[float]] = {}  # one count per bound, one for what is longer, the sum

    def add(self, seconds: float, *values: str) -> None:
        if values not in self._rows and len(self._rows) >= LABELS_MAX:
            values = (OTHER,) * len(self.labels)
        row = self._rows.setdefault(values, [0.0] * (len(self.bounds_s) + 2))
        row[bisect_left(self.bounds_s, seconds)] += 1
        row[-1] += seconds

    def told(self) -> dict[str, Any]:
        """From any thread."""
        rows = [[*values, *row] for values, row in list(self._rows.items())]
        return {"labels": list(self.labels), "bounds_s": list(self.bounds_s), "rows": rows}
