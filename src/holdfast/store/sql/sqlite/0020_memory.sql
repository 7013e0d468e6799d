-- oldest-code: 10
-- What outlives a chat. Blocks are short texts of an agent and an owner: each line knows the chat that wrote it, and a
-- version of a block is a list of its lines, so what came from a chat goes with the chat, from every version. Memories are
-- facts, episodes (what a chat was about) and proposals (edits that a person has to accept), each with where it came from
-- and whether content from outside may speak through it. Passages are what is searched. A row of `memory_chats` says what
-- a chat's model is shown (`snapshot`), and what is still to be made of the chat (`due_at`). `tainted_from` is the position
-- of the first result in a chat's history that came from outside. Older code did not look where a result came from: its
-- chats count as such from their beginning. It shows, makes and searches nothing of this, and deletes nothing of it with a
-- chat.
ALTER TABLE chats ADD COLUMN tainted_from INTEGER DEFAULT 0;

CREATE TABLE memory_blocks (
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    agent      TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    lines_made INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX memory_blocks_by_name ON memory_blocks (owner, agent, name);

CREATE TABLE memory_versions (
    block_id TEXT NOT NULL,
    version  INTEGER NOT NULL,
    lines    TEXT NOT NULL,
    made_by  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (block_id, version)
) WITHOUT ROWID;

CREATE TABLE memory_lines (
    block_id TEXT NOT NULL,
    line     INTEGER NOT NULL,
    text     TEXT NOT NULL,
    chat_id  TEXT NOT NULL,
    life     INTEGER NOT NULL,
    turn     INTEGER NOT NULL,
    call_id  TEXT NOT NULL,
    made_by  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (block_id, line)
) WITHOUT ROWID;
CREATE INDEX memory_lines_by_chat ON memory_lines (chat_id);

CREATE TABLE memories (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    owner         TEXT NOT NULL,
    agent         TEXT NOT NULL,
    text          TEXT NOT NULL,
    detail        TEXT NOT NULL,
    chat_id       TEXT NOT NULL,
    life          INTEGER NOT NULL,
    turn          INTEGER NOT NULL,
    call_id       TEXT NOT NULL,
    made_by       TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    tainted       INTEGER NOT NULL,
    cleared_by    TEXT,
    cleared_at    INTEGER,
    replaces      TEXT NOT NULL,
    superseded_by TEXT NOT NULL,
    ended_at      INTEGER
) WITHOUT ROWID;
CREATE INDEX memories_by_owner ON memories (owner, agent, kind, id);
CREATE INDEX memories_by_chat ON memories (chat_id);

CREATE TABLE memory_writes (
    chat_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    answer  TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (chat_id, call_id)
) WITHOUT ROWID;

CREATE TABLE memory_chats (
    chat_id    TEXT PRIMARY KEY,
    life       INTEGER NOT NULL,
    owner      TEXT NOT NULL,
    agent      TEXT NOT NULL,
    snapshot   TEXT NOT NULL,
    mark       INTEGER NOT NULL,
    due_at     INTEGER,
    tries      INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    indexed_to INTEGER NOT NULL,
    told_to    INTEGER NOT NULL,
    problem    TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX memory_chats_due ON memory_chats (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX memory_chats_by_owner ON memory_chats (owner);

CREATE TABLE memory_passages (
    id      INTEGER PRIMARY KEY,
    chat_id TEXT NOT NULL,
    owner   TEXT NOT NULL,
    agent   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    ref     TEXT NOT NULL,
    pos     INTEGER NOT NULL,
    role    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    tainted INTEGER NOT NULL,
    text    TEXT NOT NULL,
    terms   TEXT NOT NULL
);
CREATE INDEX memory_passages_by_chat ON memory_passages (chat_id, kind, pos);
CREATE INDEX memory_passages_by_ref ON memory_passages (ref);
CREATE INDEX memory_passages_by_owner ON memory_passages (owner, agent);

-- The terms are made by our own code, words apart by spaces: this takes them as they are.
CREATE VIRTUAL TABLE memory_index USING fts5 (terms, content = 'memory_passages', content_rowid = 'id', tokenize = 'ascii');
-- What is deleted is gone from the index, too, and not only marked so.
INSERT INTO memory_index (memory_index, rank) VALUES ('secure-delete', 1);
CREATE TRIGGER memory_passages_in AFTER INSERT ON memory_passages BEGIN
    INSERT INTO memory_index (rowid, terms) VALUES (new.id, new.terms);
END;
CREATE TRIGGER memory_passages_out AFTER DELETE ON memory_passages BEGIN
    INSERT INTO memory_index (memory_index, rowid, terms) VALUES ('delete', old.id, old.terms);
END;
