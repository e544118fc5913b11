//! `put`: compares a tree of this machine with what the store has of it, and submits the difference.
//!
//! One thread walks, in bytewise order of names, and merges each directory with the store's listing of it: what has not
//! changed is not even opened, what the source no longer has is removed. Reading, cutting and all the rest is the pipeline's.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use globset::GlobSet;
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use rustix::fs::Stat;

use super::walk::{list, open_dir, proc_path, stat};
use super::{kind_of, path_xattrs, source_stat, xattrs};
use crate::clock;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, Change, DirEntry, Inode, Meta, ROOT_INODE, SessionKind};
use crate::store::Store;
use crate::tree::{Policies, StorePath, WritePolicy};
use crate::write::{Content, FileItem, Item, Progress, SourceFile, WriteOptions, WriteSummary, Writer};

/// What to do besides storing.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Entries to leave out (and untouched in the store): matched against names, and paths relative to the source.
    pub exclude: GlobSet,
    /// Read every file, even if it seems unchanged.
    pub rescan: bool,
    /// Leave entries in the store that the source does not have.
    pub keep_missing: bool,
    /// Do not enter other file systems.
    pub one_file_system: bool,
}

/// One thing to put.
pub enum Source {
    /// A file or directory of this machine.
    Path(PathBuf),
    /// A stream, such as standard input.
    Stream(Box<dyn Read + Send>),
}

/// What a put saw besides what [`crate::write::WriteSummary`] counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutSummary {
    /// Entries removed because the source no longer has them.
    pub removed: u64,
    /// Directories seen.
    pub directories: u64,
    /// Entries seen that are neither files nor directories.
    pub others: u64,
}

/// Walks sources into a [`Writer`].
pub struct Putter<'a> {
    store: &'a Store,
    meta: &'a dyn Meta,
    writer: &'a mut Writer,
    progress: &'a Progress,
    options: &'a PutOptions,
    policies: Policies,
    scan_start: Time,
    inodes: std::ops::Range<u64>,
    /// Source (device, inode) of a file with several names → its inode in the store.
    links: HashMap<(u64, u64), u64>,
    /// Inode in the store that has several names → the source file it was matched with.
    claimed: HashMap<u64, (u64, u64)>,
    /// The store's own directory, which is never put into itself.
    own: Option<(u64, u64)>,
    summary: PutSummary,
}

/// A directory being walked.
struct Level {
    dir: Arc<OwnedFd>,
    display: PathBuf,
    relative: Vec<u8>,
    inode: u64,
    device: u64,
    policy: WritePolicy,
    found: std::vec::IntoIter<Box<[u8]>>,
    existing: Existing,
}

/// A directory's entries in the store, in order, a page at a time: a directory may have a million. What this put itself
/// commits meanwhile lies behind the page's end only if it was there before.
#[derive(Default)]
struct Existing {
    page: std::collections::VecDeque<DirEntry>,
    /// The directory, while there may be more pages.
    more: Option<u64>,
    after: Option<Vec<u8>>,
}

const PAGE: usize = 4096;

impl Existing {
    fn of(inode: u64) -> Self {
        Self { more: Some(inode), ..Self::default() }
    }

    fn next_if(&mut self, meta: &dyn Meta, wanted: impl Fn(&[u8]) -> bool) -> Result<Option<DirEntry>> {
        if self.page.is_empty()
            && let Some(inode) = self.more
        {
            self.page = meta.read_dir(At::Now, inode, self.after.as_deref(), PAGE)?.into();
            self.after = self.page.back().map(|entry| entry.name.clone());
            self.more = (self.page.len() == PAGE).then_some(inode);
        }
        Ok(if self.page.front().is_some_and(|entry| wanted(&entry.name)) {
            self.page.pop_front()
        } else {
            None
        })
    }
}

const INODES_AT_ONCE: u64 = 8192;

impl<'a> Putter<'a> {
    /// A walker into `writer`.
    ///
    /// # Errors
    /// When policies cannot be read.
    pub fn new(
        store: &'a Store,
        policies: Policies,
        writer: &'a mut Writer,
        progress: &'a Progress,
        options: &'a PutOptions,
    ) -> Result<Self> {
        let own = rustix::fs::stat(store.dir()).ok().map(|stat| (stat.st_dev, stat.st_ino));
        Ok(Self {
            store,
            meta: &*store.meta,
            writer,
            progress,
            options,
            policies,
            scan_start: clock::now_coarse(),
            inodes: 0..0,
            links: HashMap::new(),
            claimed: HashMap::new(),
            own,
            summary: PutSummary::default(),
        })
    }

    /// What was seen.
    pub fn summary(&self) -> PutSummary {
        self.summary
    }

    fn next_inode(&mut self) -> Result<u64> {
        if self.inodes.is_empty() {
            self.inodes = self.meta.reserve_inodes(INODES_AT_ONCE)?;
        }
        let inode = self.inodes.start;
        self.inodes.start += 1;
        Ok(inode)
    }

    /// Puts `source` at `target`: a directory's contents become those of `target`, a file becomes `target` itself.
    ///
    /// # Errors
    /// `Invalid` when the target cannot hold it, and failures of the store; what cannot be read is skipped and reported.
    pub fn put(&mut self, source: Source, target: &StorePath) -> Result<()> {
        let path = match source {
            Source::Stream(reader) => return self.put_stream(reader, target),
            Source::Path(path) => path,
        };
        let at = || format!("cannot read {}", path.display());
        let stat = rustix::fs::lstat(&path).context(at)?;
        // A symlink named by the user to a directory means that directory, as for `cp -r dir/`.
        let stat = if kind_of(stat.st_mode) == Some(FileKind::Symlink) && target_is_followed(&path) {
            rustix::fs::stat(&path).context(at)?
        } else {
            stat
        };
        let policy = self.policies.at(self.meta, &target.parent())?;
        if kind_of(stat.st_mode) == Some(FileKind::Directory) {
            let dir = open_source_dir(&path).context(at)?;
            let (inode, existed) = self.make_target_dir(target, Some((&dir, &stat)))?;
            let policy = self.policies.below(policy, inode)?;
            return self.walk(dir, path, inode, existed, policy);
        }
        let (Some(name), Some(file_name)) = (target.name(), path.file_name()) else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a file cannot become the root; give it a name with --to",
            ));
        };
        let (parent, existed) = self.make_target_dir(&target.parent(), None)?;
        let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let level = Level {
            dir: open_source_dir(dir).context(at)?,
            display: dir.to_path_buf(),
            relative: Vec::new(),
            inode: parent,
            device: stat.st_dev,
            policy,
            found: Vec::new().into_iter(),
            existing: Existing::default(),
        };
        self.put_entry(&level, file_name.as_bytes(), name, &stat, existing.as_ref())
    }

    fn put_stream(&mut self, reader: Box<dyn Read + Send>, target: &StorePath) -> Result<()> {
        let Some(name) = target.name() else {
            return Err(Error::new(ErrorKind::Invalid, "standard input needs a name: give one with --to"));
        };
        let policy = self.policies.at(self.meta, &target.parent())?;
        let (parent, existed) = self.make_target_dir(&target.parent(), None)?;
        let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
        let inode = match &existing {
            Some(existing) if existing.attributes.kind == FileKind::File => existing.number,
            _ => self.next_inode()?,
        };
        let nanos = clock::now_nanos();
        let mtime = Time { secs: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as u32 };
        let attributes = Attributes {
            kind: FileKind::File,
            mode: 0o644,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime,
            rdev: 0,
            target: Vec::new(),
            xattrs: Vec::new(),
        };
        self.writer.submit(Item::File(FileItem {
            parent,
            name: name.to_vec(),
            inode,
            replace: false,
            attributes,
            content: Content::Stream(reader),
            chunker: policy.chunker,
            codec: policy.codec,
            dedup: policy.dedup,
        }))
    }

    /// The directory at `target`, made if it is not there, with the attributes of a source directory if one is given.
    /// Also says whether it was there.
    fn make_target_dir(
        &mut self,
        target: &StorePath,
        like: Option<(&OwnedFd, &Stat)>,
    ) -> Result<(u64, bool)> {
        let (mut parent, mut existed) = (ROOT_INODE, true);
        let last = target.components.len().wrapping_sub(1);
        for (depth, name) in target.components.iter().enumerate() {
            let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
            let like = like.filter(|_| depth == last);
            let attributes = match (like, &existing) {
                (Some((dir, stat)), _) => {
                    Some(directory_attributes(dir, stat).context(|| "extended attributes".into())?)
                }
                (None, Some(existing)) if existing.attributes.kind == FileKind::Directory => None,
                (None, Some(_)) => {
                    let why = format!("`{}` in the store is not a directory", crate::tree::show(name));
                    return Err(Error::new(ErrorKind::Invalid, why));
                }
                (None, None) => Some(new_directory()),
            };
            let kept = existing.filter(|existing| existing.attributes.kind == FileKind::Directory);
            let inode = match &kept {
                Some(kept) => kept.number,
                None => self.next_inode()?,
            };
            if let Some(attributes) = attributes
                && kept.as_ref().is_none_or(|kept| kept.attributes != attributes)
            {
                self.submit_plain(parent, name, inode, attributes, false)?;
            }
            existed = kept.is_some();
            parent = inode;
        }
        Ok((parent, existed))
    }

    fn submit_plain(
        &mut self,
        parent: u64,
        name: &[u8],
        inode: u64,
        attributes: Attributes,
        replace: bool,
    ) -> Result<()> {
        let (name, root) = (name.to_vec(), Root::Empty);
        self.writer.submit(Item::Change(Change::Put {
            parent,
            name,
            inode,
            attributes,
            root,
            stamp: 0,
            replace,
        }))
    }

    fn walk(
        &mut self,
        dir: Arc<OwnedFd>,
        display: PathBuf,
        inode: u64,
        existed: bool,
        policy: WritePolicy,
    ) -> Result<()> {
        let device = rustix::fs::fstat(&dir).map_or(0, |stat| stat.st_dev);
        let Some(top) = self.enter(dir, display, Vec::new(), inode, device, existed, policy)? else {
            return Ok(());
        };
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.found.next() else {
                let level = levels.pop().expect("just seen");
                self.remove_rest(level)?;
                continue;
            };
            // What sorts before this entry in the store is not in the source any more.
            while let Some(gone) = level.existing.next_if(self.meta, |existing| existing < &*name)? {
                let (parent, relative) = (level.inode, join(&level.relative, &gone.name));
                self.remove(parent, &gone.name, &relative)?;
            }
            let existing = level.existing.next_if(self.meta, |existing| existing == &*name)?;
            let existing = existing.map(|entry| entry.inode);
            let stat = match stat(&level.dir, &name) {
                Ok(Some(stat)) => stat,
                // It vanished since it was listed; the next put removes it from the store.
                Ok(None) => continue,
                Err(errno) => {
                    self.progress.skip(display_of(level, &name).display().to_string(), errno.to_string());
                    continue;
                }
            };
            if self.is_left_out(level, &name, &stat) {
                continue;
            }
            if kind_of(stat.st_mode) == Some(FileKind::Directory) {
                let level = levels.last().expect("still there");
                if let Some(below) = self.descend(level, &name, &stat, existing)? {
                    levels.push(below);
                }
            } else {
                let level = levels.pop().expect("still there");
                let put = self.put_entry(&level, &name, &name, &stat, existing.as_ref());
                levels.push(level);
                put?;
            }
        }
        Ok(())
    }

    fn is_left_out(&self, level: &Level, name: &[u8], stat: &Stat) -> bool {
        let excluded = |bytes: &[u8]| self.options.exclude.is_match(Path::new(OsStr::from_bytes(bytes)));
        let is_own = self.own == Some((stat.st_dev, stat.st_ino));
        let foreign = self.options.one_file_system && stat.st_dev != level.device;
        is_own
            || foreign
            || (!self.options.exclude.is_empty()
                && (excluded(name) || excluded(&join(&level.relative, name))))
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of the level it makes")]
    fn enter(
        &mut self,
        dir: Arc<OwnedFd>,
        display: PathBuf,
        relative: Vec<u8>,
        inode: u64,
        device: u64,
        existed: bool,
        policy: WritePolicy,
    ) -> Result<Option<Level>> {
        self.summary.directories += 1;
        let found = match list(&dir) {
            Ok(found) => found.into_iter(),
            Err(errno) => {
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(None);
            }
        };
        let existing = if existed { Existing::of(inode) } else { Existing::default() };
        Ok(Some(Level { dir, display, relative, inode, device, policy, found, existing }))
    }

    fn descend(
        &mut self,
        level: &Level,
        name: &[u8],
        stat: &Stat,
        existing: Option<Inode>,
    ) -> Result<Option<Level>> {
        let display = display_of(level, name);
        let opened = open_dir(&level.dir, name)
            .and_then(|dir| directory_attributes(&dir, stat).map(|attributes| (dir, attributes)));
        let (dir, attributes) = match opened {
            Ok(opened) => opened,
            Err(errno) => {
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(None);
            }
        };
        let kept = existing.filter(|existing| existing.attributes.kind == FileKind::Directory);
        let inode = match &kept {
            Some(kept) => kept.number,
            None => self.next_inode()?,
        };
        if kept.as_ref().is_none_or(|kept| kept.attributes != attributes) {
            self.submit_plain(level.inode, name, inode, attributes, false)?;
        }
        let policy = self.policies.below(level.policy, inode)?;
        self.enter(dir, display, join(&level.relative, name), inode, level.device, kept.is_some(), policy)
    }

    /// Puts something that is not a directory.
    fn put_entry(
        &mut self,
        level: &Level,
        source_name: &[u8],
        name: &[u8],
        stat: &Stat,
        existing: Option<&Inode>,
    ) -> Result<()> {
        let Some(kind) = kind_of(stat.st_mode) else {
            self.progress.skip(
                display_of(level, source_name).display().to_string(),
                "a kind of file that is not known",
            );
            return Ok(());
        };
        let source = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(&inode) = self.links.get(&source)
        {
            return self.put_link(level.inode, name, inode, existing);
        }
        let existing = existing.filter(|existing| existing.attributes.kind != FileKind::Directory);
        // An inode of the store with several names goes on being one only for the names that the source links too.
        let torn = existing.is_some_and(|existing| {
            existing.links > 1 && *self.claimed.entry(existing.number).or_insert(source) != source
        }) || existing.is_some_and(|existing| existing.links > 1 && stat.st_nlink == 1);
        let inode = match existing {
            Some(existing) if !torn && existing.attributes.kind == kind => existing.number,
            _ => self.next_inode()?,
        };
        if stat.st_nlink > 1 {
            self.links.insert(source, inode);
        }
        let source_stat = source_stat(stat);
        if kind == FileKind::File {
            self.progress.bytes_expected.fetch_add(source_stat.size, Ordering::Relaxed);
            let stamp = source_stat.stamp(self.scan_start);
            let same = existing.is_some_and(|existing| {
                existing.number == inode
                    && stamp != 0
                    && existing.stamp == stamp
                    && existing.root.len() == source_stat.size
            });
            if same && !self.options.rescan {
                Progress::add(&self.progress.files_unchanged, 1);
                Progress::add(&self.progress.bytes_unchanged, source_stat.size);
                return Ok(());
            }
        } else {
            self.summary.others += 1;
        }
        let display = display_of(level, source_name);
        let attributes = match attributes_of(&level.dir, source_name, kind, stat) {
            Ok(attributes) => attributes,
            Err(errno) => {
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(());
            }
        };
        if kind != FileKind::File {
            if existing.is_some_and(|existing| existing.number == inode && existing.attributes == attributes)
            {
                return Ok(());
            }
            return self.submit_plain(level.inode, name, inode, attributes, torn);
        }
        let content = Content::File(SourceFile {
            dir: Arc::clone(&level.dir),
            name: source_name.to_vec(),
            display: display.display().to_string().into(),
            stat: source_stat,
            scan_start: self.scan_start,
        });
        self.writer.submit(Item::File(FileItem {
            parent: level.inode,
            name: name.to_vec(),
            inode,
            replace: torn,
            attributes,
            content,
            chunker: level.policy.chunker,
            codec: level.policy.codec,
            dedup: level.policy.dedup,
        }))
    }

    /// Makes `name` another name of `inode`, in place of what it stands for now.
    fn put_link(&mut self, parent: u64, name: &[u8], inode: u64, existing: Option<&Inode>) -> Result<()> {
        if let Some(existing) = existing {
            if existing.number == inode {
                return Ok(());
            }
            let name = name.to_vec();
            self.writer.submit(Item::Change(Change::Remove { parent, name, recursive: true }))?;
        }
        self.writer.submit(Item::Change(Change::Link { parent, name: name.to_vec(), inode }))
    }

    fn remove_rest(&mut self, mut level: Level) -> Result<()> {
        while let Some(gone) = level.existing.next_if(self.meta, |_| true)? {
            self.remove(level.inode, &gone.name, &join(&level.relative, &gone.name))?;
        }
        Ok(())
    }

    fn remove(&mut self, parent: u64, name: &[u8], relative: &[u8]) -> Result<()> {
        let excluded = |bytes: &[u8]| self.options.exclude.is_match(Path::new(OsStr::from_bytes(bytes)));
        if self.options.keep_missing || excluded(name) || excluded(relative) {
            return Ok(());
        }
        self.summary.removed += 1;
        let name = name.to_vec();
        self.writer.submit(Item::Change(Change::Remove { parent, name, recursive: true }))
    }

    /// The store it puts into.
    pub fn store(&self) -> &Store {
        self.store
    }
}

fn join(relative: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = relative.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn display_of(level: &Level, name: &[u8]) -> PathBuf {
    level.display.join(OsStr::from_bytes(name))
}

fn target_is_followed(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn open_source_dir(path: &Path) -> Result<Arc<OwnedFd>, rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(Arc::new)
}

fn directory_attributes(dir: &OwnedFd, stat: &Stat) -> Result<Attributes, rustix::io::Errno> {
    let source = source_stat(stat);
    Ok(Attributes {
        kind: FileKind::Directory,
        mode: source.mode,
        uid: source.uid,
        gid: source.gid,
        mtime: source.mtime,
        rdev: 0,
        target: Vec::new(),
        xattrs: xattrs(dir)?,
    })
}

/// Attributes of anything but a directory; a regular file's extended attributes are read when it is opened.
fn attributes_of(
    dir: &OwnedFd,
    name: &[u8],
    kind: FileKind,
    stat: &Stat,
) -> Result<Attributes, rustix::io::Errno> {
    let source = source_stat(stat);
    let target = match kind {
        FileKind::Symlink => rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { stat.st_rdev } else { 0 };
    let xattrs = if kind == FileKind::File { Vec::new() } else { path_xattrs(&proc_path(dir, name))? };
    let super::SourceStat { mode, uid, gid, mtime, .. } = source;
    Ok(Attributes { kind, mode, uid, gid, mtime, rdev, target, xattrs })
}

/// Attributes of a directory that no source describes: 0755, the caller's, now.
pub fn new_directory() -> Attributes {
    let nanos = clock::now_nanos();
    Attributes {
        kind: FileKind::Directory,
        mode: 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mtime: Time { secs: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as u32 },
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
    }
}

/// What one put did.
#[derive(Clone, Debug, Default)]
pub struct PutReport {
    /// The pipeline's counters.
    pub write: WriteSummary,
    /// The walker's.
    pub walk: PutSummary,
}

/// Puts sources at their targets, in a session of its own, and waits until all is durable and visible.
///
/// # Errors
/// The first failure of the store; what was committed before stays. What could not be read is in `progress.skipped`.
pub fn put(
    store: &Store,
    sources: Vec<(Source, StorePath)>,
    options: &PutOptions,
    threads: usize,
    progress: &Arc<Progress>,
) -> Result<PutReport> {
    let session = store.session(SessionKind::Writer, "put")?;
    let policies = Policies::load(store)?;
    let write = WriteOptions {
        threads,
        frame_size: store.config.frame_size as usize,
        pack_bytes: store.config.pack_size.into(),
        chunk_max: policies.chunk_max()?,
    };
    let mut writer = Writer::start(store, &session, &write, progress);
    let mut putter = Putter::new(store, policies, &mut writer, progress, options)?;
    let mut walked = Ok(());
    for (source, target) in sources {
        walked = putter.put(source, &target);
        if walked.is_err() {
            break;
        }
    }
    let walk = putter.summary();
    // What was submitted before a failure is finished too; and a pipeline that stopped knows why better than the walker
    // that noticed.
    let write = writer.finish()?;
    walked?;
    Ok(PutReport { write, walk })
}
