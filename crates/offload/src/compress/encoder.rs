//! One frame: sampled, filtered, compressed within its budget, or given back as it is.

use outrigger_format::{Codec, CodecChoice, CodecDevice, CodecSpec, Encoding, Filter, MAX_FRAME_LEN, Reason};

use super::filters::{Filters, may_pay};
use super::trust::Trust;
use super::{Auto, Budget, Compression};
use crate::Compressor;
use crate::cpu::{Sample, apply_filter, worst_case};

/// What compresses frames.
pub trait FrameCodec {
    /// Whether `raw` compresses by `spec` to at most `room` bytes, which `out` is then replaced by. `false` says that it is not compressible
    /// enough; `out` is then unspecified. Whatever is written, the processor's codec of that name must be able to read.
    fn compress(&mut self, spec: CodecSpec, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool;

    /// The same for a plane of numbers, one byte of each of many elements, in which repetitions are rare.
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

/// Compresses what `filter` made. Zstandard codes literals block by block, and a block would hold bytes of several planes: so each
/// plane becomes a Zstandard frame of its own, one after the other, which any decoder reads as one.
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

/// What is wanted of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Codec and level.
    pub spec: CodecSpec,
    /// Why these.
    pub reason: Reason,
    /// A cheaper level will do where the one wanted gains nothing.
    pub or_cheaper: bool,
    /// Whether filters may be put before the codec.
    pub filters: bool,
    /// What is worth it.
    pub budget: Budget,
}

impl Wanted {
    /// What `compression` means now, as `auto` sees it. Of a list, what the processor does of it, and where it begins with a device, that there is none.
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

/// What is to be done with a frame: what [`Encoder::plan`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planned {
    /// It is stored as it is.
    Plain(Encoding),
    /// It is compressed so, by whomever.
    Compress(FramePlan),
}

/// How a frame is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePlan {
    /// By what.
    pub spec: CodecSpec,
    /// Why.
    pub reason: Reason,
    /// What is done to it before.
    pub filter: Filter,
    /// Bytes that it may have afterwards; else it is stored as it is.
    pub room: usize,
}

impl FramePlan {
    /// How a frame is stored that was compressed so, and became this long (`None`: it did not fit anything).
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

/// Pieces and levels of the trial whether a costly level pays.
const LEVEL_TRIAL: usize = 64 << 10;
const CHEAP: CodecSpec = CodecSpec { codec: Codec::Zstd, level: 1 };
/// From this level on a trial is worth its cost.
const COSTLY: i8 = 4;
/// What a costly level must save: a share of what the cheap one takes.
const LEVEL_GAIN: f32 = 0.01;
/// A quick codec for what looks random, and how much of a frame it is shown once several were random indeed.
const QUICK: CodecSpec = CodecSpec { codec: Codec::Lz4, level: 0 };
const QUICK_PIECE: usize = 32 << 10;

/// Encodes frames, one at a time; keep one per thread: it remembers what paid for the last ones. Its codec is the processor's, unless
/// another is given.
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
    /// Of the frame that was planned last.
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
    /// An encoder that has `codec` compress.
    pub fn with_codec(codec: C) -> Self {
        let (filters, filtered, quick) = (Filters::default(), Vec::new(), Vec::new());
        Self { codec, filters, filtered, quick, bits: None, level: Trust::new(8), random: Trust::new(16) }
    }

    /// Makes of `raw` what is to be stored. Where the codec of the result is [`Codec::None`], that is `raw` itself, and `out` is
    /// unspecified: nothing is copied. Else it is `out`, within the budget.
    pub fn encode(&mut self, wanted: Wanted, raw: &[u8], out: &mut Vec<u8>) -> Encoding {
        match self.plan(wanted, raw) {
            Planned::Plain(encoding) => encoding,
            Planned::Compress(plan) => self.compress(&plan, raw, out),
        }
    }

    /// What is to be done with `raw`: samples it, and chooses filter and level. The costly part is left, for this thread
    /// ([`Encoder::compress`]) or a device.
    pub fn plan(&mut self, wanted: Wanted, raw: &[u8]) -> Planned {
        let Wanted { mut spec, mut reason, budget, .. } = wanted;
        if spec.codec == Codec::None {
            return Planned::Plain(plain(spec, reason));
        }
        let room = budget.room(raw.len());
        if raw.len() > MAX_FRAME_LEN || room == 0 {
            return Planned::Plain(plain(spec, Reason::Budget));
        }
        // Of codecs that are as quick as a look at the data, none is taken.
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

    /// Bits a byte of the sample of the frame that was planned last (the entropy of its byte values); `None` where there was none.
    pub fn bits(&self) -> Option<f32> {
        self.bits
    }

    /// Compresses `raw` as planned; as [`Encoder::encode`].
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

    /// [`FramePlan::conclude`] of a frame that a device compressed; what it says of filters is learnt.
    pub fn conclude(&mut self, plan: &FramePlan, len: Option<usize>) -> Encoding {
        let encoding = plan.conclude(len);
        if encoding.codec == Codec::None && plan.filter != Filter::None {
            self.filters.disappointed(plan.filter);
        }
        encoding
    }

    /// Whether a quick codec finds anything in what looks random. Once several frames were random indeed, it is shown a piece
    /// of most of the next ones only.
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

    /// Whether a costly level is no better than the cheap one, on a piece from the middle.
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
