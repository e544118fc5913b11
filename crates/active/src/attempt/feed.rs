//! What a program reads on its standard input: ranges of stored files, verified before they are handed over.

use std::io::{ErrorKind as Io, Write};
use std::process::ChildStdin;
use std::sync::Arc;

use outrigger_format::Root;
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Store};

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
        let mut closed = false;
        let read = reader.read(&range.root, range.from, range.to - range.from, &mut |bytes| {
            Counters::add(&counters.bytes_read, bytes.len() as u64);
            stdin.write_all(bytes).map_err(|error| {
                closed = error.kind() == Io::BrokenPipe;
                Error::new(ErrorKind::Cancelled, "its standard input").caused_by(error)
            })
        });
        match read {
            Err(_) if closed => return Ok(()),
            Err(error) => return Err(format!("reading `{}`: {error}", range.path)),
            Ok(()) => {}
        }
    }
    Ok(())
}
