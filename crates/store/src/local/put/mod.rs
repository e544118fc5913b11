//! `put`: compares a tree of this machine with what the store has of it, and submits the
//! difference.
//!
//! One thread walks, in bytewise order of names, and merges each directory with the store's listing
//! of it. Unchanged files are not even opened, and entries that the source no longer has are
//! removed. The pipeline does the reading, cutting and all the rest.

mod entry;
mod leave_out;
mod level;
mod mirror;
mod plan;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_format::{Domain, Root};
use rustix::fs::Stat;

use self::entry::directory_attributes;
use self::leave_out::Here;
pub use self::leave_out::{LeaveOut, Listed};
use self::level::{Existing, Level};
use self::mirror::{Mirror, is_empty, remember};
pub use self::mirror::{MirrorRules, claim};
pub use self::plan::Plan;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::kind_of;
use crate::meta::{At, Change, Inode, Meta, ROOT_INODE, SessionKind};
use crate::packs::PackReader;
use crate::policy::{Origin, Overrides, Policies, WritePolicy};
use crate::snapshot::BeforeSnapshot;
use crate::store::Store;
use crate::tree::{StorePath, domain_at};
use crate::write::{
    CommitWhen, Content, FileItem, Item, Oracle, OracleMode, OracleRecord, Progress, Step, Target,
    WriteOptions, WriteSummary, Writer,
};

/// Options of a put.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Entries to leave out (and untouched in the store).
    pub leave_out: LeaveOut,
    /// Read every file, even if it seems unchanged.
    pub rescan: bool,
    /// Leave entries in the store that the source does not have.
    pub keep_missing: bool,
    /// Do not enter other file systems.
    pub one_file_system: bool,
    /// Settings that override the policies.
    pub overrides: Overrides,
    /// For experiments: a record of chunks and fingerprints, to be written or to be believed. Only
    /// with one source, of which every file is read.
    pub oracle: Option<OracleMode>,
    /// The host that is to hold the data, by the name that the packs' engine has for it
    /// ([`crate::backend::place_on`]).
    pub host: Option<Arc<str>>,
    /// The rules of a mirror: which entries are refused.
    pub mirror: Option<MirrorRules>,
    /// Device numbers of this store's mounts, which are left out below a source.
    pub own_devices: Vec<u64>,
    /// Change nothing, and say in [`PutReport::plan`] what would be.
    pub dry_run: bool,
    /// The snapshot to take before something is removed or replaced.
    pub before: Option<Arc<BeforeSnapshot>>,
}

/// One thing to put.
pub enum Source {
    /// A file or directory of this machine.
    Path(PathBuf),
    /// A stream, such as standard input.
    Stream(Box<dyn Read + Send>),
}

/// Counts of a put besides those of [`crate::write::WriteSummary`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PutSummary {
    /// Entries removed because the source no longer has them.
    pub removed: u64,
    /// Directories seen.
    pub directories: u64,
    /// Entries seen that are neither files nor directories.
    pub others: u64,
}
/// The outcome of one put.
#[derive(Clone, Debug, Default)]
pub struct PutReport {
    /// The pipeline's counters.
    pub write: WriteSummary,
    /// The walker's counters.
    pub walk: PutSummary,
    /// The changes that a dry run would make.
    pub plan: Option<Plan>,
}

/// Puts sources at their targets, in a session of its own, and waits until everything is durable
/// and visible.
///
/// # Errors
/// The first failure of the store; files that were committed before stay. `progress.skipped` has
/// the entries that could not be read.
pub fn put(
    store: &Store,
    sources: Vec<(Source, StorePath)>,
    options: &PutOptions,
    threads: usize,
    progress: &Arc<Progress>,
) -> Result<PutReport> {
    let policies = Policies::load(store)?.with(options.overrides);
    let remembered = check(store, &policies, &sources, options)?;
    if options.dry_run {
        return plan::plan(store, policies, sources, options, progress);
    }
    let oracle = options.oracle.as_ref().map(|mode| OracleRecord::open(store, mode)).transpose()?;
    let late = remember(store, remembered, options, progress)?;
    let session = store.session(SessionKind::Writer, "put")?;
    if let Some(before) = &options.before {
        session.take_before(before);
    }
    let write = WriteOptions { threads, chunk_max: policies.chunk_max()?, commit: CommitWhen::AsItComes };
    let mut writer = Writer::start_on(store, &session, &write, options.host.as_ref(), progress);
    let mut putter = Putter::new(store, policies, Some(&mut writer), progress, options, oracle.as_ref());
    let mut walked = Ok(());
    for (source, target) in sources {
        walked = putter.put(source, &target);
        if walked.is_err() {
            break;
        }
    }
    let walk = putter.summary;
    // Items submitted before a failure are finished too. If the pipeline stopped, its error says
    // more than the walker's.
    let write = writer.finish()?;
    walked?;
    if let Some(oracle) = oracle {
        oracle.finish()?;
    }
    remember(store, late, options, progress)?;
    Ok(PutReport { write, walk, plan: None })
}

/// Refuses sources that would replace what others have put. Returns the targets with the sources
/// that they are to remember.
fn check(
    store: &Store,
    policies: &Policies,
    sources: &[(Source, StorePath)],
    options: &PutOptions,
) -> Result<Vec<(StorePath, String)>> {
    let own = store.dir().canonicalize().ok();
    for (source, _) in sources {
        if let Source::Path(path) = source
            && let (Some(own), Ok(path)) = (&own, path.canonicalize())
            && path.starts_with(own)
        {
            let why = format!(
                "{} is a part of this store itself; `outrigger copy` makes a copy of a store",
                path.display()
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    }
    // Before anything is made for it.
    for (_, target) in sources {
        match domain_at(&*store.meta, target)? {
            Domain::COMMON => {}
            domain => drop(store.packs.domain_key(domain)?),
        }
    }
    let mut remembered = Vec::new();
    let Some(rules) = options.mirror.filter(|_| !options.keep_missing) else { return Ok(remembered) };
    for (source, target) in sources {
        let Source::Path(source) = source else { continue };
        let is_directory = match std::fs::symlink_metadata(source) {
            // As in [`Putter::put`].
            Ok(found) if found.is_symlink() => target_is_followed(source) && source.is_dir(),
            found => found.is_ok_and(|found| found.is_dir()),
        };
        if is_directory {
            let (meta, exclude) = (&*store.meta, &options.leave_out.patterns);
            let (origin, is_empty) = (Origin::of(source)?, is_empty(source));
            let sources = policies.sources();
            let mirror = Mirror { meta, sources, exclude, origin, is_empty, can_add: true, target };
            remembered.extend(mirror.check(rules)?.map(|text| (target.clone(), text)));
        }
    }
    Ok(remembered)
}

/// Walks sources into a [`Writer`].
struct Putter<'a> {
    meta: &'a dyn Meta,
    packs: &'a PackReader,
    /// None in a dry run.
    writer: Option<&'a mut Writer>,
    progress: &'a Progress,
    options: &'a PutOptions,
    oracle: Option<&'a OracleRecord>,
    policies: Policies,
    scan_start: Time,
    inodes: std::ops::Range<u64>,
    /// Source (device, inode) of a file with several names → its inode in each domain of the store.
    links: HashMap<(u64, u64, Domain), u64>,
    /// Inode in the store that has several names → the source file it was matched with.
    claimed: HashMap<u64, (u64, u64)>,
    /// The store's own directory, which is never put into itself.
    own: Option<(u64, u64)>,
    summary: PutSummary,
    plan: Plan,
    /// Where the present source goes.
    top: StorePath,
}

const INODES_AT_ONCE: u64 = 8192;
/// The inode number of everything that a dry run would make.
const NO_INODE: u64 = u64::MAX >> 1;

impl<'a> Putter<'a> {
    /// A walker into `writer`.
    fn new(
        store: &'a Store,
        policies: Policies,
        writer: Option<&'a mut Writer>,
        progress: &'a Progress,
        options: &'a PutOptions,
        oracle: Option<&'a OracleRecord>,
    ) -> Self {
        let own = rustix::fs::stat(store.home().path()).ok().map(|stat| (stat.st_dev, stat.st_ino));
        Self {
            meta: &*store.meta,
            packs: &store.packs,
            writer,
            progress,
            options,
            oracle,
            policies,
            scan_start: clock::now_coarse(),
            inodes: 0..0,
            links: HashMap::new(),
            claimed: HashMap::new(),
            own,
            summary: PutSummary::default(),
            plan: Plan::default(),
            top: StorePath::default(),
        }
    }

    /// Hands an item to the pipeline. `over` is true if it replaces or changes an entry of the same
    /// name.
    fn submit(&mut self, item: Item, over: bool) -> Result<()> {
        if let Some(before) = self.options.before.as_ref().filter(|_| over) {
            before.destroys();
        }
        match &mut self.writer {
            Some(writer) => writer.submit(item),
            None => {
                self.plan.count(&item, over);
                Ok(())
            }
        }
    }

    /// Asks the oracle, if there is one, about the file that is `name` within the source.
    fn oracle(&self, name: &[u8], policy: WritePolicy, len: Option<u64>) -> Result<Oracle> {
        self.oracle.map_or(Ok(Oracle::Off), |record| record.about(name, policy.chunker, len))
    }

    fn next_inode(&mut self) -> Result<u64> {
        if self.writer.is_none() {
            return Ok(NO_INODE);
        }
        if self.inodes.is_empty() {
            self.inodes = self.meta.reserve_inodes(INODES_AT_ONCE)?;
        }
        let inode = self.inodes.start;
        self.inodes.start += 1;
        Ok(inode)
    }

    /// Puts `source` at `target`: a directory's contents become those of `target`, a file becomes
    /// `target` itself.
    ///
    /// # Errors
    /// `Invalid` when the target cannot hold it, and failures of the store; what cannot be read is
    /// skipped and reported.
    fn put(&mut self, source: Source, target: &StorePath) -> Result<()> {
        self.top = target.clone();
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
            let (inode, existed, domain) = self.make_target_dir(target, Some((&dir, &stat)))?;
            let policy = self.policies.below(policy, inode)?;
            return self.walk(dir, path, (inode, domain), existed, policy);
        }
        let (Some(name), Some(file_name)) = (target.name(), path.file_name()) else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a file cannot become the root; give it a name with --to",
            ));
        };
        let (parent, existed, domain) = self.make_target_dir(&target.parent(), None)?;
        let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
        refuse_directory(target, existing.as_ref())?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let level = Level {
            dir: open_source_dir(dir).context(at)?,
            display: dir.to_path_buf(),
            relative: Vec::new(),
            inode: parent,
            domain,
            device: stat.st_dev,
            policy,
            found: Vec::new().into_iter(),
            existing: Existing::default(),
            here: Here::default(),
            is_top_parent: true,
        };
        self.put_entry(&level, file_name.as_bytes(), name, &stat, existing.as_ref())
    }

    fn put_stream(&mut self, reader: Box<dyn Read + Send>, target: &StorePath) -> Result<()> {
        let Some(name) = target.name() else {
            return Err(Error::new(ErrorKind::Invalid, "standard input needs a name: give one with --to"));
        };
        let policy = self.policies.at(self.meta, &target.parent())?;
        let (parent, existed, domain) = self.make_target_dir(&target.parent(), None)?;
        let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
        refuse_directory(target, existing.as_ref())?;
        let inode = match &existing {
            Some(existing) if existing.attributes.kind == FileKind::File => existing.number,
            _ => self.next_inode()?,
        };
        let attributes = made_now(FileKind::File, 0o644).in_domain(domain);
        let oracle = self.oracle(b"-", policy, None)?;
        let item = Item::File(FileItem {
            to: Target::Put { parent, name: name.to_vec(), inode, replace: false },
            attributes,
            content: Content::Stream(reader),
            chunker: policy.chunker,
            codec: policy.codec,
            dedup: policy.dedup,
            frame: None,
            oracle,
        });
        let step = if existing.is_some() { Step::Changed } else { Step::Added };
        self.progress.entry(step, || target.to_bytes());
        self.submit(item, existing.is_some())
    }

    /// The directory at `target`, made if it is not there, with the attributes of a source
    /// directory if one is given. Also says whether it was there, and its domain.
    fn make_target_dir(
        &mut self,
        target: &StorePath,
        like: Option<(&OwnedFd, &Stat)>,
    ) -> Result<(u64, bool, Domain)> {
        let (mut parent, mut existed, mut domain) = (ROOT_INODE, true, Domain::COMMON);
        let last = target.components.len().wrapping_sub(1);
        for (depth, name) in target.components.iter().enumerate() {
            let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
            let like = like.filter(|_| depth == last);
            let attributes = match (like, &existing) {
                (Some(_), Some(existing)) if existing.attributes.kind != FileKind::Directory => {
                    let why = format!(
                        "`{target}` is no directory in the store; remove it first, or choose another name"
                    );
                    return Err(Error::new(ErrorKind::Invalid, why));
                }
                (Some((dir, stat)), _) => {
                    Some(directory_attributes(dir, stat).context(|| "extended attributes".into())?)
                }
                (None, Some(existing)) if existing.attributes.kind == FileKind::Directory => None,
                (None, Some(_)) => {
                    let why = format!("`{}` in the store is not a directory", crate::text::show(name));
                    return Err(Error::new(ErrorKind::Invalid, why));
                }
                (None, None) => Some(new_directory()),
            };
            let was_there = existing.is_some();
            let kept = existing.filter(|existing| existing.attributes.kind == FileKind::Directory);
            let inode = match &kept {
                Some(kept) => kept.number,
                None => self.next_inode()?,
            };
            if let Some(kept) = &kept {
                domain = kept.attributes.domain();
            }
            let attributes = attributes.map(|attributes| attributes.in_domain(domain));
            if let Some(attributes) = attributes
                && kept.as_ref().is_none_or(|kept| kept.attributes != attributes)
            {
                let over = was_there && kept.is_none();
                self.submit_plain(parent, name, inode, attributes, false, over)?;
            }
            existed = kept.is_some();
            parent = inode;
        }
        // A directory that was made for this put, to remember its source, is empty.
        if let Some(before) = self.options.before.as_ref().filter(|_| existed)
            && !self.meta.read_dir(At::Now, parent, None, 1)?.is_empty()
        {
            before.may_destroy();
        }
        Ok((parent, existed, domain))
    }

    fn submit_plain(
        &mut self,
        parent: u64,
        name: &[u8],
        inode: u64,
        attributes: Attributes,
        replace: bool,
        over: bool,
    ) -> Result<()> {
        let (name, root) = (name.to_vec(), Root::Empty);
        let change = Change::Put { parent, name, inode, attributes, root, stamp: 0, replace };
        self.submit(Item::Change(change), over)
    }
}

fn target_is_followed(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn open_source_dir(path: &Path) -> Result<Arc<OwnedFd>, rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map(Arc::new)
}

/// Attributes of a directory that no source describes: 0755, the caller's ids, the present time.
pub fn new_directory() -> Attributes {
    made_now(FileKind::Directory, 0o755)
}

/// A single file takes the place of a file, and never that of a directory with all in it.
fn refuse_directory(target: &StorePath, existing: Option<&Inode>) -> Result<()> {
    match existing {
        Some(existing) if existing.attributes.kind == FileKind::Directory => Err(Error::new(
            ErrorKind::Invalid,
            format!("`{target}` is a directory in the store; name the file that is to be in it"),
        )),
        _ => Ok(()),
    }
}

/// Attributes of an entry that no source describes: the caller's ids, the present time.
pub fn made_now(kind: FileKind, mode: u32) -> Attributes {
    Attributes {
        kind,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mtime: Time::from_nanos(clock::now_nanos()),
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}
