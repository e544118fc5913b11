//! Reports skipped tests visibly, and fails them in runs where nothing may be skipped.

use std::fmt::Arguments;
use std::io::Write as _;

/// Reports that a test, or a part of it, is skipped for something that could be installed or
/// allowed: `skipped!("there is no {program}")`.
///
/// If `OUTRIGGER_REQUIRE` is set, the test fails. A test runner hides the output of passing tests.
/// So the line goes to standard error itself, and to the file that `OUTRIGGER_SKIPPED` names
/// (`scripts/test.py` prints a summary of it).
///
/// # Panics
/// If nothing may be skipped.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)*) => { $crate::say_skipped(format_args!($($why)*), $crate::Lack::Could) };
}

/// As [`skipped!`], for things that no package brings: a device, or a part of the kernel. It is
/// reported, and never fails the test.
#[macro_export]
macro_rules! lacking {
    ($($why:tt)*) => { $crate::say_skipped(format_args!($($why)*), $crate::Lack::Cannot) };
}

/// The kind of a test's need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// A package or a right: see [`skipped!`].
    Could,
    /// Another kernel or device: see [`lacking!`].
    Cannot,
}

/// See [`skipped!`] and [`lacking!`].
///
/// # Panics
/// If nothing may be skipped that could be had, as this could.
pub fn say_skipped(why: Arguments<'_>, lack: Lack) {
    let required = lack == Lack::Could && std::env::var_os("OUTRIGGER_REQUIRE").is_some();
    assert!(!required, "nothing may be skipped: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Nobody can be told if these fail.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    if let Some(file) = std::env::var_os("OUTRIGGER_SKIPPED") {
        let kind = if lack == Lack::Could { "could" } else { "cannot" };
        let line = format!("{test}\t{kind}\t{}\n", why.to_string().replace(['\n', '\t'], " "));
        let file = std::fs::File::options().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
