"""What a link to an open call leads to: the call that it was made for, while a person is asked about it; or why not.

The link is all that is asked for. It counts while its key, its endpoint, the chat's life and the call with these very
arguments are there. It answers once: the answer is kept under a key of the call, like any client's. What its page
does not show as a whole it does not approve.
"""

import re
from typing import Literal, assert_never

from holdfast.core import commands as cmd
from holdfast.core.approval_links import ApprovalLink, LinkKind, is_signed, read_link
from holdfast.core.records import Frozen
from holdfast.errors import InvalidInput, KeyReused, NotFound, RefusedError
from holdfast.server.audit import Answered, tell_answered
from holdfast.store.contract import Store
from holdfast.store.open_calls import OpenCallRecord
from holdfast.store.records import Key
from holdfast.store.webhooks import Webhook

KEY_SPACE = "approval link"
REPLY_CHARS_MAX = 20_000
_KEY_ID = re.compile(r"[a-z0-9_]{1,64}")
_KEY_ENDS: dict[LinkKind, str] = {"approval": "", "question": ":question"}
NoUse = Literal["unknown", "expired", "withdrawn", "over", "cut", "unfit"]


class Approval(Frozen):
    """A person pressed one of the two buttons."""

    approve: bool


class Reply(Frozen):
    """What a person wrote as the answer to a question."""

    text: str


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
        link = await self._signed(token)
        if link is None:
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
        if chat.life != link.life or call.digest != link.digest or call.kind != link.kind:
            return "over"
        return Asked(call=call, webhook=webhook, link=link)

    async def answer(self, token: str, given: Approval | Reply) -> Asked | NoUse:
        """Once. What it returns otherwise says that nothing was done."""
        asked = await self.look(token)
        if not isinstance(asked, Asked):
            return asked
        if isinstance(given, Reply) != (asked.link.kind == "question"):
            return "unfit"
        if isinstance(given, Approval) and given.approve and not asked.call.whole:
            return "cut"  # nobody saw what would run
        link, by = asked.link, f"link of webhook {asked.webhook.name}"
        command, action = _command(link, given, by)
        key = Key(principal=KEY_SPACE, key=f"{link.life}:{link.call_id}:{link.digest}{_KEY_ENDS[link.kind]}")
        try:
            await self._store.submit(link.chat_id, command, key)
            if await self._still_asks(link):
                return "over"  # the call was answered by a link before, and is asked about anew
        except (RefusedError, KeyReused, NotFound):
            return "over"
        except InvalidInput:
            return "unfit"
        tell_answered(action, principal=by, client=self._address, chat=link.chat_id, call=link.call_id)
        return asked

    async def _signed(self, token: str) -> ApprovalLink | None:
        """None: nobody with a key that counts made it."""
        link = read_link(token)
        if link is None or not _KEY_ID.fullmatch(link.key_id):  # a stranger's text is asked for nowhere
            return None
        key = await self._store.link_keys.read(link.key_id)
        return link if key is not None and is_signed(token, key.key) else None

    async def _still_asks(self, link: ApprovalLink) -> bool:
        try:
            found = await self._store.read_open_call(link.chat_id, link.call_id)
        except NotFound:
            return False
        return found.kind == link.kind


def _command(
    link: ApprovalLink, given: Approval | Reply, by: str
) -> tuple[cmd.Approve | cmd.Deny | cmd.Submit, Answered]:
    match given:
        case Approval(approve=True):
            return cmd.Approve(call_id=link.call_id, by=by, digest=link.digest), "audit.approved"
        case Approval():
            return cmd.Deny(call_id=link.call_id, by=by), "audit.denied"
        case Reply(text=text):
            return cmd.Submit(call_id=link.call_id, content=text, by=by), "audit.answered"
        case _:
            assert_never(given)
