//! The mount: a store as a POSIX file system.
//!
//! ```text
//!   kernel ─► kernel/device/    ─► trait fs::FileSystem ─► view/: a pinned tree, read-only
//!             or kernel/uring/     inode numbers, names,    names and attributes from the metadata,
//!             kernel/wire/: FUSE   attributes, errno        bytes through the store's reader
//!             messages to calls
//! ```
//!
//! All decisions of a file system lie behind [`fs::FileSystem`], which knows no FUSE: tests drive
//! it without a kernel, and another transport would need only another adapter. [`view`] implements
//! it for reading, [`live`] for writing to a store of this machine, and [`shared`] for a store that
//! other hosts write to, too. [`kernel`] connects it to Linux; [`mounts`] lists mounts and unmounts
//! them; [`measures`] has a mount's numbers; [`reads`] reports which files programs open to read. [`beside`]
//! is for processes that use a store while it is mounted.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]

pub mod asked;
pub mod beside;
pub mod control;
mod destage_order;
pub mod fs;
pub mod kernel;
pub mod live;
pub mod measures;
pub mod mounts;
pub mod reads;
pub mod report;
pub mod running;
pub mod shared;
mod tail;
pub mod view;
