//! Seeded data for tests and benchmarks, and an exact comparison of two trees.
//!
//! A generator makes the same bytes, names, modes and times for a seed on every machine. It uses
//! integer arithmetic and the crate's own generator [`Rng`] only, no hash maps, clocks or
//! floating-point functions. A changed generator changes every number that was measured with it, so
//! golden hashes in the tests hold them still.
//!
//! | for | use |
//! | --- | --- |
//! | bytes that repeat and compress as much as asked | [`stream`] |
//! | a source tree, and its next version | [`source_tree`], [`mutate_tree`] |
//! | a virtual machine's disk, and a day of its writes | [`vm_image`], [`vm_image_updates`] |
//! | images of a long computation, one after the other | [`Search`]; of any process, [`process_image`] |
//! | blocks that are written again soon | [`rewrites`] |
//! | genomic reads | [`reads`] |
//! | text, as program source is | [`text()`] |
//! | many small files | [`small_files`] |
//! | everything a file system allows and a copy gets wrong | [`nasty_tree`] |
//! | "is the copy the same?" | [`compare_trees`] |
//! | what a file system acknowledged, is it there? | [`ack_write`], [`ack_verify`] |
//! | several processes in one directory | [`stress_job`] |
//! | what another thread or process does soon | [`eventually`] |
//! | several hosts in one directory, some of which fail | [`history`] |
//! | a test that cannot be run here | [`skipped!`], [`lacking!`] |
//!
//! The binary `outrigger-workload` offers the same to shell scripts.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use outrigger_workload::{TreeOptions, compare_trees, source_tree};
//!
//! let dir = tempfile::tempdir()?;
//! let (a, b) = (dir.path().join("a"), dir.path().join("b"));
//! source_tree(&a, &TreeOptions::new(1, 20))?;
//! source_tree(&b, &TreeOptions::new(1, 20))?;
//! assert!(compare_trees(&a, &b)?.is_empty());
//! # Ok(())
//! # }
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures, and waits, in real time")]

mod ack;
mod compare;
pub mod history;
mod image;
mod images;
mod nasty;
pub mod postgres;
mod program;
mod reads;
mod rewrites;
mod rng;
mod search;
mod skip;
mod spaced;
mod stream;
mod stress;
mod text;
mod tree;
mod wait;

pub use ack::{AckOptions, AckReport, Promise, ack_verify, ack_write};
pub use compare::{CompareOptions, Difference, Kind, Side, What, compare_trees, compare_trees_with};
pub use image::{ImageUpdates, vm_image, vm_image_updates};
pub use images::process_image;
pub use nasty::{NastyOptions, NastyReport, nasty_tree};
pub use program::write_program;
pub use reads::{ReadFormat, reads};
pub use rewrites::{Rewrite, rewrite_bytes, rewrites};
pub use rng::Rng;
pub use search::Search;
pub use skip::{Lack, say_skipped};
pub use spaced::spaced;
pub use stream::{Stream, StreamOptions, stream};
pub use stress::{Done, StressOptions, stress_finish, stress_job, stress_start};
pub use text::text;
pub use tree::{
    MutateOptions, MutateSummary, TreeOptions, TreeSummary, mutate_tree, small_files, source_tree,
};
pub use wait::eventually;

use std::io;
use std::path::Path;

/// Adds the path to an I/O error; the kind stays.
fn about(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Sets the modification time of `path` itself (a symlink is not followed); the access time becomes
/// the same.
fn set_mtime(path: &Path, secs: i64, nanos: u32) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from).map_err(about(path))
}
