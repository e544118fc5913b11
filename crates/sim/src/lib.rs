//! Several hosts of Outrigger in one process, on virtual time, ordered by a seed: the same seed
//! gives the same run.

mod cluster;
pub mod disks;
pub mod history;
pub mod host;
mod jobs;
mod life;
pub mod link;
pub mod locks;
mod pack_bytes;
pub mod packs;
pub mod planted;
mod program;
mod real;
mod rot;
pub mod run;
pub mod scheduler;
pub mod script;
pub mod servers;
mod shim;
pub mod work;
