"""What those who show chats, and act on them for people and clients, ask of a store: the verbs of the contract that
name one chat, or list some. `Store` has them all; so has the store of a principal, which sees its own chats only.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.commands import Command
from holdfast.core.records import Lease, Message, Snapshot
from holdfast.store.cursor import AfterCursor
from holdfast.store.notify.bell import Bell
from holdfast.store.open_calls import OpenCallFilter, OpenCallLine, OpenCallRecord
from holdfast.store.records import (
    PAGE_BYTES,
    PAGE_ROWS,
    Answer,
    ChatFilter,
    ChatLine,
    DeleteChildren,
    HistoryRow,
    Key,
    Located,
    Page,
    StoreOptions,
)
from holdfast.store.sub_agents import SUB_AGENTS_MAX, SubAgent


class ChatStore(Protocol):
    """Each verb as `store/contract.py` tells of it."""

    @property
    def options(self) -> StoreOptions: ...

    @property
    def bell(self) -> Bell: ...

    async def submit(self, chat_id: str, command: Command, key: Key | None = None) -> Answer: ...

    async def recall(self, key: Key) -> Answer | None: ...

    async def read_chat(self, chat_id: str) -> Snapshot: ...

    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]: ...

    async def open_calls(self, chat_id: str) -> list[OpenCallRecord]: ...

    async def list_open_calls(
        self, filter: OpenCallFilter | None = None, *, before: str | None = None, limit: int = 100
    ) -> list[OpenCallLine]: ...

    async def sub_agents(
        self, chat_id: str, *, deep: bool = False, limit: int = SUB_AGENTS_MAX
    ) -> list[SubAgent]: ...

    async def read_open_call(self, chat_id: str, call_id: str) -> OpenCallRecord: ...

    async def fork_chat(
        self, chat_id: str, new_id: str, *, upto: int | None = None, owner: str | None = None, key: Key | None = None
    ) -> Answer: ...

    async def delete_chat(
        self, chat_id: str, *, children: DeleteChildren = "refuse", archived_before: int | None = None
    ) -> tuple[str, ...]: ...

    async def read_history(
        self, chat_id: str, *, start: int = 0, limit: int = 10_000, bytes_max: int | None = None
    ) -> list[HistoryRow]: ...

    async def read_file(self, chat_id: str, digest: str) -> bytes: ...

    async def whole_messages(
        self, chat_id: str, messages: Sequence[Message], *, every: bool = False
    ) -> Sequence[Message]: ...

    async def locate_message(self, chat_id: str, message_id: str) -> Located: ...

    async def read_journal(
        self, chat_id: str, after: AfterCursor = None, limit: int = PAGE_ROWS, bytes_max: int = PAGE_BYTES
    ) -> Page: ...

    async def wait_journal(
        self, chat_id: str, after: AfterCursor, deadline_s: float, poll_s: float | None = None
    ) -> Page: ...

    async def list_workers(self) -> list[Lease]: ...
