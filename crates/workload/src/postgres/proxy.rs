//! A connection to a server that a test can cut, and that shows a client's progress.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::{PORT, Server, USER, url_in};

/// The fate of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// It is passed on.
    Pass,
    /// It is lost, and its connection is closed.
    Lose,
    /// It arrives, and then its connection is closed.
    PassAndEnd,
    /// The sender's connection is closed, and the piece arrives later, after [`Proxy::arrive`].
    Late,
}

/// Passes connections on to a server, and asks about each piece in either direction. A piece is
/// what is sent at once, mostly one message or a few.
pub struct Proxy {
    dir: PathBuf,
    database: String,
    over: Arc<AtomicBool>,
    late: Arc<Late>,
}

/// Late pieces.
#[derive(Default)]
struct Late {
    may_arrive: Mutex<bool>,
    changed: Condvar,
}

impl Proxy {
    /// Starts a proxy. Its socket lies in a directory of the server's.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(server: &Server, judge: impl Fn() -> Piece + Send + Sync + 'static) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = server.dir().join(format!("proxy-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&dir)?;
        let socket = format!(".s.PGSQL.{PORT}");
        let listener = UnixListener::bind(dir.join(&socket))?;
        let behind = server.dir().join(socket);
        let (over, judge) = (Arc::new(AtomicBool::new(false)), Arc::new(judge));
        let late = Arc::<Late>::default();
        let (ended, waits) = (Arc::clone(&over), Arc::clone(&late));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&behind)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let (judge, late) = (Arc::clone(&judge), Arc::clone(&waits));
                    std::thread::spawn(move || pass(from, to, &*judge, &late));
                }
            }
        });
        Ok(Self { dir, database: server.database.clone(), over, late })
    }

    /// Lets pieces arrive that are [`Piece::Late`], from now on.
    pub fn arrive(&self) {
        *self.late.may_arrive.lock().expect("no panic while held") = true;
        self.late.changed.notify_all();
    }

    /// The directory of its socket.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The URL of a store in a schema of the server, through the proxy.
    pub fn url(&self, schema: &str) -> String {
        url_in(&self.dir, USER, &self.database, schema)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // This wakes it, so that it sees the flag.
        let _ = UnixStream::connect(self.dir.join(format!(".s.PGSQL.{PORT}")));
        // The server's watchdog could not, because it runs as another user.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, judge: &dyn Fn() -> Piece, late: &Late) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let piece = judge();
        if piece == Piece::Late {
            let _ = from.shutdown(Shutdown::Both);
            let may_arrive = late.may_arrive.lock().expect("no panic while held");
            drop(late.changed.wait_while(may_arrive, |may| !*may));
            // Nobody takes the answer. The connection ends after it.
            let _ = to.write_all(&buffer[..count]);
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if piece == Piece::Lose {
            break;
        }
        let has_arrived = to.write_all(&buffer[..count]).is_ok();
        if piece == Piece::PassAndEnd {
            // The receiver goes on until it has read all of it.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if !has_arrived {
            // Nobody listens any more, but the sender goes on, as over a network. A server that
            // could not send its results would not do the rest of its work.
            while let Ok(1..) = from.read(&mut buffer) {}
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
