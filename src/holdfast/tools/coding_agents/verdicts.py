"""What a run of a coding program came to, as a table of pure data; and what of its figures is new.

The last event says whether it succeeded. An exit code alone decides nothing: these programs end with 0 when a signal
ends them, with 1 after a success that they call an error, and hang after their result until somebody ends them.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from holdfast.core.records import Frozen


class Verdict(StrEnum):
    SUCCESS = "success"
    PLACEHOLDER = "success, with nothing said"  # its work is in the folder: words of ours stand for its own
    ERROR = "error"
    LOST = "lost result"  # it began, and what came of it is not known
    CANCELLED = "cancelled"


# How the process ended: by itself with 0, by itself with something else, or by a signal; `cut` is one of ours, after
# its result or in place of it.
Exit = Literal["clean", "code", "signal", "cut"]


class Ending(Frozen):
    """What is known of a run when its process is gone."""

    began: bool  # it said anything that we understand
    last: bool  # its last event is there
    flagged: bool  # which says that it is an error
    said: bool  # it has an answer
    figures: bool  # it told tokens or cost
    exit: Exit


class Row(Struct, frozen=True):
    """Of an ending, what has to be so; None is anything."""

    verdict: Verdict
    why: str
    began: bool | None = None
    last: bool | None = None
    flagged: bool | None = None
    said: bool | None = None
    figures: bool | None = None
    exits: tuple[Exit, ...] = ("clean", "code", "signal", "cut")

    def takes(self, ending: Ending) -> bool:
        asked = (
            (self.began, ending.began),
            (self.last, ending.last),
            (self.flagged, ending.flagged),
            (self.said, ending.said),
            (self.figures, ending.figures),
        )
        return ending.exit in self.exits and all(want in (None, have) for want, have in asked)


# The first row that takes it decides. The last row takes everything.
TABLE = (
    Row(Verdict.ERROR, "its last event says so", last=True, flagged=True),
    Row(Verdict.SUCCESS, "its last event has an answer, whatever became of the process then", last=True, said=True),
    Row(Verdict.ERROR, "nothing said, and it ended with an error code", last=True, said=False, exits=("code",)),
    Row(Verdict.PLACEHOLDER, "nothing said, and paid for", last=True, said=False, figures=True),
    Row(Verdict.LOST, "an empty last event, without figures", last=True),
    Row(Verdict.CANCELLED, "we ended it before its last event", exits=("cut",)),
    Row(Verdict.ERROR, "it never began, and ended with an error code", began=False, exits=("code",)),
    Row(Verdict.LOST, "no last event: what it did is not known"),
)


def verdict_of(ending: Ending) -> Row:
    return next(row for row in TABLE if row.takes(ending))


# --- figures --------------------------------------------------------------------------------------------


class Figures(Frozen):
    """What a program tells of a session, or of a run; None: it does not say. `run_tokens`: beside them, of this run
    alone, where it tells both.
    """

    tokens: int | None = None
    cost: float | None = None
    run_tokens: int | None = None

    @property
    def known(self) -> bool:
        return bool(self.tokens or self.cost)

    def after(self, now: "Figures") -> "Figures":
        """The session's last ones: what it does not tell now is as it was told before."""
        tokens = self.tokens if now.tokens is None else now.tokens
        return Figures(tokens=tokens, cost=self.cost if now.cost is None else now.cost)


Counted = Literal["session", "run"]


ROUNDING = 1e-9  # of a sum of costs, which the program may add up in another order


def spent(before: Figures, now: Figures, counted: Counted) -> tuple[int, float]:
    """Tokens and cost of this run. `before` are the session's last figures.

    Where figures are the session's, they are this run's and what was there before. Some programs carry them over only
    if nothing else ran in the folder meanwhile: then they are smaller than both together, and this run's alone.
    """
    tokens, cost = now.tokens or 0, now.cost or 0.0
    if counted == "run":
        return tokens, cost
    held, paid = before.tokens or 0, before.cost or 0.0
    fewer = now.tokens is not None and tokens < held + (now.run_tokens or 0)
    if fewer or (now.cost is not None and cost < paid - ROUNDING):
        return tokens, cost
    return (tokens - held if now.tokens is not None else 0), max(0.0, cost - paid)
