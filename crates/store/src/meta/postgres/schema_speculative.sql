-- A small commit in one round trip: docs/decisions/0021-one-round-trip.md.

-- Commits, if everything is as the client guessed; then the collector's generation, else -1, and nothing has happened. Rows are arrays by columns. Tables are found by the
-- schema that the connection is set to, as schemas are renamed. What is locked, and in what order: as other commits do it (commit.rs, working.rs).
CREATE FUNCTION @commit_speculatively(
    gate bigint, of_lane bigint, new_token bigint, of_session bigint, now_epoch bigint,
    -- directories that get entries; those whose attributes are inherited
    parents bigint[], like_numbers bigint[], like_modes int[], like_uids int[], like_gids int[], like_xattrs bytea[],
    -- names that are free; what is new in `directory`
    name_parents bigint[], name_inodes bigint[], name_sums int[], new_names bytea[],
    directory_inodes bigint[], directory_parents bigint[], directory_sums int[],
    -- rows of `inode`: as they are to be found, in the order of their numbers; what some of them become; new ones
    was_number bigint[], was_epoch bigint[], was_version bigint[], was_mtime_secs bigint[], was_time bigint[],
    was_stamp bigint[], was_mtime_nanos int[], was_mode int[], was_uid int[], was_gid int[], was_links int[],
    was_sum int[], was_device bigint[], was_target bytea[], was_xattrs bytea[], was_root bytea[], was_times bytea[],
    changed_number bigint[], changed_epoch bigint[], changed_version bigint[], changed_mtime_secs bigint[],
    changed_time bigint[], changed_stamp bigint[], changed_mtime_nanos int[], changed_mode int[], changed_uid int[],
    changed_gid int[], changed_links int[], changed_sum int[], changed_device bigint[], changed_target bytea[],
    changed_xattrs bytea[], changed_root bytea[], changed_times bytea[],
    made_number bigint[], made_epoch bigint[], made_version bigint[], made_mtime_secs bigint[], made_time bigint[],
    made_stamp bigint[], made_mtime_nanos int[], made_mode int[], made_uid int[], made_gid int[], made_links int[],
    made_sum int[], made_device bigint[], made_target bytea[], made_xattrs bytea[], made_root bytea[],
    made_times bytea[],
    -- what the totals gain; inline_chunk chunks, in the order of their names
    total_slot int, more_files bigint, more_directories bigint, more_others bigint, more_bytes bigint,
    loose_names bytea[], loose_sessions bigint[], loose_codecs text[], loose_bytes bytea[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    generation_now bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(gate);
    -- A writer or a collector whose lease is neither over nor to be renewed (sessions.rs).
    PERFORM 1 FROM session s WHERE s.id = of_session AND s.kind <> 1
        AND s.lease_until >= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 + s.lease_secs * 500000000::bigint
        FOR KEY SHARE;
    IF NOT FOUND THEN RETURN -1; END IF;
    SELECT s.generation INTO generation_now FROM state s WHERE s.epoch = now_epoch;
    IF NOT FOUND THEN RETURN -1; END IF;
    FOR n IN 1 .. cardinality(parents) LOOP
        PERFORM 1 FROM directory d WHERE d.inode = parents[n] FOR KEY SHARE;
        IF NOT FOUND THEN RETURN -1; END IF;
    END LOOP;
    FOR n IN 1 .. cardinality(was_number) LOOP
        PERFORM 1 FROM inode i WHERE
            i.number = was_number[n] AND i.epoch = was_epoch[n] AND i.version = was_version[n]
            AND i.mtime_secs = was_mtime_secs[n] AND i.time = was_time[n] AND i.stamp = was_stamp[n]
            AND i.mtime_nanos = was_mtime_nanos[n] AND i.mode = was_mode[n] AND i.uid = was_uid[n] AND i.gid = was_gid[n]
            AND i.links = was_links[n] AND i.sum = was_sum[n] AND i.device IS NOT DISTINCT FROM was_device[n]
            AND i.target IS NOT DISTINCT FROM was_target[n] AND i.xattrs IS NOT DISTINCT FROM was_xattrs[n]
            AND i.root IS NOT DISTINCT FROM was_root[n] AND i.times IS NOT DISTINCT FROM was_times[n]
            FOR UPDATE;
        IF NOT FOUND THEN RETURN -1; END IF;
    END LOOP;
    FOR n IN 1 .. cardinality(like_numbers) LOOP
        PERFORM 1 FROM inode i WHERE i.number = like_numbers[n] AND i.mode = like_modes[n] AND i.uid = like_uids[n]
            AND i.gid = like_gids[n] AND i.xattrs IS NOT DISTINCT FROM like_xattrs[n];
        IF NOT FOUND THEN RETURN -1; END IF;
    END LOOP;
    FOR n IN 1 .. cardinality(new_names) LOOP
        INSERT INTO dentry (parent, inode, epoch, sum, name)
            VALUES (name_parents[n], name_inodes[n], now_epoch, name_sums[n], new_names[n]) ON CONFLICT DO NOTHING;
        IF NOT FOUND AND n = 1 THEN RETURN -1; END IF;
        IF NOT FOUND THEN RAISE serialization_failure; END IF;
    END LOOP;
    -- Who has lost this connection, and has been told that nothing happened, is right.
    UPDATE lane SET token = new_token, used = now() WHERE id = of_lane AND NOT closed;
    IF NOT FOUND THEN RAISE serialization_failure; END IF;
    FOR n IN 1 .. cardinality(changed_number) LOOP
        UPDATE inode SET
            epoch = changed_epoch[n], version = changed_version[n], mtime_secs = changed_mtime_secs[n], time = changed_time[n],
            stamp = changed_stamp[n], mtime_nanos = changed_mtime_nanos[n], mode = changed_mode[n], uid = changed_uid[n],
            gid = changed_gid[n], links = changed_links[n], sum = changed_sum[n], device = changed_device[n],
            target = changed_target[n], xattrs = changed_xattrs[n], root = changed_root[n], times = changed_times[n]
            WHERE number = changed_number[n];
    END LOOP;
    FOR n IN 1 .. cardinality(made_number) LOOP
        INSERT INTO inode (
            number, epoch, version, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum, device, target, xattrs,
            root, times
        ) VALUES (
            made_number[n], made_epoch[n], made_version[n], made_mtime_secs[n], made_time[n], made_stamp[n],
            made_mtime_nanos[n], made_mode[n], made_uid[n], made_gid[n], made_links[n], made_sum[n], made_device[n],
            made_target[n], made_xattrs[n], made_root[n], made_times[n]
        );
    END LOOP;
    FOR n IN 1 .. cardinality(directory_inodes) LOOP
        INSERT INTO directory (inode, parent, sum) VALUES (directory_inodes[n], directory_parents[n], directory_sums[n]);
    END LOOP;
    IF more_files <> 0 OR more_directories <> 0 OR more_others <> 0 OR more_bytes <> 0 THEN
        UPDATE total SET files = files + more_files, directories = directories + more_directories,
            others = others + more_others, bytes = bytes + more_bytes WHERE slot = total_slot;
    END IF;
    FOR n IN 1 .. cardinality(loose_names) LOOP
        INSERT INTO inline_chunk (fingerprint, session, codec, bytes)
            VALUES (loose_names[n], loose_sessions[n], loose_codecs[n], loose_bytes[n]) ON CONFLICT DO NOTHING;
        -- A row that is there and has other bytes under this name lies.
        IF NOT FOUND THEN
            UPDATE inline_chunk SET codec = loose_codecs[n], bytes = loose_bytes[n]
                WHERE fingerprint = loose_names[n] AND bytes <> loose_bytes[n];
        END IF;
    END LOOP;
    RETURN generation_now;
END
$$;
