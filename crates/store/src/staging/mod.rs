//! The staging log of a writable mount: keeps what the mount has acknowledged until the packs and
//! the database have it.
//!
//! **States of a byte.** A write is *appended* (in the page cache: it survives the death of the
//! process), then *durable* (after a sync: it survives a loss of power), then *flushed* (in packs,
//! with its file's new root in the database). Then its segment may be *removed*. A name-space
//! operation is appended, durable, *committed*, removed.
//!
//! | file | holds |
//! | --- | --- |
//! | [`mod@log`] | appending, reading, removing; who may do what at the same time |
//! | `sync` | group commit: callers that wait at the same time share one sync |
//! | [`space`] | the bound on the log's size: writers wait until there is room |
//! | [`usage`] | which parts of each segment are still needed |
//! | [`extents`] | which bytes of one file are staged, and where they lie; which of them are due |
//! | [`replay`] | reading the log after a crash; telling a torn tail from damage |
//! | `files` | the system calls, behind a trait, so that tests can make them fail |
//! | `sealed` | the encryption of segments, where the log has a key |
//!
//! **Order of writes and syncs.** Where a step says *durable*, it is on disk before the next
//! begins:
//!
//! 1. A segment is created, its header written, both *durable*; then records are appended, which
//!    are not.
//! 2. A sync writes the data of every segment appended to since the last one. Only then do records
//!    count as durable, and later records say so in their headers. By that a reader tells damage (a
//!    broken record that was durable) from a torn tail (a record that never was). So a segment may
//!    be filled and the next one begun without waiting for the disk.
//! 3. Segments are removed when nothing in them is needed, the oldest first, each removal durable
//!    before the next. So no crash leaves a gap between segments. Data that was stored and removed
//!    before it was ever synced never went to the disk.
//! 4. When a log is opened, a torn tail is cut off and segments behind it are removed. The rest is
//!    made durable, names included, before anything is appended: a torn segment cannot come back
//!    behind new records. A log with a key then begins a new segment with the next record.
//!
//! The caller orders the log against the database and the packs. It tells [`log::Log::remove_dead`]
//! what is committed, and calls [`extents::ExtentMap::settle`] to give up data only after the
//! transaction.
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
mod sealed;
pub mod space;
mod sync;
pub mod usage;

#[cfg(test)]
mod tests;

pub use extents::{Age, Due, ExtentMap, Piece, Ranges};
pub use log::{Appended, Location, Log, Options};
pub use replay::{Replayed, Report, Torn};
pub use space::{Fill, Reservation};
pub use usage::Usage;
