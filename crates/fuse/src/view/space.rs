//! What `statfs` says of a store.

use outrigger_store::disk::Disk;
use outrigger_store::{Result, Store};

use crate::fs::Statfs;

const BLOCK_BYTES: u32 = 4096;

/// Used is what the store's packs take on the disk, free is what that disk has free for content: so `df` shows what deduplication and compression
/// left, and `du` what the files would take without. `files`: inodes in the tree, 0 when that is not known. As many more as there are free
/// blocks can be made.
///
/// # Errors
/// When the database or the disk cannot be asked.
pub fn statfs(store: &Store, files: u64) -> Result<Statfs> {
    let used = store.stored_bytes()?;
    let disk = rustix::fs::statvfs(store.home().path()).map_err(std::io::Error::from);
    let disk = outrigger_store::Context::context(disk, || format!("cannot ask {}", store.dir().display()))?;
    let blocks = |count: u64| count.saturating_mul(disk.f_frsize) / u64::from(BLOCK_BYTES);
    let kept = Disk::told(&disk).filter(|_| store.has_packs_beside()).map_or(0, |disk| disk.floor());
    let kept = kept / u64::from(BLOCK_BYTES);
    let free = blocks(disk.f_bfree).saturating_sub(kept);
    Ok(Statfs {
        block_bytes: BLOCK_BYTES,
        blocks: used.div_ceil(BLOCK_BYTES.into()).saturating_add(free),
        blocks_free: free,
        blocks_available: blocks(disk.f_bavail).saturating_sub(kept),
        files: files.saturating_add(free),
        files_free: free,
        name_max: outrigger_store::tree::NAME_MAX as u32,
    })
}
