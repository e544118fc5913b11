//! Tailing the changes of packs' rows: no change is missed, in whatever order transactions of any
//! client begin and end; and the cost of that.

use crate::meta_support;
use outrigger_store::meta::{Packs, Tree};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use meta_support::writer;
use outrigger_format::{PackId, PackKind};
use outrigger_store::meta::{Commit, Location, PackMark, PackRow, PackState, PostgresMeta};
use outrigger_workload::postgres::Server;

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap()
}

fn create(url: &str) -> PostgresMeta {
    PostgresMeta::create(Location::parse(url).unwrap(), "a test").unwrap()
}

/// A session of `psql`, whose transactions stay open between statements.
struct Open {
    child: std::process::Child,
    said: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Open {
    fn new(server: &Server) -> Self {
        use std::io::BufRead as _;
        let mut child = server.psql_session();
        let said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// Returns when the statement has been executed.
    fn run(&mut self, sql: &str) {
        use std::io::Write as _;
        writeln!(self.child.stdin.as_mut().unwrap(), "{sql};\n\\echo done").unwrap();
        assert!(self.said.any(|line| line.unwrap() == "done"), "{sql}");
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rows of packs as a follower has them.
struct Follower<'m> {
    meta: &'m PostgresMeta,
    mark: PackMark,
    rows: BTreeMap<PackId, PackRow>,
}

impl<'m> Follower<'m> {
    fn new(meta: &'m PostgresMeta) -> Self {
        let (mark, rows) = (meta.pack_mark().unwrap().unwrap(), meta.packs().unwrap());
        Self { meta, mark, rows: rows.into_iter().map(|row| (row.id, row)).collect() }
    }

    /// Reads the changes, and returns the number of rows.
    fn look(&mut self) -> usize {
        let changes = self.meta.changed_packs(self.mark).unwrap().unwrap();
        self.mark = changes.mark;
        let count = changes.rows.len();
        self.rows.extend(changes.rows.into_iter().map(|row| (row.id, row)));
        count
    }
}

#[test]
fn changes_of_packs_are_followed_whatever_the_order_of_their_transactions() {
    let Some(server) = Server::shared() else { return };
    let schema = server.fresh();
    let meta = create(&server.url(&schema));
    let insert = |id: u64| {
        format!(
            "INSERT INTO {schema}.pack (id, session, bytes, raw_bytes, chunks, generation, dead_since, kind, state) \
             VALUES ({id}, 0, 1, 1, 1, 0, 0, 1, 2)"
        )
    };
    server.sql(&insert(1));
    let mut follower = Follower::new(&meta);
    assert_eq!(follower.rows.len(), 1);
    let (mut early, mut late) = (Open::new(server), Open::new(server));
    // The first to begin and to change is the last to commit, after a look that has seen the
    // other's.
    early.run("BEGIN");
    early.run(&insert(2));
    late.run("BEGIN");
    late.run(&insert(3));
    late.run(&format!("UPDATE {schema}.pack SET state = 3 WHERE id = 1"));
    follower.look();
    assert_eq!(follower.rows.len(), 1);
    late.run("COMMIT");
    follower.look();
    assert_eq!(follower.rows.keys().map(|id| id.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(follower.rows[&PackId(1)].state, PackState::Candidate);
    // Another one, as a whole, while the first is still open.
    server.sql(&insert(4));
    follower.look();
    follower.look();
    assert_eq!(follower.rows.len(), 3);
    early.run("COMMIT");
    follower.look();
    assert_eq!(follower.rows.len(), 4);
    // A transaction that is rolled back changes nothing, and without changes nothing is read (once
    // other work in this server is over).
    early.run("BEGIN");
    early.run(&insert(5));
    early.run("ROLLBACK");
    while follower.look() > 0 {}
    assert_eq!(follower.rows.into_values().collect::<Vec<_>>(), meta.packs().unwrap());
}

#[test]
fn a_follower_beside_many_writers_misses_nothing() {
    const WRITERS: usize = 4;
    let Some(server) = Server::shared() else { return };
    let url = server.url(&server.fresh());
    let meta = create(&url);
    let mut follower = Follower::new(&meta);
    let at_work = AtomicUsize::new(WRITERS);
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (url, at_work) = (&url, &at_work);
            scope.spawn(move || {
                let meta = open(url);
                let session = writer(&meta);
                for round in 0..25 {
                    let ids = meta.announce_packs(session, PackKind::Data, 1 + number as u32, 0).unwrap();
                    let rows: Vec<PackRow> = ids
                        .iter()
                        .map(|id| PackRow {
                            id: *id,
                            kind: PackKind::Data,
                            state: PackState::Sealed,
                            session,
                            bytes: 7,
                            raw_bytes: 8,
                            chunks: round,
                            dead_since: 0,
                            mark: 0,
                        })
                        .collect();
                    meta.packs_sealed(session, &rows).unwrap();
                    let commit = Commit { packs: ids, changes: Vec::new(), time: 1 };
                    meta.commit(session, &commit).unwrap();
                }
                at_work.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while at_work.load(Ordering::SeqCst) > 0 {
            follower.look();
        }
    });
    follower.look();
    let all = meta.packs().unwrap();
    assert_eq!(all.len(), 25 * (1 + 2 + 3 + 4));
    assert_eq!(follower.rows.into_values().collect::<Vec<_>>(), all);
}

#[test]
fn a_mark_of_another_run_of_the_server_means_nothing() {
    let Some(server) = Server::start("fsync = off") else { return };
    let meta = create(&server.url("s"));
    let follower = Follower::new(&meta);
    assert!(meta.changed_packs(follower.mark).unwrap().is_some());
    server.kill().unwrap();
    server.run().unwrap();
    assert_eq!(meta.changed_packs(follower.mark).unwrap(), None);
    assert!(meta.changed_packs(Follower::new(&meta).mark).unwrap().is_some());
}

/// The cost of reading all rows, and of reading the changes. For figures: `PACKS=100000 cargo test
/// --release -p outrigger-store --all-features --test it the_cost_of_a_look -- --nocapture`.
#[test]
fn the_cost_of_a_look_is_that_of_what_has_changed() {
    const CHANGED: usize = 10;
    let packs: usize = std::env::var("PACKS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let Some(server) = Server::own_database() else { return };
    let meta = create(&server.url("s"));
    server.sql(&format!(
        "INSERT INTO s.pack (id, session, bytes, raw_bytes, chunks, generation, dead_since, kind, state) \
         SELECT id, 1, 16777216, 33554432, 2048, 0, 0, 1, 2 FROM generate_series(1, {packs}) id; ANALYZE s.pack"
    ));
    let mut follower = Follower::new(&meta);
    while follower.look() > 0 {}
    let timed = |look: &mut dyn FnMut() -> usize| {
        let began = Instant::now();
        let rows = look();
        (began.elapsed(), rows)
    };
    let all = (0..20).map(|_| timed(&mut || meta.packs().unwrap().len())).min().unwrap();
    assert_eq!(all.1, packs);
    let none = (0..20).map(|_| timed(&mut || follower.look())).min().unwrap();
    assert_eq!(none.1, 0);
    let some = (0..20).map(|round| {
        let (from, to) = (round * CHANGED, (round + 1) * CHANGED);
        server.sql(&format!("UPDATE s.pack SET state = 5 - state WHERE id > {from} AND id <= {to}"));
        timed(&mut || follower.look())
    });
    let some = some.map(|(took, rows)| (rows, took)).min().unwrap();
    assert_eq!(some.0, CHANGED);
    let plan = server.sql("SET enable_seqscan = on; EXPLAIN SELECT * FROM s.state s LEFT JOIN s.pack p ON p.changed >= 1000000000");
    assert!(plan.contains("pack_changed"), "{plan}");
    println!(
        "{packs} packs: all rows {:?}; {CHANGED} changed {:?}; none changed {:?}",
        all.0, some.1, none.0
    );
}
