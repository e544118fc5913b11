//! The loopback of a new network name space: it is down there, and has the addresses only that it
//! is given. By netlink, as there is no call for either.
#![allow(clippy::host_endian_bytes, reason = "the kernel talks to this machine alone, in its order")]

use std::io::{Error, Result};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// The first device of each name space.
const LOOPBACK: u32 = 1;
const HEADER: usize = 16;
const REQUEST_WITH_ANSWER: u16 = 0x1 | 0x4;
const CREATE_OR_REPLACE: u16 = 0x400 | 0x100;
/// Kinds of messages (`RTM_…`, `NLMSG_ERROR`).
const CHANGE_DEVICE: u16 = 16;
const ADD_ADDRESS: u16 = 20;
const ANSWER: u16 = 2;
/// Attributes of an address (`IFA_…`).
const THERE: u16 = 1;
const HERE: u16 = 2;
/// Nobody else can have it, so nobody is asked (`IFA_F_NODAD`).
const UNASKED: u8 = 2;

/// The loopback of this process's name space.
pub(super) struct Loopback(OwnedFd);

impl Loopback {
    /// Brings it up.
    ///
    /// # Errors
    /// The kernel's.
    pub fn up() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let loopback = Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?);
        let up = 1u32.to_ne_bytes();
        // Family and kind are anything's.
        let body = [&[0; 4][..], &LOOPBACK.to_ne_bytes(), &up, &up].concat();
        loopback.ask(CHANGE_DEVICE, 0, &body)?;
        Ok(loopback)
    }

    /// Gives it one more address.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, address: IpAddr) -> Result<()> {
        let (family, bits, flags, bytes) = match address {
            IpAddr::V4(address) => (AddressFamily::INET, 32, 0, address.octets().to_vec()),
            IpAddr::V6(address) => (AddressFamily::INET6, 128, UNASKED, address.octets().to_vec()),
        };
        let attribute = |kind: u16| {
            let len = (4 + bytes.len()) as u16;
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &bytes].concat()
        };
        let scope = 0;
        let about = [family.as_raw() as u8, bits, flags, scope];
        let body = [&about[..], &LOOPBACK.to_ne_bytes(), &attribute(HERE), &attribute(THERE)].concat();
        self.ask(ADD_ADDRESS, CREATE_OR_REPLACE, &body)
    }

    fn ask(&self, kind: u16, how: u16, body: &[u8]) -> Result<()> {
        let len = (HEADER + body.len()) as u32;
        let (number, from) = ([0; 4], [0; 4]);
        let flags = (REQUEST_WITH_ANSWER | how).to_ne_bytes();
        let message = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags, &number, &from, body].concat();
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (len, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        let word = |at: usize| <[u8; 4]>::try_from(&answer[at..at + 4]).expect("four bytes");
        if len < HEADER + 4 || u16::from_ne_bytes([answer[4], answer[5]]) != ANSWER {
            return Err(Error::other("the kernel's answer about the loopback makes no sense"));
        }
        match i32::from_ne_bytes(word(HEADER)) {
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(-error)),
        }
    }
}
