-- oldest-code: 10
-- Bytes that messages name by their SHA-256, once for all chats, and which chats name them. A digest is noted in
-- `unused_files` when a chat that named it goes: if no other does, its bytes go, too. Older code would send a model the
-- name in place of the bytes, and copy a chat without them. What grows by one (`named`, `noted`) keeps two who decide
-- at the same time from going by what the other is just changing.
CREATE TABLE files (
    digest TEXT COLLATE "C" PRIMARY KEY,
    size   BIGINT NOT NULL,
    named  BIGINT NOT NULL,
    data   BYTEA NOT NULL
);
ALTER TABLE files ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE file_uses (
    chat_id TEXT COLLATE "C" NOT NULL,
    digest  TEXT COLLATE "C" NOT NULL,
    size    BIGINT NOT NULL,
    PRIMARY KEY (chat_id, digest)
);
CREATE INDEX file_uses_by_digest ON file_uses (digest);

CREATE TABLE unused_files (
    digest TEXT COLLATE "C" PRIMARY KEY,
    noted  BIGINT NOT NULL
);
