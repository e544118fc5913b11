//! One entry that is not a directory: whether it has changed, whether it is another name of a known
//! file, and the item to submit.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_format::Domain;
use outrigger_format::catalogue::{Attributes, FileKind};
use rustix::fs::Stat;

use super::Putter;
use super::level::{Level, display_of, join};
use crate::error::Result;
use crate::file::{SourceStat, kind_of, path_xattrs, source_stat, xattrs};
use crate::local::walk::proc_path;
use crate::meta::{Change, Inode};
use crate::write::{Content, FileItem, Item, Progress, SourceFile, Step, Target};

impl Putter<'_> {
    /// Puts something that is not a directory.
    pub(super) fn put_entry(
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
        if stat.st_nlink > 1
            && let Some(&inode) = self.links.get(&(stat.st_dev, stat.st_ino, level.domain))
        {
            return self.put_link(level, name, inode, existing);
        }
        let over = existing.is_some();
        let existing = existing.filter(|existing| existing.attributes.kind != FileKind::Directory);
        let (inode, torn) = self.choose_inode(kind, stat, existing, level.domain)?;
        let same_inode = existing.filter(|existing| existing.number == inode);
        let source_stat = source_stat(stat);
        if kind == FileKind::File {
            self.progress.bytes_expected.fetch_add(source_stat.size, Ordering::Relaxed);
            if same_inode.is_some_and(|existing| self.is_unchanged(existing, &source_stat)) {
                Progress::add(&self.progress.files_unchanged, 1);
                Progress::add(&self.progress.bytes_unchanged, source_stat.size);
                return Ok(());
            }
        } else {
            self.summary.others += 1;
        }
        let attributes = match attributes_of(&level.dir, source_name, kind, stat) {
            Ok(attributes) => attributes.in_domain(level.domain),
            Err(errno) => {
                let display = display_of(level, source_name);
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(());
            }
        };
        let step = if over { Step::Changed } else { Step::Added };
        if kind != FileKind::File {
            if same_inode.is_some_and(|existing| existing.attributes == attributes) {
                return Ok(());
            }
            self.tell(level, name, step);
            return self.submit_plain(level.inode, name, inode, attributes, torn, over);
        }
        let within = join(&level.relative, source_name);
        let oracle = self.oracle(&within, level.policy, Some(source_stat.size))?;
        let item = Item::File(FileItem {
            to: Target::Put { parent: level.inode, name: name.to_vec(), inode, replace: torn },
            attributes,
            content: Content::File(self.source_file(level, source_name, source_stat)),
            chunker: level.policy.chunker,
            codec: level.policy.codec,
            dedup: level.policy.dedup,
            frame: None,
            oracle,
        });
        self.tell(level, name, step);
        self.submit(item, over)
    }

    /// The inode that an entry of `kind` gets in place of `existing`, and whether it leaves an inode
    /// that keeps other names: one of the store with several names goes on being one only for the
    /// names that the source links too.
    fn choose_inode(
        &mut self,
        kind: FileKind,
        stat: &Stat,
        existing: Option<&Inode>,
        domain: Domain,
    ) -> Result<(u64, bool)> {
        let source = (stat.st_dev, stat.st_ino);
        let torn = existing.is_some_and(|existing| {
            existing.links > 1 && *self.claimed.entry(existing.number).or_insert(source) != source
        }) || existing.is_some_and(|existing| existing.links > 1 && stat.st_nlink == 1);
        let inode = match existing {
            Some(existing) if !torn && existing.attributes.kind == kind => existing.number,
            _ => self.next_inode()?,
        };
        if stat.st_nlink > 1 {
            self.links.insert((source.0, source.1, domain), inode);
        }
        Ok((inode, torn))
    }

    fn source_file(&self, level: &Level, name: &[u8], stat: SourceStat) -> SourceFile {
        SourceFile {
            dir: Arc::clone(&level.dir),
            name: name.to_vec(),
            display: display_of(level, name).display().to_string().into(),
            stat,
            scan_start: self.scan_start,
        }
    }

    /// True for a file that needs not be read, because its stamp and size are those of the store.
    fn is_unchanged(&self, existing: &Inode, source: &SourceStat) -> bool {
        let stamp = source.stamp(self.scan_start);
        let is_same = stamp != 0 && existing.stamp == stamp && existing.root.len() == source.size;
        is_same && !self.options.rescan && self.oracle.is_none()
    }

    /// Makes `name` another name of `inode`, in place of its present inode.
    pub(super) fn put_link(
        &mut self,
        level: &Level,
        name: &[u8],
        inode: u64,
        existing: Option<&Inode>,
    ) -> Result<()> {
        let parent = level.inode;
        if let Some(existing) = existing {
            if existing.number == inode {
                return Ok(());
            }
            let name = name.to_vec();
            self.submit(Item::Change(Change::Remove { parent, name, recursive: true }), true)?;
        }
        self.tell(level, name, if existing.is_some() { Step::Changed } else { Step::Added });
        let link = Change::Link { parent, name: name.to_vec(), inode };
        self.submit(Item::Change(link), false)
    }
}

pub(super) fn directory_attributes(dir: &OwnedFd, stat: &Stat) -> Result<Attributes, rustix::io::Errno> {
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
        times: None,
    })
}

/// Attributes of anything but a directory; a regular file's extended attributes are read when it is
/// opened.
pub(super) fn attributes_of(
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
    let SourceStat { mode, uid, gid, mtime, .. } = source;
    Ok(Attributes { kind, mode, uid, gid, mtime, rdev, target, xattrs, times: None })
}
