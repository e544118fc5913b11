//! Rolling hashes, which reach the next window in one step for each byte between the two.
//!
//! Rolling is one chain of dependent look-ups, so the windows are split into [`LANES`] runs that
//! roll in turns. If the step is long compared with the window, it is cheaper to hash each window
//! from its first byte. The processor then overlaps the windows by itself.

use outrigger_format::boundary::{GEAR, RABIN_POLYNOMIAL, WINDOW};

use crate::op::WindowSpec;

/// Runs that roll in turns.
const LANES: usize = 8;

/// A hash of a sliding range of bytes.
pub(super) trait Rolling {
    /// Only so many last bytes of a window decide its hash.
    fn reach(&self) -> usize;
    /// The hash with one more byte.
    fn enter(&self, hash: u64, byte: u8) -> u64;
    /// The hash one byte further: `new` enters, and the window's first byte `old` leaves.
    fn roll(&self, hash: u64, old: u8, new: u8) -> u64;
}

/// Writes the first `spec.keep` bytes of each window's hash to `out`.
pub(super) fn hash(rolling: &impl Rolling, spec: WindowSpec, data: &[u8], out: &mut [u8]) {
    // The compiler turns copies of a constant length into moves.
    match spec.keep {
        4 => hash_keeping::<4>(rolling, spec, data, out.as_chunks_mut().0),
        8 => hash_keeping::<8>(rolling, spec, data, out.as_chunks_mut().0),
        keep => {
            for (n, out) in out.chunks_exact_mut(keep).enumerate() {
                out.copy_from_slice(&one(rolling, &spec, data, n).to_le_bytes()[..keep]);
            }
        }
    }
}

/// The hash of window `n`.
fn one(rolling: &impl Rolling, spec: &WindowSpec, data: &[u8], n: usize) -> u64 {
    let window = &data[n * spec.step..][..spec.window];
    let reached = &window[spec.window - rolling.reach()..];
    reached.iter().fold(0, |hash, &byte| rolling.enter(hash, byte))
}

fn hash_keeping<const KEEP: usize>(
    rolling: &impl Rolling,
    spec: WindowSpec,
    data: &[u8],
    out: &mut [[u8; KEEP]],
) {
    let keep = |hash: u64| {
        let mut kept = [0; KEEP];
        kept.copy_from_slice(&hash.to_le_bytes()[..KEEP]);
        kept
    };
    let run = out.len() / LANES;
    let rolled = if spec.step <= rolling.reach() / 2 && run > 0 { run * LANES } else { 0 };
    let (rolled, rest) = out.split_at_mut(rolled);
    if !rolled.is_empty() {
        let starts: [usize; LANES] = std::array::from_fn(|lane| lane * run * spec.step);
        let mut hashes = starts.map(|start| one(rolling, &spec, &data[start..], 0));
        // The bytes that leave and enter in each lane's run: one slice each, all of one length.
        let len = (run - 1) * spec.step;
        let old = starts.map(|start| &data[start..][..len]);
        let new = starts.map(|start| &data[start + spec.window..][..len]);
        for n in 0..run {
            for lane in 0..LANES {
                rolled[lane * run + n] = keep(hashes[lane]);
            }
            let from = n * spec.step;
            if n + 1 < run {
                for at in from..from + spec.step {
                    for lane in 0..LANES {
                        hashes[lane] = rolling.roll(hashes[lane], old[lane][at], new[lane][at]);
                    }
                }
            }
        }
    }
    let done = rolled.len();
    for (n, out) in rest.iter_mut().enumerate() {
        *out = keep(one(rolling, &spec, data, done + n));
    }
}

/// Remainders modulo [`RABIN_POLYNOMIAL`].
pub(super) struct Rabin {
    window: usize,
    /// The remainder that a byte adds once it is `window` bytes in.
    leaving: [u64; 256],
}

const DEGREE: u32 = RABIN_POLYNOMIAL.ilog2();

/// For the top byte of a remainder that is shifted by a byte: clears it, and adds the remainder of
/// the cleared part.
static REDUCE: [u64; 256] = {
    let mut table = [0; 256];
    let mut top = 0;
    while top < 256 {
        let mut rest = (top as u64) << DEGREE;
        let mut bit = 8;
        while bit > 0 {
            bit -= 1;
            if rest >> (DEGREE + bit) & 1 == 1 {
                rest ^= RABIN_POLYNOMIAL << bit;
            }
        }
        table[top] = (top as u64) << DEGREE | rest;
        top += 1;
    }
    table
};

impl Rabin {
    pub fn new(window: usize) -> Self {
        let mut rabin = Self { window, leaving: [0; 256] };
        for bit in 0..8 {
            let remainder = (0..window).fold(1 << bit, |hash, _| rabin.enter(hash, 0));
            // Remainders of sums are sums of remainders.
            (0..256).filter(|byte| byte >> bit & 1 == 1).for_each(|byte| rabin.leaving[byte] ^= remainder);
        }
        rabin
    }
}

impl Rolling for Rabin {
    fn reach(&self) -> usize {
        self.window
    }

    #[inline]
    fn enter(&self, hash: u64, byte: u8) -> u64 {
        (hash << 8 | u64::from(byte)) ^ REDUCE[(hash >> (DEGREE - 8)) as usize & 0xff]
    }

    #[inline]
    fn roll(&self, hash: u64, old: u8, new: u8) -> u64 {
        self.enter(hash, new) ^ self.leaving[old as usize]
    }
}

/// `h` of gear32 in the low 32 bits. The upper bits may have any value.
pub(super) struct Gear {
    reach: usize,
    /// The value that a byte adds once it is `window` bytes in. Zero if all its bits are shifted
    /// out.
    leaving: [u32; 256],
}

impl Gear {
    pub fn new(window: usize) -> Self {
        let leaving = GEAR.map(|entry| if window < WINDOW { entry << window } else { 0 });
        Self { reach: window.min(WINDOW), leaving }
    }
}

impl Rolling for Gear {
    fn reach(&self) -> usize {
        self.reach
    }

    #[inline]
    fn enter(&self, hash: u64, byte: u8) -> u64 {
        (hash << 1).wrapping_add(GEAR[byte as usize].into())
    }

    #[inline]
    fn roll(&self, hash: u64, old: u8, new: u8) -> u64 {
        self.enter(hash, new).wrapping_sub(self.leaving[old as usize].into())
    }
}
