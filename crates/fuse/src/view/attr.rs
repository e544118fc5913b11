//! Attributes of a stored inode, for `stat`.

use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time};
use outrigger_format::{Entry, Root};
use outrigger_store::meta::Inode;
use outrigger_store::read::Reader;

use crate::fs::Attr;

/// Entries of a manifest that are looked at to find a file's holes: those of a file of about a
/// gibibyte. Beyond, all counts as data.
const ENTRIES_MAX: usize = 1 << 16;

/// Attributes as `number`, with `allocated` bytes that are not in holes.
pub fn attr(number: u64, inode: &Inode, allocated: u64) -> Attr {
    let size = match inode.attributes.kind {
        FileKind::File => inode.root.len(),
        FileKind::Symlink => inode.attributes.target.len() as u64,
        _ => 0,
    };
    shown(number, &inode.attributes, inode.links, size, allocated)
}

/// Attributes as `number`, of something with so many names and bytes.
pub fn shown(number: u64, attributes: &Attributes, links: u32, size: u64, allocated: u64) -> Attr {
    let mtime = attributes.mtime;
    let OtherTimes { atime, ctime } = attributes.times.unwrap_or(OtherTimes { atime: mtime, ctime: mtime });
    Attr {
        number,
        kind: attributes.kind,
        mode: attributes.mode & 0o7777,
        links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        size,
        allocated,
        atime,
        mtime,
        ctime,
    }
}

/// Without set-id bits and device numbers. A directory's stay: there they only say which group new
/// files get.
pub fn tame(attr: Attr) -> Attr {
    let mask = if attr.kind == FileKind::Directory { 0o7777 } else { 0o1777 };
    Attr { mode: attr.mode & mask, rdev: 0, ..attr }
}

/// Attributes of a directory that is not stored.
pub fn directory(number: u64, like: &Inode, time: Time) -> Attr {
    let mut attr = attr(number, like, 0);
    (attr.kind, attr.mode, attr.links, attr.rdev, attr.size) = (FileKind::Directory, 0o555, 1, 0, 0);
    (attr.atime, attr.mtime, attr.ctime) = (time, time, time);
    attr
}

/// Bytes that are not in holes, when that is known without reading a manifest.
pub fn allocated_at_once(root: &Root) -> Option<u64> {
    match root {
        Root::Empty => Some(0),
        Root::Inline(entries) => Some(entries.iter().filter(|entry| is_data(entry)).map(Entry::len).sum()),
        Root::Tree { .. } => None,
    }
}

/// Bytes that are not in holes. A manifest that cannot be read has none: reading the file will say
/// what is wrong with it.
pub fn allocated(reader: &Reader<'_>, root: &Root) -> u64 {
    allocated_at_once(root).unwrap_or_else(|| {
        let (mut holes, mut looked_at) = (0, 0);
        let walked = reader.entries(root, 0, u64::MAX, &mut |_, entry| {
            if !is_data(&entry) {
                holes += entry.len();
            }
            looked_at += 1;
            Ok(looked_at < ENTRIES_MAX)
        });
        if walked.is_ok() { root.len().saturating_sub(holes) } else { root.len() }
    })
}

fn is_data(entry: &Entry) -> bool {
    matches!(entry, Entry::Chunk { .. })
}
