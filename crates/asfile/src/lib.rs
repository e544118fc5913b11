//! How a component reads its input and writes its outputs, for Rust. `asfile.h` does the same for
//! C, and `asfile.py` for Python.
//!
//! A component is any program that Outrigger runs over stored data. Its input is a stream that
//! another program may still be writing. A read waits for more, and reaches the end only once the
//! writer has closed the file. Nobody sees the component's output before it has ended with exit
//! code 0 and the whole job has succeeded. Outside of a job the same program uses standard input
//! and output, and files in the current directory.
//!
//! ```no_run
//! use std::io::{BufRead, Write};
//!
//! fn main() -> std::io::Result<()> {
//!     let (input, mut lines, mut long) = (asfile::input(), asfile::output()?, asfile::named("long")?);
//!     for line in input.lines() {
//!         let line = line?;
//!         if line.len() > 80 { writeln!(long, "{line}")? } else { writeln!(lines, "{line}")? }
//!     }
//!     long.close()?;
//!     lines.close()
//! }
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Stdin, Stdout, Write};
use std::path::{Path, PathBuf};

/// The default size of a read in bytes.
const BUFFER: usize = 256 << 10;

/// The component's input.
pub fn input() -> Input {
    input_with(BUFFER)
}

/// The component's input with a buffer of so many bytes.
pub fn input_with(buffer: usize) -> Input {
    match std::env::var_os("AS_INPUT_FILE") {
        Some(path) => match File::open(path) {
            Ok(file) => Input(Source::File(BufReader::with_capacity(buffer, file))),
            Err(error) => Input(Source::Lost(error)),
        },
        None => Input(Source::Stream(BufReader::with_capacity(buffer, io::stdin()))),
    }
}

/// Opens the stored file `path` (`--with`), or another input if inputs are files (`{in}`). Outside
/// of a job it is a file in the current directory.
///
/// # Errors
/// `InvalidInput` for a path that leads elsewhere; an error if there is no such file.
pub fn open(path: &str) -> io::Result<Input> {
    let path = stored(path, |variable| std::env::var_os(variable))?;
    Ok(Input(Source::File(BufReader::with_capacity(BUFFER, File::open(path)?))))
}

fn stored(path: &str, variable: impl Fn(&str) -> Option<OsString>) -> io::Result<PathBuf> {
    if path.is_empty()
        || path.starts_with('/')
        || path.contains('\0')
        || path.split('/').any(|name| name == "..")
    {
        let why = format!("`{path}` cannot be the path of a stored file");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    match variable("AS_IN") {
        Some(files) => Ok(Path::new(&files).join(path)),
        None if variable("AS_JOB").is_some() => {
            let why = format!("`{path}`: this job has no files to look at (--with, {{in}})");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        None => Ok(Path::new(".").join(path)),
    }
}

/// The component's input (see [`input`]) or another stored file (see [`open`]).
#[derive(Debug)]
pub struct Input(Source);

#[derive(Debug)]
enum Source {
    Stream(BufReader<Stdin>),
    File(BufReader<File>),
    /// It could not be opened, which its reader learns.
    Lost(io::Error),
}

impl Read for Input {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Source::Stream(stream) => stream.read(room),
            Source::File(file) => file.read(room),
            Source::Lost(error) => Err(again(error)),
        }
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match &mut self.0 {
            Source::Stream(stream) => stream.fill_buf(),
            Source::File(file) => file.fill_buf(),
            Source::Lost(error) => Err(again(error)),
        }
    }

    fn consume(&mut self, amount: usize) {
        match &mut self.0 {
            Source::Stream(stream) => stream.consume(amount),
            Source::File(file) => file.consume(amount),
            Source::Lost(_) => {}
        }
    }
}

impl Seek for Input {
    /// Moves in a file: another stored file, or the component's input if that is a file (`{in}`).
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Source::Stream(_) => Err(io::Error::new(io::ErrorKind::NotSeekable, "the input is a stream")),
            Source::File(file) => file.seek(to),
            Source::Lost(error) => Err(again(error)),
        }
    }
}

fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// An output, which must be closed. Dropping it writes buffered data, but reports no errors.
#[derive(Debug)]
pub struct Output(Kind);

#[derive(Debug)]
enum Kind {
    Stream(BufWriter<Stdout>),
    File(BufWriter<File>),
}

/// The component's unnamed output.
///
/// # Errors
/// None at present. The result matches that of [`named`].
pub fn output() -> io::Result<Output> {
    Ok(Output(Kind::Stream(BufWriter::with_capacity(BUFFER, io::stdout()))))
}

/// The output `name`: that of `--out NAME=…`, or a file of that name in a directory output
/// (`--out DIR/`).
///
/// # Errors
/// `InvalidInput` for an invalid name; an error if the file cannot be created.
pub fn named(name: &str) -> io::Result<Output> {
    let file = File::create(place(name, |variable| std::env::var_os(variable))?)?;
    Ok(Output(Kind::File(BufWriter::with_capacity(BUFFER, file))))
}

fn place(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> io::Result<PathBuf> {
    if name.is_empty() || name.contains(['/', '\0']) || matches!(name, "." | "..") || name.len() > 255 {
        let why = format!("`{name}` cannot be the name of an output");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if let Some(path) = variable(&format!("AS_OUTPUT_{name}")) {
        return Ok(path.into());
    }
    let work = variable("AS_WORK");
    Ok(work.as_ref().map_or(Path::new("."), Path::new).join(name))
}

impl Output {
    /// Writes buffered data. A component must check the result, as a full disk may show only here.
    ///
    /// # Errors
    /// If not all data could be written.
    pub fn close(mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Stream(stream) => stream.write(bytes),
            Kind::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Kind::Stream(stream) => stream.flush(),
            Kind::File(file) => file.flush(),
        }
    }
}

impl Seek for Output {
    /// Moves in a named output. The unnamed one is a stream, in which this is impossible.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Kind::Stream(_) => {
                Err(io::Error::new(io::ErrorKind::NotSeekable, "the unnamed output is a stream"))
            }
            Kind::File(file) => file.seek(to),
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The id of this component's job. `None` outside of a job.
pub fn job() -> Option<u64> {
    number("AS_JOB")
}

/// The number of its split of the input, from 0.
pub fn split() -> u64 {
    number("AS_SPLIT").unwrap_or(0)
}

/// The number of splits.
pub fn splits() -> u64 {
    number("AS_SPLITS").unwrap_or(1).max(1)
}

/// The number of this attempt at the split, from 1.
pub fn attempt() -> u64 {
    number("AS_ATTEMPT").unwrap_or(1).max(1)
}

/// A text that all attempts at this split share, and that no other split has. A component marks
/// external effects with it, so that a second attempt can find them. Empty outside of a job.
pub fn task_id() -> String {
    std::env::var("AS_TASK_ID").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_files_lie_in_the_inputs_mount() {
        let job = |name: &str| (name == "AS_IN").then(|| OsString::from("/in"));
        assert_eq!(stored("ref/genome.fa", job).unwrap(), Path::new("/in/ref/genome.fa"));
        assert_eq!(stored("x..y", |_| None).unwrap(), Path::new("./x..y"));
        let bare = |name: &str| (name == "AS_JOB").then(|| OsString::from("7"));
        assert_eq!(stored("x", bare).unwrap_err().kind(), io::ErrorKind::NotFound);
        for wrong in ["", "/etc/passwd", "..", "a/../b", "a/.."] {
            assert_eq!(stored(wrong, job).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
    }

    #[test]
    fn outputs_lie_where_the_job_says() {
        let none = |_: &str| None;
        assert_eq!(place("odd", none).unwrap(), Path::new("./odd"));
        let job = |name: &str| match name {
            "AS_OUTPUT_odd" => Some(OsString::from("/work/odd")),
            "AS_WORK" => Some(OsString::from("/work")),
            _ => None,
        };
        assert_eq!(place("odd", job).unwrap(), Path::new("/work/odd"));
        assert_eq!(place("other", job).unwrap(), Path::new("/work/other"));
        for wrong in ["", ".", "..", "a/b", &"x".repeat(256)] {
            assert_eq!(place(wrong, none).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
