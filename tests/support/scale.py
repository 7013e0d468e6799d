"""How much of something a test does: a little in `make test`, all of it in `make long`. What it does not do at all in
`make test` is marked `long`: see `tests/support/selection.py`.
"""

import os

FULL = os.environ.get("HOLDFAST_TEST_FULL") == "1"


def scaled(short: int, full: int) -> int:
    """`short` shows that it holds, `full` that it holds after so many, too."""
    return full if FULL else short
