"""Memory as a program and its people have it: `app.memory`. What a model does with it, its tool does."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.memory import Block, Found, MemoryKind, MemoryRecord, Rewrite
from holdfast.store.memory import Memories
from holdfast.store.memory_blocks import BlockVersion

if TYPE_CHECKING:
    from holdfast.app import App

PAGE = 500


class AppMemory:
    """Of every owner and agent, or of those that are named. Each verb is durable when it returns."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @property
    def _store(self) -> Memories:
        return self._app.store.memory

    # --- blocks ---------------------------------------------------------------------------------------------------

    async def blocks(
        self, *, owner: str | None = None, agent: str | None = None, after: str = "", limit: int = 100
    ) -> list[Block]:
        """As they are now, in pages: `after` is the id of the last one of the page before."""
        return await self._store.blocks(owner, agent, after=after, limit=limit)

    async def block(self, name: str, *, owner: str, agent: str) -> Block:
        """Raises NotFound."""
        return await self._store.block(owner, agent, name)

    async def versions(self, block: Block, *, before: int | None = None, limit: int = 20) -> list[BlockVersion]:
        """What the block was, newest first, and who made it so."""
        return await self._store.versions(block, before=before, limit=limit)

    async def edit_block(
        self, name: str, text: str, *, owner: str, agent: str, version: int | None = None, by: str = ""
    ) -> Block:
        """Its whole text. With the `version` that was read: only while that one stands. Raises RefusedError."""
        return await self._store.edit_block(owner, agent, name, Rewrite(text=text, version=version), by=by)

    async def remove_block(self, name: str, *, owner: str, agent: str) -> None:
        """With all its versions. Raises NotFound."""
        await self._store.remove_block(owner, agent, name)

    # --- facts, episodes, proposals -------------------------------------------------------------------------------

    async def list(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        kind: MemoryKind | None = None,
        chat_id: str | None = None,
        everything: bool = False,
        before: str | None = None,
        limit: int = 100,
    ) -> list[MemoryRecord]:
        """Newest first, in pages: `before` is the id of the last one of the page before. `everything`: also what
        newer ones replaced, and what a model forgot.
        """
        return await self._store.page(
            owner=owner, agent=agent, kind=kind, chat_id=chat_id, everything=everything, before=before, limit=limit
        )

    async def get(self, id: str) -> MemoryRecord:
        """Raises NotFound."""
        return await self._store.read(id)

    async def add(self, text: str, *, owner: str, agent: str, by: str = "") -> MemoryRecord:
        """A fact of a person's."""
        return await self._store.add_fact(owner, agent, text, by=by)

    async def edit(self, id: str, text: str, *, by: str = "") -> MemoryRecord:
        """A new fact in place of this one. Raises NotFound."""
        old = await self._store.read(id)
        return await self._store.add_fact(old.owner, old.agent, text, by=by, replaces=id)

    async def accept(self, id: str, *, by: str) -> MemoryRecord:
        """A person looked at what a chat wrote down that had read content from outside: from now on it counts like
        any other, and a proposal is applied to its block. Raises NotFound, RefusedError where it does not fit.
        """
        return await self._store.accept(id, by=by)

    async def forget(self, id: str) -> MemoryRecord:
        """It is gone, with what it had replaced. Raises NotFound."""
        return await self._store.forget(id)

    # --- search and export ----------------------------------------------------------------------------------------

    async def search(
        self, query: str, *, owner: str, agent: str | None = None, outside: bool = True, limit: int = 20
    ) -> Found:
        """Facts, episodes and what was said in past chats. `outside`: also what content from outside may speak
        through: each passage says so.
        """
        return await self._store.search(query, owner=owner, agent=agent, outside=outside, limit=limit)

    async def export(self, *, owner: str | None = None, agent: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """All of it, but for the index, which is made of chats: blocks first, then facts, episodes and proposals."""
        after = ""
        while blocks := await self.blocks(owner=owner, agent=agent, after=after, limit=PAGE):
            for block in blocks:
                yield {"kind": "block", **msgspec.to_builtins(block)}
            after = blocks[-1].id
        before: str | None = None
        while page := await self.list(owner=owner, agent=agent, everything=True, before=before, limit=PAGE):
            for record in page:
                yield msgspec.to_builtins(record)
            before = page[-1].id
