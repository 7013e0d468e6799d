"""The keys that sign links to approvals: shared by the fleet, made when the first link is, and never shown.

The newest signs, and a link counts as long as its key is there. Nothing is remembered between two looks, so what one
process revokes, no process takes.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.approval_links import KEY_BYTES
from holdfast.ids import new_id
from holdfast.store.statements import StatementRunner, marked


class LinkKey(NamedTuple):
    id: str
    key: bytes


class LinkKeyStatements(NamedTuple):
    """The statements on these keys, with one store's marks."""

    newest: str
    read: str
    first: str
    revoke: str


def link_key_statements(mark: str) -> LinkKeyStatements:
    """`mark` is where a value goes. Two that make the first at once make two: both count."""
    return LinkKeyStatements(
        newest="SELECT id, secret FROM link_keys ORDER BY id DESC LIMIT 1",
        read=marked("SELECT id, secret FROM link_keys WHERE id = {}", mark),
        first=marked(
            "INSERT INTO link_keys (id, secret, made_at) SELECT {}, {}, {} "
            "WHERE NOT EXISTS (SELECT 1 FROM link_keys) ON CONFLICT DO NOTHING",
            mark,
        ),
        revoke="DELETE FROM link_keys RETURNING id",
    )


class LinkKeys:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StatementRunner, statements: LinkKeyStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms

    async def newest(self) -> LinkKey:
        """It is made where there is none."""
        found = await self._runner.rows(self._sql.newest)
        if not found:
            values = (new_id("key"), os.urandom(KEY_BYTES).hex(), self._now_ms())
            await self._runner.write_alone(self._sql.first, *values)
            found = await self._runner.rows(self._sql.newest)
        id, secret = found[0]
        return LinkKey(id, bytes.fromhex(secret))

    async def read(self, key_id: str) -> LinkKey | None:
        found = await self._runner.rows(self._sql.read, key_id)
        return LinkKey(found[0][0], bytes.fromhex(found[0][1])) if found else None

    async def revoke_all(self) -> int:
        """No link that was made by now counts any more. Returns how many keys that were."""
        return len(await self._runner.forget(self._sql.revoke))
