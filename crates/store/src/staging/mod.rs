//! The staging log of a writable mount: what it has acknowledged, until the packs and the database hold it.
//!
//! **States of a byte.** A write is *appended* (in the page cache: it survives the death of the process), then *durable*
//! (after a sync: it survives a loss of power), then *destaged* (in packs, and its file's new root in the database); then
//! its segment may be *removed*. A name-space operation is appended, durable, *committed*, removed.
//!
//! | file | holds |
//! | --- | --- |
//! | [`mod@log`] | appending, reading, removing; who may do what at the same time |
//! | `sync` | group commit: callers that wait at the same time share one sync |
//! | [`space`] | the bound on the log's size: who wants to write waits until there is room |
//! | [`usage`] | what of each segment is still needed |
//! | [`extents`] | of one file, which bytes are staged and where they lie |
//! | [`replay`] | reading the log after a crash; telling a torn tail from damage |
//! | `files` | the system calls, behind a trait, so that tests can make them fail |
//!
//! **Order of writes and syncs**, each step being on disk before the next begins where it says *durable*:
//!
//! 1. A segment is created, its header written, both *durable*; then records are appended, which are not.
//! 2. A sync: the data of every segment appended to since the last one. Only then
//!    do records count as durable, and later records say so in their headers; that is how a reader tells damage (a record is
//!    broken that was durable) from a torn tail (one that was never promised). So a segment may be filled and the next one
//!    begun without waiting for the disk.
//! 3. Segments are removed when nothing in them is needed, the oldest first, one by one, each removal durable before the next: so no crash leaves a gap
//!    between segments. What was stored and removed before it was ever synced has cost no disk anything.
//! 4. When a log is opened, a torn tail is cut off and segments behind it are removed; what is left is made durable, names
//!    included, before anything is appended: a torn segment cannot come back behind new records.
//!
//! The order towards the database and the packs is the caller's: [`log::Log::remove_dead`] is told what is committed, and data
//! is given up by [`extents::ExtentMap::settle`], only after the transaction.
//!
//! ```
//! use std::sync::Arc;
//! use outrigger_format::StoreId;
//! use outrigger_format::staging::Operation;
//! use outrigger_store::staging::{ExtentMap, Log, Options, Piece};
//!
//! # fn main() -> outrigger_store::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let (log, _) = Log::open(&dir.path().join("staging/mnt"), Options::new(StoreId([1; 16])), &mut |_| Ok(()))?;
//! let mut file = ExtentMap::new(Arc::clone(log.usage()), 0);
//! {
//!     let _room = log.reserve(4, None)?;
//!     let appended = log.append(&Operation::Write { inode: 2, offset: 0 }, b"data")?;
//!     file.write(0, &appended);
//! }
//! log.sync()?;
//! let pieces: Vec<_> = file.pieces(0..100).collect();
//! let (ref range, Piece::Data(location)) = pieces[0] else { panic!("it is staged") };
//! let mut data = [0; 4];
//! log.read(location, &mut data)?;
//! assert_eq!((range.clone(), &data), (0..4, b"data"));
//! # Ok(())
//! # }
//! ```

pub mod extents;
mod files;
pub mod log;
pub mod replay;
pub mod space;
mod sync;
pub mod usage;

#[cfg(test)]
mod tests;

pub use extents::{ExtentMap, Piece};
pub use log::{Appended, Location, Log, Options};
pub use replay::{Replayed, Report, Torn};
pub use space::{Fill, Reservation};
pub use usage::Usage;
