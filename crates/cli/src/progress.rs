//! A progress bar on a terminal's standard error; nothing anywhere else.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use outrigger_store::write::Progress;

use crate::output::{count, size};

/// Redraws a bar from an operation's counters, in a thread of its own, until it is dropped.
pub struct Bar {
    stop: Arc<OnceLock<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The bar that is drawn now, for whoever has to write between its lines.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Wipes the bar, if there is one.
pub fn clear() {
    if let Some(bar) = DRAWN.lock().ok().and_then(|mut drawn| drawn.take()) {
        bar.finish_and_clear();
    }
}

const REDRAW_EVERY: Duration = Duration::from_millis(100);

impl Bar {
    /// A bar for `progress`; `saves` says that what was not stored again is worth telling.
    pub fn start(progress: &Arc<Progress>, quiet: bool, saves: bool) -> Option<Self> {
        let progress = Arc::clone(progress);
        Self::with(quiet, move |elapsed| describe(&progress, elapsed, saves))
    }

    /// A bar that says what `describe` makes of the time since it was started.
    pub fn with(quiet: bool, describe: impl Fn(Duration) -> String + Send + 'static) -> Option<Self> {
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

/// `78,611 files, 1.24 GiB of 1.30 GiB, 395 MiB/s, 3 s left, 1.12 GiB saved`.
fn describe(progress: &Progress, elapsed: Duration, saves: bool) -> String {
    let view = progress.view();
    let done = view.bytes_done + view.bytes_unchanged;
    let secs = elapsed.as_secs_f64().max(0.001);
    let rate = view.bytes_done as f64 / secs;
    let mut text = format!("{} files, {}", count(view.files_done + view.files_unchanged), size(done));
    if view.bytes_expected > done {
        text += &format!(" of {}", size(view.bytes_expected));
    }
    text += &format!(", {}/s", size(rate as u64));
    if view.bytes_expected > done && rate > 1.0 && elapsed > Duration::from_secs(1) {
        text += &format!(", {} left", duration((view.bytes_expected - done) as f64 / rate));
    }
    if saves {
        text += &format!(", {} saved", size(done.saturating_sub(view.bytes_stored)));
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
