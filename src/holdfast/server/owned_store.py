"""What a principal sees of the store: its own chats. Everything that a route does to a chat goes through here: the
one place that knows whose chat is whose.

A chat of another owner is not there: it is told of in the same words as an id that never was. What an owner may do
depends on its scopes in two cases beside those of the routes: who answers for a person needs `approve`, and
tracebacks are for `operate`, in streams as in exports.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.journal import FOR_OPERATORS
from holdfast.core.records import Compaction, Lease, Message, Snapshot
from holdfast.errors import Forbidden, NotFound
from holdfast.principals import Principal, Scope
from holdfast.server.audit import Answered, tell_answered
from holdfast.store.contract import Store
from holdfast.store.cursor import AfterCursor
from holdfast.store.notify.bell import Bell
from holdfast.store.open_calls import ALL_OPEN_CALLS, OpenCallFilter, OpenCallLine, OpenCallRecord
from holdfast.store.records import (
    ALL_CHATS,
    PAGE_BYTES,
    PAGE_ROWS,
    Answer,
    ChatFilter,
    ChatLine,
    DeleteChildren,
    HistoryRow,
    Key,
    Located,
    Ownership,
    Page,
    StoreOptions,
)
from holdfast.store.sub_agents import SUB_AGENTS_MAX, SubAgent
from holdfast.store.transfers import Export

_ANSWERS: dict[type[cmd.Command], Answered] = {
    cmd.Approve: "audit.approved",
    cmd.Deny: "audit.denied",
    cmd.Submit: "audit.answered",
}
DEEPEST = 64  # generations between a chat and the one that a principal is limited to


def need(principal: Principal, scope: Scope) -> None:
    """Raises Forbidden, which names the scope."""
    if not principal.allows(scope):
        raise Forbidden(f"this needs a token with the scope {scope!r}", scope=scope)


def need_no_limit(principal: Principal, why: str = "it makes no other ones") -> None:
    """For what is not in one chat. Raises Forbidden."""
    if principal.chat is not None:
        raise Forbidden(f"this token is for one chat alone: {why}")


class OwnedStore:
    """A `ChatStore` for one request. Whose a chat is it asks each time, and remembers for no moment: a request that
    waits, for its chat or for a client that takes nothing, may find it deleted, and its id another owner's by then.
    """

    def __init__(self, store: Store, principal: Principal, client: str = "") -> None:
        """`client`: its address, for audit lines."""
        self._client = client
        self._store = store
        self._principal = principal

    @property
    def options(self) -> StoreOptions:
        return self._store.options

    @property
    def bell(self) -> Bell:
        return self._store.bell

    # --- whose it is ------------------------------------------------------------------------------------------

    async def admit(self, chat_id: str) -> None:
        """Raises NotFound for a chat that is not there, for this principal."""
        if self._principal.sees_all:
            return
        found = await self._store.read_owner(chat_id)
        if found is None or not await self._is_own(chat_id, found):
            raise NotFound("chat", chat_id)

    async def _is_own(self, chat_id: str, found: Ownership) -> bool:
        principal = self._principal
        if principal.owner is not None and found.owner != principal.owner:
            return False
        if principal.chat is None:
            return True
        above: Ownership | None = found
        for _ in range(DEEPEST):  # a sub-agent's chat is seen by who sees the chat that it works for
            if chat_id == principal.chat:
                return True
            if above is None or above.parent_id is None:
                return False
            chat_id = above.parent_id
            above = await self._store.read_owner(chat_id)
        return False

    def owner_for(self, given: str | None) -> str | None:
        """The owner of what this principal makes or lists, where a request names one. Raises Forbidden."""
        own = self._principal.owner
        if own is None:
            return given
        if given and given != own:
            raise Forbidden(f"this token is of the owner {own!r}: leave `owner` out, or give that one")
        return own

    # --- the verbs, as the contract has them ------------------------------------------------------------------

    async def submit(self, chat_id: str, command: cmd.Command, key: Key | None = None) -> Answer:
        if isinstance(command, cmd.Approve | cmd.Deny):
            need(self._principal, "approve")
        if isinstance(command, cmd.Approve) and command.always is not None:
            command = replace(command, by=self._principal.name)
            if command.always != "chat":
                need_no_limit(self._principal, f"it keeps no rule for {command.always}s")
        await self.admit(chat_id)
        answer = await self._store.submit(chat_id, command, key)
        if isinstance(command, cmd.Approve | cmd.Deny | cmd.Submit):
            who = {"principal": self._principal.name, "client": self._client}
            kept = command.always if isinstance(command, cmd.Approve) else None
            tell_answered(_ANSWERS[type(command)], **who, chat=chat_id, call=command.call_id, always=kept)
        return answer

    async def recall(self, key: Key) -> Answer | None:
        found = await self._store.recall(key)
        if found is not None:
            await self.admit(found.chat_id)
        return found

    async def read_chat(self, chat_id: str) -> Snapshot:
        await self.admit(chat_id)
        found = await self._store.read_chat(chat_id)
        whose = Ownership(found.chat.owner, found.chat.parent_id)
        if not self._principal.sees_all and not await self._is_own(chat_id, whose):
            raise NotFound("chat", chat_id)
        return found

    async def list_chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        wanted = replace(filter or ALL_CHATS, owner=self.owner_for((filter or ALL_CHATS).owner))
        if self._principal.chat is not None:
            wanted = replace(wanted, id=self._principal.chat)
        return await self._store.list_chats(wanted, before=before, limit=limit)

    async def open_calls(self, chat_id: str) -> list[OpenCallRecord]:
        await self.admit(chat_id)
        return await self._store.open_calls(chat_id)

    async def list_open_calls(
        self, filter: OpenCallFilter | None = None, *, before: str | None = None, limit: int = 100
    ) -> list[OpenCallLine]:
        wanted = replace(filter or ALL_OPEN_CALLS, owner=self.owner_for((filter or ALL_OPEN_CALLS).owner))
        if self._principal.chat is not None:
            wanted = replace(wanted, below=self._principal.chat)
        return await self._store.list_open_calls(wanted, before=before, limit=limit)

    async def sub_agents(self, chat_id: str, *, deep: bool = False, limit: int = SUB_AGENTS_MAX) -> list[SubAgent]:
        await self.admit(chat_id)
        return await self._store.sub_agents(chat_id, deep=deep, limit=limit)

    async def read_open_call(self, chat_id: str, call_id: str) -> OpenCallRecord:
        await self.admit(chat_id)
        return await self._store.read_open_call(chat_id, call_id)

    async def fork_chat(
        self, chat_id: str, new_id: str, *, upto: int | None = None, owner: str | None = None, key: Key | None = None
    ) -> Answer:
        """A fork stays with the owner."""
        need_no_limit(self._principal)
        await self.admit(chat_id)
        given = self.owner_for(owner)
        return await self._store.fork_chat(chat_id, new_id, upto=upto, owner=given, key=key)

    async def delete_chat(
        self, chat_id: str, *, children: DeleteChildren = "refuse", archived_before: int | None = None
    ) -> tuple[str, ...]:
        await self.admit(chat_id)
        return await self._store.delete_chat(chat_id, children=children, archived_before=archived_before)

    async def read_history(
        self, chat_id: str, *, start: int = 0, limit: int = 10_000, bytes_max: int | None = None
    ) -> list[HistoryRow]:
        await self.admit(chat_id)
        return await self._store.read_history(chat_id, start=start, limit=limit, bytes_max=bytes_max)

    async def read_compactions(self, chat_id: str, *, start: int, end: int, limit: int = 100) -> list[Compaction]:
        await self.admit(chat_id)
        return await self._store.read_compactions(chat_id, start=start, end=end, limit=limit)

    async def read_file(self, chat_id: str, digest: str) -> bytes:
        await self.admit(chat_id)
        return await self._store.read_file(chat_id, digest)

    async def whole_messages(
        self, chat_id: str, messages: Sequence[Message], *, every: bool = False
    ) -> Sequence[Message]:
        await self.admit(chat_id)
        return await self._store.whole_messages(chat_id, messages, every=every)

    async def locate_message(self, chat_id: str, message_id: str) -> Located:
        await self.admit(chat_id)
        return await self._store.locate_message(chat_id, message_id)

    async def read_journal(
        self, chat_id: str, after: AfterCursor = None, limit: int = PAGE_ROWS, bytes_max: int = PAGE_BYTES
    ) -> Page:
        await self.admit(chat_id)
        return self._shown(await self._store.read_journal(chat_id, after, limit, bytes_max))

    async def wait_journal(
        self, chat_id: str, after: AfterCursor, deadline_s: float, poll_s: float | None = None
    ) -> Page:
        await self.admit(chat_id)
        return self._shown(await self._store.wait_journal(chat_id, after, deadline_s, poll_s))

    async def export_chat(self, chat_id: str) -> Export:
        """With all that was spawned below it. A token for one chat may have that one, if no other chat spawned it:
        else the export would be of its family.
        """
        chat = (await self.read_chat(chat_id)).chat
        if chat.parent_id is not None and self._principal.chat is not None:
            raise Forbidden("this token is for one chat alone: an export is of the whole family that it is in")
        export = await self._store.transfers.export(chat_id, for_operators=self._sees_traces)
        for found in export.family if not self._principal.sees_all else ():
            if not await self._is_own(found.id, Ownership(found.owner, found.parent_id)):
                raise NotFound("chat", chat_id)
        return export

    @property
    def _sees_traces(self) -> bool:
        return self._principal.allows("operate")

    def _shown(self, page: Page) -> Page:
        """Tracebacks are for operators. The reader's place moves past them."""
        if self._sees_traces:
            return page
        kept = tuple(item for item in page.items if not item.body.startswith(FOR_OPERATORS))
        return replace(page, items=kept)

    async def list_workers(self) -> list[Lease]:
        """For who tells of a chat which worker has it."""
        return await self._store.list_workers()
