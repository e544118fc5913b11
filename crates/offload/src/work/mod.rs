//! Tasks that own their data, so that they can wait in queues, move between threads and stay on
//! devices.
//!
//! [`crate::op`] defines the operations on borrowed buffers. A [`Work`] is an operation with its
//! input, and an [`Output`] has its results. After submission, work is read-only and shared by all
//! its holders. An output has one owner. A [`Device`](crate::Device) can execute a work at any
//! time: [`Work::run_on`].

mod class;
mod output;
mod request;
mod run;
pub(crate) mod split;
mod user;

pub use class::Class;
pub use output::{Output, OutputBytes};
pub use request::Request;
pub use run::same_result;
pub use user::{CpuFunction, Kernel, KernelCode, OutputLen, UserOperation};

use std::ops::Range;
use std::sync::Arc;

use crate::op::Stream;
use crate::pool::Buffer;

/// The input of a task.
#[derive(Debug, Default)]
pub enum Input {
    /// No input.
    #[default]
    Empty,
    /// A buffer of its own, which returns to the pool with the task.
    Own(Buffer),
    /// A buffer that several tasks read, such as a batch that is scanned and then hashed.
    Shared(Arc<Buffer>),
}

impl Input {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer().map_or(&[], |buffer| buffer)
    }

    /// The buffer.
    pub fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::Empty => None,
            Self::Own(buffer) => Some(buffer),
            Self::Shared(buffer) => Some(buffer),
        }
    }
}

/// A request and its input.
#[derive(Debug)]
pub struct Work {
    /// The operation with its parameters.
    pub request: Request,
    /// The buffer.
    pub input: Input,
    /// The part of the buffer that is the data ([`Work::data`]), less than 2^31 bytes.
    pub range: Range<usize>,
}

impl Work {
    /// Work without input, whose request does nothing.
    pub fn empty() -> Self {
        Self { request: Request::default(), input: Input::Empty, range: 0..0 }
    }

    /// The input data.
    pub fn data(&self) -> &[u8] {
        &self.input.bytes()[self.range.clone()]
    }

    /// For a scan, the bytes before [`Work::data`] in its file, from the same buffer. Otherwise
    /// empty.
    pub fn history(&self) -> &[u8] {
        let before = match self.request {
            Request::Scan { history, .. } => history,
            _ => 0,
        };
        &self.input.bytes()[self.range.start - before..self.range.start]
    }

    /// The length of [`Work::data`].
    pub fn input_len(&self) -> usize {
        self.range.len()
    }

    /// The bytes that a device must receive: the data and the lists. Predictions are based on it.
    pub fn len_in(&self) -> usize {
        match self.request {
            Request::Lookup { .. } => self.request.side_len(),
            _ => self.range.len() + self.request.side_len(),
        }
    }

    /// The most bytes in [`Output::bytes`]. 0 for operations whose results are lists.
    pub fn output_len_max(&self) -> usize {
        match &self.request {
            Request::Scan { .. }
            | Request::HashMany { .. }
            | Request::Lookup { .. }
            | Request::Ingest { .. } => 0,
            Request::WindowHash { spec } => spec.count(self.input_len()) * spec.keep,
            Request::PmdHash { digest } => digest.len(),
            Request::Compress { .. } => self.input_len(),
            Request::Decompress { raw_len, .. } => *raw_len,
            Request::User { operation, parameters } => operation.output_len(parameters, self.input_len()),
        }
    }

    /// The class that determines its speed, together with its size.
    pub fn class(&self) -> Class {
        self.request.class()
    }

    /// Checks the preconditions of [`crate::op`].
    ///
    /// # Panics
    /// If [`Work::check`] returns an error.
    pub fn assert_valid(&self) {
        if let Err(why) = self.check() {
            panic!("{why}");
        }
    }

    /// Checks the preconditions of [`crate::op`].
    ///
    /// # Errors
    /// [`InvalidWork`] if it is too large, or if the range, the history, a piece or a stream lies
    /// outside of the buffer.
    pub fn check(&self) -> Result<(), InvalidWork> {
        let Range { start, end } = self.range;
        let demand = |fine: bool, why| if fine { Ok(()) } else { Err(InvalidWork(why)) };
        demand(start <= end && end <= self.input.bytes().len(), "the range lies outside of the buffer")?;
        demand(end - start < 1 << 31, "a task has less than 2^31 bytes")?;
        match &self.request {
            Request::Scan { history, .. } => {
                demand(*history <= start, "the history lies outside of the buffer")
            }
            Request::HashMany { ranges, .. } => {
                let within =
                    |piece: &Range<u32>| piece.start <= piece.end && piece.end as usize <= end - start;
                demand(ranges.iter().all(within), "a piece lies outside of the data")
            }
            Request::Ingest { streams, .. } => {
                let within = |stream: &Stream| {
                    stream.range.start <= stream.range.end && stream.range.end as usize <= end - start
                };
                demand(streams.iter().all(within), "a stream lies outside of the data")
            }
            _ => Ok(()),
        }
    }
}

/// The reason why work cannot be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidWork(&'static str);
