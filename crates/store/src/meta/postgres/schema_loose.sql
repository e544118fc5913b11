-- Chunks that lie in the database until they are packed: docs/decisions/0017-small-files.md. No checksum: a chunk's name is one.

CREATE TABLE @loose (
    fingerprint  bytea PRIMARY KEY,
    number       bigint GENERATED ALWAYS AS IDENTITY,   -- in the order in which they came, about
    session      bigint NOT NULL,        -- who is to pack it; it may be over
    codec        text NOT NULL,
    bytes        bytea NOT NULL
);
CREATE INDEX loose_of ON @loose (session, number);
