//! A way to a server that can be cut, and that tells how far a client has come.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::{PORT, Server, USER, url_in};

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// It goes on.
    Pass,
    /// It is lost, and the connection with it.
    Lose,
    /// It arrives, and is the last one of its connection.
    PassAndEnd,
    /// Its connection is lost to who sent it, and it arrives all the same, when [`Proxy::arrive`] says so.
    Late,
}

/// Passes connections on to a server, and asks about each piece, in whatever direction: what is sent at once, mostly one message or a few.
pub struct Proxy {
    dir: PathBuf,
    database: String,
    over: Arc<AtomicBool>,
    late: Arc<Late>,
}

/// Pieces that wait.
#[derive(Default)]
struct Late {
    may_arrive: Mutex<bool>,
    changed: Condvar,
}

impl Proxy {
    /// Starts one. Its socket lies in a directory of the server's.
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

    /// Has pieces arrive that are [`Piece::Late`], from now on.
    pub fn arrive(&self) {
        *self.late.may_arrive.lock().expect("no panic while held") = true;
        self.late.changed.notify_all();
    }

    /// Where its socket is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The URL of a store in a schema of the server, through here.
    pub fn url(&self, schema: &str) -> String {
        url_in(&self.dir, USER, &self.database, schema)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // So that it wakes and sees it.
        let _ = UnixStream::connect(self.dir.join(format!(".s.PGSQL.{PORT}")));
        // The server's watchdog could not: the server is somebody else.
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
            // Nobody takes the answer. The connection ends when it has been given.
            let _ = to.write_all(&buffer[..count]);
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if piece == Piece::Lose {
            break;
        }
        let has_arrived = to.write_all(&buffer[..count]).is_ok();
        if piece == Piece::PassAndEnd {
            // Who it is for goes on until it has read all of it.
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if !has_arrived {
            // Nobody listens any more. Who speaks goes on all the same, as over a network: a server that could not say what it has done would not do the rest.
            while let Ok(1..) = from.read(&mut buffer) {}
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
