-- oldest-code: 10
-- Endpoints that hear of what happens (`owner` NULL: to everybody's chats; `kinds` '': of all kinds), and one delivery
-- for each endpoint and notice, made in the transaction of what happened. An endpoint's secret stands here as it is,
-- because it signs; so does the key that signs links to approvals. Older code tells no endpoint of what it does.
CREATE TABLE webhooks (
    id              TEXT PRIMARY KEY,
    owner           TEXT,
    name            TEXT NOT NULL,
    url             TEXT NOT NULL,
    kinds           TEXT NOT NULL,
    links           INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('active', 'disabled')),
    why             TEXT NOT NULL DEFAULT '',
    secret          TEXT NOT NULL,
    old_secret      TEXT,
    old_until       INTEGER,
    source          TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT NOT NULL,
    throttled_until INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX webhooks_by_owner ON webhooks (owner, id);

CREATE TABLE deliveries (
    webhook_id TEXT NOT NULL,
    notice_id  TEXT NOT NULL,
    kind       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    chat_id    TEXT NOT NULL,
    turn       INTEGER NOT NULL,
    life       INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    data       TEXT NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'held', 'delivered', 'failed')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    next_at    INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT NOT NULL DEFAULT '',
    ended_at   INTEGER,
    PRIMARY KEY (webhook_id, notice_id)
) WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (next_at) WHERE state = 'pending';
CREATE INDEX deliveries_due_by_hook ON deliveries (webhook_id, next_at) WHERE state = 'pending';
CREATE INDEX deliveries_by_state ON deliveries (webhook_id, state, notice_id);
CREATE INDEX deliveries_by_owner ON deliveries (owner);
CREATE INDEX deliveries_by_age ON deliveries (at);

CREATE TABLE link_keys (
    id      TEXT PRIMARY KEY,
    secret  TEXT NOT NULL,
    made_at INTEGER NOT NULL
) WITHOUT ROWID;
