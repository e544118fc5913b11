//! Snapshots as data: what is known of one, and the one that a command takes before it removes or replaces something.

mod before;
pub mod facts;

pub use before::BeforeSnapshot;
