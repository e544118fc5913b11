//! Keeping the runs: adopting those of other processes, flushing the recent table, merging,
//! dropping damaged ones.
//!
//! All changes follow one order: take the directory's lock, read `CURRENT`, adopt its runs, write
//! the new run, replace `CURRENT`, exchange the list in memory. Packs in this process's recent
//! table that an adopted run covers leave the table. A merge reads its inputs without that lock,
//! and installs its result only if all of them are still in force.
//!
//! The merging thread belongs to its [`Index`]: dropping the index waits for a small merge and
//! stops a large one, whose unfinished file is removed. At 16 runs a flush waits for the merge, so
//! that runs cannot pile up.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use outrigger_format::{PackId, Place};

use super::directory::{Current, Directory, Held, Temporary};
use super::locality::PackSet;
use super::merge::{choose, merge};
use super::run::Run;
use super::run_writer::RunWriter;
use super::{Index, Shared};
use crate::error::{Error, ErrorKind, Result};

/// Runs at which a flush waits for merging.
const RUNS_MAX: usize = 16;
/// Entries up to which a merge is let finish when its index is dropped: about a second of work.
const SMALL_MERGE: u64 = 4 << 20;

impl Index {
    /// Writes the recent table as a run if it is full; returns whether it did. Call it where the
    /// thread may wait for 8 MiB to reach the disk, for example after a commit.
    ///
    /// # Errors
    /// As [`Index::flush`].
    pub fn flush_if_full(&self) -> Result<bool> {
        let (entries, packs) = {
            let state = self.shared.read();
            (state.recent.places.len(), state.recent.packs.len())
        };
        let options = &self.shared.options;
        if entries > options.recent_entries_max || packs > options.recent_packs_max {
            self.flush()
        } else {
            Ok(false)
        }
    }

    /// Adopts the runs of other processes, writes the recent table as a run if anything is left in
    /// it, and starts a merge if one is due. Says whether it wrote a run: not when there is no
    /// directory that may be written.
    ///
    /// # Errors
    /// I/O; the recent table then stays as it is.
    pub fn flush(&self) -> Result<bool> {
        let flushed = self.shared.flush()?;
        if flushed {
            self.start_merge();
        }
        Ok(flushed)
    }

    /// Adopts the runs that other processes wrote or merged, without writing any.
    ///
    /// # Errors
    /// I/O.
    pub fn refresh(&self) -> Result<()> {
        let Some(directory) = &self.shared.directory else { return Ok(()) };
        let lock = directory.lock()?;
        self.shared.adopt(directory, &lock).map(drop)
    }

    /// Merges runs in this thread until none is due, or another thread or process merges already.
    ///
    /// # Errors
    /// I/O. Damaged runs are no error; they are dropped.
    pub fn merge(&self) -> Result<()> {
        while self.shared.merge_once()? {}
        Ok(())
    }

    /// Adds one run straight from entries in rising order, which belong to `packs`; `expected` of
    /// them, about. For rebuilding an index without a recent table, and for benchmarks.
    ///
    /// # Errors
    /// I/O; `Invalid` when the entries do not rise, or the index has a key: prefixes alone cannot be
    /// encrypted.
    ///
    /// # Panics
    /// When the index has no directory.
    pub fn import(
        &self,
        entries: impl IntoIterator<Item = (u64, Place)>,
        expected: u64,
        packs: Vec<PackId>,
    ) -> Result<()> {
        if self.shared.prefixes.are_keyed() {
            let text = "an index with a key imports no entries: add the packs by their footers";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let directory = self.shared.directory.as_ref().expect("runs are imported into a directory");
        let temporary = directory.temporary();
        let mut writer = RunWriter::create(temporary.path(), self.shared.prefixes.stamp(), expected)?;
        for (prefix, place) in entries {
            writer.push(prefix, place.to_u64())?;
        }
        let Some(run) = writer.finish(packs)? else { return Ok(()) };
        let lock = directory.lock()?;
        let current = self.shared.adopt(directory, &lock)?;
        self.shared.install(directory, &lock, current, &temporary, run, &[])
    }

    fn start_merge(&self) {
        let mut merger = self.merger.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = self.shared.read().runs.len();
        if merger.as_ref().is_some_and(|thread| !thread.is_finished()) && runs < RUNS_MAX {
            return;
        }
        if let Some(thread) = merger.take() {
            let _ = thread.join();
        }
        if !self.shared.merge_is_due() {
            return;
        }
        if self.shared.options.merge_in_background {
            let shared = self.shared.clone();
            let merging = move || while shared.merge_once().unwrap_or(false) {};
            *merger = std::thread::Builder::new().name("index-merge".into()).spawn(merging).ok();
        } else {
            while self.shared.merge_once().unwrap_or(false) {}
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        if self.shared.merging.load(Ordering::Relaxed) > SMALL_MERGE {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        let merger = self.merger.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = merger.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// First look at the directory: opens the runs in force and removes what a crash left.
    pub fn clean(&self) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let lock = directory.lock()?;
        let current = self.adopt(directory, &lock)?;
        if directory.is_writable()
            && let Some(merge) = directory.try_lock_merge()?
        {
            directory.clean(&current, &lock, &merge);
        }
        Ok(())
    }

    /// Uses the runs that `CURRENT` names. Damaged and missing ones are dropped, also from
    /// `CURRENT`; runs that cannot be opened for another reason are only left out here.
    pub fn adopt(&self, directory: &Directory, lock: &Held<'_>) -> Result<Current> {
        let mut current = directory.read(lock);
        let was_damaged = directory.is_damaged(lock);
        let known = self.read().runs.clone();
        let (mut runs, mut dropped) = (Vec::new(), Vec::new());
        for &number in &current.runs {
            let same = known.iter().find(|run| run.number == number && directory.is_same(run));
            match same.map_or_else(|| directory.open_run(number).map(Arc::new), |run| Ok(run.clone())) {
                Ok(run) if !run.has_failed() => runs.push(run),
                Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Denied) => {}
                Ok(_) | Err(_) => dropped.push(number),
            }
        }
        if (was_damaged || !dropped.is_empty()) && directory.is_writable() {
            current.runs.retain(|number| !dropped.contains(number));
            directory.write(&current, lock)?;
            dropped.iter().for_each(|&number| directory.remove_run(number));
        }
        let lost = dropped.len() as u64 + u64::from(was_damaged);
        self.counts.runs_dropped.fetch_add(lost, Ordering::Relaxed);
        let opened = runs.iter().filter(|run| !known.iter().any(|other| Arc::ptr_eq(run, other)));
        let dead: Vec<PackId> =
            opened.flat_map(|run| run.packs.iter()).filter(|pack| !(self.live)(**pack)).copied().collect();
        let mut state = self.write();
        if !dead.is_empty() {
            Arc::make_mut(&mut state.dead).extend(dead);
        }
        state.recent.retire(|pack| runs.iter().any(|run| run.covers(pack)));
        state.runs = Arc::new(runs);
        Ok(current)
    }

    /// Drops the runs among `runs` that failed, if any did.
    pub fn drop_failed(&self, runs: &[Arc<Run>]) {
        if !runs.iter().any(|run| run.has_failed()) {
            return;
        }
        // Lookups do not fail for it: a failed run answers nothing, and the next flush tries again.
        if let Some(directory) = &self.directory
            && let Ok(lock) = directory.lock()
        {
            let _ = self.adopt(directory, &lock);
        }
    }

    fn flush(&self) -> Result<bool> {
        let Some(directory) = self.directory.as_ref().filter(|directory| directory.is_writable()) else {
            return Ok(false);
        };
        let lock = directory.lock()?;
        let current = self.adopt(directory, &lock)?;
        let (entries, packs) = {
            let state = self.read();
            (state.recent.sorted(), state.recent.packs.iter().copied().collect())
        };
        if entries.is_empty() {
            return Ok(false);
        }
        let temporary = directory.temporary();
        let mut writer = RunWriter::create(temporary.path(), self.prefixes.stamp(), entries.len() as u64)?;
        for (prefix, place) in entries {
            writer.push(prefix, place)?;
        }
        let Some(run) = writer.finish(packs)? else { return Ok(false) };
        self.install(directory, &lock, current, &temporary, run, &[])?;
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Puts `run`, which lies at `temporary`, in force instead of the runs `replaced`.
    fn install(
        &self,
        directory: &Directory,
        lock: &Held<'_>,
        mut current: Current,
        temporary: &Temporary,
        mut run: Run,
        replaced: &[u64],
    ) -> Result<()> {
        run.number = current.next;
        current.next += 1;
        directory.name_run(temporary, run.number)?;
        current.runs.retain(|number| !replaced.contains(number));
        current.runs.push(run.number);
        directory.write(&current, lock)?;
        replaced.iter().for_each(|&number| directory.remove_run(number));
        let mut state = self.write();
        let kept = state.runs.iter().filter(|run| !replaced.contains(&run.number)).cloned();
        let run = Arc::new(run);
        let runs = kept.chain([run.clone()]).collect();
        state.recent.retire(|pack| run.covers(pack));
        state.runs = Arc::new(runs);
        Ok(())
    }

    pub fn merge_is_due(&self) -> bool {
        let state = self.read();
        self.directory.as_ref().is_some_and(Directory::is_writable)
            && !choose(&state.runs, &state.dead).is_empty()
    }

    /// Does one merge if one is due and no other process merges; returns whether it did.
    pub fn merge_once(&self) -> Result<bool> {
        let merged = self.try_merge();
        self.merging.store(0, Ordering::Relaxed);
        match &merged {
            Ok(true) => drop(self.counts.merges.fetch_add(1, Ordering::Relaxed)),
            Ok(false) => {}
            Err(_) => {
                self.counts.merges_failed.fetch_add(1, Ordering::Relaxed);
                let runs = self.read().runs.clone();
                if runs.iter().any(|run| run.has_failed()) {
                    self.drop_failed(&runs);
                    return if self.read().runs.iter().any(|run| run.has_failed()) {
                        merged
                    } else {
                        Ok(true)
                    };
                }
            }
        }
        merged
    }

    fn try_merge(&self) -> Result<bool> {
        let Some(directory) = self.directory.as_ref().filter(|directory| directory.is_writable()) else {
            return Ok(false);
        };
        let Some(_merge) = directory.try_lock_merge()? else { return Ok(false) };
        {
            let lock = directory.lock()?;
            self.adopt(directory, &lock)?;
        }
        let (runs, dead) = {
            let state = self.read();
            (state.runs.clone(), state.dead.clone())
        };
        let inputs = choose(&runs, &dead);
        if inputs.is_empty() {
            return Ok(false);
        }
        self.merging.store(inputs.iter().map(|run| run.entries).sum(), Ordering::Relaxed);
        let packs = inputs.iter().flat_map(|run| run.packs.iter().copied());
        let gone: PackSet = packs.filter(|pack| dead.contains(pack) || !(self.live)(*pack)).collect();
        let temporary = directory.temporary();
        let merged = merge(&inputs, &gone, temporary.path(), self.prefixes.stamp(), &self.stop)?;

        let lock = directory.lock()?;
        let mut current = self.adopt(directory, &lock)?;
        let replaced: Vec<u64> = inputs.iter().map(|run| run.number).collect();
        let in_force = self.read().runs.clone();
        if !inputs.iter().all(|input| in_force.iter().any(|run| Arc::ptr_eq(input, run))) {
            return Ok(false);
        }
        if let Some(run) = merged {
            self.install(directory, &lock, current, &temporary, run, &replaced)?;
        } else {
            current.runs.retain(|number| !replaced.contains(number));
            directory.write(&current, &lock)?;
            replaced.iter().for_each(|&number| directory.remove_run(number));
            self.adopt(directory, &lock)?;
        }
        Ok(true)
    }
}
