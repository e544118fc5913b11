//! Reports of long waits.

use std::sync::OnceLock;
use std::time::Duration;

static TELL: OnceLock<fn(&str)> = OnceLock::new();

/// A longer wait is reported.
pub(crate) const LONG: Duration = Duration::from_secs(2);

/// Calls `tell`, once for each wait, when this process has waited for two seconds for something
/// that another process holds; the text says for what. Only the first call counts.
pub fn on_long_wait(tell: fn(&str)) {
    let _ = TELL.set(tell);
}

/// Tells of a wait.
pub(crate) fn tell(what: &str) {
    if let Some(tell) = TELL.get() {
        tell(what);
    }
}
