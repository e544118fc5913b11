//! The registry: typed records by which clients of a store tell each other what goes on.
//!
//! A [`Record`] is a row of the database, found by its kind and its name, with its fields as JSON.
//! Mounts, agents, open files, deferred closes, rules, and what the catalogue still lacks are such
//! records. Most belong to a session. A client that is killed leaves its records behind, so whoever
//! reads them asks whether their sessions are live, and
//! [`Store::sweep_records`](crate::Store::sweep_records) removes the rest.
//!
//! A record that this program cannot read was written by another version of it. [`Registry::all`]
//! passes over it. Where a record that is missed would do harm, readers ask by [`Registry::each`],
//! [`Registry::get`] or [`Registry::has`].

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Meta, SessionId};
use crate::error::{Context as _, Error, ErrorKind, Result};

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
    /// Replaces a record whose text is `was`, or removes it (`None`). Returns false if its text is
    /// another one, or it is gone.
    fn swap_record(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool>;
}

/// A kind of record.
pub trait Record: Serialize + DeserializeOwned {
    /// Tells records of this kind from all others.
    const KIND: &'static str;

    /// What the record is found by. No other record of its kind has this name.
    fn name(&self) -> String;

    /// The session that the record ends with.
    fn session(&self) -> Option<SessionId> {
        None
    }
}

/// A record as it is in the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered<R> {
    /// The record.
    pub record: R,
    /// When it was written, nanoseconds since 1970 by the database's clock.
    pub changed: u64,
    /// Who made it; see [`RecordRow::by`].
    pub by: Option<MadeBy>,
    name: String,
    text: String,
}

impl<R: Record> Registered<R> {
    fn read(RecordRow { name, value: text, changed, by }: RecordRow) -> Result<Self> {
        let newer = || {
            let why = format!("{} `{name}` was written by another version of this program", R::KIND);
            Error::new(ErrorKind::Newer, why)
        };
        let record: R = serde_json::from_str(&text).map_err(|error| newer().caused_by(error))?;
        if record.name() != name {
            return Err(newer());
        }
        Ok(Self { record, changed, by, name, text })
    }
}

/// The records of a database.
#[derive(Clone, Copy)]
pub struct Registry<'a>(&'a dyn Records);

fn encode<R: Record>(record: &R) -> Result<String> {
    serde_json::to_string(record).map_err(std::io::Error::from).context(|| format!("writing a {}", R::KIND))
}

#[allow(clippy::should_implement_trait, reason = "no sum: it adds a row")]
impl<'a> Registry<'a> {
    /// Those of this database.
    pub fn of(meta: &'a dyn Meta) -> Self {
        Self(meta.records())
    }

    /// Every record of a kind by its name, or `Newer` for one that this program cannot read.
    ///
    /// # Errors
    /// Those of the database.
    pub fn each<R: Record>(self) -> Result<Vec<(String, Result<Registered<R>>)>> {
        let rows = self.0.records(R::KIND)?.into_iter();
        Ok(rows.map(|row| (row.name.clone(), Registered::read(row))).collect())
    }

    /// The records of a kind that this program can read, by name.
    ///
    /// # Errors
    /// Those of the database.
    pub fn all<R: Record>(self) -> Result<Vec<Registered<R>>> {
        Ok(self.0.records(R::KIND)?.into_iter().filter_map(|row| Registered::read(row).ok()).collect())
    }

    /// The record of this name, if there is one.
    ///
    /// # Errors
    /// Those of the database, and `Newer` where this program cannot read it.
    pub fn get<R: Record>(self, name: &str) -> Result<Option<Registered<R>>> {
        let found = self.0.records(R::KIND)?.into_iter().find(|row| row.name == name);
        found.map(Registered::read).transpose()
    }

    /// True if there is a record of a kind, be it one that this program cannot read.
    ///
    /// # Errors
    /// Those of the database.
    pub fn has<R: Record>(self) -> Result<bool> {
        Ok(!self.0.records(R::KIND)?.is_empty())
    }

    /// The first record of a kind that is as asked for, of those that this program can read.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find<R: Record>(self, is_it: impl Fn(&R) -> bool) -> Result<Option<Registered<R>>> {
        Ok(self.all()?.into_iter().find(|found: &Registered<R>| is_it(&found.record)))
    }

    /// Writes a record over the one of its name, if there is one.
    ///
    /// # Errors
    /// Those of the database.
    pub fn put<R: Record>(self, record: &R) -> Result<()> {
        self.0.set_record(R::KIND, &record.name(), Some(&encode(record)?))
    }

    /// Adds a record. Returns false, and changes nothing, if there is one of its name.
    ///
    /// # Errors
    /// Those of the database.
    pub fn add<R: Record>(self, record: &R) -> Result<bool> {
        self.0.add_record(R::KIND, &record.name(), &encode(record)?)
    }

    /// Replaces a record by another of the same name. Returns false, and changes nothing, if it is
    /// not what was read any more.
    ///
    /// # Errors
    /// Those of the database.
    pub fn replace<R: Record>(self, was: &Registered<R>, to: &R) -> Result<bool> {
        self.0.swap_record(R::KIND, &was.name, &was.text, Some(&encode(to)?))
    }

    /// Removes the record of this one's name, whatever else it says.
    ///
    /// # Errors
    /// Those of the database.
    pub fn remove<R: Record>(self, record: &R) -> Result<()> {
        self.0.set_record(R::KIND, &record.name(), None)
    }

    /// Removes a record that says exactly this. Returns whether there was one.
    ///
    /// # Errors
    /// Those of the database.
    pub fn take<R: Record>(self, record: &R) -> Result<bool> {
        self.0.swap_record(R::KIND, &record.name(), &encode(record)?, None)
    }

    /// Removes a record as it was read. Returns false if it is another one by now, or gone.
    ///
    /// # Errors
    /// Those of the database.
    pub fn take_read<R: Record>(self, read: &Registered<R>) -> Result<bool> {
        self.0.swap_record(R::KIND, &read.name, &read.text, None)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::meta::{OpenMode, SqliteMeta};

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Lamp {
        room: String,
        watts: u32,
    }

    impl Record for Lamp {
        const KIND: &'static str = "lamp";

        fn name(&self) -> String {
            self.room.clone()
        }
    }

    fn lamp(room: &str, watts: u32) -> Lamp {
        Lamp { room: room.to_owned(), watts }
    }

    #[test]
    fn a_record_changes_only_from_what_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let meta = SqliteMeta::open(&dir.path().join("meta.db"), OpenMode::Create).unwrap();
        let registry = Registry::of(&meta);
        assert!(registry.add(&lamp("hall", 40)).unwrap() && !registry.add(&lamp("hall", 60)).unwrap());
        let read = registry.get::<Lamp>("hall").unwrap().unwrap();
        assert!(registry.replace(&read, &lamp("hall", 60)).unwrap());
        assert!(!registry.replace(&read, &lamp("hall", 80)).unwrap() && !registry.take_read(&read).unwrap());
        assert!(!registry.take(&lamp("hall", 40)).unwrap() && registry.take(&lamp("hall", 60)).unwrap());
        assert!(!registry.has::<Lamp>().unwrap());
        registry.put(&lamp("hall", 1)).unwrap();
        registry.put(&lamp("hall", 2)).unwrap();
        assert_eq!(registry.find(|_: &Lamp| true).unwrap().unwrap().record, lamp("hall", 2));
        registry.remove(&lamp("hall", 3)).unwrap();
        assert!(registry.all::<Lamp>().unwrap().is_empty());
    }

    #[test]
    fn a_record_of_another_version_is_passed_over_or_reported() {
        let dir = tempfile::tempdir().unwrap();
        let meta = SqliteMeta::open(&dir.path().join("meta.db"), OpenMode::Create).unwrap();
        let registry = Registry::of(&meta);
        registry.put(&lamp("hall", 40)).unwrap();
        meta.set_record("lamp", "attic", Some("{\"room\": \"attic\"}")).unwrap();
        // What it says of itself is not what it is found by.
        meta.set_record("lamp", "cellar", Some("{\"room\": \"hall\", \"watts\": 9}")).unwrap();
        assert_eq!(registry.all::<Lamp>().unwrap().len(), 1);
        let each = registry.each::<Lamp>().unwrap();
        let kinds = each.iter().map(|(name, read)| (name.as_str(), read.as_ref().err().map(Error::kind)));
        let newer = Some(ErrorKind::Newer);
        assert_eq!(kinds.collect::<Vec<_>>(), [("attic", newer), ("cellar", newer), ("hall", None)]);
        assert_eq!(registry.get::<Lamp>("attic").unwrap_err().kind(), ErrorKind::Newer);
        assert!(registry.get::<Lamp>("roof").unwrap().is_none() && registry.has::<Lamp>().unwrap());
    }
}
