//! Waits that somebody may wonder about.

use std::sync::OnceLock;
use std::time::Duration;

static TELL: OnceLock<fn(&str)> = OnceLock::new();

/// A wait that has lasted so long is told of.
pub(crate) const LONG: Duration = Duration::from_secs(2);

/// Has `tell` called, once a wait, when this process has waited for two seconds for something that another one holds; the text says what for.
/// Only the first call counts.
pub fn on_long_wait(tell: fn(&str)) {
    let _ = TELL.set(tell);
}

/// Tells of a wait.
pub(crate) fn tell(what: &str) {
    if let Some(tell) = TELL.get() {
        tell(what);
    }
}
