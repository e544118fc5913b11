//! Saying that a test was skipped, so that it is read.

use std::fmt::Arguments;
use std::io::Write as _;

/// Says why a test, or a part of it, is skipped: `skipped!("there is no {program}")`.
///
/// What a passing test prints is not shown by its runner. This is: it goes to standard error itself. Where `OUTRIGGER_REQUIRE` is set, nothing may be skipped, and the test fails.
///
/// # Panics
/// If nothing may be skipped.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)*) => { $crate::say_skipped(format_args!($($why)*)) };
}

/// See [`skipped!`].
///
/// # Panics
/// If nothing may be skipped.
pub fn say_skipped(why: Arguments<'_>) {
    assert!(std::env::var_os("OUTRIGGER_REQUIRE").is_none(), "nothing may be skipped: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Nobody can be told if this fails.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}
