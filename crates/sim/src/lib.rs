//! Several hosts of Outrigger in one process, on virtual time, as a seed says: the same seed, the same run.

pub mod cluster;
pub mod history;
pub mod host;
pub mod link;
pub mod packs;
pub mod planted;
pub mod scheduler;
pub mod script;
mod shim;
