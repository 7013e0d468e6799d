"""Tokens as the database has them: who may ask, under the digest of a secret that is shown once and stored nowhere.

A token ends by its expiry, when it is revoked, and with the token it was made with: `revoked_at` is then that of the
whole line. A `link` logs a browser in, once; a `session` is what the browser has from then on.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.codec import check_text, encode
from holdfast.core.records import Frozen
from holdfast.errors import InvalidInput, NotFound
from holdfast.ids import new_id
from holdfast.principals import OWN_SCOPES, Principal
from holdfast.store.checks import page_size
from holdfast.store.rows import Row
from holdfast.store.statements import StatementRunner, marked

TokenKind = Literal["token", "session", "link"]
KINDS: tuple[TokenKind, ...] = ("token", "session", "link")
SECRET_BYTES = 32
TOKENS_READ_MAX = 1_000  # in one statement
ENDED_DAYS = 30  # how long one that has ended is still shown
PRUNED_MAX = 1_000

_SECRET = re.compile(r"hf_(tok_[0-9a-z]{1,64})_[0-9A-Za-z_-]{43}")
COLUMNS = (
    *("id", "kind", "name", "owner", "scopes", "chat"),
    *("created_at", "expires_at", "revoked_at", "created_by", "parent"),
)


class Token(Frozen):
    """What is known of one, without its secret."""

    id: str
    kind: TokenKind
    name: str
    owner: str | None
    scopes: frozenset[str]
    chat: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    created_by: str
    parent: str | None  # the token that it was made with, and ends with

    @property
    def principal(self) -> Principal:
        return Principal(
            name=self.name, owner=self.owner, scopes=self.scopes, chat=self.chat, expires_at=self.expires_at
        )

    def ended(self, now_ms: int) -> Literal["revoked", "expired"] | None:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now_ms else None


class NewToken(Frozen):
    """What `create_token` is asked for. `expires_at` is in ms since 1970, by the store's clock (`Store.now_ms`)."""

    name: str
    owner: str | None
    scopes: frozenset[str] = OWN_SCOPES
    kind: TokenKind = "token"
    chat: str | None = None
    expires_at: int | None = None
    created_by: str = ""
    parent: str | None = None

    def check(self) -> None:
        """Raises InvalidInput."""
        for field in ("name", "owner", "chat", "created_by", "parent"):
            check_text(field, getattr(self, field) or "", bytes_max=1024)
        if self.kind not in KINDS:
            raise InvalidInput("kind", f"is one of {', '.join(KINDS)}")
        Principal(name=self.name, owner=self.owner, scopes=self.scopes, chat=self.chat)  # raises what is wrong


def new_secret() -> tuple[str, str]:
    """(id, secret) of a token: the secret names the id, so that a log of ids and a found secret can be matched."""
    token_id = new_id("tok")
    return token_id, f"hf_{token_id}_{secrets.token_urlsafe(SECRET_BYTES)}"


def looks_like_secret(text: str) -> bool:
    """Whether it may be one of ours: what is not is refused without a look at the database."""
    return _SECRET.fullmatch(text) is not None


def digest_of(secret: str) -> str:
    """256 random bits need no salt and no slow digest."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_of(row: Row) -> Token:
    """Of FIND_TOKENS: behind the columns stand the first revocation in its line, and whether that line is whole."""
    *own, revoked_at, whole = row
    found: Mapping[str, Any] = dict(zip(COLUMNS, own, strict=True))
    if not whole:  # one that it was made with was revoked so long ago that it is forgotten
        revoked_at = found["created_at"]
    return Token(**{**found, "scopes": frozenset(found["scopes"].split()), "revoked_at": revoked_at})


# -- statements. Each store's module `sql` makes its own of them: `{}` is where a value goes.

INSERT_TOKEN = """
INSERT INTO tokens (id, hash, kind, name, owner, scopes, chat, created_at, expires_at, created_by, parent)
VALUES ({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}) ON CONFLICT (id) DO NOTHING
"""

# Each with the whole line that it was made with: the first revocation in it, and whether none of it is missing.
FIND_TOKENS = f"""
WITH RECURSIVE line (token, id, parent, revoked_at) AS (
    SELECT id, id, parent, revoked_at FROM tokens WHERE {{wanted}}
    UNION SELECT line.token, tokens.id, tokens.parent, tokens.revoked_at
    FROM line JOIN tokens ON tokens.id = line.parent
)
SELECT {", ".join(f"tokens.{name}" for name in COLUMNS)}, lines.revoked_at, lines.whole
FROM (
    SELECT token, min(revoked_at) AS revoked_at, count(parent) = count(*) - 1 AS whole FROM line GROUP BY token
) AS lines JOIN tokens ON tokens.id = lines.token ORDER BY tokens.id DESC
"""

_LISTED = """
id IN (SELECT id FROM tokens WHERE kind = {} AND (CAST({} AS TEXT) IS NULL OR owner = {})
       AND (CAST({} AS TEXT) IS NULL OR id < {}) ORDER BY id DESC LIMIT {})
"""

# The same use may be asked for again, by a store that lost its connection: it is still one.
USE_TOKEN = """
UPDATE tokens SET revoked_at = {}, used = {}
WHERE hash = {} AND kind = {} AND ((revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {})) OR used = {})
RETURNING id
"""

REVOKE_TOKEN = "UPDATE tokens SET revoked_at = {} WHERE id = {} AND revoked_at IS NULL"

EXTEND_TOKEN = "UPDATE tokens SET expires_at = {} WHERE id = {} AND revoked_at IS NULL AND expires_at < {}"

PRUNE_TOKENS = """
DELETE FROM tokens WHERE id IN (
    SELECT id FROM tokens WHERE expires_at < {} OR revoked_at < {} ORDER BY id LIMIT {}
) RETURNING id
"""


class TokenStatements(NamedTuple):
    """The statements on tokens, with one store's marks."""

    insert: str
    by_hash: str
    by_ids: str
    listed: str
    use: str
    revoke: str
    extend: str
    prune: str


def token_statements(mark: str, among_ids: str) -> TokenStatements:
    """`mark` is where a value goes, `among_ids` says that an id is one of those in a JSON list."""

    return TokenStatements(
        insert=marked(INSERT_TOKEN, mark),
        by_hash=FIND_TOKENS.format(wanted=f"hash = {mark}"),
        by_ids=FIND_TOKENS.format(wanted=among_ids),
        listed=FIND_TOKENS.format(wanted=marked(_LISTED, mark)),
        use=marked(USE_TOKEN, mark),
        revoke=marked(REVOKE_TOKEN, mark),
        extend=marked(EXTEND_TOKEN, mark),
        prune=marked(PRUNE_TOKENS, mark),
    )


class Tokens:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StatementRunner, statements: TokenStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms

    async def create(self, new: NewToken) -> tuple[Token, str]:
        """The token, and its secret: the caller shows it once, and it is stored nowhere. Raises InvalidInput."""
        new.check()
        token_id, secret = new_secret()
        scopes = " ".join(sorted(new.scopes))
        named = (token_id, digest_of(secret), new.kind, new.name, new.owner, scopes, new.chat)
        await self._runner.write_alone(
            self._sql.insert, *named, self._now_ms(), new.expires_at, new.created_by, new.parent
        )
        return (await self.read([token_id]))[0], secret

    async def find(self, secret: str) -> Token | None:
        """As it is, ended or not: `Token.ended` says which."""
        if not looks_like_secret(secret):
            return None
        found = await self._runner.rows(self._sql.by_hash, digest_of(secret))
        return token_of(found[0]) if found else None

    async def read(self, ids: Sequence[str]) -> list[Token]:
        """Those that there are, at most TOKENS_READ_MAX at a time."""
        found: list[Token] = []
        for at in range(0, len(ids), TOKENS_READ_MAX):
            wanted = encode(ids[at : at + TOKENS_READ_MAX]).decode()
            found += [token_of(row) for row in await self._runner.rows(self._sql.by_ids, wanted)]
        return found

    async def page(
        self, *, owner: str | None = None, kind: TokenKind = "token", before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """Newest first: `before` is the id of the last one of the page before. `owner`: of that one only."""
        values = (kind, owner, owner, before, before, page_size(limit))
        return [token_of(row) for row in await self._runner.rows(self._sql.listed, *values)]

    async def revoke(self, token_id: str) -> Token:
        """From now on it is none, and neither are those that were made with it. Safe to repeat. Raises NotFound."""
        await self._runner.write_alone(self._sql.revoke, self._now_ms(), token_id)
        found = await self.read([token_id])
        if not found:
            raise NotFound("token", token_id)
        return found[0]

    async def extend(self, token_id: str, expires_at: int) -> None:
        """It ends at that instant, unless it ends later anyway, or was revoked. Safe to repeat."""
        await self._runner.write_alone(self._sql.extend, expires_at, token_id, expires_at)

    async def use_once(self, secret: str, kind: TokenKind = "link") -> Token | None:
        """The token, for the first one that brings its secret in time; None for all others. Whoever is first, it is
        used up by then, in every process.
        """
        if not looks_like_secret(secret):
            return None
        found = await self.find(secret)
        if found is None or found.ended(self._now_ms()) is not None:  # with all that it was made with
            return None
        now_ms, use = self._now_ms(), new_id("use")
        values = (now_ms, use, digest_of(secret), kind, now_ms, use)
        return found if await self._runner.write_alone(self._sql.use, *values) else None

    async def prune(self, before_ms: int) -> int:
        """Forget those that ended before that instant, at most PRUNED_MAX. Returns how many."""
        return len(await self._runner.write_alone(self._sql.prune, before_ms, before_ms, PRUNED_MAX))
