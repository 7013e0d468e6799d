"""Browser sessions: a browser comes in by a link, once, or by a token, and has a cookie from then on. The cookie has
a random secret of which the database has the digest alone.

A session ends at its expiry, which moves with its use up to a last day; at the logout; with the token that it was
made with; and with the admin token, where it was made with that one or by a link of the admin's. The code of a link
stands behind the `#` of its address: no browser sends that, so it is in no log of any server or proxy.
"""

import hashlib

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.types import Scope

from holdfast.errors import StoreError
from holdfast.principals import ADMIN
from holdfast.server.cookies import cookie_name, cookie_values
from holdfast.server.grants import Grant, Grants
from holdfast.store.contract import Store
from holdfast.store.tokens import NewToken, Token

LOGIN = "/login"
LINK_S = 24 * 3600.0  # how long a link can be used that was not used yet
_BY_ADMIN = "admin token "  # in `created_by`, with a digest of the token: what was made with it ends with it


def made_by_admin(token: str) -> str:
    """What `created_by` says of what the bearer of the admin token made."""
    return _BY_ADMIN + hashlib.sha256(token.encode()).hexdigest()[:32]


async def new_link_code(store: Store, admin_token: str) -> str:
    """Logs one browser in, as the admin. It ends with the admin token, too. Raises StoreError."""
    new = NewToken(
        name=ADMIN.name,
        owner=ADMIN.owner,
        scopes=ADMIN.scopes,
        kind="link",
        expires_at=store.now_ms() + int(LINK_S * 1000),
        created_by=made_by_admin(admin_token),
    )
    return (await store.tokens.create(new))[1]


def link_of(url: str, code: str) -> str:
    return f"{url}{LOGIN}#{code}"


class Lifetime(Struct, frozen=True):
    """Of a session: `idle_s` without a request, and `all_s` whatever it does."""

    all_s: float
    idle_s: float

    def first_end(self, now_ms: int) -> int:
        return now_ms + int(min(self.idle_s, self.all_s) * 1000)

    def later_end(self, token: Token, now_ms: int) -> int | None:
        """None: it need not be written, which is once for every tenth of the idle time."""
        end = min(now_ms + int(self.idle_s * 1000), token.created_at + int(self.all_s * 1000))
        return end if token.expires_at is not None and end - token.expires_at > self.idle_s * 100 else None


class Sessions:
    """Of one server."""

    def __init__(self, store: Store, grants: Grants, lifetime: Lifetime) -> None:
        self._store = store
        self._grants = grants
        self.lifetime = lifetime

    async def grant(self, scope: Scope) -> Grant | None:
        """Whom the cookie stands for. Raises StoreError, Unauthorized."""
        for secret in cookie_values(Request(scope).headers, cookie_name(scope)):
            token = await self._grants.tokens.find(secret)
            if token is not None and token.kind == "session" and await self._admin_holds(token):
                await self._note_use(token)
                return self._grant_of(token)
        return None

    def _grant_of(self, token: Token) -> Grant:
        by_admin = token.created_by.startswith(_BY_ADMIN)
        return Grant(token.principal, token_id=token.id, admin=self._grants.admin.digest if by_admin else None)

    async def _admin_holds(self, token: Token) -> bool:
        """Whether the admin token is still the one that it was made with."""
        if not token.created_by.startswith(_BY_ADMIN):
            return True
        await self._grants.admin.look()
        return token.created_by == made_by_admin(self._grants.admin.value)

    async def _note_use(self, token: Token) -> None:
        """Where the store cannot take it now, the next request tries again."""
        end = self.lifetime.later_end(token, self._store.now_ms())
        if end is None:
            return
        try:
            for parent in await self._store.tokens.read([token.parent] if token.parent is not None else []):
                end = min(end, parent.expires_at or end)
            await self._store.tokens.extend(token.id, end)
        except StoreError:
            return

    async def begin(self, code: str) -> tuple[Grant, str] | None:
        """A new session, and the secret of its cookie, for one who brings a link's code or a token. A link is used up
        behind the new session: where that cannot be made, the link still works. Raises StoreError, Unauthorized.
        """
        if await self._grants.admin.matches(code):
            by = made_by_admin(self._grants.admin.value)
            return await self._made(
                NewToken(name=ADMIN.name, owner=ADMIN.owner, scopes=ADMIN.scopes, kind="session", created_by=by)
            )
        token = await self._grants.tokens.find(code)
        if token is None or token.kind == "session" or not await self._admin_holds(token):
            return None
        made = await self._made(_session_of(token))
        if token.kind == "link" and await self._store.tokens.use_once(code) is None:
            assert made[0].token_id is not None
            await self._store.tokens.revoke(made[0].token_id)  # another browser was first
            return None
        return made

    async def _made(self, new: NewToken) -> tuple[Grant, str]:
        end = self.lifetime.first_end(self._store.now_ms())
        token, secret = await self._store.tokens.create(
            structs.replace(new, expires_at=min(end, new.expires_at or end))
        )
        return self._grant_of(token), secret

    async def end(self, scope: Scope) -> Grant | None:
        """The session of this browser, here at once and elsewhere within seconds. Raises StoreError, Unauthorized."""
        ended = None
        for secret in cookie_values(Request(scope).headers, cookie_name(scope)):
            token = await self._grants.tokens.find(secret)
            if token is not None and token.kind == "session":
                await self._store.tokens.revoke(token.id)
                self._grants.tokens.forget({token.id})
                ended = self._grant_of(token)
        return ended


def _session_of(token: Token) -> NewToken:
    """It ends with the token; with a link that was made with a token, with that one."""
    by_token = token.kind == "token"
    return NewToken(
        name=token.name,
        owner=token.owner,
        scopes=token.scopes,
        kind="session",
        chat=token.chat,
        expires_at=token.expires_at if by_token else None,
        created_by=token.created_by,
        parent=token.id if by_token else token.parent,
    )


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions
