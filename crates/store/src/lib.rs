//! The store engine: write and read pipelines, index, metadata, pack backends, reclaiming,
//! checking.
//!
//! Where a byte goes: [`local::put`] finds it, [`mod@write`] cuts, names, deduplicates, compresses,
//! packs and commits it; [`local::get`] finds its name in [`meta`], [`read`] fetches and verifies
//! it. `docs/architecture.md` has the picture.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]

pub mod backend;
pub mod catalogue;
pub mod check;
mod cipher;
pub mod config;
pub mod copy;
mod counters;
mod devices;
mod digits;
pub mod disk;
mod error;
pub mod file;
mod follow;
pub mod gc;
mod health;
pub mod home;
pub mod host;
pub mod increments;
pub mod index;
pub mod inline;
pub mod keys;
pub mod latency;
mod layout;
mod links;
pub mod local;
mod lock_files;
pub mod meta;
pub mod note;
pub mod ops;
mod owner;
mod stale;
pub use owner::open_below;
mod leftovers;
pub mod packs;
pub mod parity;
pub mod patterns;
pub mod policy;
pub mod publish;
pub mod read;
pub mod rebalance;
pub mod recover;
mod runtime;
mod sealed;
pub mod session;
pub mod shared;
pub mod snapshot;
mod space;
pub mod staging;
mod store;
pub mod table_cache;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod text;
pub mod tree;
mod verified;
pub mod wait;
pub mod write;

pub use config::{Profile, StoreConfig};
pub use error::{Context, Error, ErrorKind, Result, Unanswered};
pub use layout::DATABASE_FILE;
pub use meta::records as registry;
pub use store::Store;
pub use verified::{Verified, VerifiedCounts};
