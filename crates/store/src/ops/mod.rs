//! What commands do beyond moving bytes: listing, editing, comparing and counting what is stored.
//!
//! Each operation is one function here, without a word about arguments or terminals; the command line and other edges call it.

pub mod diff;
pub mod edit;
pub mod errors;
pub mod find;
pub mod mounts;
pub mod restore;
pub mod retention;
pub mod snapshots;
pub mod stats;
pub mod status;
mod view;

pub use view::View;
