-- A role that may not delete snapshots changes nothing that one holds, whatever statements it sends: docs/decisions/0034-append-only.md. The triggers see every
-- role's statements, and do nothing for others. Tables are found by the schema of the trigger's own table, as schemas are renamed. Functions and operators are
-- looked for nowhere but in pg_catalog, as a writer could have put others before those.

-- True for a role that may not delete from `snapshots`. Each trigger names that table for itself, as a rename changes no trigger's.
CREATE FUNCTION @only_adds(snapshots regclass) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT pg_catalog.has_table_privilege(session_user, snapshots, 'DELETE')
$$;

-- The current epoch, which no snapshot ends until this transaction has ended. Only a statement that sees what is committed meanwhile is told the truth.
CREATE FUNCTION @held_epoch(schema_name name) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION @refuse(what text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE insufficient_privilege USING MESSAGE = format('role %s only adds: it may not %s', session_user, what),
        HINT = 'a role that may delete snapshots can';
END
$$;

-- Rows of `inode` and `dentry`: new ones begin now, and of old ones that a snapshot holds there is the state in the history, beyond that snapshot.
CREATE FUNCTION @keep_past() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
CREATE FUNCTION @end_inode() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION @end_dentry() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- At the end of the transaction, an ended row is not the present one any more: it would be seen twice.
CREATE FUNCTION @is_over() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    goes_on boolean;
BEGIN
    EXECUTE format(
        'SELECT $1.epoch_from >= $1.epoch_to OR EXISTS (SELECT FROM %I.%I i WHERE %s AND i.epoch = $1.epoch_from)',
        TG_TABLE_SCHEMA, TG_ARGV[0], TG_ARGV[1]
    ) INTO goes_on USING NEW;
    IF goes_on THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'end what goes on';
    END IF;
    RETURN NULL;
END
$$;

-- A pack begins with an announcement, under a number that this transaction was given.
CREATE FUNCTION @announced() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_given_now boolean;
BEGIN
    EXECUTE format(
        'SELECT c.xmin = pg_current_xact_id()::xid AND $1 < c.value FROM %I.counter c WHERE c.name = ''next_pack''', TG_TABLE_SCHEMA
    ) INTO is_given_now USING NEW.id;
    IF NEW.state <> 0 OR NEW.bytes <> 0 OR NEW.chunks <> 0 OR is_given_now IS NOT TRUE THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'make a pack but by an announcement';
    END IF;
    RETURN NEW;
END
$$;

-- The server says whose session it is.
CREATE FUNCTION @opened_by() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.maker := session_user;
    RETURN NEW;
END
$$;
CREATE TRIGGER session_opened BEFORE INSERT ON @session FOR EACH ROW EXECUTE FUNCTION @opened_by();

-- Such a role has sessions of its own, which never collect, and ends others once their leases are over.
CREATE FUNCTION @own_session() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.kind = 2
        OR TG_OP = 'UPDATE' AND (NEW.id <> OLD.id OR NEW.maker <> OLD.maker OR OLD.maker <> session_user)
        OR TG_OP = 'DELETE' AND OLD.maker <> session_user AND OLD.lease_until > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000
    THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'speak for the session of another role, or collect';
    END IF;
    RETURN COALESCE(NEW, OLD);
END
$$;
CREATE TRIGGER session_kept BEFORE INSERT OR UPDATE OR DELETE ON @session FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @own_session();

-- Rows of the history go when no snapshot sees them.
CREATE FUNCTION @keep_history() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
CREATE FUNCTION @never() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING TG_ARGV[0];
    RETURN NULL;
END
$$;

-- The server says who has taken a snapshot. Such a role takes those of the epoch that its transaction ends, and the server dates them.
CREATE FUNCTION @taken_by() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_epoch bigint;
    is_ended_here boolean;
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RETURN NEW;
    END IF;
    NEW.role := session_user;
    IF has_table_privilege(session_user, TG_RELID, 'DELETE') THEN
        RETURN NEW;
    END IF;
    EXECUTE format('SELECT %I.held_epoch($1)', TG_TABLE_SCHEMA) INTO now_epoch USING TG_TABLE_SCHEMA;
    EXECUTE format('SELECT xmin = pg_current_xact_id()::xid FROM %I.state', TG_TABLE_SCHEMA) INTO is_ended_here;
    IF NEW.epoch <> now_epoch - 1 OR NOT is_ended_here THEN
        EXECUTE format('SELECT %I.refuse($1)', TG_TABLE_SCHEMA) USING 'take a snapshot of the past';
    END IF;
    NEW.time := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000;
    RETURN NEW;
END
$$;
CREATE TRIGGER snapshot_taken BEFORE INSERT ON @snapshot FOR EACH ROW EXECUTE FUNCTION @taken_by();
CREATE TRIGGER snapshot_kept BEFORE UPDATE ON @snapshot FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('change a snapshot');

CREATE TRIGGER inode_made AFTER INSERT ON @inode REFERENCING NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past();
CREATE TRIGGER inode_kept AFTER UPDATE ON @inode REFERENCING OLD TABLE AS was_rows NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past('o.number = w.number');
CREATE TRIGGER inode_gone AFTER DELETE ON @inode REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past('o.number = w.number');
CREATE TRIGGER dentry_made AFTER INSERT ON @dentry REFERENCING NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past();
CREATE TRIGGER dentry_kept AFTER UPDATE ON @dentry REFERENCING OLD TABLE AS was_rows NEW TABLE AS now_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past('o.parent = w.parent AND o.name = w.name AND o.inode = w.inode');
CREATE TRIGGER dentry_gone AFTER DELETE ON @dentry REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_past('o.parent = w.parent AND o.name = w.name AND o.inode = w.inode');

CREATE TRIGGER inode_ended BEFORE INSERT ON @inode_old FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @end_inode();
CREATE CONSTRAINT TRIGGER inode_over AFTER INSERT ON @inode_old DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @is_over('inode', 'i.number = $1.number');
CREATE TRIGGER inode_old_kept BEFORE UPDATE ON @inode_old FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('change the past');
CREATE TRIGGER inode_old_gone AFTER DELETE ON @inode_old REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_history();
CREATE TRIGGER dentry_ended BEFORE INSERT ON @dentry_old FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @end_dentry();
CREATE CONSTRAINT TRIGGER dentry_over AFTER INSERT ON @dentry_old DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @is_over('dentry', 'i.parent = $1.parent AND i.name = $1.name');
CREATE TRIGGER dentry_old_kept BEFORE UPDATE ON @dentry_old FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('change the past');
CREATE TRIGGER dentry_old_gone AFTER DELETE ON @dentry_old REFERENCING OLD TABLE AS was_rows FOR EACH STATEMENT
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @keep_history();

-- A pack goes from announced to sealed to committed, and stays as it is. Whoever relies on a candidate takes it back.
CREATE TRIGGER pack_announced BEFORE INSERT ON @pack FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @announced();
CREATE TRIGGER pack_kept BEFORE UPDATE ON @pack FOR EACH ROW WHEN (
    @only_adds('@snapshot') AND (
        ROW (NEW.id, NEW.session, NEW.kind) <> ROW (OLD.id, OLD.session, OLD.kind)
        OR NOT (OLD.state = 0 AND NEW.state IN (0, 1) OR OLD.state = 1 AND NEW.state IN (1, 2) OR OLD.state IN (2, 3) AND NEW.state = 2)
        OR OLD.state >= 1 AND ROW (NEW.bytes, NEW.raw_bytes, NEW.chunks) <> ROW (OLD.bytes, OLD.raw_bytes, OLD.chunks)
    )
) EXECUTE FUNCTION @never('change a pack that is sealed');
CREATE TRIGGER pack_gone BEFORE DELETE ON @pack FOR EACH ROW WHEN (
    @only_adds('@snapshot') AND OLD.state <> 0
) EXECUTE FUNCTION @never('remove a pack that is sealed');

-- Numbers are given out once.
CREATE TRIGGER counter_kept BEFORE UPDATE ON @counter FOR EACH ROW WHEN (
    @only_adds('@snapshot') AND (NEW.name <> OLD.name OR NEW.value < OLD.value)
) EXECUTE FUNCTION @never('set a counter back');
CREATE TRIGGER counter_gone BEFORE DELETE ON @counter FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('set a counter back');
CREATE TRIGGER state_kept BEFORE UPDATE ON @state FOR EACH ROW WHEN (
    @only_adds('@snapshot')
    AND (NEW.one <> OLD.one OR NEW.epoch NOT BETWEEN OLD.epoch AND OLD.epoch + 1 OR NEW.generation <> OLD.generation
        OR NEW.collector IS NOT NULL AND NEW.collector IS DISTINCT FROM OLD.collector)
) EXECUTE FUNCTION @never('set the epoch back, or say who collects');
CREATE TRIGGER state_gone BEFORE DELETE ON @state FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('set the epoch back');

-- How long automatic snapshots stay.
CREATE TRIGGER policy_made BEFORE INSERT ON @policy FOR EACH ROW
    WHEN (NEW.key = 'automatic' AND @only_adds('@snapshot')) EXECUTE FUNCTION @never('say how long snapshots stay');
CREATE TRIGGER policy_kept BEFORE UPDATE ON @policy FOR EACH ROW
    WHEN ((NEW.key = 'automatic' OR OLD.key = 'automatic') AND @only_adds('@snapshot')) EXECUTE FUNCTION @never('say how long snapshots stay');
CREATE TRIGGER policy_gone BEFORE DELETE ON @policy FOR EACH ROW
    WHEN (OLD.key = 'automatic' AND @only_adds('@snapshot')) EXECUTE FUNCTION @never('say how long snapshots stay');

-- Chunks that lie in the database: nobody here can say if they are packed.
CREATE TRIGGER inline_chunk_kept BEFORE INSERT OR UPDATE OR DELETE ON @inline_chunk FOR EACH ROW
    WHEN (@only_adds('@snapshot')) EXECUTE FUNCTION @never('keep chunks in the database');
