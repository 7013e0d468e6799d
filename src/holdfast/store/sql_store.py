"""The verbs of a store that are one statement each. The contract tells of them; the two stores differ in the SQL."""

from typing import Any

from holdfast.core.records import ChatRecord, Compaction
from holdfast.errors import NotFound
from holdfast.store.checks import page_size
from holdfast.store.contract import Store
from holdfast.store.open_calls import (
    ALL_OPEN_CALLS,
    OPEN_CALLS_MAX,
    AskedCall,
    OpenCallFilter,
    OpenCallLine,
    asked_of,
    open_call_line,
    place_of,
)
from holdfast.store.records import ALL_CHATS, ChatFilter, ChatLine, ChildCounts, DeltaRow, Located, Ownership
from holdfast.store.retention import Cutoffs
from holdfast.store.rows import chat_line, compaction_of, delta_row, located_of
from holdfast.store.statements import StatementRunner, Statements
from holdfast.store.sub_agents import ChildRow, child_row


class SqlStore(Store):
    _sql: Statements
    _transactor: StatementRunner

    # --- chats ------------------------------------------------------------------------------------------------

    async def read_owner(self, chat_id: str) -> Ownership | None:
        found = await self._transactor.rows(self._sql.READ_OWNER, chat_id)
        return Ownership(*found[0]) if found else None

    async def _marks(self, chat_id: str) -> tuple[int, int] | None:
        found = await self._transactor.rows(self._sql.READ_MARKS, chat_id)
        return (found[0][0], found[0][1]) if found else None

    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        wanted = filter or ALL_CHATS
        values = wanted.values() | {"before": before, "limit": page_size(limit)}
        found = await self._transactor.scan(self._sql.list_chats(*wanted.given(before)), wanted.lane, **values)
        return [chat_line(row) for row in found]

    async def list_open_calls(
        self, filter: OpenCallFilter | None = None, *, before: str | None = None, limit: int = 100
    ) -> list[OpenCallLine]:
        wanted = filter or ALL_OPEN_CALLS
        values = {"kind": wanted.kind, "owner": wanted.owner, "below": wanted.below}
        values = {name: value for name, value in values.items() if value is not None}
        given: dict[str, Any] = {**values, "limit": page_size(limit)}
        if before is not None:
            given["chat"], given["pos"] = place_of(before)
        found = await self._transactor.scan(self._sql.list_open_calls(frozenset(given)), "lists", **given)
        return [open_call_line(row) for row in found]

    async def _asked(self, chat_id: str) -> list[AskedCall]:
        return [asked_of(row) for row in await self._transactor.rows(self._sql.OPEN_CALLS, chat_id, OPEN_CALLS_MAX)]

    async def _response(self, chat_id: str, seq: int) -> bytes | None:
        found = await self._transactor.rows(self._sql.READ_ENTRY, chat_id, seq)
        return found[0][0].encode() if found else None

    async def count_children(self, chat: ChatRecord) -> ChildCounts:
        values = {"chat": chat.id, "root": chat.root_id or chat.id, "turn": chat.turn}
        found = await self._transactor.named_rows(self._sql.COUNT_CHILDREN, **values)
        return ChildCounts(*found[0])

    async def _sub_agents(self, chat_id: str, limit: int, *, deep: bool) -> list[ChildRow]:
        values = {"chat": chat_id, "deep": deep, "limit": limit}
        return [child_row(row) for row in await self._transactor.scan(self._sql.SUB_AGENTS, "lists", **values)]

    # --- history and journal ------------------------------------------------------------------------------------

    async def read_compaction(self, chat_id: str) -> Compaction | None:
        found = await self._transactor.named_rows(self._sql.READ_COMPACTION, id=chat_id)
        return compaction_of(found[0]) if found else None

    async def read_compactions(self, chat_id: str, *, start: int, end: int, limit: int = 100) -> list[Compaction]:
        values = {"id": chat_id, "start": start, "end": end, "limit": limit}
        found = await self._transactor.named_rows(self._sql.READ_COMPACTIONS, **values)
        return [compaction_of(row) for row in reversed(found)]

    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        found = await self._transactor.rows(self._sql.LOCATE_MESSAGE, chat_id, message_id)
        if not found:
            raise NotFound("message", message_id)
        return located_of(found[0])

    async def read_deltas(self, chat_id: str, attempt: int) -> list[DeltaRow]:
        found = await self._transactor.named_rows(self._sql.READ_DELTAS, id=chat_id, attempt=attempt)
        return [delta_row(row) for row in found]

    # --- upkeep ---------------------------------------------------------------------------------------------------

    async def next_with_leftovers(self, cutoffs: Cutoffs, after: str) -> list[tuple[str, bool]]:
        values = {"attempts": cutoffs.attempts, "calls": cutoffs.calls, "compactions": cutoffs.compactions}
        found = await self._transactor.scan(self._sql.NEXT_WITH_LEFTOVERS, "lists", after=after, **values)
        return [(id, bool(has_some)) for id, has_some in found]

    async def next_expired(self, before: int, after: str) -> list[tuple[str, int]]:
        found = await self._transactor.scan(self._sql.NEXT_EXPIRED, "lists", after=after, before=before)
        return [(id, family) for id, family in found]

    async def _note(self, key: str, value: int) -> None:
        await self._transactor.write_alone(self._sql.PUT_NOTE, key, value)

    async def _read_notes(self) -> dict[str, int]:
        return dict(await self._transactor.rows(self._sql.READ_NOTES))

    async def prove_writing(self) -> None:
        await self._transactor.write_alone(self._sql.PROVE_WRITING)
