//! A program's standard input: ranges of stored files, verified before they are handed over.

use std::sync::Arc;

use outrigger_format::Root;
use outrigger_store::read::{Reader, Told};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::pipes::{Fed, Pipes};
use crate::bam::Part;
use crate::job::records::{Count, Records};
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

/// The source of standard input.
pub enum Feed {
    /// None: the program reads its inputs itself, or has none.
    Nothing,
    /// These ranges of such records, one after the other; the callback counts where they were. The
    /// last: true if a processor is free to decode ahead.
    Stored(Arc<Store>, Vec<Range>, Arc<Told>, Records, bool),
    /// A part of a BAM file, by its index.
    Bam(Arc<Store>, Range, Arc<Root>, Arc<Told>),
    /// A stream from another thread; see [`crate::through`].
    Stream(Box<dyn FnOnce(&mut Pipes) -> Fed + Send>),
}

impl Feed {
    /// True if it can be read only once.
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// True if there is no pipe.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Writes all of it to programs. If a program closes its input, it has read enough: that is no
    /// failure. The pipes stay open, because a program takes a closed one for the end of its input.
    /// They are closed when it is known that this was all, or when the programs have been killed.
    pub(super) fn into(self, pipes: &mut Pipes, counters: &Counters) -> Fed {
        match self {
            Self::Nothing => Ok(()),
            Self::Stored(store, ranges, counter, records, ahead) => {
                let reader = Reader::new(&store).publishing(&*counter);
                for range in &ranges {
                    let len = range.to - range.from;
                    let mut count = Count::new(&records);
                    let read = |sink: Sink<'_>| {
                        let counted: Sink<'_> = &mut |bytes: &[u8]| {
                            let ended = count.as_mut().map_or(0, |count| count.feed(bytes));
                            Counters::add(&counters.records_read, ended);
                            sink(bytes)
                        };
                        match ahead {
                            true => reader.read_ahead(&range.root, range.from, len, counted),
                            false => reader.read(&range.root, range.from, len, counted),
                        }
                    };
                    write_all(pipes, counters, &range.path, read)?;
                    Counters::add(&counters.records_read, count.map_or(0, |count| count.end()));
                    if !pipes.are_any() {
                        break;
                    }
                }
                Ok(())
            }
            Self::Bam(store, range, index, counter) => {
                let reader = Reader::new(&store).publishing(&*counter);
                write_all(pipes, counters, &range.path, |sink| {
                    let part = Part::find(&reader, &range.root, &index, range.from, range.to)?;
                    part.write(&reader, &range.root, sink)
                })
            }
            Self::Stream(write) => write(pipes),
        }
    }
}

/// Takes bytes as they are read.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Has `read` write to programs, until none of them reads any more.
fn write_all(
    pipes: &mut Pipes,
    counters: &Counters,
    path: &str,
    read: impl FnOnce(Sink<'_>) -> Result<()>,
) -> std::result::Result<(), String> {
    give_all(pipes, counters, read).map_err(|error| format!("reading `{path}`: {error}"))
}

/// As [`write_all`], with the kind of the error.
///
/// # Errors
/// Those of `read`.
pub(crate) fn give_all(
    pipes: &mut Pipes,
    counters: &Counters,
    read: impl FnOnce(Sink<'_>) -> Result<()>,
) -> Result<()> {
    let mut enough = false;
    let read = read(&mut |bytes| {
        Counters::add(&counters.bytes_read, bytes.len() as u64);
        let why = || Error::new(ErrorKind::Cancelled, "its standard input");
        pipes.give(bytes).map_err(|error| why().caused_by(error))?;
        enough = !pipes.are_any();
        if enough { Err(why()) } else { Ok(()) }
    });
    match read {
        Err(_) if enough => Ok(()),
        read => read,
    }
}
