"""Notices on their way out: each is a delivery for every endpoint that hears of it, in its writer's transaction.

So there is no moment between an event and its deliveries, and no service that makes one of the other. Which endpoints
there are is read by the same statement: an endpoint that was made before the commit gets it, and where there is none
nothing is written. A commit that is repeated is answered as done and tells nothing again, so that one event never has
two ids.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.core.notices import Notice
from holdfast.ids import new_id
from holdfast.store.rows import Row

NOTICE_COLUMNS: tuple[str, ...] = ("notice_id", "kind", "owner", "chat_id", "turn", "life", "at", "data")

# `ping` is for one endpoint, and is not told through here.
HEARS = (
    "hook.state = 'active' AND (hook.owner IS NULL OR hook.owner = given.owner) "
    "AND (hook.kinds = '' OR hook.kinds LIKE '% ' || given.kind || ' %')"
)
INTO_DELIVERIES = f"INSERT INTO deliveries (webhook_id, {', '.join(NOTICE_COLUMNS)}, next_at) "
FOR_EACH_HOOK = f"SELECT hook.id, {', '.join(f'given.{name}' for name in NOTICE_COLUMNS)}, given.at"


def with_id(notice: Notice) -> Notice:
    return notice if notice.id else replace(notice, id=new_id("evt"))


def notice_row(notice: Notice) -> Row:
    """In the order of NOTICE_COLUMNS."""
    values: tuple[Any, ...] = (notice.id, notice.kind, notice.owner, notice.chat_id, notice.turn, notice.life)
    return (*values, notice.at, bytes(notice.data).decode())


def notice_rows(notices: Iterable[Notice]) -> list[Row]:
    return [notice_row(with_id(notice)) for notice in notices]
