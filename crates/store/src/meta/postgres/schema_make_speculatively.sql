-- The commonest of small commits, one new name and nothing else, in fewer statements and without arrays: docs/decisions/0021-one-round-trip.md.

-- As `commit_speculatively`: commits if everything is as the client guessed, and says the collector's generation; else -1, and nothing has happened.
CREATE FUNCTION @make_speculatively(
    gate bigint, of_lane bigint, new_token bigint, of_session bigint, now_epoch bigint,
    -- the directory that gets an entry, which is the one whose attributes are inherited; the name, which is free; of a new directory the row in `directory`
    in_directory bigint, like_mode int, like_uid int, like_gid int, like_xattrs bytea, new_name bytea, name_sum int, directory_sum int,
    -- the row of `inode`; what the totals gain
    made_number bigint, made_epoch bigint, made_version bigint, made_mtime_secs bigint, made_time bigint,
    made_stamp bigint, made_mtime_nanos int, made_mode int, made_uid int, made_gid int, made_links int,
    made_sum int, made_device bigint, made_target bytea, made_xattrs bytea, made_root bytea, made_times bytea,
    total_slot int, more_files bigint, more_directories bigint, more_others bigint, more_bytes bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    generation_now bigint;
BEGIN
    -- A condition is evaluated without a statement of its own. All that is read is read after it.
    IF pg_advisory_xact_lock_shared(gate) IS NULL THEN RETURN -1; END IF;
    SELECT t.generation INTO generation_now FROM session s, state t, directory d, inode i
        WHERE s.id = of_session AND s.kind <> 1
        AND s.lease_until >= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 + s.lease_secs * 500000000::bigint
        AND t.one = 1 AND t.epoch = now_epoch AND d.inode = in_directory
        AND i.number = in_directory AND i.mode = like_mode AND i.uid = like_uid AND i.gid = like_gid
        AND i.xattrs IS NOT DISTINCT FROM like_xattrs
        FOR KEY SHARE OF s, d;
    IF NOT FOUND THEN RETURN -1; END IF;
    INSERT INTO dentry (parent, inode, epoch, sum, name)
        VALUES (in_directory, made_number, now_epoch, name_sum, new_name) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN -1; END IF;
    UPDATE lane SET token = new_token, used = now() WHERE id = of_lane AND NOT closed;
    IF NOT FOUND THEN RAISE serialization_failure; END IF;
    INSERT INTO inode (
        number, epoch, version, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum, device, target, xattrs,
        root, times
    ) VALUES (
        made_number, made_epoch, made_version, made_mtime_secs, made_time, made_stamp, made_mtime_nanos, made_mode, made_uid,
        made_gid, made_links, made_sum, made_device, made_target, made_xattrs, made_root, made_times
    );
    IF directory_sum IS NOT NULL THEN
        INSERT INTO directory (inode, parent, sum) VALUES (made_number, in_directory, directory_sum);
    END IF;
    UPDATE total SET files = files + more_files, directories = directories + more_directories,
        others = others + more_others, bytes = bytes + more_bytes WHERE slot = total_slot;
    RETURN generation_now;
END
$$;
