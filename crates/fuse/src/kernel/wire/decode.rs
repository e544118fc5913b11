//! Requests, field by field, as `include/uapi/linux/fuse.h` of the kernel lays them out.
#![allow(clippy::host_endian_bytes, reason = "both sides of this protocol are on one machine")]

use rustix::io::Errno;

use super::opcode::{self, fields_len};
use crate::asked::Asked;
use crate::fs::{Caller, Result};

/// Bytes of the header that every request begins with.
pub const HEADER_BYTES: usize = 40;

/// A request: a header, fixed fields that depend on the operation, and parts of variable length:
/// names, values, data.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Operation; one of [`super::opcode`].
    pub opcode: u32,
    /// Its number.
    pub unique: u64,
    /// The inode it is about; the directory, where there is a name.
    pub number: u64,
    /// The caller.
    pub caller: Caller,
    /// Fixed fields; may be longer than what the operation has.
    pub fields: Fields<'a>,
    /// What follows them.
    pub rest: Fields<'a>,
}

impl<'a> Request<'a> {
    /// As reports name it.
    pub fn asked(&self) -> Asked {
        let Caller { uid, pid, .. } = self.caller;
        Asked { request: self.unique, operation: opcode::name(self.opcode), inode: self.number, pid, uid }
    }

    /// Reads a header. `EIO` when it is too short.
    pub fn new(header: &[u8], fields: &'a [u8], rest: &'a [u8]) -> Result<Self> {
        let mut header = Fields(header);
        let (_len, opcode) = (header.u32()?, header.u32()?);
        let (unique, number) = (header.u64()?, header.u64()?);
        let (uid, gid, pid) = (header.u32()?, header.u32()?, header.u32()?);
        let caller = Caller { uid, gid, pid };
        Ok(Self { opcode, unique, number, caller, fields: Fields(fields), rest: Fields(rest) })
    }

    /// Reads a request as the device sends it, in one piece. `EIO` if it is too short. An unknown
    /// operation has no fixed fields.
    pub fn from_device(message: &'a [u8]) -> Result<Self> {
        let (header, body) = message.split_at_checked(HEADER_BYTES).ok_or(Errno::IO)?;
        let mut request = Self::new(header, &[], body)?;
        // An older kernel's `INIT` is shorter.
        let len = match request.opcode {
            opcode::SETXATTR => setxattr_len(body),
            _ => fields_len(request.opcode).unwrap_or(0).min(body.len()),
        };
        (request.fields, request.rest) = (Fields(&body[..len]), Fields(&body[len..]));
        Ok(request)
    }
}

/// Bytes of the fixed fields of `SETXATTR`: twice as many since Linux 5.14. A name, which is not
/// empty, and a value of the length that is told fill the rest of the request, so one of the two
/// fits.
fn setxattr_len(body: &[u8]) -> usize {
    let old = fields_len(opcode::SETXATTR).unwrap_or(0);
    let mut rest = Fields(body);
    let mut fits = || {
        let (len, _flags) = (rest.u32().ok()?, rest.u32().ok()?);
        let name = rest.name().ok()?;
        (!name.is_empty() && rest.0.len() == len as usize).then_some(())
    };
    let len = if fits().is_some() { old } else { 2 * old };
    len.min(body.len())
}

/// Bytes that are read from the front. The kernel does not send too few; were it to, the request
/// fails with `EIO`.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(first)
    }

    /// A name, up to the zero that ends it.
    pub fn name(&mut self) -> Result<&'a [u8]> {
        let len = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
        let name = self.bytes(len)?;
        self.bytes(1)?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_behind_either_length_of_fields() {
        for (value, flags) in
            [(b"".as_slice(), 0u32), (b"v", 1), (b"\0\0\0\0\0\0\0\0", 0), (b"a\0value of some length", 1)]
        {
            let (len, nothing) = ((value.len() as u32).to_ne_bytes(), 0u32.to_ne_bytes());
            let old = [len, nothing].concat();
            let new = [len, nothing, flags.to_ne_bytes(), nothing].concat();
            for fields in [old, new] {
                let body = [&fields, b"user.n\0".as_slice(), value].concat();
                let message = [[0; 4], opcode::SETXATTR.to_ne_bytes()].concat();
                let message = [&message, [0; HEADER_BYTES - 8].as_slice(), &body].concat();
                let mut request = Request::from_device(&message).unwrap();
                assert_eq!(request.fields.0.len(), fields.len());
                assert_eq!(request.rest.name(), Ok(b"user.n".as_slice()));
                assert_eq!(request.rest.0, value);
            }
        }
    }
}
