//! Zstandard by its C library: levels tuned for frames of 256 KiB to 2 MiB.
//!
//! Frames carry no content size, checksum or dictionary id: the frame header of the pack has the
//! first two, and there are no dictionaries. `docs/decisions/0002-zstd-parameters.md` explains the
//! parameters for levels 1, 2 and 4. Other levels are the library's own.

use outrigger_format::Codec;
use zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch, ResetDirective, Strategy};

use crate::op::CodecError;

/// The most bytes of output.
pub(super) fn worst_case(len: usize) -> usize {
    zstd_safe::compress_bound(len)
}

#[derive(Default)]
pub(super) struct Encoder {
    /// The context, with the level for which it is set up, and whether that is for large frames.
    context: Option<(CCtx<'static>, Option<(i8, bool)>)>,
    /// For literals only.
    literals: Option<CCtx<'static>>,
}

impl Encoder {
    /// Returns true if `raw` compresses to at most `room` bytes, which `out` then holds.
    pub(super) fn compress(&mut self, level: i8, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
        let (context, set_to) = self.context.get_or_insert_with(|| (CCtx::create(), None));
        let wanted = (level, level == 1 && raw.len() > LARGE);
        if *set_to != Some(wanted) {
            set_level(context, level, wanted.1);
            *set_to = Some(wanted);
        }
        fill(context, raw, room, out)
    }

    /// Like [`Encoder::compress`], with an entropy code only (Huffman's, block by block), in a
    /// fraction of the time. In planes of numbers the few repetitions are accidents, and cost more
    /// than they save.
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
            // It searches for a match once in so many bytes, which is never within a block.
            set(CParameter::TargetLength(128 << 10));
            // At that length, the library would leave literals uncompressed.
            set(CParameter::LiteralCompressionMode(ParamSwitch::Enable));
            context
        });
        fill(context, raw, room, out)
    }
}

fn fill(context: &mut CCtx<'static>, raw: &[u8], room: usize, out: &mut Vec<u8>) -> bool {
    // A slice and not the vector, whose whole capacity the library would use. Zeroing is cheap
    // compared with compression, and costs nothing if the vector was as long before.
    out.resize(room, 0);
    // The only possible errors are a full buffer and, at a level's first use, lack of memory. In
    // both cases the frame is stored as it is.
    match context.compress2(&mut out[..], raw) {
        Ok(len) => {
            out.truncate(len);
            true
        }
        Err(_) => false,
    }
}

/// The parameters of a level, in place of the library's. The library's depend on the frame's size
/// in steps (up to 256 KiB, and beyond), so a larger frame would silently get another strategy.
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

/// For larger frames, level 1 has a table of twice the size. They have more positions to remember,
/// and the larger table finds matches that the smaller one forgets.
const LARGE: usize = 768 << 10;

fn set_level(context: &mut CCtx<'static>, level: i8, large: bool) {
    // A context keeps parameters of earlier levels.
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
    /// Replaces `out` by the decoded bytes of `stored`, and returns their number. Decoding in one
    /// call needs no window, as the output is the window. So memory is bounded by the given room.
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

    /// Fills the front of `out` and returns the number of bytes.
    pub(super) fn decompress_into(&mut self, stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let context = self.context.get_or_insert_with(DCtx::create);
        context.decompress(out, stored).map_err(|_| CodecError::Malformed(Codec::Zstd))
    }
}
