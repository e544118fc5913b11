//! Requests to write blocks, a chosen share of which soon repeats, as on primary storage under a
//! cache.

use crate::Rng;

/// A request: the block's number, and how often it was written before. Its bytes follow from both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrite {
    /// The block's number.
    pub block: u64,
    /// 0 for the first time.
    pub version: u32,
}

/// `count` requests: `rewrite_permille` of a thousand rewrite one of the last `window` new blocks,
/// and the rest is new.
///
/// ```
/// let requests = outrigger_workload::rewrites(1, 10_000, 500, 100);
/// let again = requests.iter().filter(|request| request.version > 0).count();
/// assert!((4700..5300).contains(&again));
/// ```
pub fn rewrites(seed: u64, count: u64, rewrite_permille: u64, window: u64) -> Vec<Rewrite> {
    let mut rng = Rng::part(seed, 0x7265_7772);
    let mut versions: Vec<u32> = Vec::new();
    (0..count)
        .map(|_| {
            if rng.permille(rewrite_permille) && !versions.is_empty() {
                let back = rng.below(window.min(versions.len() as u64)) as usize;
                let block = versions.len() - 1 - back;
                versions[block] += 1;
                return Rewrite { block: block as u64, version: versions[block] };
            }
            versions.push(0);
            Rewrite { block: versions.len() as u64 - 1, version: 0 }
        })
        .collect()
}

/// The bytes that a request writes, into `out`.
pub fn rewrite_bytes(seed: u64, request: Rewrite, out: &mut [u8]) {
    Rng::part(seed ^ u64::from(request.version) << 40, request.block).fill(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_a_seed_never_change() {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = [0; 100];
        for request in rewrites(1, 2000, 300, 50) {
            rewrite_bytes(1, request, &mut bytes);
            hasher.update(&request.block.to_le_bytes()).update(&request.version.to_le_bytes()).update(&bytes);
        }
        assert_eq!(&hasher.finalize().to_hex().as_str()[..32], "764bd1f5465316ea92dcc9c367d70f4e");
    }
}
