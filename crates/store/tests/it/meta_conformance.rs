//! The contract of `Meta`, as code: each case states sentences of its documentation, for every
//! engine alike, and ends with the engine's own check. Behind it: what is SQLite's own (files,
//! modes, refusals).

/// Runs cases on each engine, each on a fresh database.
macro_rules! conformance {
    ($($module:ident { $($case:ident)* })*) => {
        conformance! { @engine sqlite: $($module { $($case)* })* }
        conformance! { @engine postgres: $($module { $($case)* })* }
        conformance! { @engine pooled: $($module { $($case)* })* }
        conformance! { @engine sealed: $($module { $($case)* })* }
        conformance! { @engine sealed_and_pooled: $($module { $($case)* })* }
    };
    (@engine $engine:ident: $($module:ident { $($case:ident)* })*) => {
        mod $engine {
            use crate::meta_support;
            $($(
                #[test]
                fn $case() {
                    let Some(engine) = meta_support::$engine() else { return };
                    meta_support::$module::$case(&engine);
                    assert_eq!(engine.findings(), [""; 0]);
                }
            )*)*
        }
    };
}

conformance! {
    tree_cases {
        a_new_store_has_a_root_directory_and_nothing_else
        reserved_ranges_never_overlap
        everything_about_a_file_reads_back
        directories_are_read_in_pages_in_the_order_of_bytes
        several_names_are_looked_up_at_once
        names_that_cannot_be_names_are_refused
        a_put_over_the_same_kind_keeps_the_inode
        a_put_over_another_kind_replaces
        a_number_in_use_under_another_name_is_a_hard_link
        links_and_removals_are_counted
        renames_follow_posix
        a_commit_happens_wholly_or_not_at_all
        the_root_directory_has_attributes_too
        versions_are_kept_by_the_nearest_policy
        policies_are_set_on_directories_and_go_with_them
        stamps_change_without_a_change
        snapshots_are_exact_and_named_once
        a_history_is_what_each_epoch_has
        pins_hold_what_is_deleted_meanwhile
        a_tree_that_is_gone_already_counts_as_removed
        deep_and_wide_trees_are_removed
    }
    exact_cases {
        names_and_inodes_are_set_whatever_they_were
        their_order_does_not_matter
        what_has_no_name_at_the_end_goes
        states_that_cannot_be_are_refused
        contents_become_versions_if_they_are_to
        an_inode_that_is_set_loses_its_stamp
        the_root_directory_is_set_like_any_other
        snapshots_see_what_names_and_inodes_were
        times_read_back_and_are_history
    }
    guarded_cases {
        a_name_that_is_not_as_expected_refuses_the_commit
        what_is_inherited_is_what_the_directory_has
        what_was_seen_is_exchanged_and_nothing_else
        times_of_change_never_go_back
        a_content_is_pinned_with_the_removal_of_its_last_name
        a_directory_of_a_domain_holds_nothing_else
    }
    reclaim_cases {
        sessions_have_leases_that_their_work_renews
        packs_belong_to_their_session_until_they_are_live
        only_what_ended_sessions_left_is_swept
        a_session_learns_which_packs_it_may_rely_on
        there_is_one_collector_and_its_session_is_the_token
        a_run_moves_and_buries_in_one_step
        held_roots_outlive_sessions
        content_without_a_name_is_held_while_it_is_open
        visiting_sees_one_state_and_stops_at_an_error
        counters_rise_and_never_fall
        a_lost_database_is_filled_again
        upkeep_changes_nothing_that_can_be_seen
    }
    inline_cases {
        inline_chunks_come_with_the_commit_that_needs_them
        a_inline_chunk_is_packed_by_its_owner_and_once
        what_sessions_that_are_over_have_left_is_taken_over
        inline_chunks_are_listed_in_parts
        commits_that_add_the_same_chunks_at_once_both_have_them
    }
    job_cases {
        a_job_reads_back_and_holds_its_inputs
        a_published_job_shows_all_at_once_and_lets_go
        a_split_whose_session_is_over_is_taken_and_the_late_one_is_ignored
        a_split_that_takes_its_runners_with_it_is_set_aside
        failures_are_counted_and_what_was_not_begun_is_not
        a_cancelled_job_voids_its_attempts_and_a_retry_keeps_what_is_done
        of_two_attempts_at_a_split_the_first_to_finish_counts
        two_attempts_at_a_split_end_with_their_sessions_and_their_job
        the_last_of_two_attempts_to_fail_says_why
        an_open_input_is_closed_once_and_what_was_read_too_early_is_void
        several_open_inputs_are_closed_one_by_one
        runners_that_claim_at_once_share_the_splits
        records_are_kept_by_kind_and_name
        what_a_rule_has_seen_makes_one_job
    }
}

mod files {
    use outrigger_store::meta::{Holds as _, Packs as _, Tree as _};
    use std::os::unix::fs::PermissionsExt as _;

    use outrigger_format::PackKind;
    use outrigger_store::ErrorKind;
    use outrigger_store::meta::{At, Meta as _, OpenMode, ROOT_INODE, SqliteMeta};

    use crate::meta_support::{file, kind, writer};

    /// Names of the files in a directory, and checksums of what is in them.
    fn listing(directory: &std::path::Path) -> Vec<(String, u64)> {
        let mut files: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let content = std::fs::read(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), outrigger_format::checksum(&[&content]))
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn a_database_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta ?#%é.db");
        assert_eq!(kind(SqliteMeta::open(&path, OpenMode::ReadWrite)), ErrorKind::NotFound);
        assert_eq!(kind(SqliteMeta::open(&path, OpenMode::ReadOnly)), ErrorKind::NotFound);
        drop(SqliteMeta::open(&path, OpenMode::Create).unwrap());
        assert_eq!(kind(SqliteMeta::open(&path, OpenMode::Create)), ErrorKind::Exists);
        drop(SqliteMeta::open(&path, OpenMode::ReadWrite).unwrap());
        drop(SqliteMeta::open(&path, OpenMode::ReadOnly).unwrap());
    }

    #[test]
    fn two_processes_cannot_both_make_it() {
        for _ in 0..64 {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("meta.db");
            let make = || SqliteMeta::open(&path, OpenMode::Create).map(drop).map_err(|error| error.kind());
            let mut made = std::thread::scope(|scope| {
                let threads = [scope.spawn(make), scope.spawn(make)];
                threads.map(|thread| thread.join().unwrap())
            });
            made.sort_by_key(Result::is_err);
            assert_eq!(made, [Ok(()), Err(ErrorKind::Exists)]);
        }
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta.db");
        let open = |mode| kind(SqliteMeta::open(&path, mode));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(open(OpenMode::ReadWrite), ErrorKind::Damaged);
        std::fs::write(&path, "not a database, but longer than a header of SQLite's: 100 bytes".repeat(40))
            .unwrap();
        assert_eq!(open(OpenMode::ReadWrite), ErrorKind::Damaged);
        assert_eq!(open(OpenMode::Create), ErrorKind::Exists);
        std::fs::remove_file(&path).unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE t (x)").unwrap();
        drop(other);
        assert_eq!(open(OpenMode::ReadOnly), ErrorKind::Invalid);
        std::fs::remove_file(&path).unwrap();
        drop(SqliteMeta::open(&path, OpenMode::Create).unwrap());
        let newer = rusqlite::Connection::open(&path).unwrap();
        newer.execute_batch("PRAGMA user_version = 5").unwrap();
        drop(newer);
        let error = SqliteMeta::open(&path, OpenMode::ReadWrite).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Newer);
        assert!(error.to_string().contains("schema version 5, this program knows version 4"), "{error}");
    }

    #[test]
    fn read_only_changes_no_file_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta.db");
        let meta = SqliteMeta::open(&path, OpenMode::Create).unwrap();
        meta.reserve_inodes(9).unwrap();
        crate::meta_support::commit(&meta, writer(&meta), vec![file(ROOT_INODE, "f", 5, 1)], 1).unwrap();
        // While it is written elsewhere …
        let reader = SqliteMeta::open(&path, OpenMode::ReadOnly).unwrap();
        assert!(reader.lookup(At::Now, ROOT_INODE, b"f").unwrap().is_some());
        assert_eq!(kind(reader.next_sequence()), ErrorKind::Denied);
        assert_eq!(kind(reader.tidy()), ErrorKind::Denied);
        drop((reader, meta));
        // … and when the file is write-protected. The superuser can write everywhere: then SQLite's
        // own files may stay.
        let before = listing(directory.path());
        assert_eq!(before.len(), 3, "the log and its index stay: {before:?}");
        let log = std::fs::metadata(directory.path().join("meta.db-wal")).unwrap();
        assert_eq!(log.len(), 0, "what was in it is in the database");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
        let reader = SqliteMeta::open(&path, OpenMode::ReadOnly).unwrap();
        assert!(reader.lookup(At::Now, ROOT_INODE, b"f").unwrap().is_some());
        assert_eq!(reader.check().unwrap(), [""; 0]);
        assert_eq!(kind(reader.next_sequence()), ErrorKind::Denied);
        drop(reader);
        let after = listing(directory.path());
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(after[0], before[0]);
        if !rustix::process::geteuid().is_root() {
            assert_eq!(after, before);
            assert_eq!(kind(SqliteMeta::open(&path, OpenMode::ReadWrite)), ErrorKind::Denied);
        }
    }

    #[test]
    fn damage_is_found_and_named() {
        for (harm, finding) in [
            ("DELETE FROM inode WHERE number = 5", "stands for inode 5, which does not exist"),
            ("UPDATE inode SET links = 3 WHERE number = 5", "inode 5 says it has 3 names, and has 1"),
            ("UPDATE inode SET root = x'0107' WHERE number = 5", "inode 5"),
            ("UPDATE inode SET traits = 99 WHERE number = 5", "missing traits 99"),
            (
                "UPDATE directory SET parent = 6 WHERE inode = 6",
                "directory 6 has a name in 1, and is kept as one of 6",
            ),
            (
                "INSERT INTO dentry (parent, name, inode, epoch) VALUES (6, x'78', 1, 1)",
                "a name in directory 6 stands for the root directory",
            ),
            ("DELETE FROM dentry WHERE inode = 6", "no path leads to directory 6"),
            ("UPDATE state SET bytes = 0", "totals"),
            ("UPDATE state SET next_inode = 6", "counter of inodes is behind"),
            ("INSERT INTO policy VALUES (5, 'codec', 'lz4')", "policy codec is set on inode 5"),
            ("INSERT INTO version VALUES (5, 1, 0, 0, 0, NULL)", "version 1 is of inode 5"),
            ("UPDATE inode SET epoch = 9 WHERE number = 5", "inode 5 is from epoch 9"),
            ("UPDATE inode SET times = x'0102' WHERE number = 5", "inode 5"),
            ("UPDATE held SET root = x'0107'", "held mount"),
            ("CREATE TRIGGER t AFTER UPDATE ON state BEGIN SELECT 1; END", "`t` is in the schema"),
            ("DROP INDEX pack_live", "`pack_live` is missing"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("meta.db");
            let meta = SqliteMeta::open(&path, OpenMode::Create).unwrap();
            meta.reserve_inodes(9).unwrap();
            let changes = vec![file(ROOT_INODE, "f", 5, 1), crate::meta_support::dir(ROOT_INODE, "d", 6)];
            crate::meta_support::commit(&meta, writer(&meta), changes, 1).unwrap();
            meta.hold("mount", &[crate::meta_support::root(9)]).unwrap();
            assert_eq!(meta.check().unwrap(), [""; 0]);
            outrigger_store::testing::database(&path).unwrap().execute_batch(harm).unwrap();
            let findings = meta.check().unwrap();
            assert!(findings.iter().any(|found| found.contains(finding)), "{harm}: {findings:?}");
        }
    }

    #[test]
    fn counters_that_no_client_wrote_are_damage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta.db");
        let meta = SqliteMeta::open(&path, OpenMode::Create).unwrap();
        let session = writer(&meta);
        for value in [0, -1, i64::MIN] {
            let database = outrigger_store::testing::database(&path).unwrap();
            database.execute("UPDATE state SET next_pack = ?1, next_inode = ?1", [value]).unwrap();
            assert_eq!(kind(meta.announce_packs(session, PackKind::Data, 1, 7)), ErrorKind::Damaged);
            assert_eq!(kind(meta.reserve_inodes(1)), ErrorKind::Damaged);
            assert_eq!(kind(meta.counters()), ErrorKind::Damaged);
        }
    }
}
