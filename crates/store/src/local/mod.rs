//! The machine's own files: what `put` reads and `get` writes.

pub mod acl;
pub mod get;
pub mod put;
mod walk;
