//! Offers of a shared mount to agents on other hosts, if it is told to make them: to read files
//! while they are written, and to store them for it.
//!
//! It listens on an address that an [`Offer`] in the registry names, with the key that it is known
//! by (`sealed.rs`): all that is said is encrypted. A client sends a line and gets a line, as on
//! the mount's socket, but these only:
//!
//! | line | answer |
//! | --- | --- |
//! | `session SESSION` (the first) | `ok` once the session is confirmed, see below |
//! | `follow INODE FROM` | as on the socket; and `asked` when the agent that stores the file shall commit what it has |
//! | `input JOB NUMBER` | as on the socket |
//! | `carry INODE` | `yes` if the client stores the file from now on, while it reads it; `no` |
//! | `stored INODE LENGTH` | `yes` if the mount takes over these bytes, which are stored and held; `no` |
//!
//! **Who may.** Only who may write to the database. The mount greets with a number by chance; the
//! client adds a record of that name to the registry, with its session in it, which lives; the
//! mount finds it there, and removes it. So there is no secret to be read, not by a role either
//! that may read the database only, and nothing that is said is of use in another conversation. The
//! client in its turn knows the mount by the key in the offer.
//!
//! **Bounds.** There are at most [`CLIENTS_MAX`] conversations. Each has [`DEADLINE`] to agree on
//! the encryption, and as long for each of the at most [`WHO_MAX`] bytes that name its session. The
//! mount ends a conversation if the peer takes no answer for [`DEADLINE`], or says nothing for
//! [`IDLE_MAX`]; the kernel notices a peer whose host has gone. When its conversation ends, a
//! client stores nothing for the mount any more.

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_format::checksum;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::registry::Record;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::line::read_line;
use super::sealed::{Identity, PublicKey, Sealed};
use super::{TAIL_WAIT, answer, hand_out, input};
use crate::shared::SharedVolume;

/// What a mount says first, before its number by chance.
pub(super) const GREETING: &str = "outrigger follow 1 ";
/// How long a step of the handshake may take, and the peer to accept an answer.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes at most of the line that names the client's session.
const WHO_MAX: u64 = 40;
/// How long it may take to find out whether a mount can be reached.
const REACHED_WITHIN: Duration = Duration::from_secs(2);
/// How long a client waits for an answer: taking over waits for what is just being stored.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// How long a client may say nothing. Its program may be slow.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// After this long the kernel asks a silent host if it is there, this often.
const ASKED_AFTER: Duration = Duration::from_secs(15);
const ASKED_TIMES: u32 = 3;
/// Conversations at once.
const CLIENTS_MAX: usize = 64;

/// Where a mount offers its open files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The mount.
    pub mount: SessionId,
    /// The address.
    pub address: SocketAddr,
    /// The [`place`] there.
    pub place: String,
    /// The mount's key.
    pub key: PublicKey,
}

impl Record for Offer {
    const KIND: &'static str = "open-files-offer";

    fn name(&self) -> String {
        self.mount.0.to_string()
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.mount)
    }
}

impl Offer {
    /// True if a mount answers there, as seen from here.
    pub fn is_reached(&self) -> bool {
        let greeting = self.talk(REACHED_WITHIN).and_then(|talk| read_line(&mut BufReader::new(talk)));
        greeting.is_ok_and(|greeting| greeting.starts_with(GREETING))
    }

    /// Begins a conversation with this mount. Connecting, and each wait for the peer, may take no
    /// longer than `within`.
    ///
    /// # Errors
    /// When it cannot be reached, and when a peer with another key answers.
    pub fn talk(&self, within: Duration) -> io::Result<Sealed> {
        let socket = TcpStream::connect_timeout(&self.address, within)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(within))?;
        self.key.connect(socket, within)
    }
}

/// Identifies the directory in which mounts and agents of a store run: two with the same place find
/// each other's sockets.
pub fn place(store: &Store) -> String {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let dir = std::fs::metadata(store.home().path()).map(|dir| (dir.dev(), dir.ino())).unwrap_or_default();
    format!("{:016x}", checksum(&[&boot, format!("{dir:?}").as_bytes()]))
}

/// The offer of the mount that has this session, if it makes one.
///
/// # Errors
/// Those of the database.
pub fn offer_of(store: &Store, mount: SessionId) -> Result<Option<Offer>> {
    Ok(store.registry().find(|offer: &Offer| offer.mount == mount)?.map(|read| read.record))
}

/// A client shows by it that it may write: only who may write to the database can add it.
#[derive(Serialize, Deserialize)]
struct KnockRecord {
    /// The mount's number by chance.
    challenge: String,
    /// The client.
    session: SessionId,
}

impl Record for KnockRecord {
    const KIND: &'static str = "knock";

    fn name(&self) -> String {
        self.challenge.clone()
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }
}

/// The client's end of such a record, which is removed when this is dropped.
pub(super) struct Knock<'a>(&'a Store, KnockRecord);

pub(super) fn knock<'a>(store: &'a Store, challenge: &str, session: SessionId) -> Result<Knock<'a>> {
    let is_one = challenge.len() == 32 && challenge.bytes().all(|byte| byte.is_ascii_hexdigit());
    let record = KnockRecord { challenge: challenge.to_owned(), session };
    if !is_one || !store.registry().add(&record)? {
        return Err(Error::new(ErrorKind::Invalid, "the mount greets in a way that is not understood"));
    }
    Ok(Knock(store, record))
}

impl Drop for Knock<'_> {
    fn drop(&mut self) {
        // Mostly the mount has done it.
        let _ = self.0.registry().remove(&self.1);
    }
}

/// Removes what mounts and agents have left that are gone.
///
/// # Errors
/// Those of the database.
pub fn sweep_offers(store: &Store) -> Result<()> {
    store.sweep_records::<Offer>()?;
    store.sweep_records::<KnockRecord>()
}

/// The mount's end. Dropping it ends all conversations.
pub struct Remote {
    store: Arc<Store>,
    /// The offer, by the mount's session at the moment.
    offer: Arc<Mutex<Offer>>,
    over: Arc<AtomicBool>,
}

struct Serving {
    volume: Weak<SharedVolume>,
    store: Arc<Store>,
    identity: Identity,
    over: Arc<AtomicBool>,
    clients: AtomicUsize,
}

impl Remote {
    /// Offers the open files of a mount at an address that other hosts reach; until this is
    /// dropped.
    ///
    /// # Errors
    /// `Invalid` for an address that other hosts cannot use; those of the database.
    pub fn start(store: &Arc<Store>, volume: &Arc<SharedVolume>, listener: TcpListener) -> Result<Self> {
        let what = || "cannot offer open files to other hosts".to_string();
        let address = listener.local_addr().context(what)?;
        if address.ip().is_unspecified() {
            let why = format!(
                "{address} says nothing to other hosts: give the address that they reach this one by"
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        // What is left over disturbs nobody.
        let _ = sweep_offers(store);
        let (identity, over) = (Identity::new()?, Arc::new(AtomicBool::new(false)));
        let offer = Offer { mount: volume.session_id(), address, place: place(store), key: identity.key() };
        let offer = Arc::new(Mutex::new(offer));
        let serving = Arc::new(Serving {
            volume: Arc::downgrade(volume),
            store: Arc::clone(store),
            identity,
            over: Arc::clone(&over),
            clients: AtomicUsize::new(0),
        });
        let thread = std::thread::Builder::new().name("offers".to_string());
        thread.spawn(move || accept(&serving, &listener)).context(what)?;
        let (own, of) = (Arc::clone(&offer), Arc::clone(store));
        let register = move |session: SessionId| {
            let mut offer = own.lock().unwrap_or_else(PoisonError::into_inner);
            offer.mount = session;
            of.registry().put(&*offer)
        };
        let register = Arc::new(register);
        let again = Arc::clone(&register);
        volume.when_renewed(move |session| again(session));
        register(volume.session_id())?;
        volume.has_delegates();
        Ok(Self { store: Arc::clone(store), offer, over })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let offer = self.offer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // If this fails it goes with what other mounts have left.
        let _ = self.store.registry().remove(&offer);
        // Wakes the thread that waits for clients.
        let _ = TcpStream::connect_timeout(&offer.address, DEADLINE);
    }
}

fn accept(serving: &Arc<Serving>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if serving.over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Too many open files just now.
            outrigger_clock::sleep(TAIL_WAIT);
            continue;
        };
        if serving.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            serving.clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let its = Arc::clone(serving);
        let talk = move || {
            let _ = serve(&its, stream);
            its.clients.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("offer".to_string()).spawn(talk).is_err() {
            serving.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Files that one client stores.
struct Delegated {
    volume: Weak<SharedVolume>,
    session: SessionId,
    inodes: BTreeSet<u64>,
}

impl Drop for Delegated {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.upgrade() {
            self.inodes.iter().for_each(|inode| volume.ends_delegation(*inode, self.session));
        }
    }
}

fn serve(serving: &Serving, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(DEADLINE))?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(&socket, ASKED_AFTER)?;
    sockopt::set_tcp_keepcnt(&socket, ASKED_TIMES)?;
    let mut talk = BufReader::new(serving.identity.accept(socket, DEADLINE)?);
    let challenge = clock::random::<16>().map_err(io::Error::other)?;
    let challenge: String = challenge.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(talk.get_mut(), "{GREETING}{challenge}")?;
    // A bounded line: a client that sends a byte now and then blocks nobody for long.
    let who = read_line(&mut talk.by_ref().take(WHO_MAX))?;
    let session = match identify(&serving.store, &challenge, &who) {
        Ok(session) => session,
        Err(error) => return answer(talk.get_mut(), Err(error)),
    };
    answer(talk.get_mut(), Ok("ok".to_string()))?;
    talk.get_ref().set_read_timeout(Some(IDLE_MAX))?;
    let mut delegated = Delegated { volume: serving.volume.clone(), session, inodes: BTreeSet::new() };
    loop {
        let line = read_line(&mut talk)?;
        let Some(volume) = serving.volume.upgrade().filter(|_| !serving.over.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        if line.is_empty() {
            return Ok(());
        }
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers: Vec<u64> = rest.split(' ').map_while(|number| number.parse().ok()).collect();
        let yes = |is: bool| if is { "yes" } else { "no" }.to_string();
        let answers = talk.get_mut();
        match (word, numbers.as_slice()) {
            ("follow", [inode, from]) => {
                let tailed = volume.tail_as(Some(session), *inode, *from, TAIL_WAIT);
                hand_out(answers, tailed)?;
            }
            ("input", [job, number]) => {
                let state = volume.input_of(JobId(*job), u32::try_from(*number).unwrap_or(u32::MAX));
                answer(answers, Ok(input(state)))?;
            }
            ("carry", [inode]) => {
                let carries = volume.carry(*inode, session);
                if carries {
                    delegated.inodes.insert(*inode);
                }
                answer(answers, Ok(yes(carries)))?;
            }
            ("stored", [inode, len]) if delegated.inodes.contains(inode) => {
                answer(answers, volume.take_delegated(*inode, *len, session).map(yes))?;
            }
            _ => {
                let error = Error::new(ErrorKind::Invalid, "the mount does not understand this");
                answer(answers, Err(error))?;
            }
        }
    }
}

/// Confirms the session of this conversation: see the module.
fn identify(store: &Store, challenge: &str, line: &str) -> Result<SessionId> {
    let denied = || Error::new(ErrorKind::Denied, "only clients that may write to the store can connect");
    let session: u64 = line.strip_prefix("session ").and_then(|id| id.parse().ok()).ok_or_else(denied)?;
    let session = SessionId(session);
    // It is removed by whoever finds it as it must be.
    let is_its = |knock: &KnockRecord| knock.challenge == challenge && knock.session == session;
    let Some(knock) = store.registry().find(is_its)? else { return Err(denied()) };
    if !store.registry().take_read(&knock)? {
        return Err(denied());
    }
    if store.is_live(session)? { Ok(session) } else { Err(denied()) }
}
