//! Remembers which packs of other clients this host has compared with their data. Writers rely on
//! no others.
//!
//! The index believes footers, and a footer says which chunks its pack has. A wrong footer (from
//! bad memory, a bug, or somebody who means harm) would make every other client leave those chunks
//! out. So where clients on other hosts publish packs, a hit counts only if this host has read,
//! decoded and hashed the frame, and found in it what the footer says. Packs of this host need no
//! such proof.
//!
//! ```text
//!  worker: a batch is named ─▶ looked up ─▶ frames of others that were never read here ─▶ read, hash, compare      (in parallel, before its turn)
//!  sequencer: looked up again ─▶ a hit in a frame that is vouched for: stored │ in any other: a miss, the chunk is stored again
//! ```
//!
//! **What it costs.** A host reads a frame at most once for this, and only if a writer wants a
//! chunk in it. It reads the frames in the order in which they were written, so an engine's
//! read-ahead helps. Frames that ordinary reads have verified count too. No writer waits for a
//! frame that an engine cannot give: that is a miss.
//!
//! **What is remembered**: a bit for each frame, a word for each pack that is verified as a whole,
//! and the corrupt packs, of which no frame counts any more. It is kept in this host's directory
//! (`file.rs`), and may be lost: then frames are read once more. It takes at most some 64 bytes a
//! pack as a rule. Packs that are gone leave it when the store is opened.
//!
//! A pack is never changed, and its id is never used again. So one comparison holds for the pack's
//! life. `check` looks for damage that comes later.

mod file;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Fingerprint, Footer, PackId, Place, StoreId};
use serde::Serialize;

use crate::error::{ErrorKind, Result};
use crate::index::{Footers, Index};
use crate::packs::PackReader;
use file::VerifiedFile;

/// How often the record is written at most, besides the last time.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The state of one pack.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Known {
    /// The footer is right for the whole pack, or this host wrote it.
    Whole,
    /// A frame's footer entries do not match its data.
    Corrupt,
    /// Has a bit for each frame that was compared.
    Frames(Vec<u64>),
}

type Packs = HashMap<PackId, Known>;

/// Counts since the store was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifiedCounts {
    /// Frames of other clients that were read for the comparison.
    pub frames: u64,
    /// Their raw bytes.
    pub bytes: u64,
    /// Packs whose footers were found to be wrong.
    pub corrupt: Vec<u64>,
}

/// See the module.
pub struct Verified {
    known: RwLock<Packs>,
    /// Packs that could not be read: not asked again by this process.
    unreadable: RwLock<HashSet<PackId>>,
    /// Frames that a thread is reading.
    reading: Mutex<HashSet<(PackId, u16)>>,
    done: Condvar,
    frames: AtomicU64,
    bytes: AtomicU64,
    /// Packs that were found corrupt since the store was opened.
    caught: Mutex<BTreeSet<PackId>>,
    file: VerifiedFile,
    changed: AtomicBool,
    saved: Mutex<Instant>,
}

/// Held by the thread that reads a frame. Dropping it wakes the threads that wait for the frame,
/// however the read ended.
struct Turn<'a> {
    verified: &'a Verified,
    frame: (PackId, u16),
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.verified.reading.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.frame);
        self.verified.done.notify_all();
    }
}

impl Verified {
    /// Reads the record of the packs of `store` from the file at `path`. `live` is false for packs
    /// that are gone for good.
    pub(crate) fn open(
        path: PathBuf,
        store: StoreId,
        live: impl Fn(PackId) -> bool + Send + Sync + 'static,
    ) -> Self {
        let file = VerifiedFile::new(path, store, Box::new(live));
        Self {
            known: RwLock::new(file.read()),
            unreadable: RwLock::default(),
            reading: Mutex::default(),
            done: Condvar::new(),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            caught: Mutex::default(),
            file,
            changed: AtomicBool::new(false),
            saved: Mutex::new(Instant::now()),
        }
    }

    /// Records a pack that this host has made.
    pub(crate) fn note_own(&self, pack: PackId) {
        self.set(pack, Known::Whole);
        self.save_now_and_then();
    }

    /// Records that all chunks of frame `number` were read and match the footer. The pack has
    /// `frames` frames.
    pub(crate) fn note_frame(&self, pack: PackId, number: u16, frames: usize) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry(pack).or_insert_with(|| Known::Frames(vec![0; frames.div_ceil(64)]));
        let Known::Frames(bits) = entry else { return };
        if let Some(word) = bits.get_mut(usize::from(number) / 64) {
            *word |= 1 << (number % 64);
        }
        if bits.iter().map(|word| word.count_ones() as usize).sum::<usize>() == frames {
            *entry = Known::Whole;
        }
        self.changed.store(true, Ordering::Relaxed);
    }

    fn set(&self, pack: PackId, what: Known) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.insert(pack, what.clone()) != Some(what) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Says whether a frame matched its footer; `None` if it was not compared yet.
    fn answer(&self, pack: PackId, number: u16) -> Option<bool> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let told = match known.get(&pack)? {
            Known::Whole => true,
            Known::Corrupt => false,
            Known::Frames(bits) => {
                let word = bits.get(usize::from(number) / 64).copied().unwrap_or_default();
                return (word >> (number % 64) & 1 == 1).then_some(true);
            }
        };
        Some(told)
    }

    fn is_unreadable(&self, pack: PackId) -> bool {
        self.unreadable.read().unwrap_or_else(PoisonError::into_inner).contains(&pack)
    }

    /// True if a lookup should skip a pack because it is corrupt or cannot be read. The lookup then
    /// finds a copy in another pack, if there is one.
    pub(crate) fn is_ruled_out(&self, pack: PackId) -> bool {
        self.is_corrupt(pack) || self.is_unreadable(pack)
    }

    /// True if a pack was found corrupt: no frame of it counts.
    pub(crate) fn is_corrupt(&self, pack: PackId) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&pack) == Some(&Known::Corrupt)
    }

    /// True if every frame of a pack is verified.
    pub(crate) fn is_whole(&self, pack: PackId) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&pack) == Some(&Known::Whole)
    }

    /// True if writers may rely on the index's answer `place`, from what is known now. Reads at
    /// most a footer.
    ///
    /// # Errors
    /// When the footer cannot be read for now.
    pub(crate) fn vouches(&self, footers: &Footers, place: Place) -> Result<bool> {
        if self.is_whole(place.pack) {
            return Ok(true);
        }
        let frame = footers.get(place.pack)?.and_then(|footer| footer.position(place.slot));
        Ok(frame.and_then(|(number, _)| self.answer(place.pack, number)).unwrap_or(false))
    }

    /// Finds the frames in which `fingerprints` lie, and compares those that were not compared yet.
    /// [`Verified::vouches`] then has the results.
    ///
    /// # Errors
    /// Those of the index. A frame that cannot be read is no error.
    pub(crate) fn compare(
        &self,
        packs: &PackReader,
        index: &Index,
        fingerprints: &[Fingerprint],
    ) -> Result<()> {
        let mut places = Vec::new();
        index.resolve_batch(fingerprints, |pack| !self.is_ruled_out(pack), &mut places)?;
        places.retain(|place| place.is_some_and(|place| !self.is_whole(place.pack)));
        let mut seen = BTreeSet::new();
        for place in places.into_iter().flatten() {
            let Some(footer) = index.footers().get(place.pack)? else { continue };
            let Some((number, _)) = footer.position(place.slot) else { continue };
            if seen.insert((place.pack, number)) {
                self.compare_frame(packs, place.pack, &footer, number);
            }
        }
        self.save_now_and_then();
        Ok(())
    }

    /// True if the chunk at `place` is what the index says. Reads its frame if that was not
    /// compared yet.
    ///
    /// # Errors
    /// When the footer cannot be read for now.
    pub(crate) fn proves(&self, packs: &PackReader, index: &Index, place: Place) -> Result<bool> {
        let Some(footer) = index.footers().get(place.pack)? else { return Ok(false) };
        let Some((number, _)) = footer.position(place.slot) else { return Ok(false) };
        Ok(self.compare_frame(packs, place.pack, &footer, number))
    }

    /// Compares a frame, if that was not done yet. If several threads ask, one of them reads it.
    fn compare_frame(&self, packs: &PackReader, pack: PackId, footer: &Footer, number: u16) -> bool {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(told) = self.answer(pack, number) {
                return told;
            }
            if self.is_unreadable(pack) {
                return false;
            }
            if reading.insert((pack, number)) {
                break;
            }
            reading = self.done.wait(reading).unwrap_or_else(PoisonError::into_inner);
        }
        drop(reading);
        let _turn = Turn { verified: self, frame: (pack, number) };
        let mut told = self.is_what_it_says(packs, pack, footer, number);
        // The nearby copy may be wrong, and the pack right.
        if !matches!(told, Ok(true)) && packs.forget(pack) {
            told = self.is_what_it_says(packs, pack, footer, number);
        }
        match &told {
            Ok(true) => self.note_frame(pack, number, footer.frames().len()),
            Ok(false) => {
                self.caught.lock().unwrap_or_else(PoisonError::into_inner).insert(pack);
                self.set(pack, Known::Corrupt);
            }
            // The pack was reclaimed meanwhile, so no lookup finds it again.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => {
                self.unreadable.write().unwrap_or_else(PoisonError::into_inner).insert(pack);
            }
        }
        matches!(told, Ok(true))
    }

    /// Reads a frame and compares it with what the footer says of it.
    fn is_what_it_says(
        &self,
        packs: &PackReader,
        pack: PackId,
        footer: &Footer,
        number: u16,
    ) -> Result<bool> {
        let frame = packs.load(pack, footer, number)?;
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.header.raw_len() as u64, Ordering::Relaxed);
        let names = frame.names();
        let is_kind =
            footer.frames().get(usize::from(number)).is_some_and(|entry| entry.kind == frame.header.kind);
        let mut told = (0..).zip(footer.fingerprints()).filter_map(|(slot, fingerprint)| {
            let (frame, position) = footer.position(slot)?;
            (frame == number).then_some((usize::from(position), fingerprint))
        });
        Ok(is_kind && told.all(|(position, told)| names.get(position) == Some(told)))
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> VerifiedCounts {
        let caught = self.caught.lock().unwrap_or_else(PoisonError::into_inner);
        VerifiedCounts {
            frames: self.frames.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            corrupt: caught.iter().map(|pack| pack.0).collect(),
        }
    }

    fn save_now_and_then(&self) {
        let Ok(mut saved) = self.saved.try_lock() else { return };
        if saved.elapsed() >= SAVE_EVERY {
            self.save();
            *saved = Instant::now();
        }
    }

    /// Writes the record. If that fails, frames are compared again later.
    fn save(&self) {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = self.file.merge(known);
    }
}

impl Drop for Verified {
    fn drop(&mut self) {
        self.save();
    }
}
