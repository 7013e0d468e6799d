-- oldest-code: 10
-- Schedules, and what became of each instant of theirs. `due_at` stands only where one is active: workers look for
-- the soonest. (schedule, instant) is unique; a row for several skipped instants has another end than its start.
CREATE TABLE schedules (
    id          TEXT COLLATE "C" PRIMARY KEY,
    owner       TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    created_by  TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    source      TEXT COLLATE "C" NOT NULL,
    agent       TEXT COLLATE "C" NOT NULL,
    timing      TEXT NOT NULL,
    message     TEXT NOT NULL,
    chat        TEXT NOT NULL,
    overlap     TEXT NOT NULL,
    catch_up_ms BIGINT NOT NULL,
    jitter_ms   BIGINT NOT NULL,
    pause_after BIGINT,
    updated_at  BIGINT NOT NULL,
    state       TEXT NOT NULL,
    paused_by   TEXT,
    note        TEXT NOT NULL,
    failures    BIGINT NOT NULL,
    next_at     BIGINT,
    due_at      BIGINT,
    chat_id     TEXT COLLATE "C",
    fired       BIGINT NOT NULL,
    skipped     BIGINT NOT NULL,
    stamp       BIGINT NOT NULL
);
CREATE UNIQUE INDEX schedules_named ON schedules (owner, name);
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX schedules_of_owner ON schedules (owner, id);
CREATE INDEX schedules_declared ON schedules (source, id) WHERE source <> 'made';

CREATE TABLE occurrences (
    schedule_id TEXT COLLATE "C" NOT NULL,
    at          BIGINT NOT NULL,
    upto        BIGINT NOT NULL,
    count       BIGINT NOT NULL,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT,
    detail      TEXT NOT NULL,
    overlap     TEXT,
    chat_id     TEXT COLLATE "C",
    message_id  TEXT COLLATE "C",
    turn        BIGINT,
    seq         BIGINT NOT NULL,
    decided_at  BIGINT NOT NULL,
    fired_at    BIGINT,
    ended_at    BIGINT,
    outcome     TEXT,
    PRIMARY KEY (schedule_id, at, upto)
);
CREATE INDEX occurrences_fired ON occurrences (schedule_id, at) WHERE state = 'fired';
CREATE INDEX occurrences_held ON occurrences (schedule_id, at) WHERE state = 'held';
CREATE INDEX occurrences_over ON occurrences (decided_at) WHERE state IN ('ended', 'skipped');
CREATE UNIQUE INDEX occurrences_triggered ON occurrences (message_id) WHERE kind = 'triggered';
