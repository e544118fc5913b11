//! A store's sizes, for `statfs`.

use outrigger_store::disk::Disk;
use outrigger_store::{Result, Store};

use crate::fs::Statfs;

const BLOCK_BYTES: u32 = 4096;

/// The used space is that of the store's packs on the disk; the free space is the disk's that
/// content may take. So `df` shows the size after deduplication and compression, and `du` the size
/// without. `files`: inodes in the tree, 0 if unknown. As many more can be made as there are free
/// blocks.
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
