-- Jobs, made when the first one is. Why it looks like this: docs/decisions/0011-active-storage.md. What a job must not lose while it
-- runs is in `held`, so programs that do not know these tables reclaim nothing of it.
CREATE TABLE job (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    state    INTEGER NOT NULL,           -- 0 waiting, 1 running, 2 done, 3 failed, 4 cancelled
    spec     TEXT NOT NULL,
    why      TEXT NOT NULL,
    created  INTEGER NOT NULL,
    changed  INTEGER NOT NULL
) STRICT;

CREATE TABLE job_input (
    job     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    path    BLOB NOT NULL,
    root    BLOB,                        -- NULL: empty, or not held any more
    sum     INTEGER AS (row_sum(job, number, path, root)) STORED,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE job_split (
    job      INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    input    INTEGER,                    -- NULL: all of them
    first    INTEGER NOT NULL,           -- nominal first byte
    after    INTEGER NOT NULL,
    state    INTEGER NOT NULL,           -- 0 waiting, 1 running, 2 done, 3 set aside
    attempt  INTEGER NOT NULL,           -- attempts so far: the newest one's fencing token
    tries    INTEGER NOT NULL,           -- attempts since the last retry
    session  INTEGER NOT NULL,
    why      TEXT NOT NULL,
    log      BLOB,
    PRIMARY KEY (job, number)
) STRICT;
CREATE INDEX job_split_open ON job_split (job, number) WHERE state < 2;

CREATE TABLE job_output (
    job      INTEGER NOT NULL,
    split    INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    name     BLOB NOT NULL,
    root     BLOB,
    sum      INTEGER AS (row_sum(job, split, attempt, name, root)) STORED,
    PRIMARY KEY (job, split, attempt, name)
) STRICT, WITHOUT ROWID;
