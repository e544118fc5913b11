//! How a component reads its input and writes its outputs: for Rust what `asfile.h` is for C and `asfile.py` for Python.
//!
//! A component is any program that Outrigger runs over stored data. Its input is a stream that another program may still be writing: a read waits for more, and sees the
//! end only when the writer has closed the file. Nothing that it writes is visible to anybody before it has ended with exit code 0 and the whole
//! job has succeeded. Outside of a job the same program works on standard input and output, and on files in the current directory.
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

/// Bytes that are asked for at once, if nobody says how many.
const BUFFER: usize = 256 << 10;

/// The component's input.
pub fn input() -> Input {
    input_with(BUFFER)
}

/// The component's input, with a buffer of so many bytes.
pub fn input_with(buffer: usize) -> Input {
    match std::env::var_os("AS_INPUT_FILE") {
        Some(path) => match File::open(path) {
            Ok(file) => Input(Source::File(BufReader::with_capacity(buffer, file))),
            Err(error) => Input(Source::Lost(error)),
        },
        None => Input(Source::Stream(BufReader::with_capacity(buffer, io::stdin()))),
    }
}

/// The stored file `path` that is there to look at (`--with`), or another input where inputs are files (`{in}`); outside of a job a file in the current directory.
///
/// # Errors
/// `InvalidInput` for a path that leads elsewhere; when there is no such file.
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

/// The component's input, see [`input`], or another stored file, see [`open`].
#[derive(Debug)]
pub struct Input(Source);

#[derive(Debug)]
enum Source {
    Stream(BufReader<Stdin>),
    File(BufReader<File>),
    /// It could not be opened, which whoever reads it is told.
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
    /// What is a file can be moved in: other stored files, and the component's input where it was asked for as one (`{in}`).
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

/// An output. Close it: dropping it writes what is buffered, and says nothing of what went wrong.
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
/// None by now; outputs are opened alike.
pub fn output() -> io::Result<Output> {
    Ok(Output(Kind::Stream(BufWriter::with_capacity(BUFFER, io::stdout()))))
}

/// The output `name`: that of `--out NAME=…`, or a file of that name below a directory output (`--out DIR/`).
///
/// # Errors
/// `InvalidInput` for what cannot be a name; when the file cannot be made.
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
    /// Writes what is buffered. A component must look at what this returns: a full disk may show itself only here.
    ///
    /// # Errors
    /// When not all could be written.
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
    /// Named outputs can be moved in; the unnamed one is a stream and cannot.
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

/// This component's job; `None` outside of one.
pub fn job() -> Option<u64> {
    number("AS_JOB")
}

/// Which split of the input it has, from 0.
pub fn split() -> u64 {
    number("AS_SPLIT").unwrap_or(0)
}

/// How many splits there are.
pub fn splits() -> u64 {
    number("AS_SPLITS").unwrap_or(1).max(1)
}

/// Counts the attempts at this split, from 1.
pub fn attempt() -> u64 {
    number("AS_ATTEMPT").unwrap_or(1).max(1)
}

/// A text that is the same for every attempt at this split and differs from that of all others: external effects are marked with it, so that doing them twice
/// can be noticed. Empty outside of a job.
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
