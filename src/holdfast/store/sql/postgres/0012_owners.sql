-- oldest-code: 9
-- What is due, by its owner: a claim goes from owner to owner, so that none waits behind another's ten thousand chats.
-- The indexes by agent and time stay: where nothing piles up, the oldest comes first.
CREATE INDEX chats_ready_owner ON chats (agent, owner, wake_at)
    WHERE wake_at IS NOT NULL AND state IN ('running', 'stopping');
CREATE INDEX chats_timers_owner ON chats (agent, owner, wake_at) WHERE wake_at IS NOT NULL AND state = 'waiting';
