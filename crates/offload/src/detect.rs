//! The instruction sets of this processor, detected once.

use std::fmt;
use std::sync::OnceLock;

/// The instruction sets with kernels for scanning, slowest first. All give the same results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum SimdLevel {
    /// Plain Rust: four interleaved loops.
    Portable,
    /// AVX2: eight lanes, table entries from nibble look-ups.
    Avx2,
    /// AVX2 and GFNI: eight lanes, table entries computed.
    Avx2Gfni,
    /// AVX-512 (F, BW) and GFNI: sixteen lanes, table entries computed.
    Avx512,
}

impl SimdLevel {
    /// Every level, slowest first.
    pub const ALL: [SimdLevel; 4] = [Self::Portable, Self::Avx2, Self::Avx2Gfni, Self::Avx512];

    /// The best level of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let gfni = has!("gfni");
            if gfni && has!("avx512f") && has!("avx512bw") && has!("avx2") {
                return Self::Avx512;
            }
            if has!("avx2") {
                return if gfni { Self::Avx2Gfni } else { Self::Avx2 };
            }
        }
        Self::Portable
    }

    /// The level in use: the best one, or that in the environment variable `OUTRIGGER_SIMD`
    /// (`portable`, `avx2`, `avx2gfni`, `avx512`) if the processor has it. Read once per process.
    /// An unknown name has no effect.
    ///
    /// ```
    /// use outrigger_offload::SimdLevel;
    /// assert!(SimdLevel::current() <= SimdLevel::detect());
    /// ```
    pub fn current() -> Self {
        static CURRENT: OnceLock<SimdLevel> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let wanted = std::env::var("OUTRIGGER_SIMD").ok().and_then(|name| Self::from_name(&name));
            wanted.map_or(Self::detect(), |level| level.min(Self::detect()))
        })
    }

    /// The levels of this processor, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|&level| level <= Self::detect())
    }

    /// Its name in `OUTRIGGER_SIMD`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx2Gfni => "avx2gfni",
            Self::Avx512 => "avx512",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
