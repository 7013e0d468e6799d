-- oldest-code: 9
-- Rows that stand under an id without a chat: of a deleted one, which go in slices, or of a fork of `source_id`, which
-- come in slices. Older code would show them, or make a chat among them.
CREATE TABLE remnants (
    chat_id      TEXT PRIMARY KEY,
    source_id    TEXT,
    source_life  INTEGER NOT NULL,
    source_epoch INTEGER NOT NULL,
    pos          INTEGER NOT NULL,
    seq          INTEGER NOT NULL
) WITHOUT ROWID;
