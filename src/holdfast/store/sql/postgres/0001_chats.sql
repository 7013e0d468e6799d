-- oldest-code: 1
-- Chats, their journal and everything a worker needs. What changes has columns; what is JSON is written once, as
-- TEXT: jsonb would not keep the bytes. Ids compare by byte on every server, whatever its locale: pages and locks
-- are taken in that order.

-- Every commit of a runner updates its chat's row and none of the indexed columns, so with room left in the page
-- the new version stays there and no index is touched (a HOT update).
CREATE TABLE chats (
    id              TEXT COLLATE "C" PRIMARY KEY,
    agent           TEXT COLLATE "C" NOT NULL,
    owner           TEXT COLLATE "C" NOT NULL,
    metadata        TEXT NOT NULL,
    active_tools    TEXT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    title           TEXT,
    parent_id       TEXT COLLATE "C",
    parent_call     TEXT,
    depth           BIGINT NOT NULL,
    forked_from     TEXT,
    forked_at       BIGINT,
    state           TEXT NOT NULL CHECK (state IN ('idle', 'running', 'stopping', 'waiting', 'failed')),
    phase           TEXT NOT NULL,
    archived        BOOLEAN NOT NULL,
    compact         BOOLEAN NOT NULL,
    turn            BIGINT NOT NULL,
    turn_started_at BIGINT,
    turn_from       BIGINT NOT NULL,
    step            BIGINT NOT NULL,
    turn_tokens     BIGINT NOT NULL,
    turn_cost       DOUBLE PRECISION NOT NULL,
    cause           TEXT,
    error           TEXT,
    answer          TEXT,
    worker          TEXT COLLATE "C",
    fence           BIGINT NOT NULL,
    wake_at         BIGINT,
    unclean         BIGINT NOT NULL,
    version         BIGINT NOT NULL,
    epoch           BIGINT NOT NULL,
    commit_id       TEXT,
    seq             BIGINT NOT NULL,
    length          BIGINT NOT NULL,
    batch           BIGINT,
    attempt_ended   BIGINT NOT NULL
) WITH (fillfactor = 60);
CREATE INDEX chats_due ON chats (agent, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX chats_held ON chats (worker) WHERE worker IS NOT NULL;
CREATE INDEX chats_children ON chats (parent_id) WHERE parent_id IS NOT NULL;

-- Every entry any client ever sees. A row with a position is also part of the history.
CREATE TABLE journal (
    chat_id TEXT COLLATE "C" NOT NULL,
    seq     BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    role    TEXT,
    pos     BIGINT,
    ref     TEXT,
    body    TEXT NOT NULL,
    PRIMARY KEY (chat_id, seq)
);
CREATE UNIQUE INDEX journal_history ON journal (chat_id, pos) WHERE pos IS NOT NULL;

-- Streamed text, numbered by attempt; replaced by the committed message when the attempt ends well.
CREATE TABLE deltas (
    chat_id TEXT COLLATE "C" NOT NULL,
    attempt BIGINT NOT NULL,
    k       BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (chat_id, attempt, k)
);

CREATE TABLE calls (
    chat_id     TEXT COLLATE "C" NOT NULL,
    batch       BIGINT NOT NULL,
    pos         BIGINT NOT NULL,
    id          TEXT NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('planned', 'asking', 'approved', 'started', 'external', 'done',
                                               'denied', 'unknown', 'cancelled')),
    replay      TEXT NOT NULL,
    on_unknown  TEXT NOT NULL,
    arguments   TEXT,
    external    TEXT,
    child_id    TEXT,
    child_turn  BIGINT,
    question    TEXT,
    answered_by TEXT,
    started_at  BIGINT,
    starts      BIGINT NOT NULL,
    expires_at  BIGINT,
    PRIMARY KEY (chat_id, batch, pos)
) WITH (fillfactor = 80);

CREATE TABLE queue (
    chat_id TEXT COLLATE "C" NOT NULL,
    id      TEXT COLLATE "C" NOT NULL,
    rank    BIGINT NOT NULL,
    mode    TEXT NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (chat_id, id)
);

CREATE TABLE compactions (
    chat_id    TEXT COLLATE "C" NOT NULL,
    upto       BIGINT NOT NULL,
    summary    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (chat_id, upto)
);

-- One row per worker: the lease. expires_at is by the database's clock, as are the others.
CREATE TABLE workers (
    id         TEXT COLLATE "C" PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        BIGINT NOT NULL,
    lock_path  TEXT,
    started_at BIGINT NOT NULL,
    renewed_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    info       TEXT NOT NULL
) WITH (fillfactor = 50);

-- Answers to client calls, by idempotency key. chat_id only where the answer holds text of the chat (messages that were
-- dropped from its queue): such an answer is deleted with the chat.
CREATE TABLE receipts (
    principal  TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    hash       TEXT NOT NULL,
    answer     TEXT NOT NULL,
    chat_id    TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX receipts_age ON receipts (created_at);
CREATE INDEX receipts_chat ON receipts (chat_id) WHERE chat_id IS NOT NULL;

CREATE TABLE repairs (
    reason  TEXT COLLATE "C" PRIMARY KEY,
    count   BIGINT NOT NULL,
    last_at BIGINT NOT NULL
);
