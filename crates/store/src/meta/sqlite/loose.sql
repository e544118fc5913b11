-- Chunks that lie in the database until they are packed, made when the first one is: docs/decisions/0017-small-files.md. No checksum: a chunk's name is one.
-- Programs that do not know this table find such chunks nowhere, and reclaim nothing.
CREATE TABLE loose (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint  BLOB NOT NULL UNIQUE,
    session      INTEGER NOT NULL,       -- who is to pack it; it may be over
    codec        TEXT NOT NULL,
    bytes        BLOB NOT NULL
) STRICT;
CREATE INDEX loose_of ON loose (session, number);
