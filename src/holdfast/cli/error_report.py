"""How a command tells of the error that ended it: once, in one line; its causes for who asks for them.

`--verbose` adds the chain of causes on standard error; `--json` puts all of it on standard output as one more line.
"""

import sys

import msgspec

from holdfast.cli.logs import without_secrets
from holdfast.cli.options import WISHES
from holdfast.errors import HoldfastError
from holdfast.safe_text import safe, safe_json

CAUSES_MAX = 20
CAUSE_CHARS_MAX = 2_000


def report(error: HoldfastError, exit: int) -> None:
    chain = causes_of(error)
    print(f"holdfast: {safe(str(error))}", file=sys.stderr)
    if WISHES.verbose:
        for cause in chain:
            print(f"holdfast:   because of {safe(cause)}", file=sys.stderr)
    if WISHES.json:
        told = {"code": error.code, "message": str(error), "chain": chain}
        line = safe_json(msgspec.json.encode({"kind": "error", "exit": exit, "error": told}))
        sys.stdout.write(line.decode() + "\n")
        sys.stdout.flush()


def causes_of(error: BaseException) -> list[str]:
    """What led to it, nearest first, without secrets: what a library says may hold an address with its password."""
    found: list[str] = []
    below = _below(error)
    while below is not None and len(found) < CAUSES_MAX:
        text = without_secrets(f"{type(below).__name__}: {below}"[:CAUSE_CHARS_MAX])
        found.append(" ".join(text.split()))
        below = _below(below)
    return found


def _below(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
