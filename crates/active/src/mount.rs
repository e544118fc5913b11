//! A private mount of exactly a job's inputs and side inputs, read-only: for programs that want
//! files, to seek in or to name.
//!
//! Its content is fixed when the job is made, so the kernel may cache it for ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_fuse::fs::{
    Attr, Caller, DirEntry, Entry, FileSystem, Found, Handle, OpenFlags, Opened, ROOT, Result, Seek, Statfs,
    TakeEntry,
};
use outrigger_fuse::kernel::{MountOptions, mount};
use outrigger_fuse::mounts::unmount;
use outrigger_store::read::Reader;
use outrigger_store::tree::StorePath;
use outrigger_store::{Context as _, Error, ErrorKind, Store};
use rustix::io::Errno;

use crate::attempt::Range;

/// Directory of splits by host in the inputs' mount.
pub(crate) const SPLITS: &[u8] = b".splits";
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Threads that answer the kernel.
const THREADS: usize = 2;

/// A file's content.
pub(crate) enum Shown {
    /// A stored one.
    Whole(Arc<Root>),
    /// Ranges of stored ones, one after the other.
    Joined(Arc<Joined>),
}

/// Ranges as one file. They are searched for on the first use, and cached once they are known: a
/// search that failed may succeed later.
pub(crate) struct Joined {
    ask: Box<dyn Fn() -> outrigger_store::Result<Vec<Range>> + Send + Sync>,
    ranges: OnceLock<Vec<Range>>,
}

impl Joined {
    /// Ranges that `ask` finds.
    pub fn new(ask: impl Fn() -> outrigger_store::Result<Vec<Range>> + Send + Sync + 'static) -> Self {
        Self { ask: Box::new(ask), ranges: OnceLock::new() }
    }

    /// The ranges. The first caller waits until they are found.
    ///
    /// # Errors
    /// Those of finding them.
    pub fn ranges(&self) -> outrigger_store::Result<&[Range]> {
        if let Some(known) = self.ranges.get() {
            return Ok(known);
        }
        // Two callers at the same time find the same.
        let found = (self.ask)()?;
        Ok(self.ranges.get_or_init(|| found))
    }
}

impl Shown {
    fn len(&self) -> Result<u64> {
        match self {
            Self::Whole(root) => Ok(root.len()),
            Self::Joined(joined) => {
                let ranges = joined.ranges().map_err(|_| Errno::IO)?;
                Ok(ranges.iter().map(|range| range.to - range.from).sum())
            }
        }
    }

    fn read(&self, reader: &Reader<'_>, mut offset: u64, mut len: u64, out: &mut Vec<u8>) -> Result<()> {
        let mut read = |root: &Root, from: u64, len: u64| {
            let read = reader.read(root, from, len, &mut |bytes| {
                out.extend_from_slice(bytes);
                Ok(())
            });
            read.map_err(|_| Errno::IO)
        };
        let joined = match self {
            Self::Whole(root) => return read(root, offset, len),
            Self::Joined(joined) => joined,
        };
        for range in joined.ranges().map_err(|_| Errno::IO)? {
            let own = range.to - range.from;
            let here = own.saturating_sub(offset).min(len);
            if here > 0 {
                read(&range.root, range.from + offset, here)?;
                len -= here;
            }
            if len == 0 {
                break;
            }
            offset = offset.saturating_sub(own);
        }
        Ok(())
    }
}

enum Node {
    Directory(BTreeMap<Vec<u8>, u64>),
    File(Arc<Shown>),
}

/// The files, by number: a node's number is its place, and one more.
struct Files {
    store: Arc<Store>,
    nodes: Vec<(u64, Node)>,
}

impl Files {
    fn new(store: &Arc<Store>, files: Vec<(StorePath, Shown)>) -> Self {
        let mut nodes = vec![(ROOT, Node::Directory(BTreeMap::new()))];
        for (path, shown) in files {
            let shown = Arc::new(shown);
            let mut at = 0;
            for (depth, name) in path.components.iter().enumerate() {
                let next = nodes.len() as u64 + 1;
                let Node::Directory(names) = &mut nodes[at].1 else { break };
                let known = names.get(name).copied();
                let number = known.unwrap_or_else(|| *names.entry(name.clone()).or_insert(next));
                if known.is_none() {
                    let last = depth + 1 == path.components.len();
                    let node =
                        if last { Node::File(Arc::clone(&shown)) } else { Node::Directory(BTreeMap::new()) };
                    nodes.push((at as u64 + 1, node));
                }
                at = number as usize - 1;
            }
        }
        Self { store: Arc::clone(store), nodes }
    }

    fn node(&self, number: u64) -> Result<&(u64, Node)> {
        usize::try_from(number)
            .ok()
            .and_then(|number| self.nodes.get(number.checked_sub(1)?))
            .ok_or(Errno::STALE)
    }

    fn file(&self, number: u64) -> Result<&Shown> {
        match &self.node(number)?.1 {
            Node::File(shown) => Ok(shown),
            Node::Directory(_) => Err(Errno::ISDIR),
        }
    }

    fn directory(&self, number: u64) -> Result<(u64, &BTreeMap<Vec<u8>, u64>)> {
        match self.node(number)? {
            (parent, Node::Directory(names)) => Ok((*parent, names)),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn entry(&self, number: u64) -> Result<Entry> {
        let (kind, mode, size) = match &self.node(number)?.1 {
            Node::Directory(_) => (FileKind::Directory, 0o555, 0),
            Node::File(shown) => (FileKind::File, 0o444, shown.len()?),
        };
        let (time, links) = (Time::from_nanos(0), 1);
        let attr = Attr {
            number,
            kind,
            mode,
            links,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            allocated: size,
            atime: time,
            mtime: time,
            ctime: time,
        };
        Ok(Entry::new(attr, FOREVER))
    }
}

impl FileSystem for Files {
    fn lookup(&self, _caller: Caller, parent: u64, name: &[u8]) -> Result<Found> {
        match self.directory(parent)?.1.get(name) {
            Some(&number) => Ok(Found::Entry(self.entry(number)?)),
            None => Ok(Found::Missing { valid: FOREVER }),
        }
    }

    fn attributes(&self, _caller: Caller, number: u64, _handle: Option<Handle>) -> Result<Entry> {
        self.entry(number)
    }

    fn read_link(&self, _caller: Caller, _number: u64) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn xattr(&self, _caller: Caller, _number: u64, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NODATA)
    }

    fn xattrs(&self, _caller: Caller, _number: u64) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn statfs(&self) -> Result<Statfs> {
        Ok(Statfs { block_bytes: 4096, name_max: 255, files: self.nodes.len() as u64, ..Statfs::default() })
    }

    fn open(&self, _caller: Caller, number: u64, _flags: OpenFlags) -> Result<Opened> {
        self.file(number)?;
        Ok(Opened { handle: number, flushes: false, keep_cache: true })
    }

    fn read(&self, number: u64, _handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.file(number)?.read(&Reader::new(&self.store), offset, len as u64, out)
    }

    fn seek(&self, number: u64, _handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        let len = self.file(number)?.len()?;
        match to {
            _ if offset >= len => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(len),
        }
    }

    fn release(&self, _number: u64, _handle: Handle) {}

    fn open_dir(&self, _caller: Caller, number: u64) -> Result<Opened> {
        self.directory(number)?;
        Ok(Opened { handle: number, flushes: false, keep_cache: true })
    }

    fn read_dir(
        &self,
        number: u64,
        _handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        let (parent, names) = self.directory(number)?;
        let dots = [(&b"."[..], number), (&b".."[..], parent)].into_iter();
        let all = dots.chain(names.iter().map(|(name, &number)| (name.as_slice(), number)));
        for (place, (name, number)) in all.enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let known = self.entry(number)?;
            let kind = known.attr.kind;
            let entry = (attributes && place > 1).then_some(known);
            if !take(&DirEntry { name, number, kind, next: place as u64 + 1, entry }) {
                break;
            }
        }
        Ok(())
    }

    fn release_dir(&self, _number: u64, _handle: Handle) {}
}

/// The mount; dropping this unmounts it.
pub struct InputsMount {
    point: PathBuf,
}

impl InputsMount {
    /// Mounts these files at `point`, an empty directory.
    ///
    /// # Errors
    /// `Denied` if nothing can be mounted.
    pub(crate) fn new(
        store: &Arc<Store>,
        files: Vec<(StorePath, Shown)>,
        point: &Path,
    ) -> outrigger_store::Result<Self> {
        let options = MountOptions {
            source: "outrigger-inputs".to_string(),
            read_only: true,
            // A component that root starts runs as nobody.
            allow_other: rustix::process::geteuid().is_root(),
            check_permissions: true,
            suid: false,
            dev: false,
            exec: false,
            threads: THREADS,
        };
        let what = || "inputs as files need a mount, and none can be made here (is there /dev/fuse, and fusermount3?)";
        let refused = |error: std::io::Error| Error::new(ErrorKind::Denied, what()).caused_by(error);
        let mounted = mount(Arc::new(Files::new(store, files)), point, &options).map_err(refused)?;
        let (ready, is_ready) = channel();
        std::thread::Builder::new()
            .name("inputs".to_string())
            .spawn(move || {
                let _ = mounted.serve(move || {
                    // The receiver may have given up.
                    let _ = ready.send(());
                });
            })
            .context(|| "starting a thread for the inputs' mount".to_string())?;
        let mount = Self { point: point.to_path_buf() };
        is_ready.recv().map_err(|_| Error::new(ErrorKind::Io, "the inputs' mount does not answer"))?;
        Ok(mount)
    }
}

impl Drop for InputsMount {
    fn drop(&mut self) {
        // Lazily: a program that was killed may still be on its way out.
        let _ = unmount(&self.point, true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_search_that_failed_is_made_again_and_one_that_succeeded_is_not() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let root = Arc::new(Root::Inline(vec![outrigger_format::Entry::Hole { len: 10 }]));
        let range = Range { root, from: 2, to: 9, path: "in".into() };
        let joined = Arc::new(Joined::new(move || match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::new(ErrorKind::Io, "the network is away")),
            _ => Ok(vec![range.clone()]),
        }));
        let shown = Shown::Joined(Arc::clone(&joined));
        assert_eq!(shown.len(), Err(Errno::IO));
        assert_eq!((shown.len(), joined.ranges().unwrap().len()), (Ok(7), 1));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
