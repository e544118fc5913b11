//! Zstandard by its C library: levels tuned for frames of 256 KiB to 2 MiB.
//!
//! Frames carry no content size, checksum or dictionary id: the frame header of the pack has the first two, and there are
//! no dictionaries. Which parameters stand for levels 1, 2 and 4, and why, is in `docs/decisions/0002-zstd-parameters.md`;
//! other levels are the library's own.

use outrigger_format::Codec;
use zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch, ResetDirective, Strategy};

use crate::op::CodecError;

/// Bytes that come out at most.
pub(super) fn worst_case(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

#[derive(Default)]
pub(super) struct Encoder {
    /// The context, and the level that it is set to, with whether that is for large frames.
    context: Option<(CCtx<'static>, Option<(i8, bool)>)>,
    /// For literals alone.
    literals: Option<CCtx<'static>>,
}

impl Encoder {
    /// Whether `raw` compresses to at most `room` bytes; `out` then holds them.
    pub(super) fn compress(&mut self, level: i8, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        let (context, set_to) = self.context.get_or_insert_with(|| (CCtx::create(), None));
        let wanted = (level, level == 1 && raw.len() > LARGE);
        if *set_to != Some(wanted) {
            set_level(context, level, wanted.1);
            *set_to = Some(wanted);
        }
        fill(context, raw, room, out)
    }

    /// The same with nothing but an entropy code (Huffman's, block by block), and hence a fraction of the time: for planes of numbers, in which the few
    /// repetitions that are found are accidents, and cost more than they save.
    pub(super) fn compress_literals(&mut self, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        let context = self.literals.get_or_insert_with(|| {
            let mut context = CCtx::create();
            let mut set =
                |parameter| context.set_parameter(parameter).expect("a parameter within its bounds");
            set(CParameter::CompressionLevel(1));
            set(CParameter::ContentSizeFlag(false));
            set(CParameter::ChecksumFlag(false));
            set(CParameter::DictIdFlag(false));
            set(CParameter::WindowLog(17));
            set(CParameter::HashLog(6));
            set(CParameter::MinMatch(7));
            set(CParameter::Strategy(Strategy::ZSTD_fast));
            // It looks for a match once in so many bytes: never within a block.
            set(CParameter::TargetLength(128 << 10));
            // With that, the library would leave literals as they are.
            set(CParameter::LiteralCompressionMode(ParamSwitch::Enable));
            context
        });
        fill(context, raw, room, out)
    }
}

fn fill(context: &mut CCtx<'static>, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
    // A slice, not the vector: the library would use all of that one's capacity. Zeroing costs little beside
    // compressing, and nothing where the vector was as long before.
    out.resize(room, 0);
    // The only errors possible are a full buffer and, at the levels' first use, no memory: both mean "store as is".
    match context.compress2(&mut out[..], raw) {
        Ok(len) => {
            out.truncate(len);
            true
        }
        Err(_) => false,
    }
}

/// What stands for a level instead of the library's parameters: those depend on the frame's size in steps (up to 256 KiB,
/// and beyond), so that a larger frame would quietly mean another strategy.
struct Tuned {
    strategy: Strategy,
    chain_log: u32,
    hash_log: u32,
    search_log: u32,
    min_match: u32,
    row_search: ParamSwitch,
}

fn tuned(level: i8) -> Option<Tuned> {
    let (strategy, chain_log, hash_log, search_log, min_match, row_search) = match level {
        1 => (Strategy::ZSTD_fast, 12, 15, 1, 6, ParamSwitch::Auto),
        2 => (Strategy::ZSTD_dfast, 14, 15, 1, 5, ParamSwitch::Auto),
        4 => (Strategy::ZSTD_greedy, 14, 17, 4, 5, ParamSwitch::Enable),
        _ => return None,
    };
    Some(Tuned { strategy, chain_log, hash_log, search_log, min_match, row_search })
}

/// From here on level 1 has a table of twice the size: frames have more to remember, and it finds matches that it had forgotten.
const LARGE: usize = 768 << 10;

fn set_level(context: &mut CCtx<'static>, level: i8, large: bool) {
    // Parameters outlive the level they were set for.
    context.reset(ResetDirective::SessionAndParameters).expect("a context between frames");
    let mut set = |parameter| context.set_parameter(parameter).expect("a parameter within its bounds");
    set(CParameter::CompressionLevel(level.into()));
    set(CParameter::ContentSizeFlag(false));
    set(CParameter::ChecksumFlag(false));
    set(CParameter::DictIdFlag(false));
    if let Some(tuned) = tuned(level) {
        // The library lowers the window to what the frame needs.
        set(CParameter::WindowLog(21));
        set(CParameter::ChainLog(tuned.chain_log));
        set(CParameter::HashLog(tuned.hash_log + u32::from(large)));
        set(CParameter::SearchLog(tuned.search_log));
        set(CParameter::MinMatch(tuned.min_match));
        set(CParameter::TargetLength(0));
        set(CParameter::Strategy(tuned.strategy));
        set(CParameter::UseRowMatchFinder(tuned.row_search));
    }
}

#[derive(Default)]
pub(super) struct Decoder {
    context: Option<DCtx<'static>>,
}

impl Decoder {
    /// Replaces `out` by what `stored` holds; returns how many bytes that is. Decoding in one call needs no window: the
    /// output is the window, so memory is bounded by the room given.
    pub(super) fn decompress(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, CodecError> {
        out.clear();
        out.reserve_exact(raw_len);
        let context = self.context.get_or_insert_with(DCtx::create);
        context.decompress(out, stored).map_err(|_| CodecError::Malformed(Codec::Zstd))
    }

    /// Fills the front of `out`; returns how many bytes.
    pub(super) fn decompress_into(&mut self, stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let context = self.context.get_or_insert_with(DCtx::create);
        context.decompress(out, stored).map_err(|_| CodecError::Malformed(Codec::Zstd))
    }
}
