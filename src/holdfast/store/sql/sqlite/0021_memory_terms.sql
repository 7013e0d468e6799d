-- oldest-code: 10
-- In which form the terms of a passage are: of form 1, each begins with its owner's key. A search looks for no others, so
-- workers make those of older passages anew, slice by slice (`memory_passages_old` is what is left of them). Older code writes
-- form 0, and finds that until it is made anew, some minute later: of form 1 it finds nothing.
ALTER TABLE memory_passages ADD COLUMN IF NOT EXISTS form INTEGER NOT NULL DEFAULT 0;
CREATE INDEX memory_passages_old ON memory_passages (id) WHERE form = 0;
CREATE TRIGGER memory_passages_anew AFTER UPDATE OF terms ON memory_passages BEGIN
    INSERT INTO memory_index (memory_index, rowid, terms) VALUES ('delete', old.id, old.terms);
    INSERT INTO memory_index (rowid, terms) VALUES (new.id, new.terms);
END;
