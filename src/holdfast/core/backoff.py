"""How long to wait before the same thing is tried again: doubling, up to a longest pause."""


def doubled_s(first_s: float, longest_s: float, times: int) -> float:
    """The first pause, doubled so many times, at most the longest. Each caller takes a random share of it, so that
    a fleet does not try in step.
    """
    return min(first_s * 2.0 ** min(times, 32), longest_s)
