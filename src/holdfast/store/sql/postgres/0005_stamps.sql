-- oldest-code: 4
-- Every write of a chat leaves a new random number in its row and on the journal lines and deltas that come with it.
-- 0: written by code that knew no stamps. No index has them, so that a commit stays a HOT update.
ALTER TABLE chats ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN claim_stamp BIGINT NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN line_stamp BIGINT NOT NULL DEFAULT 0;
ALTER TABLE journal ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0;
ALTER TABLE deltas ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0;
