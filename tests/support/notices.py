"""Endpoints and what was told to them, behind the store's back."""

import json
from typing import Any

from holdfast.core.notices import Notice
from holdfast.store.contract import Store
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.transactions import Transaction
from holdfast.store.sqlite.store import SqliteStore
from tests.support.behind import sql

_HOOK = """
INSERT INTO webhooks (id, owner, name, url, kinds, links, state, secret, source, created_at, created_by)
VALUES (?, ?, ?, 'https://example.com/', ?, ?, ?, 'whsec_', 'made', 0, '')
"""


def hook(url: str, id: str, *, owner: str | None = None, kinds: tuple[str, ...] = (), state: str = "active") -> None:
    """One more endpoint. `owner` None: it hears of everybody's chats."""
    chosen = f" {' '.join(kinds)} " if kinds else ""
    sql(url, _HOOK, (id, owner, id, chosen, False, state))


def told(url: str, hook_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, kind, data) of what an endpoint was told, in order."""
    statement = "SELECT notice_id, kind, data FROM deliveries WHERE webhook_id = ? ORDER BY notice_id"
    return [(id, kind, json.loads(data)) for id, kind, data in sql(url, statement, (hook_id,))]


def kinds_told(url: str, hook_id: str) -> list[str]:
    return [kind for _, kind, _ in told(url, hook_id)]


async def tell(store: Store, *notices: Notice) -> None:
    """In a transaction of its own."""

    async def work(transaction: Transaction) -> None:
        await transaction.begin()
        await transaction.notice(*notices)
        await transaction.commit()

    if isinstance(store, SqliteStore):
        await store._transactor.write(lambda transaction: transaction.notice(*notices))
    else:
        assert isinstance(store, PostgresStore)
        await store._transactor.write(work)
