//! Snapshots as data: the facts about one, and the one that a command takes before it removes or
//! replaces something.

mod before;
pub mod facts;

pub use before::BeforeSnapshot;
