-- The metadata in PostgreSQL, whose version is in open.rs. Why it looks like this: docs/decisions/0009-postgresql.md. An at sign stands for the schema's name.
-- Tables of what the tree is end with a checksum of the row, made and compared by the client (row.rs).
-- Where a store is encrypted, clients seal names, contents and most texts before they come here: meta/sealer.rs lists which, and what is left to see.
-- Numbers that are u64 elsewhere are kept as bigint with the same bits. Times are nanoseconds since 1970 unless said otherwise.

-- What the store is; one row.
CREATE TABLE @about (
    one      int PRIMARY KEY CHECK (one = 1),
    version  int NOT NULL,               -- of this schema
    config   text NOT NULL               -- as store.toml of a store in a directory
);

-- One row. Changed by transactions that are alone; read by all.
CREATE TABLE @state (
    one         int PRIMARY KEY CHECK (one = 1),
    epoch       bigint NOT NULL,         -- the current one; rows that are changed now get it
    generation  bigint NOT NULL,         -- raised whenever packs are marked as candidates
    collector   bigint                   -- the session that is the collector
) WITH (fillfactor = 50);

-- A row each, so that those who take from one do not wait for those who take from another.
CREATE TABLE @counter (
    name   text PRIMARY KEY,
    value  bigint NOT NULL               -- the next number
) WITH (fillfactor = 50);

-- Totals of the current tree are the sums over all rows: writers add to different ones, so that they do not wait for each other.
CREATE TABLE @total (
    slot         int PRIMARY KEY,
    files        bigint NOT NULL DEFAULT 0,
    directories  bigint NOT NULL DEFAULT 0,
    others       bigint NOT NULL DEFAULT 0,
    bytes        numeric NOT NULL DEFAULT 0   -- modulo 2^64
) WITH (fillfactor = 50);

-- The last transaction that each connection of a client has committed: how a client learns what became of one whose answer was lost.
CREATE TABLE @lane (
    id     bigint PRIMARY KEY,
    token  bigint NOT NULL,
    used   timestamptz NOT NULL DEFAULT now(),
    closed boolean NOT NULL DEFAULT false   -- nothing that is sent by the connection it was of happens any more
) WITH (fillfactor = 50);

-- Inodes of the current tree.
CREATE TABLE @inode (
    number       bigint PRIMARY KEY,
    epoch        bigint NOT NULL,        -- the row is valid from this epoch on
    version      bigint NOT NULL,        -- number of its present content, from 1
    mtime_secs   bigint NOT NULL,
    time         bigint NOT NULL,        -- when its content was committed
    stamp        bigint NOT NULL,
    mtime_nanos  int NOT NULL,
    mode         int NOT NULL,           -- kind << 12 | permission bits
    uid          int NOT NULL,           -- the bits of a u32
    gid          int NOT NULL,
    links        int NOT NULL,           -- names it has; 1 for a directory
    sum          int NOT NULL,
    device       bigint,                 -- a device's number
    target       bytea,                  -- a symlink's
    xattrs       bytea,                  -- as in the catalogue; NULL: none
    root         bytea,                  -- NULL: empty
    times        bytea                   -- last access and last change of the inode; NULL: not kept
) WITH (fillfactor = 95);

-- Names of the current tree.
CREATE TABLE @dentry (
    parent  bigint NOT NULL,
    inode   bigint NOT NULL,
    epoch   bigint NOT NULL,
    sum     int NOT NULL,
    name    bytea NOT NULL,
    PRIMARY KEY (parent, name)
);

-- Where each directory of the current tree hangs. Who makes an entry in one has its row locked for key share; who removes it, for update.
CREATE TABLE @directory (
    inode   bigint PRIMARY KEY,
    parent  bigint NOT NULL,             -- of the root: itself
    sum     int NOT NULL
);

-- Former states of inodes and names, valid in epoch_from .. epoch_to - 1.
CREATE TABLE @inode_old (
    number       bigint NOT NULL,
    epoch_from   bigint NOT NULL,
    epoch_to     bigint NOT NULL,
    mtime_secs   bigint NOT NULL,
    stamp        bigint NOT NULL,
    mtime_nanos  int NOT NULL,
    mode         int NOT NULL,
    uid          int NOT NULL,
    gid          int NOT NULL,
    links        int NOT NULL,
    sum          int NOT NULL,
    device       bigint,
    target       bytea,
    xattrs       bytea,
    root         bytea,
    times        bytea,
    -- What else the row of `inode` had; the server has compared the two. NULL: written by a role that may change the past.
    was_version  bigint,
    was_time     bigint,
    was_sum      int,
    PRIMARY KEY (number, epoch_from)
);

CREATE TABLE @dentry_old (
    parent      bigint NOT NULL,
    inode       bigint NOT NULL,
    epoch_from  bigint NOT NULL,
    epoch_to    bigint NOT NULL,
    sum         int NOT NULL,
    was_sum     int,                     -- that of the row of `dentry`, as above
    name        bytea NOT NULL,
    PRIMARY KEY (parent, name, epoch_from)
);

-- Earlier contents of files, kept by policy.
CREATE TABLE @version (
    inode        bigint NOT NULL,
    number       bigint NOT NULL,
    time         bigint NOT NULL,
    mtime_secs   bigint NOT NULL,
    mtime_nanos  int NOT NULL,
    sum          int NOT NULL,
    root         bytea,
    PRIMARY KEY (inode, number)
);

CREATE TABLE @policy (
    inode  bigint NOT NULL,
    key    text NOT NULL,
    value  text NOT NULL,
    PRIMARY KEY (inode, key)
);

CREATE TABLE @snapshot (
    epoch  bigint PRIMARY KEY,
    name   text NOT NULL UNIQUE,
    time   bigint NOT NULL,
    tags   text[] NOT NULL,
    role   text                          -- which has taken it; NULL: nobody knows, as it came with a copy
);

-- A row lives as long as its session: closing and fencing delete it.
CREATE TABLE @session (
    id            bigint PRIMARY KEY,
    kind          int NOT NULL,
    lease_secs    int NOT NULL,
    acknowledged  bigint NOT NULL,       -- the largest: never has to
    lease_until   bigint NOT NULL,       -- by this server's clock
    lock          text NOT NULL,         -- names its lock file
    host          text NOT NULL,
    process       bigint NOT NULL,
    role          text NOT NULL,         -- JSON (meta/sessions.rs)
    maker         name NOT NULL DEFAULT session_user   -- which role of the database has opened it
) WITH (fillfactor = 50);

CREATE TABLE @pin (
    epoch    bigint NOT NULL,
    session  bigint NOT NULL,
    PRIMARY KEY (epoch, session)
);

CREATE TABLE @pin_root (
    session  bigint NOT NULL,
    number   bigint GENERATED ALWAYS AS IDENTITY,
    root     bytea NOT NULL,
    PRIMARY KEY (session, number)
);

-- What staging logs refer to. Unlike pins these outlive every session: their holder releases them. Roots can be longer than an index
-- entry, so the key has their digest.
CREATE TABLE @held (
    holder  text NOT NULL,
    digest  bytea NOT NULL,
    sum     int NOT NULL,
    root    bytea NOT NULL,
    PRIMARY KEY (holder, digest)
);

-- Epochs at which somebody may still look.
CREATE VIEW @retained (epoch) AS
    SELECT epoch FROM @snapshot UNION SELECT epoch FROM @pin;

CREATE TABLE @pack (
    id          bigint PRIMARY KEY,
    session     bigint NOT NULL,
    bytes       bigint NOT NULL,
    raw_bytes   bigint NOT NULL,
    chunks      bigint NOT NULL,
    generation  bigint NOT NULL,         -- at which it was last marked as a candidate; before that, its mark
    dead_since  bigint NOT NULL,
    kind        int NOT NULL,
    state       int NOT NULL,            -- 0 writing, 1 sealed, 2 live, 3 candidate, 4 dead
    changed     bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint   -- the transaction's number, by a trigger (schema_triggers.sql)
);
CREATE INDEX pack_changed ON @pack (changed);
CREATE INDEX pack_uncommitted ON @pack (session) WHERE state < 2;
CREATE INDEX pack_live ON @pack (id) WHERE state = 2;
CREATE INDEX pack_candidate ON @pack (id) WHERE state = 3;

-- Jobs: docs/decisions/0011-active-storage.md. What a job must not lose while it runs is in @held.
CREATE TABLE @job (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created  bigint NOT NULL,
    changed  bigint NOT NULL,
    state    int NOT NULL,               -- 0 waiting, 1 running, 2 done, 3 failed, 4 cancelled
    spec     text NOT NULL,
    why      text NOT NULL,
    made     text,                       -- what it made, in the runner's words; NULL until it is published
    role     text                        -- which has made it; NULL: nobody knows, as it came with a copy
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
    primary_attempt  bigint,             -- the earlier attempt that counts beside the newest one; NULL: none
    primary_session  bigint,
    measured text,                       -- what the attempt used that finished it, in the runner's words
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

-- The registry: what clients tell each other (crates/store/src/registry.rs).
CREATE TABLE @record (
    kind     text NOT NULL,
    name     text NOT NULL,
    changed  bigint NOT NULL,
    value    text NOT NULL,
    role     text,                       -- of rules, as above
    PRIMARY KEY (kind, name)
);

-- The content of a file that a rule has seen last.
CREATE TABLE @rule_mark (
    rule   text NOT NULL,
    inode  bigint NOT NULL,
    mark   text NOT NULL,
    PRIMARY KEY (rule, inode)
) WITH (fillfactor = 70);

-- Chunks that lie in the database until they are packed: docs/decisions/0017-small-files.md. No checksum: a chunk's name is one.
CREATE TABLE @inline_chunk (
    fingerprint  bytea PRIMARY KEY,
    number       bigint GENERATED ALWAYS AS IDENTITY,   -- in the order in which they came, about
    session      bigint NOT NULL,        -- who is to pack it; it may be over
    codec        text NOT NULL,
    bytes        bytea NOT NULL
);
CREATE INDEX inline_chunk_of ON @inline_chunk (session, number);

-- Locks on files among all clients: docs/decisions/0019-locks.md. Rows go with their session; no checksum, as nothing rests on them after that.
CREATE TABLE @file_lock (
    inode    bigint NOT NULL,
    session  bigint NOT NULL,
    owner    bigint NOT NULL,            -- among those of the session
    first    bigint NOT NULL,
    last     bigint NOT NULL,            -- the last byte; the largest number: to the end
    process  bigint NOT NULL,            -- who asked for it, on its host
    family   int NOT NULL,               -- 0: fcntl's, 1: flock's
    mode     int NOT NULL,               -- 0: shared, 1: exclusive
    PRIMARY KEY (inode, family, session, owner, first)
);
CREATE INDEX file_lock_of ON @file_lock (session);

-- Who waits for one. For whom, the rows above say.
CREATE TABLE @file_lock_wait (
    session   bigint NOT NULL,
    ticket    bigint NOT NULL,           -- among those of the session
    number    bigint GENERATED ALWAYS AS IDENTITY,   -- in the order in which they came
    inode     bigint NOT NULL,
    owner     bigint NOT NULL,
    first     bigint NOT NULL,
    last      bigint NOT NULL,
    process   bigint NOT NULL,
    family    int NOT NULL,
    mode      int NOT NULL,
    PRIMARY KEY (session, ticket)
);
CREATE INDEX file_lock_wait_for ON @file_lock_wait (inode);

INSERT INTO @state VALUES (1, 1, 0, NULL);
INSERT INTO @counter VALUES ('next_inode', 2), ('next_pack', 1), ('next_session', 1), ('next_sequence', 1);
INSERT INTO @total (slot) SELECT generate_series(0, 63);
UPDATE @total SET directories = 1 WHERE slot = 0;
