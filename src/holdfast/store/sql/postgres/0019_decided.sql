-- oldest-code: 10
-- Up to where the rows of a schedule's occurrences were forgotten: nothing below is fired again. And the last instant
-- that was decided: what comes again up to there, under a clock that was set back, is compared with rows. Older code
-- leaves both as they are.
ALTER TABLE schedules ADD COLUMN forgotten_to BIGINT NOT NULL DEFAULT 0;
ALTER TABLE schedules ADD COLUMN decided_to BIGINT NOT NULL DEFAULT 0;
UPDATE schedules SET
    forgotten_to = coalesce((SELECT min(at) - 1 FROM occurrences WHERE schedule_id = schedules.id), updated_at)
WHERE fired + skipped > (SELECT coalesce(sum(count), 0) FROM occurrences WHERE schedule_id = schedules.id);
UPDATE schedules SET
    decided_to = coalesce((SELECT max(upto) FROM occurrences WHERE schedule_id = schedules.id), 0);
