"""Spending that no commit of a turn tells of.

What a call took is counted even where nothing came of it: in its chat, and on the accounts that it was drawn on. A
key that is made of its reservation's id counts it once, however often that is tried.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.commands import CountSpending
from holdfast.core.records import ChatRecord
from holdfast.core.spending import Bill, SpendingKind, SpendingLine
from holdfast.errors import NotFound, RefusedError
from holdfast.ids import new_id
from holdfast.store.contract import Store
from holdfast.store.records import Key
from holdfast.store.rows import Row, spending_rows


def key_of(reservations: Sequence[str]) -> Key | None:
    """The last one names it: those before it are of attempts that are told of already."""
    return Key(principal="", key=f"spent:{reservations[-1]}", request=reservations[-1]) if reservations else None


async def count_spending(
    store: Store, chat: ChatRecord, kind: SpendingKind, bill: Bill, own: tuple[str, ...] = ()
) -> None:
    """In its chat; where that is gone, only on its accounts, of which `own` are those that its row stands for."""
    tokens, cost = sum(part.tokens for part in bill.parts), sum(part.cost for part in bill.parts)
    counted = CountSpending(kind=kind, life=chat.life, turn=chat.turn, tokens=tokens, cost=cost, bill=bill)
    try:
        await store.submit(chat.id, counted, key_of(bill.reservations))
    except (NotFound, RefusedError):
        bill = replace(bill, accounts=(*bill.accounts, *own))
        await store.budgets.enter(_lines(chat, kind, bill), bill.reservations)


def _lines(chat: ChatRecord, kind: SpendingKind, bill: Bill) -> list[Row]:
    id = bill.reservations[-1] if bill.reservations else new_id("spent")
    lines = [
        SpendingLine(
            kind=kind, model=part.model, tokens=part.tokens, cost=part.cost, day=bill.day, accounts=bill.accounts
        )
        for part in bill.parts
        if part.tokens or part.cost
    ]
    return [row for n, line in enumerate(lines) for row in spending_rows(line, chat, f"{id}.{n}")]
