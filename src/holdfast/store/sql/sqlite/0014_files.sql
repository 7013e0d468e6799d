-- oldest-code: 10
-- Bytes that messages name by their SHA-256, once for all chats, and which chats name them. A digest is noted in
-- `unused_files` when a chat that named it goes: if no other does, its bytes go, too. Older code would send a model the
-- name in place of the bytes, and copy a chat without them.
CREATE TABLE files (
    digest TEXT PRIMARY KEY,
    size   INTEGER NOT NULL,
    named  INTEGER NOT NULL,
    data   BLOB NOT NULL
);

CREATE TABLE file_uses (
    chat_id TEXT NOT NULL,
    digest  TEXT NOT NULL,
    size    INTEGER NOT NULL,
    PRIMARY KEY (chat_id, digest)
) WITHOUT ROWID;
CREATE INDEX file_uses_by_digest ON file_uses (digest);

CREATE TABLE unused_files (
    digest TEXT PRIMARY KEY,
    noted  INTEGER NOT NULL
) WITHOUT ROWID;
