//! The connection below a conversation: a socket of this host, or a sealed connection from another.

use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::sealed::Sealed;

/// Bytes of a line at most.
const LINE_MAX: u64 = 64 << 10;

/// See the module.
pub(super) enum Line {
    Here(UnixStream),
    There(Sealed),
}

/// A second descriptor, to end a conversation by.
pub(super) enum End {
    Here(UnixStream),
    There(TcpStream),
}

impl End {
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Here(stream) => stream.shutdown(Shutdown::Both),
            Self::There(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl Line {
    pub fn end(&self) -> io::Result<End> {
        match self {
            Self::Here(stream) => stream.try_clone().map(End::Here),
            Self::There(stream) => stream.socket().map(End::There),
        }
    }

    pub fn set_read_timeout(&self, most: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Here(stream) => stream.set_read_timeout(most),
            Self::There(stream) => stream.set_read_timeout(most),
        }
    }
}

impl Read for Line {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Here(stream) => stream.read(buf),
            Self::There(stream) => stream.read(buf),
        }
    }
}

impl Write for Line {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Here(stream) => stream.write(buf),
            Self::There(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The next line without its end, empty at the end of the conversation.
pub(super) fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    read_line_of(from, LINE_MAX)
}

/// As [`read_line`], of `most` bytes at most.
pub(super) fn read_line_of(from: &mut impl BufRead, most: u64) -> io::Result<String> {
    let mut line = String::new();
    from.take(most).read_line(&mut line)?;
    if line.len() as u64 == most && !line.ends_with('\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_end_is_refused() {
        assert_eq!(read_line(&mut &b"one\ntwo\n"[..]).unwrap(), "one");
        assert_eq!(read_line(&mut &b""[..]).unwrap(), "");
        let long = vec![b'x'; LINE_MAX as usize + 1];
        assert_eq!(read_line(&mut &long[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
