//! `ingest`: all kernels are launched at once, and one report comes back.
//!
//! ```text
//! result   chunks in all, candidates in all, 0, 0 │ for each stream, the chunks before its own │ 48 bytes a chunk
//! ```

use outrigger_format::boundary::{GearMasks, windowed_mask};
use outrigger_format::{ChunkerSpec, Fingerprint, FingerprintKind};

use super::super::kernel;
use super::super::lane::Argument::{At, Word};
use super::super::lane::{Address, Area, Lane, Words};
use super::{Data, ResidentTable, Step, hash, lookup, scan, word};
use crate::accelerator::Fault;
use crate::op::{Ingested, PMD_SEGMENT, Stream};

/// Words of a stream in the list: `IngestStream` of the source.
const STREAM_BYTES: usize = 20;
const RECORD: usize = 48;
const HEADER: usize = 16;
/// Chunks of one block of `ingest_report`.
const REPORT_THREADS: usize = 128;

struct Sizes {
    min: u32,
    norm: u32,
    max: u32,
    /// The average length of a chunk in bytes, at least one.
    avg: u32,
}

fn sizes(chunker: ChunkerSpec) -> Sizes {
    match chunker {
        ChunkerSpec::Gear32 { min, avg, max } => Sizes { min, norm: avg, max, avg },
        ChunkerSpec::Fixed { size } => Sizes { min: size, norm: size, max: size, avg: size },
        // All of its candidates are strict.
        ChunkerSpec::Windowed { min, avg, max, .. } => Sizes { min, norm: max, max, avg },
    }
}

/// The rule that ends chunks. `None` for blocks of a fixed size.
fn rule(chunker: ChunkerSpec) -> Option<scan::Rule> {
    match chunker {
        ChunkerSpec::Gear32 { avg, .. } => {
            Some(scan::Rule::Gear { history: 0, masks: GearMasks::for_average(avg) })
        }
        ChunkerSpec::Windowed { hash, avg, .. } => {
            Some(scan::Rule::Windowed { hash, mask: windowed_mask(avg) })
        }
        ChunkerSpec::Fixed { .. } => None,
    }
}

/// The most chunks that a stream can have.
fn chunks_max(len: usize, chunker: ChunkerSpec) -> usize {
    let shortest = match chunker {
        // Every chunk but the last is longer than the minimum.
        ChunkerSpec::Gear32 { min, .. } | ChunkerSpec::Windowed { min, .. } => min as usize + 1,
        ChunkerSpec::Fixed { size } => size as usize,
    };
    len / shortest + 1
}

fn records_at(streams: usize) -> usize {
    HEADER + (streams * 4).next_multiple_of(16)
}

/// Launches the kernels, with room for `room` candidates, or for the expected number.
pub(super) fn begin(
    lane: &mut dyn Lane,
    data: Data,
    streams: &[Stream],
    chunker: ChunkerSpec,
    kind: FingerprintKind,
    table: Option<ResidentTable>,
    room: Option<usize>,
) -> Result<Step, Fault> {
    if streams.is_empty() {
        return Ok(Step::default());
    }
    let sizes = sizes(chunker);
    let limit: usize = streams.iter().map(|stream| chunks_max(stream.range.len(), chunker)).sum();
    let segments: usize = streams
        .iter()
        .map(|stream| stream.range.len() / PMD_SEGMENT + chunks_max(stream.range.len(), chunker))
        .sum();
    let records_at = records_at(streams.len());
    let result = lane.memory(Area::Result, records_at + limit * RECORD)?;
    let (offsets, records) = (result.plus(HEADER), result.plus(records_at));
    let list = send(lane, streams, chunker)?;
    // Fixed chunks are cut without candidates. Their number, 0, is the word after the list.
    let none = list.plus(streams.len() * STREAM_BYTES);
    let (candidates, candidate_count, capacity) = match rule(chunker).filter(|_| data.len > 0) {
        Some(rule) => {
            let capacity = room.unwrap_or_else(|| rule.expected(data.len));
            let (total, candidates) = (result.plus(4), lane.memory(Area::Candidates, capacity * 4)?);
            scan::scan(lane, data, rule, scan::Room { total, candidates, capacity })?;
            (candidates, total, capacity)
        }
        None => (Address::NONE, none, 0),
    };
    let ends = lane.memory(Area::Ends, limit * 4)?;
    let arguments = [
        At(candidates),
        At(candidate_count),
        Word(capacity as u32),
        At(list),
        Word(sizes.min),
        Word(sizes.norm),
        Word(sizes.max),
        At(ends),
        At(offsets),
    ];
    lane.launch(kernel::INGEST_CUT, streams.len(), 0, &arguments)?;
    let count = Word(streams.len() as u32);
    lane.launch(kernel::SCAN_OFFSETS, 1, 0, &[At(offsets), count, At(result)])?;
    let ranges = lane.memory(Area::Ranges, limit * 8)?;
    let first = lane.memory(Area::First, limit * 4)?;
    let arguments = [At(list), count, At(ends), At(offsets), At(result), At(ranges), At(first)];
    lane.launch(kernel::INGEST_GATHER, streams.len(), 0, &arguments)?;
    let fingerprints = lane.memory(Area::Fingerprints, limit * 32)?;
    let chunks = hash::Chunks { ranges, limit, count_at: result, first, segments };
    hash::chunks(lane, data, kind, chunks, fingerprints)?;
    let mut arguments = vec![At(ranges), At(result), At(fingerprints)];
    arguments.extend(lookup::arguments(table));
    arguments.push(At(records));
    lane.launch(kernel::INGEST_REPORT, limit.div_ceil(REPORT_THREADS), 0, &arguments)?;
    // The likely number of chunks comes back at once. A second copy brings the rest, if there is
    // any.
    let expected = streams.iter().map(|stream| 2 * stream.range.len() / sizes.avg as usize + 2);
    let expected = expected.sum::<usize>().min(limit);
    Ok(Step { bytes: records_at + expected * RECORD, candidates: capacity, known: None })
}

fn send(lane: &mut dyn Lane, streams: &[Stream], chunker: ChunkerSpec) -> Result<Address, Fault> {
    lane.send(Area::List, streams.len() * STREAM_BYTES + 4, &mut |list| {
        let (mut words, mut slot, mut scratch) = (Words(list), 0, 0);
        for stream in streams {
            let most = chunks_max(stream.range.len(), chunker) as u32;
            words.push(stream.range.start);
            words.push(stream.range.end);
            words.push(stream.last.into());
            words.push(slot);
            words.push(scratch);
            slot += most;
            scratch += (stream.range.len() / PMD_SEGMENT) as u32 + most;
        }
        words.push(0);
    })
}

/// The result of reading a report.
pub(super) enum Read {
    /// The report was complete, and was appended.
    All,
    /// More bytes of the same report have to be copied.
    More(Step),
    /// There were so many candidates. The step runs again with room for them.
    Again(usize),
}

pub(super) fn finish(
    streams: &[Stream],
    step: Step,
    bytes: &[u8],
    chunks: &mut Vec<Ingested>,
    counts: &mut Vec<u32>,
) -> Read {
    if streams.is_empty() {
        return Read::All;
    }
    let (total, candidates) = (word(bytes, 0) as usize, word(bytes, 4) as usize);
    // Without candidates, no kernel has written their number.
    if step.candidates > 0 && candidates > step.candidates {
        return Read::Again(candidates);
    }
    let records_at = records_at(streams.len());
    let wanted = records_at + total * RECORD;
    if wanted > bytes.len() {
        return Read::More(Step { bytes: wanted, ..step });
    }
    let offset = |stream: usize| {
        if stream < streams.len() { word(bytes, HEADER + 4 * stream) } else { total as u32 }
    };
    counts.extend((0..streams.len()).map(|stream| offset(stream + 1) - offset(stream)));
    let (records, _) = bytes[records_at..wanted].as_chunks::<RECORD>();
    chunks.extend(records.iter().map(|record| {
        Ingested {
            end: word(record, 0),
            fingerprint: Fingerprint(*record.last_chunk().expect("a record ends with its fingerprint")),
            place: (word(record, 4) != 0)
                .then(|| u64::from_le_bytes(*record[8..].first_chunk().expect("a record has its place"))),
        }
    }));
    Read::All
}
