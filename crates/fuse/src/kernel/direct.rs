//! Mounting by `mount(2)`, as root may.
//!
//! With a type of our own, `findmnt`, `mount -a` and `outrigger unmount` know what they have before
//! them.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::MountOptions;
use super::device::Device;
use crate::mounts::FS_TYPE;

/// Mounts, and returns the device to serve it by; `None` when only the helper may.
///
/// # Errors
/// When there is no FUSE, or the kernel refuses for another reason than who asks.
pub fn mount(point: &Path, options: &MountOptions) -> io::Result<Option<OwnedFd>> {
    let root_mode = rustix::fs::stat(point)?.st_mode;
    let device = Device::open()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode={root_mode:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.check_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    match rustix::mount::mount(options.source.as_str(), point, FS_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
