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
