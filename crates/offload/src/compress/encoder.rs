//! Encodes one frame: samples it, filters it and compresses it within its budget, or leaves it as
//! it is.

use outrigger_format::{Codec, CodecChoice, CodecDevice, CodecSpec, Encoding, Filter, MAX_FRAME_LEN, Reason};

use super::filters::{Filters, may_pay};
use super::trust::Trust;
use super::{Auto, Budget, Compression};
use crate::Compressor;
use crate::cpu::{Sample, apply_filter, worst_case};

/// Compresses frames.
pub trait FrameCodec {
    /// Compresses `raw` by `spec` into `out`, which it replaces, and returns true if the result has
    /// at most `room` bytes. On `false` the content of `out` is unspecified. The processor's
    /// decoder for this codec must be able to read every result.
    fn compress(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool;

    /// Like [`FrameCodec::compress`], for one plane: the bytes of one position of many elements.
    /// Repetitions are rare in it.
    fn compress_plane(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        self.compress(spec, raw, room, out)
    }
}

impl FrameCodec for Compressor {
    fn compress(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        self.compress_within(spec, raw, room, out)
    }

    fn compress_plane(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        self.compress_plane_within(spec, raw, room, out)
    }
}

/// Compresses filtered bytes. Zstandard codes literals block by block, and one block would mix
/// bytes of several planes. So each plane becomes a Zstandard frame of its own. A decoder reads the
/// concatenated frames as one.
pub(super) fn compress_filtered(
    codec: &mut dyn FrameCodec,
    spec: CodecSpec,
    filter: Filter,
    filtered: &[u8],
    room: usize,
    out: &mut Vec<u8>,
) -> bool {
    let planes = filter.planes();
    let plane_len = filtered.len() / planes;
    if planes == 1 || spec.codec != Codec::Zstd || plane_len == 0 {
        return codec.compress(spec, filtered, room, out);
    }
    let (mut all, mut rest) = (Vec::with_capacity(room), filtered);
    for plane in 1..=planes {
        let (this, others) = rest.split_at(if plane == planes { rest.len() } else { plane_len });
        rest = others;
        let most = worst_case(spec.codec, this.len()).min(room - all.len());
        if !codec.compress_plane(spec, this, most, out) {
            return false;
        }
        all.extend_from_slice(out);
    }
    *out = all;
    true
}

/// The wanted compression of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Codec and level.
    pub spec: CodecSpec,
    /// Why this codec and level were chosen.
    pub reason: Reason,
    /// The cheap level may replace the wanted one if that gains nothing.
    pub or_cheaper: bool,
    /// True if a filter may be applied before the codec.
    pub filters: bool,
    /// The size up to which the compressed frame is kept.
    pub budget: Budget,
}

impl Wanted {
    /// Resolves `compression` for the processor, with the level that `auto` has now. A list yields
    /// its software entry, with [`Reason::Absent`] if its first entry names a device.
    pub fn of(compression: Compression, auto: &Auto) -> Self {
        let Compression { codec, filters, budget } = compression;
        let (spec, reason) = match codec {
            CodecChoice::Fixed(spec) => (spec, Reason::Policy),
            CodecChoice::Auto(objective) => auto.choose(objective),
            CodecChoice::Listed(list) => {
                let software = Self::of(Compression { codec: list.in_software(), ..compression }, auto);
                let first = list.entries().next().map_or(CodecDevice::Any, |entry| entry.device);
                let for_device = !matches!(first, CodecDevice::Any | CodecDevice::Cpu);
                return Self {
                    reason: if for_device { Reason::Absent } else { software.reason },
                    ..software
                };
            }
        };
        Self { spec, reason, or_cheaper: matches!(codec, CodecChoice::Auto(_)), filters, budget }
    }
}

/// The decision of [`Encoder::plan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// The frame is stored as it is.
    Plain(Encoding),
    /// The frame is compressed by this plan, here or on a device.
    Compress(FramePlan),
}

/// How a frame is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePlan {
    /// Codec and level.
    pub spec: CodecSpec,
    /// Why this codec and level were chosen.
    pub reason: Reason,
    /// The filter to apply before the codec.
    pub filter: Filter,
    /// The most bytes that the result may have. A longer result is dropped, and the frame is stored
    /// as it is.
    pub room: usize,
}

impl FramePlan {
    /// How the frame is stored, if its compressed form has `len` bytes. `None`: the codec gave up.
    pub fn conclude(&self, len: Option<usize>) -> Encoding {
        match len.filter(|&len| len <= self.room) {
            Some(_) => {
                let Self { spec, reason, filter, .. } = *self;
                Encoding { codec: spec.codec, filter, asked: Some(spec), reason }
            }
            None => plain(self.spec, Reason::Budget),
        }
    }
}

fn plain(asked: CodecSpec, reason: Reason) -> Encoding {
    Encoding { codec: Codec::None, filter: Filter::None, asked: Some(asked), reason }
}

/// Bytes of the piece on which a costly level is tried.
const LEVEL_TRIAL: usize = 64 << 10;
const CHEAP: CodecSpec = CodecSpec { codec: Codec::Zstd, level: 1 };
/// Levels from this one on cost enough that a trial pays.
const COSTLY: i8 = 4;
/// The share that a costly level must save of the cheap level's output.
const LEVEL_GAIN: f32 = 0.01;
/// The codec that checks data which looks random. After several random frames it gets only a piece
/// of this length.
const QUICK: CodecSpec = CodecSpec { codec: Codec::Lz4, level: 0 };
const QUICK_PIECE: usize = 32 << 10;

/// Encodes frames one at a time. Keep one encoder per thread, as it remembers which trials paid for
/// the last frames. The codec is the processor's, unless the caller gives another.
///
/// ```
/// use outrigger_format::{CodecChoice, Filter};
/// use outrigger_offload::{Auto, Encoder, FrameDecoder, Wanted};
/// let raw: Vec<u8> = (0..100_000u32).flat_map(|n| (n.wrapping_mul(0x9e37_79b1) >> 12).to_le_bytes()).collect();
/// let wanted = Wanted::of(CodecChoice::parse("zstd:1")?.into(), &Auto::new());
/// let (mut stored, mut back) = (Vec::new(), Vec::new());
/// let encoding = Encoder::new().encode(wanted, &raw, &mut stored);
/// assert_ne!(encoding.filter, Filter::None);
/// FrameDecoder::new().decode(encoding, &stored, raw.len(), &mut back)?;
/// assert_eq!(back, raw);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Encoder<C: FrameCodec = Compressor> {
    codec: C,
    filters: Filters,
    filtered: Vec<u8>,
    quick: Vec<u8>,
    /// Bits per byte of the last planned frame.
    bits: Option<f32>,
    level: Trust,
    random: Trust,
}

impl Encoder {
    /// An encoder that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<C: FrameCodec + Default> Default for Encoder<C> {
    fn default() -> Self {
        Self::with_codec(C::default())
    }
}

impl<C: FrameCodec> Encoder<C> {
    /// An encoder that compresses with `codec`.
    pub fn with_codec(codec: C) -> Self {
        let (filters, filtered, quick) = (Filters::default(), Vec::new(), Vec::new());
        Self { codec, filters, filtered, quick, bits: None, level: Trust::new(8), random: Trust::new(16) }
    }

    /// Encodes `raw` within the budget. If the resulting codec is [`Codec::None`], then the caller
    /// stores `raw` itself: nothing is copied, and `out` is unspecified. Otherwise `out` holds the
    /// compressed frame.
    pub fn encode(&mut self, wanted: Wanted, raw: &[u8], out: &mut Vec<u8>) -> Encoding {
        match self.plan(wanted, raw) {
            Planned::Plain(encoding) => encoding,
            Planned::Compress(plan) => self.compress(&plan, raw, out),
        }
    }

    /// Samples `raw` and chooses filter and level. The costly part remains: this thread
    /// ([`Encoder::compress`]) or a device compresses.
    pub fn plan(&mut self, wanted: Wanted, raw: &[u8]) -> Planned {
        let Wanted { mut spec, mut reason, budget, .. } = wanted;
        if spec.codec == Codec::None {
            return Planned::Plain(plain(spec, reason));
        }
        let room = budget.room(raw.len());
        if raw.len() > MAX_FRAME_LEN || room == 0 {
            return Planned::Plain(plain(spec, Reason::Budget));
        }
        // ZLE is as quick as taking a sample, so it gets none.
        let sample = if spec.codec == Codec::Zle { None } else { Sample::take(raw) };
        self.bits = None;
        if let Some(sample) = &sample
            && sample.looks_random()
            && !self.compresses_quickly(raw, room)
        {
            return Planned::Plain(plain(spec, Reason::Random));
        }
        self.bits = sample.as_ref().map(Sample::bits);
        let filter = match &sample {
            Some(sample) if wanted.filters && may_pay(spec.codec) => {
                self.filters.choose(&mut self.codec, spec, raw, sample)
            }
            _ => Filter::None,
        };
        if wanted.or_cheaper && self.gains_nothing(spec, raw) {
            (spec, reason) = (CHEAP, Reason::NoGain);
        }
        Planned::Compress(FramePlan { spec, reason, filter, room })
    }

    /// Entropy of the byte values in the last planned frame's sample, in bits per byte. `None` if
    /// no sample was taken.
    pub fn bits(&self) -> Option<f32> {
        self.bits
    }

    /// Compresses `raw` as planned. The result is as for [`Encoder::encode`].
    pub fn compress(&mut self, plan: &FramePlan, raw: &[u8], out: &mut Vec<u8>) -> Encoding {
        let FramePlan { spec, filter, room, .. } = *plan;
        let fits = match filter {
            Filter::None => self.codec.compress(spec, raw, room, out),
            filter => {
                apply_filter(filter, raw, &mut self.filtered);
                compress_filtered(&mut self.codec, spec, filter, &self.filtered, room, out)
            }
        };
        self.conclude(plan, fits.then_some(out.len()))
    }

    /// [`FramePlan::conclude`] for a frame that a device compressed. The encoder also learns from
    /// it whether the filter paid.
    pub fn conclude(&mut self, plan: &FramePlan, len: Option<usize>) -> Encoding {
        let encoding = plan.conclude(len);
        if encoding.codec == Codec::None && plan.filter != Filter::None {
            self.filters.disappointed(plan.filter);
        }
        encoding
    }

    /// True if a quick codec compresses data that looks random. Once several frames really were
    /// random, it tries only a piece of most of the next ones.
    fn compresses_quickly(&mut self, raw: &[u8], room: usize) -> bool {
        let known = self.random.ask(1.0) == Some(true);
        let piece = if known { &raw[..QUICK_PIECE.min(raw.len())] } else { raw };
        let room = if known { piece.len() - piece.len() / 8 } else { room };
        let found = self.codec.compress(QUICK, piece, room, &mut self.quick);
        if found {
            self.random.forget();
        } else if !known {
            self.random.learn(true, 1.0);
        }
        found
    }

    /// True if the costly level is no better than the cheap one. Compares them on a piece from the
    /// middle.
    fn gains_nothing(&mut self, spec: CodecSpec, raw: &[u8]) -> bool {
        if spec.codec != Codec::Zstd || spec.level < COSTLY || raw.len() < 2 * LEVEL_TRIAL {
            return false;
        }
        if let Some(known) = self.level.ask(1.0) {
            return known;
        }
        let piece = &raw[(raw.len() - LEVEL_TRIAL) / 2..][..LEVEL_TRIAL];
        let mut scratch = Vec::new();
        let mut len = |spec| {
            let fits = self.codec.compress(spec, piece, piece.len(), &mut scratch);
            if fits { scratch.len() } else { piece.len() }
        };
        let (cheap, costly) = (len(CHEAP), len(spec));
        self.level.learn(costly as f32 > (1.0 - LEVEL_GAIN) * cheap as f32, 1.0)
    }
}
