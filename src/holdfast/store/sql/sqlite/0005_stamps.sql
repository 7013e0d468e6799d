-- oldest-code: 4
-- Every write of a chat leaves a new random number in its row and on the journal lines and deltas that come with it.
-- 0: written by code that knew no stamps.
ALTER TABLE chats ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN claim_stamp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN line_stamp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE journal ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0;
ALTER TABLE deltas ADD COLUMN stamp INTEGER NOT NULL DEFAULT 0;
