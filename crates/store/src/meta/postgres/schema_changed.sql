-- Which rows of packs have changed since somebody looked: docs/decisions/0023-following-packs.md. By a trigger, so that programs that were running when the column came say so, too.

ALTER TABLE @pack ADD COLUMN changed bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint;   -- the transaction's number
CREATE INDEX pack_changed ON @pack (changed);

CREATE FUNCTION @pack_is_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8;
    RETURN NEW;
END
$$;
CREATE TRIGGER pack_is_changed BEFORE INSERT OR UPDATE ON @pack FOR EACH ROW EXECUTE FUNCTION @pack_is_changed();
