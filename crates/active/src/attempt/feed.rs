//! What a program reads on its standard input: ranges of stored files, verified before they are handed over.

use std::io::{ErrorKind as Io, Write};
use std::process::ChildStdin;
use std::sync::Arc;

use outrigger_format::Root;
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::bam::Part;
use crate::progress::Counters;

/// A part of a stored file.
#[derive(Clone, Debug)]
pub struct Range {
    /// Its content.
    pub root: Arc<Root>,
    /// First byte.
    pub from: u64,
    /// First byte after.
    pub to: u64,
    /// How to name it in messages.
    pub path: Arc<str>,
}

/// Where standard input comes from.
pub enum Feed {
    /// Nothing: the program reads its inputs itself, or none.
    Nothing,
    /// These, one after the other.
    Stored(Arc<Store>, Vec<Range>),
    /// A part of a BAM file, by its index.
    Bam(Arc<Store>, Range, Arc<Root>),
    /// What another thread is writing; see [`crate::through`].
    Stream(Box<dyn FnOnce(ChildStdin) -> std::result::Result<(), String> + Send>),
}

impl Feed {
    /// True when there will be no pipe.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Writes all of it. A program that closes its input has read enough: that is no failure.
    pub(super) fn into(self, stdin: ChildStdin, counters: &Counters) -> std::result::Result<(), String> {
        match self {
            Self::Nothing => Ok(()),
            Self::Stored(store, ranges) => stored(&store, &ranges, stdin, counters),
            Self::Bam(store, range, index) => {
                let reader = Reader::new(&store);
                write_all(stdin, counters, &range.path, |sink| {
                    let part = Part::find(&reader, &range.root, &index, range.from, range.to)?;
                    part.write(&reader, &range.root, sink)
                })
                .map(drop)
            }
            Self::Stream(write) => write(stdin),
        }
    }
}

fn stored(
    store: &Store,
    ranges: &[Range],
    mut stdin: ChildStdin,
    counters: &Counters,
) -> std::result::Result<(), String> {
    let reader = Reader::new(store);
    for range in ranges {
        let len = range.to - range.from;
        let read = |sink: Sink<'_>| reader.read(&range.root, range.from, len, sink);
        match write_all(stdin, counters, &range.path, read)? {
            Some(open) => stdin = open,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Takes bytes as they are read.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Has `read` write to a program; returns its input again unless the program has closed it.
fn write_all(
    mut stdin: ChildStdin,
    counters: &Counters,
    path: &str,
    read: impl FnOnce(Sink<'_>) -> Result<()>,
) -> std::result::Result<Option<ChildStdin>, String> {
    let mut closed = false;
    let read = read(&mut |bytes| {
        Counters::add(&counters.bytes_read, bytes.len() as u64);
        stdin.write_all(bytes).map_err(|error| {
            closed = error.kind() == Io::BrokenPipe;
            Error::new(ErrorKind::Cancelled, "its standard input").caused_by(error)
        })
    });
    match read {
        Err(_) if closed => Ok(None),
        Err(error) => Err(format!("reading `{path}`: {error}")),
        Ok(()) => Ok(Some(stdin)),
    }
}
