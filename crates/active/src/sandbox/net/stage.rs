//! The stage: this program as another process, between its start and the sandbox's, which prepares
//! a network name space.
//!
//! It has one thread and nothing in its memory, so it may do what a thread of the runner may not:
//! enter a user name space, in which it may make a network. It makes listening sockets there, hands
//! them to the runner, and becomes the sandbox. With that it loses its rights in that name space.

use std::ffi::{OsStr, OsString};
use std::fs::write;
use std::io::{Error, IoSlice, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{getegid, geteuid};

use super::link::Loopback;
use super::shim;
use crate::job::DESTINATIONS_MAX;

/// In place of a descriptor number for [`enter`], if nobody wants the sockets.
pub(super) const NOBODY: &str = "-";
const END: &str = "--";

/// `NUMBER ADDRESS:PORT… -- PROGRAM…`: the words that follow the mark.
pub(super) fn words<'a>(
    socket: &'a str,
    addresses: impl Iterator<Item = &'a SocketAddr> + 'a,
) -> impl Iterator<Item = OsString> + 'a {
    let addresses = addresses.map(|address| address.to_string().into());
    std::iter::once(socket.into()).chain(addresses).chain(std::iter::once(END.into()))
}

/// Does what these words say; returns only with an error.
pub(super) fn enter(words: &[OsString]) -> Error {
    let text = |word: &OsStr| word.to_str().map(str::to_string).unwrap_or_default();
    let (Some((socket, rest)), Some(end)) =
        (words.split_first(), words.iter().position(|word| *word == *END))
    else {
        return Error::other("this is for `outrigger run` alone");
    };
    let (addresses, program) = (&rest[..end - 1], &rest[end..]);
    let prepared = || -> Result<()> {
        let context = |what: &str| {
            let what = what.to_string();
            move |error: Error| Error::new(error.kind(), format!("{what}: {error}"))
        };
        let socket = match text(socket).as_str() {
            NOBODY => None,
            number => Some(shim::kept(number.parse().map_err(Error::other)?)?),
        };
        let (user, group) = (geteuid(), getegid());
        shim::move_out().map_err(context("a network of its own cannot be made"))?;
        let mapped = context("the user cannot be had in a name space of its own");
        write("/proc/self/setgroups", "deny")
            .and_then(|()| write("/proc/self/uid_map", format!("{user} {user} 1")))
            .and_then(|()| write("/proc/self/gid_map", format!("{group} {group} 1")))
            .map_err(mapped)?;
        let loopback = Loopback::up().map_err(context("its loopback cannot be brought up"))?;
        let mut listening = Vec::new();
        for address in addresses {
            let address: SocketAddr = text(address).parse().map_err(Error::other)?;
            let at = format!("it cannot have {address}");
            if address.ip() != Ipv4Addr::LOCALHOST && address.ip() != Ipv6Addr::LOCALHOST {
                loopback.add(address.ip()).map_err(context(&at))?;
            }
            listening.push(TcpListener::bind(address).map_err(context(&at))?);
        }
        socket.map_or(Ok(()), |socket| hand_over(&socket, &listening))
    };
    match (prepared(), program.split_first()) {
        (Err(error), _) => error,
        (Ok(()), None) => Error::other("there is nothing to run"),
        (Ok(()), Some((program, arguments))) => Command::new(program).args(arguments).exec(),
    }
}

/// Sends sockets to the owner of the other end, in this order.
pub(super) fn hand_over(socket: impl AsFd, listening: &[TcpListener]) -> Result<()> {
    let borrowed: Vec<_> = listening.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESTINATIONS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Error::other("there are too many destinations"));
    }
    sendmsg(socket, &[IoSlice::new(b"!")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
