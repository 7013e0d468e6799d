"""Kept rules as the database has them: what people said "always" to, read, revoked and forgotten.

They are written with the approval that keeps them, in its transaction, and nowhere else. A rule is in force until it
is revoked, which deletes it, or its time is up; the same rule kept again for the same chats replaces the one before.
Nothing is remembered between two looks, so what one process revokes, no process finds.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.codec import encode
from holdfast.core.records import ChatRecord, KeptRule
from holdfast.errors import LimitReached, NotFound
from holdfast.ids import new_id
from holdfast.store.checks import page_size
from holdfast.store.rows import Row
from holdfast.store.statements import StatementRunner, marked

PRUNED_MAX = 1_000
COLUMNS: tuple[str, ...] = KeptRule.__struct_fields__


def kept_rule_row(rule: KeptRule) -> Row:
    """With an id of its own. For no one agent or chat: the empty text."""
    drawn = replace(rule, id=new_id("rule"))
    values: dict[str, Any] = {name: getattr(drawn, name) for name in COLUMNS}
    return tuple((values | {"agent": rule.agent or "", "chat_id": rule.chat_id or ""}).values())


def kept_rule_of(row: Row) -> KeptRule:
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    return KeptRule(**values | {"agent": values["agent"] or None, "chat_id": values["chat_id"] or None})


def check_room(count: int, limit: int) -> None:
    """For the transaction that kept one more: how many of its owner are in force now. Raises LimitReached."""
    if count > limit:
        what = "revoke some (`holdfast permissions revoke`), or write a rule into the settings"
        raise LimitReached("kept rules of an owner", count, limit, what)


# -- statements. Each store's module `sql` makes its own of them: `{}` is where a value goes.

_INSERT = (
    f"INSERT INTO kept_rules ({', '.join(COLUMNS)}) VALUES ({', '.join(['{}'] * len(COLUMNS))}) "
    "ON CONFLICT (owner, rule, agent, chat_id, life) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in ("made_by", "made_at", "expires_at", "call_id"))
)

_IN_FORCE = "(expires_at IS NULL OR expires_at > {})"

_COUNT = f"SELECT count(*) FROM kept_rules WHERE owner = {{}} AND {_IN_FORCE}"

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM kept_rules WHERE"

_COVERING = (
    f"{_SELECT} owner = {{}} AND {_IN_FORCE} AND agent IN ('', {{}}) "
    "AND ((chat_id = '' AND life = 0) OR (chat_id = {} AND life = {})) AND "
)

_LISTED = (
    f"{_SELECT} (CAST({{}} AS TEXT) IS NULL OR owner = {{}}) AND (CAST({{}} AS TEXT) IS NULL OR chat_id = {{}}) "
    f"AND {_IN_FORCE} AND (CAST({{}} AS TEXT) IS NULL OR id < {{}}) ORDER BY id DESC LIMIT {{}}"
)

_PRUNE = """
DELETE FROM kept_rules WHERE id IN (SELECT id FROM kept_rules WHERE expires_at < {} ORDER BY expires_at LIMIT {})
RETURNING id
"""


class KeptRuleStatements(NamedTuple):
    """The statements on kept rules, with one store's marks."""

    insert: str
    in_force: str
    covering: str
    read: str
    listed: str
    revoke: str
    forget: str
    prune: str


def kept_rule_statements(mark: str, among_rules: str) -> KeptRuleStatements:
    """`mark` is where a value goes, `among_rules` says that a rule is one of those in a JSON list."""

    return KeptRuleStatements(
        insert=marked(_INSERT, mark),
        in_force=marked(_COUNT, mark),
        covering=marked(_COVERING, mark) + among_rules,
        read=marked(f"{_SELECT} id = {{}}", mark),
        listed=marked(_LISTED, mark),
        revoke=marked(f"DELETE FROM kept_rules WHERE id = {{}} RETURNING {', '.join(COLUMNS)}", mark),
        forget=marked("DELETE FROM kept_rules WHERE owner = {} RETURNING id", mark),
        prune=marked(_PRUNE, mark),
    )


class KeptRules:
    """Of one store. Each verb is one transaction, and raises as the store's verbs do."""

    def __init__(self, runner: StatementRunner, statements: KeptRuleStatements, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._sql = statements
        self._now_ms = now_ms

    async def covering(self, chat: ChatRecord, rules: Sequence[str]) -> list[KeptRule]:
        """Those of these rules, word for word, that are in force in this chat now."""
        where = (chat.owner, self._now_ms(), chat.agent, chat.id, chat.life)
        found = await self._runner.rows(self._sql.covering, *where, encode(rules).decode())
        return [kept_rule_of(row) for row in found]

    async def page(
        self, *, owner: str | None = None, chat_id: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[KeptRule]:
        """Those in force, newest first: `before` is the id of the last one of the page before. `owner`, `chat_id`: of
        that one only.
        """
        values = (owner, owner, chat_id, chat_id, self._now_ms(), before, before, page_size(limit))
        return [kept_rule_of(row) for row in await self._runner.rows(self._sql.listed, *values)]

    async def read(self, rule_id: str) -> KeptRule:
        """As it is, ended or not. Raises NotFound."""
        found = await self._runner.rows(self._sql.read, rule_id)
        if not found:
            raise NotFound("kept rule", rule_id)
        return kept_rule_of(found[0])

    async def revoke(self, rule_id: str) -> KeptRule:
        """From now on it counts nowhere. What it let start goes on. Raises NotFound, also the second time, and to
        all but one of those who revoke it at once.
        """
        found = await self._runner.write_alone(self._sql.revoke, rule_id)
        if not found:
            raise NotFound("kept rule", rule_id)
        return kept_rule_of(found[0])

    async def forget(self, owner: str) -> int:
        """All of an owner. Returns how many."""
        return len(await self._runner.write_alone(self._sql.forget, owner))

    async def prune(self, before_ms: int) -> int:
        """Forget those that ended before that instant, at most PRUNED_MAX. Returns how many."""
        return len(await self._runner.write_alone(self._sql.prune, before_ms, PRUNED_MAX))
