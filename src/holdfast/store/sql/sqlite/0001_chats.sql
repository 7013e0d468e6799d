-- oldest-code: 1
-- Chats, their journal and everything a worker needs. What changes has columns; what is JSON is written once.

CREATE TABLE chats (
    id              TEXT PRIMARY KEY,
    agent           TEXT NOT NULL,
    owner           TEXT NOT NULL,
    metadata        TEXT NOT NULL,
    active_tools    TEXT,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    title           TEXT,
    parent_id       TEXT,
    parent_call     TEXT,
    depth           INTEGER NOT NULL,
    forked_from     TEXT,
    forked_at       INTEGER,
    state           TEXT NOT NULL CHECK (state IN ('idle', 'running', 'stopping', 'waiting', 'failed')),
    phase           TEXT NOT NULL,
    archived        INTEGER NOT NULL,
    compact         INTEGER NOT NULL,
    turn            INTEGER NOT NULL,
    turn_started_at INTEGER,
    turn_from       INTEGER NOT NULL,
    step            INTEGER NOT NULL,
    turn_tokens     INTEGER NOT NULL,
    turn_cost       REAL NOT NULL,
    cause           TEXT,
    error           TEXT,
    answer          TEXT,
    worker          TEXT,
    fence           INTEGER NOT NULL,
    wake_at         INTEGER,
    unclean         INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    commit_id       TEXT,
    seq             INTEGER NOT NULL,
    length          INTEGER NOT NULL,
    batch           INTEGER,
    attempt_ended   INTEGER NOT NULL
);
CREATE INDEX chats_due ON chats (agent, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX chats_held ON chats (worker) WHERE worker IS NOT NULL;
CREATE INDEX chats_children ON chats (parent_id) WHERE parent_id IS NOT NULL;

-- Every entry any client ever sees. A row with a position is also part of the history.
CREATE TABLE journal (
    chat_id TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    role    TEXT,
    pos     INTEGER,
    ref     TEXT,
    body    TEXT NOT NULL
);
CREATE UNIQUE INDEX journal_seq ON journal (chat_id, seq);
CREATE UNIQUE INDEX journal_history ON journal (chat_id, pos) WHERE pos IS NOT NULL;

-- Streamed text, numbered by attempt; replaced by the committed message when the attempt ends well.
CREATE TABLE deltas (
    chat_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    k       INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (chat_id, attempt, k)
) WITHOUT ROWID;

CREATE TABLE calls (
    chat_id     TEXT NOT NULL,
    batch       INTEGER NOT NULL,
    pos         INTEGER NOT NULL,
    id          TEXT NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('planned', 'asking', 'approved', 'started', 'external', 'done',
                                               'denied', 'unknown', 'cancelled')),
    replay      TEXT NOT NULL,
    on_unknown  TEXT NOT NULL,
    arguments   TEXT,
    external    TEXT,
    child_id    TEXT,
    child_turn  INTEGER,
    question    TEXT,
    answered_by TEXT,
    started_at  INTEGER,
    starts      INTEGER NOT NULL,
    expires_at  INTEGER,
    PRIMARY KEY (chat_id, batch, pos)
) WITHOUT ROWID;

CREATE TABLE queue (
    chat_id TEXT NOT NULL,
    id      TEXT NOT NULL,
    rank    INTEGER NOT NULL,
    mode    TEXT NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (chat_id, id)
) WITHOUT ROWID;

CREATE TABLE compactions (
    chat_id    TEXT NOT NULL,
    upto       INTEGER NOT NULL,
    summary    TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (chat_id, upto)
) WITHOUT ROWID;

-- One row per worker: the lease. expires_at is boot time under boot id `host`; renewed_at is for people.
CREATE TABLE workers (
    id         TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    lock_path  TEXT,
    started_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    info       TEXT NOT NULL
) WITHOUT ROWID;

-- Answers to client calls, by idempotency key. chat_id only where the answer holds text of the chat (messages that were
-- dropped from its queue): such an answer is deleted with the chat.
CREATE TABLE receipts (
    principal  TEXT NOT NULL,
    key        TEXT NOT NULL,
    hash       TEXT NOT NULL,
    answer     TEXT NOT NULL,
    chat_id    TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) WITHOUT ROWID;
CREATE INDEX receipts_age ON receipts (created_at);
CREATE INDEX receipts_chat ON receipts (chat_id) WHERE chat_id IS NOT NULL;

CREATE TABLE repairs (
    reason  TEXT PRIMARY KEY,
    count   INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) WITHOUT ROWID;
