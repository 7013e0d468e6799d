-- oldest-code: 2
-- An id can be used again once its chat is deleted, in the same millisecond even: `life` tells the two apart.
ALTER TABLE chats ADD COLUMN life INTEGER NOT NULL DEFAULT 0;
