//! The text of `stats --live`.

use outrigger_fuse::measures::Status;

use crate::output::{count, counted, size};
use crate::progress::duration;

const NANOS: f64 = 1e9;

/// The change from one sample to the next.
pub struct Rates {
    before: Status,
    now: Status,
    /// Time between them.
    pub seconds: f64,
}

impl Rates {
    /// From `before`, or from when the mount began.
    pub fn between(before: Option<&Status>, now: &Status) -> Self {
        // If the uptime went back, the earlier sample is of another mount.
        let before = before.filter(|before| before.uptime_seconds < now.uptime_seconds);
        let before = before.copied().unwrap_or_default();
        let seconds = now.uptime_seconds.saturating_sub(before.uptime_seconds) as f64 / NANOS;
        Self { before, now: *now, seconds }
    }

    fn grown(&self, get: impl Fn(&Status) -> u64) -> u64 {
        get(&self.now).saturating_sub(get(&self.before))
    }

    /// How fast a counter grew.
    pub fn per_second(&self, get: impl Fn(&Status) -> u64) -> f64 {
        if self.seconds > 0.0 { self.grown(get) as f64 / self.seconds } else { 0.0 }
    }

    fn bytes(&self, get: impl Fn(&Status) -> u64) -> String {
        format!("{}/s", size(self.per_second(get).round() as u64))
    }

    fn times(&self, get: impl Fn(&Status) -> u64) -> String {
        format!("{}/s", count(self.per_second(get).round() as u64))
    }

    /// Batches, and the mean of their times.
    fn batches(&self) -> (u64, Option<f64>) {
        let batches = self.grown(|status| status.destage_seconds.count());
        let nanos = self.grown(|status| status.destage_seconds.nanos);
        (batches, (batches > 0).then(|| nanos as f64 / NANOS / batches as f64))
    }
}

/// `raw / stored`, or `-` if either is zero.
fn ratio(raw: u64, stored: u64) -> String {
    if raw == 0 || stored == 0 { "-".to_string() } else { format!("{:.2} x", raw as f64 / stored as f64) }
}

fn percent(part: u64, all: u64) -> String {
    if all == 0 { "-".to_string() } else { format!("{:.0} %", part as f64 * 100.0 / all as f64) }
}

fn seconds(nanos: u64) -> String {
    duration(nanos as f64 / NANOS)
}

fn hits(status: &Status) -> String {
    percent(status.frame_cache_hits, status.frame_cache_hits + status.frame_cache_misses)
}

fn errors(status: &Status) -> u64 {
    status.errors_io + status.errors_full + status.errors_stale
}

/// All values, for a terminal.
pub fn block(status: &Status, rates: &Rates) -> String {
    let s = status;
    let mut text = format!(
        "mounted    for {}; {} open\n",
        seconds(s.uptime_seconds),
        counted(s.open_handles, "file or directory", "files and directories")
    );
    text += &format!(
        "written    {}, {} in all; read {}, {} in all\n",
        rates.bytes(|s| s.written_bytes),
        size(s.written_bytes),
        rates.bytes(|s| s.read_bytes),
        size(s.read_bytes)
    );
    text += &format!(
        "requests   {} to read, {} to write, {} to sync, {} others\n",
        rates.times(|s| s.operations_read),
        rates.times(|s| s.operations_write),
        rates.times(|s| s.operations_sync),
        rates.times(|s| s.operations_other)
    );
    text += &log_lines(s, rates);
    text += &format!(
        "cache      {} of {} decoded already; {} decoded ahead, {} of them used\n",
        hits(s),
        counted(s.frame_cache_hits + s.frame_cache_misses, "chunk", "chunks"),
        counted(s.read_ahead_frames, "frame", "frames"),
        percent(s.read_ahead_hits, s.read_ahead_frames)
    );
    text += &device_lines(s);
    if s.sessions_lost > 0 {
        text += &format!(
            "session    ended by another client {}; {} in `unsaved` of this host's store\n",
            counted(s.sessions_lost, "time", "times"),
            counted(s.files_kept_aside, "file's changes kept", "files' changes kept")
        );
    }
    text += &format!(
        "errors     {} EIO, {} ENOSPC, {} ESTALE; {} failed\n",
        count(s.errors_io),
        count(s.errors_full),
        count(s.errors_stale),
        counted(s.destage_failures, "batch", "batches")
    );
    text
}

/// The log: what lies in it, and what came of it.
fn log_lines(s: &Status, rates: &Rates) -> String {
    let mut text = format!(
        "staging    {} of {} ({}); {} waiting; {} and {} to store\n",
        size(s.staging_used_bytes),
        size(s.staging_capacity_bytes),
        percent(s.staging_used_bytes, s.staging_capacity_bytes),
        counted(s.waiting_operations, "operation", "operations"),
        counted(s.dirty_inodes, "inode", "inodes"),
        counted(s.staged_names, "name", "names"),
    );
    let (batches, mean) = rates.batches();
    text += &format!(
        "destaged   {}, {} in all; {}, {}; last {}, longest {}\n",
        rates.bytes(|s| s.destaged_bytes),
        size(s.destaged_bytes),
        counted(batches, "batch", "batches"),
        mean.map_or("none since".to_string(), |mean| format!("{} each", duration(mean))),
        seconds(s.destage_last_seconds),
        seconds(s.destage_longest_seconds)
    );
    text += &format!(
        "kept       {} new ({} by deduplication), {} in packs ({} by compression, {} in all)\n",
        size(s.new_bytes),
        ratio(s.destaged_bytes, s.new_bytes),
        size(s.stored_bytes),
        ratio(s.new_bytes, s.stored_bytes),
        ratio(s.destaged_bytes, s.stored_bytes)
    );
    text + &format!("rewritten  {} while it was being stored\n", size(s.invalidated_bytes))
}

/// The devices that this mount uses, if they were asked anything.
fn device_lines(s: &Status) -> String {
    let mut text = String::new();
    if s.table_cache_asked > 0 {
        text += &format!(
            "devices    found {} of {} in the table cache, {} relied on\n",
            percent(s.table_cache_found, s.table_cache_asked),
            counted(s.table_cache_asked, "chunk", "chunks"),
            count(s.table_cache_relied)
        );
    }
    if s.device_tasks + s.device_given_up + s.device_trips > 0 {
        text += &format!(
            "devices    {} done, {} given up; disabled {}, {} now\n",
            counted(s.device_tasks, "task", "tasks"),
            count(s.device_given_up),
            counted(s.device_trips, "time", "times"),
            count(s.devices_cut_off)
        );
    }
    text
}

/// The heading above [`line()`]s.
pub fn head() -> &'static str {
    "    written/s        read/s  requests/s    destaged/s   dedup   compr  staging  waiting   batch    cache  errors"
}

/// The most important values in one line.
pub fn line(status: &Status, rates: &Rates) -> String {
    let requests =
        rates.times(|s| s.operations_read + s.operations_write + s.operations_sync + s.operations_other);
    let (_, mean) = rates.batches();
    format!(
        "{:>13} {:>13} {:>11} {:>13} {:>7} {:>7} {:>8} {:>8} {:>7} {:>8} {:>7}",
        rates.bytes(|s| s.written_bytes),
        rates.bytes(|s| s.read_bytes),
        requests,
        rates.bytes(|s| s.destaged_bytes),
        ratio(status.destaged_bytes, status.new_bytes),
        ratio(status.new_bytes, status.stored_bytes),
        percent(status.staging_used_bytes, status.staging_capacity_bytes),
        count(status.waiting_operations),
        mean.map_or("-".to_string(), duration),
        hits(status),
        count(errors(status) + status.destage_failures)
    )
}

#[cfg(test)]
mod tests {
    use outrigger_fuse::measures::Spread;

    use super::*;

    fn spread(count: u64, nanos: u64) -> Spread {
        let mut spread = Spread { nanos, ..Spread::default() };
        spread.classes[2] = count;
        spread
    }

    fn samples() -> (Status, Status) {
        let before = Status {
            uptime_seconds: 5_000_000_000,
            written_bytes: 10 << 20,
            destage_seconds: spread(2, 9_000_000_000),
            ..Status::default()
        };
        let now = Status {
            uptime_seconds: 7_000_000_000,
            written_bytes: 30 << 20,
            operations_write: 2000,
            staging_used_bytes: 64 << 20,
            staging_capacity_bytes: 256 << 20,
            destaged_bytes: 20 << 20,
            new_bytes: 10 << 20,
            stored_bytes: 4 << 20,
            destage_last_seconds: 1_000_000_000,
            destage_seconds: spread(6, 11_000_000_000),
            frame_cache_hits: 98,
            frame_cache_misses: 2,
            errors_io: 1,
            ..Status::default()
        };
        (before, now)
    }

    #[test]
    fn a_line_says_what_went_on_since_the_one_before() {
        let (before, now) = samples();
        let words = |before| {
            let line = line(&now, &Rates::between(before, &now));
            line.split_whitespace().map(str::to_string).collect::<Vec<_>>().join(" ")
        };
        let rest = "2.00 x 2.50 x 25 % 0";
        assert_eq!(words(Some(&before)), format!("10.0 MiB/s 0 B/s 1,000/s 10.0 MiB/s {rest} 0.5 s 98 % 1"));
        assert_eq!(words(None), format!("4.29 MiB/s 0 B/s 286/s 2.86 MiB/s {rest} 1.8 s 98 % 1"));
        // A sample of an earlier mount.
        let other = Status { uptime_seconds: 90_000_000_000, ..before };
        assert_eq!(words(Some(&other)), words(None));
        assert_eq!(line(&now, &Rates::between(None, &now)).len(), head().len());
    }

    #[test]
    fn a_terminal_is_told_all() {
        let (before, now) = samples();
        let text = block(&now, &Rates::between(Some(&before), &now));
        for part in [
            "10.0 MiB/s, 30.0 MiB in all",
            "64.0 MiB of 256 MiB (25 %); 0 operations waiting",
            "4 batches, 0.5 s each; last 1.0 s",
            "10.0 MiB new (2.00 x by deduplication), 4.00 MiB in packs (2.50 x by compression, 5.00 x in all)",
            "98 % of 100 chunks decoded already; 0 frames decoded ahead, - of them used",
            "1 EIO, 0 ENOSPC",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.lines().all(|line| line.len() < 110), "{text}");
        assert!(block(&Status::default(), &Rates::between(None, &Status::default())).contains("none since"));
    }
}
