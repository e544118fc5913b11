//! Keys of an encrypted store.
//!
//! A store's *keyring* holds one random secret per *epoch*; a new epoch begins when keys are
//! rotated. All other keys are derived from these secrets by BLAKE3, each for one purpose. The
//! keyring is kept in *key slots* beside the packs, each locked by something that a user has or
//! knows, and each with the [rights](Rights) of who opens it. `docs/decisions/0029-encryption.md` has the design.

pub mod domains;
pub mod kernel;
mod keyring;
pub mod known;
mod manage;
pub mod secrets;
mod slot;
pub mod slots;
pub mod text;
pub mod unlock;

pub(crate) use crate::cipher::{Aead, NONCE_LEN, TAG_LEN};
pub use crate::cipher::{DomainKey, Key, SEAL_LEN};
pub use domains::Domains;
pub use keyring::{ContentKeys, Keyring, Rights, RingId};
pub(crate) use keyring::{HEAD_LEN, PackHead};
pub use manage::{NewKeys, add_slot, remove_slot, rotate};
pub use slot::{Secret, Slot, SlotKind, require_passphrase};
