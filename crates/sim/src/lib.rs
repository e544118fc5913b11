//! Several hosts of Outrigger in one process, on virtual time, as a seed says: the same seed, the same run.

mod cluster;
pub mod history;
pub mod host;
mod life;
pub mod link;
pub mod locks;
pub mod packs;
pub mod planted;
mod program;
mod real;
pub mod run;
pub mod scheduler;
pub mod script;
pub mod servers;
mod shim;
