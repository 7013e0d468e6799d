-- oldest-code: 8
-- How long workers have worked in the open turn, in slices that each of them measured by its own boot time, and in which
-- turn of its parent a chat was spawned: neither is told by the difference of two readings of a wall clock. Older code
-- would not begin the count anew with a turn.
ALTER TABLE chats ADD COLUMN turn_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN parent_turn INTEGER;
