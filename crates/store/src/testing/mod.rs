//! Tools for tests: rules for every backend, backends that fail on purpose, damage, and crash
//! states.
//!
//! Compiled for this crate's own tests and with the feature `testing`; no part of the public
//! interface.

pub mod conformance;
pub mod crash;
pub mod damage;
pub mod faulty;
pub mod full;
pub mod gateway;
mod meta_calls;
pub mod s3;
pub mod wrapped;

pub use crate::write::{Met, cut_in_segments};
pub use faulty::{Fault, FaultyBackend, Op, Plan};
pub use wrapped::{Wrapped, spread};

/// A plain connection to a metadata database, with the function that its schema uses: for changes
/// that no method makes.
///
/// # Errors
/// SQLite's.
pub fn database(path: &std::path::Path) -> rusqlite::Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path)?;
    crate::meta::register_functions(&connection)?;
    Ok(connection)
}

/// This process, which carries out a command and holds no lock.
#[must_use]
pub fn owner(command: &str) -> crate::meta::SessionOwner {
    crate::meta::SessionOwner::this(String::new(), command.into())
}

/// An error of a commit that may have happened all the same; `token` is the engine's own number for
/// it.
#[must_use]
pub fn lost_answer(error: crate::Error, token: i64) -> crate::Error {
    error.without_answer(crate::Unanswered { lane: 0, token })
}

/// The number that [`lost_answer`] was given.
pub fn token_of(unanswered: crate::Unanswered) -> i64 {
    unanswered.token
}
