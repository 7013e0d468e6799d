-- oldest-code: 4
-- What people list, and what a sweep looks at, each by an index of its own. Neither is moved by a commit of a runner:
-- an owner and an agent stay, and the others hold only chats that rest, wait, or should not be as they are.
CREATE INDEX chats_owner ON chats (owner, id);
CREATE INDEX chats_agent ON chats (agent, id);
CREATE INDEX chats_archived ON chats (id) WHERE archived = 1;
CREATE INDEX chats_failed ON chats (id) WHERE state = 'failed';
CREATE INDEX chats_waiting ON chats (id) WHERE state = 'waiting';

-- Whatever is in one of these two is stranded: in order there is nothing in them.
DROP INDEX chats_unwatched;
CREATE INDEX chats_unwatched ON chats (id)
    WHERE worker IS NULL AND wake_at IS NULL AND state IN ('running', 'stopping');
CREATE INDEX chats_restless ON chats (id)
    WHERE state IN ('idle', 'failed') AND (worker IS NOT NULL OR wake_at IS NOT NULL);
