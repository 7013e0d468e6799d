"""The app as one principal has it: what routes hold in place of the `App` and its store.

Chats are its own (`owned_store.py` decides), what it makes is its own, and its idempotency keys are apart from those
of others. There is no way from here to the app itself.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, Unpack

from fastapi import Depends, Header, Request

from holdfast import __version__, transfer
from holdfast.agent import Agent
from holdfast.app import App, ChatSettings
from holdfast.chat import Chat
from holdfast.config import Config
from holdfast.core.records import Frozen, KeptRule, Lease, Message
from holdfast.errors import Forbidden, InvalidInput, NotFound
from holdfast.health.checks import judge
from holdfast.health.processes import prometheus_of_all, together
from holdfast.health.prometheus import prometheus
from holdfast.owner_limits import OwnerLimits
from holdfast.principals import OWN_SCOPES, Principal
from holdfast.server.audit import (
    TokenChange,
    tell_budget,
    tell_imported,
    tell_owner_deleted,
    tell_rule_revoked,
    tell_token,
)
from holdfast.server.grants import Grant, Grants
from holdfast.server.guarded import GRANT, Need
from holdfast.server.link_answers import LinkAnswers
from holdfast.server.owned_memory import OwnedMemory
from holdfast.server.owned_schedules import OwnedSchedules
from holdfast.server.owned_store import OwnedStore, need, need_no_limit
from holdfast.server.owned_webhooks import OwnedWebhooks
from holdfast.server.process_health import process_diagnosis, process_verdict
from holdfast.server.shares import stream_client
from holdfast.server.streams import Streams
from holdfast.slash_commands import SlashCommand
from holdfast.store.budgets import Grouping, OwnerBudget, UsageTotal
from holdfast.store.driver_watch import DriverWatch
from holdfast.store.open_calls import OpenCallFilter, OpenCallKind, OpenCallLine
from holdfast.store.records import ChatFilter, ChatLine, Key
from holdfast.store.tokens import NewToken, Token
from holdfast.transfer import OwnerDeleted

NOBODY = Grant(Principal(name="nobody", owner="nobody", scopes=frozenset(), chat=""))  # asks a public route
CHAT_TOKEN_S = 3600  # for which a token for one chat is valid, unless its maker says otherwise
_OPERATES = Need(scope="operate", all_owners=True)


class TokenAsked(Frozen):
    """What a token is to be. `scopes`: None is what owners need, as far as its maker has it."""

    name: str
    owner: str | None = None
    scopes: frozenset[str] | None = None
    chat: str | None = None
    ttl_s: int | None = None


class OwnedApp:
    """For one request."""

    def __init__(self, app: App, streams: Streams, grants: Grants, grant: Grant, address: str = "") -> None:
        self._app = app
        self._grants = grants
        self.streams = streams
        self.grant = grant
        self.principal = grant.principal
        self.address = address  # of the client
        self.store = OwnedStore(app.store, grant.principal, address)
        self.links = LinkAnswers(app.store, address)  # for who has one, whoever asks
        self.webhooks = OwnedWebhooks(app.webhooks, self.store, grant.principal, address)

    @property
    def agents(self) -> Mapping[str, Agent[Any]]:
        return self._app.agents

    @property
    def config(self) -> Config:
        return self._app.config

    @property
    def drivers(self) -> DriverWatch:
        return self._app.drivers

    @property
    def client(self) -> str:
        """Who has so many streams at most: an owner, whatever its tokens, or else an address."""
        return stream_client(self.principal, self.address)

    def agent(self, agent: Agent[Any] | str) -> Agent[Any]:
        return self._app.agent(agent)

    def sent(self, message: Message) -> Message:
        return self._app.sent(message)

    async def expanded(self, message: Message, agent: str) -> Message:
        return await self._app.expanded(message, agent)

    async def slash_commands(self, agent: str) -> list[SlashCommand]:
        return await self._app.slash_commands(agent)

    # --- chats ----------------------------------------------------------------------------------------------------

    def chat(self, chat_id: str) -> Chat[Any]:
        """A handle. Whatever it is asked for raises NotFound where the chat is not this principal's."""
        return Chat(self, chat_id)

    async def create(self, agent: str, text: str | Message | None = None, **chat: Unpack[ChatSettings]) -> Chat[Any]:
        """As `App.create`, for the principal's owner. Raises Forbidden also where another owner is named."""
        if chat.get("chat_id") is None or chat.get("chat_id") != self.principal.chat:
            need_no_limit(self.principal)
        chat["owner"] = self.store.owner_for(chat.get("owner")) or ""
        made = await self._app.create(agent, text, **chat)
        await self.store.admit(made.id)  # by its key, a request that was made before may have its chat elsewhere
        return self.chat(made.id)

    async def chats(
        self, filter: ChatFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[ChatLine]:
        return await self.store.list_chats(filter, before=before, limit=limit)

    async def open_calls(
        self, *, kind: OpenCallKind | None, owner: str | None, before: str | None, limit: int
    ) -> list[OpenCallLine]:
        """In all chats that this principal sees. Raises Forbidden where another owner is named."""
        return await self.store.list_open_calls(OpenCallFilter(kind=kind, owner=owner), before=before, limit=limit)

    def key(self, key: str, request: str | None = None) -> Key:
        """An idempotency key in the principal's name space."""
        return Key(principal=self.principal.key_space, key=key, request=request)

    async def import_chat(self, file: BinaryIO, *, keep_ids: bool, owner: str | None, key: Key | None) -> Chat[Any]:
        """For the principal's owner, whatever the file says. Raises as `transfer.read_import`, Forbidden.

        Whether an id is free tells of the chats of every owner, so ids are kept for those who see all of them.
        """
        need_no_limit(self.principal)
        if keep_ids and not self.principal.sees_all:
            raise Forbidden("`keep_ids` needs a token without an owner: leave it out, and the chat gets a new id")
        chat_owner = self.store.owner_for(owner)
        if key is not None and (known := await self.store.recall(key)) is not None:
            return self.chat(known.chat_id)
        done = await transfer.read_import(
            self._app.store, file, new_ids=not keep_ids, owner=chat_owner, approvals=self.operates, key=key
        )
        tell_imported(principal=self.principal.name, client=self.address, chat=done.chat_id, chats=done.chats)
        return self.chat(done.chat_id)

    # --- tokens ---------------------------------------------------------------------------------------------------

    async def create_token(self, asked: TokenAsked) -> tuple[Token, str]:
        """No wider than the principal itself, and it ends with what that came with. Raises Forbidden, NotFound."""
        principal, owner = self.principal, asked.owner or None
        need_no_limit(principal)
        if asked.chat is None:
            need(principal, "operate")
            ttl_s = asked.ttl_s
        else:
            await self.store.admit(asked.chat)
            found = await self._app.store.read_owner(asked.chat)
            if found is None:
                raise NotFound("chat", asked.chat)
            ttl_s = asked.ttl_s or CHAT_TOKEN_S
            owner = owner or found.owner or None
        scopes = OWN_SCOPES & principal.scopes if asked.scopes is None else asked.scopes
        for scope in sorted(scopes - principal.scopes):
            raise Forbidden(f"a token with the scope {scope!r} is made by one that has it", scope=scope)
        ends = [principal.expires_at] if principal.expires_at is not None else []
        ends += [self.grant.ask_again_at] if self.grant.ask_again_at is not None else []
        ends += [self._app.store.now_ms() + ttl_s * 1000] if ttl_s is not None else []
        new = NewToken(
            name=asked.name,
            owner=self.store.owner_for(owner),
            scopes=scopes,
            chat=asked.chat,
            expires_at=min(ends, default=None),
            created_by=principal.name,
            parent=self.grant.token_id,
        )
        token, secret = await self._app.store.tokens.create(new)
        self._audit("audit.token_made", token)
        return token, secret

    async def tokens(self, *, before: str | None, limit: int) -> list[Token]:
        """Of the principal's owner, or of everyone."""
        need_no_limit(self.principal)
        return await self._app.store.tokens.page(owner=self.principal.owner, before=before, limit=limit)

    async def revoke_token(self, token_id: str) -> Token:
        """Raises NotFound, also for one of another owner."""
        need_no_limit(self.principal)
        found = await self._app.store.tokens.read([token_id])
        if not found or (self.principal.owner is not None and found[0].owner != self.principal.owner):
            raise NotFound("token", token_id)
        revoked = await self._app.store.tokens.revoke(token_id)
        self._grants.tokens.forget({token_id})
        self._audit("audit.token_revoked", revoked)
        return revoked

    # --- schedules ------------------------------------------------------------------------------------------------

    @property
    def schedules(self) -> OwnedSchedules:
        """Raises Forbidden for a token of one chat."""
        return OwnedSchedules(self._app.schedules, self.store, self.principal)

    # --- memory ---------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> OwnedMemory:
        """Raises Forbidden for a token of one chat."""
        return OwnedMemory(self._app.memory, self.store, self.principal)

    # --- kept rules -----------------------------------------------------------------------------------------------

    async def kept_rules(self, *, chat_id: str | None, before: str | None, limit: int) -> list[KeptRule]:
        """Of the principal's owner, or of everyone; of its chat alone, where it has no other."""
        principal = self.principal
        if principal.chat is not None:
            chat_id = principal.chat
        if chat_id is not None:
            await self.store.admit(chat_id)
        rules = self._app.store.kept_rules
        return await rules.page(owner=principal.owner, chat_id=chat_id, before=before, limit=limit)

    async def revoke_kept_rule(self, rule_id: str) -> KeptRule:
        """Raises NotFound, also for one that this principal does not see."""
        principal, rules = self.principal, self._app.store.kept_rules
        found = await rules.read(rule_id)
        other_owner = principal.owner is not None and found.owner != principal.owner
        if other_owner or (principal.chat is not None and found.chat_id != principal.chat):
            raise NotFound("kept rule", rule_id)
        revoked = await rules.revoke(rule_id)
        tell_rule_revoked(principal=principal.name, client=self.address, rule=rule_id, owner=revoked.owner)
        return revoked

    # --- budgets --------------------------------------------------------------------------------------------------

    async def budgets(self, *, after: str | None, limit: int) -> list[OwnerBudget]:
        """Of the principal's owner, or of everyone."""
        need_no_limit(self.principal)
        return await self._app.budgets(owner=self.principal.owner, after=after, limit=limit)

    async def set_budget(self, owner: str, limits: OwnerLimits) -> OwnerBudget:
        budget = await self._app.set_budget(owner, limits, by=self.principal.name)
        tell_budget(
            "audit.budget_set", principal=self.principal.name, client=self.address, owner=owner, limits=limits
        )
        return budget

    async def remove_budget(self, owner: str) -> None:
        await self._app.remove_budget(owner)
        tell_budget("audit.budget_removed", principal=self.principal.name, client=self.address, owner=owner)

    async def usage(
        self,
        by: Sequence[Grouping],
        *,
        owner: str | None,
        since: str | None,
        until: str | None,
        after: UsageTotal | None,
        limit: int,
    ) -> list[UsageTotal]:
        """Of the principal's owner, or of whom it asks for. Another's is as one that never was."""
        need_no_limit(self.principal)
        own = self.principal.owner
        if own is not None and owner not in (None, own):
            return []
        whose = own if own is not None else owner
        return await self._app.usage(by, owner=whose, since=since, until=until, after=after, limit=limit)

    def _audit(self, action: TokenChange, token: Token) -> None:
        tell_token(action, principal=self.principal.name, client=self.address, token=token.id, owner=token.owner)

    # --- for operators --------------------------------------------------------------------------------------------

    async def health(self) -> dict[str, Any]:
        """What this principal may know: how the server is, and for operators all that it knows of itself. Where it is
        several processes, of all of them.
        """
        told = await self._told(detailed=self.operates)
        if told is not None:
            found = together(told, __version__, detailed=self.operates)
            return {**found, **self._own()} if self.operates else found
        return self.own_diagnosis() if self.operates else process_verdict(self._app, self.streams)

    async def diagnosis(self) -> dict[str, Any]:
        """Raises Forbidden."""
        _OPERATES.check(self.principal)
        return await self.health()

    async def metrics(self) -> bytes:
        """For Prometheus. Raises Forbidden."""
        _OPERATES.check(self.principal)
        told = await self._told(detailed=True)
        return prometheus(self.own_diagnosis()) if told is None else prometheus_of_all(told)

    def own_diagnosis(self) -> dict[str, Any]:
        """Of this process alone."""
        return process_diagnosis(self._app, self.streams)

    def _own(self) -> dict[str, Any]:
        """What is told of the process that answers, beside what is told of all."""
        found = self.own_diagnosis()
        return {"process": found["process"], "server": found["server"]}

    async def _told(self, *, detailed: bool) -> dict[str, Any] | None:
        place = self.streams.place
        return await place.all(detailed=detailed) if place is not None else None

    @property
    def operates(self) -> bool:
        """Whether it may see what is told of all owners."""
        return self.principal.sees_all and self.principal.allows("operate")

    def judged(self) -> tuple[str, Sequence[str]]:
        """How this process is, and the reasons."""
        return judge([self._app])

    async def owners(self, *, after: str | None, limit: int) -> list[tuple[str, int]]:
        """Raises Forbidden, as all of these."""
        _OPERATES.check(self.principal)
        return await self._app.store.transfers.owners(after, limit)

    def families(self, owner: str) -> AsyncIterator[str]:
        _OPERATES.check(self.principal)
        return transfer.families(self._app.store, owner)

    async def write_export(self, chat_id: str, file: BinaryIO) -> int:
        _OPERATES.check(self.principal)
        return await transfer.write_export(self._app.store, chat_id, file)

    async def delete_owner(self, owner: str, *, stop: bool, within_s: float) -> OwnerDeleted:
        _OPERATES.check(self.principal)
        done = await transfer.delete_owner(self._app.store, owner, stop=stop, within_s=within_s)
        tell_owner_deleted(
            principal=self.principal.name, client=self.address, owner=owner, chats=done.chats, tokens=done.tokens
        )
        return done

    async def workers(self) -> list[Lease]:
        """Raises Forbidden."""
        _OPERATES.check(self.principal)
        return await self._app.store.list_workers()


# --- what routes ask for ------------------------------------------------------------------------------------------
# All of it async, though nothing is awaited: FastAPI runs any other function in a thread, at more than its own cost.


async def app_of(request: Request) -> OwnedApp:
    state = request.app.state
    address = request.client.host if request.client is not None else ""
    return OwnedApp(state.holdfast, state.streams, state.grants, request.scope.get(GRANT, NOBODY), address)


AppOf = Annotated[OwnedApp, Depends(app_of)]


async def key_given(
    request: Request,
    key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", max_length=200, description="the same request again does nothing again"),
    ] = None,
) -> str | None:
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise InvalidInput("Idempotency-Key", "was given more than once; a request has one key")
    return key


KeyGiven = Annotated[str | None, Depends(key_given)]  # for who says what the request was, beside its body


async def key_of(request: Request, app: AppOf, key: KeyGiven) -> Key | None:
    if key is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for piece in (request.method.encode(), request.url.path.encode(), await request.body()):
        digest.update(len(piece).to_bytes(8, "big") + piece)
    return app.key(key, digest.hexdigest())


KeyOf = Annotated[Key | None, Depends(key_of)]
