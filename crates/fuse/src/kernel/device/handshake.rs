//! `INIT`: the kernel's offers, and those that we accept.

use std::io;

use rustix::io::Errno;

use super::Device;
use crate::kernel::REQUEST_BYTES;
use crate::kernel::wire::Request;
use crate::kernel::wire::encode::Encode as _;
use crate::kernel::wire::opcode::INIT;

/// The protocol's version.
const MAJOR: u32 = 7;
/// The minor version that we know.
const MINOR: u32 = 45;
/// The oldest that this was tried with or is likely to work with (Linux 5.4).
const MINOR_LEAST: u32 = 31;
/// Read-ahead requests that the kernel has under way at once, and from how many on it thinks the
/// mount overloaded.
const BACKGROUND: u16 = 32;
const CONGESTION: u16 = BACKGROUND * 3 / 4;
/// Times are exact to a nanosecond.
const TIME_GRAIN: u32 = 1;
const PAGE: u32 = 4096;
const INIT_OUT_BYTES: usize = 64;

/// Flags of the handshake: bits of two words, the second from bit 32 on.
mod flag {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Waits for the kernel's `INIT` and answers it. `changes_elsewhere`, `keeps_locks`,
/// `is_exportable`: see [`FileSystem`](crate::fs::FileSystem). If the kernel offers rings, `rings`
/// decides whether to accept.
///
/// # Errors
/// When the kernel is too old, or the mount is gone.
pub fn shake_hands(
    device: &Device,
    check_permissions: bool,
    changes_elsewhere: bool,
    keeps_locks: bool,
    is_exportable: bool,
    rings: impl FnOnce() -> bool,
) -> io::Result<()> {
    let mut room = vec![0; REQUEST_BYTES as usize + PAGE as usize];
    loop {
        let gone = || io::Error::other("it was unmounted before it could answer");
        let message = device.receive(&mut room)?.ok_or_else(gone)?;
        let request = Request::from_device(message)?;
        let unique = request.unique;
        if request.opcode != INIT {
            device.answer(unique, Err(Errno::IO));
            continue;
        }
        let offer = Offer::new(&request)?;
        if offer.major > MAJOR {
            // It comes back with ours.
            device.answer(unique, Ok(&answer(offer.read_ahead, 0)));
            continue;
        }
        if (offer.major, offer.minor) < (MAJOR, MINOR_LEAST) {
            device.answer(unique, Err(Errno::PROTO));
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "this kernel's FUSE is of version {}.{}; {MAJOR}.{MINOR_LEAST} is needed (Linux 5.4 or newer)",
                    offer.major, offer.minor
                ),
            ));
        }
        let mut wanted = flag::ASYNC_READ
            | flag::ATOMIC_O_TRUNC
            | flag::BIG_WRITES
            | flag::DONT_MASK
            | flag::DO_READDIRPLUS
            | flag::READDIRPLUS_AUTO
            | flag::ASYNC_DIO
            | flag::PARALLEL_DIROPS
            | flag::MAX_PAGES
            | flag::CACHE_SYMLINKS
            | flag::HANDLE_KILLPRIV_V2
            | flag::SETXATTR_EXT
            | flag::INIT_EXT;
        // With ACLs the kernel checks permissions whether it was asked to or not.
        if check_permissions {
            wanted |= flag::POSIX_ACL;
        }
        if changes_elsewhere {
            wanted |= flag::AUTO_INVAL_DATA;
        }
        if keeps_locks {
            wanted |= flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
        }
        if is_exportable {
            wanted |= flag::EXPORT_SUPPORT;
        }
        if offer.flags & flag::OVER_IO_URING != 0 && rings() {
            wanted |= flag::OVER_IO_URING;
        }
        // An older kernel ignores flags that it does not know.
        device.answer(unique, Ok(&answer(offer.read_ahead, wanted & offer.flags)));
        return Ok(());
    }
}

/// `fuse_init_in`.
struct Offer {
    major: u32,
    minor: u32,
    /// Bytes.
    read_ahead: u32,
    flags: u64,
}

impl Offer {
    fn new(request: &Request<'_>) -> io::Result<Self> {
        let mut fields = request.fields;
        let (major, minor, read_ahead, low) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let extended = u64::from(low) & flag::INIT_EXT != 0;
        let high = if extended { fields.u32()? } else { 0 };
        Ok(Self { major, minor, read_ahead, flags: u64::from(low) | u64::from(high) << 32 })
    }
}

/// `fuse_init_out`.
fn answer(read_ahead: u32, flags: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(INIT_OUT_BYTES);
    [MAJOR, MINOR, read_ahead.min(REQUEST_BYTES), flags as u32].into_iter().for_each(|field| out.u32(field));
    out.u32(u32::from(BACKGROUND) | u32::from(CONGESTION) << 16);
    out.u32(REQUEST_BYTES);
    out.u32(TIME_GRAIN);
    let (pages, alignment) = (REQUEST_BYTES / PAGE, 0);
    out.u32(pages | alignment << 16);
    out.u32((flags >> 32) as u32);
    out.resize(INIT_OUT_BYTES, 0);
    out
}
