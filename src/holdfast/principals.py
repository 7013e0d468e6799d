"""Who asks, and what that one may do: a `Principal` for every request. What it sees is decided in one place of the
server (`server/owned_store.py`); nothing here looks at a chat.
"""

from typing import Literal, get_args

from msgspec import Struct

from holdfast.errors import InvalidInput

Scope = Literal["read", "chat", "approve", "operate", "work"]
SCOPES: frozenset[str] = frozenset(get_args(Scope))
OWN_SCOPES: frozenset[str] = frozenset({"read", "chat", "approve"})  # what people do with chats of their own
NAME_CHARS_MAX = 200


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks.

    `owner`: whose chats it sees and makes; None is for those who see the chats of every owner.
    `scopes`: `read` sees, searches and follows chats; `chat` makes them, sends, stops, edits, forks, archives and
    deletes; `approve` approves and denies calls; `operate` is for diagnostics, metrics, tracebacks and tokens;
    `work` is for workers.
    `chat`: it sees that chat and those of its sub-agents alone.
    `expires_at`: in ms since 1970; its open streams end then.

    >>> Principal(name="ann@example.com", owner="acme").allows("operate")
    False
    """

    name: str
    owner: str | None
    scopes: frozenset[str] = OWN_SCOPES
    chat: str | None = None
    expires_at: int | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput. What a program gives is looked at: what is no Principal must not be taken for one."""
        for field in ("name", "owner", "chat"):
            if not isinstance(getattr(self, field), str if field == "name" else str | None):
                raise InvalidInput(field, "is a text" if field == "name" else "is a text, or None")
        if isinstance(self.expires_at, bool) or not isinstance(self.expires_at, int | None):
            raise InvalidInput("expires_at", "is a number of milliseconds since 1970, or None")
        if not self.name or len(self.name) > NAME_CHARS_MAX:
            raise InvalidInput("name", f"needs 1 to {NAME_CHARS_MAX} characters: it tells who asked")
        if self.owner is not None and not 0 < len(self.owner) <= NAME_CHARS_MAX:
            words = f"needs 1 to {NAME_CHARS_MAX} characters; None is for who sees the chats of every owner"
            raise InvalidInput("owner", words)
        if unknown := sorted(set(self.scopes) - SCOPES):
            raise InvalidInput("scopes", f"{unknown[0][:40]!r} is none of {', '.join(sorted(SCOPES))}")

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def sees_all(self) -> bool:
        """Every chat of every owner."""
        return self.owner is None and self.chat is None

    @property
    def key_space(self) -> str:
        """Whose idempotency keys they are. All tokens of an owner share one: who asks again with a new token asks for
        the same. So do all that are for one chat alone, apart from the others, who are not told what it was asked.
        The owner belongs to it: the id of a chat that was deleted may be another owner's. No name makes up another's.
        """
        if self.chat is not None and self.owner is not None:
            return f"owned chat:{len(self.owner)}:{self.owner}:{self.chat}"
        if self.chat is not None:
            return f"chat:{self.chat}"
        return f"owner:{self.owner}" if self.owner is not None else f"name:{self.name}"


ADMIN = Principal(name="admin", owner=None, scopes=SCOPES)
