//! The unsafe part: the one `ioctl` that clones the device.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`, as `include/uapi/linux/fuse.h` has it.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Makes `new`, just opened, another way to the mount of `device`.
///
/// # Errors
/// When the mount is gone.
pub fn connect(new: &OwnedFd, device: &OwnedFd) -> io::Result<()> {
    // SAFETY: this `ioctl` reads the number of a descriptor, 32 bits, from where its argument points, and writes nothing.
    unsafe { ioctl(new, Setter::<CLONE, u32>::new(device.as_raw_fd() as u32)) }?;
    Ok(())
}
