//! Keeps connections of `sslmode=prefer` from telling the password in clear.
//!
//! This mode asks for no certificate, and a server may say that it has no TLS. So a program that
//! listens in the server's place could ask for the password and get it. Here the server's messages
//! are checked before the client library sees them, until the client is let in. A request for the
//! password in clear ends the connection. Hashed requests (SCRAM, MD5) are answered.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The error's text, by which `refused` recognises it.
pub(super) const IN_CLEAR: &str = "the server asks for the password in clear";

/// Connects, with the settings that the library gives its own connections.
pub(super) async fn connect(host: &str, port: u16, silence: Duration) -> io::Result<Guarded<TcpStream>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(silence))?;
    let keepalive = TcpKeepalive::new().with_time(super::connection::KEEPALIVE.0);
    let keepalive = keepalive.with_interval(super::connection::KEEPALIVE.1);
    socket.set_tcp_keepalive(&keepalive.with_retries(super::connection::KEEPALIVE_TRIES))?;
    Ok(Guarded { stream, guard: Guard::default() })
}

/// A stream, plain or within TLS, on which the server's messages are checked.
pub(super) struct Guarded<S> {
    pub stream: S,
    pub guard: Guard,
}

/// The position within the server's messages. A message is a letter, a length that counts itself,
/// and that many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Guard {
    /// It was asked whether it has TLS.
    #[default]
    Asked,
    /// The first bytes of a message, and how many there are: a letter, a length, and the kind of
    /// request.
    Head([u8; 9], usize),
    /// So many bytes of a message are skipped.
    Rest(u32),
    /// It has TLS, which has its own, or has let the client in.
    Off,
}

impl Guard {
    /// Within TLS.
    pub const SECURED: Self = Self::Head([0; 9], 0);

    /// Takes what has come.
    ///
    /// # Errors
    /// When the password is asked for in clear.
    pub fn look(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            *self = match *self {
                Self::Off => return Ok(()),
                Self::Asked if *byte == b'S' => Self::Off,
                Self::Asked | Self::Rest(1) => Self::Head([0; 9], 0),
                Self::Rest(left) => Self::Rest(left - 1),
                Self::Head(mut head, had) => {
                    head[had] = *byte;
                    Self::after(head, had + 1)?
                }
            };
        }
        Ok(())
    }

    fn after(head: [u8; 9], had: usize) -> io::Result<Self> {
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (is_request, left) = (head[0] == b'R', word(1).saturating_sub(4));
        Ok(match had {
            5 if !is_request && left > 0 => Self::Rest(left),
            5 if !is_request => Self::Head([0; 9], 0),
            9 => match (word(5), left.saturating_sub(4)) {
                (0, _) => Self::Off,
                (3, _) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, IN_CLEAR)),
                (_, 0) => Self::Head([0; 9], 0),
                (_, rest) => Self::Rest(rest),
            },
            _ => Self::Head(head, had),
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = read {
            self.guard.look(&buf.filled()[before..])?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::error::ErrorKind;
    use crate::meta::postgres::connection::Connection;
    use crate::meta::postgres::location::{Address, Location};
    use crate::meta::postgres::tls::Tls;

    /// A message of the server's.
    fn message(letter: u8, body: &[u8]) -> Vec<u8> {
        [&[letter], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
    }

    #[test]
    fn only_a_password_in_clear_is_refused_however_the_bytes_come() {
        let (clear, scram, welcome) = ([0, 0, 0, 3], *b"\0\0\0\x0aSCRAM-SHA-256\0\0", [0, 0, 0, 0]);
        let notice = message(b'N', b"hello R\0\0\0\x08\0\0\0\x03");
        let empty = message(b'N', b"");
        let cases = [
            (vec![message(b'R', &clear)], false),
            (vec![notice.clone(), empty, message(b'R', &scram), message(b'R', &clear)], false),
            (vec![notice, message(b'R', &scram), message(b'R', &welcome), message(b'R', &clear)], true),
        ];
        for (messages, is_let) in cases {
            let said = [b"N".to_vec(), messages.concat()].concat();
            for step in 1..=said.len() {
                let mut guard = Guard::default();
                let looked = said.chunks(step).try_for_each(|bytes| guard.look(bytes));
                assert_eq!(looked.is_ok(), is_let, "{said:?} in pieces of {step}");
            }
        }
        // A handshake is not understood; the stream inside it is.
        let secured = [b"S".to_vec(), message(b'R', &clear)].concat();
        assert!(Guard::default().look(&secured).is_ok() && { Guard::SECURED }.look(&secured[1..]).is_err());
    }

    /// A listener in the server's place gets no password by asking for it.
    #[test]
    fn nobody_is_told_the_password_in_clear() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 8];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(b"N").unwrap();
            let mut len = [0; 4];
            stream.read_exact(&mut len).unwrap();
            let mut greeting = vec![0; u32::from_be_bytes(len) as usize - 4];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(&message(b'R', &[0, 0, 0, 3])).unwrap();
            let mut rest = Vec::new();
            // The client ends the connection, perhaps roughly.
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let location = Location::parse(&format!("postgres://u@127.0.0.1:{port}/d?sslmode=prefer")).unwrap();
        let tls = Tls::new(&location).unwrap();
        let server = Address { host: "127.0.0.1".to_string(), port };
        let opened =
            Connection::open_as(&location, &server, &tls, Duration::from_secs(30), Some("hunter2".into()));
        let Err(error) = opened else { panic!("let in") };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("sslmode=disable"), "{error}");
        assert_eq!(String::from_utf8_lossy(&got.join().unwrap()), "");
    }
}
