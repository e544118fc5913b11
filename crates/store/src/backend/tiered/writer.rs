//! Writes a pack to the first tier that takes all of it.

use std::io::IoSlice;
use std::sync::Arc;

use outrigger_format::PackId;

use super::{PackWriter, Place};
use crate::error::{Error, ErrorKind, Result};

pub(super) struct Spilling {
    id: PackId,
    places: Arc<[Place]>,
    at: usize,
    /// `None` after a failure.
    writer: Option<Box<dyn PackWriter>>,
    /// The appended bytes, as long as there is a tier to go on to.
    kept: Vec<u8>,
    bytes: u64,
    is_finished: bool,
}

impl Spilling {
    pub fn create(id: PackId, places: &Arc<[Place]>, first: usize) -> Result<Self> {
        let mut spilling = Self {
            id,
            places: Arc::clone(places),
            at: first,
            writer: None,
            kept: Vec::new(),
            bytes: 0,
            is_finished: false,
        };
        match spilling.places[first].backend.create(id) {
            Ok(writer) => spilling.writer = Some(writer),
            Err(error) => spilling.spill(error)?,
        }
        Ok(spilling)
    }

    fn is_last(&self) -> bool {
        self.at + 1 == self.places.len()
    }

    /// If the error is that this tier is full, goes on in the next tier that takes all bytes;
    /// returns any other error.
    fn spill(&mut self, mut why: Error) -> Result<()> {
        while why.kind() == ErrorKind::Full && !self.is_last() {
            // Before anything lies below: readers look above first.
            drop(self.writer.take());
            self.places[self.at].backend.remove(self.id)?;
            self.at += 1;
            match self.begin_again() {
                Ok(writer) => {
                    self.writer = Some(writer);
                    if self.is_last() {
                        self.kept = Vec::new();
                    }
                    return Ok(());
                }
                Err(error) => why = error,
            }
        }
        self.writer = None;
        Err(why)
    }

    fn begin_again(&self) -> Result<Box<dyn PackWriter>> {
        let mut writer = self.places[self.at].backend.create(self.id)?;
        if !self.kept.is_empty() {
            writer.append(&[IoSlice::new(&self.kept)])?;
        }
        if self.is_finished {
            writer.finish()?;
        }
        Ok(writer)
    }

    fn open(&mut self) -> Result<&mut Box<dyn PackWriter>> {
        let failed = || Error::new(ErrorKind::Io, format!("an earlier write to pack {} failed", self.id));
        self.writer.as_mut().ok_or_else(failed)
    }
}

impl PackWriter for Spilling {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        let is_last = self.is_last();
        if !is_last {
            parts.iter().for_each(|part| self.kept.extend_from_slice(part));
        }
        self.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        match self.open()?.append(parts) {
            Err(error) => self.spill(error),
            done => done,
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.is_finished = true;
        match self.open()?.finish() {
            Err(error) => self.spill(error),
            done => done,
        }
    }

    fn seal(mut self: Box<Self>) -> Result<()> {
        self.open()?;
        loop {
            let writer = self.writer.take().expect("it is open");
            match writer.seal() {
                Ok(()) => break,
                Err(error) => self.spill(error)?,
            }
        }
        self.places[self.at].add(self.bytes);
        Ok(())
    }
}
