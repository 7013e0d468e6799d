"""The statements of the PostgreSQL store, each named and described. No decision is taken here.

`%s` marks are psycopg's; those of `swaps.py`, which go past its cursors, have `$1`.
"""

from functools import cache

from holdfast.core.records import State
from holdfast.store import liveness, retention
from holdfast.store.budgets import budget_statements
from holdfast.store.chat_lists import FilterNames, where
from holdfast.store.deliveries import delivery_statements
from holdfast.store.kept_files import PUT_BESIDE_OTHERS, file_statements
from holdfast.store.kept_rules import kept_rule_statements
from holdfast.store.link_keys import link_key_statements
from holdfast.store.liveness import liveness_query
from holdfast.store.memory_statements import RANKED_MAX, MemoryStatements, SearchForm, matched_by_tsquery
from holdfast.store.notices import FOR_EACH_HOOK, HEARS, INTO_DELIVERIES
from holdfast.store.open_calls import open_call_listing
from holdfast.store.rows import CALL_COLUMNS, CHAT_COLUMNS
from holdfast.store.schedule_statements import (
    ATTENDED_COLUMNS,
    KEY,
    MOVING,
    OCCURRENCE_COLUMNS,
    SEEN,
    SWAPPED_COLUMNS,
    schedule_statements,
)
from holdfast.store.survey import survey_statement
from holdfast.store.tokens import token_statements
from holdfast.store.webhooks import webhook_statements

# The server's wall clock in whole milliseconds, as it moves inside a transaction too.
NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# Unless a test owns the time: then it is passed in.
_WALL_NOW = f"coalesce(%(wall)s::bigint, {NOW})"


READ_CLOCK = f"SELECT {NOW}"


def _columns(names: tuple[str, ...], table: str = "") -> str:
    return ", ".join(f"{table}.{name}" if table else name for name in names)


def given_rows(kinds: str) -> str:
    """Rows of a JSON array of arrays: `s` is text, `i` a whole number, `f` a number."""
    types = {"s": "text", "i": "bigint", "f": "double precision"}
    columns = ", ".join(f"(line.given ->> {n})::{types[kind]}" for n, kind in enumerate(kinds))
    return f"SELECT {columns} FROM json_array_elements({{rows}}::json) AS line(given)"


# -- connecting

# Once a statement has been prepared its plan is kept. On a table that is still empty the cheapest plan reads all of
# it, and that plan would stay while the table grows; so plans that read whole tables are ruled out, and with them the
# just-in-time compiler, which takes a ruled-out plan's price for a reason to compile. A prepared statement is planned
# once, not five times to find out that its plan does not depend on the values.
_SETTINGS = {
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
}


def look(*, settings: bool, schema: str | None, timeout_ms: int) -> str:
    """What is asked first on a connection: who is there and what time it is. With `settings` the session is set up.

    Behind a pooler there is no session to set up: every statement is planned for its values there, so that no plan
    outlives its table, and time limits are set in each transaction.
    """
    facts = (
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
        "current_setting('transaction_read_only') = 'on', current_setting('server_encoding'), "
        f"current_setting('synchronous_commit'), current_setting('fsync'), {NOW}"
    )
    if not settings:
        return facts
    values = {**_SETTINGS, "statement_timeout": str(timeout_ms)}
    if schema is not None:
        values["search_path"] = schema
    for name, value in values.items():
        facts += f", set_config('{name}', '{value}', false)"
    # An acknowledged write is on disk, whatever the server's default; stricter settings are left alone.
    return (
        facts + ", CASE current_setting('synchronous_commit') WHEN 'off' "
        "THEN set_config('synchronous_commit', 'on', false) END"
    )


def begin(mode: str, left_ms: int, idle_ms: int) -> str:
    """A transaction that cannot wait beyond what is left, nor hold its locks for a client that is gone."""
    return (
        f"BEGIN ISOLATION LEVEL {mode}; SET LOCAL statement_timeout = {left_ms}; "
        f"SET LOCAL lock_timeout = {left_ms}; SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
    )


# Which server this is, and on which branch of its history: a promotion, or a restore to a point in time, begins a new
# one. A server in recovery has none of its own yet.
ORIGIN = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END
"""

# -- chats

# A chat, its parent and the chat at the top of its family: from the top down, which is the order of all locks.
LOCK_WITH_ANCESTORS = f"""
WITH given AS MATERIALIZED (SELECT id, parent_id, root_id FROM chats WHERE id = %(id)s)
SELECT {_columns(CHAT_COLUMNS, "chats")} FROM chats
WHERE chats.id IN (SELECT root_id FROM given UNION SELECT parent_id FROM given UNION SELECT id FROM given)
ORDER BY chats.depth, chats.id = %(id)s FOR UPDATE OF chats
"""

LOCK_CHAT = f"SELECT {_columns(CHAT_COLUMNS)} FROM chats WHERE id = %s FOR UPDATE"

# As many at once, from the top of their family down.
LOCK_CHATS = f"SELECT {_columns(CHAT_COLUMNS)} FROM chats WHERE id = ANY(%s) ORDER BY depth, id FOR UPDATE"

# No lock is waited for; what is not there at all is told apart by looking.
LOCK_CHAT_IF_FREE = f"{LOCK_CHAT} SKIP LOCKED"

IS_THERE = "SELECT 1 FROM chats WHERE id = %s"

# Until its end it is not deleted. Writes that only change it go on beside it.
KEEP_THERE = f"{IS_THERE} FOR KEY SHARE"

_CALLS = f"""
(SELECT json_agg(json_build_array({_columns(CALL_COLUMNS)}) ORDER BY pos)::text FROM calls
 WHERE calls.chat_id = {{id}} AND calls.batch = {{batch}})
"""

_QUEUE = """
(SELECT json_agg(json_build_array(id, rank, mode, body) ORDER BY rank)::text FROM queue WHERE queue.chat_id = {id})
"""

# What belongs to a chat whose row is locked. Not together with the lock: a statement that waited for it would show
# the row as it is now and these as they were before.
READ_PARTS = f"""
SELECT {NOW}, {_CALLS.format(id="%(id)s", batch="%(batch)s::bigint")}, {_QUEUE.format(id="%(id)s")}
"""

_SNAPSHOT = (
    f"SELECT {_columns(CHAT_COLUMNS)}, {_CALLS.format(id='chats.id', batch='chats.batch')}, "
    f"{_QUEUE.format(id='chats.id')} FROM chats"
)

# One statement, so one moment.
READ_SNAPSHOT = f"{_SNAPSHOT} WHERE chats.id = %s"

READ_SNAPSHOTS = f"{_SNAPSHOT} WHERE chats.id = ANY(%s)"

# Whether what a runner knew is still there.
READ_LINE_STAMP = "SELECT stamp FROM journal WHERE chat_id = %s AND seq = %s"

REMNANT_COLUMNS = ("chat_id", "source_id", "source_life", "source_epoch", "pos", "seq")

# And what stands under this id without a chat.
READ_STATE = f"""
SELECT {NOW}, (SELECT state FROM chats WHERE id = %(id)s), {_columns(REMNANT_COLUMNS)}
FROM (SELECT 1) AS once LEFT JOIN remnants ON chat_id = %(id)s
"""

# What a stop has to reach, from the top down. Read from the chats that are open in the family, which are
# few, and those above each: never all that were spawned in its life.
READ_BUSY_BELOW = """
WITH RECURSIVE busy (id, depth, above) AS (
    SELECT id, depth, parent_id FROM chats WHERE root_id = %s AND state IN ('running', 'stopping', 'waiting')
    UNION ALL
    SELECT busy.id, busy.depth, chats.parent_id FROM busy JOIN chats ON chats.id = busy.above WHERE busy.above <> %s
)
SELECT id FROM busy WHERE above = %s ORDER BY depth, id
"""

# What was spawned by a chat, or all that is below it: those at work first, then the newest.
SUB_AGENTS = f"""
WITH RECURSIVE family (id, depth) AS (
    SELECT id, depth FROM chats WHERE parent_id = %(chat)s
    UNION SELECT chats.id, chats.depth FROM chats JOIN family ON chats.parent_id = family.id
    WHERE %(deep)s AND chats.depth > family.depth
)
SELECT {_columns(CHAT_COLUMNS)}, (SELECT count(*) FROM queue WHERE chat_id = chats.id)
FROM chats WHERE id IN (SELECT id FROM family)
ORDER BY state NOT IN ('running', 'stopping', 'waiting'), id DESC LIMIT %(limit)s
"""

COUNT_FAMILY = "SELECT count(*) FROM chats WHERE root_id = %s AND state IN ('running', 'stopping', 'waiting')"

# The chat and everything spawned below it, parents first.
READ_FAMILY = """
WITH RECURSIVE family (id, state, generation) AS (
    SELECT id, state, 0 FROM chats WHERE id = %s
    UNION SELECT chats.id, chats.state, generation + 1 FROM chats JOIN family ON chats.parent_id = family.id
    WHERE generation < 1000
)
SELECT id, state FROM family ORDER BY generation, id
"""

# The same with all that is known of each, parents first.
READ_WHOLE_FAMILY = f"""
WITH RECURSIVE family (id) AS (
    SELECT id FROM chats WHERE id = %s
    UNION SELECT chats.id FROM chats JOIN family ON chats.parent_id = family.id
)
SELECT {_columns(CHAT_COLUMNS)} FROM chats WHERE id IN (SELECT id FROM family) ORDER BY depth, id LIMIT %s
"""

# From one to the next by its index: the chats of each are counted, and nothing of them is read.
LIST_OWNERS = """
SELECT owner, count(*) FROM chats WHERE %s::text IS NULL OR owner > %s GROUP BY owner ORDER BY owner LIMIT %s
"""

INSERT_CHAT = f"INSERT INTO chats ({_columns(CHAT_COLUMNS)}) VALUES ({', '.join(['%s'] * len(CHAT_COLUMNS))})"


def transfer_sizes(table: str, key: tuple[str, ...], large: str) -> str:
    """What each of the next rows takes; the length is known without reading the text."""
    marks = ", ".join(["%s"] * len(key))
    return (
        f"SELECT octet_length({large}) FROM {table} WHERE chat_id = %s AND ({_columns(key)}) > ({marks}) "
        f"ORDER BY {_columns(key)} LIMIT %s"
    )


# What people and clients have to answer in a chat and in all that was spawned below it.
OPEN_CALLS = f"""
WITH RECURSIVE family (id, agent, batch, depth) AS (
    SELECT id, agent, batch, depth FROM chats WHERE id = %s
    UNION SELECT chats.id, chats.agent, chats.batch, chats.depth
    FROM chats JOIN family ON chats.parent_id = family.id WHERE chats.depth > family.depth
)
SELECT family.id, family.agent, {_columns(CALL_COLUMNS, "calls")}
FROM family JOIN calls ON calls.chat_id = family.id AND calls.batch = family.batch
WHERE calls.state = 'asking' OR (calls.state = 'external' AND calls.external IN ('client', 'question'))
ORDER BY family.depth, family.id, calls.pos LIMIT %s
"""

# Open ones of a chat; those it made since an instant; open ones of the whole family.
COUNT_CHILDREN = """
SELECT (SELECT count(*) FROM chats WHERE parent_id = %(chat)s AND state IN ('running', 'stopping', 'waiting')),
       (SELECT count(*) FROM chats WHERE parent_id = %(chat)s AND parent_turn = %(turn)s),
       (SELECT count(*) FROM chats WHERE root_id = %(root)s AND state IN ('running', 'stopping', 'waiting'))
"""


def _shallow(column: str) -> str:
    """What is short cannot open so many, and its size is known without counting."""
    return f"(octet_length({column}) <= 2000 OR length({column}) - length(translate({column}, '[{{', '')) <= 2000)"


# A NUL that a message holds as an escape cannot be read as JSON here: such a message is looked through as it stands,
# so that one of them does not take the search from all chats.
# So is one that may be nested deeper than the server's stack, by a count of what opens: there is no telling in SQL.
# The size is known without reading the text; a message with a picture in it is not worth its megabytes here.
_OPENING = f"""
       (SELECT CASE WHEN octet_length(body) <= 65536 AND strpos(body, '\\u0000') = 0 AND {_shallow("body")}
                    THEN left(body::json #>> '{{message,parts,0,text}}', 200) END FROM journal
        WHERE chat_id = chats.id AND pos = 0)
"""
_LISTED = f"""
SELECT id, agent, owner, title, {_OPENING},
       state, archived, (SELECT count(*) FROM queue WHERE chat_id = chats.id),
       created_at, updated_at, worker, wake_at, metadata
FROM chats
"""

_SEARCHED = f"""
(title ILIKE %(pattern)s
 OR EXISTS (SELECT 1 FROM journal WHERE chat_id = chats.id AND pos = 0
            AND CASE WHEN strpos(body, '\\u0000') > 0 OR NOT {_shallow("body")} THEN body
                     ELSE body::json #>> '{{message,parts,0,text}}' END ILIKE %(pattern)s))
"""

_WITH_METADATA = f"""
NOT EXISTS (
    SELECT 1 FROM json_each_text(%(metadata)s::json) AS want
    WHERE CASE WHEN {_shallow("chats.metadata")} THEN chats.metadata::json ->> want.key END
          IS DISTINCT FROM want.value)
"""


@cache
def list_open_calls(given: frozenset[str]) -> str:
    return open_call_listing(given, "%({})s".format, _OPENING)


@cache
def list_chats(state: State | None, archived: bool | None, given: FilterNames) -> str:
    conditions = {
        "owner": "owner = %(owner)s",
        "id": "id = %(id)s",
        "agent": "agent || '' = %(agent)s" if "owner" in given else "agent = %(agent)s",  # not by its index
        "before": "id < %(before)s",
        "pattern": _SEARCHED,
        "metadata": _WITH_METADATA,
    }
    flags = {True: "archived", False: "NOT archived"}
    return f"{_LISTED}{where(conditions, flags, state, archived, given)} ORDER BY id DESC LIMIT %(limit)s"


DELETE_CHATS = "DELETE FROM chats WHERE id = ANY(%s)"

# -- what a chat holds

# Positions from here on leave history; their journal entries stay.
CUT_HISTORY = "UPDATE journal SET pos = NULL WHERE chat_id = %s AND pos >= %s"

CUT_COMPACTIONS = "DELETE FROM compactions WHERE chat_id = %s AND upto > %s"

PUT_COMPACTION = """
INSERT INTO compactions (chat_id, upto, summary, created_at) VALUES (%s, %s, %s, %s)
ON CONFLICT (chat_id, upto) DO UPDATE SET summary = excluded.summary, created_at = excluded.created_at
"""

# Rows may stand under an id that has no chat (remnants.py): readers go by the chat.
_THERE = "EXISTS (SELECT 1 FROM chats WHERE id = %(id)s)"

READ_COMPACTION = f"""
SELECT upto, summary, created_at FROM compactions WHERE chat_id = %(id)s AND {_THERE} ORDER BY upto DESC LIMIT 1
"""

READ_COMPACTIONS = f"""
SELECT upto, summary, created_at FROM compactions
WHERE chat_id = %(id)s AND upto > %(start)s AND upto <= %(end)s AND {_THERE} ORDER BY upto DESC LIMIT %(limit)s
"""

READ_HISTORY = f"""
SELECT pos, seq, role, ref, body FROM journal
WHERE chat_id = %(id)s AND pos >= %(start)s AND {_THERE} ORDER BY pos LIMIT %(limit)s
"""

# The length of a body is known without reading it.
READ_HISTORY_UP_TO = f"""
SELECT pos, seq, role, ref, body FROM (
    SELECT pos, seq, role, ref, body,
           sum(octet_length(body)) OVER (ORDER BY pos) - octet_length(body) AS bytes_before
    FROM journal WHERE chat_id = %(id)s AND pos >= %(start)s AND {_THERE} ORDER BY pos LIMIT %(limit)s
) AS page WHERE bytes_before < %(bytes_max)s ORDER BY pos
"""

# Newest first: who edits, edits near the end.
LOCATE_MESSAGE = """
SELECT journal.pos, journal.role, chats.epoch FROM journal JOIN chats ON chats.id = journal.chat_id
WHERE journal.chat_id = %s AND journal.pos IS NOT NULL AND journal.ref = %s ORDER BY journal.pos DESC LIMIT 1
"""

NAME_AGENT = "UPDATE chats SET agent = %s WHERE id = %s"

READ_ENTRY = "SELECT body FROM journal WHERE chat_id = %s AND seq = %s"

# A page in one statement, so in one moment: the chat's place, and what there is at the reader's (parts -1 and 0),
# journal entries (1) and, where these reach the end, the deltas of the open attempt (2). The row that reaches
# `bytes_max` is the last one; the length of a body is known without reading it.
READ_JOURNAL = """
WITH place AS MATERIALIZED (SELECT state, seq, fence, attempt_ended, life FROM chats WHERE id = %(id)s),
lines AS MATERIALIZED (
    SELECT seq, stamp, at, body, bytes_upto FROM (
        SELECT seq, stamp, at, body, sum(octet_length(body)) OVER (ORDER BY seq) AS bytes_upto FROM journal
        WHERE chat_id = %(id)s AND seq > %(seq)s AND seq <= (SELECT seq FROM place) ORDER BY seq LIMIT %(limit)s
    ) AS page WHERE bytes_upto - octet_length(body) < %(bytes_max)s
)
SELECT -1 AS part, seq AS a, fence AS b,
       (SELECT stamp FROM journal WHERE chat_id = %(id)s AND seq = %(seq)s) AS stamp, life AS at, state AS body
FROM place
UNION ALL SELECT 0, attempt_ended, NULL,
       (SELECT stamp FROM deltas WHERE chat_id = %(id)s AND attempt = %(attempt)s AND k = %(k)s), NULL, NULL
FROM place
UNION ALL SELECT 1, seq, NULL, stamp, at, body FROM lines
UNION ALL SELECT 2, attempt, k, stamp, at, body FROM (
    SELECT attempt, k, stamp, at, body,
           sum(octet_length(body)) OVER (ORDER BY attempt, k) - octet_length(body) AS bytes_before FROM deltas
    WHERE chat_id = %(id)s AND attempt > (SELECT attempt_ended FROM place) AND (attempt, k) > (%(attempt)s, %(k)s)
          AND coalesce((SELECT max(seq) FROM lines), %(seq)s) >= (SELECT seq FROM place)
    ORDER BY attempt, k LIMIT (SELECT %(limit)s - count(*) FROM lines)
) AS previews
WHERE bytes_before < %(bytes_max)s - coalesce((SELECT max(bytes_upto) FROM lines), 0)
ORDER BY part, a, b
"""

# -- health

# Another value each time: SQLite writes no page for one that is the same.
PROVE_WRITING = "INSERT INTO meta VALUES ('writes_proved', 1) ON CONFLICT (key) DO UPDATE SET value = meta.value + 1"

# -- deltas

# Only while the claim holds, all that its runner knew is in the chat's past, the attempt is open, and where no piece
# before it is missing; repeating a flush changes nothing.
ADD_DELTAS = """
WITH open AS MATERIALIZED (
    SELECT given.* FROM json_to_recordset(%s::json)
        AS given(n bigint, chat_id text, worker text, claim_stamp bigint, fence bigint, attempt bigint, seq bigint,
                 line_stamp bigint, first_k bigint)
    CROSS JOIN LATERAL (
        SELECT 1 FROM chats WHERE id = given.chat_id AND worker = given.worker AND claim_stamp = given.claim_stamp
        AND fence = given.fence AND attempt_ended < given.attempt LIMIT 1
    ) AS held
    CROSS JOIN LATERAL (
        SELECT 1 FROM journal WHERE chat_id = given.chat_id AND seq = given.seq
        AND stamp IN (given.line_stamp, 0) LIMIT 1
    ) AS known
    WHERE given.first_k = 0 OR EXISTS (
        SELECT 1 FROM deltas WHERE chat_id = given.chat_id AND attempt = given.attempt AND k = given.first_k - 1
    )
), added AS (
    INSERT INTO deltas (chat_id, attempt, k, stamp, at, body)
    SELECT open.chat_id, open.attempt, piece.k, open.claim_stamp, %s, piece.body
    FROM json_to_recordset(%s::json) AS piece(n bigint, k bigint, body text) JOIN open ON open.n = piece.n
    ON CONFLICT DO NOTHING
)
SELECT n FROM open
"""

READ_DELTAS = f"""
SELECT attempt, k, body FROM deltas WHERE chat_id = %(id)s AND attempt = %(attempt)s AND {_THERE} ORDER BY k
"""

# -- fork

# The first position behind the group that a position is in: results belong to the response before them.
END_OF_GROUP = "SELECT min(pos) FROM journal WHERE chat_id = %s AND pos > %s AND role <> 'tool'"

# Positions that are not copied yet, with what each takes; the length is known without reading the text.
SIZES_TO_COPY = """
SELECT pos, octet_length(body) FROM journal WHERE chat_id = %s AND pos >= %s AND pos < %s ORDER BY pos LIMIT %s
"""

# As bytes, renumbered: one journal entry per position, behind those that are there.
COPY_HISTORY = """
WITH copied AS (
    INSERT INTO journal (chat_id, seq, stamp, at, role, pos, ref, body)
    SELECT %s, %s + row_number() OVER (ORDER BY pos), %s, at, role, pos, ref, body
    FROM journal WHERE chat_id = %s AND pos >= %s AND pos < %s RETURNING 1
)
SELECT count(*) FROM copied
"""

INSERT_JOURNAL = """
INSERT INTO journal (chat_id, seq, stamp, at, role, pos, ref, body) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""

COPY_COMPACTIONS = """
INSERT INTO compactions (chat_id, upto, summary, created_at)
SELECT %s, upto, summary, created_at FROM compactions WHERE chat_id = %s AND upto <= %s
"""

# -- remnants

READ_REMNANTS = f"SELECT {_columns(REMNANT_COLUMNS)} FROM remnants ORDER BY chat_id LIMIT %s"

ANY_REMNANT = "SELECT 1 FROM remnants LIMIT 1"

ANY_REMNANT_OF = "SELECT chat_id FROM remnants WHERE chat_id = ANY(%s) LIMIT 1"

ADD_REMNANT = f"INSERT INTO remnants ({_columns(REMNANT_COLUMNS)}) VALUES (%s, %s, %s, %s, %s, %s)"

# Fails where the record was given up or dropped since the transaction's moment: what it counts on is not there then.
MOVE_REMNANT = "UPDATE remnants SET pos = %s, seq = %s WHERE chat_id = %s"

# Only while it is ours.
MOVE_IMPORT = "UPDATE remnants SET seq = seq + %s WHERE chat_id = %s AND source_id = %s RETURNING 1"

DROP_IMPORT = "DELETE FROM remnants WHERE chat_id = ANY(%s) AND source_id = %s RETURNING 1"

_HAS_LINES = "EXISTS (SELECT 1 FROM journal WHERE journal.chat_id = {id})"

# Of those that have rows left, which are lines of the journal at least.
PUT_ROWS_TO_GO = f"""
INSERT INTO remnants (chat_id, source_life, source_epoch, pos, seq)
SELECT id, 0, 0, 0, 0 FROM unnest(%s::text[]) AS given(id) WHERE {_HAS_LINES.format(id="given.id")}
"""

DROP_REMNANTS = "DELETE FROM remnants WHERE chat_id = ANY(%s)"

# In the transaction that takes the first line: a verb that makes a chat collides with that line while there is a
# record.
DROP_CLEARED = f"""
DELETE FROM remnants WHERE chat_id = ANY(%s) AND NOT {_HAS_LINES.format(id="remnants.chat_id")}
"""

GIVE_UP_FORK = "UPDATE remnants SET source_id = NULL WHERE chat_id = %s AND pos = coalesce(%s::bigint, pos)"

# Of those whose rows are to go; two who clear the same take turns.
LOCK_ROWS_TO_GO = """
SELECT chat_id FROM remnants WHERE chat_id = ANY(%s) AND source_id IS NULL ORDER BY chat_id FOR UPDATE
"""


def _take_rows(table: str, text: str, order: str = "") -> str:
    """As many rows as there is room for in rows and bytes, the one among them that goes beyond. Returns how many, and
    how large they were. By their places: no other writer changes rows that have no chat.
    """
    return f"""
WITH found AS MATERIALIZED (
    SELECT ctid AS place, coalesce(octet_length({text}), 0) AS size FROM {table}
    WHERE chat_id = ANY(%(ids)s) {order} LIMIT %(rows)s
), sized AS (
    SELECT place, size, sum(size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - size AS before FROM found
), gone AS (
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT place FROM sized WHERE before < %(bytes)s))
)
SELECT count(*), coalesce(sum(size), 0)::bigint FROM sized WHERE before < %(bytes)s
"""


# In the order in which they go: the first line of the journal is the last.
TAKE_ROWS = (
    _take_rows("deltas", "body"),
    _take_rows("file_uses", "digest"),
    _take_rows("calls", "arguments"),
    _take_rows("queue", "body"),
    _take_rows("compactions", "summary"),
    _take_rows("receipts", "answer"),
    _take_rows("kept_rules", "rule"),
    _take_rows("memory_passages", "text"),
    _take_rows("memories", "text"),
    _take_rows("memory_lines", "text"),
    _take_rows("memory_writes", "answer"),
    _take_rows("memory_chats", "snapshot"),
    _take_rows("journal", "body", "ORDER BY chat_id DESC, seq DESC"),
)

# -- notices

# Several at once, as a JSON list of objects.
TELL = (
    f"{INTO_DELIVERIES}{FOR_EACH_HOOK} FROM json_to_recordset(%s::json) AS given("
    "notice_id text, kind text, owner text, chat_id text, turn bigint, life bigint, at bigint, data text) "
    f"JOIN webhooks AS hook ON {HEARS.replace('%', '%%')}"
)

# -- receipts

READ_RECEIPT = "SELECT hash, answer FROM receipts WHERE principal = %s AND key = %s"

# `created_at` is by the clock of the receipts, once there is one: a wall clock that is set makes none of them old.
PUT_RECEIPT = """
INSERT INTO receipts (principal, key, hash, answer, chat_id, created_at)
VALUES (%s, %s, %s, %s, %s, COALESCE((SELECT value FROM meta WHERE key = 'receipts_clock'), %s))
"""

# Two who forget at the same time forget different ones.
PRUNE_RECEIPTS = """
WITH old AS MATERIALIZED (
    SELECT principal, key FROM receipts WHERE created_at < %s ORDER BY created_at LIMIT %s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM receipts USING old WHERE receipts.principal = old.principal AND receipts.key = old.key RETURNING 1
)
SELECT count(*) FROM gone
"""

# -- retention

_GIVEN = "(SELECT unnest(%s::text[]) AS id) AS given"

NEXT_WITH_LEFTOVERS = retention.NEXT_WITH_LEFTOVERS.format(
    after="%(after)s",
    attempts="%(attempts)s",
    calls="%(calls)s",
    compactions="%(compactions)s",
    limit=retention.LOOKED_AT_MAX,
)

COUNT_LEFTOVERS = {kind: retention.count_statement(kind, _GIVEN, "%s") for kind in retention.LEFTOVERS}

# A prune waits for no lock: what another one deletes at the same time is left to it.
DROP_LEFTOVERS = {
    kind: retention.drop_statement(kind, _GIVEN, "%s", f"FOR UPDATE OF {table} SKIP LOCKED")
    for kind, table in retention.TABLES.items()
}

NEXT_EXPIRED = retention.NEXT_EXPIRED.format(
    after="%(after)s", before="%(before)s", archived="archived", limit=retention.LOOKED_AT_MAX
)

IS_EXPIRED = retention.IS_EXPIRED.format(id="%(id)s", before="%(before)s", archived="archived")

# Of our tables alone, with their indexes and what is stored beside them.
MEASURE = """
SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = ANY(%s) AND relkind = 'r' AND nspname = ANY(current_schemas(false))
"""

# -- workers

WORKER_COLUMNS = "id, host, pid, lock_path, started_at, renewed_at, ttl_ms, renewal, ended, info"

REGISTER_WORKER = f"""
INSERT INTO workers (id, host, pid, lock_path, started_at, renewed_at, ttl_ms, info)
SELECT %(worker)s, %(host)s, %(pid)s, %(lock_path)s, moment.wall, moment.wall, %(ttl)s, %(info)s
FROM (SELECT {_WALL_NOW} AS wall) AS moment
ON CONFLICT (id) DO NOTHING
RETURNING {WORKER_COLUMNS}, {NOW}
"""

READ_WORKER = f"""
SELECT {WORKER_COLUMNS}, {NOW} FROM workers WHERE id = %(worker)s AND host = %(host)s AND pid = %(pid)s
"""

# This alone decides whether a lease lasts. One that was ended is not revived: an observer may have acted on it.
RENEW_WORKER = f"""
UPDATE workers SET renewal = renewal + 1, renewed_at = {_WALL_NOW}, info = coalesce(%(info)s, info)
WHERE id = %(worker)s AND ended IS NULL RETURNING {WORKER_COLUMNS}, {NOW}
"""

# Both wait for the claims that this lease is making; it makes no later one.
RETIRE_WORKER = """
WITH found AS MATERIALIZED (SELECT id FROM workers WHERE id = %s FOR UPDATE)
UPDATE workers SET ended = 'retired' FROM found WHERE workers.id = found.id
"""

# Only while the number stands that was seen,
# where one was: the lock sees a renewal that came first.
END_LEASE = """
WITH found AS MATERIALIZED (
    SELECT id FROM workers WHERE id = %s AND ended IS NULL AND renewal = coalesce(%s::bigint, renewal) FOR UPDATE
)
UPDATE workers SET ended = %s FROM found WHERE workers.id = found.id RETURNING workers.id
"""

DROP_WORKER = "DELETE FROM workers WHERE id = %s AND NOT EXISTS (SELECT 1 FROM chats WHERE worker = workers.id)"

LIST_WORKERS = f"SELECT {WORKER_COLUMNS} FROM workers ORDER BY id"

HELD_CHATS = "SELECT id, claim_stamp FROM chats WHERE worker = %s"

# By the indexes of what runs: due, or held by another worker.
LOST_IN_SILENCE = """
SELECT id FROM chats WHERE wake_at IS NOT NULL AND state IN ('running', 'stopping')
    AND silent <> '' AND %(worker)s = ANY(string_to_array(silent, ' '))
UNION ALL SELECT id FROM chats WHERE worker IS NOT NULL
    AND silent <> '' AND %(worker)s = ANY(string_to_array(silent, ' '))
UNION ALL SELECT id FROM chats WHERE state = 'failed'
    AND silent <> '' AND %(worker)s = ANY(string_to_array(silent, ' '))
"""

# Chats whose holder has no row at all: no lease will ever release them.
UNKNOWN_HOLDERS = """
SELECT DISTINCT worker FROM chats
WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers WHERE workers.id = chats.worker)
"""

# -- claims

# Who runs is due, but for a backoff that is not over; who waits is due when the time has come that people chose.
_READY = (
    "wake_at IS NOT NULL AND state IN ('running', 'stopping') "
    "AND (backoff_ms = 0 OR wake_at <= {now} OR wake_at - {now} > backoff_ms)"
)
_TIMED = "wake_at IS NOT NULL AND state = 'waiting'"
_RUNG = "wake_at <= {now} AND state = 'waiting'"


def _owners(due: str, after: str, together: str) -> str:
    """So many owners after one, and from the first on behind the last, with the time of each one's oldest. The next
    one is found without reading what the last one has. The one it began with may come twice.
    """
    following = f"""
(SELECT owner FROM chats WHERE agent = given.agent AND {{after}} {due} ORDER BY owner, wake_at LIMIT 1)
"""
    first = following.format(after="")
    return f"""
    WITH RECURSIVE walk (owner, begun, n) AS (
        SELECT found, found, 1 FROM (
            SELECT coalesce({following.format(after=f"owner > {after} AND")}, {first}) AS found
        ) AS start
        UNION ALL
        SELECT coalesce({following.format(after="owner > walk.owner AND")}, {first}), begun, n + 1
        FROM walk WHERE n < {together} AND walk.owner IS NOT NULL AND (n = 1 OR walk.owner <> walk.begun)
    )
    SELECT oldest.wake_at, walk.owner, walk.n FROM walk CROSS JOIN LATERAL (
        SELECT wake_at FROM chats WHERE agent = given.agent AND owner = walk.owner AND {due} ORDER BY wake_at LIMIT 1
    ) AS oldest
"""


def _oldest(of: str, due: str, limit: str) -> str:
    """Sorted, so that the index by time is the cheapest: the one by owner would be read from end to end for those
    whose time has come.
    """
    return f"SELECT true AS found FROM chats WHERE {of} AND {due} ORDER BY wake_at LIMIT {limit}"


def _as_many(due: str) -> str:
    """As there is room for: more may lie behind them."""
    oldest = _oldest("agent = given.agent", due, "given.room")
    return f"(SELECT count(*) FROM ({oldest}) AS found) >= given.room"


# A look without a lock, so that a poll that finds nothing costs one statement. Where chats pile up, with the next of
# the owners that have something due, and (the last column) of those with a timer, be it due or not: to look for the
# next one that is due would read all that are not.
ANYTHING_DUE = f"""
WITH moment AS MATERIALIZED (SELECT {_WALL_NOW} AS now),
look AS MATERIALIZED (
    SELECT moment.now, EXISTS (
        SELECT 1 FROM unnest(%(agents)s::text[]) AS given(agent)
        WHERE ({_oldest("agent = given.agent", _READY.format(now="moment.now"), "1")})
           OR ({_oldest("agent = given.agent", _RUNG.format(now="moment.now"), "1")})
    ) AS due FROM moment
)
SELECT {NOW}, (SELECT ended IS NULL FROM workers WHERE id = %(worker)s), look.due,
       walked.wake_at, walked.agent, walked.owner, walked.timed
FROM look
LEFT JOIN LATERAL (
    SELECT given.agent, walk.wake_at, walk.owner, walk.timed, walk.n
    FROM unnest(%(agents)s::text[], %(rooms)s::bigint[], %(after_ready)s::text[], %(after_timed)s::text[])
        AS given(agent, room, after_ready, after_timed)
    CROSS JOIN LATERAL (
        SELECT ready.wake_at, ready.owner, false AS timed, ready.n FROM (
            {_owners(_READY.format(now="look.now"), "given.after_ready", "%(owners_together)s::bigint")}
        ) AS ready WHERE {_as_many(_READY.format(now="look.now"))}
        UNION ALL SELECT timed.wake_at, timed.owner, true, timed.n FROM (
            {_owners(_TIMED, "given.after_timed", "%(timers_together)s::bigint")}
        ) AS timed WHERE {_as_many(_RUNG.format(now="look.now"))}
    ) AS walk
) AS walked ON look.due
ORDER BY walked.n
"""

# Renewals pass this lock; who ends the lease waits for it.
SHARE_LEASE = f"""
SELECT {NOW} FROM workers WHERE id = %(worker)s AND ended IS NULL FOR KEY SHARE
"""

# The same, but waits until every claim that this lease was making is decided.
SETTLE_LEASE = SHARE_LEASE.replace("FOR KEY SHARE", "FOR UPDATE")


def _due(of: str) -> str:
    """The oldest of each. What another worker is claiming, or a client is changing, is left to them."""
    return f"""
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT wake_at, id, agent, owner FROM chats
        WHERE {of} AND {_READY.format(now="%(due)s")} AND id <> ALL(%(passed)s::text[])
        ORDER BY wake_at LIMIT given.room FOR UPDATE SKIP LOCKED
    ) AS ready
    UNION ALL SELECT * FROM (
        SELECT wake_at, id, agent, owner FROM chats
        WHERE {of} AND {_RUNG.format(now="%(due)s")} AND id <> ALL(%(passed)s::text[])
        ORDER BY wake_at LIMIT given.room FOR UPDATE SKIP LOCKED
    ) AS rung
) AS due
"""


DUE_CHATS = f"""
SELECT due.* FROM unnest(%(agents)s::text[], %(rooms)s::bigint[]) AS given(agent, room)
{_due("agent = given.agent")}
"""

DUE_CHATS_OF_OWNERS = f"""
SELECT due.* FROM unnest(%(agents)s::text[], %(owners)s::text[], %(rooms)s::bigint[]) AS given(agent, owner, room)
{_due("agent = given.agent AND owner = given.owner")}
"""

CLAIMED_AS = """
SELECT chats.id FROM chats JOIN unnest(%s::text[], %s::bigint[]) AS given(id, claim_stamp)
ON chats.id = given.id AND chats.claim_stamp = given.claim_stamp WHERE chats.worker = %s
"""

# -- upkeep

FIND_VIOLATIONS = liveness_query()

FIND_VIOLATIONS_AMONG = liveness_query(
    waiting="SELECT unnest(%(waiting)s::text[])", queued="SELECT unnest(%(queued)s::text[])"
)

NEXT_WAITING = liveness.NEXT_WAITING.format(after="%s", limit=liveness.SWEPT_MAX)

NEXT_QUEUED = liveness.NEXT_QUEUED.format(after="%s", limit=liveness.SWEPT_MAX)

# -- tokens

TOKENS = token_statements("%s", "id IN (SELECT json_array_elements_text(%s::json))")

WEBHOOKS = webhook_statements(
    "%s",
    lambda name: f"%({name})s",
    lock="SELECT pg_advisory_xact_lock(hashtextextended('holdfast webhooks of ' || %(owner)s, 0))",
)

DELIVERIES = delivery_statements("%s")

LINK_KEYS = link_key_statements("%s")

KEPT_RULES = kept_rule_statements("%s", "rule IN (SELECT json_array_elements_text(%s::json))")

SCHEDULES = schedule_statements("%s", lock=" FOR UPDATE", listed="SELECT json_array_elements_text({}::json)", now=NOW)

# Several at once, as JSON lists of objects. Other columns of these tables are texts.
_BIGINTS = {
    *("at", "upto", "count", "turn", "seq", "decided_at", "fired_at", "ended_at"),
    *(
        "was_stamp",
        "updated_at",
        "failures",
        "next_at",
        "due_at",
        "fired",
        "skipped",
        "stamp",
        "forgotten_to",
        "decided_to",
    ),
}


def _given(columns: tuple[str, ...]) -> str:
    typed = ", ".join(f"{name} {'bigint' if name in _BIGINTS else 'text'}" for name in columns)
    return f"json_to_recordset(%s::json) AS given({typed})"


PUT_OCCURRENCES = f"""
INSERT INTO occurrences ({_columns(OCCURRENCE_COLUMNS)}) SELECT {_columns(OCCURRENCE_COLUMNS, "given")}
FROM {_given(OCCURRENCE_COLUMNS)} ON CONFLICT (schedule_id, at, upto) DO NOTHING RETURNING schedule_id, at, upto
"""

MOVE_OCCURRENCES = f"""
UPDATE occurrences AS moved SET {", ".join(f"{name} = given.{name}" for name in MOVING)}
FROM {_given(OCCURRENCE_COLUMNS)} WHERE {" AND ".join(f"moved.{name} = given.{name}" for name in KEY)}
"""

SWAP_SCHEDULES = f"""
UPDATE schedules AS swapped SET {", ".join(f"{name} = given.{name}" for name in ATTENDED_COLUMNS)}
FROM {_given(SWAPPED_COLUMNS)} WHERE swapped.id = given.id AND swapped.stamp = given.was_stamp RETURNING swapped.id
"""

FIRED_OF_SCHEDULES = (
    "SELECT seen.* FROM json_array_elements_text(%s::json) AS wanted(id) "
    f"CROSS JOIN LATERAL ({SEEN.format('wanted.id')}) AS seen"
)

FILES = file_statements(
    "%s", PUT_BESIDE_OTHERS, "digest IN (SELECT json_array_elements_text(%s::json))", "chat_id = ANY(%s)"
)

# Terms come as they are to be found, so no dictionary and no parser of the server's looks at them.
MEMORY = MemoryStatements(
    lambda name: f"%({name})s",
    listed="SELECT json_array_elements_text({}::json)",
    numbers="SELECT json_array_elements_text({numbers}::json)::bigint",
    form=SearchForm(
        tables=(
            "(SELECT id, ts_rank(terms, CAST({match} AS tsquery)) AS score FROM memory_passages "
            f"WHERE terms @@ CAST({{match}} AS tsquery) ORDER BY score DESC, id DESC LIMIT {RANKED_MAX}) AS hit "
            "JOIN memory_passages AS found ON found.id = hit.id"
        ),
        rank="hit.score DESC",
        terms="array_to_tsvector(string_to_array(CAST({terms} AS text), ' '))",
    ),
    matched=matched_by_tsquery,
    lock="SELECT pg_advisory_xact_lock(hashtextextended('holdfast memory of ' || {scope}, 0))",
    share=" FOR KEY SHARE",
    skips=" FOR UPDATE SKIP LOCKED",
)

BUDGETS = budget_statements(
    "%s",
    lambda name: f"%({name})s",
    given_rows,
    lock="SELECT pg_advisory_xact_lock(hashtextextended('holdfast budget of ' || {account}, 0))",
    skips=" FOR UPDATE SKIP LOCKED",
)

# By the fork that copies their names: whoever deletes them decides anew once it is there.
NAME_FILES = "UPDATE files SET named = named + 1 WHERE digest IN (SELECT digest FROM file_uses WHERE chat_id = %s)"

# Until its end: of two transactions that keep rules of one owner, the second counts those of the first.
LOCK_KEPT_RULES = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast kept rules of ' || %s, 0))"

# Whose it is, without the rest of it.
READ_OWNER = "SELECT owner, parent_id FROM chats WHERE id = %s"

READ_MARKS = "SELECT stamp, version FROM chats WHERE id = %s"

PUT_NOTE = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"

READ_NOTES = "SELECT key, value FROM meta"

NEXT_TORN = liveness.NEXT_TORN.format(after="%s", limit=liveness.SWEPT_MAX)

SURVEY = survey_statement(
    lambda name: f"%({name})s",
    leases=f"SELECT CAST(coalesce(json_agg(json_build_array({WORKER_COLUMNS})), '[]') AS TEXT) FROM workers",
    unknown_holders=UNKNOWN_HOLDERS,
)

# What no write of the chat tells of.
CUT_TORN = (
    "DELETE FROM journal WHERE chat_id = %s AND seq > %s",
    "DELETE FROM calls WHERE chat_id = %s AND batch > %s",
)

COUNT_REPAIR = """
INSERT INTO repairs (reason, count, last_at) VALUES (%s, 1, %s)
ON CONFLICT (reason) DO UPDATE SET count = repairs.count + 1, last_at = excluded.last_at
"""

READ_REPAIRS = "SELECT reason, count FROM repairs"

# -- hints

NOTIFY = "SELECT pg_notify(%s, %s)"
