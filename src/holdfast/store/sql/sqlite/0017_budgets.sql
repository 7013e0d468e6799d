-- oldest-code: 10
-- What was spent, and what is reserved for calls under way. A line of `spending` is written with the commit that tells of
-- it; sweeps fold lines into `ledgers` (what an account has spent) and `usage_totals` (who spent what on which day), and
-- delete them. With an `account` a line is one more entry of the same spending, for a chat above it that bounds it.
-- Older code writes no lines: what it spends does not count.
ALTER TABLE chats ADD COLUMN purses TEXT;
ALTER TABLE chats ADD COLUMN chat_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN chat_cost REAL NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN spawned INTEGER NOT NULL DEFAULT 0;

CREATE TABLE spending (
    owner   TEXT NOT NULL,
    account TEXT NOT NULL,
    day     TEXT NOT NULL,
    id      TEXT NOT NULL,
    at      INTEGER NOT NULL,
    chat_id TEXT NOT NULL,
    agent   TEXT NOT NULL,
    model   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    tokens  INTEGER NOT NULL,
    cost    REAL NOT NULL,
    PRIMARY KEY (owner, account, day, id)
) WITHOUT ROWID;

CREATE TABLE ledgers (
    account  TEXT PRIMARY KEY,
    owner    TEXT NOT NULL,
    day      TEXT NOT NULL,
    chat_id  TEXT NOT NULL,
    turn     INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    cost     REAL NOT NULL,
    moved_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ledgers_by_owner ON ledgers (owner);

CREATE TABLE reservations (
    id      TEXT NOT NULL,
    account TEXT NOT NULL,
    worker  TEXT NOT NULL,
    chat_id TEXT NOT NULL,
    day     TEXT NOT NULL,
    tokens  INTEGER NOT NULL,
    cost    REAL NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (id, account)
) WITHOUT ROWID;
CREATE INDEX reservations_by_account ON reservations (account);

CREATE TABLE usage_totals (
    owner  TEXT NOT NULL,
    day    TEXT NOT NULL,
    agent  TEXT NOT NULL,
    model  TEXT NOT NULL,
    kind   TEXT NOT NULL,
    lines  INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost   REAL NOT NULL,
    PRIMARY KEY (owner, day, agent, model, kind)
) WITHOUT ROWID;
CREATE INDEX usage_totals_by_day ON usage_totals (day);

CREATE TABLE budgets (
    owner      TEXT PRIMARY KEY,
    tokens     INTEGER,
    cost       REAL,
    day_tokens INTEGER,
    day_cost   REAL,
    set_by     TEXT NOT NULL,
    set_at     INTEGER NOT NULL
) WITHOUT ROWID;
