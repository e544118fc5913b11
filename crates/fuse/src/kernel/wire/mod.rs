//! The FUSE protocol without a way of carrying it: requests from bytes, calls of a
//! [`FileSystem`](crate::fs::FileSystem), answers to bytes.
//!
//! A request comes in three pieces, as io_uring delivers them: a header, the operation's fixed
//! fields, and the rest. The device delivers one piece, which is cut accordingly. An answer is
//! appended to a vector; its header is the carrier's. [`answer::answer`] is the table of
//! operations, in the order of the kernel's numbers.
//!
//! `FORGET`, `INTERRUPT` and `INIT` come through the device only, and are its affair. So are
//! `SETLK` and `SETLKW`, whose answers may come much later ([`lock`]).

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

use crate::fs::Result;

pub mod answer;
pub mod decode;
pub mod encode;
pub mod lock;
pub mod opcode;

pub use self::decode::Request;

/// The result of `work`, or `EIO` if it panics. A bug in one operation must not end a thread that
/// answers requests: its callers would wait for ever.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO))
}
