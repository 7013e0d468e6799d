"""What the tool `memory` asks of the worker: the memory of one chat's agent and owner, as one call may use it."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.memory import Edit, Found, PassageKind


class MemoryDesk(Protocol):
    """Each write is durable when it returns, and happens once for its call. All raise ToolFailed, in words that the
    model can act on.
    """

    async def view(self) -> str: ...

    async def edit(self, block: str, edit: Edit) -> str: ...

    async def remember(self, text: str, replaces: str) -> str: ...

    async def forget(self, fact: str) -> str: ...

    async def search(self, query: str, kinds: Sequence[PassageKind], *, outside: bool, limit: int) -> Found: ...
