//! Small commits in one round trip to the server: it compares their assumptions there, and if an
//! answer is lost, the outcome is found out.

use crate::meta_support;
use outrigger_store::meta::{Sessions, Snapshots, Tree};

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use meta_support::{attributes, commit, dump, kind, paths, root, writer};
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{
    At, Change, Inode, Location, Meta, PinTarget, PostgresMeta, ROOT_INODE as R, SessionId,
};
use outrigger_workload::postgres::{Piece, Proxy, Server};

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap()
}

fn store(server: &Server) -> (String, PostgresMeta) {
    let schema = server.fresh();
    let meta = PostgresMeta::create(Location::parse(&server.url(&schema)).unwrap(), "a test").unwrap();
    meta.raise_counters(1, 1000, 1).unwrap();
    (schema, meta)
}

fn inode(meta: &PostgresMeta, number: u64) -> Inode {
    meta.inode(At::Now, number).unwrap().unwrap()
}

/// As a mount makes an empty file in the root directory.
fn make(meta: &PostgresMeta, name: &str, number: u64) -> Vec<Change> {
    let time = Time { secs: number as i64, nanos: 0 };
    vec![
        Change::IfName { parent: R, name: name.into(), inode: None },
        Change::IfAttributes { inode: R, attributes: Box::new(inode(meta, R).attributes) },
        meta_support::put(R, name, number, attributes(FileKind::File, 0o644), root(0)),
        Change::Touch { inode: R, modified: true, time },
    ]
}

/// As a mount makes another file within the same tick, when the directory's time need not change
/// again: by a function of its own.
fn make_soon(meta: &PostgresMeta, name: &str, number: u64) -> Vec<Change> {
    let mut changes = make(meta, name, number);
    changes.pop();
    changes
}

type Make = fn(&PostgresMeta, &str, u64) -> Vec<Change>;

/// Both ways in which a mount makes a file.
const WAYS: [Make; 2] = [make, make_soon];

/// Turns an inode from the state `was` into this.
fn turn(was: Inode, attributes: Attributes, root: Root) -> Vec<Change> {
    let (inode, was) = (was.number, Box::new((was.attributes, was.root)));
    vec![Change::CompareAndSwap { inode, parent: R, was, attributes, root, keep: false }]
}

/// As a mount gives a file its content: if it is `was`.
fn swap(was: &Inode, content: u8) -> Vec<Change> {
    turn(was.clone(), was.attributes.clone(), root(content))
}

/// A proxy that counts pieces, and loses or delays the piece that it is told to.
struct Path {
    proxy: Proxy,
    left: Arc<AtomicI64>,
    what: Arc<AtomicU8>,
}

impl Path {
    fn start(server: &Server) -> Self {
        let (left, what) = (Arc::new(AtomicI64::new(i64::MAX)), Arc::new(AtomicU8::new(0)));
        let (count, which) = (Arc::clone(&left), Arc::clone(&what));
        let judge = move || match (count.fetch_sub(1, Ordering::SeqCst), which.load(Ordering::SeqCst)) {
            (0, 0) => Piece::Lose,
            (0, _) => Piece::Late,
            _ => Piece::Pass,
        };
        Self { proxy: Proxy::start(server, judge).unwrap(), left, what }
    }

    fn open(&self, schema: &str) -> PostgresMeta {
        open(&self.proxy.url(schema))
    }

    /// Loses or delays this piece, counted from now on.
    fn harm(&self, piece: i64, is_late: bool) {
        self.what.store(u8::from(is_late), Ordering::SeqCst);
        self.left.store(piece, Ordering::SeqCst);
    }

    /// The late piece arrives, and ends its connection.
    fn arrive(&self, server: &Server, schema: &str) {
        let of_this_store = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outrigger%' AND query LIKE '%{schema}%'"
        );
        let connections = server.sql(&of_this_store);
        self.proxy.arrive();
        let waited = (0..1000).find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            server.sql(&of_this_store) != connections
        });
        assert!(waited.is_some(), "the late statement has not come");
    }

    /// Pieces since then.
    fn count(&self, work: impl FnOnce()) -> i64 {
        self.left.store(i64::MAX, Ordering::SeqCst);
        work();
        i64::MAX - self.left.load(Ordering::SeqCst)
    }
}

/// A client that has made files before, so that statements are prepared and rows are cached.
fn warmed(path: &Path, schema: &str) -> (PostgresMeta, SessionId) {
    let meta = path.open(schema);
    let session = writer(&meta);
    for (number, make) in (100..104).zip(WAYS.into_iter().cycle()) {
        commit(&meta, session, make(&meta, &format!("warm{number}"), number), 1).unwrap();
        commit(&meta, session, swap(&inode(&meta, number), 9), 2).unwrap();
    }
    (meta, session)
}

#[test]
fn a_new_file_and_its_content_are_a_journey_each() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let (meta, session) = warmed(&path, &schema);
    for (number, make) in [200, 201].into_iter().zip(WAYS) {
        let changes = make(&meta, &format!("f{number}"), number);
        let made = path.count(|| drop(commit(&meta, session, changes, 5).unwrap()));
        let changes = swap(&inode(&meta, number), 3);
        let closed = path.count(|| drop(commit(&meta, session, changes, 6).unwrap()));
        assert_eq!((made, closed), (2, 2), "a statement and its answer");
    }
    // Everything is there, and the totals agree.
    let (row, soon) = (inode(&other, 200), inode(&other, 201));
    assert_eq!((&row.root, row.links), (&root(3), 1));
    assert_eq!(Inode { number: 200, ..soon }, row);
    assert_eq!(inode(&other, R).attributes.mtime.secs, 200);
    assert_eq!(other.totals().unwrap().files, 6);
    assert_eq!(other.check().unwrap(), [""; 0]);
}

#[test]
fn a_directory_is_made_at_once_and_can_be_used() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let (meta, session) = warmed(&path, &schema);
    for (number, make) in [300, 310].into_iter().zip(WAYS) {
        let name = format!("d{number}");
        let mut changes = make(&meta, &name, number);
        changes[2] = meta_support::dir(R, &name, number);
        let made = path.count(|| drop(commit(&meta, session, changes, 5).unwrap()));
        assert_eq!(made, 2);
        commit(&other, writer(&other), vec![meta_support::file(number, "below", number + 1, 1)], 6).unwrap();
        assert!(paths(&meta, At::Now).contains(&format!("/{name}/below")));
    }
    assert_eq!(other.totals().unwrap().directories, 3);
    assert_eq!(other.check().unwrap(), [""; 0]);
}

#[test]
fn what_was_guessed_wrong_is_found_out_and_changes_nothing() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let (meta, session) = warmed(&path, &schema);
    let theirs = writer(&other);
    // Another client has changed a row that this one has cached. A commit that knows the new state
    // succeeds, one that does not is refused.
    let before = inode(&meta, 101);
    commit(&other, theirs, swap(&before, 4), 7).unwrap();
    assert_eq!(kind(commit(&meta, session, swap(&before, 5), 8)), ErrorKind::Changed);
    assert_eq!(inode(&other, 101).root, root(4));
    commit(&meta, session, swap(&inode(&meta, 101), 5), 8).unwrap();
    assert_eq!(inode(&other, 101).root, root(5));
    for (ten, make) in [400, 410].into_iter().zip(WAYS) {
        // A name is taken.
        let name = format!("f{ten}");
        let late = make(&meta, &name, ten);
        commit(&other, theirs, make(&other, &name, ten + 1), 9).unwrap();
        assert_eq!(kind(commit(&meta, session, late, 9)), ErrorKind::Changed);
        assert_eq!(meta.lookup(At::Now, R, name.as_bytes()).unwrap().unwrap().number, ten + 1);
        assert!(meta.inode(At::Now, ten).unwrap().is_none());
        // The inherited attributes are different.
        let stale = make(&meta, "g", ten + 2);
        let now = inode(&other, R);
        let mut attributes = now.attributes.clone();
        attributes.mode ^= 0o2070;
        commit(&other, theirs, turn(now, attributes, root(0)), 10).unwrap();
        assert_eq!(kind(commit(&meta, session, stale, 10)), ErrorKind::Changed);
        // The directory is gone.
        commit(&other, theirs, vec![meta_support::dir(R, "gone", ten + 3)], 11).unwrap();
        let attributes = Box::new(inode(&meta, ten + 3).attributes);
        let below = vec![
            Change::IfName { parent: ten + 3, name: b"g".to_vec(), inode: None },
            Change::IfAttributes { inode: ten + 3, attributes },
            meta_support::file(ten + 3, "g", ten + 4, 1),
        ];
        let remove = Change::Remove { parent: R, name: b"gone".to_vec(), recursive: false };
        commit(&other, theirs, vec![remove], 12).unwrap();
        assert_eq!(kind(commit(&meta, session, below, 12)), ErrorKind::NotFound);
    }
    assert_eq!(meta.lookup(At::Now, R, b"g").unwrap(), None);
    // The session is over.
    other.fence(session).unwrap();
    for make in WAYS {
        assert_eq!(kind(commit(&meta, session, make(&meta, "h", 499), 13)), ErrorKind::Fenced);
    }
    assert_eq!(meta.lookup(At::Now, R, b"h").unwrap(), None);
    assert_eq!(other.check().unwrap(), [""; 0]);
}

#[test]
fn a_snapshot_by_another_client_keeps_what_it_saw() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let (meta, session) = warmed(&path, &schema);
    let snapshot = other.create_snapshot("s", 3, &[]).unwrap();
    let seen = dump(&other, At::Epoch(snapshot.epoch));
    commit(&meta, session, swap(&inode(&meta, 102), 6), 4).unwrap();
    commit(&meta, session, make(&meta, "new", 500), 5).unwrap();
    let snapshot_again = other.create_snapshot("again", 3, &[]).unwrap();
    let seen_again = dump(&other, At::Epoch(snapshot_again.epoch));
    commit(&meta, session, make_soon(&meta, "new too", 502), 5).unwrap();
    assert_eq!(dump(&other, At::Epoch(snapshot_again.epoch)), seen_again);
    assert_eq!(dump(&other, At::Epoch(snapshot.epoch)), seen);
    assert_eq!(inode(&other, 102).root, root(6));
    // In the new epoch it goes on as before.
    for (number, make) in [503, 504].into_iter().zip(WAYS) {
        commit(&meta, session, make(&meta, &format!("first{number}"), number), 6).unwrap();
        let changes = make(&meta, &format!("newer{number}"), number + 10);
        assert_eq!(path.count(|| drop(commit(&meta, session, changes, 6).unwrap())), 2);
    }
    // A pin is as good as a snapshot.
    let reader = writer(&other);
    let (epoch, _) = other.pin(reader, &PinTarget::Now).unwrap();
    let seen = dump(&other, At::Epoch(epoch));
    commit(&meta, session, swap(&inode(&meta, 102), 7), 7).unwrap();
    assert_eq!(dump(&other, At::Epoch(epoch)), seen);
    assert_eq!(other.check().unwrap(), [""; 0]);
}

#[test]
fn a_lost_statement_or_answer_costs_nothing_and_repeats_nothing() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let mut number = 600;
    for make in WAYS {
        // The statement; its answer.
        for piece in [0, 1] {
            let meta = path.open(&schema);
            let session = writer(&meta);
            let mut next = || {
                number += 1;
                (make(&meta, &format!("f{number}"), number), number)
            };
            for _ in 0..3 {
                commit(&meta, session, next().0, 1).unwrap();
            }
            let (changes, number) = next();
            path.harm(piece, false);
            commit(&meta, session, changes, 5).unwrap();
            assert_eq!(inode(&other, number).links, 1);
        }
    }
    assert_eq!(other.totals().unwrap().files, 16);
    assert_eq!(other.check().unwrap(), [""; 0]);
}

/// A statement that was given up, and made again, reaches the server when everything is once more
/// as it expects.
#[test]
fn a_statement_that_comes_too_late_changes_nothing() {
    let Some(server) = Server::shared() else { return };
    let (schema, other) = store(server);
    let path = Path::start(server);
    let (meta, session) = warmed(&path, &schema);
    let before = inode(&meta, 102);
    let row = format!("SELECT i FROM {schema}.inode i WHERE number = 102");
    let was = server.sql(&row);
    path.harm(0, true);
    commit(&meta, session, swap(&before, 8), 20).unwrap();
    assert_eq!(inode(&other, 102).root, root(8));
    // Back, at the time at which it was so before: not a byte is different.
    commit(&other, writer(&other), swap(&inode(&other, 102), 9), 2).unwrap();
    assert_eq!(server.sql(&row), was);
    path.arrive(server, &schema);
    assert_eq!(server.sql(&row), was, "what was given up has happened");
    assert_eq!(other.check().unwrap(), [""; 0]);
}

#[test]
fn a_name_that_was_made_again_and_removed_does_not_come_back_late() {
    let Some(server) = Server::shared() else { return };
    for make in WAYS {
        let (schema, other) = store(server);
        let path = Path::start(server);
        let (meta, session) = warmed(&path, &schema);
        let root_was = inode(&meta, R);
        path.harm(0, true);
        commit(&meta, session, make(&meta, "f", 700), 20).unwrap();
        assert_eq!(inode(&other, 700).links, 1);
        let theirs = writer(&other);
        let remove = Change::Remove { parent: R, name: b"f".to_vec(), recursive: false };
        commit(&other, theirs, vec![remove], 21).unwrap();
        // As it was found when the statement was sent.
        let back = turn(inode(&other, R), root_was.attributes, root_was.root);
        commit(&other, theirs, back, 1).unwrap();
        path.arrive(server, &schema);
        assert_eq!(other.lookup(At::Now, R, b"f").unwrap(), None);
        assert!(other.inode(At::Now, 700).unwrap().is_none());
        assert_eq!(other.check().unwrap(), [""; 0]);
    }
}
