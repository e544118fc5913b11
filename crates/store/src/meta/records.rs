//! The registry's table: small texts that clients leave for each other, by kind and name. [`crate::registry`] gives them types.

use crate::error::Result;

/// The database role that made a row, as the server has authenticated it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeBy {
    /// Its name. `None`: the row came with a copy.
    pub role: Option<String>,
    /// The role that asks.
    pub asks: String,
}

/// A row of the registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordRow {
    /// Its name, unique among its kind.
    pub name: String,
    /// Its text.
    pub value: String,
    /// When it was written, nanoseconds since 1970 by the database's clock.
    pub changed: u64,
    /// The role that made it. Only PostgreSQL has roles; it says of rules alone who made them.
    pub by: Option<MadeBy>,
}

/// Rows of the registry. Each method is a transaction of its own.
pub trait Records: Send + Sync {
    /// The records of a kind, by name.
    fn records(&self, kind: &str) -> Result<Vec<RecordRow>>;
    /// Writes a record over the one of its name, if there is one; `None` removes it.
    fn set_record(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()>;
    /// Adds a record. Returns false, and changes nothing, if there is one of that name.
    fn add_record(&self, kind: &str, name: &str, value: &str) -> Result<bool>;
    /// Replaces a record whose text is `was`, or removes it (`None`). Returns false if its text is another one, or it is gone.
    fn swap_record(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool>;
}
