//! The catalogue: what packs hold of the metadata, block by block, and what can be done with it.
//!
//! ```text
//!   blocks.rs    blocks in packs ──▶ chain.rs: which of them count, how they name each other, heads (head.rs)
//!       │
//!       ▼
//!   replay.rs    a database from blocks                          rewrite.rs   blocks from a database
//!     strays.rs    directories that no record makes, and yet something lies in
//!     limbo.rs     directories that one mount's names leave without a name, until another's say where they are
//!     exact.rs     what of a commit of names and inodes can be had when some of it is lost
//!       │
//!       ▼
//!   proof.rs     is the database what the blocks say? compare.rs names what differs
//! ```

pub(crate) mod blocks;
pub(crate) mod chain;
mod compare;
mod exact;
mod head;
mod limbo;
mod merged;
pub(crate) mod proof;
pub(crate) mod replay;
pub(crate) mod rewrite;
mod strays;

pub use head::Head;
