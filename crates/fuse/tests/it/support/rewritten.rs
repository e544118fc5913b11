//! GHOST's workload of figure 9, with an eighth of its cache: a file that grows by segments, and
//! most requests write one of the last segments again.

use outrigger_workload::{Rewrite, rewrite_bytes, rewrites};

/// Room of the staging log: GHOST's cache.
pub const ROOM: u64 = 32 << 20;
/// Bytes of a request: GHOST's segment.
pub const SEGMENT: usize = 32 << 10;
const SEED: u64 = 1;

/// The requests so far, and what the file is by then.
pub struct Rewritten {
    requests: std::vec::IntoIter<Rewrite>,
    versions: Vec<u32>,
    pub written: u64,
}

impl Rewritten {
    /// Of a thousand requests so many write again what was new within a quarter of the cache.
    pub fn new(requests: u64, permille: u64) -> Self {
        let window = ROOM / SEGMENT as u64 / 4;
        let requests = rewrites(SEED, requests, permille, window).into_iter();
        Self { requests, versions: Vec::new(), written: 0 }
    }

    /// Passes the next requests to `write`: an offset, and the bytes for it.
    pub fn run(&mut self, count: usize, mut write: impl FnMut(u64, &[u8])) {
        let mut bytes = vec![0; SEGMENT];
        for request in self.requests.by_ref().take(count) {
            let block = request.block as usize;
            self.versions.resize(self.versions.len().max(block + 1), 0);
            self.versions[block] = request.version;
            rewrite_bytes(SEED, request, &mut bytes);
            write(request.block * SEGMENT as u64, &bytes);
            self.written += SEGMENT as u64;
        }
    }

    /// The file's length.
    pub fn len(&self) -> usize {
        self.versions.len() * SEGMENT
    }

    /// True if these are the bytes of the file.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mut expected = vec![0; SEGMENT];
        bytes.len() == self.len()
            && bytes.chunks(SEGMENT).zip(&self.versions).zip(0..).all(|((bytes, version), block)| {
                rewrite_bytes(SEED, Rewrite { block, version: *version }, &mut expected);
                bytes == expected
            })
    }
}
