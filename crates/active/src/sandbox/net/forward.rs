//! Forwards a program's connections: accepts inside, connects outside, passes bytes on in both
//! directions.
//!
//! ```text
//!  one thread      waits for connections, until the attempt has ended; takes no more while CONNECTIONS_MAX are open: the kernel has the others wait
//!  two for each    up: connects outside, then program ─▶ destination    down: destination ─▶ program
//! ```
//!
//! When one side has sent all, the other side sees the end and may go on sending. An error on
//! either side becomes one on the other: the connection is reset. A destination that cannot be
//! reached looks, inside, like a connection that is reset at once, because it was accepted before
//! that was known.
//!
//! A program that has ended well may have sent bytes that are still in transit; like the kernel,
//! this delivers them first ([`Forward::end`]). If that fails, the attempt has failed. It has also
//! failed if the program sent something, closed the connection, and ended before it could learn
//! that the destination was not there.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, IoSliceMut, Read as _, Result, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use outrigger_clock::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::Reach;
use crate::job::{DESTINATIONS_MAX, Destination};

/// Connections of one attempt at a time.
const CONNECTIONS_MAX: usize = 256;
/// Time limit for connecting to one address.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// How long delivery may take after the program's end.
const DELIVER_MAX: Duration = Duration::from_secs(30);
/// How often to check if all shall stop meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Pause after accepting has failed.
const PAUSE: Duration = Duration::from_millis(50);
const BLOCK: usize = 64 << 10;
/// For threads that keep their blocks elsewhere, and may ask for addresses.
const STACK: usize = 512 << 10;

/// A connection, as far as it is there.
struct Connection {
    inside: Arc<TcpStream>,
    outside: Option<Arc<TcpStream>>,
    /// All that the program sent has been passed on.
    is_sent: bool,
}

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Connection>,
    /// The program has ended: nobody is left inside.
    is_over: bool,
    /// Nothing more is to be delivered.
    is_cut: bool,
    /// Why data cannot be delivered.
    lost: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the accepting thread.
    wake: OwnedFd,
}

/// Forwards for one program, from its start to its end.
pub(crate) struct Forward {
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

impl Forward {
    /// Begins. The program has been started, and this process has closed its end of the channel.
    ///
    /// # Errors
    /// When the kernel has no thread or descriptor to spare.
    pub fn start(reach: Reach) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), wake });
        let all = Arc::clone(&shared);
        let accepts = Builder::new().spawn(move || {
            // If the stage has failed, it reports that itself.
            if let Ok(listening) = receive(&reach.channel) {
                accept(&all, &listening, &reach.to);
            }
        })?;
        Ok(Self { shared, accepts: Some(accepts) })
    }

    /// Ends it after the program: delivers what that has sent, unless it does not count (`cut`), or
    /// `stopped` says that all shall stop.
    ///
    /// # Errors
    /// In words, the data that could not be delivered.
    pub fn end(mut self, cut: bool, stopped: impl Fn() -> bool) -> std::result::Result<(), String> {
        self.close(cut);
        let until = Instant::now() + DELIVER_MAX;
        let mut state = self.shared.lock();
        while !state.open.is_empty() && !state.is_cut {
            if stopped() || Instant::now() >= until {
                state.lost.get_or_insert_with(|| {
                    format!(
                        "what it sent was not taken within {} s of its end (--net)",
                        DELIVER_MAX.as_secs()
                    )
                });
                break;
            }
            state = self.shared.changed.wait_timeout(state, ASK_EVERY).expect("no panic while held").0;
        }
        let lost = state.lost.take();
        drop(state);
        lost.map_or(Ok(()), Err)
    }

    /// Accepts no more connections, and ends those that have nothing more to deliver.
    fn close(&mut self, cut: bool) {
        let mut state = self.shared.lock();
        state.is_cut |= cut;
        let is_first = !std::mem::replace(&mut state.is_over, true);
        drop(state);
        self.shared.wake();
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        let state = self.shared.lock();
        for connection in state.open.values().filter(|one| cut || (is_first && one.is_sent)) {
            connection.end();
        }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // After a good end, only deliveries that took too long are left.
        self.close(true);
    }
}

impl Connection {
    /// Closes both ends, which wakes all that wait for them.
    fn end(&self) {
        for end in [Some(&self.inside), self.outside.as_ref()].into_iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    #[allow(clippy::host_endian_bytes, reason = "the kernel counts with it")]
    fn wake(&self) {
        // A full pipe has woken it already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn add(&self, inside: &Arc<TcpStream>) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.open.insert(number, Connection { inside: Arc::clone(inside), outside: None, is_sent: false });
        number
    }

    fn remove(&self, number: u64) {
        self.lock().open.remove(&number);
        self.changed.notify_all();
        self.wake();
    }

    /// All that the program sent on it has been passed on; after the program's end nobody is there
    /// for answers.
    fn sent(&self, number: u64) {
        let mut state = self.lock();
        let is_over = state.is_over;
        if let Some(connection) = state.open.get_mut(&number) {
            connection.is_sent = true;
            if is_over {
                connection.end();
            }
        }
    }

    fn lose(&self, what: String) {
        self.lock().lost.get_or_insert(what);
    }

    fn is_cut(&self) -> bool {
        self.lock().is_cut
    }
}

/// The sockets that the stage has made, in the order of the destinations.
fn receive(channel: &UnixStream) -> Result<Vec<TcpListener>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESTINATIONS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(Error::from(ErrorKind::UnexpectedEof));
    }
    let mut listening = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sockets) = message {
            listening.extend(sockets.map(TcpListener::from));
        }
    }
    listening.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
    Ok(listening)
}

/// Takes connections until the program has ended, and those that it had begun by then.
fn accept(shared: &Arc<Shared>, listening: &[TcpListener], to: &[Destination]) {
    loop {
        let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
        let (is_over, is_cut, room) = {
            let state = shared.lock();
            (state.is_over, state.is_cut, CONNECTIONS_MAX.saturating_sub(state.open.len()))
        };
        // At the end, no more connections are left than the kernel queues.
        let mut room = if is_cut {
            0
        } else if is_over {
            usize::MAX
        } else {
            room
        };
        let (mut left, mut failed) = (false, false);
        for (listener, to) in listening.iter().zip(to) {
            loop {
                if room == 0 {
                    left = true;
                    break;
                }
                match listener.accept() {
                    Ok((inside, _)) => {
                        room -= 1;
                        begin(shared, inside, to.clone());
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    // Perhaps this process has no descriptors left.
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
        }
        if is_cut || (is_over && !left && !failed) {
            return;
        }
        let mut waited = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        if !left && !failed {
            waited.extend(listening.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        }
        let pause = Timespec::try_from(PAUSE).ok().filter(|_| failed);
        let _ = poll(&mut waited, pause.as_ref());
    }
}

/// Starts a thread for a connection.
fn begin(shared: &Arc<Shared>, inside: TcpStream, to: Destination) {
    let inside = Arc::new(inside);
    let number = shared.add(&inside);
    let (all, ours) = (Arc::clone(shared), Arc::clone(&inside));
    let started = Builder::new().stack_size(STACK).spawn(move || {
        carry(&all, number, &ours, &to);
        // The last reference: the connection is closed, or reset, before it counts as over.
        drop(ours);
        all.remove(number);
    });
    if started.is_err() {
        reset(&inside);
        shared.remove(number);
    }
}

/// One connection, from its beginning to its end.
fn carry(shared: &Arc<Shared>, number: u64, inside: &Arc<TcpStream>, to: &Destination) {
    let _ = inside.set_nonblocking(false);
    let _ = inside.set_nodelay(true);
    let outside = match connect(shared, to) {
        Ok(outside) => Arc::new(outside),
        Err(error) => {
            if has_gone(inside) {
                shared.lose(format!("it sent something to {to}, which cannot be reached: {error} (--net)"));
            }
            reset(inside);
            return;
        }
    };
    let _ = outside.set_nodelay(true);
    if let Some(connection) = shared.lock().open.get_mut(&number) {
        connection.outside = Some(Arc::clone(&outside));
    }
    if shared.is_cut() {
        return;
    }
    std::thread::scope(|scope| {
        let down = Builder::new().stack_size(STACK).spawn_scoped(scope, || {
            // An ended program gets nothing more; bytes that it sent may still be in transit.
            if pass(&outside, inside).is_err() && !shared.lock().is_over {
                reset(&outside);
                reset(inside);
            }
        });
        if down.is_err() || pass(inside, &outside).is_err() {
            reset(inside);
            reset(&outside);
        }
        shared.sent(number);
    });
}

/// Connects to the first address that answers.
fn connect(shared: &Shared, to: &Destination) -> Result<TcpStream> {
    let mut last = Error::new(ErrorKind::NotFound, "its name has no address");
    for address in to.look_up()? {
        if shared.is_cut() {
            break;
        }
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// True if the program has sent something and closed the connection already: it cannot see an error
/// any more.
fn has_gone(mut inside: &TcpStream) -> bool {
    if inside.set_nonblocking(true).is_err() {
        return false;
    }
    let (mut block, mut any) = ([0; 4096], false);
    loop {
        match inside.read(&mut block) {
            Ok(0) => return any,
            Ok(_) => any = true,
            Err(_) => return false,
        }
    }
}

/// Passes bytes on, and then the end.
fn pass(mut from: &TcpStream, mut to: &TcpStream) -> Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => return to.shutdown(Shutdown::Write),
            Ok(len) => to.write_all(&block[..len])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes the other side see an error once this is closed, and the reader here see the end.
fn reset(end: &TcpStream) {
    let _ = set_socket_linger(end, Some(Duration::ZERO));
    let _ = end.shutdown(Shutdown::Read);
}
