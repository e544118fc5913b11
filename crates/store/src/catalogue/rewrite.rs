//! The records of a rewritten catalogue, which make the whole store's tree, history and policies
//! out of nothing.
//!
//! The oldest snapshot's tree comes first, as differences from an empty one. Then come the
//! differences of each later snapshot, and at last of the present tree, from the one before. Each
//! difference takes two passes over both trees: first names that go, then names that come or
//! change. So a moved directory leaves its old place before it appears at the new one (it may have
//! only one name), and everything below it is recorded again. A name that gets another inode is
//! removed first, so that the new inode is not taken for a new version of the old one.
//!
//! While the differences are replayed no versions are kept (the first record says so). The kept
//! versions come at the end, with the policies, which belong to no snapshot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Record};

use super::merged::{Entries, Merged};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, DirEntry, Inode, Meta, ROOT_INODE};
use crate::store::Store;
use crate::tree::listing::Ancestors;

/// Records made ahead.
const AHEAD: usize = 4096;

/// Makes all records of the tree as it is at `now`, with its history, while `take` consumes them.
/// After the last record, the flag says whether they were all.
///
/// # Errors
/// Those of `take`, and, through it, of the database.
pub(crate) fn stream<T>(
    store: &Store,
    now: At,
    take: impl FnOnce(Receiver<Result<Record>>, &AtomicBool) -> Result<T>,
) -> Result<T> {
    let (send, receive) = sync_channel(AHEAD);
    let whole = AtomicBool::new(false);
    let whole = &whole;
    std::thread::scope(|scope| {
        let making = std::thread::Builder::new().spawn_scoped(scope, move || {
            match make(store, now, &send) {
                Ok(()) => whole.store(true, Ordering::Release),
                // The receiver is gone if `take` failed first.
                Err(error) => drop(send.send(Err(error))),
            }
        });
        match making {
            Ok(_) => take(receive, whole),
            Err(error) => Err(Error::new(ErrorKind::Io, "cannot start a thread").caused_by(error)),
        }
    })
}

fn make(store: &Store, now: At, send: &SyncSender<Result<Record>>) -> Result<()> {
    let meta = &*store.meta;
    let mut teller = Teller { meta, now, send };
    let versions = |value: Option<&str>| Record::Policy {
        inode: ROOT_INODE,
        key: b"versions".to_vec(),
        value: value.map(|value| value.as_bytes().to_vec()),
    };
    teller.tell(versions(Some("none")))?;
    let mut before = None;
    // Later snapshots have records behind these.
    let is_of_then = |epoch: u64| match now {
        At::Now => true,
        At::Epoch(now) => epoch < now,
    };
    for snapshot in meta.snapshots()?.into_iter().filter(|snapshot| is_of_then(snapshot.epoch)) {
        let at = At::Epoch(snapshot.epoch);
        teller.difference(before, at)?;
        before = Some(at);
        let (name, tags) =
            (snapshot.name.into_bytes(), snapshot.tags.into_iter().map(String::into_bytes).collect());
        teller.tell(Record::Snapshot { name, time: snapshot.time, tags })?;
    }
    teller.difference(before, now)?;
    teller.versions(ROOT_INODE)?;
    teller.tell(versions(None))?;
    for (inode, policies) in meta.all_policies()? {
        if meta.inode(now, inode)?.is_none() {
            continue;
        }
        for (key, value) in policies {
            teller.tell(Record::Policy { inode, key: key.into_bytes(), value: Some(value.into_bytes()) })?;
        }
    }
    Ok(())
}

struct Teller<'a> {
    meta: &'a dyn Meta,
    now: At,
    send: &'a SyncSender<Result<Record>>,
}

/// A directory in the tree before, and in the one after.
type Pair = (Option<(At, u64)>, (At, u64));

impl Teller<'_> {
    fn tell(&mut self, record: Record) -> Result<()> {
        let stopped = |_| Error::new(ErrorKind::Cancelled, "the catalogue is not written");
        self.send.send(Ok(record)).map_err(stopped)
    }

    fn difference(&mut self, before: Option<At>, after: At) -> Result<()> {
        let root = |at| {
            let missing = || Error::damaged("the root directory is missing");
            self.meta.inode(at, ROOT_INODE)?.ok_or_else(missing)
        };
        let (old, new) = (before.map(root).transpose()?, root(after)?);
        if old.is_none_or(|old| old.attributes != new.attributes) {
            self.upsert(ROOT_INODE, Vec::new(), new)?;
        }
        let pair = (before.map(|at| (at, ROOT_INODE)), (after, ROOT_INODE));
        if before.is_some() {
            self.tell_gone(pair)?;
        }
        self.tell_come(pair)
    }

    fn upsert(&mut self, parent: u64, name: Vec<u8>, inode: Inode) -> Result<()> {
        let root = if inode.attributes.kind == FileKind::File { inode.root } else { Root::Empty };
        let (number, attributes) = (inode.number, inode.attributes);
        self.tell(Record::Upsert { inode: number, parent, name, attributes, root, replace: false })
    }

    /// The first pass: names that go.
    fn tell_gone(&mut self, pair: Pair) -> Result<()> {
        let mut walk = Walk::new(self.meta, pair);
        while let Some((directory, (old, new))) = walk.next()? {
            let Some(old) = old else { continue };
            let stays = new.is_some_and(|new| is_same(&old.inode, &new.inode));
            if !stays {
                self.tell(Record::Unlink { parent: directory, name: old.name })?;
            } else if old.inode.attributes.kind == FileKind::Directory {
                walk.enter(old.inode.number, true)?;
            }
        }
        Ok(())
    }

    /// The second pass: names that come, and what has changed.
    fn tell_come(&mut self, pair: Pair) -> Result<()> {
        let mut walk = Walk::new(self.meta, pair);
        while let Some((directory, (old, new))) = walk.next()? {
            let Some(new) = new else { continue };
            let old = old.filter(|old| is_same(&old.inode, &new.inode));
            let (number, kind) = (new.inode.number, new.inode.attributes.kind);
            let is_known = old.is_some();
            if old.is_none_or(|old| {
                (old.inode.attributes, old.inode.root)
                    != (new.inode.attributes.clone(), new.inode.root.clone())
            }) {
                self.upsert(directory, new.name, new.inode)?;
            }
            if kind == FileKind::Directory {
                walk.enter(number, is_known)?;
            }
        }
        Ok(())
    }

    /// Kept versions of the files below a directory.
    fn versions(&mut self, directory: u64) -> Result<()> {
        let mut walk = Walk::new(self.meta, (None, (self.now, directory)));
        while let Some((_, (_, entry))) = walk.next()? {
            let Some(DirEntry { inode, .. }) = entry else { continue };
            match inode.attributes.kind {
                FileKind::Directory => walk.enter(inode.number, false)?,
                FileKind::File => {
                    // They are recorded once for each name of the file; those that are there
                    // already stay.
                    let mut versions = self.meta.versions(inode.number)?;
                    // The file was replaced since: the records behind these make a version of it.
                    if versions.first().is_some_and(|newest| newest.root == inode.root) {
                        versions.remove(0);
                    }
                    for version in versions.into_iter().rev() {
                        let (number, time, mtime, root) =
                            (version.number, version.time, version.mtime, version.root);
                        self.tell(Record::Version { inode: inode.number, number, time, mtime, root })?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Walks a pair of trees, depth first. It has a stack of its own: trees may be deeper than a
/// thread's.
struct Walk<'a> {
    meta: &'a dyn Meta,
    /// The time of each tree; the directories of a level are the same in both.
    before: Option<At>,
    after: At,
    levels: Vec<(u64, Merged<'a>)>,
    above: Ancestors,
}

impl<'a> Walk<'a> {
    fn new(meta: &'a dyn Meta, (before, after): Pair) -> Self {
        let levels = vec![(after.1, Merged::new(before.map(|place| (meta, place)), (meta, after)))];
        Self {
            meta,
            before: before.map(|(at, _)| at),
            after: after.0,
            levels,
            above: Ancestors::new(after.1),
        }
    }

    /// The next names, and the directory they are in.
    fn next(&mut self) -> Result<Option<(u64, Entries)>> {
        while let Some((directory, names)) = self.levels.last_mut() {
            if let Some(entries) = names.next()? {
                return Ok(Some((*directory, entries)));
            }
            self.above.leave(*directory);
            self.levels.pop();
        }
        Ok(None)
    }

    /// Goes on in `directory`. `is_known` says that the tree before has it in the same place.
    fn enter(&mut self, directory: u64, is_known: bool) -> Result<()> {
        self.above.enter(directory)?;
        // Everything below a new directory is new.
        let is_known = is_known && self.levels.last().is_some_and(|(_, names)| names.old.is_some());
        let before = self.before.filter(|_| is_known).map(|at| (at, directory));
        self.levels.push((
            directory,
            Merged::new(before.map(|place| (self.meta, place)), (self.meta, (self.after, directory))),
        ));
        Ok(())
    }
}

fn is_same(old: &Inode, new: &Inode) -> bool {
    old.number == new.number && old.attributes.kind == new.attributes.kind
}
