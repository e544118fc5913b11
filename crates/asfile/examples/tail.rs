//! Prints the last bytes of the input, and of another stored file: an example of a component that
//! does not read a stream.
//!
//! ```sh
//! cargo build --release -p outrigger-asfile --example asfile_tail
//! outrigger run --in 'in/*' --out 'tails/{name}' --with ref/table -- target/release/examples/asfile_tail ref/table {in}
//! ```
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

fn main() -> io::Result<()> {
    let table = std::env::args().nth(1).unwrap_or_default();
    let (mut input, mut besides, mut out) = (asfile::input(), asfile::open(&table)?, asfile::output()?);
    input.seek(SeekFrom::End(-5))?;
    io::copy(&mut input, &mut out)?;
    let mut text = String::new();
    besides.read_to_string(&mut text)?;
    write!(out, "{text}")?;
    out.close()
}
