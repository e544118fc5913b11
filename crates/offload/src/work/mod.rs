//! Tasks that own what they work on, so that they can wait in queues, lie on devices and change hands.
//!
//! [`crate::op`] says what the operations mean, on borrowed buffers; a [`Work`] is one of those with its input, an
//! [`Output`] what comes of it. Work is read-only once it is submitted and shared by all who hold it; outputs have one
//! owner. Anything of the two can be done by a [`Device`](crate::Device) at any time: [`Work::run_on`].

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

/// Where a task's input lies.
#[derive(Debug, Default)]
pub enum Input {
    /// Nowhere: there is none.
    #[default]
    Empty,
    /// In a buffer of its own, which goes back to the pool with the task.
    Own(Buffer),
    /// In a buffer that several tasks read: a batch that is scanned, then hashed.
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
    /// What is to be done.
    pub request: Request,
    /// The buffer.
    pub input: Input,
    /// Which part of the buffer is meant, less than 2^31 bytes: [`Work::data`].
    pub range: Range<usize>,
}

impl Work {
    /// Nothing to do, on nothing.
    pub fn empty() -> Self {
        Self { request: Request::default(), input: Input::Empty, range: 0..0 }
    }

    /// The bytes to be worked on.
    pub fn data(&self) -> &[u8] {
        &self.input.bytes()[self.range.clone()]
    }

    /// What precedes [`Work::data`] in its file, for a scan: bytes of the same buffer. Else nothing.
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

    /// The bytes that have to reach a device: the data and the lists beside it. What a task's time is predicted from.
    pub fn len_in(&self) -> usize {
        match self.request {
            Request::Lookup { .. } => self.request.side_len(),
            _ => self.range.len() + self.request.side_len(),
        }
    }

    /// The most bytes that [`Output::bytes`] can get: 0 for operations whose results are lists.
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

    /// What its speed depends on beside its size.
    pub fn class(&self) -> Class {
        self.request.class()
    }

    /// Checks what [`crate::op`] demands of callers.
    ///
    /// # Panics
    /// Where [`Work::check`] says what is wrong.
    pub fn assert_valid(&self) {
        if let Err(why) = self.check() {
            panic!("{why}");
        }
    }

    /// Whether it is what [`crate::op`] demands of callers.
    ///
    /// # Errors
    /// [`InvalidWork`] when it is too large, or the range, the history, a piece or a stream lies outside of the buffer.
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

/// What is wrong with work that cannot be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidWork(&'static str);
