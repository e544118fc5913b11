//! The work of commands besides moving bytes: listing, editing, comparing and counting stored data.
//!
//! Each operation is one function here, and knows nothing of arguments or terminals; the command
//! line and other edges call it.

pub mod diff;
pub mod edit;
pub mod errors;
pub mod find;
pub mod mounts;
pub mod own_keys;
pub mod restore;
pub mod retention;
pub mod snapshots;
pub mod stats;
pub mod status;
mod view;

pub use view::View;
