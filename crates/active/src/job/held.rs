//! A split that is what one host holds.

use serde::{Deserialize, Serialize};

/// A split by host: the parts of a job's inputs that one host held when the job was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// The host.
    pub host: String,
    /// Input, nominal first byte, nominal first byte after: in the order of the inputs, and of
    /// their bytes.
    pub ranges: Vec<(u32, u64, u64)>,
}

impl Held {
    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(_, from, to)| to.saturating_sub(*from)).sum()
    }

    /// Its input, if it has only one.
    pub fn input(&self) -> Option<u32> {
        let (first, ..) = *self.ranges.first()?;
        self.ranges.iter().all(|(input, ..)| *input == first).then_some(first)
    }
}
