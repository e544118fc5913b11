-- A role that may not delete snapshots changes nothing that one holds, whatever statements it sends: docs/decisions/0034-append-only.md. The triggers see every
-- role's statements, and do nothing for others. Tables are found by the schema of the trigger's own table, as schemas are renamed. Functions and operators are
-- looked for nowhere but in pg_catalog, as a writer could have put others before those.

-- The current epoch, which no snapshot ends until this transaction has ended. Only a statement that sees what is committed meanwhile is told the truth.
CREATE FUNCTION @held_epoch(schema_name name) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    now_epoch bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE insufficient_privilege USING MESSAGE = 'a role that only adds writes in transactions that are READ COMMITTED';
    END IF;
    EXECUTE format('SELECT epoch FROM %I.state FOR SHARE', schema_name) INTO now_epoch;
    RETURN now_epoch;
END
$$;

CREATE FUNCTION @refuse(what text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = format('role %s only adds: it may not %s', session_user, what),
        HINT = 'a role that may delete snapshots can';
END
$$;

-- Rows of `inode` and `dentry`: new ones begin now, and of old ones that a snapshot holds there is the state in the history, beyond that snapshot.
CREATE FUNCTION @keep_past() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    now_epoch bigint;
    newest bigint;
    is_harmed boolean := false;
BEGIN
    EXECUTE format('SELECT %I.held_epoch($1)', TG_TABLE_SCHEMA) INTO now_epoch USING TG_TABLE_SCHEMA;
    EXECUTE format('SELECT max(epoch) FROM %I.snapshot', TG_TABLE_SCHEMA) INTO newest;
    IF TG_OP <> 'DELETE' THEN
        SELECT EXISTS (SELECT FROM now_rows n WHERE n.epoch <> now_epoch) INTO is_harmed;
    END IF;
    IF TG_OP <> 'INSERT' AND newest IS NOT NULL AND NOT is_harmed THEN
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM was_rows w WHERE w.epoch <= $1 AND NOT EXISTS '
            '(SELECT FROM %I.%I o WHERE %s AND o.epoch_from = w.epoch AND o.epoch_to > $1))',
            TG_TABLE_SCHEMA, TG_TABLE_NAME || '_old', TG_ARGV[0]
        ) INTO is_harmed USING newest;
    END IF;
    IF is_harmed THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'change what a snapshot holds';
    END IF;
    RETURN NULL;
END
$$;

-- A new row of the history is the present row, which ends now. It keeps the checksum of that row, too, as nobody but clients can compute its own.
CREATE FUNCTION @end_inode() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    now_epoch bigint;
BEGIN
    EXECUTE format('SELECT %I.held_epoch($1)', TG_TABLE_SCHEMA) INTO now_epoch USING TG_TABLE_SCHEMA;
    EXECUTE format(
        'SELECT i.version, i.time, i.sum FROM %I.inode i WHERE i.number = $1.number AND i.epoch = $1.epoch_from AND '
        'ROW (i.mtime_secs, i.stamp, i.mtime_nanos, i.mode, i.uid, i.gid, i.links, i.device, i.target, i.xattrs, i.root, i.times) '
        'IS NOT DISTINCT FROM '
        'ROW ($1.mtime_secs, $1.stamp, $1.mtime_nanos, $1.mode, $1.uid, $1.gid, $1.links, $1.device, $1.target, $1.xattrs, $1.root, $1.times)',
        TG_TABLE_SCHEMA
    ) INTO NEW.was_version, NEW.was_time, NEW.was_sum USING NEW;
    IF NEW.was_sum IS NULL OR NEW.epoch_to <> now_epoch THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'write a past that was not';
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION @end_dentry() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    now_epoch bigint;
BEGIN
    EXECUTE format('SELECT %I.held_epoch($1)', TG_TABLE_SCHEMA) INTO now_epoch USING TG_TABLE_SCHEMA;
    EXECUTE format(
        'SELECT d.sum FROM %I.dentry d WHERE d.parent = $1.parent AND d.name = $1.name AND d.inode = $1.inode AND d.epoch = $1.epoch_from',
        TG_TABLE_SCHEMA
    ) INTO NEW.was_sum USING NEW;
    IF NEW.was_sum IS NULL OR NEW.epoch_to <> now_epoch THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'write a past that was not';
    END IF;
    RETURN NEW;
END
$$;

-- Rows of the history go when no snapshot sees them.
CREATE FUNCTION @keep_history() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    is_seen boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM was_rows w, %I.snapshot s WHERE s.epoch >= w.epoch_from AND s.epoch < w.epoch_to)', TG_TABLE_SCHEMA)
        INTO is_seen;
    IF is_seen THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'delete what a snapshot holds';
    END IF;
    RETURN NULL;
END
$$;

-- For rows that such a role never changes so; the argument says what it would do.
CREATE FUNCTION @never() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING TG_ARGV[0];
    RETURN NULL;
END
$$;

-- The server says who has taken a snapshot. A writer takes those of the present, and dates them now.
CREATE FUNCTION @taken_by() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    now_epoch bigint;
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RETURN NEW;
    END IF;
    NEW.role := session_user;
    EXECUTE format('SELECT %I.held_epoch($1)', TG_TABLE_SCHEMA) INTO now_epoch USING TG_TABLE_SCHEMA;
    IF NEW.epoch <> now_epoch - 1 OR abs(NEW.time / 1000000000 - extract(epoch FROM clock_timestamp())) > 86400 THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'take a snapshot of the past, or date one more than a day from now';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER snapshot_taken BEFORE INSERT ON @snapshot FOR EACH ROW EXECUTE FUNCTION @taken_by();
CREATE TRIGGER snapshot_kept BEFORE UPDATE ON @snapshot FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('change a snapshot');

CREATE TRIGGER inode_made AFTER INSERT ON @inode REFERENCING NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past();
CREATE TRIGGER inode_kept AFTER UPDATE ON @inode REFERENCING OLD TABLE AS was_rows NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past('o.number = w.number');
CREATE TRIGGER inode_gone AFTER DELETE ON @inode REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past('o.number = w.number');
CREATE TRIGGER dentry_made AFTER INSERT ON @dentry REFERENCING NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past();
CREATE TRIGGER dentry_kept AFTER UPDATE ON @dentry REFERENCING OLD TABLE AS was_rows NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past('o.parent = w.parent AND o.name = w.name AND o.inode = w.inode');
CREATE TRIGGER dentry_gone AFTER DELETE ON @dentry REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_past('o.parent = w.parent AND o.name = w.name AND o.inode = w.inode');

CREATE TRIGGER inode_ended BEFORE INSERT ON @inode_old FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @end_inode();
CREATE TRIGGER inode_old_kept BEFORE UPDATE ON @inode_old FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('change the past');
CREATE TRIGGER inode_old_gone AFTER DELETE ON @inode_old REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_history();
CREATE TRIGGER dentry_ended BEFORE INSERT ON @dentry_old FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @end_dentry();
CREATE TRIGGER dentry_old_kept BEFORE UPDATE ON @dentry_old FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('change the past');
CREATE TRIGGER dentry_old_gone AFTER DELETE ON @dentry_old REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @keep_history();

-- A committed pack stays, as it is. Whoever relies on a candidate takes it back.
CREATE TRIGGER pack_kept BEFORE UPDATE ON @pack FOR EACH ROW WHEN (
    NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE') AND (NEW.state = 3 OR OLD.state >= 2 AND (
        OLD.state = 4 OR NEW.state <> 2 OR
        ROW (NEW.id, NEW.session, NEW.bytes, NEW.raw_bytes, NEW.chunks, NEW.kind) <> ROW (OLD.id, OLD.session, OLD.bytes, OLD.raw_bytes, OLD.chunks, OLD.kind)
    ))
) EXECUTE FUNCTION @never('change a pack that is committed');
CREATE TRIGGER pack_gone BEFORE DELETE ON @pack FOR EACH ROW WHEN (
    NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE') AND OLD.state IN (2, 3)
) EXECUTE FUNCTION @never('remove a pack that is committed');

-- Numbers are given out once.
CREATE TRIGGER counter_kept BEFORE UPDATE ON @counter FOR EACH ROW WHEN (
    NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE') AND (NEW.name <> OLD.name OR NEW.value < OLD.value)
) EXECUTE FUNCTION @never('set a counter back');
CREATE TRIGGER counter_gone BEFORE DELETE ON @counter FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('set a counter back');
CREATE TRIGGER state_kept BEFORE UPDATE ON @state FOR EACH ROW WHEN (
    NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')
    AND (NEW.one <> OLD.one OR NEW.epoch NOT BETWEEN OLD.epoch AND OLD.epoch + 1 OR NEW.generation < OLD.generation)
) EXECUTE FUNCTION @never('set the epoch back');
CREATE TRIGGER state_gone BEFORE DELETE ON @state FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('set the epoch back');

-- Chunks that lie in the database: nobody here can say if they are packed.
CREATE TRIGGER inline_chunk_kept BEFORE INSERT OR UPDATE OR DELETE ON @inline_chunk FOR EACH ROW
    WHEN (NOT has_table_privilege(session_user, '@snapshot'::regclass, 'DELETE')) EXECUTE FUNCTION @never('keep chunks in the database');
