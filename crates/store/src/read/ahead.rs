//! A read from one end to the other, with a second thread that decodes ahead.
//!
//! ```text
//!  decoder: entries ─▶ place ─▶ frame into the cache, AHEAD bytes in front of the reader at most ─┐
//!  reader:  entries ─▶ place ─▶ frame from there ─▶ verify ─▶ sink ─▶ says how far it is ◀────────┘
//! ```
//!
//! So fetching and decompressing do not wait for verifying and passing on, nor the other way round.
//! Nothing depends on the decoder: it verifies nothing and passes nothing on. The reader reads
//! itself whatever the decoder could not read, or has not read yet.

use std::sync::{Condvar, Mutex};

use outrigger_format::{Entry, Root};

use super::pipeline::Reader;
use crate::error::{Error, ErrorKind, Result};

/// How many bytes it decodes ahead: some frames, and a small part of the cache of decoded frames.
const AHEAD: u64 = 4 << 20;
/// Shorter reads need no second thread.
const ALONE: u64 = 2 << 20;

/// How far the reader is.
#[derive(Default)]
struct Progress {
    at: Mutex<u64>,
    moved: Condvar,
}

/// Where it is at its end, however that comes about.
const OVER: u64 = u64::MAX;

impl Progress {
    fn set(&self, change: impl FnOnce(u64) -> u64) {
        let mut at = self.at.lock().expect("no panic while held");
        *at = change(*at);
        drop(at);
        self.moved.notify_one();
    }

    /// Waits until the reader is near byte `at`; false when there is nothing to wait for any more.
    fn wait(&self, at: u64) -> bool {
        let guard = self.at.lock().expect("no panic while held");
        let is_far = |reader: &mut u64| at.saturating_sub(*reader) > AHEAD;
        *self.moved.wait_while(guard, is_far).expect("no panic while held") != OVER
    }
}

/// Says that the reader is done, also where its sink panics.
struct Over<'a>(&'a Progress);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.set(|_| OVER);
    }
}

impl Reader<'_> {
    /// Like [`Reader::read`], with a second thread that decodes ahead: for long reads in order, if
    /// a processor is free or the packs are far away.
    ///
    /// # Errors
    /// As there.
    pub fn read_ahead(
        &self,
        root: &Root,
        offset: u64,
        len: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len).min(root.len());
        if end.saturating_sub(offset) < ALONE {
            return self.read(root, offset, len, sink);
        }
        let progress = Progress { at: Mutex::new(offset), ..Progress::default() };
        std::thread::scope(|scope| {
            let _over = Over(&progress);
            // Where there is no thread for it, it is read all the same.
            let decoder = std::thread::Builder::new().name("decode-ahead".to_string());
            let _ = decoder.spawn_scoped(scope, || self.decode_ahead(root, (offset, end), &progress));
            self.read(root, offset, len, &mut |bytes| {
                sink(bytes)?;
                progress.set(|at| at + bytes.len() as u64);
                Ok(())
            })
        })
    }

    fn decode_ahead(&self, root: &Root, (from, end): (u64, u64), progress: &Progress) {
        let mut last = None;
        // The reader meets the same error, and reports it.
        let _ = self.entries(root, from, end, &mut |at, entry| {
            if !progress.wait(at) {
                return Ok(false);
            }
            if let Entry::Chunk { fingerprint, .. } = entry {
                self.prefetch_after(&fingerprint, &mut last).or_else(|error| match error.kind() {
                    // It may be in the database, or in a pack that is not known yet: the reader
                    // looks further.
                    ErrorKind::NotFound => Ok(()),
                    _ => Err::<(), Error>(error),
                })?;
            }
            Ok(true)
        });
    }
}
