//! The encoding of a frame: bytes 6, 7 and 21 to 23 of its header.

use std::fmt;

use crate::{Codec, CodecSpec};

/// A reversible rearrangement of a frame's bytes before the codec, which makes them easier to
/// compress and keeps their number. `docs/format.md` defines each filter exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
pub enum Filter {
    /// No filter.
    #[default]
    None,
    /// The first bytes of all two-byte elements, then the second bytes.
    Group2,
    /// The same for elements of four bytes.
    Group4,
    /// The same for elements of eight bytes.
    Group8,
    /// Little-endian elements of two bytes are rotated left by one bit, then grouped. A
    /// floating-point number's sign then comes last, and its exponent begins its highest byte.
    Float2,
    /// The same for elements of four bytes.
    Float4,
    /// The same for elements of eight bytes.
    Float8,
    /// Relative addresses in x86-64 instructions become absolute.
    X86,
    /// The same for ARM64. The value is the position modulo 4 at which instructions begin in the
    /// frame.
    Arm64(u8),
}

impl Filter {
    /// Every filter.
    pub const ALL: [Filter; 12] = [
        Self::None,
        Self::Group2,
        Self::Group4,
        Self::Group8,
        Self::Float2,
        Self::Float4,
        Self::Float8,
        Self::X86,
        Self::Arm64(0),
        Self::Arm64(1),
        Self::Arm64(2),
        Self::Arm64(3),
    ];

    /// Its number on disk.
    pub fn byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Group2 => 1,
            Self::Group4 => 2,
            Self::Group8 => 3,
            Self::X86 => 4,
            Self::Float2 => 5,
            Self::Float4 => 6,
            Self::Float8 => 7,
            Self::Arm64(phase) => 8 + (phase & 3),
        }
    }

    /// From its number on disk. `None` for a filter of a newer program.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|filter| filter.byte() == byte)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Group2 => "group2",
            Self::Group4 => "group4",
            Self::Group8 => "group8",
            Self::Float2 => "float2",
            Self::Float4 => "float4",
            Self::Float8 => "float8",
            Self::X86 => "x86",
            Self::Arm64(_) => "arm64",
        }
    }

    /// The bytes of the elements that it groups, which is the number of planes. 1 for filters that
    /// do not group.
    ///
    /// ```
    /// use outrigger_format::Filter;
    /// assert_eq!([Filter::Float4, Filter::Group8, Filter::X86].map(Filter::planes), [4, 8, 1]);
    /// ```
    pub fn planes(self) -> usize {
        match self {
            Self::None | Self::X86 | Self::Arm64(_) => 1,
            Self::Group2 | Self::Float2 => 2,
            Self::Group4 | Self::Float4 => 4,
            Self::Group8 | Self::Float8 => 8,
        }
    }
}

/// Why a frame is stored the way it is. Only people use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Reason {
    /// Not recorded, as in frames of the store's own metadata.
    #[default]
    Unstated = 0,
    /// The policy names codec and level.
    Policy = 1,
    /// `auto`: writers keep all processors busy, so the cheapest level is used.
    Busy = 2,
    /// `auto`: processors had time for a higher level.
    Idle = 3,
    /// `auto`: on a sample, a costlier level gained nothing.
    NoGain = 4,
    /// `auto`: the first level of its objective.
    Objective = 5,
    /// Uncompressed, as the compressed form exceeded the budget.
    Budget = 6,
    /// Uncompressed, as a sample looks random, and a quick codec found nothing either.
    Random = 7,
    /// Uncompressed, as it was known to be incompressible from its first write.
    Known = 8,
    /// Compressed by a QAT card.
    Qat = 9,
    /// Compressed by a GPU.
    Gpu = 10,
    /// Compressed by another device.
    Device = 11,
    /// By the processor, as no device that was asked for exists, or it is cut off.
    Absent = 12,
    /// By the processor, as the devices were busy.
    Overflow = 13,
    /// By the processor, as the frame is too small, too large or too dense for a device.
    Unsuitable = 14,
    /// By the processor, as it was predicted to be faster.
    Slower = 15,
    /// By the processor, as a device failed.
    Failed = 16,
}

impl Reason {
    const ALL: [Reason; 17] = [
        Self::Unstated,
        Self::Policy,
        Self::Busy,
        Self::Idle,
        Self::NoGain,
        Self::Objective,
        Self::Budget,
        Self::Random,
        Self::Known,
        Self::Qat,
        Self::Gpu,
        Self::Device,
        Self::Absent,
        Self::Overflow,
        Self::Unsuitable,
        Self::Slower,
        Self::Failed,
    ];

    fn from_byte(byte: u8) -> Self {
        Self::ALL.get(usize::from(byte)).copied().unwrap_or_default()
    }

    /// A description for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unstated => "not recorded",
            Self::Policy => "the policy says so",
            Self::Busy => "writers keep the processors busy",
            Self::Idle => "processors had time for it",
            Self::NoGain => "a costlier level gains nothing",
            Self::Objective => "the objective's usual level",
            Self::Budget => "did not fit the budget",
            Self::Random => "looks random",
            Self::Known => "known to be incompressible",
            Self::Qat => "a QAT card did it",
            Self::Gpu => "a GPU did it",
            Self::Device => "a device did it",
            Self::Absent => "no device for it",
            Self::Overflow => "devices had enough to do",
            Self::Unsuitable => "nothing for a device",
            Self::Slower => "faster than a device",
            Self::Failed => "a device failed at it",
        }
    }
}

/// How a frame's raw bytes became its stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// The codec of the stored bytes.
    pub codec: Codec,
    /// The filter before the codec.
    pub filter: Filter,
    /// The requested codec and level, if recorded. If `codec` differs ([`Codec::None`]),
    /// compression would not have paid.
    pub asked: Option<CodecSpec>,
    /// Why this encoding was chosen.
    pub reason: Reason,
}

impl Encoding {
    /// Uncompressed, without a try.
    pub const NONE: Encoding = Encoding::plain(Codec::None);

    /// Encoded by `codec`, with nothing else recorded.
    pub const fn plain(codec: Codec) -> Self {
        Self { codec, filter: Filter::None, asked: None, reason: Reason::Unstated }
    }

    /// True if a codec was tried in vain.
    pub fn is_incompressible(self) -> bool {
        self.codec == Codec::None && self.asked.is_some_and(|asked| asked.codec != Codec::None)
    }

    /// Bytes 21 to 23.
    pub(crate) fn record(self) -> [u8; 3] {
        let (codec, level) = self.asked.map_or((0, 0), |asked| (asked.codec as u8 + 1, asked.level as u8));
        [codec, level, self.reason as u8]
    }

    /// From bytes 6, 7 and 21 to 23. The last three are only informative. Unknown values count as
    /// not recorded.
    pub(crate) fn from_record(codec: Codec, filter: Filter, record: [u8; 3]) -> Self {
        let asked = record[0].checked_sub(1).and_then(|byte| Codec::from_byte(byte).ok());
        let asked = asked.map(|codec| CodecSpec { codec, level: record[1] as i8 });
        let asked = asked.filter(|asked| asked.is_valid() && (codec == Codec::None || codec == asked.codec));
        Self { codec, filter, asked, reason: Reason::from_byte(record[2]) }
    }
}

impl fmt::Display for Encoding {
    /// `zstd:1 +group4`, or only the codec if nothing else was recorded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.asked {
            Some(asked) if asked.codec == self.codec => write!(f, "{asked}")?,
            _ => f.write_str(self.codec.name())?,
        }
        match self.filter {
            Filter::None => Ok(()),
            filter => write!(f, " +{}", filter.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_has_a_number_of_its_own() {
        for filter in Filter::ALL {
            assert_eq!(Filter::from_byte(filter.byte()), Some(filter));
        }
        assert_eq!([Filter::from_byte(12), Filter::from_byte(255)], [None; 2]);
    }

    #[test]
    fn what_is_recorded_reads_back_and_nonsense_is_ignored() {
        let asked = Some(CodecSpec { codec: Codec::Zstd, level: -3 });
        for (codec, reason) in [(Codec::Zstd, Reason::Idle), (Codec::None, Reason::Budget)] {
            let encoding = Encoding { codec, filter: Filter::X86, asked, reason };
            assert_eq!(Encoding::from_record(codec, Filter::X86, encoding.record()), encoding);
            assert_eq!(encoding.is_incompressible(), codec == Codec::None);
        }
        for record in [[0, 0, 0], [200, 1, 200], [2, 0, 99], [3, 1, 0], [2, 120, 0]] {
            let plain = Encoding::plain(Codec::Zstd);
            assert_eq!(Encoding::from_record(Codec::Zstd, Filter::None, record), plain, "{record:?}");
        }
        // A frame in one codec cannot be the result of a request for another.
        assert_eq!(Encoding::from_record(Codec::Lz4, Filter::None, [2, 1, 1]).asked, None);
    }

    #[test]
    fn its_text_has_level_and_filter() {
        let asked = Some(CodecSpec { codec: Codec::Zstd, level: 1 });
        let encoding = Encoding { codec: Codec::Zstd, filter: Filter::Group4, asked, reason: Reason::Policy };
        assert_eq!(encoding.to_string(), "zstd:1 +group4");
        assert_eq!(Encoding { codec: Codec::None, filter: Filter::None, ..encoding }.to_string(), "none");
        assert_eq!(Encoding::plain(Codec::Zstd).to_string(), "zstd");
    }
}
