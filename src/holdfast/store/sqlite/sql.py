"""The statements of the SQLite store, each named and described. No decision is taken here."""

from functools import cache
from typing import NamedTuple

from holdfast.core.records import State
from holdfast.store import liveness, retention
from holdfast.store.budgets import budget_statements
from holdfast.store.chat_lists import FilterNames, where
from holdfast.store.deliveries import delivery_statements
from holdfast.store.kept_files import PUT_ALONE, file_statements
from holdfast.store.kept_rules import kept_rule_statements
from holdfast.store.link_keys import link_key_statements
from holdfast.store.liveness import liveness_query
from holdfast.store.memory_statements import RANKED_MAX, MemoryStatements, SearchForm, matched_by_fts5
from holdfast.store.notices import FOR_EACH_HOOK, HEARS, INTO_DELIVERIES, NOTICE_COLUMNS
from holdfast.store.open_calls import open_call_listing
from holdfast.store.rows import CALL_COLUMNS, CHAT_COLUMNS, MOVING_COLUMNS, STEP_COLUMNS
from holdfast.store.schedule_statements import schedule_statements
from holdfast.store.survey import survey_statement
from holdfast.store.tokens import token_statements
from holdfast.store.webhooks import webhook_statements


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _marks(count: int) -> str:
    return ", ".join("?" * count)


# -- chats


def given_rows(kinds: str) -> str:
    """Rows of a JSON array of arrays, which keep the types that they have there."""
    columns = ", ".join(f"value ->> {n}" for n in range(len(kinds)))
    return f"SELECT {columns} FROM json_each({{rows}}) WHERE true"


INSERT_CHAT = f"INSERT INTO chats ({_columns(CHAT_COLUMNS)}) VALUES ({_marks(len(CHAT_COLUMNS))})"


def _update_chat(columns: tuple[str, ...]) -> str:
    return (
        f"UPDATE chats SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ? AND stamp = ? AND version = ?"
    )


# Compare and swap: nothing happens unless the chat is still what the change was decided on. The stamp says so; older
# code beside us leaves the stamp as it was, but not the version.
UPDATE_CHAT = _update_chat(MOVING_COLUMNS)

# The same for a change that leaves ownership alone: SQLite rewrites the index of every column that is set, changed or
# not, which would be one page more in every commit. And for a step, as most are: nine indexes look at a chat's state,
# and with `state` among the columns SQLite asks for each whether the chat was in it, and whether it is.
OWNERSHIP_COLUMNS = ("worker", "wake_at")
UPDATE_CHAT_WORK = _update_chat(tuple(name for name in MOVING_COLUMNS if name not in OWNERSHIP_COLUMNS))
UPDATE_CHAT_STEP = _update_chat(STEP_COLUMNS)

NAME_AGENT = "UPDATE chats SET agent = ? WHERE id = ?"

READ_CHAT = f"SELECT {_columns(CHAT_COLUMNS)} FROM chats WHERE id = ?"

READ_STATE = "SELECT state FROM chats WHERE id = ?"

READ_CALLS = f"SELECT {_columns(CALL_COLUMNS)} FROM calls WHERE chat_id = ? AND batch = ? ORDER BY pos"

READ_QUEUE = "SELECT id, rank, mode, body FROM queue WHERE chat_id = ? ORDER BY rank"

# What a stop has to reach, from the top down. Read from the chats that are open in the family, which are
# few, and those above each: never all that were spawned in its life.
READ_BUSY_BELOW = """
WITH RECURSIVE busy (id, depth, above) AS (
    SELECT id, depth, parent_id FROM chats WHERE root_id = ? AND state IN ('running', 'stopping', 'waiting')
    UNION ALL
    SELECT busy.id, busy.depth, chats.parent_id FROM busy JOIN chats ON chats.id = busy.above WHERE busy.above <> ?
)
SELECT id FROM busy WHERE above = ? ORDER BY depth, id
"""

# What was spawned by a chat, or all that is below it: those at work first, then the newest.
SUB_AGENTS = f"""
WITH RECURSIVE family (id, depth) AS (
    SELECT id, depth FROM chats WHERE parent_id = :chat
    UNION SELECT chats.id, chats.depth FROM chats JOIN family ON chats.parent_id = family.id
    WHERE :deep AND chats.depth > family.depth
)
SELECT {_columns(CHAT_COLUMNS)}, (SELECT count(*) FROM queue WHERE chat_id = chats.id)
FROM chats WHERE id IN (SELECT id FROM family)
ORDER BY state NOT IN ('running', 'stopping', 'waiting'), id DESC LIMIT :limit
"""

COUNT_FAMILY = "SELECT count(*) FROM chats WHERE root_id = ? AND state IN ('running', 'stopping', 'waiting')"

# The chat and everything spawned below it, with what forbids deleting it.
READ_FAMILY = """
WITH RECURSIVE family (id, state) AS (
    SELECT id, state FROM chats WHERE id = ?
    UNION SELECT chats.id, chats.state FROM chats JOIN family ON chats.parent_id = family.id
)
SELECT id, state FROM family
"""

# The same with all that is known of each, parents first.
READ_WHOLE_FAMILY = f"""
WITH RECURSIVE family (id) AS (
    SELECT id FROM chats WHERE id = ?
    UNION SELECT chats.id FROM chats JOIN family ON chats.parent_id = family.id
)
SELECT {_columns(CHAT_COLUMNS)} FROM chats WHERE id IN (SELECT id FROM family) ORDER BY depth, id LIMIT ?
"""

# From one to the next by its index: the chats of each are counted, and nothing of them is read.
LIST_OWNERS = """
SELECT owner, count(*) FROM chats WHERE ?1 IS NULL OR owner > ?1 GROUP BY owner ORDER BY owner LIMIT ?2
"""

# What people and clients have to answer in a chat and in all that was spawned below it.
OPEN_CALLS = f"""
WITH RECURSIVE family (id, agent, batch, depth) AS (
    SELECT id, agent, batch, depth FROM chats WHERE id = ?
    UNION SELECT chats.id, chats.agent, chats.batch, chats.depth
    FROM chats JOIN family ON chats.parent_id = family.id WHERE chats.depth > family.depth
)
SELECT family.id, family.agent, {", ".join(f"calls.{name}" for name in CALL_COLUMNS)}
FROM family JOIN calls ON calls.chat_id = family.id AND calls.batch = family.batch
WHERE calls.state = 'asking' OR (calls.state = 'external' AND calls.external IN ('client', 'question'))
ORDER BY family.depth, family.id, calls.pos LIMIT ?
"""

# Open ones of a chat; those it made since an instant; open ones of the whole family.
COUNT_CHILDREN = """
SELECT (SELECT count(*) FROM chats WHERE parent_id = :chat AND state IN ('running', 'stopping', 'waiting')),
       (SELECT count(*) FROM chats WHERE parent_id = :chat AND parent_turn = :turn),
       (SELECT count(*) FROM chats WHERE root_id = :root AND state IN ('running', 'stopping', 'waiting'))
"""

# JSON that its functions cannot read (it is nested deeper than we take it now) is nothing: one such chat must not
# take the listing from all.
# The size is known without reading the text; a message with a picture in it is not worth its megabytes here.
_OPENING = """
       (SELECT substr(json_extract(body, '$.message.parts[0].text'), 1, 200) FROM journal
        WHERE chat_id = chats.id AND pos = 0 AND octet_length(body) <= 65536 AND json_valid(body))
"""
_LISTED = f"""
SELECT id, agent, owner, title, {_OPENING},
       state, archived, (SELECT count(*) FROM queue WHERE chat_id = chats.id),
       created_at, updated_at, worker, wake_at, metadata
FROM chats
"""

_SEARCHED = r"""
(title LIKE :pattern ESCAPE '\'
 OR EXISTS (SELECT 1 FROM journal WHERE chat_id = chats.id AND pos = 0
            AND json_valid(body) AND json_extract(body, '$.message.parts[0].text') LIKE :pattern ESCAPE '\'))
"""

_WITH_METADATA = """
NOT EXISTS (
    SELECT 1 FROM json_each(:metadata) AS want WHERE NOT EXISTS (
        SELECT 1 FROM json_each(iif(json_valid(chats.metadata), chats.metadata, '{}')) AS have
        WHERE have.key = want.key AND want.value =
            CASE WHEN have.type IN ('true', 'false') THEN have.type ELSE CAST(have.value AS TEXT) END))
"""


@cache
def list_open_calls(given: frozenset[str]) -> str:
    return open_call_listing(given, ":{}".format, _OPENING)


@cache
def list_chats(state: State | None, archived: bool | None, given: FilterNames) -> str:
    conditions = {
        "owner": "owner = :owner",
        "id": "id = :id",
        "agent": "+agent = :agent" if "owner" in given else "agent = :agent",  # +: not by its index
        "before": "id < :before",
        "pattern": _SEARCHED,
        "metadata": _WITH_METADATA,
    }
    flags = {True: "archived = 1", False: "archived = 0"}
    return f"{_LISTED}{where(conditions, flags, state, archived, given)} ORDER BY id DESC LIMIT :limit"


DELETE_CHAT = "DELETE FROM chats WHERE id = ?"

# -- what a chat holds

INSERT_JOURNAL = "INSERT INTO journal (chat_id, seq, stamp, at, role, pos, ref, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

# Whether what a runner knew is still there.
READ_LINE_STAMP = "SELECT stamp FROM journal WHERE chat_id = ? AND seq = ?"

# Positions from here on leave history; their journal entries stay.
CUT_HISTORY = "UPDATE journal SET pos = NULL WHERE chat_id = ? AND pos >= ?"

CUT_COMPACTIONS = "DELETE FROM compactions WHERE chat_id = ? AND upto > ?"

# An upsert, not REPLACE: that would delete the row first, and with it what newer code keeps in columns of its own.
PUT_CALL = (
    f"INSERT INTO calls (chat_id, {_columns(CALL_COLUMNS)}) VALUES (?, {_marks(len(CALL_COLUMNS))}) "
    "ON CONFLICT (chat_id, batch, pos) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in CALL_COLUMNS if name not in ("batch", "pos"))
)

PUT_QUEUED = """
INSERT INTO queue (chat_id, id, rank, mode, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (chat_id, id) DO UPDATE SET rank = excluded.rank, mode = excluded.mode, body = excluded.body
"""

DROP_QUEUED = "DELETE FROM queue WHERE chat_id = ? AND id = ?"

PUT_COMPACTION = """
INSERT INTO compactions (chat_id, upto, summary, created_at) VALUES (?, ?, ?, ?)
ON CONFLICT (chat_id, upto) DO UPDATE SET summary = excluded.summary, created_at = excluded.created_at
"""

# Rows may stand under an id that has no chat (remnants.py): readers go by the chat.
_THERE = "EXISTS (SELECT 1 FROM chats WHERE id = :id)"

READ_COMPACTION = f"""
SELECT upto, summary, created_at FROM compactions WHERE chat_id = :id AND {_THERE} ORDER BY upto DESC LIMIT 1
"""

READ_COMPACTIONS = f"""
SELECT upto, summary, created_at FROM compactions
WHERE chat_id = :id AND upto > :start AND upto <= :end AND {_THERE} ORDER BY upto DESC LIMIT :limit
"""

READ_HISTORY = f"""
SELECT pos, seq, role, ref, body FROM journal
WHERE chat_id = :id AND pos >= :start AND {_THERE} ORDER BY pos LIMIT :limit
"""

# Newest first: who edits, edits near the end.
LOCATE_MESSAGE = """
SELECT journal.pos, journal.role, chats.epoch FROM journal JOIN chats ON chats.id = journal.chat_id
WHERE journal.chat_id = ? AND journal.pos IS NOT NULL AND journal.ref = ? ORDER BY journal.pos DESC LIMIT 1
"""

READ_JOURNAL = """
SELECT seq, stamp, at, body FROM journal WHERE chat_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""

READ_ENTRY = "SELECT body FROM journal WHERE chat_id = ? AND seq = ?"

READ_PLACE = """
SELECT state, life, seq, fence, attempt_ended,
       (SELECT stamp FROM journal WHERE chat_id = ?1 AND seq = ?2),
       (SELECT stamp FROM deltas WHERE chat_id = ?1 AND attempt = ?3 AND k = ?4)
FROM chats WHERE id = ?1
"""

# -- health

# Another value each time: SQLite writes no page for one that is the same.
PROVE_WRITING = "INSERT INTO meta VALUES ('writes_proved', 1) ON CONFLICT (key) DO UPDATE SET value = meta.value + 1"

# -- deltas

# Repeating a flush changes nothing.
ADD_DELTA = "INSERT OR IGNORE INTO deltas (chat_id, attempt, k, stamp, at, body) VALUES (?, ?, ?, ?, ?, ?)"

# Only while the claim holds, all that its runner knew is in the chat's past, the attempt is open, and where no piece
# before it is missing.
MAY_STREAM = """
SELECT 1 FROM chats WHERE id = ?1 AND worker = ?2 AND claim_stamp = ?3 AND fence = ?4 AND attempt_ended < ?5
AND EXISTS (SELECT 1 FROM journal WHERE chat_id = ?1 AND seq = ?6 AND stamp IN (?7, 0))
AND (?8 = 0 OR EXISTS (SELECT 1 FROM deltas WHERE chat_id = ?1 AND attempt = ?5 AND k = ?8 - 1))
"""

READ_OPEN_DELTAS = """
SELECT attempt, k, stamp, at, body FROM deltas
WHERE chat_id = ?1 AND attempt > ?2 AND (attempt, k) > (?3, ?4) ORDER BY attempt, k LIMIT ?5
"""

READ_DELTAS = f"""
SELECT attempt, k, body FROM deltas WHERE chat_id = :id AND attempt = :attempt AND {_THERE} ORDER BY k
"""

DROP_DELTAS = "DELETE FROM deltas WHERE chat_id = ? AND attempt = ?"

# -- fork

# The first position behind the group that a position is in: results belong to the response before them.
END_OF_GROUP = "SELECT min(pos) FROM journal WHERE chat_id = ? AND pos > ? AND role <> 'tool'"

# Positions that are not copied yet, with what each takes; the length is known without reading the text.
SIZES_TO_COPY = """
SELECT pos, octet_length(body) FROM journal WHERE chat_id = ? AND pos >= ? AND pos < ? ORDER BY pos LIMIT ?
"""

# As bytes, renumbered: one journal entry per position, behind those that are there.
COPY_HISTORY = """
INSERT INTO journal (chat_id, seq, stamp, at, role, pos, ref, body)
SELECT ?1, ?3 + row_number() OVER (ORDER BY pos), ?6, at, role, pos, ref, body
FROM journal WHERE chat_id = ?2 AND pos >= ?4 AND pos < ?5 ORDER BY pos
"""

COPY_COMPACTIONS = """
INSERT INTO compactions (chat_id, upto, summary, created_at)
SELECT ?1, upto, summary, created_at FROM compactions WHERE chat_id = ?2 AND upto <= ?3
"""

# -- remnants

REMNANT_COLUMNS = ("chat_id", "source_id", "source_life", "source_epoch", "pos", "seq")

READ_REMNANTS = f"SELECT {_columns(REMNANT_COLUMNS)} FROM remnants ORDER BY chat_id LIMIT ?"

READ_REMNANT = f"SELECT {_columns(REMNANT_COLUMNS)} FROM remnants WHERE chat_id = ?"

ANY_REMNANT = "SELECT 1 FROM remnants LIMIT 1"

PUT_REMNANT = (
    f"INSERT INTO remnants ({_columns(REMNANT_COLUMNS)}) VALUES ({_marks(len(REMNANT_COLUMNS))}) "
    "ON CONFLICT (chat_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in REMNANT_COLUMNS if name != "chat_id")
)

DROP_REMNANT = "DELETE FROM remnants WHERE chat_id = ?"

GIVE_UP_FORK = "UPDATE remnants SET source_id = NULL WHERE chat_id = ?1 AND pos = coalesce(?2, pos)"

ROWS_TO_GO = "SELECT chat_id FROM remnants WHERE chat_id = ? AND source_id IS NULL"


class Heap(NamedTuple):
    """The rows of one table that belong to a chat: how large each is, and how one of them, or all, are deleted."""

    sizes: str
    delete_one: str
    delete_all: str


def _heap(table: str, key: tuple[str, ...], text: str, order: str = "ASC", weight: int = 1) -> Heap:
    """`key`: what identifies a row within its chat. `weight`: so many bytes of another table go in the same time."""
    sort = ", ".join(f"{name} {order}" for name in key)
    return Heap(
        f"SELECT {_columns(key)}, octet_length({text}) * {weight} FROM {table} "
        f"WHERE chat_id = ? ORDER BY {sort} LIMIT ?",
        f"DELETE FROM {table} WHERE chat_id = ? AND {' AND '.join(f'{name} = ?' for name in key)}",
        f"DELETE FROM {table} WHERE chat_id = ?",
    )


# In the order in which they go: the first line of the journal is the last.
HEAPS = (
    _heap("deltas", ("attempt", "k"), "body"),
    _heap("file_uses", ("digest",), "digest"),
    _heap("calls", ("batch", "pos"), "arguments"),
    _heap("queue", ("id",), "body"),
    _heap("compactions", ("upto",), "summary"),
    _heap("receipts", ("principal", "key"), "answer"),
    _heap("kept_rules", ("id",), "rule"),
    _heap("memory_passages", ("id",), "text", weight=64),  # each word out of the index, too: 5 ms for 1,000 bytes
    _heap("memories", ("id",), "text"),
    _heap("memory_lines", ("block_id", "line"), "text"),
    _heap("memory_writes", ("call_id",), "answer"),
    _heap("memory_chats", ("life",), "snapshot"),
    _heap("journal", ("seq",), "body", "DESC"),
)

# -- notices

TELL = (
    f"{INTO_DELIVERIES}{FOR_EACH_HOOK} FROM (SELECT {', '.join(f'? AS {name}' for name in NOTICE_COLUMNS)}) AS given "
    f"CROSS JOIN webhooks AS hook WHERE {HEARS}"
)

# -- receipts

READ_RECEIPT = "SELECT hash, answer FROM receipts WHERE principal = ? AND key = ?"

# `created_at` is by the clock of the receipts, once there is one: a wall clock that is set makes none of them old.
PUT_RECEIPT = """
INSERT INTO receipts (principal, key, hash, answer, chat_id, created_at)
VALUES (?, ?, ?, ?, ?, COALESCE((SELECT value FROM meta WHERE key = 'receipts_clock'), ?))
"""

PRUNE_RECEIPTS = """
DELETE FROM receipts WHERE (principal, key) IN (
    SELECT principal, key FROM receipts WHERE created_at < ? ORDER BY created_at LIMIT ?
)
"""

# -- retention

_GIVEN = "(SELECT value AS id FROM json_each(?1)) AS given"

NEXT_WITH_LEFTOVERS = retention.NEXT_WITH_LEFTOVERS.format(
    after=":after", attempts=":attempts", calls=":calls", compactions=":compactions", limit=retention.LOOKED_AT_MAX
)

COUNT_LEFTOVERS = {kind: retention.count_statement(kind, _GIVEN, "?2") for kind in retention.LEFTOVERS}

DROP_LEFTOVERS = {kind: retention.drop_statement(kind, _GIVEN, "?2") for kind in retention.LEFTOVERS}

NEXT_EXPIRED = retention.NEXT_EXPIRED.format(
    after=":after", before=":before", archived="archived = 1", limit=retention.LOOKED_AT_MAX
)

IS_EXPIRED = retention.IS_EXPIRED.format(id="?1", before="?2", archived="archived = 1")

# -- workers

WORKER_COLUMNS = "id, host, pid, lock_path, started_at, renewed_at, ttl_ms, renewal, ended, info"

REGISTER_WORKER = f"""
INSERT INTO workers (id, host, pid, lock_path, started_at, renewed_at, ttl_ms, info)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING {WORKER_COLUMNS}
"""

# This alone decides whether a lease lasts. One that was ended is not revived: an observer may have acted on it.
RENEW_WORKER = f"""
UPDATE workers SET renewal = renewal + 1, renewed_at = ?, info = coalesce(?, info)
WHERE id = ? AND ended IS NULL RETURNING {WORKER_COLUMNS}
"""

RETIRE_WORKER = "UPDATE workers SET ended = 'retired' WHERE id = ?"

# Only while the number stands that was seen, where one was.
END_LEASE = """
UPDATE workers SET ended = ?2 WHERE id = ?1 AND ended IS NULL AND renewal = coalesce(?3, renewal) RETURNING id
"""

DROP_WORKER = "DELETE FROM workers WHERE id = ? AND NOT EXISTS (SELECT 1 FROM chats WHERE worker = workers.id)"

LIVE_WORKER = "SELECT 1 FROM workers WHERE id = ? AND ended IS NULL"

LIST_WORKERS = f"SELECT {WORKER_COLUMNS} FROM workers ORDER BY id"

HELD_CHATS = "SELECT id, claim_stamp FROM chats WHERE worker = ?"

# By the indexes of what runs: due, or held by another worker.
LOST_IN_SILENCE = """
SELECT id FROM chats WHERE wake_at IS NOT NULL AND state IN ('running', 'stopping')
    AND silent <> '' AND instr(' ' || silent || ' ', ' ' || :worker || ' ')
UNION ALL SELECT id FROM chats WHERE worker IS NOT NULL
    AND silent <> '' AND instr(' ' || silent || ' ', ' ' || :worker || ' ')
UNION ALL SELECT id FROM chats WHERE state = 'failed'
    AND silent <> '' AND instr(' ' || silent || ' ', ' ' || :worker || ' ')
"""

# Chats whose holder has no row at all: no lease will ever release them.
UNKNOWN_HOLDERS = """
SELECT DISTINCT worker FROM chats WHERE worker IS NOT NULL AND worker NOT IN (SELECT id FROM workers)
"""

# -- claims

# Who runs is due, but for a backoff that is not over; who waits is due when the time has come that people chose.
_MAY_RUN = "wake_at IS NOT NULL AND state IN ('running', 'stopping')"
_READY = f"{_MAY_RUN} AND (backoff_ms = 0 OR wake_at <= :now OR wake_at - :now > backoff_ms)"
_TIMED = "wake_at IS NOT NULL AND state = 'waiting'"
_RUNG = "wake_at <= :now AND state = 'waiting'"


def _due(of: str) -> str:
    """So many that are ready, and so many whose time has come; the last column tells them apart."""
    return f"""
SELECT * FROM (
    SELECT wake_at, id, agent, owner, 0 FROM chats WHERE {of} AND {_READY} ORDER BY wake_at LIMIT :limit
) UNION ALL SELECT * FROM (
    SELECT wake_at, id, agent, owner, 1 FROM chats WHERE {of} AND {_RUNG} ORDER BY wake_at LIMIT :limit
)
"""


DUE_CHATS = _due("agent = :agent")

DUE_CHATS_OF_OWNER = _due("agent = :agent AND owner = :owner")


def _owners(index: str, due: str) -> str:
    """So many owners after one, and from the first on behind the last, with the time of each one's oldest. The next
    one is found without reading what the last one has. The one it began with may come twice.
    """
    following = f"""
(SELECT owner FROM chats INDEXED BY {index} WHERE agent = :agent AND {{after}} {due} ORDER BY owner LIMIT 1)
"""
    first = following.format(after="")
    return f"""
WITH RECURSIVE walk (owner, begun, n) AS (
    SELECT found, found, 1 FROM (
        SELECT coalesce({following.format(after="owner > :after AND")}, {first}) AS found
    )
    UNION ALL
    SELECT coalesce({following.format(after="owner > walk.owner AND")}, {first}), begun, n + 1
    FROM walk WHERE n < :together AND walk.owner IS NOT NULL AND (n = 1 OR walk.owner <> walk.begun)
)
SELECT (SELECT wake_at FROM chats INDEXED BY {index} WHERE agent = :agent AND owner = walk.owner AND {due}
        ORDER BY wake_at LIMIT 1), :agent, owner
FROM walk WHERE owner IS NOT NULL ORDER BY n
"""


OWNERS_READY = _owners("chats_ready_owner", _READY)

# Of those with a timer, be it due or not: to look for the next one that is due would read all that are not.
OWNERS_TIMED = _owners("chats_timers_owner", _TIMED)

# -- upkeep

FIND_VIOLATIONS = liveness_query()

FIND_VIOLATIONS_AMONG = liveness_query(
    waiting="SELECT value FROM json_each(?1)", queued="SELECT value FROM json_each(?2)"
)

NEXT_WAITING = liveness.NEXT_WAITING.format(after="?", limit=liveness.SWEPT_MAX)

NEXT_QUEUED = liveness.NEXT_QUEUED.format(after="?", limit=liveness.SWEPT_MAX)

NEXT_TORN = liveness.NEXT_TORN.format(after="?", limit=liveness.SWEPT_MAX)

SURVEY = survey_statement(
    lambda name: f":{name}",
    leases=f"SELECT json_group_array(json_array({WORKER_COLUMNS})) FROM workers",
    unknown_holders=UNKNOWN_HOLDERS,
)

# What no write of the chat tells of.
CUT_TORN = ("DELETE FROM journal WHERE chat_id = ? AND seq > ?", "DELETE FROM calls WHERE chat_id = ? AND batch > ?")

COUNT_REPAIR = """
INSERT INTO repairs (reason, count, last_at) VALUES (?, 1, ?)
ON CONFLICT (reason) DO UPDATE SET count = count + 1, last_at = excluded.last_at
"""

READ_REPAIRS = "SELECT reason, count FROM repairs"

# -- tokens

TOKENS = token_statements("?", "id IN (SELECT value FROM json_each(?))")

WEBHOOKS = webhook_statements("?", lambda name: f":{name}", lock=None)

DELIVERIES = delivery_statements("?")

LINK_KEYS = link_key_statements("?")

KEPT_RULES = kept_rule_statements("?", "rule IN (SELECT value FROM json_each(?))")

SCHEDULES = schedule_statements("?", lock="", listed="SELECT value FROM json_each({})")

FILES = file_statements("?", PUT_ALONE, "digest IN (SELECT value FROM json_each(?))", "chat_id = ?")

MEMORY = MemoryStatements(
    lambda name: f":{name}",
    listed="SELECT value FROM json_each({})",
    numbers="SELECT value FROM json_each({numbers})",
    form=SearchForm(
        tables=(
            "(SELECT rowid AS id, rank AS score FROM memory_index WHERE memory_index MATCH {match} "
            f"ORDER BY rank, rowid DESC LIMIT {RANKED_MAX}) AS hit "
            "CROSS JOIN memory_passages AS found ON found.id = hit.id"
        ),
        rank="hit.score",
        terms="{terms}",
    ),
    matched=matched_by_fts5,
)

BUDGETS = budget_statements("?", lambda name: f":{name}", given_rows, lock=None, skips="")

# Whose it is, without the rest of it.
READ_OWNER = "SELECT owner, parent_id FROM chats WHERE id = ?"

READ_MARKS = "SELECT stamp, version FROM chats WHERE id = ?"

PUT_NOTE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"

READ_NOTES = "SELECT key, value FROM meta"

NEWEST_ROWID = "SELECT max(rowid) FROM journal"

# Each chat that was written about, whether it is due, and its state; both none where it is deleted by now.
CHANGED_SINCE = """
SELECT told.chat_id, chats.wake_at IS NOT NULL, chats.state
FROM (SELECT DISTINCT chat_id FROM journal WHERE rowid > ? LIMIT 10000) AS told
LEFT JOIN chats ON chats.id = told.chat_id
"""
