"""Who did what that matters later: approvals, denials and answers, tokens, budgets, logins, imports, deletions, and
who was refused.
One line each, with a stable action that begins with `audit.`: who it was, from where, and what it was about.

Refused requests are as many as a stranger likes, so their lines are not: what is left out is counted in the next one.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec.structs import asdict

from holdfast.log_context import logger
from holdfast.owner_limits import OwnerLimits

log = logger("holdfast.audit")

# By the name of the route: what a 2xx or 3xx of it means.
AUDITED: Mapping[str, str] = {
    "log_in": "audit.login",
    "log_out": "audit.logout",
    "delete_chat": "audit.chat_deleted",
    "accept_memory": "audit.memory_accepted",
    "forget_memory": "audit.memory_deleted",
    "add_fact": "audit.memory_changed",
    "edit_fact": "audit.memory_changed",
    "edit_memory_block": "audit.memory_changed",
    "remove_memory_block": "audit.memory_deleted",
    "delete_response": "audit.chat_deleted",
    "delete_conversation": "audit.chat_deleted",
    "export_owner": "audit.owner_exported",
}
REFUSALS = frozenset({401, 403, 421})
BURST = 20  # lines of refusals at once
PER_S = 1.0  # and so many a second from then on
PATH_CHARS_MAX = 200
# As all other lines call them; a record of the log has a `name` already.
FIELDS = {"chat_id": "chat", "call_id": "call", "memory_id": "memory", "name": "block"}

Answered = Literal["audit.approved", "audit.denied", "audit.answered"]
TokenChange = Literal["audit.token_made", "audit.token_revoked"]
BudgetChange = Literal["audit.budget_set", "audit.budget_removed"]
WebhookChange = Literal["audit.webhook_made", "audit.webhook_changed", "audit.webhook_removed"]


def tell_answered(
    action: Answered, *, principal: str, client: str, chat: str, call: str, always: str | None = None
) -> None:
    """An open call has its answer, by whichever route and protocol; with `always`, rules were kept with it."""
    about = {"principal": principal, "client": client, "chat": chat, "call": call}
    about |= {"always": always} if always is not None else {}
    log.info("a call was answered", extra={"action": action, **about})


def tell_token(action: TokenChange, *, principal: str, client: str, token: str, owner: str | None) -> None:
    about = {"principal": principal, "client": client, "token": token, "owner": owner}
    log.info("a token was changed", extra={"action": action, **about})


def tell_webhook(action: WebhookChange, *, principal: str, client: str, webhook: str, owner: str | None) -> None:
    about = {"principal": principal, "client": client, "webhook": webhook, "owner": owner}
    log.info("a webhook was changed", extra={"action": action, **about})


def tell_links_revoked(*, principal: str, client: str) -> None:
    about = {"principal": principal, "client": client}
    log.info("all links to approvals were revoked", extra={"action": "audit.links_revoked", **about})


def tell_budget(
    action: BudgetChange, *, principal: str, client: str, owner: str, limits: OwnerLimits | None = None
) -> None:
    about: dict[str, object] = {"principal": principal, "client": client, "owner": owner}
    about |= {} if limits is None else {name: limit for name, limit in asdict(limits).items() if limit is not None}
    log.info("a budget was changed", extra={"action": action, **about})


def tell_rule_revoked(*, principal: str, client: str, rule: str, owner: str) -> None:
    about = {"principal": principal, "client": client, "rule": rule, "owner": owner}
    log.info("a kept rule was revoked", extra={"action": "audit.rule_revoked", **about})


def tell_imported(*, principal: str, client: str, chat: str, chats: int) -> None:
    about = {"principal": principal, "client": client, "chat": chat, "chats": chats}
    log.info("a chat was imported", extra={"action": "audit.chat_imported", **about})


def tell_owner_deleted(*, principal: str, client: str, owner: str, chats: int, tokens: int) -> None:
    about = {"principal": principal, "client": client, "owner": owner, "chats": chats, "tokens": tokens}
    log.info("chats of an owner were deleted", extra={"action": "audit.owner_deleted", **about})


class Audit:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._room = float(BURST)
        self._at = now_s()
        self._left_out = 0

    def tell(
        self,
        *,
        name: str,
        status: int,
        reason: str | None,
        principal: str | None,
        client: str,
        path: str,
        about: Mapping[str, str],
    ) -> None:
        """Of one request that was answered. `about` are the parameters of its path."""
        who = {"principal": principal, "client": client}
        if status in REFUSALS:
            reason = "login" if name == "log_in" else reason
            self._refused({**who, "status": status, "reason": reason, "path": path[:PATH_CHARS_MAX]})
        elif name in AUDITED and 200 <= status < 400:
            what = {FIELDS.get(key, key): value[:512] for key, value in about.items()}
            log.info(name, extra={"action": AUDITED[name], **who, **what})

    def _refused(self, about: Mapping[str, str | int | None]) -> None:
        now_s = self._now_s()
        self._room = min(float(BURST), self._room + (now_s - self._at) * PER_S)
        self._at = now_s
        if self._room < 1.0:
            self._left_out += 1
            return
        self._room -= 1.0
        log.warning("refused", extra={"action": "audit.refused", "left_out": self._left_out, **about})
        self._left_out = 0
