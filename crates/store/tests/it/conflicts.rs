//! Commits that the server refuses because of others (40001, 40P01) are made again, and count once;
//! those that it refuses for another reason are not.

use crate::meta_support;
use outrigger_store::meta::Snapshots;

use meta_support::{commit, file, kind, link, paths, remove, writer};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{At, Change, Location, Meta, PostgresMeta, ROOT_INODE as R};
use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap()
}

fn store(server: &Server) -> (String, PostgresMeta) {
    let schema = server.fresh();
    let meta = PostgresMeta::create(Location::parse(&server.url(&schema)).unwrap(), "a test").unwrap();
    meta.raise_counters(1, 10_000, 1).unwrap();
    (schema, meta)
}

/// A file and a second name of it: made twice, this is refused.
fn step(number: u64) -> Vec<Change> {
    let inode = 10 + number;
    vec![file(R, &format!("f{number:04}"), inode, 1), link(R, &format!("l{number:04}"), inode)]
}

fn names(steps: u64) -> Vec<String> {
    let files = (0..steps).map(|number| format!("/f{number:04}"));
    files.chain((0..steps).map(|number| format!("/l{number:04}"))).collect()
}

/// A failure as the server would report it, and its moment in a transaction.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At its first statement, which marks its lane.
    First,
    /// At one that writes a name.
    Between,
    /// At its COMMIT, as serializable transactions do.
    Commit,
}

/// Makes so many of the next transactions fail. A sequence counts them: its numbers stay given out,
/// even if a transaction is rolled back.
fn fail(server: &Server, schema: &str, when: When, code: &str, times: u64) {
    let trigger = match when {
        When::First => "TRIGGER fails BEFORE UPDATE ON @lane FOR EACH STATEMENT",
        When::Between => "TRIGGER fails BEFORE INSERT OR DELETE ON @dentry FOR EACH STATEMENT",
        When::Commit => {
            "CONSTRAINT TRIGGER fails AFTER INSERT OR DELETE ON @dentry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        }
    };
    let sql = format!(
        "CREATE SEQUENCE @failures; \
         CREATE FUNCTION @fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('@failures') <= {times} THEN RAISE 'on purpose' USING ERRCODE = '{code}'; END IF; RETURN NULL; END $$; \
         CREATE {trigger} EXECUTE FUNCTION @fails()"
    );
    // A row trigger returns the row to write; for a statement trigger that does not matter.
    server.sql(&sql.replace('@', &format!("{schema}.")));
}

/// How often it was asked whether to fail; ends that.
fn asked(server: &Server, schema: &str) -> u64 {
    let asked = server.sql(&format!("SELECT last_value FROM {schema}.failures"));
    let drop = "SET client_min_messages = warning; DROP FUNCTION @fails CASCADE; DROP SEQUENCE @failures";
    server.sql(&drop.replace('@', &format!("{schema}.")));
    asked.parse().unwrap()
}

fn no_locks(server: &Server) {
    assert_eq!(server.advisory_locks(), 0);
}

#[test]
fn a_conflict_at_any_step_is_made_again_and_counts_once() {
    let Some(server) = Server::own_database() else { return };
    let (schema, meta) = store(&server);
    let session = writer(&meta);
    let mut steps = 0;
    for when in [When::First, When::Between, When::Commit] {
        for code in ["40001", "40P01"] {
            // Once, and so often that it runs alone in the end.
            for times in [1, 7] {
                fail(&server, &schema, when, code, times);
                let done = commit(&meta, session, step(steps), 1);
                let asked = asked(&server, &schema);
                done.unwrap_or_else(|error| panic!("{when:?} {code} {times}: {error}"));
                assert!(asked > times, "{when:?} {code}: asked {asked} times");
                steps += 1;
                assert_eq!(paths(&meta, At::Now), names(steps), "{when:?} {code} {times}");
                // Changes that are never tried in one round trip.
                fail(&server, &schema, when, code, times);
                let last = format!("l{:04}", steps - 1);
                commit(&meta, session, vec![remove(R, &last)], 1).unwrap();
                assert!(self::asked(&server, &schema) > times);
                commit(&meta, session, vec![link(R, &last, 10 + steps - 1)], 1).unwrap();
            }
        }
    }
    assert_eq!(meta.check().unwrap(), [""; 0]);
    no_locks(&server);
}

#[test]
fn conflicts_without_end_are_said_and_change_nothing() {
    let Some(server) = Server::own_database() else { return };
    let (schema, meta) = store(&server);
    let session = writer(&meta);
    fail(&server, &schema, When::Between, "40001", 1_000_000);
    assert_eq!(kind(commit(&meta, session, step(0), 1)), ErrorKind::Busy);
    let asked = asked(&server, &schema);
    assert!((4..100).contains(&asked), "{asked}");
    assert_eq!(paths(&meta, At::Now), [""; 0]);
    no_locks(&server);
    commit(&meta, session, step(0), 1).unwrap();
    assert_eq!((paths(&meta, At::Now), meta.check().unwrap()), (names(1), Vec::new()));
}

#[test]
fn what_is_no_conflict_is_not_made_again() {
    let Some(server) = Server::own_database() else { return };
    let (schema, meta) = store(&server);
    let session = writer(&meta);
    commit(&meta, session, step(0), 1).unwrap();
    // A full disk, a statement that was cancelled, a check that does not hold.
    for (code, expected) in
        [("53100", ErrorKind::Full), ("57014", ErrorKind::Cancelled), ("23514", ErrorKind::Damaged)]
    {
        for when in [When::Between, When::Commit] {
            fail(&server, &schema, when, code, 1_000_000);
            assert_eq!(kind(commit(&meta, session, vec![remove(R, "l0000")], 1)), expected);
            assert_eq!(asked(&server, &schema), 1, "{when:?} {code}");
            assert_eq!(paths(&meta, At::Now), names(1));
            no_locks(&server);
        }
    }
    commit(&meta, session, step(1), 1).unwrap();
    assert_eq!((paths(&meta, At::Now), meta.check().unwrap()), (names(2), Vec::new()));
}

/// Another client locks a row that a commit needs, and then wants the commit's: the server ends one
/// of them, here always the commit.
#[test]
fn a_commit_that_a_deadlock_ends_is_made_again_and_counts_once() {
    let Some(server) = Server::start("fsync = off\ndeadlock_timeout = 100ms") else { return };
    let (schema, meta) = store(&server);
    let session = writer(&meta);
    let gate = outrigger_format::checksum(&[b"outrigger gate", schema.as_bytes()]) as i64;
    let deadlocks = || server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'");
    commit(&meta, session, step(0), 1).unwrap();
    for (count, changes) in [(1, step(1)), (2, vec![remove(R, "l0001")])] {
        std::thread::scope(|scope| {
            let locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'tuple' OR NOT granted";
            let held = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            let other = scope.spawn(|| {
                server.sql(&format!(
                    "SET deadlock_timeout = '60s'; BEGIN; SELECT 1 FROM {schema}.session FOR UPDATE; \
                     DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE NOT granted); PERFORM pg_sleep(0.02); END LOOP; END $$; \
                     SELECT pg_advisory_xact_lock({gate}); COMMIT"
                ))
            });
            while server.sql(held) == "0" {
                assert_eq!(server.sql(locked), "0");
            }
            commit(&meta, session, changes, 1).unwrap();
            other.join().unwrap();
        });
        eventually("the deadlock is counted", || deadlocks().parse::<u64>().unwrap() >= count);
    }
    assert_eq!(paths(&meta, At::Now), ["/f0000", "/f0001", "/l0000"]);
    assert_eq!(meta.check().unwrap(), [""; 0]);
    no_locks(&server);
}

/// Takes the lock behind which snapshots are taken, by `take`, and holds it until there is a table
/// of this name.
fn holds<'s>(scope: &'s std::thread::Scope<'s, '_>, server: &'s Server, take: String, table: &'static str) {
    scope.spawn(move || {
        server.sql(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {take}; \
             DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = '{table}'); PERFORM pg_sleep(0.02); END LOOP; END $$; \
             COMMIT"
        ))
    });
}

/// Nothing relies on a site's default isolation: each statement sees what was committed before it
/// began. Otherwise a commit that has waited for a snapshot would change what that shows.
#[test]
fn a_snapshot_stays_what_it_was_whatever_isolation_is_the_default() {
    for isolation in ["repeatable read", "serializable"] {
        let Some(server) = &Server::own_database() else { return };
        server.sql(&format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '{isolation}'); END $$"
        ));
        for (round, pooling) in ["session", "transaction"].into_iter().enumerate() {
            let (schema, other) = store(server);
            let meta = open(&format!("{}&pooling={pooling}", server.url(&schema)));
            let session = writer(&meta);
            (0..3).for_each(|number| drop(commit(&meta, session, step(number), 1).unwrap()));
            let gate = outrigger_format::checksum(&[b"outrigger gate", schema.as_bytes()]) as i64;
            // One holds the lock; a snapshot, another one and a commit wait for it, in this order.
            let [first, second] = [["first0", "second0"], ["first1", "second1"]][round];
            let held = |granted: bool, count: u64| {
                let locks = format!(
                    "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database \
                     WHERE locktype = 'advisory' AND granted = {granted} AND datname = current_database()"
                );
                eventually("they wait for the lock", || server.sql(&locks) == count.to_string());
            };
            std::thread::scope(|scope| {
                holds(scope, server, format!("pg_advisory_xact_lock_shared({gate})"), first);
                held(true, 1);
                let snapshot = scope.spawn(|| other.create_snapshot("s", 1, &[]).unwrap());
                held(false, 1);
                holds(scope, server, format!("pg_advisory_xact_lock({gate})"), second);
                held(false, 2);
                let late = scope.spawn(|| commit(&meta, session, step(3), 1).unwrap());
                held(false, 3);
                server.sql(&format!("CREATE TABLE {first} ()"));
                let epoch = snapshot.join().unwrap().epoch;
                assert_eq!(paths(&other, At::Epoch(epoch)), names(3));
                server.sql(&format!("CREATE TABLE {second} ()"));
                late.join().unwrap();
                assert_eq!(paths(&other, At::Epoch(epoch)), names(3), "{isolation}, {pooling}");
            });
            assert_eq!((paths(&other, At::Now), other.check().unwrap()), (names(4), Vec::new()));
        }
        no_locks(server);
    }
}
