"""The memory of a held chat: what its model is shown, and what its calls do to it.

What is shown is decided in the database when the chat takes its first step, and read again with each turn, and where
another worker takes the chat over: it says the same then, but for what was deleted, so that the provider's cache of
the prompt stays warm.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import asdict, replace

from holdfast.agent import Memory
from holdfast.core.codec import storable
from holdfast.core.memory import Edit, Found, PassageKind, ShownMemory, shown_text
from holdfast.core.records import ChatRecord
from holdfast.errors import CallerError, NotFound, OutcomeUnknown, StoreError, ToolFailed
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.store.memory import Allowed
from holdfast.store.memory_blocks import Unfit
from holdfast.worker.history_cache import Moved

T = TypeVar("T")
VIEWED_FACTS_MAX = 50


class ChatMemory:
    """Of one held chat whose agent has a memory."""

    def __init__(self, store: Store, policy: Memory, secrets: Secrets, chat: Callable[[], ChatRecord]) -> None:
        self._store = store
        self._policy = policy
        self._secrets = secrets
        self._chat = chat
        self._entered: int | None = None  # the turn
        self._text = ""

    async def instructions(self) -> str:
        """What the model is shown of it, in every step. Raises Moved where the chat is gone."""
        chat = self._chat()
        if self._entered != chat.turn:
            try:
                snapshot = await self._store.memory.enter(chat, self._policy.facts_shown, self._policy.episodes_shown)
                shown = await self._store.memory.shown(snapshot)  # without what was deleted since the last turn
                self._text = shown_text(shown, dict(self._policy.blocks))
            except NotFound as error:
                raise Moved("the chat was deleted") from error
            self._entered = chat.turn
        return self._text

    def desk(self, call_id: str) -> "CallMemory":
        return CallMemory(self._store, self._policy, self._secrets, self._chat(), call_id)


class CallMemory:
    """What one call may do with it: see `tools/memory/desk.py`. `chat`: as it is when the call begins, so that an
    edit that cuts away what the model had read takes no taint from what the call writes.
    """

    def __init__(self, store: Store, policy: Memory, secrets: Secrets, chat: ChatRecord, call_id: str) -> None:
        self._memory = store.memory
        self._policy = policy
        self._secrets = secrets
        self._chat = chat
        self._call_id = call_id
        self._allowed = Allowed(block_chars=policy.block_chars, facts=policy.facts)

    def _clean(self, text: str) -> str:
        """No secret is remembered."""
        return self._secrets.taken_out(storable(text))

    async def view(self) -> str:
        chat = self._chat
        blocks = await self._asked(self._memory.blocks(chat.owner, chat.agent))
        facts = await self._asked(
            self._memory.page(owner=chat.owner, agent=chat.agent, kind="fact", clean=True, limit=VIEWED_FACTS_MAX)
        )
        now = ShownMemory(
            blocks=tuple((block.name, block.text) for block in blocks),
            facts=tuple((fact.id, fact.text) for fact in facts),
        )
        return shown_text(now, dict(self._policy.blocks))

    async def edit(self, block: str, edit: Edit) -> str:
        cleaned = {name: self._clean(text) for name, text in asdict(edit).items() if isinstance(text, str)}
        changed: Edit = replace(edit, **cleaned)
        try:
            return await self._asked(
                self._memory.edit_by_call(self._chat, self._call_id, block, changed, self._allowed)
            )
        except Unfit as error:
            text = error.block.text or "(empty)"
            raise ToolFailed(
                f"Not changed: {error.why}. The block is (version {error.block.version}):\n{text}"
            ) from error

    async def remember(self, text: str, replaces: str) -> str:
        return await self._asked(
            self._memory.remember_by_call(self._chat, self._call_id, self._clean(text), replaces, self._allowed)
        )

    async def forget(self, fact: str) -> str:
        return await self._asked(self._memory.forget_by_call(self._chat, self._call_id, fact))

    async def search(self, query: str, kinds: Sequence[PassageKind], *, outside: bool, limit: int) -> Found:
        chat = self._chat
        agent = chat.agent if self._policy.search == "agent" else None
        return await self._asked(
            self._memory.search(
                storable(query), owner=chat.owner, agent=agent, kinds=kinds, outside=outside, but=chat.id, limit=limit
            )
        )

    async def _asked(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except Unfit:
            raise
        except CallerError as error:
            raise ToolFailed(str(error)) from error
        except StoreError as error:
            if getattr(error, "outcome", None) == "unknown":  # asked again under its key, it finds out
                raise OutcomeUnknown(f"memory did not answer: {error}") from error
            raise ToolFailed(f"memory cannot be reached now: {error}") from error
