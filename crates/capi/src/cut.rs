//! Boundaries and chunks on the calling thread.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use outrigger_format::boundary::GearMasks;
use outrigger_offload::op::{Ingested, Stream};
use outrigger_offload::{Ingester, scan};

use crate::raw;
use crate::status::{Error, Result, outrigger_status, status, value};
use crate::table::outrigger_table;
use crate::types::{self, outrigger_chunk, outrigger_stream};

thread_local! {
    /// Kept from call to call, so that a thread that scans repeatedly allocates nothing.
    static CANDIDATES: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// The masks for an average of `average` bytes.
pub fn masks(average: u32) -> Result<GearMasks> {
    if !average.is_power_of_two() || !(4..=1 << 30).contains(&average) {
        return Err(Error::invalid(format!(
            "an average of {average} bytes is not a power of two from 4 to 2^30"
        )));
    }
    Ok(GearMasks::for_average(average))
}

/// Checks the length of the data of one call or one task.
pub fn fits(len: usize) -> Result {
    if len >= 1 << 31 {
        return Err(Error::invalid(format!("{len} bytes are too many at once: less than 2^31, please")));
    }
    Ok(())
}

/// Finds boundary candidates on this thread. `history` holds the bytes before `data` in its file:
/// at least its last 32, or all at the beginning of the file. `average` is the wanted chunk size, a
/// power of two. Candidates go to `out`, ascending, as position << 1 | strict. Their number is
/// stored in `count` (if not null), even if they do not fit in `room` (OUTRIGGER_SPACE). `data` has
/// less than 2^31 bytes.
///
/// A walk with a minimum and a maximum turns candidates into cuts (docs/format.md).
/// outrigger_ingest() does both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_scan(
    history: *const c_void,
    history_len: usize,
    data: *const c_void,
    len: usize,
    average: u32,
    out: *mut u32,
    room: usize,
    count: *mut usize,
) -> outrigger_status {
    status(|| {
        let masks = masks(average)?;
        fits(len)?;
        // SAFETY: C's contract.
        let (history, data, out, count) = unsafe {
            let count = raw::room(count, usize::from(!count.is_null()), "count")?;
            let history = raw::bytes(history, history_len, "history")?;
            (history, raw::bytes(data, len, "data")?, raw::room(out, room, "out")?, count.first_mut())
        };
        CANDIDATES.with_borrow_mut(|found| {
            found.clear();
            scan(history, data, masks, found);
            raw::put(found, out, count)
        })
    })
}

/// Cuts, fingerprints and looks up in one pass. Keeps its memory from call to call. One thread at a
/// time may use it.
pub struct outrigger_ingester {
    ingester: Ingester,
    streams: Vec<Stream>,
    found: Vec<Ingested>,
    chunks: Vec<outrigger_chunk>,
    counts: Vec<u32>,
}

/// An ingester with a chunker ("gear32:4K/16K/64K", "fixed:16K", "rabin:..."; see docs/format.md)
/// and a fingerprint (enum outrigger_hash_kind). Null after an error. Free it with
/// outrigger_ingester_free().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_ingester_new(
    chunker: *const c_char,
    kind: u32,
) -> Option<Box<outrigger_ingester>> {
    value(None, || {
        // SAFETY: C's contract.
        let chunker = types::chunker(unsafe { raw::text(chunker, "chunker")? })?;
        Ok(Some(Box::new(outrigger_ingester {
            ingester: Ingester::new(chunker, types::kind(kind)?),
            streams: Vec::new(),
            found: Vec::new(),
            chunks: Vec::new(),
            counts: Vec::new(),
        })))
    })
}

/// Cuts the `stream_count` streams in `data` (less than 2^31 bytes) into chunks, fingerprints them,
/// and looks them up in `table`, unless it is null; on this thread. Stores a pointer to the chunks
/// of all streams, in order, in `chunks`, and one to the number of each stream's chunks in
/// `counts`. Both belong to the ingester and are valid until its next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_ingest(
    ingester: Option<&mut outrigger_ingester>,
    data: *const c_void,
    len: usize,
    streams: *const outrigger_stream,
    stream_count: usize,
    table: Option<&outrigger_table>,
    chunks: *mut *const outrigger_chunk,
    chunk_count: *mut usize,
    counts: *mut *const u32,
) -> outrigger_status {
    status(|| {
        fits(len)?;
        let ingester = ingester.ok_or_else(|| Error::invalid("ingester is null"))?;
        // SAFETY: C's contract.
        let (data, streams) =
            unsafe { (raw::bytes(data, len, "data")?, raw::slice(streams, stream_count, "streams")?) };
        // SAFETY: C's contract.
        let (chunks, chunk_count, counts) = unsafe {
            let counts = raw::room(counts, usize::from(!counts.is_null()), "counts")?;
            (raw::room(chunks, 1, "chunks")?, raw::room(chunk_count, 1, "chunk_count")?, counts)
        };
        inside(streams, len)?;
        let outrigger_ingester { ingester, streams: owned, found, chunks: made, counts: numbers } = ingester;
        owned.clear();
        owned.extend(streams.iter().map(types::stream));
        found.clear();
        numbers.clear();
        let table = table.map(outrigger_table::now);
        ingester.ingest(data, owned, table.as_deref(), found, numbers);
        made.clear();
        made.extend(found.iter().map(outrigger_chunk::from));
        chunks[0].write(made.as_ptr());
        chunk_count[0].write(made.len());
        if let Some(counts) = counts.first_mut() {
            counts.write(numbers.as_ptr());
        }
        Ok(())
    })
}

/// Checks that all streams lie within `len` bytes.
pub fn inside(streams: &[outrigger_stream], len: usize) -> Result {
    match streams.iter().find(|stream| stream.start > stream.end || stream.end as usize > len) {
        Some(outrigger_stream { start, end, .. }) => {
            Err(Error::invalid(format!("the stream from {start} to {end} is not within {len} bytes")))
        }
        None => Ok(()),
    }
}

/// Frees it, and the results of its last call. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_ingester_free(ingester: Option<Box<outrigger_ingester>>) {
    drop(ingester);
}
