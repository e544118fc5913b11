//! What a mount has done so far, for those who watch it.

use std::sync::atomic::Ordering;

use super::LiveVolume;

/// Counters since the mount began, and how things stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Bytes that programs wrote.
    pub written_bytes: u64,
    /// Bytes that programs read, beyond what the kernel had cached.
    pub read_bytes: u64,
    /// Bytes of staged data that went to the store.
    pub destaged_bytes: u64,
    /// Bytes that were written again while they were on their way.
    pub invalidated_bytes: u64,
    /// Bytes of new chunks among what was destaged, before compression.
    pub new_bytes: u64,
    /// Bytes of the packs that were written.
    pub stored_bytes: u64,
    /// Batches that were destaged.
    pub batches: u64,
    /// Nanoseconds that they took, together.
    pub batch_nanos: u64,
    /// Bytes in the staging log, and how many fit.
    pub staging_used: u64,
    /// As above.
    pub staging_capacity: u64,
    /// Operations that wait for room in it.
    pub waiting: u64,
    /// Files and directories that the database does not have as they are.
    pub dirty: u64,
    /// Names likewise.
    pub staged_names: u64,
    /// Open files and directories.
    pub open: u64,
}

impl Status {
    /// The counters by name.
    pub fn fields(&self) -> [(&'static str, u64); 14] {
        [
            ("written_bytes", self.written_bytes),
            ("read_bytes", self.read_bytes),
            ("destaged_bytes", self.destaged_bytes),
            ("invalidated_bytes", self.invalidated_bytes),
            ("new_bytes", self.new_bytes),
            ("stored_bytes", self.stored_bytes),
            ("batches", self.batches),
            ("batch_nanos", self.batch_nanos),
            ("staging_used_bytes", self.staging_used),
            ("staging_capacity_bytes", self.staging_capacity),
            ("waiting", self.waiting),
            ("dirty", self.dirty),
            ("staged_names", self.staged_names),
            ("open", self.open),
        ]
    }

    /// The counters as a JSON object on one line.
    pub fn to_json(&self) -> String {
        let fields = self.fields().map(|(name, value)| format!("\"{name}\":{value}"));
        format!("{{{}}}", fields.join(","))
    }
}

impl LiveVolume {
    /// How things stand.
    pub fn status(&self) -> Status {
        let core = &self.core;
        let fill = core.log.fill();
        let counters = &core.counters;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            written_bytes: of(&counters.written),
            read_bytes: of(&counters.read),
            destaged_bytes: of(&counters.destaged),
            invalidated_bytes: of(&counters.invalidated),
            new_bytes: of(&counters.new),
            stored_bytes: of(&counters.stored),
            batches: of(&counters.batches),
            batch_nanos: of(&counters.batch_nanos),
            staging_used: fill.used,
            staging_capacity: fill.capacity,
            waiting: fill.waiting as u64,
            dirty: core.world.dirty.lock().expect("no panic while held").len() as u64,
            staged_names: core.tree().staged_count() as u64,
            open: (core.files.len() + core.dirs.len()) as u64,
        }
    }
}
