//! A progress bar on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use outrigger_clock::Instant;
use outrigger_store::write::{Progress, ProgressView};

use crate::output::{counted, size};

/// Redraws a bar from an operation's counters, in a thread of its own, until it is dropped.
pub struct Bar {
    stop: Arc<OnceLock<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The bar that is shown now. A thread that has to write between its lines needs it.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Wipes the bar, if there is one.
pub fn clear() {
    if let Some(bar) = DRAWN.lock().ok().and_then(|mut drawn| drawn.take()) {
        bar.finish_and_clear();
    }
}

const REDRAW_EVERY: Duration = Duration::from_millis(100);

impl Bar {
    /// A bar for `progress`. `total` has the number of all bytes once it is known. `saves` says
    /// that data which need not be stored is worth mentioning.
    pub fn start(progress: &Arc<Progress>, quiet: bool, total: Total, saves: bool) -> Option<Self> {
        let progress = Arc::clone(progress);
        let mut saved = saves.then(Saved::default);
        Self::with(quiet, move |elapsed| {
            let view = progress.view();
            let total = total.get().map(|&total| (view.bytes_done + view.bytes_unchanged, total));
            describe(&view, elapsed, total, saved.as_mut())
        })
    }

    /// A bar for `progress` over one file of `len` bytes, if that is known; `read` is the position
    /// in it.
    pub fn start_reading(
        progress: &Arc<Progress>,
        quiet: bool,
        len: Option<u64>,
        read: Arc<AtomicU64>,
    ) -> Option<Self> {
        let (progress, mut saved) = (Arc::clone(progress), Saved::default());
        Self::with(quiet, move |elapsed| {
            let total = len.map(|len| (read.load(Ordering::Relaxed), len));
            describe(&progress.view(), elapsed, total, Some(&mut saved))
        })
    }

    /// A bar with the text that `describe` makes of the time since its start.
    pub fn with(quiet: bool, mut describe: impl FnMut(Duration) -> String + Send + 'static) -> Option<Self> {
        if quiet || !std::io::stderr().is_terminal() {
            return None;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").ok()?);
        *DRAWN.lock().ok()? = Some(bar.clone());
        let stop = Arc::new(OnceLock::new());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            while stopped.get().is_none() {
                bar.set_message(describe(started.elapsed()));
                bar.tick();
                std::thread::park_timeout(REDRAW_EVERY);
            }
        });
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        let _ = self.stop.set(());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        clear();
    }
}

/// The number of all bytes, once it is known.
pub type Total = Arc<OnceLock<u64>>;

/// Estimates how many of the looked-up bytes need not be stored. Bytes that were only read are left
/// out, because they may be new. Bytes count as stored when their pack is full. At that moment
/// nearly all new bytes are in full packs, which gives the ratio for the bytes that are not in one
/// yet.
#[derive(Default)]
struct Saved {
    stored: u64,
    ratio: Option<f64>,
}

impl Saved {
    fn estimate(&mut self, view: &ProgressView) -> u64 {
        // Smaller steps are metadata.
        if view.bytes_stored > self.stored + (1 << 20) && view.bytes_new > 0 {
            self.stored = view.bytes_stored;
            self.ratio = Some((view.bytes_stored as f64 / view.bytes_new as f64).min(1.0));
        }
        let stored = (view.bytes_new as f64 * self.ratio.unwrap_or(1.0)) as u64;
        (view.bytes_looked_up + view.bytes_unchanged).saturating_sub(stored.max(view.bytes_stored))
    }
}

/// `78,611 files, 1.24 GiB of 1.30 GiB, 395 MiB/s, 3 s left, 1.12 GiB saved`.
///
/// `total` is the position and the end, once that is known.
fn describe(
    view: &ProgressView,
    elapsed: Duration,
    total: Option<(u64, u64)>,
    saved: Option<&mut Saved>,
) -> String {
    let done = total.map_or(view.bytes_done + view.bytes_unchanged, |(done, _)| done);
    let rate = view.bytes_done as f64 / elapsed.as_secs_f64().max(0.001);
    let total = total.map(|(_, total)| total).filter(|&total| total > done);
    let files = counted(view.files_done + view.files_unchanged, "file", "files");
    let mut text = format!("{files}, {}", size(done));
    if let Some(total) = total {
        text += &format!(" of {}", size(total));
    }
    text += &format!(", {}/s", size(rate as u64));
    if let Some(total) = total
        && rate > 1.0
        && elapsed > Duration::from_secs(1)
    {
        text += &format!(", {} left", duration((total - done) as f64 / rate));
    }
    if let Some(saved) = saved {
        text += &format!(", {} saved", size(saved.estimate(view)));
    }
    text
}

/// `40 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`.
pub fn duration(secs: f64) -> String {
    let whole = secs.round() as u64;
    match whole {
        _ if secs < 0.1 => format!("{:.0} ms", secs * 1000.0),
        0..10 => format!("{secs:.1} s"),
        10..120 => format!("{whole} s"),
        120..7200 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_what_is_known() {
        let mut view = ProgressView {
            bytes_done: 100 << 20,
            files_done: 1000,
            bytes_looked_up: 100 << 20,
            bytes_new: 80 << 20,
            ..Default::default()
        };
        let secs = Duration::from_secs(10);
        let mut saved = Saved::default();
        let mut said = |view: &ProgressView, total: Option<u64>| {
            let total = total.map(|total| (view.bytes_done, total));
            describe(view, secs, total, Some(&mut saved))
        };
        assert_eq!(said(&view, None), "1,000 files, 100 MiB, 10.0 MiB/s, 20.0 MiB saved");
        view.bytes_stored = 40 << 20;
        assert_eq!(
            said(&view, Some(200 << 20)),
            "1,000 files, 100 MiB of 200 MiB, 10.0 MiB/s, 10 s left, 60.0 MiB saved"
        );
        view.bytes_new = 100 << 20;
        assert_eq!(said(&view, Some(1)), "1,000 files, 100 MiB, 10.0 MiB/s, 50.0 MiB saved");
        // Random data: bytes that were read and not looked up yet are not saved.
        let view = ProgressView {
            bytes_done: 250 << 20,
            files_done: 1,
            bytes_looked_up: 200 << 20,
            bytes_new: 200 << 20,
            ..Default::default()
        };
        assert_eq!(
            describe(&view, secs, None, Some(&mut Saved::default())),
            "1 file, 250 MiB, 25.0 MiB/s, 0 B saved"
        );
        // An archive is longer than its content.
        let archive = Some((300 << 20, 400 << 20));
        assert_eq!(
            describe(&view, secs, archive, None),
            "1 file, 300 MiB of 400 MiB, 25.0 MiB/s, 4.0 s left"
        );
    }
}
