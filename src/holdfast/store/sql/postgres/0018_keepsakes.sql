-- oldest-code: 10
-- What the tools of a chat keep for a rerun and for later calls. Older code leaves it as it is.
ALTER TABLE chats ADD COLUMN keepsakes TEXT NOT NULL DEFAULT '';
