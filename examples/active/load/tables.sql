-- For load.sh: what is loaded, and which attempt at each task (a split of a job) loaded it last.
CREATE TABLE measurement (
    task    text NOT NULL,
    sensor  text NOT NULL,
    value   double precision NOT NULL
);
CREATE INDEX measurement_task ON measurement (task);
CREATE TABLE loaded (
    task     text PRIMARY KEY,
    attempt  bigint NOT NULL
);
