//! Mounting by the set-uid program `fusermount3`, for those who may not mount themselves.
//!
//! It opens the device, mounts, and sends the device back through a socket whose number is in its
//! environment.

use std::io::{self, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::MountOptions;

/// How the program is told of the socket, which it is given as standard input.
const SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");

/// Mounts, and returns the device to serve it by.
///
/// # Errors
/// When there is no such program, and what it says.
pub fn mount(point: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(words(options)).arg("--").arg(point).env(SOCKET.0, SOCKET.1);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot run fusermount3 (package fuse3): {error}"))
    })?;
    // Its end of the socket is in there: what is not closed here would be waited for in vain when
    // it fails.
    drop(command);
    let device = receive(&ours)?;
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    child.wait()?;
    device.ok_or_else(|| {
        let kind = if said.contains("user_allow_other") || said.contains("ermission") {
            io::ErrorKind::PermissionDenied
        } else {
            io::ErrorKind::Other
        };
        io::Error::new(kind, said.trim().to_string())
    })
}

/// The device, unless the socket was closed without.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    }))
}

/// Options as the program takes them. A comma in a name would begin another.
fn words(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![format!("fsname={source}"), "subtype=outrigger".to_string()];
    let either = |is: bool, yes: &str, no: &str| if is { yes.to_string() } else { no.to_string() };
    words.push(either(options.read_only, "ro", "rw"));
    words.push(either(options.suid, "suid", "nosuid"));
    words.push(either(options.dev, "dev", "nodev"));
    words.push(either(options.exec, "exec", "noexec"));
    words.push("noatime".to_string());
    if options.allow_other {
        words.push("allow_other".to_string());
    }
    if options.check_permissions {
        words.push("default_permissions".to_string());
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words_and_commas_do_not_make_more_of_them() {
        let options = MountOptions {
            source: r"/a,b\c".to_string(),
            read_only: false,
            allow_other: true,
            check_permissions: true,
            suid: false,
            dev: false,
            exec: true,
            threads: 1,
        };
        let expected =
            r"fsname=/a\,b\\c,subtype=outrigger,rw,nosuid,nodev,exec,noatime,allow_other,default_permissions";
        assert_eq!(words(&options), expected);
    }
}
