//! The table of what is measured.

use outrigger_store::latency::Spread;

/// How a number behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, from zero when the mount began.
    Counter,
    /// It comes and goes.
    Gauge,
}

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes, operations, files: as the name says.
    Whole,
    /// Kept as nanoseconds, shown as seconds.
    Seconds,
}

/// Numbers of one family, told apart by a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The family's name.
    pub family: &'static str,
    /// The label's.
    pub label: &'static str,
    /// Its value.
    pub value: &'static str,
}

/// One number of a [`Status`].
pub struct Field {
    /// Its name, as JSON has it.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// If it is one of a family.
    pub label: Option<Label>,
    /// Its meaning, in a phrase.
    pub help: &'static str,
    /// Reads it.
    pub get: fn(&Status) -> u64,
    /// Writes it.
    pub set: fn(&mut Status, u64),
}

/// One histogram of a [`Status`].
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// Its meaning, in a phrase.
    pub help: &'static str,
    /// Reads it.
    pub get: fn(&Status) -> Spread,
    /// Writes it.
    pub set: fn(&mut Status, Spread),
}

macro_rules! table {
    (histograms { $($spread:ident: $what:literal;)* } $($name:ident: $kind:ident, $unit:ident $(, $family:literal by $label:literal = $value:literal)?; $help:literal;)*) => {
        /// A mount's numbers. All counts are since it began.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Status {
            $(#[doc = $help] #[doc = "."] pub $name: u64,)*
            $(#[doc = $what] #[doc = "."] pub $spread: Spread,)*
        }

        /// All histograms of a [`Status`].
        pub const HISTOGRAMS: &[Shown] = &[$(Shown {
            name: stringify!($spread),
            help: $what,
            get: |status| status.$spread,
            set: |status, spread| status.$spread = spread,
        }),*];

        /// All numbers of a [`Status`] but its histograms. Those of a family stand together.
        pub const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            kind: Kind::$kind,
            unit: Unit::$unit,
            label: table!(@label $($family, $label, $value)?),
            help: $help,
            get: |status| status.$name,
            set: |status, value| status.$name = value,
        }),*];
    };
    (@label) => { None };
    (@label $family:literal, $label:literal, $value:literal) => {
        Some(Label { family: $family, label: $label, value: $value })
    };
}

table! {
    histograms {
        destage_seconds: "Time of a batch from staging to the store, durable and committed";
        database_transaction_seconds: "Time of a transaction that wrote to the database of a shared store, with its repetitions";
        pack_read_seconds: "Time of a read of a part of a pack, from its engine or from this host's copy";
        pack_write_seconds: "Time of a pack from its last byte until it was durable";
    }
    uptime_seconds: Gauge, Seconds; "Time since the mount began";
    written_bytes: Counter, Whole; "Bytes that programs wrote or copied";
    read_bytes: Counter, Whole; "Bytes that programs read, beyond what the kernel had cached";
    operations_read: Counter, Whole, "operations" by "kind" = "read"; "Requests of the kernel";
    operations_write: Counter, Whole, "operations" by "kind" = "write"; "Requests of the kernel";
    operations_sync: Counter, Whole, "operations" by "kind" = "sync"; "Requests of the kernel";
    operations_other: Counter, Whole, "operations" by "kind" = "other"; "Requests of the kernel";
    reading_seconds: Counter, Seconds; "Time that requests to read took, all together";
    writing_seconds: Counter, Seconds; "Time that requests to write took, all together";
    writing_paced_seconds: Counter, Seconds; "Part of that in which writers waited for a program that tails their file (--attach path)";
    syncing_seconds: Counter, Seconds; "Time that requests to make something durable took, all together";
    errors_io: Counter, Whole, "errors" by "kind" = "io"; "Operations that failed for no fault of their callers: EIO, ENOSPC, ESTALE";
    errors_full: Counter, Whole, "errors" by "kind" = "full"; "Operations that failed for no fault of their callers: EIO, ENOSPC, ESTALE";
    errors_stale: Counter, Whole, "errors" by "kind" = "stale"; "Operations that failed for no fault of their callers: EIO, ENOSPC, ESTALE";
    staging_used_bytes: Gauge, Whole; "Bytes in the staging log";
    staging_capacity_bytes: Gauge, Whole; "Bytes that fit into the staging log";
    waiting_operations: Gauge, Whole; "Operations that wait for room in the staging log";
    dirty_inodes: Gauge, Whole; "Files and directories with changes that are not stored";
    staged_names: Gauge, Whole; "Names that are not stored";
    open_handles: Gauge, Whole; "Open files and directories";
    destaged_bytes: Counter, Whole; "Bytes of staged data that were stored";
    new_bytes: Counter, Whole; "Bytes of them that the store did not have yet, before compression";
    stored_bytes: Counter, Whole; "Bytes of the packs that were written for them";
    unpacked_bytes: Gauge, Whole; "Bytes of small files that lie in the database of a shared store until this mount packs them";
    invalidated_bytes: Counter, Whole; "Bytes that were written again while they were being stored";
    destage_failures: Counter, Whole; "Batches that could not be stored; they are repeated";
    sessions_lost: Counter, Whole; "How often another client ended the mount's session after its lease, and the mount opened another one";
    files_kept_aside: Counter, Whole; "Files whose changes could not be stored after that; they are kept in the directory `unsaved` of this host's store";
    destage_last_seconds: Gauge, Seconds; "Time of the last batch";
    destage_longest_seconds: Gauge, Seconds; "Time of the longest batch";
    frame_cache_hits: Counter, Whole; "Chunks whose frame was decoded already when they were read";
    frame_cache_misses: Counter, Whole; "Chunks whose frame had to be decoded when they were read";
    read_ahead_frames: Counter, Whole; "Frames that were decoded ahead of reads";
    read_ahead_hits: Counter, Whole; "Frames decoded ahead that were then read";
    table_cache_asked: Counter, Whole; "Chunks that were looked up in the table cache, where there are devices";
    table_cache_found: Counter, Whole; "Chunks of them that were in it";
    table_cache_relied: Counter, Whole; "Chunks of those that lie in usable packs, so that the index was not asked";
    device_tasks: Counter, Whole; "Tasks that devices did";
    device_given_up: Counter, Whole; "Tasks that devices gave up and the processor did";
    device_trips: Counter, Whole; "How often a device was disabled";
    devices_cut_off: Gauge, Whole; "Devices that are disabled, or being retried";
    packs_trouble: Gauge, Whole; "1 while requests for packs fail, or one has waited for ten seconds";
    database_trouble: Gauge, Whole; "1 while the database of a shared store cannot be reached";
    block_cache_memory: Counter, Whole; "Blocks of packs that were read and found in memory";
    block_cache_disk: Counter, Whole; "Blocks of packs that were read and found on this host's disk";
    block_cache_fetched: Counter, Whole; "Blocks of packs that were read and had to be fetched";
    block_cache_ahead: Counter, Whole; "Blocks that were fetched ahead of reads";
    packs_requests: Counter, Whole; "Requests for blocks to an object store or pool";
    packs_failures: Counter, Whole; "Requests of them that failed for good";
    packs_seconds: Counter, Seconds; "Time that they took, all together";
    database_transactions: Counter, Whole; "Transactions that wrote to the database of a shared store";
    database_retries: Counter, Whole; "How often one was repeated, because of another client or a lost connection";
    database_seconds: Counter, Seconds; "Time that they took, all together, with their repetitions";
    outside_changes: Counter, Whole; "How often another process changed the store, and the kernel had to drop cached data";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_follow_conventions_and_are_told_apart() {
        let mut names: HashSet<&str> = HISTOGRAMS.iter().map(|shown| shown.name).collect();
        assert_eq!(names.len(), HISTOGRAMS.len());
        for Field { name, kind, unit, label, help, .. } in FIELDS {
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(!help.contains(['\n', '\\', '"']) && !help.ends_with('.'), "{name}: {help}");
            assert_eq!(*unit == Unit::Seconds, name.ends_with("_seconds"), "{name}");
            if let Some(Label { family, value, .. }) = label {
                assert_eq!(*name, format!("{family}_{value}"));
                assert_eq!(*kind, Kind::Counter, "{name}");
            }
        }
    }

    #[test]
    fn what_is_set_is_what_is_got() {
        let mut status = Status::default();
        for (value, field) in (1..).zip(FIELDS) {
            (field.set)(&mut status, value);
        }
        for (value, field) in (1..).zip(FIELDS) {
            assert_eq!((field.get)(&status), value, "{}", field.name);
        }
    }
}
