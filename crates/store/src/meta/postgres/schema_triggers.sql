-- What rows say by triggers, whoever writes them: which packs have changed (docs/decisions/0023-following-packs.md), and what a writer may not change:
-- what the store is, and which role has made a job or a rule, as the server has authenticated it (docs/threat-model.md).

CREATE FUNCTION @pack_is_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8;
    RETURN NEW;
END
$$;
CREATE TRIGGER pack_is_changed BEFORE INSERT OR UPDATE ON @pack FOR EACH ROW EXECUTE FUNCTION @pack_is_changed();

-- A trigger, as nobody but the tables' owner can go around it, whatever was granted. It names no table, as schemas are renamed; and it looks for functions
-- and operators nowhere but in pg_catalog, as a writer could have put others before those.
CREATE FUNCTION @of_role() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.role := session_user;
        RETURN NEW;
    END IF;
    -- A rule is its maker's to change; what a job does is nobody's. The owner brings copies up to date.
    IF TG_ARGV[0] = 'rule' AND OLD.role = session_user AND NEW.role = session_user
        OR pg_has_role(session_user, (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = TG_RELID), 'MEMBER')
    THEN
        RETURN NEW;
    END IF;
    RAISE insufficient_privilege USING MESSAGE = format('only the role that has made this %s may change it', TG_ARGV[0]);
END
$$;

CREATE TRIGGER job_made BEFORE INSERT ON @job FOR EACH ROW EXECUTE FUNCTION @of_role('job');
CREATE TRIGGER job_kept BEFORE UPDATE ON @job FOR EACH ROW
    WHEN (NEW.id <> OLD.id OR NEW.role IS DISTINCT FROM OLD.role OR NEW.spec <> OLD.spec) EXECUTE FUNCTION @of_role('job');
CREATE TRIGGER rule_made BEFORE INSERT ON @record FOR EACH ROW
    WHEN (NEW.kind = 'rule') EXECUTE FUNCTION @of_role('rule');
CREATE TRIGGER rule_kept BEFORE UPDATE ON @record FOR EACH ROW
    WHEN (OLD.kind = 'rule' OR NEW.kind = 'rule') EXECUTE FUNCTION @of_role('rule');

-- Where the packs lie, and by which configuration of Ceph, every client believes and follows with its own keys.
CREATE FUNCTION @of_owner() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RETURN COALESCE(NEW, OLD);
    END IF;
    RAISE insufficient_privilege USING MESSAGE = 'only the owner of the schema may change what the store is';
END
$$;

CREATE TRIGGER about_kept BEFORE INSERT OR UPDATE OR DELETE ON @about FOR EACH ROW EXECUTE FUNCTION @of_owner();
