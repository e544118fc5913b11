//! Sparse files of archives: the places of their data.

use std::collections::VecDeque;

use super::reader::{Result, bad};

/// The known parts of a sparse file's map.
#[derive(Default)]
pub(super) struct Sparse {
    pub major: Option<u64>,
    pub size: Option<u64>,
    pub map: Vec<(u64, u64)>,
}

impl Sparse {
    /// The map, checked against the file and its stored bytes.
    pub fn extents(self, size: u64, stored: u64) -> Result<VecDeque<(u64, u64)>> {
        let (mut end, mut data) = (0, 0u64);
        for &(offset, len) in &self.map {
            if offset < end || offset.checked_add(len).is_none_or(|end| end > size) {
                return bad("a sparse file's map does not fit the file");
            }
            end = offset + len;
            data = data.saturating_add(len);
        }
        if data > stored {
            return bad("a sparse file's map does not fit its data");
        }
        Ok(self.map.into())
    }
}
