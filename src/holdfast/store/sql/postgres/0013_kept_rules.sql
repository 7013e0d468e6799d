-- oldest-code: 9
-- What a person said "always" to: rules of an owner, for all of its chats, those of one agent, or one chat ('' and 0:
-- not for one). A call says which rules it offers. Older code offers none, asks as before, and leaves these alone.
ALTER TABLE calls ADD COLUMN IF NOT EXISTS offer TEXT;

CREATE TABLE kept_rules (
    id         TEXT COLLATE "C" PRIMARY KEY,
    rule       TEXT COLLATE "C" NOT NULL,
    owner      TEXT COLLATE "C" NOT NULL,
    agent      TEXT COLLATE "C" NOT NULL,
    chat_id    TEXT COLLATE "C" NOT NULL,
    life       BIGINT NOT NULL,
    made_by    TEXT NOT NULL,
    made_at    BIGINT NOT NULL,
    expires_at BIGINT,
    call_id    TEXT NOT NULL
);
CREATE UNIQUE INDEX kept_rules_once ON kept_rules (owner, rule, agent, chat_id, life);
CREATE INDEX kept_rules_by_chat ON kept_rules (chat_id);
CREATE INDEX kept_rules_by_end ON kept_rules (expires_at) WHERE expires_at IS NOT NULL;
