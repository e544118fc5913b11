//! Inode numbers of a mount that shows several trees.
//!
//! The same inode has the same number in every epoch of the store, but may be another file there as
//! far as a caller can tell: other bytes, another mode. So a number of the mount is made of two: a
//! *slot* for the tree and the inode's number in it.
//!
//! ```text
//!   bit 63        40 39                          0
//!       slot         inode in the store            slot 0: the mounted tree   1: .snapshots   from 2: snapshots
//! ```
//!
//! Nothing is remembered per file, and a number means the same as long as the mount lives.

use outrigger_store::meta::ROOT_INODE;
use rustix::io::Errno;

const INODE_BITS: u32 = 40;

/// Slot of the mounted tree: its numbers are the store's own.
pub const MAIN: u64 = 0;
/// Number of the directory `.snapshots`.
pub const SNAPSHOTS: u64 = 1 << INODE_BITS;
/// Slot of the first snapshot.
pub const FIRST_SNAPSHOT: u64 = 2;

/// The number of `inode` in the tree of `slot`.
///
/// # Errors
/// `EOVERFLOW` beyond 2^40 inodes or 2^24 snapshots.
pub fn join(slot: u64, inode: u64) -> Result<u64, Errno> {
    if inode >> INODE_BITS != 0 || slot >> (64 - INODE_BITS) != 0 {
        return Err(Errno::OVERFLOW);
    }
    Ok(slot << INODE_BITS | inode)
}

/// Slot and inode of a number.
pub fn split(number: u64) -> (u64, u64) {
    (number >> INODE_BITS, number & ((1 << INODE_BITS) - 1))
}

const _: () = assert!(ROOT_INODE == crate::fs::ROOT, "the kernel calls the root 1, and so does the store");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_collide() {
        assert_eq!(join(MAIN, ROOT_INODE), Ok(1));
        assert_eq!(split(SNAPSHOTS), (1, 0));
        for (slot, inode) in [(0, 1), (2, 1), (3, (1 << 40) - 1), ((1 << 24) - 1, 7)] {
            assert_eq!(split(join(slot, inode).unwrap()), (slot, inode));
        }
        assert_eq!(join(0, 1 << 40), Err(Errno::OVERFLOW));
        assert_eq!(join(1 << 24, 1), Err(Errno::OVERFLOW));
    }
}
