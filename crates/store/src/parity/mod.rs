//! Parity over packs: redundancy within one place, from which lost and rotten packs are made anew.
//!
//! ```text
//!   group    K packs at most, as the engine has them (ciphertext in an encrypted store)
//!              ─▶ code.rs, by stripes of 1 MiB ─▶ M parity files, each of which describes all of the group
//!   lost     any M packs or parity files of a group
//!              ─▶ K others, compared with the hashes in the description ─▶ code.rs ─▶ the pack
//! ```
//!
//! The parity files are all there is: no database knows groups (`groups` reads their
//! descriptions). Only the collector and `check --repair` make and remove groups, and both hold the
//! collector's lease (`upkeep`). A pack is read and verified before it enters a group. A pack that
//! is made anew is verified before anything is changed (`heal`).
//!
//! **Order.** A new group is durable before a group that it replaces is removed. Only then the
//! collector removes the objects of packs that it has deleted. Until then they help to make the
//! other packs of their groups anew. A run that dies leaves groups that lack files, or that others
//! have replaced. The next run replaces and removes them. A group never describes other bytes than
//! those that its parity was made of: it has their hashes.

mod code;
mod groups;
mod heal;
mod sound;
mod upkeep;

use crate::backend::Backend;
use crate::store::Store;

pub(crate) use groups::{Group, survey};
pub(crate) use heal::Healer;
pub(crate) use upkeep::keep;
pub use upkeep::{Reach, Upkeep, reach};

/// The engine that has the packs as they are stored.
fn stored(store: &Store) -> &dyn Backend {
    store.backend.stored().unwrap_or(&*store.backend)
}
