-- oldest-code: 6
-- No lease ends by a clock: it holds a number that each renewal counts up, and how it was ended. A chat knows which of
-- the workers that it lost only went silent. Older code finds no expiry any more, so that it stops by itself.
ALTER TABLE workers ADD COLUMN ttl_ms INTEGER NOT NULL DEFAULT 30000;
ALTER TABLE workers ADD COLUMN renewal INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN ended TEXT CHECK (ended IN ('retired', 'died', 'silent'));
UPDATE workers SET ended = 'retired' WHERE expires_at = 0;
ALTER TABLE workers DROP COLUMN expires_at;
ALTER TABLE chats ADD COLUMN silent TEXT NOT NULL DEFAULT '';
