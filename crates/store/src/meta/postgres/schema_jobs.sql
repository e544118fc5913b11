-- Jobs, as in sqlite/jobs.sql. Why it looks like this: docs/decisions/0011-active-storage.md. What a job must not lose while it runs is in @held.

CREATE TABLE @job (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created  bigint NOT NULL,
    changed  bigint NOT NULL,
    state    int NOT NULL,               -- 0 waiting, 1 running, 2 done, 3 failed, 4 cancelled
    spec     text NOT NULL,
    why      text NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX job_open ON @job (id) WHERE state < 2;

CREATE TABLE @job_input (
    job     bigint NOT NULL,
    number  int NOT NULL,
    sum     int NOT NULL,
    path    bytea NOT NULL,
    root    bytea,                       -- NULL: empty, or not held any more
    PRIMARY KEY (job, number)
);

-- Whoever claims a row or finishes it has the job's row locked for share, so that this does not happen beside the end of the job, which has it locked for
-- update. A row that goes back from running, because its attempt failed or was not begun, needs only its own lock: see jobs/mod.rs.
CREATE TABLE @job_split (
    job      bigint NOT NULL,
    number   bigint NOT NULL,
    first    bigint NOT NULL,            -- nominal first byte
    after    bigint NOT NULL,
    attempt  bigint NOT NULL,            -- attempts so far: the newest one's fencing token
    tries    bigint NOT NULL,            -- attempts since the last retry
    session  bigint NOT NULL,
    input    int,                        -- NULL: all of them
    state    int NOT NULL,               -- 0 waiting, 1 running, 2 done, 3 set aside
    why      text NOT NULL,
    log      bytea,
    PRIMARY KEY (job, number)
) WITH (fillfactor = 50);
CREATE INDEX job_split_open ON @job_split (job, number) WHERE state < 2;

CREATE TABLE @job_output (
    job      bigint NOT NULL,
    split    bigint NOT NULL,
    attempt  bigint NOT NULL,
    sum      int NOT NULL,
    name     bytea NOT NULL,
    root     bytea,
    PRIMARY KEY (job, split, attempt, name)
);

-- What runners keep beside jobs, in their own words.
CREATE TABLE @job_note (
    kind     text NOT NULL,
    name     text NOT NULL,
    changed  bigint NOT NULL,
    value    text NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The content of a file that a rule has seen last.
CREATE TABLE @job_seen (
    rule   text NOT NULL,
    inode  bigint NOT NULL,
    mark   text NOT NULL,
    PRIMARY KEY (rule, inode)
) WITH (fillfactor = 70);
