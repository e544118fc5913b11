-- The metadata database, whose version is in open.rs. Why it looks like this: docs/decisions/0004-metadata-schema.md.
-- Every table of what a store holds ends with a checksum of its row (sums.rs); tables of sessions have none.
-- Numbers that are u64 elsewhere are kept as i64 with the same bits. Times are nanoseconds since 1970 unless said otherwise.

-- One row of counters; every transaction that needs one reads and writes it here, none is kept in memory.
CREATE TABLE state (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    epoch             INTEGER NOT NULL,  -- the current one; rows that are changed now get it
    generation        INTEGER NOT NULL,  -- raised whenever packs are marked as candidates
    next_inode        INTEGER NOT NULL,
    next_pack         INTEGER NOT NULL,
    next_session      INTEGER NOT NULL,
    next_sequence     INTEGER NOT NULL,
    collector         INTEGER,           -- the session that is the collector
    files             INTEGER NOT NULL,  -- totals of the current tree
    directories       INTEGER NOT NULL,
    others            INTEGER NOT NULL,
    bytes             INTEGER NOT NULL,
    sum               INTEGER AS (row_sum(one, epoch, generation, next_inode, next_pack, next_session, next_sequence,
        collector, files, directories, others, bytes)) STORED
) STRICT;

-- Kind, permissions, owner and extended attributes are shared by most files of a tree, so they are interned.
-- Rows never change; unused ones go with the next purge of the history.
CREATE TABLE traits (
    id      INTEGER PRIMARY KEY,
    digest  INTEGER NOT NULL,            -- of the other columns; finds a row
    mode    INTEGER NOT NULL,            -- kind << 12 | permission bits
    uid     INTEGER NOT NULL,
    gid     INTEGER NOT NULL,
    xattrs  BLOB,                        -- as in the catalogue; NULL: none
    sum     INTEGER AS (row_sum(digest, mode, uid, gid, xattrs)) STORED
) STRICT;
CREATE INDEX traits_digest ON traits (digest);

-- Inodes of the current tree: by construction at most one row each.
CREATE TABLE inode (
    number       INTEGER PRIMARY KEY,
    epoch        INTEGER NOT NULL,       -- the row is valid from this epoch on
    traits       INTEGER NOT NULL,
    links        INTEGER NOT NULL,       -- names it has; 1 for a directory
    version      INTEGER NOT NULL,       -- number of its present content, from 1
    mtime_secs   INTEGER NOT NULL,
    mtime_nanos  INTEGER NOT NULL,
    time         INTEGER NOT NULL,       -- when its content was committed
    stamp        INTEGER NOT NULL,
    special      ANY,                    -- a symlink's target (blob), a device's number (integer), else NULL
    root         BLOB,                   -- NULL: empty
    times        BLOB,                   -- last access and last change of the inode (times.rs); NULL: not kept
    sum          INTEGER AS (row_sum(number, epoch, traits, links, version, mtime_secs, mtime_nanos, time, stamp,
        special, root, times)) STORED
) STRICT;

-- Names of the current tree. Without a rowid, so that a directory's entries lie together in the order of their names.
CREATE TABLE dentry (
    parent  INTEGER NOT NULL,
    name    BLOB NOT NULL,
    inode   INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    sum     INTEGER AS (row_sum(parent, name, inode, epoch)) STORED,
    PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;

-- Where each directory of the current tree hangs: for policies, for the cycle check of renames, for messages.
CREATE TABLE directory (
    inode   INTEGER PRIMARY KEY,
    parent  INTEGER NOT NULL,            -- of the root: itself
    sum     INTEGER AS (row_sum(inode, parent)) STORED
) STRICT;

-- Former states of inodes and names, valid in epoch_from .. epoch_to - 1.
CREATE TABLE inode_old (
    number       INTEGER NOT NULL,
    epoch_from   INTEGER NOT NULL,
    epoch_to     INTEGER NOT NULL,
    traits       INTEGER NOT NULL,
    links        INTEGER NOT NULL,
    mtime_secs   INTEGER NOT NULL,
    mtime_nanos  INTEGER NOT NULL,
    stamp        INTEGER NOT NULL,
    special      ANY,
    root         BLOB,
    times        BLOB,
    sum          INTEGER AS (row_sum(number, epoch_from, epoch_to, traits, links, mtime_secs, mtime_nanos, stamp,
        special, root, times)) STORED,
    PRIMARY KEY (number, epoch_from)
) STRICT, WITHOUT ROWID;

CREATE TABLE dentry_old (
    parent      INTEGER NOT NULL,
    name        BLOB NOT NULL,
    epoch_from  INTEGER NOT NULL,
    epoch_to    INTEGER NOT NULL,
    inode       INTEGER NOT NULL,
    sum         INTEGER AS (row_sum(parent, name, epoch_from, epoch_to, inode)) STORED,
    PRIMARY KEY (parent, name, epoch_from)
) STRICT, WITHOUT ROWID;

-- Earlier contents of files, kept by policy.
CREATE TABLE version (
    inode        INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    time         INTEGER NOT NULL,
    mtime_secs   INTEGER NOT NULL,
    mtime_nanos  INTEGER NOT NULL,
    root         BLOB,
    sum          INTEGER AS (row_sum(inode, number, time, mtime_secs, mtime_nanos, root)) STORED,
    PRIMARY KEY (inode, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE policy (
    inode  INTEGER NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    sum    INTEGER AS (row_sum(inode, key, value)) STORED,
    PRIMARY KEY (inode, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE snapshot (
    epoch  INTEGER PRIMARY KEY,
    name   TEXT NOT NULL UNIQUE,
    time   INTEGER NOT NULL,
    sum    INTEGER AS (row_sum(epoch, name, time)) STORED
) STRICT;

CREATE TABLE snapshot_tag (
    epoch     INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    tag       TEXT NOT NULL,
    sum       INTEGER AS (row_sum(epoch, position, tag)) STORED,
    PRIMARY KEY (epoch, position)
) STRICT, WITHOUT ROWID;

-- A row lives as long as its session: closing and fencing delete it.
CREATE TABLE session (
    id            INTEGER PRIMARY KEY,
    kind          INTEGER NOT NULL,
    acknowledged  INTEGER NOT NULL,      -- the largest i64: never has to
    lease_until   INTEGER NOT NULL,
    lease_secs    INTEGER NOT NULL,
    lock          TEXT NOT NULL,         -- names its lock file
    host          TEXT NOT NULL,
    process       INTEGER NOT NULL,
    role          TEXT NOT NULL          -- JSON (meta/sessions.rs)
) STRICT;

CREATE TABLE pin (
    epoch    INTEGER NOT NULL,
    session  INTEGER NOT NULL,
    PRIMARY KEY (epoch, session)
) STRICT, WITHOUT ROWID;

CREATE TABLE pin_root (
    session  INTEGER NOT NULL,
    root     BLOB NOT NULL,
    PRIMARY KEY (session, root)
) STRICT, WITHOUT ROWID;

-- What staging logs refer to. Unlike pins these outlive every session: their holder releases them.
CREATE TABLE held (
    holder  TEXT NOT NULL,
    root    BLOB NOT NULL,
    sum     INTEGER AS (row_sum(holder, root)) STORED,
    PRIMARY KEY (holder, root)
) STRICT, WITHOUT ROWID;

-- Epochs at which somebody may still look.
CREATE VIEW retained (epoch) AS
    SELECT epoch FROM snapshot UNION SELECT epoch FROM pin;

-- Before a pack was marked as a candidate its generation is its mark. (What stands within the table is part of what `check` compares.)
CREATE TABLE pack (
    id          INTEGER PRIMARY KEY,
    kind        INTEGER NOT NULL,
    state       INTEGER NOT NULL,        -- 0 writing, 1 sealed, 2 live, 3 candidate, 4 dead
    session     INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,
    raw_bytes   INTEGER NOT NULL,
    chunks      INTEGER NOT NULL,
    generation  INTEGER NOT NULL,        -- at which it was last marked as a candidate
    dead_since  INTEGER NOT NULL,
    sum         INTEGER AS (row_sum(id, kind, state, session, bytes, raw_bytes, chunks, generation,
        dead_since)) STORED
) STRICT;
CREATE INDEX pack_uncommitted ON pack (session) WHERE state < 2;
CREATE INDEX pack_live ON pack (id) WHERE state = 2;
CREATE INDEX pack_candidate ON pack (id) WHERE state = 3;

-- Jobs: docs/decisions/0011-active-storage.md. What a job must not lose while it runs is in `held`.
CREATE TABLE job (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    state    INTEGER NOT NULL,           -- 0 waiting, 1 running, 2 done, 3 failed, 4 cancelled
    spec     TEXT NOT NULL,
    why      TEXT NOT NULL,
    created  INTEGER NOT NULL,
    changed  INTEGER NOT NULL,
    made     TEXT                        -- what it made, in the runner's words; NULL until it is published
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
    primary_attempt  INTEGER,            -- the earlier attempt that counts beside the newest one; NULL: none
    primary_session  INTEGER,
    measured TEXT,                       -- what the attempt used that finished it, in the runner's words
    log      BLOB,                       -- the last one, as it may be long
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

-- The registry: what clients tell each other (crates/store/src/registry.rs).
CREATE TABLE record (
    kind     TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    changed  INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The content of a file that a rule has seen last.
CREATE TABLE rule_mark (
    rule   TEXT NOT NULL,
    inode  INTEGER NOT NULL,
    mark   TEXT NOT NULL,
    PRIMARY KEY (rule, inode)
) STRICT, WITHOUT ROWID;

-- Chunks that lie in the database until they are packed: docs/decisions/0017-small-files.md. No checksum: a chunk's name is one.
CREATE TABLE inline_chunk (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint  BLOB NOT NULL UNIQUE,
    session      INTEGER NOT NULL,       -- who is to pack it; it may be over
    codec        TEXT NOT NULL,
    bytes        BLOB NOT NULL
) STRICT;
CREATE INDEX inline_chunk_of ON inline_chunk (session, number);

-- The root directory is there from the beginning: inode 1, mode 0755, owned by whoever made the store.
INSERT INTO state VALUES (1, 1, 0, 2, 1, 1, 1, NULL, 0, 1, 0, 0);
INSERT INTO directory VALUES (1, 1);
