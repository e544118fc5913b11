//! How many of a long row of similar cases a test tries.

/// Every `apart`-th of similar cases; every single one if `OUTRIGGER_EVERY_CASE` is set, as in
/// `make test-long`.
#[must_use]
pub fn spaced(apart: usize) -> usize {
    if std::env::var_os("OUTRIGGER_EVERY_CASE").is_some() { 1 } else { apart }
}
