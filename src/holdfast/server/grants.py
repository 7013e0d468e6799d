"""Whom a request comes from: the admin token of the home, a token of the database, a JWT of the issuer that is
trusted, or what the mounting program says.

One place for all of them. What the database says of a token is kept for a few seconds, so that a revocation is seen
by every process soon, and so that a client that guesses, or asks very often, is no load for the database.
"""

import asyncio
import contextlib
import hashlib
import hmac
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from starlette.requests import Request

from holdfast.app import App
from holdfast.errors import ConfigError, StoreError, Unauthorized
from holdfast.principals import ADMIN, Principal
from holdfast.redaction import Secrets
from holdfast.store.contract import Store
from holdfast.store.tokens import Token, digest_of, looks_like_secret
from holdfast.system import threads

if TYPE_CHECKING:
    from holdfast.server.jwt_tokens import JwtTokens  # loads PyJWT, for which only who has an issuer waits

log = logging.getLogger("holdfast.http")

FRESH_S = 3.0  # how long what the database said of a token is believed
LOOK_S = 3.0  # between two looks at the tokens of open streams
ADMIN_LOOK_S = 1.0  # between two looks at the token file
READ_FILE_S = 5.0
AUTHENTICATE_S = 10.0  # for a function of the mounting program
ASK_AGAIN_S = 3600.0  # after which the function is asked again for one who stays, and what that one made ends
KNOWN_MAX = 10_000  # tokens, and what is none, that are remembered
LOOKUPS_MAX = 8  # at the same time, of secrets that are not known here
LOOKUPS_WAITING_MAX = 1_000

Authenticate = Callable[[Request], Principal | Awaitable[Principal | None] | None]

_files = threads.Pool("token file", 1)
_programs = threads.Pool("authenticate", 8)


class Grant(Struct, frozen=True):
    """A principal, and by what it is known: for as long as that is valid, so are its streams."""

    principal: Principal
    token_id: str | None = None  # of the database
    admin: str | None = None  # a digest of the admin token
    ask_again_at: int | None = None  # in ms since 1970, of one that the mounting program let in

    @property
    def key(self) -> tuple[str | None, str | None, int | None, int | None]:
        """Grants that end together have the same."""
        return self.token_id, self.admin, self.principal.expires_at, self.ask_again_at

    def is_due(self, now_ms: int) -> bool:
        """Whether its client has to come back, so that the program is asked again. One that has an end of its own
        stays until then: the program said how long that is.
        """
        return self.principal.expires_at is None and self.ask_again_at is not None and self.ask_again_at <= now_ms


class AdminToken:
    """The admin's token: one that was given, or that of a file, which may be another one soon (`tokens rotate`).

    One that has to be made or read is so when the app is opened: a program that is only imported writes nothing.
    """

    def __init__(
        self, token: str | Callable[[], str], path: Path | None = None, secrets: Secrets | None = None
    ) -> None:
        self._known = token if isinstance(token, str) else None
        self._find = None if isinstance(token, str) else token
        self._path = path
        self._secrets = secrets
        if self._known is not None:
            self._hide(self._known)
        self._looked_at = time.monotonic()
        self._looking = asyncio.Lock()

    @property
    def value(self) -> str:
        """Raises ConfigError, where its file cannot be used."""
        if self._known is None:
            assert self._find is not None
            self._known = self._find()
            self._hide(self._known)
        return self._known

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.value.encode()).hexdigest()

    async def matches(self, value: str) -> bool:
        await self.look()
        return hmac.compare_digest(value.encode(), self.value.encode())

    def _hide(self, token: str) -> None:
        if self._secrets is not None:
            self._secrets.add("server token", token)

    async def look(self) -> None:
        """At the file, now and then: beside the event loop, because a home may be on a disk that hangs."""
        if self._path is None or self._known is None:
            return  # there is no file, or it was not read yet
        if time.monotonic() - self._looked_at < ADMIN_LOOK_S or self._looking.locked():
            return
        async with self._looking:
            self._looked_at = time.monotonic()
            try:
                async with asyncio.timeout(READ_FILE_S):
                    token = await _files.run(self._read)
            except (TimeoutError, ConfigError) as error:  # the one that is known goes on
                log.warning("the token file cannot be read: %s", error, extra={"action": "token.file"})
                return
            if token != self._known:
                self._hide(token)
                self._known = token
                log.info("the admin token was changed", extra={"action": "token.rotated"})

    def _read(self, _: object) -> str:
        assert self._path is not None
        return read_token(self._path)


TOKEN_CHARS_MIN = 16


def read_token(path: Path) -> str:
    """Raises ConfigError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be used: {error}") from error
    if len(token) < TOKEN_CHARS_MIN:
        raise ConfigError(f"the token file {path} holds no token; delete it, and a new one is made")
    return token


class KnownTokens:
    """What the database says of tokens, for some seconds. Of one secret one lookup is made at a time, and of secrets
    that are not known here only a few: one who guesses waits for those who guess.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[float, Token | None]] = {}  # by digest, oldest first
        self._asking: dict[str, asyncio.Task[Token | None]] = {}
        self._strangers = asyncio.Semaphore(LOOKUPS_MAX)

    async def find(self, secret: str) -> Token | None:
        """One that is valid. Raises StoreError, and Unauthorized where too many ask."""
        if not looks_like_secret(secret):
            return None
        digest = digest_of(secret)
        said_at, token = self._known.get(digest, (0.0, None))
        if time.monotonic() - said_at >= FRESH_S or said_at == 0.0:
            token = await self._ask(digest, secret, known=token is not None)
        return token if token is not None and token.ended(self._store.now_ms()) is None else None

    async def _ask(self, digest: str, secret: str, *, known: bool) -> Token | None:
        asking = self._asking.get(digest)
        if asking is None:
            if not known and len(self._asking) >= LOOKUPS_WAITING_MAX:
                raise Unauthorized("too many tokens are being looked up; come back later")
            asking = self._asking[digest] = asyncio.ensure_future(self._look_up(digest, secret, known=known))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(asking)

    async def _look_up(self, digest: str, secret: str, *, known: bool) -> Token | None:
        async with contextlib.nullcontext() if known else self._strangers:
            token = await self._store.tokens.find(secret)
        self._known.pop(digest, None)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = (time.monotonic(), token)
        return token

    def forget(self, token_ids: set[str]) -> None:
        """They ended, as this process has just learnt."""
        for digest, (_, token) in list(self._known.items()):
            if token is not None and (token.id in token_ids or token.parent in token_ids):
                del self._known[digest]


GrantEnd = Literal["invalid", "due"]  # due: its client comes back, and is let in anew, or not


class _Watched:
    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.ended: asyncio.Future[GrantEnd] = asyncio.get_running_loop().create_future()
        self.streams = 0


class Grants:
    """Of one server: who asks, and whether those who stay still may."""

    def __init__(
        self,
        app: App,
        admin: AdminToken,
        authenticate: Authenticate | None = None,
        jwt_tokens: "JwtTokens | None" = None,
    ) -> None:
        self._store = app.store
        self.admin = admin
        self.tokens = KnownTokens(app.store)
        self.jwt_tokens = jwt_tokens
        self._authenticate = authenticate
        self._watched: dict[object, _Watched] = {}
        self._watching: asyncio.Task[None] | None = None

    async def of(self, request: Request) -> Grant | None:
        """None: nobody that is known here. Raises StoreError, Unauthorized."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and (grant := await self.of_secret(value.strip())) is not None:
            return grant
        return await self._of_program(request)

    async def of_secret(self, secret: str) -> Grant | None:
        """By a token alone: of the admin, of the issuer of JWTs, or of the database. Secrets of links and of cookies
        are none.
        """
        if await self.admin.matches(secret):
            return Grant(ADMIN, admin=self.admin.digest)
        if self.jwt_tokens is not None and (principal := await self.jwt_tokens.find(secret)) is not None:
            return Grant(principal) if self.is_in_time(principal) else None
        token = await self.tokens.find(secret)
        return Grant(token.principal, token_id=token.id) if token is not None and token.kind == "token" else None

    async def _of_program(self, request: Request) -> Grant | None:
        """What the mounting program says. It has a deadline, and what it raises lets no one in."""
        if self._authenticate is None:
            return None
        try:
            async with asyncio.timeout(AUTHENTICATE_S):
                principal = await self._asked(self._authenticate, request)
        except Exception as error:
            log.error("authenticate() failed", exc_info=error, extra={"action": "http.authenticate"})
            raise Unauthorized("who you are could not be found out; the server's log says why") from error
        if principal is None:
            return None
        if not isinstance(principal, Principal):
            log.error("authenticate() gave no Principal", extra={"action": "http.authenticate"})
            return None
        if not self.is_in_time(principal):
            return None
        return Grant(principal, ask_again_at=self._store.now_ms() + int(ASK_AGAIN_S * 1000))

    @staticmethod
    async def _asked(authenticate: Authenticate, request: Request) -> Principal | None:
        """A function that is not async runs beside the event loop: it may wait for a database of its own."""
        found: Principal | Awaitable[Principal | None] | None
        if inspect.iscoroutinefunction(authenticate):
            found = authenticate(request)
        else:
            found = await _programs.run(lambda _: authenticate(request))
        return await found if isinstance(found, Awaitable) else found

    def is_in_time(self, principal: Principal) -> bool:
        return principal.expires_at is None or principal.expires_at > self._store.now_ms()

    # --- those who stay -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, grant: Grant) -> Iterator["asyncio.Future[GrantEnd]"]:
        """What it gives is done once the grant is not valid any more, or its time is up."""
        watched = self._watched.get(grant.key)
        if watched is None:
            watched = self._watched[grant.key] = _Watched(grant)
        watched.streams += 1
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield watched.ended
        finally:
            watched.streams -= 1
            if watched.streams == 0 and self._watched.get(grant.key) is watched:
                del self._watched[grant.key]
            if not self._watched and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        """One look for all who stay, however many streams each has."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception as error:
                log.error("tokens of open streams cannot be judged", exc_info=error, extra={"action": "token.watch"})

    async def look(self) -> None:
        """At every grant that has an open stream."""
        await self.admin.look()
        ids = [watched.grant.token_id for watched in self._watched.values() if watched.grant.token_id is not None]
        valid: set[str] = set()
        try:
            now_ms = self._store.now_ms()
            valid = {token.id for token in await self._store.tokens.read(ids) if token.ended(now_ms) is None}
        except StoreError:  # which also gives its readers nothing, for as long as it is away
            valid = set(ids)
        self.tokens.forget(set(ids) - valid)
        for key, watched in list(self._watched.items()):
            grant = watched.grant
            gone = grant.token_id is not None and grant.token_id in ids and grant.token_id not in valid
            gone = gone or (grant.admin is not None and grant.admin != self.admin.digest)
            gone = gone or not self.is_in_time(grant.principal)
            if gone or grant.is_due(self._store.now_ms()):
                del self._watched[key]
                if not watched.ended.done():
                    watched.ended.set_result("invalid" if gone else "due")
