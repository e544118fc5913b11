//! Puts an archive's entries into the store, as `tar x` would into a directory.
//!
//! This thread reads the archive in one pass. It hands small files to the pipeline whole, and large
//! ones through a bounded channel. So memory stays bounded, whatever the archive claims.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::{Domain, Root};
use outrigger_store::meta::{At, Change, Inode, Meta, ROOT_INODE, SessionKind};
use outrigger_store::policy::{Policies, WritePolicy};
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::text::show;
use outrigger_store::tree::StorePath;
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Progress, Step, Target, WriteOptions, WriteSummary, Writer,
};
use outrigger_store::{Error, ErrorKind, Store};

use super::mirror::Mirror;
use super::{Archive, Entry, Kind, TarError};
use crate::exit::Failure;

/// The result of an import.
pub struct Imported {
    /// What was written.
    pub summary: WriteSummary,
    /// Entries that were stored.
    pub entries: u64,
    /// Why the archive was not read to its end.
    pub broken: Option<TarError>,
}

/// Where the entries of an archive go, and how.
pub struct Import<'a> {
    /// The directory that they go into.
    pub to: &'a StorePath,
    /// Worker threads.
    pub threads: usize,
    /// Counters.
    pub progress: &'a Arc<Progress>,
    /// The snapshot to take before something is removed or replaced.
    pub before: Option<&'a Arc<BeforeSnapshot>>,
    /// Makes the directory have what the archive has, and nothing else.
    pub mirror: Option<Mirror<'a>>,
}

/// Stores entries of an archive: `first`, which the caller has read already, and those after it. So
/// a file that is no archive changes nothing.
///
/// # Errors
/// Failures of the store. An archive that breaks off is no error: the entries before the break are
/// stored.
pub fn import<'a, R: Read>(
    store: &'a Store,
    mut archive: Archive<R>,
    first: Option<Entry>,
    import: Import<'a>,
) -> Result<Imported, Failure> {
    let Import { to, threads, progress, before, mirror } = import;
    let session = store.session(SessionKind::Writer, "import")?;
    if let Some(before) = before {
        session.take_before(before);
        if to.components.is_empty() {
            before.may_destroy();
        }
    }
    let policies = Policies::load(store)?;
    let options = WriteOptions { threads, chunk_max: policies.chunk_max()?, commit: CommitWhen::AsItComes };
    let writer = Writer::start(store, &session, &options, progress);
    let mut importer = Importer {
        meta: &*store.meta,
        policies,
        writer,
        progress,
        before: before.map(|before| &**before),
        dirs: HashMap::new(),
        made: HashMap::new(),
        inodes: 0..0,
        to,
        mirror,
    };
    let mut entries = 0;
    let read = importer.all(&mut archive, first, &mut entries);
    let read = read.and_then(|()| importer.finish_mirror(&mut archive));
    let broken = match read {
        Ok(()) => None,
        Err(Stop::Archive(error)) => Some(error),
        // The pipeline knows better why it stopped than the thread that noticed.
        Err(Stop::Store(error)) => {
            importer.writer.finish()?;
            return Err(error.into());
        }
    };
    let summary = importer.writer.finish()?;
    Ok(Imported { summary, entries, broken })
}

/// Why reading ended before the archive did.
pub(super) enum Stop {
    Archive(TarError),
    Store(Error),
}

impl From<TarError> for Stop {
    fn from(error: TarError) -> Self {
        Self::Archive(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// A directory of the store that entries go into.
#[derive(Clone, Copy)]
pub(super) struct Dir {
    pub inode: u64,
    /// The directory existed before, so it may hold other names.
    pub existed: bool,
    domain: Domain,
    policy: WritePolicy,
}

/// A name in a directory of the store. If that directory was replaced, its inode is no longer
/// reachable.
pub(super) type Place = (u64, Vec<u8>);

pub(super) struct Importer<'a> {
    pub meta: &'a dyn Meta,
    policies: Policies,
    pub writer: Writer,
    pub progress: &'a Progress,
    pub before: Option<&'a BeforeSnapshot>,
    /// Directories that are known: those of the archive, and their parents.
    pub dirs: HashMap<Place, Dir>,
    /// The other names that the archive has, with their inodes, to which hard links refer.
    pub made: HashMap<Place, u64>,
    inodes: std::ops::Range<u64>,
    pub to: &'a StorePath,
    pub mirror: Option<Mirror<'a>>,
}

/// The longest name, as in the kernel: a name of a million slashes would make as many directories.
const PATH_MAX: usize = 4096;
/// The longest file that is handed over whole.
pub(super) const WHOLE_MAX: u64 = 1 << 20;
const INODES_AT_ONCE: u64 = 4096;

impl Importer<'_> {
    fn all<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        first: Option<Entry>,
        entries: &mut u64,
    ) -> Result<(), Stop> {
        // This makes an empty directory for an empty archive.
        self.dir(&self.to.components)?;
        let mut next = first;
        while let Some(mut entry) = next {
            if let Some(mirror) = &mut self.mirror {
                mirror.check.entry(&mut entry)?;
            }
            match self.entry(archive, &entry)? {
                Ok(step) => {
                    *entries += 1;
                    if let Some(step) = step {
                        self.progress.entry(step, || entry.path.clone());
                    }
                    if let Some(why) = entry.left_out {
                        self.progress.skip(show(&entry.path), why);
                    }
                }
                Err(why) => self.progress.skip(shorten(&entry.path), why),
            }
            next = archive.next()?;
        }
        Ok(())
    }

    /// Stores one entry, or says why it is skipped. `None` if a mirror has it already.
    fn entry<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &Entry,
    ) -> Result<Result<Option<Step>, String>, Stop> {
        let path = match self.place(&entry.path) {
            Ok(path) => path,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let kind = match entry.kind {
            Kind::Directory => {
                self.directory(&path, attributes(FileKind::Directory, entry))?;
                return Ok(Ok(Some(Step::Added)));
            }
            Kind::HardLink => {
                return Ok(self.hard_link(&path, &entry.link)?.map(|()| Some(Step::Added)));
            }
            Kind::File => FileKind::File,
            Kind::Symlink if entry.link.len() > PATH_MAX => {
                return Ok(Err(format!("its target is longer than {PATH_MAX} bytes")));
            }
            Kind::Symlink => FileKind::Symlink,
            Kind::Fifo => FileKind::Fifo,
            Kind::CharDevice => FileKind::CharDevice,
            Kind::BlockDevice => FileKind::BlockDevice,
            // A volume's label is no entry.
            Kind::Other(b'V') => return Ok(Ok(None)),
            Kind::Other(letter) => {
                return Ok(Err(format!("an entry of the unknown kind `{}`", letter.escape_ascii())));
            }
        };
        if path.name().is_none() || path == *self.to {
            return Ok(Err("only a directory can become the top".to_string()));
        }
        Ok(Ok(self.plain(archive, &path, attributes(kind, entry), entry.size)?))
    }

    /// Stores one entry that is neither a directory nor a hard link.
    fn plain<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        path: &StorePath,
        attributes: Attributes,
        size: u64,
    ) -> Result<Option<Step>, Stop> {
        let parent = self.dir(above(path))?;
        let attributes = attributes.in_domain(parent.domain);
        let place = (parent.inode, path.name().unwrap_or_default().to_vec());
        let existing = self.existing(&parent, &place)?;
        let extents = archive.extents();
        let is_sparse = extents.iter().any(|extent| extent.hole_before > 0);
        let whole = if attributes.kind == FileKind::File && size <= WHOLE_MAX && !is_sparse {
            Some(read_whole(archive, size)?)
        } else {
            None
        };
        if let Some(inode) = self.unchanged(existing.as_ref(), &place, &attributes, whole.as_deref()) {
            self.dirs.remove(&place);
            self.made.insert(place, inode);
            return Ok(None);
        }
        if existing.is_some() {
            self.before.into_iter().for_each(BeforeSnapshot::destroys);
        }
        // An entry that is no directory takes a directory's name, so everything known below it is
        // gone.
        self.dirs.remove(&place);
        let inode = self.next_inode()?;
        // As `tar x`, this makes a new file. A file with several names does not change under the
        // others.
        let replace =
            existing.as_ref().is_some_and(|existing| existing.links > 1) || self.made.contains_key(&place);
        let step = if existing.is_some() && self.mirror.is_some() { Step::Changed } else { Step::Added };
        self.made.insert(place.clone(), inode);
        let name = place.1;
        if attributes.kind != FileKind::File {
            let (root, parent) = (Root::Empty, parent.inode);
            self.submit(Change::Put { parent, name, inode, attributes, root, stamp: 0, replace })?;
            return Ok(Some(step));
        }
        let to = Target::Put { parent: parent.inode, name, inode, replace };
        let item = |content| Item::File(FileItem::under(to, attributes, content, parent.policy));
        match whole {
            Some(bytes) => self.writer.submit(item(Content::Bytes(bytes)))?,
            None if is_sparse => {
                self.stream(archive, |reader| item(Content::Sparse { reader, extents }))?;
            }
            None => self.stream(archive, |reader| item(Content::Stream(reader)))?,
        }
        Ok(Some(step))
    }

    fn hard_link(&mut self, path: &StorePath, target: &[u8]) -> Result<Result<(), String>, Stop> {
        let target_path = match self.place(target) {
            Ok(target_path) => target_path,
            Err(error) => return Ok(Err(format!("it links to {error}"))),
        };
        let Some(inode) = self.find_made(&target_path) else {
            return Ok(Err(format!(
                "it links to `{}`, which is not in the archive before it",
                shorten(target)
            )));
        };
        let (Some(name), true) = (path.name(), *path != target_path) else { return Ok(Ok(())) };
        let (name, parent) = (name.to_vec(), self.dir(above(path))?);
        if self.domain_of(above(&target_path)) != Some(parent.domain) {
            return Ok(Err(format!("it links to `{}`, whose directory has another key", shorten(target))));
        }
        let place = (parent.inode, name.clone());
        let is_made = self.made.contains_key(&place) || self.dirs.contains_key(&place);
        let existing = self.existing(&parent, &place)?;
        if !is_made && existing.as_ref().is_some_and(|existing| existing.number == inode) {
            self.made.insert(place, inode);
            return Ok(Ok(()));
        }
        if is_made || existing.is_some() {
            let (parent, name) = (parent.inode, name.clone());
            self.before.into_iter().for_each(BeforeSnapshot::destroys);
            self.submit(Change::Remove { parent, name, recursive: true })?;
        }
        self.dirs.remove(&place);
        self.made.insert(place, inode);
        self.submit(Change::Link { parent: parent.inode, name, inode })?;
        Ok(Ok(()))
    }

    /// The domain of a directory that this import has been in.
    fn domain_of(&self, directory: &[Vec<u8>]) -> Option<Domain> {
        let mut at = *self.dirs.get(&(ROOT_INODE, Vec::new()))?;
        for name in directory {
            at = *self.dirs.get(&(at.inode, name.clone()))?;
        }
        Some(at.domain)
    }

    /// The inode that this import made at `path`, if it is no directory.
    fn find_made(&self, path: &StorePath) -> Option<u64> {
        let mut parent = ROOT_INODE;
        for name in above(path) {
            parent = self.dirs.get(&(parent, name.clone()))?.inode;
        }
        self.made.get(&(parent, path.name()?.to_vec())).copied()
    }

    fn directory(&mut self, path: &StorePath, attributes: Attributes) -> Result<(), Stop> {
        let dir = self.dir(&path.components)?;
        let attributes = attributes.in_domain(dir.domain);
        let (parent, name) = match path.name() {
            Some(name) => (self.dir(above(path))?.inode, name.to_vec()),
            None => (ROOT_INODE, Vec::new()),
        };
        let (root, inode) = (Root::Empty, dir.inode);
        if self.mirror.is_some() && dir.existed {
            let existing = self.meta.inode(At::Now, inode)?;
            if existing.is_some_and(|existing| existing.attributes == attributes) {
                return Ok(());
            }
        }
        self.submit(Change::Put { parent, name, inode, attributes, root, stamp: 0, replace: false })
    }

    /// The place of an entry's path, which always lies below the target.
    fn place(&self, path: &[u8]) -> Result<StorePath, Error> {
        if path.len() > PATH_MAX {
            let why = format!("{}: longer than {PATH_MAX} bytes", shorten(path));
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let below = StorePath::parse(path)?;
        Ok(StorePath { components: self.to.components.iter().chain(&below.components).cloned().collect() })
    }

    /// The inode that the store had under this name before the import, if it is still there.
    fn existing(&self, parent: &Dir, place: &Place) -> Result<Option<Inode>, Error> {
        if !parent.existed || self.made.contains_key(place) {
            return Ok(None);
        }
        let existing = self.meta.lookup(At::Now, place.0, &place.1)?;
        if let Some(before) = self.before.filter(|_| existing.is_some()) {
            before.may_destroy();
        }
        Ok(existing)
    }

    /// The directory at `path`. It and its parents are created if they are missing. An entry in
    /// their place that is no directory is replaced.
    fn dir(&mut self, path: &[Vec<u8>]) -> Result<Dir, Stop> {
        let mut dir = self.top()?;
        for name in path {
            let place = (dir.inode, name.clone());
            dir = match self.dirs.get(&place) {
                Some(known) => *known,
                None => self.make_dir(dir, place)?,
            };
        }
        Ok(dir)
    }

    /// The root, under a place that no name can have.
    fn top(&mut self) -> Result<Dir, Error> {
        let place = (ROOT_INODE, Vec::new());
        if let Some(root) = self.dirs.get(&place) {
            return Ok(*root);
        }
        let policy = self.policies.below(self.policies.store_default(), ROOT_INODE)?;
        let root = Dir { inode: ROOT_INODE, existed: true, domain: Domain::COMMON, policy };
        self.dirs.insert(place, root);
        Ok(root)
    }

    fn make_dir(&mut self, parent: Dir, place: Place) -> Result<Dir, Stop> {
        let found = self.existing(&parent, &place)?;
        let is_directory = |inode: &Inode| inode.attributes.kind == FileKind::Directory;
        if found.as_ref().is_some_and(|inode| !is_directory(inode)) {
            self.before.into_iter().for_each(BeforeSnapshot::destroys);
        }
        let dir = match found.filter(is_directory) {
            Some(existing) => {
                let policy = self.policies.below(parent.policy, existing.number)?;
                let domain = existing.attributes.domain();
                Dir { inode: existing.number, existed: true, domain, policy }
            }
            None => {
                let inode = self.next_inode()?;
                let made = outrigger_store::local::put::new_directory();
                let (domain, root) = (parent.domain, Root::Empty);
                let attributes = made.in_domain(domain);
                let (policy, parent, name) = (parent.policy, parent.inode, place.1.clone());
                self.submit(Change::Put { parent, name, inode, attributes, root, stamp: 0, replace: false })?;
                Dir { inode, existed: false, domain, policy }
            }
        };
        self.made.remove(&place);
        self.dirs.insert(place, dir);
        Ok(dir)
    }

    pub(super) fn submit(&mut self, change: Change) -> Result<(), Stop> {
        Ok(self.writer.submit(Item::Change(change))?)
    }

    fn next_inode(&mut self) -> Result<u64, Error> {
        if self.inodes.is_empty() {
            self.inodes = self.meta.reserve_inodes(INODES_AT_ONCE)?;
        }
        let inode = self.inodes.start;
        self.inodes.start += 1;
        Ok(inode)
    }
}

/// A path for messages, or its beginning.
pub(super) fn shorten(path: &[u8]) -> String {
    match path.get(..80) {
        Some(start) if path.len() > PATH_MAX => format!("{}…", show(start)),
        _ => show(path),
    }
}

/// The names above the last name of `path`.
fn above(path: &StorePath) -> &[Vec<u8>] {
    path.components.split_last().map_or(&[], |(_, above)| above)
}

/// The bytes of a small file.
fn read_whole<R: Read>(archive: &mut Archive<R>, size: u64) -> Result<Vec<u8>, Stop> {
    let mut bytes = vec![0; size as usize];
    if archive.read(&mut bytes)? < bytes.len() {
        return Err(TarError::Format("the archive ends early".to_string()).into());
    }
    Ok(bytes)
}

fn attributes(kind: FileKind, entry: &Entry) -> Attributes {
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    Attributes {
        kind,
        mode: if kind == FileKind::Symlink { 0o777 } else { entry.mode },
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.mtime,
        rdev: if is_device { rustix::fs::makedev(entry.device.0, entry.device.1) } else { 0 },
        target: if kind == FileKind::Symlink { entry.link.clone() } else { Vec::new() },
        xattrs: entry.xattrs.clone(),
        times: None,
    }
}
