"""Whether a figure grows, by a rule that can be said in a sentence.

Of the second half of the samples (the first is for warming up), the slope is taken as the median of the slopes
between all pairs of them (Theil and Sen), which a few odd samples do not move. What that slope adds up to over the
half must not exceed the greater of 5 % of the half's median and a small allowance of the figure's own.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

SHARE = 0.05
POINTS_MAX = 400  # pairs go with the square


class Trend(NamedTuple):
    growth: float  # over the second half
    bound: float
    median: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.bound


def trend(times: Sequence[float], values: Sequence[float], allowance: float) -> Trend:
    half = len(times) // 2
    stride = max(1, (len(times) - half) // POINTS_MAX)
    points = list(zip(times[half::stride], values[half::stride], strict=True))
    slopes = [
        (late - early) / (then - now)
        for n, (now, early) in enumerate(points)
        for then, late in points[n + 1 :]
        if then > now
    ]
    median = statistics.median(value for _, value in points)
    growth = (statistics.median(slopes) if slopes else 0.0) * (points[-1][0] - points[0][0])
    return Trend(growth, max(SHARE * median, allowance), median)
