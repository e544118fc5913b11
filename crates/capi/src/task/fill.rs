//! The functions that fill a task with a request and data.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Codec;
use outrigger_offload::runtime::Priority;
use outrigger_offload::work::{Input, Request};

use super::outrigger_task;
use crate::buffer::outrigger_buffer;
use crate::cut::masks;
use crate::operation::outrigger_operation;
use crate::raw::{self, handle};
use crate::status::{Error, Result, outrigger_status, status, value};
use crate::table::outrigger_table;
use crate::types::{self, outrigger_fingerprint, outrigger_range, outrigger_stream, outrigger_window};

/// Sets a task's request.
fn ask(task: Option<&outrigger_task>, request: impl FnOnce() -> Result<Request>) -> outrigger_status {
    status(|| {
        let (task, request) = (handle(task, "task")?, request()?);
        task.draft(|draft| {
            draft.set_request(request);
            Ok(())
        })
    })
}

/// Makes the first `len` bytes of the task's own buffer its data, and returns their address, to
/// write before it is submitted. The buffer keeps its old bytes. Null if `len` exceeds the size
/// given to outrigger_task_new(), or tasks share the data.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_data(task: Option<&outrigger_task>, len: usize) -> *mut u8 {
    value(std::ptr::null_mut(), || {
        handle(task, "task")?.draft(|draft| {
            if !matches!(draft.work().input, Input::Own(_)) {
                return Err(Error::invalid("the task's data lies in a buffer that is shared"));
            }
            let room = draft.input().capacity();
            if len > room {
                return Err(Error::invalid(format!("{len} bytes do not fit in the task's buffer of {room}")));
            }
            draft.input().set_len(len);
            draft.set_range(0..len);
            Ok(draft.input().as_mut_ptr())
        })
    })
}

/// Makes a part of a buffer that other tasks read too the task's data. It must not be written until
/// all of them are freed. The task's own buffer returns to the pool.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_share(
    task: Option<&outrigger_task>,
    buffer: Option<&outrigger_buffer>,
    offset: usize,
    len: usize,
) -> outrigger_status {
    status(|| {
        let (task, buffer) = (handle(task, "task")?, handle(buffer, "buffer")?.share());
        let end = offset.checked_add(len).filter(|end| *end <= buffer.len());
        let end = end.ok_or_else(|| {
            Error::invalid(format!("{len} bytes from {offset} are not in a buffer of {}", buffer.len()))
        })?;
        task.draft(|draft| {
            draft.share(buffer, offset..end);
            Ok(())
        })
    })
}

/// Requests the fingerprints of `count` pieces of the data: outrigger_task_fingerprints().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_hash_many(
    task: Option<&outrigger_task>,
    kind: u32,
    pieces: *const outrigger_range,
    count: usize,
) -> outrigger_status {
    status(|| {
        let (task, kind) = (handle(task, "task")?, types::kind(kind)?);
        // SAFETY: C's contract.
        let pieces = unsafe { raw::slice(pieces, count, "pieces")? };
        task.draft(|draft| {
            draft.hash_many(kind, pieces.iter().map(|piece| piece.start..piece.end));
            Ok(())
        })
    })
}

/// Requests the hash of all data by a parallel construction (OUTRIGGER_PMD_*):
/// outrigger_task_bytes().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_pmd_hash(task: Option<&outrigger_task>, kind: u32) -> outrigger_status {
    ask(task, || Ok(Request::PmdHash { digest: types::pmd_digest(kind)? }))
}

/// Requests the hashes of sliding windows: outrigger_task_bytes().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_window_hash(
    task: Option<&outrigger_task>,
    spec: Option<&outrigger_window>,
) -> outrigger_status {
    ask(task, || Ok(Request::WindowHash { spec: types::window(handle(spec, "spec")?)? }))
}

/// Requests boundary candidates (see outrigger_scan()): outrigger_task_candidates(). `history` is
/// the number of bytes directly before the data, in the same shared buffer, that also precede it in
/// its file. It is 0 for data in the task's own buffer.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_scan(
    task: Option<&outrigger_task>,
    history: usize,
    average: u32,
) -> outrigger_status {
    ask(task, || Ok(Request::Scan { history, masks: masks(average)? }))
}

/// Requests chunks, cut, fingerprinted and looked up in `table`, unless that is null (see
/// outrigger_ingest()): outrigger_task_chunks() and outrigger_task_counts().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_ingest(
    task: Option<&outrigger_task>,
    chunker: *const c_char,
    kind: u32,
    streams: *const outrigger_stream,
    count: usize,
    table: Option<&outrigger_table>,
) -> outrigger_status {
    ask(task, || {
        // SAFETY: C's contract.
        let (chunker, streams) =
            unsafe { (raw::text(chunker, "chunker")?, raw::slice(streams, count, "streams")?) };
        let streams = streams.iter().map(types::stream).collect();
        let (chunker, kind) = (types::chunker(chunker)?, types::kind(kind)?);
        Ok(Request::Ingest { streams, chunker, kind, table: table.map(outrigger_table::now) })
    })
}

/// Looks `count` fingerprints up in a table, in its present state: outrigger_task_places(). The
/// task's data is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_lookup(
    task: Option<&outrigger_task>,
    table: Option<&outrigger_table>,
    keys: *const outrigger_fingerprint,
    count: usize,
) -> outrigger_status {
    ask(task, || {
        let table = handle(table, "table")?.now();
        // SAFETY: C's contract.
        let keys = unsafe { raw::slice(keys, count, "keys")? };
        Ok(Request::Lookup { table, keys: keys.iter().map(|key| (*key).into()).collect() })
    })
}

/// Requests the data compressed by a codec ("zstd:3", "gzip:6", "lz4", "none"):
/// outrigger_task_bytes(), and outrigger_task_codec() for the codec used. It is none if the codec
/// gains too little.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_compress(
    task: Option<&outrigger_task>,
    codec: *const c_char,
) -> outrigger_status {
    ask(task, || {
        // SAFETY: C's contract.
        let codec = unsafe { raw::text(codec, "codec")? };
        Ok(Request::Compress { spec: types::codec(codec)? })
    })
}

/// Requests the data decompressed by a codec (enum outrigger_codec), to `raw_len` bytes, at most 64
/// MiB: outrigger_task_bytes().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_decompress(
    task: Option<&outrigger_task>,
    codec: u32,
    raw_len: usize,
) -> outrigger_status {
    ask(task, || {
        let codec = u8::try_from(codec).ok().and_then(|codec| Codec::from_byte(codec).ok());
        let codec = codec.ok_or_else(|| Error::invalid("no such codec (enum outrigger_codec)"))?;
        if raw_len > 64 << 20 {
            return Err(Error::invalid(format!("{raw_len} bytes are more than the 64 MiB of a frame")));
        }
        Ok(Request::Decompress { codec, raw_len })
    })
}

/// Requests an operation of the caller with parameters, which are copied: outrigger_task_bytes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_own(
    task: Option<&outrigger_task>,
    operation: Option<&outrigger_operation>,
    parameters: *const c_void,
    parameters_len: usize,
) -> outrigger_status {
    ask(task, || {
        let operation = Arc::clone(&handle(operation, "operation")?.0);
        // SAFETY: C's contract.
        let parameters = unsafe { raw::bytes(parameters, parameters_len, "parameters")? }.to_vec();
        Ok(Request::User { operation, parameters })
    })
}

/// Sets its priority (enum outrigger_priority).
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_set_priority(
    task: Option<&outrigger_task>,
    priority: u32,
) -> outrigger_status {
    status(|| {
        let priority = match priority {
            0 => Priority::High,
            1 => Priority::Normal,
            2 => Priority::Low,
            other => return Err(Error::invalid(format!("{other} is no priority (enum outrigger_priority)"))),
        };
        handle(task, "task")?.draft(|draft| {
            draft.set_priority(priority);
            Ok(())
        })
    })
}

/// If no device begins it within so many milliseconds, it ends as OUTRIGGER_EXPIRED.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_set_deadline(
    task: Option<&outrigger_task>,
    milliseconds: u64,
) -> outrigger_status {
    status(|| {
        let deadline = Instant::now().checked_add(Duration::from_millis(milliseconds));
        let deadline = deadline.ok_or_else(|| Error::invalid("a deadline beyond the end of time"))?;
        handle(task, "task")?.draft(|draft| {
            draft.set_deadline(deadline);
            Ok(())
        })
    })
}

/// Sends it to one device, regardless of placement. The processor, 0, executes it if that device
/// cannot, fails, or is cut off.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_pin(task: Option<&outrigger_task>, device: usize) -> outrigger_status {
    status(|| {
        handle(task, "task")?.draft(|draft| {
            draft.pin(device);
            Ok(())
        })
    })
}
