//! Shared parts of the metadata engines' tests: fixtures, shorthand for changes, dumps of a tree,
//! and a plain model of it.
#![allow(dead_code, missing_docs)]

pub mod exact_cases;
pub mod guarded_cases;
pub mod inline_cases;
pub mod job_cases;
pub mod model;
pub mod reclaim_cases;
pub mod tree_cases;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{Entry, Fingerprint, Root};
use outrigger_store::keys::Key;
use outrigger_store::meta::{
    At, Change, Commit, Committed, Inode, Location, Meta, OpenMode, PostgresMeta, ROOT_INODE, Sealer,
    SessionId, SessionKind, SqliteMeta,
};
use outrigger_store::{ErrorKind, Result};
use outrigger_workload::postgres::{Pooler, Server};

/// A lease that no test outlives.
pub const LEASE: u32 = 1000;
pub const SECOND: u64 = 1_000_000_000;

/// An engine under test, with a clock that only the test moves.
pub struct Fixture {
    pub meta: Box<dyn Meta>,
    place: Place,
}

/// Which engine, and where its database is.
enum Place {
    Sqlite { clock: Arc<AtomicU64>, directory: tempfile::TempDir },
    Postgres { server: &'static Server, schema: String, url: String, sealer: Option<Sealer> },
}

/// Makes a fresh database of one engine; `None`, with a message, when the engine is not on this
/// machine.
pub type Engine = fn() -> Option<Fixture>;

/// Every engine, with its name.
pub const ENGINES: [(&str, Engine); 3] = [("sqlite", sqlite), ("postgres", postgres), ("sealed", sealed)];

/// A fresh SQLite database.
pub fn sqlite() -> Option<Fixture> {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(AtomicU64::new(1_000 * SECOND));
    let meta = Box::new(open(&directory, &clock, OpenMode::Create));
    Some(Fixture { meta, place: Place::Sqlite { clock, directory } })
}

/// A fresh schema of the PostgreSQL server that this process's tests share.
pub fn postgres() -> Option<Fixture> {
    let server = Server::shared()?;
    let schema = server.fresh();
    let url = server.url(&schema);
    Some(postgres_at(server, schema, url, None))
}

/// The same, of an encrypted store.
pub fn sealed() -> Option<Fixture> {
    let server = Server::shared()?;
    let schema = server.fresh();
    let url = server.url(&schema);
    Some(postgres_at(server, schema, url, Some(sealer(1))))
}

/// The sealer of a store with this key.
pub fn sealer(key: u8) -> Sealer {
    Sealer::new(&Key::new([key; 32]))
}

/// The same as [`postgres`] through PgBouncer, which hands each transaction to another process of the server.
pub fn pooled() -> Option<Fixture> {
    let (server, pooler) = (Server::shared()?, Pooler::shared()?);
    let schema = server.fresh();
    let url = pooler.url(&schema);
    Some(postgres_at(server, schema, url, None))
}

/// The same, of an encrypted store.
pub fn sealed_and_pooled() -> Option<Fixture> {
    let (server, pooler) = (Server::shared()?, Pooler::shared()?);
    let schema = server.fresh();
    let url = pooler.url(&schema);
    Some(postgres_at(server, schema, url, Some(sealer(1))))
}

fn postgres_at(server: &'static Server, schema: String, url: String, sealer: Option<Sealer>) -> Fixture {
    let location = Location::parse(&url).unwrap();
    let meta = Box::new(PostgresMeta::create_with(location, "a test", sealer.clone()).unwrap());
    Fixture { meta, place: Place::Postgres { server, schema, url, sealer } }
}

fn open(directory: &tempfile::TempDir, clock: &Arc<AtomicU64>, mode: OpenMode) -> SqliteMeta {
    let clock = Arc::clone(clock);
    let clock = Arc::new(move || clock.load(Ordering::SeqCst));
    SqliteMeta::open_with_clock(&directory.path().join("meta.db"), mode, clock).unwrap()
}

impl Fixture {
    /// Another handle on the same database, as another process would have.
    pub fn another(&self) -> Box<dyn Meta> {
        match &self.place {
            Place::Sqlite { clock, directory } => Box::new(open(directory, clock, OpenMode::ReadWrite)),
            Place::Postgres { url, sealer, .. } => {
                let meta = PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap();
                sealer.iter().for_each(|sealer| meta.seal_with(sealer.clone()));
                Box::new(meta)
            }
        }
    }

    /// Lets time pass, as far as leases are concerned.
    pub fn pass(&self, secs: u64) {
        match &self.place {
            Place::Sqlite { clock, .. } => {
                clock.fetch_add(secs * SECOND, Ordering::SeqCst);
            }
            // The server's clock cannot be moved, but all leases can, the other way.
            Place::Postgres { server, schema, .. } => {
                // One that is over is so by itself, not only for having been there when the server
                // came.
                let nanos = secs * SECOND;
                let over = format!(
                    "lease_until - {nanos} <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"
                );
                server.sql(&format!(
                    "UPDATE {schema}.session SET lease_until = lease_until - {nanos}, lease_secs = CASE WHEN {over} THEN 0 ELSE lease_secs END"
                ));
            }
        }
    }

    pub fn writer(&self) -> SessionId {
        writer(&*self.meta)
    }

    /// Commits without packs.
    pub fn commit(&self, session: SessionId, changes: Vec<Change>) -> Result<Committed> {
        commit(&*self.meta, session, changes, 7)
    }

    /// The server and the schema that it is in.
    ///
    /// # Panics
    /// For an engine without them.
    pub fn server(&self) -> (&'static Server, &str) {
        match &self.place {
            Place::Postgres { server, schema, .. } => (server, schema),
            Place::Sqlite { .. } => panic!("it has no server"),
        }
    }

    /// Checks the database; for `assert_eq!(…, [""; 0])`.
    pub fn findings(&self) -> Vec<String> {
        self.meta.check().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Place::Postgres { server, schema, .. } = &self.place {
            // After a failed test the schema is kept for inspection, and a server that is gone
            // needs no tidying.
            if !std::thread::panicking() {
                let drop = format!("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE");
                let _ = server.psql("tester", &drop);
            }
        }
    }
}

pub fn writer(meta: &dyn Meta) -> SessionId {
    meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("test"), LEASE).unwrap().0
}

pub fn commit(meta: &dyn Meta, session: SessionId, changes: Vec<Change>, time: u64) -> Result<Committed> {
    meta.commit(session, &Commit { packs: Vec::new(), changes, time })
}

/// The kind of error that must have come.
pub fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("this must be refused").kind()
}

pub fn attributes(kind: FileKind, mode: u32) -> Attributes {
    Attributes {
        kind,
        mode,
        uid: 1000,
        gid: 100,
        mtime: Time { secs: -3, nanos: 5 },
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}

/// The content of a file of one chunk; 0 is the empty file.
pub fn root(seed: u8) -> Root {
    if seed == 0 {
        return Root::Empty;
    }
    Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint([seed; 32]), len: 100 + u32::from(seed) }])
}

pub fn file(parent: u64, name: &str, inode: u64, content: u8) -> Change {
    put(parent, name, inode, attributes(FileKind::File, 0o644), root(content))
}

pub fn dir(parent: u64, name: &str, inode: u64) -> Change {
    put(parent, name, inode, attributes(FileKind::Directory, 0o755), Root::Empty)
}

pub fn put(parent: u64, name: &str, inode: u64, attributes: Attributes, root: Root) -> Change {
    Change::Put { parent, name: name.into(), inode, attributes, root, stamp: 0, replace: false }
}

pub fn replacing(change: Change) -> Change {
    match change {
        Change::Put { parent, name, inode, attributes, root, stamp, .. } => {
            Change::Put { parent, name, inode, attributes, root, stamp, replace: true }
        }
        other => other,
    }
}

pub fn link(parent: u64, name: &str, inode: u64) -> Change {
    Change::Link { parent, name: name.into(), inode }
}

pub fn remove(parent: u64, name: &str) -> Change {
    Change::Remove { parent, name: name.into(), recursive: false }
}

pub fn remove_all(parent: u64, name: &str) -> Change {
    Change::Remove { parent, name: name.into(), recursive: true }
}

pub fn rename(parent: u64, name: &str, new_parent: u64, new_name: &str) -> Change {
    Change::Rename { parent, name: name.into(), new_parent, new_name: new_name.into() }
}

/// A name stands for an inode, or for nothing.
pub fn name(parent: u64, name: &str, inode: impl Into<Option<u64>>) -> Change {
    Change::Name { parent, name: name.into(), inode: inode.into() }
}

/// A file is this, and its content before is forgotten.
pub fn node(parent: u64, inode: u64, content: u8) -> Change {
    let attributes = attributes(FileKind::File, 0o644);
    Change::Node { inode, parent, attributes, root: root(content), keep: false }
}

/// As [`node`], and its content before becomes a version.
pub fn node_kept(parent: u64, inode: u64, content: u8) -> Change {
    let attributes = attributes(FileKind::File, 0o644);
    Change::Node { inode, parent, attributes, root: root(content), keep: true }
}

/// A directory is this.
pub fn dir_node(parent: u64, inode: u64) -> Change {
    let attributes = attributes(FileKind::Directory, 0o755);
    Change::Node { inode, parent, attributes, root: Root::Empty, keep: true }
}

/// Every path of a tree and its inode. Stamps are left out: they are no part of the history.
pub type Dump = BTreeMap<Vec<u8>, Inode>;

/// Reads a tree in small pages.
pub fn dump(meta: &dyn Meta, at: At) -> Dump {
    let root = meta.inode(at, ROOT_INODE).unwrap().expect("the root is always there");
    let mut dump = Dump::from([(Vec::new(), Inode { stamp: 0, ..root })]);
    let mut queue = vec![(Vec::new(), ROOT_INODE)];
    while let Some((path, directory)) = queue.pop() {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = meta.read_dir(at, directory, after.as_deref(), 2).unwrap();
            for entry in &page {
                assert!(after.as_ref().is_none_or(|after| *after < entry.name), "names rise");
                let found = meta.lookup(at, directory, &entry.name).unwrap();
                assert_eq!(found.as_ref(), Some(&entry.inode));
                assert_eq!(meta.inode(at, entry.inode.number).unwrap(), found);
                let path = [&path[..], b"/", &entry.name].concat();
                if entry.inode.attributes.kind == FileKind::Directory {
                    queue.push((path.clone(), entry.inode.number));
                }
                dump.insert(path, Inode { stamp: 0, ..entry.inode.clone() });
                after = Some(entry.name.clone());
            }
            if page.len() < 2 {
                break;
            }
        }
    }
    dump
}

/// The paths of a tree, for short assertions.
pub fn paths(meta: &dyn Meta, at: At) -> Vec<String> {
    dump(meta, at).into_keys().skip(1).map(|path| String::from_utf8_lossy(&path).into_owned()).collect()
}
