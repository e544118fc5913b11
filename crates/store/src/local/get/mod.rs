//! `get`: writes files of the store into a directory of this machine.
//!
//! One thread walks the store's tree, makes directories and gives files out in batches; workers
//! fetch, verify and write. Every name is made in an open directory, one component at a time,
//! without following symlinks, and names are checked: nothing can be written outside the target,
//! even from a hostile store. A directory has private permissions until the last entry in it is
//! done (its `Target` is dropped); then it gets its own. A file has its own name only when it is
//! whole. Small files are an exception, and are incomplete for a moment (see `target`).

mod target;
mod worker;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::{Entry, Root};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use self::target::{OpenFile, Target};
use self::worker::work;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, Inode};
use crate::read::Reader;
use crate::store::Store;
use crate::text::show;
use crate::tree::check_name;
use crate::tree::listing::Ancestors;
use crate::tree::selection::Selection;
use crate::write::{Progress, Step};

/// How to restore.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// Replace files that exist.
    pub overwrite: bool,
    /// Restore set-user-id and set-group-id bits and the attributes in `security.` and `trusted.`,
    /// make device nodes, and replace them.
    pub special: bool,
    /// Restore the rest of damaged files, with zeros in place of bytes that cannot be read.
    pub salvage: bool,
    /// Worker threads.
    pub threads: usize,
    /// Chooses the entries of a directory to restore.
    pub selection: Selection,
}

/// Shared by the walker and the workers.
struct Restorer<'a> {
    reader: Reader<'a>,
    progress: &'a Progress,
    options: GetOptions,
    umask: u32,
    user: (u32, u32),
    is_root: bool,
    /// Why nothing more can be written: the disk is full, or read-only.
    over: OnceLock<Error>,
}

enum Job<'a> {
    /// A whole small file.
    Whole { dir: Arc<Target<'a>>, name: Vec<u8>, attributes: Attributes, root: Root },
    /// A whole file that was created by the walker, because it has other names.
    Made { file: Arc<OpenFile<'a>>, root: Root },
    /// A part of a large file.
    Part { file: Arc<OpenFile<'a>>, at: u64, entries: Vec<Entry> },
}

/// Bytes of files in a batch, and of a part, about.
const BATCH_BYTES: u64 = 2 << 20;
const BATCH_JOBS: usize = 256;

/// Restores `inode` as `name` in the directory `dest`, or, when `name` is `None`, the contents of
/// the directory `inode` as those of `dest`.
///
/// # Errors
/// When `dest` cannot be written at all, or the store fails; single files that cannot be restored
/// are skipped and reported.
pub fn restore(
    store: &Store,
    at: At,
    inode: &Inode,
    dest: &Path,
    name: Option<&[u8]>,
    options: GetOptions,
    progress: &Progress,
) -> Result<()> {
    let umask = rustix::process::umask(Mode::from_raw_mode(0o077)).as_raw_mode();
    rustix::process::umask(Mode::from_raw_mode(umask));
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let context = Restorer {
        reader: Reader::new(store),
        progress,
        options,
        umask,
        user,
        is_root: rustix::process::geteuid().is_root(),
        over: OnceLock::new(),
    };
    std::fs::create_dir_all(dest).context(|| format!("cannot create {}", dest.display()))?;
    let fd = rustix::fs::open(dest, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| format!("cannot open {}", dest.display()))?;
    let attributes = name.is_none().then(|| inode.attributes.clone());
    let top = (fd, dest.display().to_string(), attributes);
    let walked = work_on(store, at, inode, top, name, &context);
    context.over.into_inner().map_or(walked, Err)
}

fn work_on(
    store: &Store,
    at: At,
    inode: &Inode,
    (fd, display, attributes): (OwnedFd, String, Option<Attributes>),
    name: Option<&[u8]>,
    context: &Restorer<'_>,
) -> Result<()> {
    let is_directory = inode.attributes.kind == FileKind::Directory;
    let chosen = (is_directory && !context.options.selection.is_all())
        .then(|| context.options.selection.paths(&*store.meta, at, inode.number))
        .transpose()?;
    let top = Arc::new(Target { fd, display, attributes, context, _parent: None });
    let threads = context.options.threads;
    let (sender, receiver) = sync_channel::<Vec<Job<'_>>>(2 * threads + 4);
    let receiver = &Mutex::new(receiver);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(move || work(context, receiver));
        }
        let mut walker =
            Walker { store, at, context, sender, chosen, batch: Vec::new(), bytes: 0, links: HashMap::new() };
        let walked = match name {
            None => walker.walk(top, inode.number),
            Some(name) => walker.entry(&top, name, inode.clone()).and_then(|below| match below {
                Some(below) => walker.walk(below, inode.number),
                None => Ok(()),
            }),
        };
        walked.and_then(|()| walker.flush())
    })
}

struct Walker<'a> {
    store: &'a Store,
    at: At,
    context: &'a Restorer<'a>,
    sender: SyncSender<Vec<Job<'a>>>,
    /// Paths below the top; nothing else is restored.
    chosen: Option<HashSet<Vec<u8>>>,
    batch: Vec<Job<'a>>,
    bytes: u64,
    /// Inode with several names → the first of them.
    links: HashMap<u64, First<'a>>,
}

/// The first name of a file with several.
struct First<'a> {
    dir: Arc<Target<'a>>,
    name: Vec<u8>,
    /// The name that it is written under. At some moment that is replaced by its own name.
    temporary: Option<Vec<u8>>,
}

const LISTING: usize = 4096;

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

impl<'a> Walker<'a> {
    fn walk(&mut self, top: Arc<Target<'a>>, inode: u64) -> Result<()> {
        // Depth first, so that a directory is finished soon after its last file.
        let mut levels = vec![(top, inode, Vec::new().into_iter(), Some(None::<Vec<u8>>))];
        let mut path = Vec::new();
        let mut above = Ancestors::new(inode);
        while let Some((target, inode, entries, after)) = levels.last_mut() {
            let Some(entry) = entries.next() else {
                let Some(from) = after.take() else {
                    above.leave(*inode);
                    levels.pop();
                    path.truncate(path.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                    continue;
                };
                let listed = self.store.meta.read_dir(self.at, *inode, from.as_deref(), LISTING)?;
                *after = (listed.len() == LISTING).then(|| listed.last().map(|entry| entry.name.clone()));
                *entries = listed.into_iter();
                continue;
            };
            let before = path.len();
            push(&mut path, &entry.name);
            if self.chosen.as_ref().is_some_and(|chosen| !chosen.contains(&path)) {
                path.truncate(before);
                continue;
            }
            let (target, number): (Arc<Target<'a>>, u64) = (Arc::clone(target), entry.inode.number);
            if let Some(below) = self.entry(&target, &entry.name, entry.inode)? {
                // A directory that lies below itself would fill the disk.
                above.enter(number)?;
                levels.push((below, number, Vec::new().into_iter(), Some(None)));
                continue;
            }
            path.truncate(before);
        }
        Ok(())
    }

    /// Restores one entry; a directory is made and returned, to be walked.
    fn entry(&mut self, dir: &Arc<Target<'a>>, name: &[u8], inode: Inode) -> Result<Option<Arc<Target<'a>>>> {
        if self.context.is_over() {
            return Err(Error::new(ErrorKind::Cancelled, "the restoration was stopped"));
        }
        let display = format!("{}/{}", dir.display, show(name));
        if let Err(error) = check_name(name) {
            self.context.progress.skip(display, error.to_string());
            return Ok(None);
        }
        let made = match inode.attributes.kind {
            FileKind::Directory => {
                return match self.make_dir(dir, name, &display, inode.attributes) {
                    Ok(below) => Ok(Some(below)),
                    Err(errno) => {
                        let why = self.context.why(&display, errno);
                        self.context.progress.skip(display, why);
                        Ok(None)
                    }
                };
            }
            FileKind::File => return self.file(dir, name, inode, &display).map(|()| None),
            _ if inode.links > 1 && self.link(dir, name, &inode, &display) => Ok(()),
            _ => self.context.make_other(dir, name, &display, &inode.attributes),
        };
        match made {
            Ok(()) => {
                Progress::add(&self.context.progress.files_done, 1);
                self.context.progress.entry(Step::Added, || display.into_bytes());
            }
            Err(why) => self.context.progress.skip(display, why),
        }
        Ok(None)
    }

    fn make_dir(
        &self,
        dir: &Arc<Target<'a>>,
        name: &[u8],
        display: &str,
        attributes: Attributes,
    ) -> Result<Arc<Target<'a>>, Errno> {
        match rustix::fs::mkdirat(&dir.fd, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?;
        Ok(Arc::new(Target {
            fd,
            display: display.to_string(),
            attributes: Some(attributes),
            context: self.context,
            _parent: Some(Arc::clone(dir)),
        }))
    }

    /// Makes another name for a file that was restored under its first; `false` when this is the
    /// first.
    fn link(&mut self, dir: &Arc<Target<'a>>, name: &[u8], inode: &Inode, display: &str) -> bool {
        if let Some(first) = self.links.get(&inode.number) {
            let link_to = |first_name: &[u8]| {
                rustix::fs::linkat(&first.dir.fd, first_name, &dir.fd, name, AtFlags::empty())
            };
            let link = || match &first.temporary {
                Some(temporary) => match link_to(temporary) {
                    Err(Errno::NOENT) => link_to(&first.name),
                    linked => linked,
                },
                None => link_to(&first.name),
            };
            let linked = match link() {
                Err(Errno::EXIST) if self.context.options.overwrite => {
                    if let Err(why) = self.context.may_replace(dir, name, &inode.attributes) {
                        self.context.progress.skip(display, why);
                        return true;
                    }
                    rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty()).and_then(|()| link())
                }
                linked => linked,
            };
            if let Err(errno) = linked {
                let why = self.context.why(display, errno);
                self.context
                    .progress
                    .skip(display, format!("cannot link it to {}: {why}", show(&first.name)));
            }
            return true;
        }
        let first = First { dir: Arc::clone(dir), name: name.to_vec(), temporary: None };
        self.links.insert(inode.number, first);
        false
    }

    fn file(&mut self, dir: &Arc<Target<'a>>, name: &[u8], inode: Inode, display: &str) -> Result<()> {
        let Inode { attributes, root, links, .. } = &inode;
        let len = root.len();
        Progress::add(&self.context.progress.bytes_expected, len);
        if *links > 1 && self.links.contains_key(&inode.number) {
            self.link(dir, name, &inode, display);
            return Ok(());
        }
        let (dir, name, attributes, root) =
            (Arc::clone(dir), name.to_vec(), attributes.clone(), root.clone());
        if *links == 1 && len <= BATCH_BYTES {
            return self.push(Job::Whole { dir, name, attributes, root }, len);
        }
        let file = match self.context.create(&dir, &name, attributes, len) {
            Ok(file) => Arc::new(file),
            Err(why) => {
                self.context.progress.skip(display, why);
                return Ok(());
            }
        };
        if *links > 1 {
            let (dir, temporary) = (Arc::clone(&dir), file.temporary.clone());
            self.links.insert(inode.number, First { dir, name, temporary });
        }
        if len <= BATCH_BYTES {
            return self.push(Job::Made { file, root }, len);
        }
        self.parts(&file, &root, display)
    }

    fn parts(&mut self, file: &Arc<OpenFile<'a>>, root: &Root, display: &str) -> Result<()> {
        if let Err(errno) = rustix::fs::ftruncate(&file.fd, root.len()) {
            file.failed.store(true, Ordering::Relaxed);
            self.context.progress.skip(display, self.context.why(display, errno));
            return Ok(());
        }
        let (mut entries, mut start, mut bytes, mut reached) = (Vec::new(), 0, 0, 0);
        let context = self.context;
        let walked = context.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
            reached = at + entry.len();
            if matches!(entry, Entry::Chunk { .. }) {
                if entries.is_empty() {
                    start = at;
                }
                entries.push(entry);
                bytes += entry.len();
            }
            // A hole ends a part: parts are written as one run.
            if !entries.is_empty() && (bytes >= BATCH_BYTES / 2 || matches!(entry, Entry::Hole { .. })) {
                let job =
                    Job::Part { file: Arc::clone(file), at: start, entries: std::mem::take(&mut entries) };
                self.push(job, std::mem::take(&mut bytes))?;
            }
            Ok(true)
        });
        match walked {
            // The entries after it are unknown.
            Err(error) if error.kind() == ErrorKind::Damaged && context.options.salvage => {
                file.lose(std::iter::once(reached..root.len()));
                self.push(Job::Part { file: Arc::clone(file), at: start, entries }, bytes)
            }
            Ok(()) if entries.is_empty() => Ok(()),
            Ok(()) => self.push(Job::Part { file: Arc::clone(file), at: start, entries }, bytes),
            Err(error) if error.kind() == ErrorKind::Cancelled => Err(error),
            Err(error) => {
                file.failed.store(true, Ordering::Relaxed);
                context.fail(display, &error);
                Ok(())
            }
        }
    }

    fn push(&mut self, job: Job<'a>, bytes: u64) -> Result<()> {
        self.batch.push(job);
        self.bytes += bytes;
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_JOBS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        self.sender
            .send(batch)
            .map_err(|_| Error::new(ErrorKind::Cancelled, "the restoring threads have stopped"))
    }
}
