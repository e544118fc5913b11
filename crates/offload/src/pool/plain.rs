//! Memory of the host's allocator, aligned to pages.

use crate::device::HostRegion;

const ALIGN: usize = 4096;

struct Plain {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl HostRegion for Plain {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// `len` zeros whose first address is a multiple of 4096.
pub(crate) fn allocate(len: usize) -> Box<dyn HostRegion> {
    // Zeroed pages come from the kernel when they are touched, so the slack costs nothing.
    let bytes = vec![0; len + ALIGN];
    let start = bytes.as_ptr().addr().wrapping_neg() % ALIGN;
    Box::new(Plain { bytes, start, len })
}
