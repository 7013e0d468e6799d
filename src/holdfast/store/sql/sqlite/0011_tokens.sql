-- oldest-code: 9
-- Who may ask, as digests of secrets that are stored nowhere. A token ends with those it was made with (`parent`).
-- Older code lets the admin token in and no other.
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    hash       TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL CHECK (kind IN ('token', 'session', 'link')),
    name       TEXT NOT NULL,
    owner      TEXT,
    scopes     TEXT NOT NULL,
    chat       TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    created_by TEXT NOT NULL,
    parent     TEXT,
    used       TEXT
) WITHOUT ROWID;
CREATE INDEX tokens_by_owner ON tokens (owner, id);
