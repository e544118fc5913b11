//! `undo`: restores names and contents of parts of the tree from a snapshot, without copying data.
//!
//! Both trees are walked side by side. A file that still exists keeps its inode, so its earlier
//! versions stay; a missing one is made again. Hard links among such files are kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;

use super::edit::{EditReport, Editor};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, Change, DirEntry, Inode, Meta, PinTarget, ROOT_INODE};
use crate::snapshot::BeforeSnapshot;
use crate::store::Store;
use crate::tree::{StorePath, find};

/// Restores `paths` from `snapshot`: entries that existed then exist again, others are removed.
///
/// # Errors
/// `NotFound` when there is no such snapshot; those of the store.
pub fn restore(
    store: &Store,
    snapshot: &str,
    paths: &[StorePath],
    before: Option<&Arc<BeforeSnapshot>>,
) -> Result<EditReport> {
    let editor = Editor::open(store, "undo", before)?;
    if let Some(before) = before {
        before.destroys();
    }
    // The pin keeps the contents from being reclaimed before they are committed.
    let (epoch, _) = editor.session.pin(&PinTarget::Snapshot(snapshot.to_string()))?;
    let mut restorer = Restorer {
        meta: &*store.meta,
        then: At::Epoch(epoch),
        editor,
        inodes: 0..0,
        made: HashMap::new(),
        report: EditReport::default(),
    };
    let done = paths.iter().try_for_each(|path| restorer.path(path));
    let report = done.map(|()| restorer.report);
    restorer.editor.finish(report)
}

struct Restorer<'a> {
    meta: &'a dyn Meta,
    then: At,
    editor: Editor,
    inodes: std::ops::Range<u64>,
    /// Inode in the snapshot → the one that was made for it, for files with several names.
    made: HashMap<u64, u64>,
    report: EditReport,
}

const INODES_AT_ONCE: u64 = 1024;
const PAGE: usize = 4096;

/// Two directories to compare: the one of the snapshot, and where it is now. `fresh`: it was just
/// made, and is empty.
struct Pair {
    then: u64,
    now: u64,
    fresh: bool,
}

/// True if an entry can become another one by taking over its attributes and contents.
fn is_alike(now: &Inode, then: &Inode) -> bool {
    let kind = |inode: &Inode| (inode.attributes.kind, inode.attributes.domain());
    kind(now) == kind(then)
}

impl Restorer<'_> {
    fn path(&mut self, path: &StorePath) -> Result<()> {
        if path.components.is_empty() {
            self.attributes_of_root()?;
            return self.below(Pair { then: ROOT_INODE, now: ROOT_INODE, fresh: false });
        }
        let name = path.name().expect("not the root");
        let Some((parent, fresh)) = self.parent(&path.parent())? else { return Ok(()) };
        let then = find(self.meta, self.then, path)?;
        let now = if fresh { None } else { self.meta.lookup(At::Now, parent, name)? };
        let pairs = self.entry(parent, name, then, now)?;
        pairs.map_or(Ok(()), |pair| self.below(pair))
    }

    /// The directory of a path, made again with all missing ancestors; `None` when it was not in
    /// the snapshot either.
    fn parent(&mut self, path: &StorePath) -> Result<Option<(u64, bool)>> {
        let (mut parent, mut fresh, mut then) = (ROOT_INODE, false, ROOT_INODE);
        for name in &path.components {
            let now = if fresh { None } else { self.meta.lookup(At::Now, parent, name)? };
            let was = match then {
                0 => None,
                then => self.meta.lookup(self.then, then, name)?,
            };
            then = was.as_ref().map_or(0, |was| was.number);
            match (was, now) {
                // One with another key is in the way.
                (was, Some(now))
                    if now.attributes.kind == FileKind::Directory
                        && was.as_ref().is_none_or(|was| is_alike(&now, was)) =>
                {
                    parent = now.number;
                }
                (Some(was), now) if was.attributes.kind == FileKind::Directory => {
                    parent = self.put(parent, name, &was, now.as_ref())?;
                    fresh = true;
                }
                _ => return Ok(None),
            }
        }
        Ok(Some((parent, fresh)))
    }

    fn attributes_of_root(&mut self) -> Result<()> {
        let (then, now) = (self.meta.inode(self.then, ROOT_INODE)?, self.meta.inode(At::Now, ROOT_INODE)?);
        match (then, now) {
            (Some(then), Some(now)) if then.attributes != now.attributes => self.editor.change(Change::Put {
                parent: ROOT_INODE,
                name: Vec::new(),
                inode: ROOT_INODE,
                attributes: then.attributes,
                root: Root::Empty,
                stamp: 0,
                replace: false,
            }),
            _ => Ok(()),
        }
    }

    /// Restores one name; returns the directories to go on with.
    fn entry(
        &mut self,
        parent: u64,
        name: &[u8],
        then: Option<Inode>,
        now: Option<Inode>,
    ) -> Result<Option<Pair>> {
        let Some(then) = then else {
            if now.is_some() {
                self.report.entries += 1;
                self.editor.change(Change::Remove { parent, name: name.to_vec(), recursive: true })?;
            }
            return Ok(None);
        };
        let is_directory = |inode: &Inode| inode.attributes.kind == FileKind::Directory;
        let kept = now.as_ref().filter(|now| is_alike(now, &then));
        let same = kept.is_some_and(|now| {
            now.attributes == then.attributes && (is_directory(now) || now.root == then.root)
                // One of several names may have become a file of its own, or the other way round.
                && (is_directory(now) || (now.links == 1 && then.links == 1) || now.number == then.number)
        });
        let number = match kept.filter(|_| same) {
            Some(now) => now.number,
            None => self.put(parent, name, &then, now.as_ref())?,
        };
        let fresh = kept.is_none();
        Ok(is_directory(&then).then_some(Pair { then: then.number, now: number, fresh }))
    }

    fn put(&mut self, parent: u64, name: &[u8], then: &Inode, now: Option<&Inode>) -> Result<u64> {
        self.report.entries += 1;
        self.report.bytes += then.root.len();
        let is_directory = then.attributes.kind == FileKind::Directory;
        let alone = |inode: &Inode| inode.links == 1 || is_directory;
        let kept = now.filter(|now| is_alike(now, then));
        let inode = match kept {
            Some(now) if is_directory || now.number == then.number => now.number,
            Some(now) if alone(now) && alone(then) => now.number,
            _ => match self.made.get(&then.number).filter(|_| !alone(then)) {
                Some(&made) => made,
                None if !alone(then) && self.is_file_now(then.number)? => then.number,
                None => self.next_inode()?,
            },
        };
        if !alone(then) {
            self.made.insert(then.number, inode);
        }
        let root = if then.attributes.kind == FileKind::File { then.root.clone() } else { Root::Empty };
        self.editor.change(Change::Put {
            parent,
            name: name.to_vec(),
            inode,
            attributes: then.attributes.clone(),
            root,
            stamp: 0,
            replace: now.is_some_and(|now| now.number != inode),
        })?;
        Ok(inode)
    }

    /// Another name of the file is left, which the name that comes back is to share.
    fn is_file_now(&self, number: u64) -> Result<bool> {
        let now = self.meta.inode(At::Now, number)?;
        Ok(now.is_some_and(|now| now.attributes.kind != FileKind::Directory))
    }

    /// Restores directories, with all below them.
    fn below(&mut self, top: Pair) -> Result<()> {
        let mut pairs = vec![top];
        while let Some(pair) = pairs.pop() {
            let mut now = if pair.fresh { BTreeMap::new() } else { self.list(At::Now, pair.now)? };
            for (name, then) in self.list(self.then, pair.then)? {
                let there = now.remove(&name);
                pairs.extend(self.entry(pair.now, &name, Some(then), there)?);
            }
            for (name, gone) in now {
                self.entry(pair.now, &name, None, Some(gone))?;
            }
        }
        Ok(())
    }

    fn list(&self, at: At, directory: u64) -> Result<BTreeMap<Vec<u8>, Inode>> {
        let (mut all, mut after) = (BTreeMap::new(), None::<Vec<u8>>);
        loop {
            let page = self.meta.read_dir(at, directory, after.as_deref(), PAGE)?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|entry| entry.name.clone());
            all.extend(page.into_iter().map(|DirEntry { name, inode }| (name, inode)));
            if is_last {
                return Ok(all);
            }
        }
    }

    fn next_inode(&mut self) -> Result<u64> {
        if self.inodes.is_empty() {
            self.inodes = self.meta.reserve_inodes(INODES_AT_ONCE)?;
        }
        self.inodes.next().ok_or_else(|| Error::new(ErrorKind::Full, "no inode numbers are left"))
    }
}
