-- oldest-code: 10
-- Schedules, and what became of each instant of theirs. `due_at` stands only where one is active: workers look for
-- the soonest. (schedule, instant) is unique; a row for several skipped instants has another end than its start.
CREATE TABLE schedules (
    id          TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    name        TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    source      TEXT NOT NULL,
    agent       TEXT NOT NULL,
    timing      TEXT NOT NULL,
    message     TEXT NOT NULL,
    chat        TEXT NOT NULL,
    overlap     TEXT NOT NULL,
    catch_up_ms INTEGER NOT NULL,
    jitter_ms   INTEGER NOT NULL,
    pause_after INTEGER,
    updated_at  INTEGER NOT NULL,
    state       TEXT NOT NULL,
    paused_by   TEXT,
    note        TEXT NOT NULL,
    failures    INTEGER NOT NULL,
    next_at     INTEGER,
    due_at      INTEGER,
    chat_id     TEXT,
    fired       INTEGER NOT NULL,
    skipped     INTEGER NOT NULL,
    stamp       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX schedules_named ON schedules (owner, name);
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX schedules_of_owner ON schedules (owner, id);
CREATE INDEX schedules_declared ON schedules (source, id) WHERE source <> 'made';

CREATE TABLE occurrences (
    schedule_id TEXT NOT NULL,
    at          INTEGER NOT NULL,
    upto        INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT,
    detail      TEXT NOT NULL,
    overlap     TEXT,
    chat_id     TEXT,
    message_id  TEXT,
    turn        INTEGER,
    seq         INTEGER NOT NULL,
    decided_at  INTEGER NOT NULL,
    fired_at    INTEGER,
    ended_at    INTEGER,
    outcome     TEXT,
    PRIMARY KEY (schedule_id, at, upto)
) WITHOUT ROWID;
CREATE INDEX occurrences_fired ON occurrences (schedule_id, at) WHERE state = 'fired';
CREATE INDEX occurrences_held ON occurrences (schedule_id, at) WHERE state = 'held';
CREATE INDEX occurrences_over ON occurrences (decided_at) WHERE state IN ('ended', 'skipped');
CREATE UNIQUE INDEX occurrences_triggered ON occurrences (message_id) WHERE kind = 'triggered';
