//! A split that is what one host holds.

use serde::{Deserialize, Serialize};

/// What one host held of a job's inputs when the job was made: a split.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Who.
    pub host: String,
    /// Input, nominal first byte, nominal first byte after: in the order of the inputs, and of their bytes.
    pub ranges: Vec<(u32, u64, u64)>,
}

impl Held {
    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(_, from, to)| to.saturating_sub(*from)).sum()
    }

    /// The input that it is of, if that is one.
    pub fn input(&self) -> Option<u32> {
        let (first, ..) = *self.ranges.first()?;
        self.ranges.iter().all(|(input, ..)| *input == first).then_some(first)
    }
}
