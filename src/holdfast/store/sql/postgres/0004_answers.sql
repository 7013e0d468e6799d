-- oldest-code: 4
-- A turn's answer stands in the journal already: a chat says where, instead of keeping a second copy that every commit
-- wrote again. Where a chat is in a later turn, its answer is the last response before that turn.
ALTER TABLE chats ADD COLUMN answer_seq BIGINT;

UPDATE chats SET answer_seq = (
    SELECT max(journal.seq) FROM journal
    WHERE journal.chat_id = chats.id AND journal.role = 'assistant'
          AND (chats.turn_started_at IS NULL OR journal.pos < chats.turn_from)
) WHERE answer IS NOT NULL AND parent_id IS NOT NULL;

ALTER TABLE chats DROP COLUMN answer;
