"""What a link to an approval leads to: the call that it was made for, while a person is asked about it; or why not.

The link is all that is asked for. It counts while its key, its endpoint, the chat's life and the call with these very
arguments are there. It answers once: the answer is kept under a key of the call, like any client's.
"""

from typing import Literal

from holdfast.core import commands as cmd
from holdfast.core.approval_links import ApprovalLink, is_signed, read_link
from holdfast.core.records import Frozen
from holdfast.errors import KeyReused, NotFound, RefusedError
from holdfast.server.audit import tell_answered
from holdfast.store.contract import Store
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Key
from holdfast.store.webhooks import Webhook

KEY_SPACE = "approval link"
NoUse = Literal["unknown", "expired", "withdrawn", "over"]


class Asked(Frozen):
    """What a person is asked, and by which endpoint the question got there."""

    call: OpenCallRecord
    webhook: Webhook
    link: ApprovalLink


class LinkAnswers:
    """For one request. `address` is the client's, for audit lines."""

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address

    async def look(self, token: str) -> Asked | NoUse:
        """Answers nothing: whoever scans mails looks, too."""
        link = read_link(token)
        key = await self._store.link_keys.read(link.key_id) if link is not None else None
        if link is None or key is None or not is_signed(token, key.key):
            return "unknown"
        if link.expires_at <= self._store.now_ms():
            return "expired"
        try:
            webhook = await self._store.webhooks.read(link.webhook_id)
            if not webhook.links:
                return "withdrawn"
            chat = (await self._store.read_chat(link.chat_id)).chat
            call = await self._store.read_open_call(link.chat_id, link.call_id)
        except NotFound as missing:
            return "withdrawn" if missing.what == "webhook" else "over"
        if chat.life != link.life or call.digest != link.digest or call.kind != "approval":
            return "over"
        return Asked(call=call, webhook=webhook, link=link)

    async def answer(self, token: str, *, approve: bool) -> Asked | NoUse:
        """Approves or denies, once. What it returns otherwise says that nothing was done."""
        asked = await self.look(token)
        if not isinstance(asked, Asked):
            return asked
        link, by = asked.link, f"link of webhook {asked.webhook.name}"
        command: cmd.Approve | cmd.Deny
        if approve:
            command = cmd.Approve(call_id=link.call_id, by=by, digest=link.digest)
        else:
            command = cmd.Deny(call_id=link.call_id, by=by)
        key = Key(principal=KEY_SPACE, key=f"{link.life}:{link.call_id}:{link.digest}")
        try:
            await self._store.submit(link.chat_id, command, key)
            if await self._still_asks(link):
                return "over"  # the call was answered by a link before, and is asked about anew
        except (RefusedError, KeyReused, NotFound):
            return "over"
        action: Literal["audit.approved", "audit.denied"] = "audit.approved" if approve else "audit.denied"
        tell_answered(action, principal=by, client=self._address, chat=link.chat_id, call=link.call_id)
        return asked

    async def _still_asks(self, link: ApprovalLink) -> bool:
        try:
            await self._store.read_open_call(link.chat_id, link.call_id)
        except NotFound:
            return False
        return True
