"""What a database keeps and no reader can reach any more, and how it goes: some rows at a time.

Three kinds of rows are left behind by chats that go on. Every reader of their tables was looked at:

- **attempts**: streamed text of an attempt that is over. Readers, and a successor that finishes a stop, get deltas
  only of attempts above the chat's `attempt_ended`; a cursor in an older attempt is compared with nothing.
- **calls**: calls of earlier batches. Snapshots, open calls and the liveness query read the chat's current batch
  alone; the call and its result stand in the history.
- **compactions**: summaries that a later one covers. The newest is the one that is read. An older one would be read
  again only after an edit, or in a fork, before the newest: that history is then summarised anew.

`attempt_ended` and `batch` only grow, so what is out of reach at one moment stays so, and no lock on the chat is
needed. The fourth kind, archived chats, is deleted by the store's own verb. What a chat says (its journal) goes with
the chat only. Nothing here decides how long anything is kept: `config.Retention` does.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.config import Retention
from holdfast.core.records import Frozen
from holdfast.errors import NotFound, RecordError, RefusedError

if TYPE_CHECKING:
    from holdfast.store.contract import Store

DAY_MS = 86_400_000
LOOKED_AT_MAX = 500  # chats in one look
# Of one transaction, which others wait for on SQLite: a few milliseconds.
ROWS_MAX = 500
BYTES_MAX = 1 << 20

Leftover = Literal["attempts", "calls", "compactions"]
PrunedKind = Literal["attempts", "calls", "compactions", "archived_chats", "receipts"]
LEFTOVERS: tuple[Leftover, ...] = ("attempts", "calls", "compactions")
KINDS: tuple[PrunedKind, ...] = (*LEFTOVERS, "archived_chats", "receipts")


class Amount(NamedTuple):
    """`bytes` of text; what the database keeps around it is not counted."""

    rows: int = 0
    bytes: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self.rows + other.rows, self.bytes + other.bytes)


class Cutoffs(Frozen):
    """What is older than these instants (ms, by the store's clock) goes. 0: nothing is."""

    attempts: int = 0
    calls: int = 0
    compactions: int = 0
    archived_chats: int = 0

    def of(self, kind: Leftover) -> int:
        cutoff: int = getattr(self, kind)
        return cutoff


def cutoffs_of(policy: Retention, now_ms: int) -> Cutoffs:
    def before(days: float | None) -> int:
        return 0 if days is None else max(0, now_ms - int(days * DAY_MS))

    return Cutoffs(
        attempts=before(policy.attempts_days),
        calls=before(policy.calls_days),
        compactions=before(policy.compactions_days),
        archived_chats=before(policy.archived_chats_days),
    )


# --- statements, the same on both stores ----------------------------------------------------------------------------

# The next chats in the order of their ids, and whether they have leftovers. Of the calls the oldest tells.
NEXT_WITH_LEFTOVERS = """
SELECT chats.id, EXISTS (
    SELECT 1 FROM deltas
    WHERE deltas.chat_id = chats.id AND deltas.attempt <= chats.attempt_ended AND deltas.at < {attempts}
) OR coalesce((
    SELECT journal.at FROM journal WHERE journal.chat_id = chats.id AND journal.seq = (
        SELECT min(calls.batch) FROM calls
        WHERE calls.chat_id = chats.id AND calls.batch < coalesce(chats.batch, chats.seq + 1))
) < {calls}, FALSE) OR EXISTS (
    SELECT 1 FROM compactions AS older JOIN compactions AS newer ON newer.chat_id = older.chat_id
    WHERE older.chat_id = chats.id AND newer.upto > older.upto AND newer.created_at < {compactions}
)
FROM chats WHERE chats.id > {after} ORDER BY chats.id LIMIT {limit}
"""

# Per kind: its table, its key behind the chat's id, how large a row is, and which rows of the given chats go.
# CROSS JOIN: SQLite takes the tables in this order.
_CALL_BYTES = " + ".join(f"octet_length(coalesce(calls.{column}, ''))" for column in ("arguments", "excerpt", "told"))
_WHAT: dict[Leftover, tuple[str, tuple[str, ...], str, str]] = {
    "attempts": (
        "deltas",
        ("attempt", "k"),
        "octet_length(deltas.body)",
        "CROSS JOIN chats CROSS JOIN deltas WHERE chats.id = given.id AND deltas.chat_id = chats.id "
        "AND deltas.attempt <= chats.attempt_ended AND deltas.at < {before}",
    ),
    "calls": (
        "calls",
        ("batch", "pos"),
        _CALL_BYTES,
        "CROSS JOIN chats CROSS JOIN calls CROSS JOIN journal WHERE chats.id = given.id "
        "AND calls.chat_id = chats.id AND calls.batch < coalesce(chats.batch, chats.seq + 1) "
        "AND journal.chat_id = chats.id AND journal.seq = calls.batch AND journal.at < {before}",
    ),
    "compactions": (
        "compactions",
        ("upto",),
        "octet_length(compactions.summary)",
        "CROSS JOIN compactions WHERE compactions.chat_id = given.id AND EXISTS ("
        "SELECT 1 FROM compactions AS newer WHERE newer.chat_id = compactions.chat_id "
        "AND newer.upto > compactions.upto AND newer.created_at < {before})",
    ),
}

TABLES: dict[Leftover, str] = {kind: table for kind, (table, *_) in _WHAT.items()}


def count_statement(kind: Leftover, given: str, before: str) -> str:
    """How many rows, and bytes, there are to go. `given` is a table of chats' ids."""
    _, _, size, which = _WHAT[kind]
    return f"SELECT count(*), coalesce(sum({size}), 0) FROM {given} {which.format(before=before)}"


def drop_statement(kind: Leftover, given: str, before: str, lock: str = "") -> str:
    """Deletes the first of them, at most ROWS_MAX and some BYTES_MAX, and returns the size of each."""
    table, key, size, which = _WHAT[kind]
    columns = ("chat_id", *key)
    listed = ", ".join(f"{table}.{column}" for column in columns)
    plain = ", ".join(columns)
    return (
        f"WITH old AS MATERIALIZED (SELECT {listed}, {size} AS size FROM {given} {which.format(before=before)} "
        f"ORDER BY {listed} LIMIT {ROWS_MAX} {lock}), "
        f"bounded AS MATERIALIZED (SELECT {plain} FROM (SELECT {plain}, size, "
        f"sum(size) OVER (ORDER BY {plain}) - size AS so_far FROM old) AS summed WHERE so_far < {BYTES_MAX}) "
        f"DELETE FROM {table} WHERE ({plain}) IN (SELECT {plain} FROM bounded) RETURNING {size}"
    )


# Of a family the chat at its top is archived. A member that was used since keeps all of them.
_EXPIRED = (
    "{archived} AND parent_id IS NULL AND state IN ('idle', 'failed') AND updated_at < {before} AND NOT EXISTS ("
    "SELECT 1 FROM chats AS kin WHERE kin.root_id = chats.id AND kin.updated_at >= {before})"
)
NEXT_EXPIRED = (
    "SELECT id, 1 + (SELECT count(*) FROM chats AS kin WHERE kin.root_id = chats.id) FROM chats "
    f"WHERE id > {{after}} AND {_EXPIRED} ORDER BY id LIMIT {{limit}}"
)
IS_EXPIRED = f"SELECT 1 FROM chats WHERE id = {{id}} AND {_EXPIRED}"


# --- one walk over all chats ----------------------------------------------------------------------------------------


class Pruning:
    """One walk over all chats, slice by slice. It may be left at any slice: what is done is done, and the next walk
    begins anew. `dry_run` counts and changes nothing.
    """

    def __init__(self, store: "Store", cutoffs: Cutoffs, *, dry_run: bool = False) -> None:
        self._store = store
        self._cutoffs = cutoffs
        self._dry_run = dry_run
        self._after: str | None = ""  # None: this part of the walk is over
        self._after_archived: str | None = "" if cutoffs.archived_chats else None
        self._left: list[str] = []  # chats with leftovers
        self._expired: list[tuple[str, int]] = []  # chats to delete, and how many go with each
        self.chats_seen = 0
        self.freed: dict[PrunedKind, Amount] = dict.fromkeys(KINDS, Amount())

    async def run_once(self) -> bool:
        """One slice: a look, or some small transactions. False: the walk is over. Raises StoreError."""
        if self._left:
            await self._drop()
        elif self._after is not None:
            await self._look(self._after)
        elif self._expired:
            await self._delete(*self._expired.pop(0))
        elif self._after_archived is not None:
            await self._look_for_expired(self._after_archived)
        return bool(self._left or self._expired) or (self._after, self._after_archived) != (None, None)

    def add(self, kind: PrunedKind, amount: Amount) -> None:
        self.freed[kind] = self.freed[kind].plus(amount)

    async def _look(self, after: str) -> None:
        found = await self._store.next_with_leftovers(self._cutoffs, after)
        self.chats_seen += len(found)
        self._after = found[-1][0] if len(found) == LOOKED_AT_MAX else None
        self._left = [chat_id for chat_id, has_some in found if has_some]

    async def _drop(self) -> None:
        more = False
        for kind in LEFTOVERS:
            if cutoff := self._cutoffs.of(kind):
                amount = await self._store.drop_leftovers(kind, self._left, cutoff, dry_run=self._dry_run)
                self.add(kind, amount)
                more = more or amount.rows >= ROWS_MAX or amount.bytes >= BYTES_MAX
        if self._dry_run or not more:
            self._left = []

    async def _look_for_expired(self, after: str) -> None:
        self._expired = await self._store.next_expired(self._cutoffs.archived_chats, after)
        self._after_archived = self._expired[-1][0] if len(self._expired) == LOOKED_AT_MAX else None

    async def _delete(self, chat_id: str, family: int) -> None:
        """Not where it is used again, or where this code cannot read it."""
        if not self._dry_run:
            try:
                deleted = await self._store.delete_chat(
                    chat_id, children="include", archived_before=self._cutoffs.archived_chats
                )
            except (NotFound, RefusedError, RecordError):
                return
            family = len(deleted)
        self.add("archived_chats", Amount(family))
