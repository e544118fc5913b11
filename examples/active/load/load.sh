#!/bin/sh
# Loads lines of `sensor,value` into PostgreSQL, each exactly once, though a program of a 1R->0 job may run more than once:
#
#   psql -f examples/active/load/tables.sql
#   outrigger run --pattern '1R->0' --in 'runs/*.csv' --records lines --splits auto --net db:5432 \
#       --env PGHOST=db --env PGDATABASE=lab --env PGUSER=me --env PGPASSWORD -- "$PWD/examples/active/load/load.sh"
#
# PGPASSWORD has no value there: it is taken from the environment of whoever runs the program (this command, or an agent), and is written down nowhere.
#
# The rows of one task (a split) are taken out and put in anew in one transaction, so a second attempt replaces what the first one left. `loaded` says which attempt did that last:
# one that was given up, and is still running somewhere, is refused, and cannot replace what a newer one has put in.
exec psql -X -q -v ON_ERROR_STOP=1 -v task="${AS_TASK_ID:?run this with outrigger run}" -v attempt="${AS_ATTEMPT:?}" -f /dev/fd/3 3<<'SQL'
BEGIN;
CREATE TEMPORARY TABLE incoming (sensor text NOT NULL, value double precision NOT NULL) ON COMMIT DROP;
\copy incoming FROM pstdin WITH (FORMAT csv)
-- No row, and so an error: a newer attempt was here. Two at once meet in this row.
INSERT INTO loaded AS l (task, attempt) VALUES (:'task', :attempt)
    ON CONFLICT (task) DO UPDATE SET attempt = excluded.attempt WHERE l.attempt <= excluded.attempt
    RETURNING attempt AS mine \gset
DELETE FROM measurement WHERE task = :'task';
INSERT INTO measurement (task, sensor, value) SELECT :'task', sensor, value FROM incoming;
COMMIT;
SQL
