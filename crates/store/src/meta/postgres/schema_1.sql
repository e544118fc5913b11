-- The metadata in PostgreSQL, schema version 1. Why it looks like this: docs/decisions/0009-postgresql.md. An at sign stands for the schema's name.
-- Tables of what the tree is end with a checksum of the row, made and compared by the client (row.rs).
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
    generation  bigint NOT NULL,         -- raised whenever packs are condemned
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
    used   timestamptz NOT NULL DEFAULT now()
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
    PRIMARY KEY (number, epoch_from)
);

CREATE TABLE @dentry_old (
    parent      bigint NOT NULL,
    inode       bigint NOT NULL,
    epoch_from  bigint NOT NULL,
    epoch_to    bigint NOT NULL,
    sum         int NOT NULL,
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
    tags   text[] NOT NULL
);

-- A row lives as long as its session: closing and fencing delete it.
CREATE TABLE @session (
    id            bigint PRIMARY KEY,
    kind          int NOT NULL,
    lease_secs    int NOT NULL,
    acknowledged  bigint NOT NULL,       -- the largest: never has to
    lease_until   bigint NOT NULL,       -- by this server's clock
    description   text NOT NULL
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
    generation  bigint NOT NULL,         -- at which it was last condemned; before that, its mark
    dead_since  bigint NOT NULL,
    kind        int NOT NULL,
    state       int NOT NULL             -- 0 writing, 1 sealed, 2 live, 3 condemned, 4 dead
);
CREATE INDEX pack_uncommitted ON @pack (session) WHERE state < 2;
CREATE INDEX pack_live ON @pack (id) WHERE state = 2;
CREATE INDEX pack_condemned ON @pack (id) WHERE state = 3;

INSERT INTO @state VALUES (1, 1, 0, NULL);
INSERT INTO @counter VALUES ('next_inode', 2), ('next_pack', 1), ('next_session', 1), ('next_sequence', 1);
INSERT INTO @total (slot) SELECT generate_series(0, 63);
UPDATE @total SET directories = 1 WHERE slot = 0;
