-- oldest-code: 10
-- What was spent, and what is reserved for calls under way. A line of `spending` is written with the commit that tells of
-- it; sweeps fold lines into `ledgers` (what an account has spent) and `usage_totals` (who spent what on which day), and
-- delete them. With an `account` a line is one more entry of the same spending, for a chat above it that bounds it.
-- Older code writes no lines: what it spends does not count.
ALTER TABLE chats ADD COLUMN purses TEXT;
ALTER TABLE chats ADD COLUMN chat_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN chat_cost DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN spawned BIGINT NOT NULL DEFAULT 0;

CREATE TABLE spending (
    owner   TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    day     TEXT COLLATE "C" NOT NULL,
    id      TEXT COLLATE "C" NOT NULL,
    at      BIGINT NOT NULL,
    chat_id TEXT COLLATE "C" NOT NULL,
    agent   TEXT COLLATE "C" NOT NULL,
    model   TEXT COLLATE "C" NOT NULL,
    kind    TEXT COLLATE "C" NOT NULL,
    tokens  BIGINT NOT NULL,
    cost    DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (owner, account, day, id)
);

CREATE TABLE ledgers (
    account  TEXT COLLATE "C" PRIMARY KEY,
    owner    TEXT COLLATE "C" NOT NULL,
    day      TEXT COLLATE "C" NOT NULL,
    chat_id  TEXT COLLATE "C" NOT NULL,
    turn     BIGINT NOT NULL,
    tokens   BIGINT NOT NULL,
    cost     DOUBLE PRECISION NOT NULL,
    moved_at BIGINT NOT NULL
);
CREATE INDEX ledgers_by_owner ON ledgers (owner);

CREATE TABLE reservations (
    id      TEXT COLLATE "C" NOT NULL,
    account TEXT COLLATE "C" NOT NULL,
    worker  TEXT COLLATE "C" NOT NULL,
    chat_id TEXT COLLATE "C" NOT NULL,
    day     TEXT COLLATE "C" NOT NULL,
    tokens  BIGINT NOT NULL,
    cost    DOUBLE PRECISION NOT NULL,
    at      BIGINT NOT NULL,
    PRIMARY KEY (id, account)
);
CREATE INDEX reservations_by_account ON reservations (account);

CREATE TABLE usage_totals (
    owner  TEXT COLLATE "C" NOT NULL,
    day    TEXT COLLATE "C" NOT NULL,
    agent  TEXT COLLATE "C" NOT NULL,
    model  TEXT COLLATE "C" NOT NULL,
    kind   TEXT COLLATE "C" NOT NULL,
    lines  BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    cost   DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (owner, day, agent, model, kind)
);
CREATE INDEX usage_totals_by_day ON usage_totals (day);

CREATE TABLE budgets (
    owner      TEXT COLLATE "C" PRIMARY KEY,
    tokens     BIGINT,
    cost       DOUBLE PRECISION,
    day_tokens BIGINT,
    day_cost   DOUBLE PRECISION,
    set_by     TEXT COLLATE "C" NOT NULL,
    set_at     BIGINT NOT NULL
);
