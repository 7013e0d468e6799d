-- oldest-code: 2
-- Families know their chat at the top, clients bring tools of their own, and a call keeps what people are shown of it.
-- Some databases of the first schema have a part of it already.
ALTER TABLE chats ADD COLUMN IF NOT EXISTS client_tools TEXT;
ALTER TABLE chats ADD COLUMN IF NOT EXISTS root_id TEXT;
ALTER TABLE calls ADD COLUMN IF NOT EXISTS excerpt TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN IF NOT EXISTS told TEXT;

WITH RECURSIVE families (id, root_id) AS (
    SELECT child.id, child.parent_id FROM chats AS child JOIN chats AS top ON top.id = child.parent_id
    WHERE top.parent_id IS NULL
    UNION ALL
    SELECT child.id, families.root_id FROM chats AS child JOIN families ON child.parent_id = families.id
)
UPDATE chats SET root_id = families.root_id FROM families WHERE families.id = chats.id;

CREATE INDEX IF NOT EXISTS chats_family ON chats (root_id) WHERE root_id IS NOT NULL;
CREATE INDEX chats_unwatched ON chats (id)
    WHERE worker IS NULL AND wake_at IS NULL AND state IN ('running', 'stopping', 'waiting');
