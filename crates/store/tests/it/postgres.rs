//! PostgreSQL's own: making and recognising a store, read-only roles, and the effect on commits
//! when a server or a connection goes away. No acknowledged commit is lost, none is done twice, no
//! row stays locked.

use crate::meta_support;
use outrigger_store::meta::{Holds, Packs, Sessions, Snapshots, Tree};

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use meta_support::{commit, file, kind, link, paths, root, writer};
use outrigger_format::{PackId, PackKind};
use outrigger_store::ErrorKind;
use outrigger_store::meta::jobs::{JobInput, Jobs as _, NewJob};
use outrigger_store::meta::{At, Location, Meta, PinTarget, PostgresMeta, ROOT_INODE as R, SessionKind};
use outrigger_workload::eventually;
use outrigger_workload::postgres::{Piece, Pooler, Proxy, Server};

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap()
}

fn create(url: &str) -> PostgresMeta {
    PostgresMeta::create(Location::parse(url).unwrap(), "a test").unwrap()
}

/// A file and a second name of it: made twice, this is refused.
fn step(number: u64) -> Vec<outrigger_store::meta::Change> {
    let inode = 10 + number;
    vec![file(R, &format!("f{number:04}"), inode, 1), link(R, &format!("l{number:04}"), inode)]
}

/// The names that so many steps make.
fn names(steps: u64) -> Vec<String> {
    let files = (0..steps).map(|number| format!("/f{number:04}"));
    files.chain((0..steps).map(|number| format!("/l{number:04}"))).collect()
}

fn no_locks(server: &Server) {
    assert_eq!(server.advisory_locks(), 0, "locks are left");
}

#[test]
fn a_store_is_made_once_and_recognised() {
    let Some(server) = Server::shared() else { return };
    let url = server.url(&server.fresh());
    let location = || Location::parse(&url).unwrap();
    assert_eq!(kind(PostgresMeta::open(location(), false)), ErrorKind::NotFound);
    let made: Vec<_> = std::thread::scope(|scope| {
        let make = || PostgresMeta::create(location(), "what it is").map(drop).map_err(|error| error.kind());
        let threads = [scope.spawn(make), scope.spawn(make), scope.spawn(make)];
        threads.map(|thread| thread.join().unwrap()).into_iter().filter(Result::is_ok).collect()
    });
    assert_eq!(made.len(), 1, "one of three makes it");
    assert_eq!(kind(PostgresMeta::create(location(), "again")), ErrorKind::Exists);
    assert_eq!(open(&url).config(), "what it is");
    let schema = location().schema;
    server.sql(&format!("UPDATE {schema}.about SET version = 1000"));
    let error = PostgresMeta::open(location(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Newer);
    assert!(error.to_string().contains("version 1000"), "{error}");
    let nobody = Location::parse(&server.url_as("nobody_of_that_name", &schema)).unwrap();
    assert_eq!(kind(PostgresMeta::open(nobody, false)), ErrorKind::Denied);
}

#[test]
fn a_schema_of_another_version_is_refused() {
    let Some(server) = Server::shared() else { return };
    let schema = server.fresh();
    let url = server.url(&schema);
    drop(create(&url));
    for (change, refused) in [("- 1", ErrorKind::Invalid), ("+ 2", ErrorKind::Newer)] {
        server.sql(&format!("UPDATE {schema}.about SET version = version {change}"));
        for read_only in [true, false] {
            assert_eq!(kind(PostgresMeta::open(Location::parse(&url).unwrap(), read_only)), refused);
        }
    }
}

#[test]
fn harm_is_found() {
    let Some(server) = Server::shared() else { return };
    for (harm, finding) in [
        ("UPDATE @inode SET links = 2 WHERE number = 5", "inode 5 is not what was written"),
        ("UPDATE @inode SET root = '\\x0107' WHERE number = 5", "inode 5"),
        ("UPDATE @inode SET root = NULL WHERE number = 5", "inode 5"),
        ("UPDATE @dentry SET name = 'g' WHERE inode = 5", "a name in directory 1 is not what was written"),
        (
            "INSERT INTO @dentry (parent, name, inode, epoch, sum) VALUES (6, 'x', 1, 1, 0)",
            "a name in directory 6 stands for the root directory",
        ),
        ("DELETE FROM @dentry WHERE inode = 6", "no path leads to directory 6"),
        ("UPDATE @directory SET parent = 6 WHERE inode = 6", "where directory 6 hangs"),
        ("DELETE FROM @inode WHERE number = 5", "stands for inode 5, which does not exist"),
        ("UPDATE @total SET bytes = bytes + 1 WHERE slot = 0", "totals"),
        ("UPDATE @counter SET value = 6 WHERE name = 'next_inode'", "counter of inodes is behind"),
        ("UPDATE @held SET root = '\\x0107'", "held"),
        ("UPDATE @job_input SET path = 'other'", "input 0 of job 1 is not what was written"),
        ("INSERT INTO @policy VALUES (5, 'codec', 'lz4')", "policy codec is set on inode 5"),
        (
            "INSERT INTO @file_lock VALUES (5, 1, 1, 9, 8, 0, 0, 0)",
            "lock of session 1 on inode 5 cannot be one",
        ),
    ] {
        let schema = server.fresh();
        let meta = create(&server.url(&schema));
        meta.reserve_inodes(9).unwrap();
        let changes = vec![file(R, "f", 5, 1), meta_support::dir(R, "d", 6)];
        commit(&meta, writer(&meta), changes, 1).unwrap();
        meta.hold("held", &[root(9)]).unwrap();
        let input = JobInput { path: b"f".to_vec(), root: root(1) };
        meta.create_job(&NewJob { inputs: vec![input], ..NewJob::default() }).unwrap();
        assert_eq!(meta.check().unwrap(), [""; 0]);
        server.sql(&harm.replace('@', &format!("{schema}.")));
        let findings = meta.check().unwrap();
        assert!(findings.iter().any(|found| found.contains(finding)), "{harm}: {findings:?}");
    }
}

/// docs/distributed.md says which rights such a role has.
#[test]
fn a_role_that_may_only_read_reads_and_harms_nothing() {
    let Some(server) = Server::shared() else { return };
    let schema = server.fresh();
    let meta = create(&server.url(&schema));
    meta.reserve_inodes(9).unwrap();
    commit(&meta, writer(&meta), vec![file(R, "f", 5, 1)], 1).unwrap();
    let role = format!("reader_{schema}");
    server.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    ));
    let url = server.url_as(&role, &schema);
    let reader = PostgresMeta::open(Location::parse(&url).unwrap(), true).unwrap();
    assert_eq!(paths(&reader, At::Now), ["/f"]);
    assert_eq!(reader.check().unwrap(), [""; 0]);
    assert_eq!(kind(reader.next_sequence()), ErrorKind::Denied);
    // A client that is not told to hold back finds out that it must …
    let pusher = open(&url);
    assert!(pusher.is_read_only());
    assert_eq!(
        kind(pusher.open_session(SessionKind::Writer, &outrigger_store::testing::owner("w"), 60)),
        ErrorKind::Denied
    );
    assert_eq!(kind(pusher.reserve_inodes(1)), ErrorKind::Denied);
    assert_eq!(kind(pusher.fence(writer(&meta))), ErrorKind::Denied);
    // … and the server would not let it.
    assert!(server.psql(&role, &format!("DELETE FROM {schema}.dentry")).is_err());
    assert!(server.psql(&role, &format!("DROP TABLE {schema}.pack")).is_err());
    assert_eq!(paths(&meta, At::Now), ["/f"]);
    drop((reader, pusher));
    server.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn transactions_work_through_a_pooler_that_keeps_nothing() {
    let Some(server) = Server::shared() else { return };
    let url = format!("{}&pooling=transaction", server.url(&server.fresh()));
    let meta = create(&url);
    let session = writer(&meta);
    meta.raise_counters(1, 1000, 1).unwrap();
    (0..5).for_each(|number| drop(commit(&meta, session, step(number), 1).unwrap()));
    assert_eq!(paths(&meta, At::Now), names(5));
    // Nothing was left in the server that another client's transaction would find.
    let url = url.replace("pooling=transaction", "pooling=session");
    assert_eq!(open(&url).check().unwrap(), [""; 0]);
}

/// More clients than the pooler has server processes: none sees the state of another one's
/// transaction, and none waits for ever.
#[test]
fn clients_share_the_few_connections_of_pgbouncer() {
    const STEPS: u64 = 25;
    const CLIENTS: u64 = 6;
    let Some(pooler) = Pooler::shared() else { return };
    let server = Server::shared().unwrap();
    let url = pooler.url(&server.fresh());
    let meta = create(&url);
    meta.raise_counters(1, 10_000, 1).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let url = &url;
            scope.spawn(move || {
                let meta = open(url);
                let session = writer(&meta);
                for number in client * STEPS..(client + 1) * STEPS {
                    commit(&meta, session, step(number), 1).unwrap();
                }
                assert_eq!(meta.check().unwrap(), [""; 0]);
            });
        }
    });
    assert_eq!(paths(&meta, At::Now), names(CLIENTS * STEPS));
    let through = "SELECT count(*) > 0 AND count(*) <= 4 FROM pg_stat_activity WHERE application_name LIKE 'outrigger%' AND client_port = -1 \
                   AND query LIKE '%SCHEMA%'";
    let through = through.replace("SCHEMA", &Location::parse(&url).unwrap().schema);
    // Other tests' clients share the pooler's connections, whose last statement may be theirs.
    let seen = (0..100).any(|_| meta.counters().is_ok() && server.sql(&through) == "t");
    assert!(seen, "the clients came through the pooler");
}

#[test]
fn a_lease_ends_by_the_servers_clock_and_then_others_may_end_the_right_to_commit() {
    let Some(server) = Server::shared() else { return };
    let meta = create(&server.url(&server.fresh()));
    meta.raise_counters(1, 1000, 1).unwrap();
    let (session, _) =
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("w"), 1).unwrap();
    commit(&meta, session, step(0), 1).unwrap();
    assert!(!meta.sessions().unwrap()[0].lease_is_over);
    // As if its host were cut off: its lease is not renewed.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(meta.sessions().unwrap()[0].lease_is_over);
    // It is back before another client has ended it.
    commit(&meta, session, step(1), 1).unwrap();
    assert!(!meta.sessions().unwrap()[0].lease_is_over);
    meta.fence(session).unwrap();
    assert_eq!(kind(commit(&meta, session, step(2), 1)), ErrorKind::Fenced);
    assert_eq!(kind(meta.pin(session, &PinTarget::Now)), ErrorKind::Fenced);
    assert_eq!(paths(&meta, At::Now), names(2));
}

/// A proxy that loses one connection after so many pieces.
struct Cutter {
    proxy: Proxy,
    left: Arc<AtomicI64>,
}

impl Cutter {
    fn start(server: &Server) -> Self {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let shared = Arc::clone(&left);
        let judge = move || match shared.fetch_sub(1, Ordering::SeqCst) {
            0 => Piece::Lose,
            _ => Piece::Pass,
        };
        Self { proxy: Proxy::start(server, judge).unwrap(), left }
    }

    /// The connection that the `pieces`th piece from now on comes through is cut instead; those
    /// after it are not.
    fn cut_after(&self, pieces: i64) {
        self.left.store(pieces, Ordering::SeqCst);
    }

    fn has_cut(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }
}

/// The connection is lost before and after each message of a commit: whether the server got it or
/// not, the commit happens once.
#[test]
fn a_connection_lost_at_any_step_of_a_commit_loses_and_repeats_nothing() {
    let Some(server) = Server::shared() else { return };
    let schema = server.fresh();
    let meta = create(&server.url(&schema));
    meta.raise_counters(1, 1000, 1).unwrap();
    let cutter = Cutter::start(server);
    let through = open(&cutter.proxy.url(&schema));
    let session = writer(&through);
    let mut steps = 0;
    // Until a commit needs fewer pieces than that.
    for pieces in 0.. {
        // So that the connection exists and knows its statements: the cut falls into the commit
        // itself.
        for _ in 0..2 {
            commit(&through, session, step(steps), 1).unwrap();
            steps += 1;
        }
        cutter.cut_after(pieces);
        commit(&through, session, step(steps), 1)
            .unwrap_or_else(|error| panic!("cut after {pieces}: {error}"));
        steps += 1;
        let cut = cutter.has_cut();
        cutter.cut_after(i64::MAX);
        assert_eq!(paths(&meta, At::Now), names(steps), "cut after {pieces}");
        if !cut {
            assert!(pieces >= 4, "a commit is two messages and two answers at least, not {pieces}");
            break;
        }
    }
    assert_eq!(meta.check().unwrap(), [""; 0]);
}

/// As when it is stopped, or its host is out of memory.
#[test]
fn a_server_that_takes_connections_and_says_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let _silent = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).unwrap();
    let url = format!("postgres://tester@/postgres?host={}", dir.path().display());
    let error = PostgresMeta::is_at(Location::parse(&url).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("does not answer"), "{error}");
}

/// Reports the end when it is dropped, also by a panic: a thread that waits for it does not hang
/// behind a client that failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// As when an administrator ends the connections, or a failover does: at any moment, of several
/// clients. No oftener than they come through with something: a server that ended every connection
/// before it was of use would be no server, on a slow machine above all.
#[test]
fn connections_ended_by_the_server_cost_nobody_a_commit() {
    const STEPS: u64 = 60;
    // Its own: other tests' connections are not to be ended.
    let Some(server) = Server::start("fsync = off") else { return };
    let url = format!("{}&connections=2", server.url("store"));
    let meta = create(&url);
    meta.raise_counters(1, 10_000, 1).unwrap();
    let (over, done, ended) = (AtomicBool::new(false), AtomicI64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|client| {
                let (url, done, ended) = (&url, &done, &ended);
                scope.spawn(move || {
                    let meta = open(url);
                    let session = writer(&meta);
                    for number in client * STEPS..(client + 1) * STEPS {
                        // On a fast machine all would be committed before the first connection is
                        // ended.
                        while ended.load(Ordering::SeqCst) < number % STEPS / 10 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        commit(&meta, session, step(number), 1).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let terminator = scope.spawn(|| {
            let (mut last, mut seen) = (0, -1);
            while !over.load(Ordering::SeqCst) {
                let now = done.load(Ordering::SeqCst);
                if now > seen || last == 0 {
                    seen = now;
                    let counts = server.sql(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                         WHERE application_name LIKE 'outrigger%' AND query <> '' AND random() < 0.5",
                    );
                    last = counts.parse::<u64>().unwrap();
                    ended.fetch_add(last, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let ends = Ends(&over);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(ends);
        terminator.join().unwrap()
    });
    assert!(ended.into_inner() > 0, "no connection was ended");
    assert_eq!(paths(&meta, At::Now), names(3 * STEPS));
    assert_eq!(meta.check().unwrap(), [""; 0]);
}

#[test]
fn a_server_killed_and_started_again_keeps_what_was_acknowledged() {
    // With its syncs: a commit that it reports is on the disk.
    let Some(server) = Server::start("fsync = on") else { return };
    let url = server.url("store");
    let meta = create(&url);
    meta.raise_counters(1, 10_000, 1).unwrap();
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let meta = open(&url);
            // Longer than the server is away.
            let session =
                meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("w"), 600).unwrap().0;
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                commit(&meta, session, step(number), 1).unwrap();
                number += 1;
            }
            number
        });
        let ends = Ends(&over);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            server.kill().unwrap();
            server.run().unwrap();
        }
        drop(ends);
        client.join().unwrap()
    });
    assert!(done > 0);
    assert_eq!(paths(&meta, At::Now), names(done));
    assert_eq!(meta.check().unwrap(), [""; 0]);
    no_locks(&server);
}

#[test]
fn a_server_that_stands_still_is_given_up_and_one_that_is_busy_is_waited_for() {
    let Some(server) = Server::start("fsync = off") else { return };
    let meta = create(&format!("{}&patience=2", server.url("store")));
    meta.raise_counters(1, 1000, 1).unwrap();
    let session = writer(&meta);
    commit(&meta, session, step(0), 1).unwrap();
    server.stand_still().unwrap();
    let error = commit(&meta, session, step(1), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(kind(meta.lookup(At::Now, R, b"f0000")), ErrorKind::Io);
    // A second waiter does not wait anew for as long as the first one has.
    assert!(meta.trouble().is_some());
    server.go_on().unwrap();
    // It may have been sent before: then it happens once, and the outcome is found out.
    if !error.unanswered().is_some_and(|unanswered| meta.has_happened(unanswered).unwrap()) {
        commit(&meta, session, step(1), 1).unwrap();
    }
    assert_eq!(paths(&meta, At::Now), names(2));
    let mut other = server.psql_session();
    let long = "BEGIN; LOCK TABLE store.session IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT;\n";
    std::io::Write::write_all(other.stdin.as_mut().unwrap(), long.as_bytes()).unwrap();
    let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'store.session'::regclass AND granted";
    eventually("the table is locked", || server.sql(locked) == "1");
    commit(&meta, session, step(2), 1).unwrap();
    assert_eq!(paths(&meta, At::Now), names(3));
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn leases_do_not_run_out_while_the_server_is_away() {
    let Some(server) = Server::start("fsync = on") else { return };
    let url = server.url("store");
    let meta = create(&url);
    meta.raise_counters(1, 1000, 1).unwrap();
    let lease = 600;
    let [stays, fenced] = ["stays", "fenced"].map(|description| {
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner(description), lease)
            .unwrap()
            .0
    });
    // As if the server had been away until long after.
    let ends = |secs: u32| {
        server.sql(&format!("UPDATE store.session SET lease_secs = {secs}, lease_until = 0 RETURNING 1"));
    };
    ends(0);
    assert!(meta.sessions().unwrap().iter().all(|session| session.lease_is_over));
    meta.fence(fenced).unwrap();
    ends(lease);
    server.kill().unwrap();
    server.run().unwrap();
    // It has a whole lease to come back in, and earlier decisions of others stay.
    let meta = open(&url);
    assert!(!meta.sessions().unwrap()[0].lease_is_over);
    commit(&meta, stays, step(0), 1).unwrap();
    meta.renew(stays, lease).unwrap();
    assert_eq!(kind(commit(&meta, fenced, step(1), 1)), ErrorKind::Fenced);
    assert_eq!(paths(&meta, At::Now), names(1));
    // One that does not come back is over a lease after the start.
    ends(0);
    assert!(meta.sessions().unwrap()[0].lease_is_over);
}

/// A role that may write rows: counters become numbers of packs and inodes.
#[test]
fn counters_that_no_client_wrote_are_damage() {
    let Some(server) = Server::shared() else { return };
    let url = server.url(&server.fresh());
    let (meta, schema) = (create(&url), Location::parse(&url).unwrap().schema);
    let session = writer(&meta);
    for value in ["-1", "0", "-9223372036854775808"] {
        server.sql(&format!("UPDATE {schema}.counter SET value = {value}"));
        assert_eq!(kind(meta.announce_packs(session, PackKind::Data, 1, 7)), ErrorKind::Damaged, "{value}");
        assert_eq!(kind(meta.reserve_inodes(1)), ErrorKind::Damaged, "{value}");
        assert_eq!(kind(meta.counters()), ErrorKind::Damaged, "{value}");
        assert_eq!(
            kind(meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("x"), 60)),
            ErrorKind::Damaged,
            "{value}"
        );
    }
    // Nothing of it was taken, so a repair is enough.
    server.sql(&format!("UPDATE {schema}.counter SET value = 100"));
    assert_eq!(meta.announce_packs(session, PackKind::Data, 1, 7).unwrap(), [PackId(100)]);
    server.sql(&format!("UPDATE {schema}.pack SET bytes = -1"));
    assert_eq!(kind(meta.packs()), ErrorKind::Damaged);
    server.sql(&format!("UPDATE {schema}.pack SET bytes = 0, id = -1"));
    assert_eq!(kind(meta.packs()), ErrorKind::Damaged);
}
