//! Metrics for a monitoring system that polls: `GET /metrics`.
//!
//! One thread accepts. Each connection has a thread of its own for one request. At most
//! [`CONNECTIONS`] are served at once, with [`REQUEST_BYTES`] of request and [`PATIENCE`] in each
//! direction. So clients can take no more than that from the mount. The protocol is the little that
//! a scraper needs, so no HTTP library is used.

mod address;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;

pub use self::address::Address;

/// Connections at once.
const CONNECTIONS: usize = 8;
/// Bytes of a request's head.
const REQUEST_BYTES: usize = 8 << 10;
/// How long a client may take to send its request, and as long again for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after a failure to accept, such as too many open files.
const RETRY: Duration = Duration::from_millis(100);

/// Renders the metrics; `None` when the mount is ending.
pub type Render = dyn Fn() -> Option<String> + Send + Sync;

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket in the file system, which is removed unless another has taken its place.
#[derive(Clone)]
pub struct Trace {
    path: PathBuf,
    inode: u64,
}

impl Trace {
    /// Removes the socket.
    pub fn remove(&self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A listener for scrapers. Dropping it removes the socket.
pub struct Exporter {
    listener: Option<Listener>,
    trace: Option<Trace>,
}

impl Exporter {
    /// Listens. Nobody is answered before [`Exporter::start`].
    ///
    /// # Errors
    /// When the address is taken, or may not be used.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Tcp(address) => {
                let listener = Listener::Tcp(TcpListener::bind(address)?);
                Self { listener: Some(listener), trace: None }
            }
            Address::Unix(path) => {
                remove_stale(path)?;
                let listener = Listener::Unix(UnixListener::bind(path)?);
                let inode = std::fs::symlink_metadata(path)?.ino();
                Self { listener: Some(listener), trace: Some(Trace { path: path.clone(), inode }) }
            }
        })
    }

    /// The socket to remove if the process ends without dropping this.
    pub fn trace(&self) -> Option<Trace> {
        self.trace.clone()
    }

    /// Answers with the text of `render`.
    ///
    /// # Errors
    /// When the machine gives no thread.
    pub fn start(&mut self, content_type: &'static str, render: Arc<Render>) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let work = move || match listener {
            Listener::Unix(listener) => accept(|| listener.accept().map(|it| it.0), content_type, &render),
            Listener::Tcp(listener) => accept(|| listener.accept().map(|it| it.0), content_type, &render),
        };
        std::thread::Builder::new().name("metrics".to_string()).spawn(work).map(drop)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.trace.iter().for_each(Trace::remove);
    }
}

/// Removes the socket of a process that was killed.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket exists there"))
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        },
    }
}

/// A connection of either kind.
trait Connection: Read + Write + Send + 'static {
    fn patience(&self, left: Duration) -> io::Result<()>;
    fn finish(&self);
}

macro_rules! connection {
    ($($stream:ty),*) => {
        $(impl Connection for $stream {
            fn patience(&self, left: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(left))?;
                self.set_write_timeout(Some(left))
            }

            fn finish(&self) {
                let _ = self.shutdown(Shutdown::Write);
            }
        })*
    };
}

connection!(UnixStream, TcpStream);

fn accept<C: Connection>(
    next: impl Fn() -> io::Result<C>,
    content_type: &'static str,
    render: &Arc<Render>,
) -> ! {
    let places = Arc::new(());
    loop {
        let Ok(connection) = next() else {
            outrigger_clock::sleep(RETRY);
            continue;
        };
        // A client that comes while all places are taken is disconnected, and tries again later.
        if Arc::strong_count(&places) > CONNECTIONS {
            continue;
        }
        let (place, render) = (Arc::clone(&places), Arc::clone(render));
        let work = move || {
            let _ = converse(connection, content_type, &*render);
            drop(place);
        };
        // If no thread can be started, the connection is closed as well.
        let _ = std::thread::Builder::new().name("metrics-client".to_string()).spawn(work);
    }
}

fn converse(mut connection: impl Connection, content_type: &str, render: &Render) -> io::Result<()> {
    let head = read_head(&mut connection)?;
    let (status, body) = answer(&head, render);
    let kind = if status.starts_with("200") { content_type } else { "text/plain; charset=utf-8" };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if !head.starts_with(b"HEAD ") {
        text += &body;
    }
    connection.patience(PATIENCE)?;
    connection.write_all(text.as_bytes())?;
    connection.finish();
    Ok(())
}

/// The request up to its empty line, or its first bytes if it is too long.
fn read_head(connection: &mut impl Connection) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while head.len() < REQUEST_BYTES && !is_whole(&head) {
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would mean no limit.
        connection.patience(left.max(Duration::from_millis(1)))?;
        match connection.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&part[..len]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(head)
}

fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

fn answer(head: &[u8], render: &Render) -> (&'static str, String) {
    if !is_whole(head) {
        return ("431 Request Header Fields Too Large", "the request is too long\n".to_string());
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.trim_end_matches('\r').split(' ').collect();
    let [method, target, version] = words[..] else {
        return ("400 Bad Request", "this is not HTTP\n".to_string());
    };
    if !version.starts_with("HTTP/1.") {
        return ("505 HTTP Version Not Supported", "this is not HTTP/1\n".to_string());
    }
    if !matches!(method, "GET" | "HEAD") {
        return ("405 Method Not Allowed", "metrics can only be read\n".to_string());
    }
    if target.split('?').next() != Some("/metrics") {
        return ("404 Not Found", "the metrics are at /metrics\n".to_string());
    }
    match render() {
        Some(text) => ("200 OK", text),
        None => ("503 Service Unavailable", "the mount is ending\n".to_string()),
    }
}

#[cfg(test)]
mod tests;
