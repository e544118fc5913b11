//! DSCAL multiplies numbers by a scalar. The input has one number on each line, in text, and the
//! factor is the argument. With a second argument, their count goes to the output of that name.
//!
//! ```sh
//! cargo build --release -p outrigger-asfile --example asfile_dscal
//! outrigger run --in numbers --out scaled --records lines --splits 4 -- target/release/examples/asfile_dscal 2.5
//! ```
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::io::{self, BufRead as _, Write as _};

fn main() -> io::Result<()> {
    let mut words = std::env::args().skip(1);
    let factor: f64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(1.0);
    let wrong = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not a number: {line}"));
    let (mut out, mut count) = (asfile::output()?, 0u64);
    for line in asfile::input().lines() {
        let line = line?;
        let value: f64 = line.trim().parse().map_err(|_| wrong(&line))?;
        writeln!(out, "{}", value * factor)?;
        count += 1;
    }
    out.close()?;
    if let Some(name) = words.next() {
        let mut counted = asfile::named(&name)?;
        writeln!(counted, "{count} in split {} of {}", asfile::split(), asfile::splits())?;
        counted.close()?;
    }
    Ok(())
}
