//! Status of a writable mount: its counters, and where its store is.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{LiveVolume, staging_dir};
use crate::measures::{Status, Watched};
use crate::mounts::Whereabouts;

impl LiveVolume {
    /// The report that the store was removed together with the log, and what is lost; `None` if it
    /// was not.
    pub fn lost(&self) -> Option<String> {
        let store = &self.core.world.store;
        let gone = store.meta.still_there().err().filter(|_| !staging_dir(store.home().path()).exists())?;
        let files = self.core.world.dirty.lock().expect("no panic while held").len();
        let files = match files {
            0 => "everything that was written had been stored".to_owned(),
            1 => "the last change of 1 file or directory is lost".to_owned(),
            files => format!("the last change of each of {files} files and directories is lost"),
        };
        Some(format!("{gone}; {files}"))
    }

    /// The mount's answer about its store under [`WHEREABOUTS`](crate::mounts::WHEREABOUTS).
    pub(super) fn whereabouts(&self) -> Vec<u8> {
        match self.lost() {
            Some(why) => Whereabouts::Lost(why),
            None => Whereabouts::At(self.core.world.store.home().lies_at()),
        }
        .encode()
    }
}

impl Watched for LiveVolume {
    fn watch(&self, status: &mut Status) {
        let core = &self.core;
        let (fill, counters) = (core.log.fill(), &core.counters);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        status.staging_used_bytes = fill.used;
        status.staging_capacity_bytes = fill.capacity;
        status.waiting_operations = fill.waiting as u64;
        status.writing_paced_seconds = core.tailing.waited();
        status.dirty_inodes = core.world.dirty.lock().expect("no panic while held").len() as u64;
        status.staged_names = core.tree().staged_count() as u64;
        let snapshots = self.snapshots.as_ref().map_or(0, |snapshots| snapshots.handles_open());
        status.open_handles = (core.files.len() + core.dirs.len() + snapshots) as u64;
        status.destaged_bytes = of(&counters.destaged);
        status.new_bytes = of(&counters.new);
        status.stored_bytes = of(&counters.stored);
        status.invalidated_bytes = of(&counters.invalidated);
        status.destage_failures = of(&counters.failures);
        (status.destage_last_seconds, status.destage_longest_seconds) = counters.took.last_and_longest();
        status.destage_seconds = counters.took.spread();
        status.outside_changes = of(&counters.reloads);
        if let Some(cache) = core.world.store.table_cache() {
            let asked = cache.stats().now;
            status.table_cache_asked = asked.asked;
            status.table_cache_found = asked.found;
            status.table_cache_relied = asked.relied;
        }
        if let Some(runtime) = core.world.store.devices() {
            for device in &runtime.metrics().devices[1..] {
                status.device_tasks += device.tasks;
                status.device_given_up += device.given_up;
                status.device_trips += device.trips;
                status.devices_cut_off += u64::from(device.breaker.name() != "closed");
            }
        }
        core.world.store.packs.watch(status);
    }
}
