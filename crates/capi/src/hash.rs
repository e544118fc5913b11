//! Hashing on the calling thread.

use std::cell::RefCell;
use std::ffi::c_void;

use outrigger_format::Fingerprint;
use outrigger_offload::op::Digest;
use outrigger_offload::{Hasher, hash, hash_many, window_hash};

use crate::raw::{self, handle};
use crate::status::{Error, Result, outrigger_status, status, value};
use crate::types::{self, outrigger_fingerprint, outrigger_range, outrigger_window};

thread_local! {
    /// Kept from call to call, so that a thread that hashes repeatedly allocates nothing.
    static FINGERPRINTS: RefCell<Vec<Fingerprint>> = const { RefCell::new(Vec::new()) };
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The number of bytes of a fingerprint of this kind (enum outrigger_hash_kind) that are the hash.
/// The others are zeros. 0 for an unknown kind.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_hash_len(kind: u32) -> usize {
    value(0, || Ok(Digest::of_kind(types::kind(kind)?).0.len()))
}

/// Hashes `len` bytes by the function `kind` (enum outrigger_hash_kind) into `out`, on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_hash(
    kind: u32,
    data: *const c_void,
    len: usize,
    out: *mut outrigger_fingerprint,
) -> outrigger_status {
    status(|| {
        let kind = types::kind(kind)?;
        // SAFETY: C's contract.
        let (data, out) = unsafe { (raw::bytes(data, len, "data")?, raw::room(out, 1, "out")?) };
        out[0].write(hash(kind, data).into());
        Ok(())
    })
}

/// Hashes `count` pieces of `data` side by side on this thread, into as many fingerprints at `out`.
/// Pieces may be in any order and overlap. `data` has less than 4 GiB. With every function this is
/// faster than one piece after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_hash_many(
    kind: u32,
    data: *const c_void,
    len: usize,
    pieces: *const outrigger_range,
    count: usize,
    out: *mut outrigger_fingerprint,
) -> outrigger_status {
    status(|| {
        let kind = types::kind(kind)?;
        // SAFETY: C's contract.
        let (data, pieces, out) = unsafe {
            (
                raw::bytes(data, len, "data")?,
                raw::slice(pieces, count, "pieces")?,
                raw::room(out, count, "out")?,
            )
        };
        within(pieces, data.len())?;
        let ranges = pieces.iter().map(|piece| piece.start as usize..piece.end as usize);
        FINGERPRINTS.with_borrow_mut(|made| {
            made.clear();
            hash_many(kind, data, ranges, made);
            out.iter_mut().zip(made.iter()).for_each(|(out, made)| {
                out.write((*made).into());
            });
        });
        Ok(())
    })
}

/// Checks that all pieces lie within `len` bytes.
pub fn within(pieces: &[outrigger_range], len: usize) -> Result {
    match pieces.iter().find(|piece| piece.start > piece.end || piece.end as usize > len) {
        Some(outrigger_range { start, end }) => {
            Err(Error::invalid(format!("the piece from {start} to {end} is not within {len} bytes")))
        }
        None => Ok(()),
    }
}

/// The number of windows in `len` bytes, each of which gives `keep` bytes. 0 if `spec` is not
/// valid, which outrigger_last_error() explains.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_window_count(spec: Option<&outrigger_window>, len: usize) -> usize {
    value(0, || Ok(types::window(handle(spec, "spec")?)?.count(len)))
}

/// Hashes the sliding windows of `data` on this thread. `spec.keep` bytes of each window's hash go
/// in order to `out`, which has room for `room` bytes. The number of bytes is stored in `written`
/// (if not null), even if they do not fit (OUTRIGGER_SPACE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_window_hash(
    spec: Option<&outrigger_window>,
    data: *const c_void,
    len: usize,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> outrigger_status {
    status(|| {
        let spec = types::window(handle(spec, "spec")?)?;
        // SAFETY: C's contract.
        let (data, out, mut written) = unsafe {
            let written = raw::room(written, usize::from(!written.is_null()), "written")?;
            (raw::bytes(data, len, "data")?, raw::room(out, room, "out")?, written.first_mut())
        };
        let needed = spec.count(data.len()).checked_mul(spec.keep);
        let needed = needed.ok_or_else(|| Error::invalid("more windows than memory can hold"))?;
        if needed > out.len() {
            // Too little room, so nothing is hashed.
            if let Some(written) = &mut written {
                written.write(needed);
            }
            let message = format!("there is room for {} bytes of {needed}", out.len());
            return Err(Error::new(outrigger_status::OUTRIGGER_SPACE, message));
        }
        BYTES.with_borrow_mut(|made| {
            made.clear();
            window_hash(spec, data, made);
            raw::put(made, out, written)
        })
    })
}

/// Hashes data that arrives in pieces.
pub struct outrigger_hasher(Hasher);

/// A hasher for a function (enum outrigger_hash_kind). Null after an error. Free it with
/// outrigger_hasher_free().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_hasher_new(kind: u32) -> Option<Box<outrigger_hasher>> {
    value(None, || Ok(Some(Box::new(outrigger_hasher(Hasher::new(types::kind(kind)?))))))
}

/// Takes the next `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_hasher_update(
    hasher: Option<&mut outrigger_hasher>,
    data: *const c_void,
    len: usize,
) -> outrigger_status {
    status(|| {
        let hasher = hasher.ok_or_else(|| Error::invalid("hasher is null"))?;
        // SAFETY: C's contract.
        hasher.0.update(unsafe { raw::bytes(data, len, "data")? });
        Ok(())
    })
}

/// The hash of everything since the last call of this function, or since the beginning. The next
/// bytes begin a new hash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_hasher_finish(
    hasher: Option<&mut outrigger_hasher>,
    out: *mut outrigger_fingerprint,
) -> outrigger_status {
    status(|| {
        let hasher = hasher.ok_or_else(|| Error::invalid("hasher is null"))?;
        // SAFETY: C's contract.
        let out = unsafe { raw::room(out, 1, "out")? };
        out[0].write(hasher.0.finish().into());
        Ok(())
    })
}

/// Frees it. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_hasher_free(hasher: Option<Box<outrigger_hasher>>) {
    drop(hasher);
}
