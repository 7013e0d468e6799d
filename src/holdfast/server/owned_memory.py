"""What a principal sees of memory: that of its owner. What is another owner's is not there."""

from holdfast.core.memory import Block, Found, MemoryKind, MemoryRecord
from holdfast.errors import InvalidInput, NotFound
from holdfast.memory import AppMemory
from holdfast.principals import Principal
from holdfast.server.owned_store import OwnedStore, need_no_limit


class OwnedMemory:
    """For one request. A token for one chat has none."""

    def __init__(self, memory: AppMemory, store: OwnedStore, principal: Principal) -> None:
        need_no_limit(principal, "it has no memory")
        self._memory = memory
        self._store = store
        self._principal = principal

    def _whose(self, owner: str | None) -> str:
        """Of what belongs to one owner. Raises InvalidInput where a token of no owner names none."""
        whose = self._store.owner_for(owner)
        if whose is None:
            raise InvalidInput("owner", "is missing: say whose memory; empty is that of chats that nobody owns")
        return whose

    async def blocks(self, owner: str | None, agent: str | None, *, after: str, limit: int) -> list[Block]:
        return await self._memory.blocks(owner=self._store.owner_for(owner), agent=agent, after=after, limit=limit)

    async def edit_block(self, name: str, text: str, *, owner: str | None, agent: str, version: int | None) -> Block:
        by, whose = self._principal.name, self._whose(owner)
        return await self._memory.edit_block(name, text, owner=whose, agent=agent, version=version, by=by)

    async def remove_block(self, name: str, *, owner: str | None, agent: str) -> None:
        await self._memory.remove_block(name, owner=self._whose(owner), agent=agent)

    async def list(
        self,
        *,
        owner: str | None,
        agent: str | None,
        kind: MemoryKind | None,
        chat_id: str | None,
        everything: bool,
        before: str | None,
        limit: int,
    ) -> list[MemoryRecord]:
        return await self._memory.list(
            owner=self._store.owner_for(owner),
            agent=agent,
            kind=kind,
            chat_id=chat_id,
            everything=everything,
            before=before,
            limit=limit,
        )

    async def get(self, id: str) -> MemoryRecord:
        """Raises NotFound, also for one of another owner, as all of these."""
        found = await self._memory.get(id)
        if self._principal.owner is not None and found.owner != self._principal.owner:
            raise NotFound("memory", id)
        return found

    async def add(self, text: str, *, owner: str | None, agent: str) -> MemoryRecord:
        return await self._memory.add(text, owner=self._whose(owner), agent=agent, by=self._principal.name)

    async def edit(self, id: str, text: str) -> MemoryRecord:
        await self.get(id)
        return await self._memory.edit(id, text, by=self._principal.name)

    async def accept(self, id: str) -> MemoryRecord:
        await self.get(id)
        return await self._memory.accept(id, by=self._principal.name)

    async def forget(self, id: str) -> MemoryRecord:
        await self.get(id)
        return await self._memory.forget(id)

    async def search(self, query: str, *, owner: str | None, agent: str | None, outside: bool, limit: int) -> Found:
        return await self._memory.search(query, owner=self._whose(owner), agent=agent, outside=outside, limit=limit)
