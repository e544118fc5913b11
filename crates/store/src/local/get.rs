//! `get`: writes files of the store into a directory of this machine.
//!
//! One thread walks the store's tree, makes directories and gives files out in batches; workers fetch, verify and write. Every
//! name is made in an open directory, one component at a time, without following symlinks, and names are checked: nothing
//! can be written outside the target, whatever the store says. A directory keeps private permissions until the
//! last thing in it is done (its `Target` is dropped), and then gets its own.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::{Entry, Root};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, Inode};
use crate::read::Reader;
use crate::store::Store;
use crate::tree::{check_name, show};
use crate::write::Progress;

/// How to restore.
#[derive(Clone, Copy, Debug, Default)]
pub struct GetOptions {
    /// Replace files that exist.
    pub overwrite: bool,
    /// Restore set-user-id and set-group-id bits, and make device nodes.
    pub special: bool,
    /// Worker threads.
    pub threads: usize,
}

/// Shared by the walker and the workers.
struct Context_<'a> {
    reader: Reader<'a>,
    progress: &'a Progress,
    options: GetOptions,
    umask: u32,
    user: (u32, u32),
    is_root: bool,
}

/// A directory being restored; the last user's drop gives it its attributes.
struct Target<'a> {
    fd: OwnedFd,
    display: String,
    attributes: Option<Attributes>,
    context: &'a Context_<'a>,
    /// Kept so that the parent is finished after this.
    _parent: Option<Arc<Target<'a>>>,
}

/// A file being restored; the last user's drop gives it its attributes, or removes it when a part failed.
struct OpenFile<'a> {
    fd: OwnedFd,
    dir: Arc<Target<'a>>,
    name: Vec<u8>,
    /// The name it is written under, when that is not its own yet.
    temporary: Option<Vec<u8>>,
    attributes: Attributes,
    failed: AtomicBool,
    mode_is_set: bool,
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

/// Restores `inode` as `name` in the directory `dest`, or, when `name` is `None`, the contents of the directory `inode` as those of `dest`.
///
/// # Errors
/// When `dest` cannot be written at all, or the store fails; single files that cannot be restored are skipped and reported.
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
    let context = Context_ {
        reader: Reader::new(store),
        progress,
        options,
        umask,
        user,
        is_root: rustix::process::geteuid().is_root(),
    };
    std::fs::create_dir_all(dest).context(|| format!("cannot create {}", dest.display()))?;
    let fd = rustix::fs::open(dest, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context(|| format!("cannot open {}", dest.display()))?;
    let attributes = name.is_none().then(|| inode.attributes.clone());
    let display = dest.display().to_string();
    let top = Arc::new(Target { fd, display, attributes, context: &context, _parent: None });
    let (sender, receiver) = sync_channel::<Vec<Job<'_>>>(2 * options.threads + 4);
    let receiver = Mutex::new(receiver);
    let (context, receiver) = (&context, &receiver);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(move || work(context, receiver));
        }
        let mut walker =
            Walker { store, at, context, sender, batch: Vec::new(), bytes: 0, links: HashMap::new() };
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
    context: &'a Context_<'a>,
    sender: SyncSender<Vec<Job<'a>>>,
    batch: Vec<Job<'a>>,
    bytes: u64,
    /// Inode with several names → the first of them.
    links: HashMap<u64, (Arc<Target<'a>>, Vec<u8>)>,
}

const LISTING: usize = 4096;

impl<'a> Walker<'a> {
    fn walk(&mut self, top: Arc<Target<'a>>, inode: u64) -> Result<()> {
        // Depth first, so that a directory is finished soon after its last file.
        let mut levels = vec![(top, inode, Vec::new().into_iter(), Some(None::<Vec<u8>>))];
        while let Some((target, inode, entries, after)) = levels.last_mut() {
            let Some(entry) = entries.next() else {
                let Some(from) = after.take() else {
                    levels.pop();
                    continue;
                };
                let listed = self.store.meta.read_dir(self.at, *inode, from.as_deref(), LISTING)?;
                *after = (listed.len() == LISTING).then(|| listed.last().map(|entry| entry.name.clone()));
                *entries = listed.into_iter();
                continue;
            };
            let (target, number): (Arc<Target<'a>>, u64) = (Arc::clone(target), entry.inode.number);
            if let Some(below) = self.entry(&target, &entry.name, entry.inode)? {
                levels.push((below, number, Vec::new().into_iter(), Some(None)));
            }
        }
        Ok(())
    }

    /// Restores one entry; a directory is made and returned, to be walked.
    fn entry(&mut self, dir: &Arc<Target<'a>>, name: &[u8], inode: Inode) -> Result<Option<Arc<Target<'a>>>> {
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
                        self.context.progress.skip(display, errno.to_string());
                        Ok(None)
                    }
                };
            }
            FileKind::File => return self.file(dir, name, inode, &display).map(|()| None),
            _ if inode.links > 1 && self.link(dir, name, &inode, &display) => Ok(()),
            _ => self.context.make_other(dir, name, &inode.attributes),
        };
        match made {
            Ok(()) => Progress::add(&self.context.progress.files_done, 1),
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

    /// Makes another name for what was restored under a first; `false` when this is the first.
    fn link(&mut self, dir: &Arc<Target<'a>>, name: &[u8], inode: &Inode, display: &str) -> bool {
        if let Some((first_dir, first)) = self.links.get(&inode.number) {
            let link =
                || rustix::fs::linkat(&first_dir.fd, first.as_slice(), &dir.fd, name, AtFlags::empty());
            let linked = match link() {
                Err(Errno::EXIST) if self.context.options.overwrite => {
                    rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty()).and_then(|()| link())
                }
                linked => linked,
            };
            if let Err(errno) = linked {
                self.context.progress.skip(display, format!("cannot link it to {}: {errno}", show(first)));
            }
            return true;
        }
        self.links.insert(inode.number, (Arc::clone(dir), name.to_vec()));
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
        let file = match self.context.create(&dir, &name, attributes) {
            Ok(file) => Arc::new(file),
            Err(why) => {
                self.context.progress.skip(display, why);
                return Ok(());
            }
        };
        if *links > 1 {
            let made = file.temporary.clone().unwrap_or(name);
            self.links.insert(inode.number, (Arc::clone(&dir), made));
        }
        if len <= BATCH_BYTES {
            return self.push(Job::Made { file, root }, len);
        }
        self.parts(&file, &root, display)
    }

    fn parts(&mut self, file: &Arc<OpenFile<'a>>, root: &Root, display: &str) -> Result<()> {
        if let Err(errno) = rustix::fs::ftruncate(&file.fd, root.len()) {
            file.failed.store(true, Ordering::Relaxed);
            self.context.progress.skip(display, errno.to_string());
            return Ok(());
        }
        let (mut entries, mut start, mut bytes) = (Vec::new(), 0, 0);
        let context = self.context;
        let walked = context.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
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

fn work<'a>(context: &'a Context_<'a>, jobs: &Mutex<Receiver<Vec<Job<'a>>>>) {
    let mut run = Vec::new();
    loop {
        let batch = jobs.lock().expect("no panic while held").recv();
        let Ok(batch) = batch else { return };
        for job in batch {
            context.run(job, &mut run);
        }
    }
}

impl<'a> Context_<'a> {
    fn fail(&self, display: impl Into<String>, error: &Error) {
        if error.kind() == ErrorKind::Damaged {
            self.progress.damaged.fetch_add(1, Ordering::Relaxed);
        }
        self.progress.skip(display, error.to_string());
    }

    fn run(&self, job: Job<'a>, run: &mut Vec<u8>) {
        let (file, root) = match job {
            Job::Part { file, at, entries } => return self.part(&file, at, &entries, run),
            Job::Made { file, root } => (file, root),
            Job::Whole { dir, name, attributes, root } => {
                // Content first: what cannot be read makes no file.
                run.clear();
                if let Err(error) = self.whole(&root, run) {
                    self.fail(format!("{}/{}", dir.display, show(&name)), &error);
                    return;
                }
                match self.create(&dir, &name, attributes) {
                    Ok(file) => return self.write_whole(&file, &root, run),
                    Err(why) => return self.progress.skip(format!("{}/{}", dir.display, show(&name)), why),
                }
            }
        };
        run.clear();
        match self.whole(&root, run) {
            Ok(()) => self.write_whole(&file, &root, run),
            Err(error) => {
                file.failed.store(true, Ordering::Relaxed);
                self.fail(file.display(), &error);
            }
        }
    }

    /// The chunks of a small file, one after another (holes take no room).
    fn whole(&self, root: &Root, run: &mut Vec<u8>) -> Result<()> {
        self.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
            if let Entry::Chunk { fingerprint, len } = entry {
                self.reader
                    .append_chunk(&fingerprint, len, run)
                    .map_err(|error| error.context(format!("at byte {at}")))?;
            }
            Ok(true)
        })
    }

    fn write_whole(&self, file: &OpenFile<'a>, root: &Root, run: &[u8]) {
        let len = root.len();
        let written = if run.len() as u64 == len {
            write_at(&file.fd, run, 0)
        } else {
            self.write_sparse(file, root, run)
        };
        match written {
            Ok(()) => Progress::add(&self.progress.bytes_done, len),
            Err(errno) => self.fail_write(file, errno),
        }
    }

    fn write_sparse(&self, file: &OpenFile<'a>, root: &Root, run: &[u8]) -> Result<(), Errno> {
        rustix::fs::ftruncate(&file.fd, root.len())?;
        let mut taken = 0;
        let mut failed = Ok(());
        // The manifest has just been walked without error.
        let _ = self.reader.entries(root, 0, u64::MAX, &mut |at, entry| {
            if let Entry::Chunk { len, .. } = entry {
                let end = taken + len as usize;
                failed = write_at(&file.fd, &run[taken..end], at);
                taken = end;
            }
            Ok(failed.is_ok())
        });
        failed
    }

    fn part(&self, file: &OpenFile<'a>, at: u64, entries: &[Entry], run: &mut Vec<u8>) {
        if file.failed.load(Ordering::Relaxed) {
            return;
        }
        run.clear();
        for entry in entries {
            if let Entry::Chunk { fingerprint, len } = entry
                && let Err(error) = self.reader.append_chunk(fingerprint, *len, run)
            {
                let error = error.context(format!("at byte {}", at + run.len() as u64));
                if !file.failed.swap(true, Ordering::Relaxed) {
                    self.fail(file.display(), &error);
                }
                return;
            }
        }
        match write_at(&file.fd, run, at) {
            Ok(()) => Progress::add(&self.progress.bytes_done, run.len() as u64),
            Err(errno) => self.fail_write(file, errno),
        }
    }

    fn fail_write(&self, file: &OpenFile<'a>, errno: Errno) {
        if !file.failed.swap(true, Ordering::Relaxed) {
            self.progress.skip(file.display(), errno.to_string());
        }
    }

    fn create(
        &self,
        dir: &Arc<Target<'a>>,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<OpenFile<'a>, String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Most files can be created with their mode at once; others are private until they are done.
        let plain = attributes.mode & 0o777;
        let mode_is_set = attributes.mode == plain && plain & self.umask == 0 && plain & 0o200 != 0;
        let mode = Mode::from_raw_mode(if mode_is_set { plain } else { 0o600 });
        let mut temporary = None;
        let fd = match rustix::fs::openat(&dir.fd, name, flags, mode) {
            Err(Errno::EXIST) if self.options.overwrite => {
                let other = format!(".outrigger-{:x}.tmp", crate::clock::now_nanos()).into_bytes();
                let fd = rustix::fs::openat(&dir.fd, other.as_slice(), flags, mode);
                temporary = Some(other);
                fd
            }
            Err(Errno::EXIST) => return Err("exists already; use --overwrite to replace it".to_string()),
            opened => opened,
        };
        let fd = fd.map_err(|errno| errno.to_string())?;
        let (dir, name, failed) = (Arc::clone(dir), name.to_vec(), AtomicBool::new(false));
        Ok(OpenFile { fd, dir, name, temporary, attributes, failed, mode_is_set })
    }

    fn make_other(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), String> {
        let made = self.try_make_other(dir, name, attributes);
        match made {
            Err(Errno::EXIST) if self.options.overwrite => {
                let again = rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())
                    .and_then(|()| self.try_make_other(dir, name, attributes));
                again.map_err(|errno| errno.to_string())
            }
            Err(Errno::EXIST) => Err("exists already; use --overwrite to replace it".to_string()),
            Err(Errno::PERM) if !self.options.special => {
                Err("a device; use --special to restore devices".to_string())
            }
            made => made.map_err(|errno| errno.to_string()),
        }
    }

    fn try_make_other(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        use rustix::fs::FileType;
        let mode = Mode::from_raw_mode(0o600);
        let kind = match attributes.kind {
            FileKind::Symlink => {
                rustix::fs::symlinkat(attributes.target.as_slice(), &dir.fd, name)?;
                return self.set_by_name(dir, name, attributes);
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice if self.options.special => FileType::CharacterDevice,
            FileKind::BlockDevice if self.options.special => FileType::BlockDevice,
            _ => return Err(Errno::PERM),
        };
        rustix::fs::mknodat(&dir.fd, name, kind, mode, attributes.rdev)?;
        self.set_by_name(dir, name, attributes)?;
        rustix::fs::chmodat(&dir.fd, name, self.mode(attributes), AtFlags::empty())
    }

    /// Owner, extended attributes and times of what is not opened.
    fn set_by_name(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        use rustix::fs::{Gid, Uid, XattrFlags};
        if self.is_root && (attributes.uid, attributes.gid) != self.user {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            rustix::fs::chownat(&dir.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let path = super::walk::proc_path(&dir.fd, name);
        for (key, value) in &attributes.xattrs {
            match rustix::fs::lsetxattr(path.as_slice(), key.as_slice(), value, XattrFlags::empty()) {
                Err(errno) if !self.is_root && errno == Errno::PERM => {}
                set => set?,
            }
        }
        rustix::fs::utimensat(&dir.fd, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn mode(&self, attributes: &Attributes) -> Mode {
        let keep =
            if self.options.special || attributes.kind == FileKind::Directory { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(attributes.mode & keep)
    }

    /// Owner, extended attributes, mode and times of what is open. Owner before mode: changing it clears set-id bits.
    fn set_by_fd(&self, fd: impl AsFd, attributes: &Attributes, mode_is_set: bool) -> Result<(), Errno> {
        use rustix::fs::{Gid, Uid, XattrFlags};
        let fd = fd.as_fd();
        let chown = self.is_root && (attributes.uid, attributes.gid) != self.user;
        if chown {
            rustix::fs::fchown(fd, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))?;
        }
        for (key, value) in &attributes.xattrs {
            match rustix::fs::fsetxattr(fd, key.as_slice(), value, XattrFlags::empty()) {
                // Attributes of the trusted and security name spaces are root's to set.
                Err(errno) if !self.is_root && errno == Errno::PERM => {}
                set => set?,
            }
        }
        if !mode_is_set || !attributes.xattrs.is_empty() {
            rustix::fs::fchmod(fd, self.mode(attributes))?;
        }
        rustix::fs::futimens(fd, &times(attributes))
    }
}

fn times(attributes: &Attributes) -> Timestamps {
    let time = Timespec { tv_sec: attributes.mtime.secs, tv_nsec: attributes.mtime.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn write_at(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl OpenFile<'_> {
    fn display(&self) -> String {
        format!("{}/{}", self.dir.display, show(&self.name))
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        let context = self.dir.context;
        let written_as = self.temporary.as_ref().unwrap_or(&self.name);
        if self.failed.load(Ordering::Relaxed) {
            let _ = rustix::fs::unlinkat(&self.dir.fd, written_as.as_slice(), AtFlags::empty());
            return;
        }
        if let Err(errno) = context.set_by_fd(&self.fd, &self.attributes, self.mode_is_set) {
            context.progress.skip(self.display(), format!("restored, but not its attributes: {errno}"));
        }
        if let Some(temporary) = &self.temporary {
            let renamed =
                rustix::fs::renameat(&self.dir.fd, temporary.as_slice(), &self.dir.fd, self.name.as_slice());
            if let Err(errno) = renamed {
                context.progress.skip(self.display(), errno.to_string());
            }
        }
        Progress::add(&context.progress.files_done, 1);
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if let Some(attributes) = &self.attributes
            && let Err(errno) = self.context.set_by_fd(&self.fd, attributes, false)
        {
            self.context
                .progress
                .skip(self.display.clone(), format!("restored, but not its attributes: {errno}"));
        }
    }
}
