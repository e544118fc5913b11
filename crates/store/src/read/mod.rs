//! The read path: manifest → places → frames → verified bytes.
//!
//! ```text
//!  root ──▶ manifest.rs: entries of a range ──▶ pipeline.rs: locate (index) ──▶ packs: fetch, check, decompress
//!                                                     │
//!                                                     ▼ verify each chunk's fingerprint, then assemble
//! ```
//!
//! Unverified bytes have no way out: [`Reader`] returns only chunks whose fingerprint it has
//! computed.

mod ahead;
pub mod manifest;
mod pipeline;
pub mod whereabouts;

pub use pipeline::{Nodes, Reader, Told};
