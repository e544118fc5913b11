#!/bin/sh
# Loads lines of `sensor,value` into PostgreSQL, each exactly once, although a program of a 1R->0 job may run more than once:
#
#   psql -f examples/active/load/tables.sql
#   outrigger run --pattern '1R->0' --in 'runs/*.csv' --records lines --splits auto --net db:5432 \
#       --env PGHOST=db --env PGDATABASE=lab --env PGUSER=me --env PGPASSWORD -- "$PWD/examples/active/load/load.sh"
#
# PGPASSWORD has no value there. The process that runs the program (this command, or an agent) takes it from its
# environment, and it is stored nowhere.
#
# One transaction deletes the rows of a task (a split) and inserts them again, so a second attempt replaces the rows of
# the first. `loaded` has the last attempt that did so. An older attempt, which was given up and still runs somewhere, is
# refused, so it cannot replace the rows of a newer one.
exec psql -X -q -v ON_ERROR_STOP=1 -v task="${AS_TASK_ID:?run this with outrigger run}" -v attempt="${AS_ATTEMPT:?}" -f /dev/fd/3 3<<'SQL'
BEGIN;
CREATE TEMPORARY TABLE incoming (sensor text NOT NULL, value double precision NOT NULL) ON COMMIT DROP;
\copy incoming FROM pstdin WITH (FORMAT csv)
-- If a newer attempt was here, this returns no row, which is an error. Two concurrent attempts conflict in this row.
INSERT INTO loaded AS l (task, attempt) VALUES (:'task', :attempt)
    ON CONFLICT (task) DO UPDATE SET attempt = excluded.attempt WHERE l.attempt <= excluded.attempt
    RETURNING attempt AS mine \gset
DELETE FROM measurement WHERE task = :'task';
INSERT INTO measurement (task, sensor, value) SELECT :'task', sensor, value FROM incoming;
COMMIT;
SQL
