//! Which of a store's servers a client connects to.
//!
//! One of them is the primary, the others follow it, until one of these takes over. All are asked
//! before the first connection and after each loss, and then the one that was found until a
//! connection is lost again. An old primary that is started again takes writes, too: it does not
//! know. But a takeover begins a new *timeline*: of two primaries the one of the higher timeline is
//! the one that took over.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use super::connection::Connection;
use super::location::{Address, Location};
use super::tls::Tls;
use crate::error::{Error, ErrorKind, Result};

/// How long a connection may take to be made.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// The same, of another server, when one has been found.
const GLANCE: Duration = Duration::from_secs(2);

/// Asks a server whether connections can be secured, which it answers with one byte before anybody
/// logs in (SSLRequest in PostgreSQL's documentation of its protocol).
const QUESTION: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

impl Address {
    /// True if the server answers anything within that time.
    pub fn answers(&self, within: Duration) -> bool {
        let asked = if self.is_socket() {
            let path = Path::new(&self.host).join(format!(".s.PGSQL.{}", self.port));
            UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(Some(within))?;
                ask(stream)
            })
        } else {
            self.connect(within).and_then(|stream| {
                stream.set_read_timeout(Some(within))?;
                ask(stream)
            })
        };
        asked.is_ok()
    }

    fn connect(&self, within: Duration) -> io::Result<TcpStream> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, within) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn ask(mut stream: impl Read + Write) -> io::Result<()> {
    stream.write_all(&QUESTION)?;
    stream.read_exact(&mut [0])
}

/// An engine's knowledge of its servers.
#[derive(Default)]
pub(super) struct Servers {
    /// The server of the last connection. It is asked first, so that a silent one that is down
    /// costs its time once.
    last: AtomicUsize,
    /// The highest timeline of a primary that was met. One of a lower timeline was replaced, and is
    /// not gone back to.
    timeline: AtomicI64,
    /// No connection was lost since all were asked.
    is_sure: AtomicBool,
}

impl Servers {
    /// A connection was lost: another server may have taken over.
    pub fn doubt(&self) {
        self.is_sure.store(false, Ordering::Relaxed);
    }

    /// Connects to the right server; each may take `within`.
    ///
    /// # Errors
    /// Those of [`Connection::open`]; if several servers fail, preferably a temporary failure.
    pub fn connect(&self, location: &Location, tls: &Tls, within: Duration) -> Result<Connection> {
        let (count, first) = (location.servers.len(), self.last.load(Ordering::Relaxed));
        let is_choice = location.primary && count > 1;
        let is_sure = !is_choice || self.is_sure.swap(false, Ordering::Relaxed);
        let (mut failure, mut best): (Option<Error>, Option<(i64, usize, Connection)>) = (None, None);
        for number in (0..count).map(|at| (first + at) % count) {
            let patience = if best.is_some() { GLANCE } else { within.min(location.patience) };
            let opened = Connection::open(location, &location.servers[number], tls, patience);
            let opened = opened.and_then(|mut opened| {
                let timeline = if is_choice { self.timeline_of(&mut opened, location)? } else { 0 };
                Ok((timeline, number, opened))
            });
            match opened {
                Ok(opened) if best.as_ref().is_none_or(|best| best.0 < opened.0) => best = Some(opened),
                Ok(_) => {}
                Err(error) => {
                    let may_pass = |error: &Error| matches!(error.kind(), ErrorKind::Io | ErrorKind::Busy);
                    if !failure.as_ref().is_some_and(may_pass) {
                        failure = Some(error);
                    }
                }
            }
            if is_sure && best.is_some() {
                break;
            }
        }
        let Some((timeline, number, connection)) = best else {
            return Err(failure.expect("a store has a server at least"));
        };
        self.last.store(number, Ordering::Relaxed);
        self.timeline.fetch_max(timeline, Ordering::Relaxed);
        self.is_sure.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    /// A primary's timeline, unless a later one is known.
    fn timeline_of(&self, opened: &mut Connection, location: &Location) -> Result<i64> {
        let (timeline, seen) = (opened.timeline(location)?, self.timeline.load(Ordering::Relaxed));
        if timeline < seen {
            let why = format!("a primary of timeline {timeline}, when one of timeline {seen} has taken over");
            return Err(Error::new(ErrorKind::Io, format!("connecting to {location}: {why}")));
        }
        Ok(timeline)
    }
}
