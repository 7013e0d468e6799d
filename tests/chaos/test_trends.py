"""The rule of a soak: it finds what grows, and nothing else."""

import random

import pytest

from bench.trends import trend

TIMES = [float(second) for second in range(600)]
_dice = random.Random(1)
NOISE = [_dice.gauss(0, 5) for _ in TIMES]


@pytest.mark.parametrize("per_minute", [1.5, 15.0, 150.0])
def test_a_leak_is_found(per_minute: float) -> None:
    found = trend(TIMES, [100 + NOISE[n] + per_minute * at / 60 for n, at in enumerate(TIMES)], allowance=1)
    assert not found.flat
    assert found.growth == pytest.approx(per_minute * 5, rel=0.3)


@pytest.mark.parametrize(
    "values",
    [
        [100.0] * 600,
        [100 + noise for noise in NOISE],
        [min(100.0, at) for at in TIMES],  # it warmed up
        [100 + at % 37 for at in TIMES],  # as a file that grows and starts over
        [100.0 + 10_000 * (at % 97 == 0) for at in TIMES],  # a few odd ones
        [200 - at / 6 for at in TIMES],
    ],
    ids=["flat", "noise", "warm-up", "sawtooth", "odd ones", "falling"],
)
def test_what_does_not_grow_is_not_found(values: list[float]) -> None:
    assert trend(TIMES, values, allowance=1).flat


def test_the_allowance_is_for_figures_that_are_small() -> None:
    one_more = [3.0 + (at > 500) for at in TIMES]
    assert trend(TIMES, one_more, allowance=1).flat
    assert not trend(TIMES, [3.0 + at / 200 for at in TIMES], allowance=1).flat
