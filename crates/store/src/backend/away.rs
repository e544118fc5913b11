//! Stands in for packs that cannot be reached just now: for a caller that only describes the rest
//! of a store.

use outrigger_format::PackId;

use super::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};

/// See the module: every request fails.
pub struct AwayBackend {
    why: String,
}

impl AwayBackend {
    /// As it was found out by this error.
    pub fn new(error: &Error) -> Self {
        Self { why: error.to_string() }
    }

    fn fail<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::Io, self.why.clone()))
    }
}

impl Backend for AwayBackend {
    fn create(&self, _: PackId) -> Result<Box<dyn PackWriter>> {
        self.fail()
    }

    fn read_at(&self, _: PackId, _: u64, _: &mut [u8]) -> Result<()> {
        self.fail()
    }

    fn len(&self, _: PackId) -> Result<Option<u64>> {
        self.fail()
    }

    fn remove(&self, _: PackId) -> Result<()> {
        self.fail()
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.fail()
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.fail()
    }

    fn set_aside(&self, _: PackId) -> Result<()> {
        self.fail()
    }

    fn put_text(&self, _: &str, _: &str) -> Result<()> {
        self.fail()
    }

    fn text(&self, _: &str) -> Result<Option<String>> {
        self.fail()
    }

    fn texts(&self, _: &str) -> Result<Vec<String>> {
        self.fail()
    }

    fn remove_text(&self, _: &str) -> Result<()> {
        self.fail()
    }

    fn trouble(&self) -> Option<String> {
        Some(self.why.clone())
    }
}
