//! Changes of the tree that carry no data: remove, move, copy.
//!
//! They go through the [`Writer`] like everything else, so that the catalogue has them and they are
//! committed in order.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Domain, Root};

use crate::error::{Error, ErrorKind, Result};
use crate::local::put::made_now;
use crate::meta::{At, Change, Inode, Meta, PinTarget, ROOT_INODE, SessionKind};
use crate::session::Session;
use crate::snapshot::BeforeSnapshot;
use crate::snapshot::facts::Counts;
use crate::store::Store;
use crate::tree::{StorePath, find, listing, require};
use crate::write::{CommitWhen, Item, Progress, WriteOptions, WriteSummary, Writer};

/// The counts of an edit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EditReport {
    /// Entries that were named, or copied.
    pub entries: u64,
    /// Removed directories, including those inside others.
    pub directories: u64,
    /// Other removed entries.
    pub files: u64,
    /// Sum of the lengths of copied files, bytes; no data was copied.
    pub bytes: u64,
    /// What was committed.
    pub counts: Counts,
}

/// A session with a writer for changes only.
pub(super) struct Editor {
    pub session: Arc<Session>,
    writer: Writer,
}

impl Editor {
    pub fn open(store: &Store, what: &str, before: Option<&Arc<BeforeSnapshot>>) -> Result<Self> {
        let session = store.session(SessionKind::Writer, what)?;
        if let Some(before) = before {
            session.take_before(before);
        }
        let options = WriteOptions {
            threads: 1,
            chunk_max: store.config.chunker.max_len(),
            commit: CommitWhen::AsItComes,
        };
        let writer = Writer::start(store, &session, &options, &Arc::new(Progress::default()));
        Ok(Self { session, writer })
    }

    pub fn change(&mut self, change: Change) -> Result<()> {
        self.writer.submit(Item::Change(change))
    }

    /// Commits; when submitting failed the committer knows why.
    pub fn finish(self, submitted: Result<EditReport>) -> Result<EditReport> {
        match self.writer.finish() {
            Ok(WriteSummary { totals, .. }) => {
                submitted.map(|report| EditReport { counts: totals.into(), ..report })
            }
            Err(error) => match submitted {
                Err(refused) if refused.kind() != ErrorKind::Cancelled => Err(refused),
                _ => Err(error),
            },
        }
    }
}

pub(super) fn not_the_root(path: &StorePath) -> Result<(StorePath, Vec<u8>)> {
    let name = path
        .name()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "the root itself cannot be removed or moved"))?;
    Ok((path.parent(), name.to_vec()))
}

pub(super) fn require_directory(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Inode> {
    let inode = require(meta, at, path)?;
    if inode.attributes.kind != FileKind::Directory {
        return Err(Error::new(ErrorKind::Invalid, format!("`{path}` is not a directory")));
    }
    Ok(inode)
}

/// Makes a directory, and those above it that are missing; false if it was there.
///
/// # Errors
/// `Exists` where something else has one of the names; those of the store.
pub fn make_directories(store: &Store, path: &StorePath) -> Result<bool> {
    let (meta, mut editor) = (&*store.meta, None);
    let (mut parent, mut at, mut domain) = (ROOT_INODE, StorePath::default(), Domain::COMMON);
    for name in &path.components {
        at = at.join(name);
        let existing = if editor.is_none() { meta.lookup(At::Now, parent, name)? } else { None };
        if let Some(existing) = existing {
            if existing.attributes.kind != FileKind::Directory {
                return Err(Error::new(ErrorKind::Exists, format!("`{at}` is not a directory")));
            }
            (parent, domain) = (existing.number, existing.attributes.domain());
            continue;
        }
        let inode = meta.reserve_inodes(1)?.start;
        let editor = match &mut editor {
            Some(editor) => editor,
            missing => missing.insert(Editor::open(store, "mkdir", None)?),
        };
        editor.change(Change::Put {
            parent,
            name: name.clone(),
            inode,
            attributes: made_now(FileKind::Directory, 0o755).in_domain(domain),
            root: Root::Empty,
            stamp: 0,
            replace: false,
        })?;
        parent = inode;
    }
    let Some(editor) = editor else { return Ok(false) };
    editor.finish(Ok(EditReport::default()))?;
    Ok(true)
}

/// Fails if an entry would come into a directory whose contents have another key. A directory keeps
/// its key where there is none.
fn require_one_key(path: &StorePath, entry: &Inode, directory: &Inode) -> Result<()> {
    let (own, there) = (entry.attributes.domain(), directory.attributes.domain());
    let keeps = entry.attributes.kind == FileKind::Directory && there == Domain::COMMON;
    if own == there || keeps {
        return Ok(());
    }
    let why = format!(
        "`{path}` has another key than the directory that it would come into: copy its contents by reading them, with `cp` in a mount or with `outrigger cat` and `outrigger put -`"
    );
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Removes `paths`; directories only when `recursive`. All of it or nothing, for up to some ten
/// thousand names.
///
/// # Errors
/// `NotFound`, `Invalid` for the root and for directories without `recursive`.
pub fn remove(
    store: &Store,
    paths: &[StorePath],
    recursive: bool,
    before: Option<&Arc<BeforeSnapshot>>,
) -> Result<EditReport> {
    let meta = &*store.meta;
    let (mut changes, mut files, mut directories) = (Vec::new(), 0, 0);
    let mut count = |inode: &Inode| match inode.attributes.kind {
        FileKind::Directory => directories += 1,
        _ => files += 1,
    };
    for (at, path) in paths.iter().enumerate() {
        let (parent, name) = not_the_root(path)?;
        let inode = require(meta, At::Now, path)?;
        if inode.attributes.kind == FileKind::Directory && !recursive {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("`{path}` is a directory; use -r to remove it with all in it"),
            ));
        }
        let parent = require_directory(meta, At::Now, &parent)?.number;
        // An entry that is named twice, or lies below another one, is removed once.
        let goes = paths.iter().enumerate().any(|(other, above)| {
            path.components.starts_with(&above.components) && (path != above || other < at)
        });
        if goes {
            continue;
        }
        count(&inode);
        if inode.attributes.kind == FileKind::Directory {
            listing::walk::<Error>(meta, At::Now, inode.number, true, &mut |_, entry| {
                count(&entry.inode);
                Ok(())
            })?;
        }
        changes.push(Change::Remove { parent, name, recursive });
    }
    if let Some(before) = before {
        before.destroys();
    }
    let report = commit(store, "rm", changes, before)?;
    Ok(EditReport { files, directories, ..report })
}

/// Moves each of `from` to `to`, or into it when it is a directory.
///
/// # Errors
/// `NotFound`, `Exists` for a directory in the way that is not empty, `Invalid`.
pub fn rename(
    store: &Store,
    from: &[StorePath],
    to: &StorePath,
    before: Option<&Arc<BeforeSnapshot>>,
) -> Result<EditReport> {
    let meta = &*store.meta;
    let mut changes = Vec::new();
    for (path, target) in targets(meta, from, to)? {
        let (parent, name) = not_the_root(&path)?;
        let moved = require(meta, At::Now, &path)?;
        let (new_parent, new_name) = not_the_root(&target)?;
        if target.components.starts_with(&path.components) && target != path {
            return Err(Error::new(ErrorKind::Invalid, format!("`{path}` cannot be moved into itself")));
        }
        let parent = require_directory(meta, At::Now, &parent)?.number;
        let new_parent = require_directory(meta, At::Now, &new_parent)?;
        require_one_key(&path, &moved, &new_parent)?;
        let new_parent = new_parent.number;
        if let Some(before) = before
            && meta.lookup(At::Now, new_parent, &new_name)?.is_some()
        {
            before.destroys();
        }
        changes.push(Change::Rename { parent, name, new_parent, new_name });
    }
    commit(store, "mv", changes, before)
}

pub(super) fn commit(
    store: &Store,
    what: &str,
    changes: Vec<Change>,
    before: Option<&Arc<BeforeSnapshot>>,
) -> Result<EditReport> {
    let report = EditReport { entries: changes.len() as u64, ..EditReport::default() };
    let mut editor = Editor::open(store, what, before)?;
    let submitted = changes.into_iter().try_for_each(|change| editor.change(change)).map(|()| report);
    editor.finish(submitted)
}

/// Where each source goes: to `to`, or below it when that is a directory (it must be one for
/// several sources).
///
/// # Errors
/// `Invalid`.
pub fn targets(meta: &dyn Meta, from: &[StorePath], to: &StorePath) -> Result<Vec<(StorePath, StorePath)>> {
    let existing = find(meta, At::Now, to)?;
    let into = existing.is_some_and(|inode| inode.attributes.kind == FileKind::Directory);
    if from.len() > 1 && !into {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("`{to}` is not a directory, and there are several sources"),
        ));
    }
    let target = |path: &StorePath| match path.name() {
        Some(name) if into => Ok(to.join(name)),
        None if into => Err(Error::new(
            ErrorKind::Invalid,
            format!("the root needs a new name: give one that is not there, as {to}/NAME"),
        )),
        _ => Ok(to.clone()),
    };
    from.iter().map(|path| Ok((path.clone(), target(path)?))).collect()
}

/// Copies each of `from` to `to`, or into it when it is a directory; no data is copied. The sources
/// are read from snapshot `snapshot`, or from the tree as it was before the copy, so a directory
/// may be copied into itself. Hard links among the copies stay.
///
/// # Errors
/// `NotFound`, `Invalid` for directories without `recursive`.
pub fn copy(
    store: &Store,
    snapshot: Option<&str>,
    from: &[StorePath],
    to: &StorePath,
    recursive: bool,
    before: Option<&Arc<BeforeSnapshot>>,
) -> Result<EditReport> {
    let editor = Editor::open(store, "cp", before)?;
    // The pin keeps every root that is copied from being reclaimed before its copy is committed.
    let target = snapshot.map_or(PinTarget::Now, |name| PinTarget::Snapshot(name.to_string()));
    let (epoch, _) = editor.session.pin(&target)?;
    let mut copier = Copier {
        store,
        at: At::Epoch(epoch),
        editor,
        before,
        inodes: 0..0,
        copies: HashMap::new(),
        report: EditReport::default(),
    };
    let copied = copier.all(from, to, recursive);
    let report = copied.map(|()| copier.report);
    copier.editor.finish(report)
}

struct Copier<'a> {
    store: &'a Store,
    at: At,
    editor: Editor,
    before: Option<&'a Arc<BeforeSnapshot>>,
    inodes: std::ops::Range<u64>,
    /// Inode → its copy, for directories and files with several names.
    copies: HashMap<u64, u64>,
    report: EditReport,
}

const INODES_AT_ONCE: u64 = 1024;

impl Copier<'_> {
    fn all(&mut self, from: &[StorePath], to: &StorePath, recursive: bool) -> Result<()> {
        let meta = &*self.store.meta;
        // All are checked before the first is submitted.
        let mut planned = Vec::new();
        for (path, target) in targets(meta, from, to)? {
            let inode = require(meta, self.at, &path)?;
            if inode.attributes.kind == FileKind::Directory && !recursive {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("`{path}` is a directory; use -r to copy it with all in it"),
                ));
            }
            if target == path && self.at_is_now(path.components.is_empty(), &inode)? {
                return Err(Error::new(ErrorKind::Invalid, format!("`{path}` and its copy are the same")));
            }
            let (parent, name) = not_the_root(&target)?;
            let parent = require_directory(meta, At::Now, &parent)?;
            require_one_key(&path, &inode, &parent)?;
            let parent = parent.number;
            if let Some(before) = self.before
                && meta.lookup(At::Now, parent, &name)?.is_some()
            {
                before.destroys();
            }
            planned.push((inode, parent, name));
        }
        for (inode, parent, name) in planned {
            self.copies.clear();
            let (top, is_dir) = (inode.number, inode.attributes.kind == FileKind::Directory);
            let copy = self.one(parent, name, inode)?;
            if is_dir {
                self.below(top, copy)?;
            }
        }
        Ok(())
    }

    fn at_is_now(&self, is_root: bool, inode: &Inode) -> Result<bool> {
        let now = self.store.meta.inode(At::Now, if is_root { ROOT_INODE } else { inode.number })?;
        Ok(now.is_some_and(|now| now.root == inode.root))
    }

    fn below(&mut self, top: u64, copy: u64) -> Result<()> {
        let (store, at) = (self.store, self.at);
        // Copies of the directories on the way to where the walk is: (length of the path, copy).
        let mut parents = vec![(0, copy)];
        listing::walk(&*store.meta, at, top, true, &mut |path, entry| {
            let prefix = path.len() - entry.name.len();
            while parents.last().is_some_and(|(len, _)| *len > prefix) {
                parents.pop();
            }
            let parent = parents.last().map_or(copy, |(_, copy)| *copy);
            let made = self.one(parent, entry.name.clone(), entry.inode.clone())?;
            if entry.inode.attributes.kind == FileKind::Directory {
                parents.push((path.len() + 1, made));
            }
            Ok(())
        })
    }

    fn one(&mut self, parent: u64, name: Vec<u8>, source: Inode) -> Result<u64> {
        self.report.entries += 1;
        let Inode { number, attributes, root, links, .. } = source;
        let linked = links > 1 && attributes.kind != FileKind::Directory;
        let inode = match self.copies.get(&number).filter(|_| linked) {
            Some(&copy) => copy,
            None => self.next_inode()?,
        };
        if linked {
            self.copies.insert(number, inode);
        }
        self.report.bytes += root.len();
        let root = if attributes.kind == FileKind::File { root } else { Root::Empty };
        self.editor.change(Change::Put {
            parent,
            name,
            inode,
            attributes,
            root,
            stamp: 0,
            replace: false,
        })?;
        Ok(inode)
    }

    fn next_inode(&mut self) -> Result<u64> {
        if self.inodes.is_empty() {
            self.inodes = self.store.meta.reserve_inodes(INODES_AT_ONCE)?;
        }
        let inode = self.inodes.start;
        self.inodes.start += 1;
        Ok(inode)
    }
}
