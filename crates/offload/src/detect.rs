//! The instruction sets of this processor, detected once.

use std::fmt;
use std::sync::OnceLock;

/// The instruction sets with kernels for scanning and hashing, slowest first among those of one
/// architecture. All give the same results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum SimdLevel {
    /// Plain Rust: four interleaved loops.
    Portable,
    /// NEON: sixteen lanes for hashing.
    Neon,
    /// NEON and its AES instructions: sixteen lanes for scanning too, table entries computed.
    NeonAes,
    /// AVX2 and AES: eight lanes, table entries looked up by the AES instructions.
    Avx2,
    /// AVX2 and VAES: the same, two lanes' entries by one instruction.
    Avx2Vaes,
    /// AVX2 and GFNI: eight lanes, table entries computed.
    Avx2Gfni,
    /// AVX-512 (F, BW) and GFNI: sixteen lanes, table entries computed.
    Avx512,
}

impl SimdLevel {
    /// Every level of every architecture.
    pub const ALL: [SimdLevel; 7] =
        [Self::Portable, Self::Neon, Self::NeonAes, Self::Avx2, Self::Avx2Vaes, Self::Avx2Gfni, Self::Avx512];

    /// The best level of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            // Kernels of the lower levels run on processors of the higher ones, too.
            let levels = [
                (Self::Avx2, has!("avx2") && has!("aes")),
                (Self::Avx2Vaes, has!("vaes")),
                (Self::Avx2Gfni, has!("gfni")),
                (Self::Avx512, has!("avx512f") && has!("avx512bw")),
            ];
            if let Some((level, _)) = levels.iter().take_while(|(_, has)| *has).last() {
                return *level;
            }
        }
        // The kernels take the first byte of a word as its lowest.
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        {
            use std::arch::is_aarch64_feature_detected as has;
            if has!("neon") {
                return if has!("aes") { Self::NeonAes } else { Self::Neon };
            }
        }
        Self::Portable
    }

    /// The level in use: the best one, or that in the environment variable `OUTRIGGER_SIMD`
    /// (`portable`, `neon`, `neonaes`, `avx2`, `avx2vaes`, `avx2gfni`, `avx512`) if the processor has it. Read
    /// once per process. Another name has no effect.
    ///
    /// ```
    /// use outrigger_offload::SimdLevel;
    /// assert!(SimdLevel::current() <= SimdLevel::detect());
    /// ```
    pub fn current() -> Self {
        static CURRENT: OnceLock<SimdLevel> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let wanted = std::env::var("OUTRIGGER_SIMD").ok();
            Self::available().find(|level| wanted.as_deref() == Some(level.name())).unwrap_or(Self::detect())
        })
    }

    /// The levels of this processor, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let native = |level: &Self| match level {
            Self::Portable => true,
            Self::Neon | Self::NeonAes => cfg!(target_arch = "aarch64"),
            Self::Avx2 | Self::Avx2Vaes | Self::Avx2Gfni | Self::Avx512 => cfg!(target_arch = "x86_64"),
        };
        Self::ALL.into_iter().filter(native).filter(|&level| level <= Self::detect())
    }

    /// Its name in `OUTRIGGER_SIMD`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::NeonAes => "neonaes",
            Self::Avx2 => "avx2",
            Self::Avx2Vaes => "avx2vaes",
            Self::Avx2Gfni => "avx2gfni",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
