"""What a sweep looks for, in one statement: a worker with nothing to do asks one question every few seconds, not ten.

It says where there is something to do, and not what: whoever does it looks for itself, as it always did. So a survey
that is wrong by the time it is read costs a look in vain, or one sweep. The statements are those of the parts.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.store import liveness
from holdfast.store.budgets import LOOKED_AT, SpendingSeen
from holdfast.store.liveness import SWEPT_MAX, liveness_query
from holdfast.store.rows import Row


class WalkedTo(NamedTuple):
    """How far sweeps have looked at all chats, at those that wait, and at those with a queue."""

    chats: str = ""
    waiting: str = ""
    queued: str = ""


class Survey(NamedTuple):
    leases: tuple[Row, ...] | None  # None: they are to be read
    unknown_holders: bool
    torn: bool  # among the next of all chats
    violations: bool  # among those that may be one, with the next of those that wait or have a queue
    spending: SpendingSeen
    remnants: bool
    unused_files: bool
    walked_to: WalkedTo | None  # None: this was no walk


# For a survey that could not be answered: each part is looked at by itself, so that what is wrong with one keeps no
# other from being swept.
EVERYTHING = Survey(
    leases=None,
    unknown_holders=True,
    torn=True,
    violations=True,
    spending=SpendingSeen(lines=True, orphans=True, limited=True),
    remnants=True,
    unused_files=True,
    walked_to=None,
)

_SURVEY = """
WITH next_torn AS MATERIALIZED ({next_torn}),
    next_waiting AS MATERIALIZED ({next_waiting}),
    next_queued AS MATERIALIZED ({next_queued})
SELECT ({leases}), EXISTS ({unknown_holders}), EXISTS (SELECT 1 FROM next_torn WHERE ahead), EXISTS ({violations}),
    {spending}, EXISTS (SELECT 1 FROM remnants), EXISTS (SELECT 1 FROM unused_files),
    (SELECT count(*) FROM next_torn), (SELECT max(id) FROM next_torn),
    (SELECT count(*) FROM next_waiting), (SELECT max(id) FROM next_waiting),
    (SELECT count(*) FROM next_queued), (SELECT max(chat_id) FROM next_queued)
"""


def survey_statement(named: Callable[[str], str], *, leases: str, unknown_holders: str) -> str:
    """`leases` is a statement for a JSON array of the rows of all workers."""
    return _SURVEY.format(
        next_torn=liveness.NEXT_TORN.format(after=named("chats"), limit=SWEPT_MAX),
        next_waiting=liveness.NEXT_WAITING.format(after=named("waiting"), limit=SWEPT_MAX),
        next_queued=liveness.NEXT_QUEUED.format(after=named("queued"), limit=SWEPT_MAX),
        leases=leases,
        unknown_holders=unknown_holders,
        violations=liveness_query(waiting="SELECT id FROM next_waiting", queued="SELECT chat_id FROM next_queued"),
        spending=LOOKED_AT.replace("{before}", named("before")),
    )


def survey_values(upto: WalkedTo, folded_before: int) -> Mapping[str, Any]:
    return {**upto._asdict(), "before": folded_before}


_rows = msgspec.json.Decoder(tuple[tuple[Any, ...], ...]).decode


def survey_of(row: Row) -> Survey:
    leases, unknown, torn, violations, lines, orphans, limited, remnants, unused, *walks = row
    ends = [last if count == SWEPT_MAX else "" for count, last in zip(walks[::2], walks[1::2], strict=True)]
    return Survey(
        leases=_rows(leases),
        unknown_holders=bool(unknown),
        torn=bool(torn),
        violations=bool(violations),
        spending=SpendingSeen(lines=bool(lines), orphans=bool(orphans), limited=bool(limited)),
        remnants=bool(remnants),
        unused_files=bool(unused),
        walked_to=WalkedTo(*ends),
    )
