"""How long to wait before the same thing is tried again."""

from collections.abc import Iterator

from holdfast.system.clock import dice

FIRST_S = 0.02
LONGEST_S = 1.0


def pauses() -> Iterator[float]:
    """Without end: short at first, doubling to a second; each with jitter, so that a fleet does not try in step."""
    longest = FIRST_S
    while True:
        yield dice.uniform(longest / 2, longest)
        longest = min(longest * 2, LONGEST_S)
