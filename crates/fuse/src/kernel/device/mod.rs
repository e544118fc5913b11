//! The device `/dev/fuse`: each read takes one request; each write gives one answer, or notifies
//! the kernel.
//!
//! Answers go to the clone of the device that the request was read from; notifications, to any.

mod crowd;
mod handshake;
mod serve;
mod shim;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::wire::encode::{Encode as _, answer_header};
use crate::fs::Result;

pub(super) use self::crowd::Crowd;
pub use self::handshake::shake_hands;
pub(super) use self::serve::serve;

/// Codes of notifications.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;

/// See the module.
#[derive(Debug)]
pub struct Device {
    file: OwnedFd,
}

impl Device {
    /// The device of a mount.
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Opens the device, for a mount that is to be made.
    ///
    /// # Errors
    /// When there is no FUSE, or it may not be used.
    pub fn open() -> io::Result<OwnedFd> {
        Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Another way to the same mount, with a queue of its own for what was read from it.
    ///
    /// # Errors
    /// When there are too many open files, or the mount is gone.
    pub fn another(&self) -> io::Result<Self> {
        let file = Self::open()?;
        shim::connect(&file, &self.file)?;
        Ok(Self { file })
    }

    /// Waits for a request and puts it into `room`; `None` once the mount is gone.
    ///
    /// # Errors
    /// When the device fails.
    pub fn receive<'r>(&self, room: &'r mut [u8]) -> io::Result<Option<&'r [u8]>> {
        loop {
            return match rustix::io::read(&self.file, &mut *room) {
                Ok(len) => Ok(Some(&room[..len])),
                // A thread gets the second if the mount went just as it was being given a request.
                Err(Errno::NODEV | Errno::CONNABORTED) => Ok(None),
                // The caller gave up before the request was read, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// Answers a request, which ends it in the kernel in any case: a refused answer is an error for
    /// the caller, and a caller that has given up needs none.
    pub fn answer(&self, unique: u64, answer: Result<&[u8]>) {
        let (bytes, error) = match answer {
            Ok(bytes) => (bytes, 0),
            Err(errno) => (&[][..], -errno.raw_os_error()),
        };
        let _ = self.send(unique, error, bytes);
    }

    /// Has the kernel forget a name in a directory, with all below it. `ENOENT` when it does not
    /// know it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget_name(&self, directory: u64, name: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(17 + name.len());
        message.u64(directory);
        message.u32(name.len() as u32);
        message.u32(0);
        message.extend_from_slice(name);
        message.push(0);
        self.send(0, INVAL_ENTRY, &message)
    }

    /// Has the kernel forget what it has cached of an inode: attributes and content. `ENOENT` when
    /// it does not know it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget_inode(&self, number: u64) -> Result<()> {
        let (offset, to_the_end) = (0, 0);
        let mut message = Vec::with_capacity(24);
        [number, offset, to_the_end].into_iter().for_each(|field| message.u64(field));
        self.send(0, INVAL_INODE, &message)
    }

    fn send(&self, unique: u64, code: i32, bytes: &[u8]) -> Result<()> {
        let header = answer_header(unique, code, bytes.len());
        rustix::io::writev(&self.file, &[IoSlice::new(&header), IoSlice::new(bytes)]).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
