-- What runners keep beside jobs, made when the first note is: rules, agents that are to stop. See docs/decisions/0011-active-storage.md.
CREATE TABLE job_note (
    kind     TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    changed  INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The content of a file that a rule has seen last.
CREATE TABLE job_seen (
    rule   TEXT NOT NULL,
    inode  INTEGER NOT NULL,
    mark   TEXT NOT NULL,
    PRIMARY KEY (rule, inode)
) STRICT, WITHOUT ROWID;
