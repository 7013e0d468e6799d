-- oldest-code: 6
-- A chat that runs and that nobody holds is due, whatever a clock says: its `wake_at` only sorts. A backoff keeps its
-- length, so that one which lies further ahead than that is known to be over. Only a waiting chat's `wake_at`, which
-- people chose, is compared with the time.
ALTER TABLE chats ADD COLUMN backoff_ms BIGINT NOT NULL DEFAULT 0;
DROP INDEX chats_due;
CREATE INDEX chats_ready ON chats (agent, wake_at) WHERE wake_at IS NOT NULL AND state IN ('running', 'stopping');
CREATE INDEX chats_timers ON chats (agent, wake_at) WHERE wake_at IS NOT NULL AND state = 'waiting';
