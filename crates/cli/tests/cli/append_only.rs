//! A role of PostgreSQL that may not delete snapshots, in the hands of its user and of a thief.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;

use crate::run::{Said, noise};
use crate::shared::Host;
use crate::site::Site;

/// A store with a snapshot, and a role that only adds.
struct World {
    site: Site,
    eve: String,
    url: String,
}

/// Directories of the mirrored tree.
const DIRS: [&str; 3] = ["a", "b", "c"];

impl World {
    fn new() -> Option<Self> {
        let site = Site::postgres_with(&["--no-encryption"])?;
        let (server, schema) = site.postgres.as_ref().unwrap();
        let eve = format!("adds_{schema}");
        // As docs/distributed.md has it.
        server.sql(&format!(
            "CREATE ROLE {eve} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {eve}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {eve}; \
             REVOKE DELETE ON {schema}.snapshot FROM {eve}"
        ));
        let url = server.url_as(&eve, schema);
        let world = Self { site, eve, url };
        for (seed, dir) in (0..).zip(DIRS) {
            world.site.place.write(format!("tree/{dir}/large"), noise(seed, 300_000));
            world.site.place.write(format!("tree/{dir}/small"), dir);
        }
        world.site.done(&["put", "tree", "--to", "tree"]);
        world.site.done(&["snapshot", "create", "held"]);
        Some(world)
    }

    fn server(&self) -> (&'static Server, &str) {
        let (server, schema) = self.site.postgres.as_ref().unwrap();
        (server, schema)
    }

    /// A command of a user who has the role's password.
    fn by_eve(&self, args: &[&str]) -> Said {
        let command = &mut self.site.command_at("eves", args);
        Said::from(command.env("OUTRIGGER_STORE", &self.url).output().unwrap())
    }

    /// Statements in the store's schema, in the role's own connection.
    fn sends(&self, sql: &str) -> Result<String, String> {
        let (server, schema) = self.server();
        server
            .psql(&self.eve, &format!("SET search_path = {schema}; {sql}"))
            .map_err(|error| error.to_string())
    }

    /// The snapshot has what was stored.
    #[track_caller]
    fn holds(&self) {
        let place = &self.site.place;
        let _ = fs::remove_dir_all(place.path("then"));
        self.site.done(&["get", "--at", "held", "tree", "then"]);
        let same = Command::new("diff").arg("-r").args([place.path("tree"), place.path("then")]).status();
        assert!(same.unwrap().success());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let (server, _) = self.server();
        server.sql(&format!("DROP OWNED BY {0}; DROP ROLE {0}", self.eve));
    }
}

#[test]
fn a_role_that_only_adds_works_and_its_user_can_harm_no_snapshot() {
    let Some(world) = World::new() else { return };
    let place = &world.site.place;
    place.write("mine/a/large", noise(9, 200_000));
    place.write("mine/new", "new");
    for args in [
        &["put", "mine", "--to", "tree", "--replace-source"][..],
        &["mv", "tree/new", "tree/moved"],
        &["cp", "tree/moved", "copy"],
        &["snapshot", "create", "hers"],
        &["rm", "-r", "tree"],
        &["put", "mine", "--to", "tree"],
        &["check", "--read-data"],
    ] {
        let said = world.by_eve(args);
        assert_eq!(said.code, 0, "{args:?} {}", said.err);
    }
    world.holds();
    let by: serde_json::Value =
        serde_json::from_str(&world.site.done(&["--json", "snapshot", "list"]).text()).unwrap();
    let hers = by["snapshots"].as_array().unwrap().iter().find(|row| row["name"] == "hers").unwrap();
    assert_eq!(hers["role"], world.eve.as_str());
    for args in [&["snapshot", "delete", "held"][..], &["snapshot", "hold", "held"], &["gc"]] {
        let said = world.by_eve(args);
        assert!(said.code != 0 && said.err.contains("only adds"), "{args:?} {} {}", said.code, said.err);
    }
    world.holds();
    world.site.done(&["check", "--read-data"]);
    // A role that may remove works as ever.
    world.site.done(&["snapshot", "delete", "hers"]);
    world.site.done(&["gc"]);
    world.holds();
}

#[test]
fn a_mount_of_a_role_that_only_adds_writes_and_keeps_nothing_in_the_database() {
    let Some(world) = World::new() else { return };
    let (server, schema) = world.server();
    let host = Host::new(world.url.clone(), &[]);
    host.write("tree/a/small", "changed");
    host.write("small", "a small file");
    fs::rename(host.path("tree/b"), host.path("b")).unwrap();
    fs::remove_file(host.path("tree/c/large")).unwrap();
    fs::File::open(host.path("small")).unwrap().sync_all().unwrap();
    assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.inline_chunk")), "0");
    host.must_read("tree/a/small", "changed");
    host.done(&["unmount", host.place.path("mnt").to_str().unwrap()]);
    assert_eq!(world.site.done(&["cat", "small"]).text(), "a small file");
    world.holds();
}

/// Each statement is refused; then the snapshot is as it was. The text before the colon says what it
/// would do.
const ATTACKS: &[&str] = &[
    "deletes the snapshot: DELETE FROM snapshot",
    "moves it: UPDATE snapshot SET epoch = epoch + 1",
    "renames it: UPDATE snapshot SET name = 'other'",
    "expires it: UPDATE snapshot SET tags = '{}', time = 0",
    "overwrites files: UPDATE inode SET root = NULL, sum = 0 WHERE root IS NOT NULL",
    "overwrites them as of now: UPDATE inode SET root = NULL, epoch = (SELECT epoch FROM state)",
    "gives files to others: UPDATE inode SET mode = 0, epoch = epoch",
    "renumbers files: UPDATE inode SET number = number + 1000, epoch = (SELECT epoch FROM state)",
    "deletes files: DELETE FROM inode",
    "deletes names: DELETE FROM dentry",
    "exchanges names: UPDATE dentry SET inode = 1, epoch = (SELECT epoch FROM state)",
    "adds a name to the past: INSERT INTO dentry SELECT parent, inode, 0, sum, name || 'x' FROM dentry",
    "adds a former name: INSERT INTO dentry_old (parent, inode, epoch_from, epoch_to, sum, name) \
     SELECT parent, inode, 0, 100, sum, name || 'x' FROM dentry",
    "adds a former file: INSERT INTO inode_old (number, epoch_from, epoch_to, mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, sum) \
     SELECT number, 0, 100, 0, 0, 0, mode, uid, gid, links, 0 FROM inode",
    "writes another past: INSERT INTO inode_old (number, epoch_from, epoch_to, mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, sum) \
     SELECT number, epoch, (SELECT epoch FROM state), mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, sum FROM inode \
     WHERE root IS NOT NULL",
    "ends a state before the snapshot: INSERT INTO dentry_old (parent, inode, epoch_from, epoch_to, sum, name) \
     SELECT parent, inode, epoch, epoch, sum, name FROM dentry",
    "sees no snapshot: BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM dentry; COMMIT",
    "hides the tables: CREATE TEMP TABLE snapshot (epoch bigint); CREATE TEMP TABLE state (epoch bigint); DELETE FROM dentry",
    "kills packs: UPDATE pack SET state = 4",
    "makes them candidates: UPDATE pack SET state = 3",
    "makes them unfinished: UPDATE pack SET state = 0, session = 0",
    "forgets them: DELETE FROM pack WHERE state = 2",
    "gives them to a session: UPDATE pack SET session = 0, bytes = 0",
    "gives out numbers again: UPDATE counter SET value = 1",
    "forgets numbers: DELETE FROM counter",
    "goes back in time: UPDATE state SET epoch = 1",
    "goes far ahead: UPDATE state SET epoch = 9223372036854775807",
    "forges a snapshot of the past: INSERT INTO snapshot (epoch, name, time, tags) VALUES (0, 'forged', 0, '{}')",
    "dates one: INSERT INTO snapshot (epoch, name, time, tags) SELECT epoch - 1, 'forged', 0, '{}' FROM state",
    "poisons a chunk: INSERT INTO inline_chunk (fingerprint, session, codec, bytes) VALUES ('x', 0, 'none', 'x')",
    "empties tables: TRUNCATE snapshot",
    "lifts triggers: ALTER TABLE inode DISABLE TRIGGER ALL",
    "runs without them: SET session_replication_role = replica",
    "replaces what they call: CREATE OR REPLACE FUNCTION held_epoch(name) RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
    "gives itself the right: GRANT DELETE ON snapshot TO PUBLIC; DELETE FROM snapshot",
    "names packs elsewhere: UPDATE about SET config = ''",
    "passes for the owner by a table of its own: CREATE TEMP TABLE pg_class (oid oid, relowner oid); \
     INSERT INTO pg_temp.pg_class SELECT c.oid, r.oid FROM pg_catalog.pg_class c, pg_catalog.pg_roles r WHERE r.rolname = session_user; \
     UPDATE about SET config = 'evil'",
    "lets snapshots expire: INSERT INTO policy VALUES (1, 'automatic', '0h')",
    "ends names that go on: INSERT INTO dentry_old (parent, inode, epoch_from, epoch_to, sum, name) \
     SELECT parent, inode, epoch, (SELECT epoch FROM state), sum, name FROM dentry",
    "commits a pack that nobody stored: INSERT INTO pack (id, session, bytes, raw_bytes, chunks, generation, dead_since, kind, state) \
     SELECT max(id) + 1, 0, 1, 1, 1, 0, 0, 0, 2 FROM pack",
    "collects: INSERT INTO session (id, kind, lease_secs, acknowledged, lease_until, lock, host, process, role) \
     VALUES (999, 2, 60, 0, 9000000000000000000, '', '', 1, '{}')",
    "says who collects: UPDATE state SET collector = 1",
    "uses up generations: UPDATE state SET generation = 9223372036854775807",
];

#[test]
fn a_thief_of_such_a_role_harms_no_snapshot_by_any_statement() {
    let Some(world) = World::new() else { return };
    let (server, schema) = world.server();
    // There is a past to harm, besides rows that have not changed since.
    world.site.place.write("other/small", "other");
    world.site.done(&["put", "other", "--to", "tree/a", "--replace-source"]);
    for attack in [
        "changes the past: UPDATE inode_old SET root = NULL",
        "changes names in it: UPDATE dentry_old SET name = 'x'",
        "deletes it: DELETE FROM inode_old",
        "deletes its names: DELETE FROM dentry_old",
    ]
    .iter()
    .chain(ATTACKS)
    {
        let (what, sql) = attack.split_once(": ").unwrap();
        let refused = world.sends(sql);
        assert!(refused.is_err(), "{what}: {refused:?}");
        world.holds();
    }
    assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.snapshot WHERE name = 'forged'")), "0");
    world.site.done(&["check", "--read-data"]);
}

/// She may empty the present, if she leaves the past. She may spoil what only clients can compute.
#[test]
fn checksums_that_a_thief_spoils_harm_no_snapshot_and_no_copy() {
    let Some(world) = World::new() else { return };
    let empties = "INSERT INTO inode_old (number, epoch_from, epoch_to, mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, sum, \
         device, target, xattrs, root, times) SELECT number, epoch, (SELECT epoch FROM state), mtime_secs, stamp, mtime_nanos, \
         mode, uid, gid, links, 4711, device, target, xattrs, root, times FROM inode WHERE number <> 1; \
         DELETE FROM inode WHERE number <> 1; \
         INSERT INTO dentry_old (parent, inode, epoch_from, epoch_to, sum, name) SELECT parent, inode, epoch, \
         (SELECT epoch FROM state), 4711, name FROM dentry; DELETE FROM dentry; DELETE FROM directory WHERE inode <> 1; \
         DELETE FROM policy WHERE inode <> 1; UPDATE total SET files = 0, directories = (slot = 0)::int, others = 0, bytes = 0";
    world.sends(empties).unwrap();
    assert_eq!(world.site.done(&["ls"]).text(), "");
    world.holds();
    world.site.done(&["check", "--read-data"]);
    let (server, schema) = world.server();
    world.site.done(&["copy", &server.url(schema), "copy"]);
    let place = &world.site.place;
    world.site.done(&["-s", "copy", "get", "--at", "held", "tree", "copied"]);
    let same = Command::new("diff").arg("-r").args([place.path("tree"), place.path("copied")]).status();
    assert!(same.unwrap().success());
}

/// Their clients wait for each other's sessions, so nobody speaks for another's.
#[test]
fn a_thief_speaks_for_no_session_of_another_role() {
    let Some(world) = World::new() else { return };
    let (server, schema) = world.server();
    server.sql(&format!(
        "INSERT INTO {schema}.session (id, kind, lease_secs, acknowledged, lease_until, lock, host, process, role) \
         VALUES (500, 0, 60, 0, 9000000000000000000, '', '', 1, '{{}}')"
    ));
    for sql in [
        "UPDATE session SET acknowledged = 9223372036854775807",
        "UPDATE session SET maker = session_user",
        "DELETE FROM session",
    ] {
        assert!(world.sends(sql).is_err(), "{sql}");
    }
    // Once its lease is over, anybody may end it.
    server.sql(&format!("UPDATE {schema}.session SET lease_until = 0 WHERE id = 500"));
    world.sends("DELETE FROM session WHERE id = 500").unwrap();
}

#[test]
fn a_transaction_that_was_open_when_the_snapshot_was_taken_cannot_change_it() {
    let Some(world) = World::new() else { return };
    let (server, schema) = world.server();
    // Changed since the last snapshot, so that she needs to leave no past.
    world.site.place.write("tree/a/small", "changed since");
    world.site.done(&["put", "tree", "--to", "tree"]);
    std::thread::scope(|scope| {
        let hers = scope.spawn(|| {
            world.sends("BEGIN; UPDATE inode SET uid = 4711 WHERE epoch = (SELECT epoch FROM state); SELECT pg_sleep(2); COMMIT")
        });
        let asleep = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = '{}' AND query LIKE '%pg_sleep%' AND wait_event = 'PgSleep'",
            world.eve
        );
        eventually("she is in her transaction", || server.sql(&asleep) == "1");
        world.site.done(&["snapshot", "create", "beside"]);
        // It waited for her: so what she wrote was the present.
        assert_eq!(server.sql(&asleep), "0");
        hers.join().unwrap().unwrap();
    });
    let newer = format!(
        "SELECT count(*) FROM {schema}.inode i, {schema}.snapshot s WHERE s.name = 'beside' AND i.epoch > s.epoch"
    );
    assert_eq!(server.sql(&newer), "0");
}

/// The recipe of the documents is what these tests use.
#[test]
fn the_documents_have_the_grants() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/distributed.md");
    assert!(fs::read_to_string(path).unwrap().contains("REVOKE DELETE ON team.snapshot FROM"));
}
