//! Delegated uploads by an agent on another host: which content the mount takes over, which claims
//! it does not believe, and which clients it lets in.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use outrigger_fuse::control::{Client, Offer, Remote, offer_of};
use outrigger_fuse::live::Tailed;
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_fuse::shared::SharedOptions;
use outrigger_store::increments::delegated_to;
use outrigger_store::local::put::made_now;
use outrigger_store::meta::jobs::SplitState;
use outrigger_store::meta::{SessionId, SessionKind};
use outrigger_store::policy::Policies;
use outrigger_store::session::Session;
use outrigger_store::write::{
    CommitWhen, Content, FileItem, Item, Oracle, Progress, Target, WriteOptions, Writer,
};
use outrigger_store::{ErrorKind, Store};

use super::follow::{MAKE, Site, wait_closed};
use super::hosts::Host;
use super::random;

/// How the agent behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// As it should.
    Well,
    /// It hangs up when it has read half of the file.
    HangsUp,
    /// It says that it cannot store the file.
    CannotStore,
    /// It says that it has stored the file, and has not.
    Lies,
    /// Its content is shorter than it says.
    IsShort,
    /// It says that it has more than it was given.
    HasMore,
}

struct Delegate {
    store: Arc<Store>,
    session: Arc<Session>,
    mount: SessionId,
}

impl Delegate {
    fn new(site: &Site, host: &Host) -> Self {
        let store = Arc::new(site.cluster.store());
        let session = store.session(SessionKind::Writer, "job 0").unwrap();
        Self { store, session, mount: host.volume.session_id() }
    }

    fn reach(&self) -> Client {
        Client::reach(&self.store, self.mount, self.session.id()).unwrap().expect("it is offered")
    }

    fn keep(&self, inode: u64, bytes: &[u8]) {
        let policies = Policies::load(&self.store).unwrap();
        let policy = policies.store_default();
        let chunk_max = policies.chunk_max().unwrap();
        let options = WriteOptions { threads: 2, chunk_max, commit: CommitWhen::AtTheEnd };
        let mut writer = Writer::start(&self.store, &self.session, &options, &Arc::new(Progress::default()));
        let holder = delegated_to(inode, self.mount, self.session.id());
        writer
            .submit(Item::File(FileItem {
                to: Target::Orphan { inode, holder },
                attributes: made_now(outrigger_format::catalogue::FileKind::File, 0o600),
                content: Content::Bytes(bytes.to_vec()),
                chunker: policy.chunker,
                codec: policy.codec,
                dedup: policy.dedup,
                frame: None,
                oracle: Oracle::Off,
            }))
            .unwrap();
        writer.finish().unwrap();
    }

    fn let_go(&self, inode: u64) {
        let holder = delegated_to(inode, self.mount, self.session.id());
        self.store.meta.release(&holder, None).unwrap();
    }

    /// Reads a file until it is closed, and stores it. Returns the bytes that it has read, and how
    /// often the mount took over its content.
    fn carry(&self, inode: u64, way: Way, half: u64, begins: &Barrier) -> (Vec<u8>, usize) {
        let (mut client, mut read, mut taken) = (self.reach(), Vec::new(), 0);
        assert!(client.carry(inode).unwrap());
        begins.wait();
        loop {
            match client.tail(inode, read.len() as u64).unwrap() {
                Tailed::Data(bytes) => read.extend(bytes),
                Tailed::Nothing => {}
                Tailed::Asked => {
                    let len = read.len() as u64;
                    let say = match way {
                        Way::Well => {
                            self.keep(inode, &read);
                            len
                        }
                        Way::IsShort => {
                            self.keep(inode, &read[1..]);
                            len
                        }
                        Way::HasMore => {
                            self.keep(inode, &[&read[..], b"x"].concat());
                            len + 1
                        }
                        Way::CannotStore => 0,
                        _ => len,
                    };
                    taken += usize::from(client.stored(inode, say).unwrap_or(false));
                }
                Tailed::Closed => break,
            }
            if way == Way::HangsUp && read.len() as u64 > half {
                break;
            }
        }
        (read, taken)
    }
}

impl Site {
    fn mount_offering(&self, staging_bytes: u64) -> (Host, Remote) {
        self.mount_offering_as(SharedOptions {
            staging_bytes,
            increment_bytes: 1 << 40,
            ..SharedOptions::new(2)
        })
    }

    fn mount_offering_as(&self, options: SharedOptions) -> (Host, Remote) {
        let host = self.mount_as(options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Remote::start(&host.store, &host.volume, listener).unwrap();
        (host, remote)
    }
}

fn new_bytes(host: &Host) -> u64 {
    let mut status = Status::default();
    host.volume.watch(&mut status);
    status.new_bytes
}

#[test]
fn what_is_stored_elsewhere_is_taken_over_at_each_sync_and_at_the_close_and_the_mount_stores_none_of_it() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering(64 << 20);
    let two = site.mount();
    let delegate = Delegate::new(&site, &one);
    let data = random(1, 5 << 20);
    let open = one.open("raw", MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    site.claim(job);
    let begins = Barrier::new(2);
    let (read, taken) = std::thread::scope(|scope| {
        let delegated = scope.spawn(|| delegate.carry(number, Way::Well, 0, &begins));
        begins.wait();
        for (at, part) in data.chunks(1 << 20).enumerate() {
            open.write((at as u64) << 20, part).unwrap();
            if at == 2 {
                open.sync().unwrap();
                assert!(two.cat("raw").unwrap() == data[..3 << 20], "synced is synced");
            }
        }
        open.close().unwrap();
        delegated.join().unwrap()
    });
    assert!(read == data && taken == 2, "{taken}");
    wait_closed(&one, number);
    assert!(two.cat("raw").unwrap() == data && site.input(job) == data);
    assert!(!site.split(job).range.is_open() && site.split(job).attempt == 1, "what was read counts");
    assert_eq!(new_bytes(&one), 0, "the mount itself has stored nothing");
    delegate.let_go(number);
    site.nothing_is_left();
    site.reclaim();
    assert!(two.cat("raw").unwrap() == data);
    drop((remote, one, two));
    site.cluster.check();
}

/// Two files are written at once, and together they are longer than the log. The agents' content
/// makes room, and this mount stores nothing of either file.
#[test]
fn room_is_made_of_what_is_stored_elsewhere_and_the_rest_waits_for_that() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering_as(SharedOptions {
        staging_bytes: 16 << 20,
        increment_bytes: 8 << 20,
        request_threads: 8,
        ..SharedOptions::new(2)
    });
    let two = site.mount();
    let (site, one, two) = (&site, &one, &two);
    let was_partly_stored = std::thread::scope(|scope| {
        let writers = ["raw1", "raw2"].map(|name| {
            let open = one.open(name, MAKE).unwrap();
            let job = site.newest();
            site.claim(job);
            scope.spawn(move || {
                let (number, delegate) = (open.number, Delegate::new(site, one));
                let (data, begins) = (random(number, 20 << 20), Barrier::new(2));
                let ((read, taken), is_partly_stored) = std::thread::scope(|scope| {
                    let delegated = scope.spawn(|| delegate.carry(number, Way::Well, 0, &begins));
                    begins.wait();
                    for (at, part) in data.chunks(1 << 20).enumerate() {
                        open.write((at as u64) << 20, part).unwrap();
                    }
                    // No sync has happened yet: the agent's content made room.
                    let stored = two.cat(name).unwrap();
                    assert!(data.starts_with(&stored));
                    open.close().unwrap();
                    (delegated.join().unwrap(), !stored.is_empty())
                });
                assert!(read == data && taken > 0, "{taken}");
                wait_closed(one, number);
                assert!(two.cat(name).unwrap() == data && site.input(job) == data);
                assert_eq!(site.split(job).attempt, 1, "what was read counts");
                delegate.let_go(number);
                is_partly_stored
            })
        });
        writers.map(|writer| writer.join().unwrap())
    });
    assert!(was_partly_stored.contains(&true), "the log had no room for both of them");
    assert!(new_bytes(one) < 64 << 10, "the mount itself has stored no data");
    site.nothing_is_left();
    site.reclaim();
    for name in ["raw1", "raw2"] {
        assert_eq!(two.cat(name).unwrap().len(), 20 << 20);
    }
    drop(remote);
    site.cluster.check();
}

#[test]
fn who_syncs_a_large_file_before_anybody_has_come_waits_for_that_and_once_for_nobody() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering(64 << 20);
    let two = site.mount();
    let data = random(5, 9 << 20);
    let open = one.open("raw-near", MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    site.claim(job);
    let delegate = Delegate::new(&site, &one);
    let (begins, syncs) = (Barrier::new(1), Barrier::new(2));
    std::thread::scope(|scope| {
        let delegated = scope.spawn(|| {
            syncs.wait();
            // Both orders are fine: the sync may wait by then, or not yet.
            std::thread::sleep(Duration::from_millis(500));
            delegate.carry(number, Way::Well, 0, &begins)
        });
        open.write(0, &data).unwrap();
        syncs.wait();
        open.sync().unwrap();
        assert!(two.cat("raw-near").unwrap() == data, "synced is synced");
        open.close().unwrap();
        let (read, taken) = delegated.join().unwrap();
        assert!(read == data && taken == 1, "{taken}");
    });
    assert_eq!(new_bytes(&one), 0, "the mount itself has stored nothing");
    wait_closed(&one, number);
    delegate.let_go(number);
    // And no agent comes.
    for name in ["raw2-near", "raw3-near"] {
        let open = one.open(name, MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        site.claim(job);
        open.write(0, &data[1..]).unwrap();
        open.sync().unwrap();
        assert!(two.cat(name).unwrap() == data[1..]);
        open.close().unwrap();
        wait_closed(&one, number);
        assert!(site.input(job) == data[1..]);
    }
    assert!(new_bytes(&one) > 0, "what nobody came for the mount has stored");
    site.nothing_is_left();
    drop((remote, one, two));
    site.cluster.check();
}

#[test]
fn in_any_doubt_the_mount_stores_the_file_itself_and_nothing_is_held_for_ever() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering(64 << 20);
    let two = site.mount();
    let ways = [Way::HangsUp, Way::CannotStore, Way::Lies, Way::IsShort, Way::HasMore, Way::Well];
    for (seed, way) in ways.into_iter().enumerate() {
        let delegate = Delegate::new(&site, &one);
        let name = format!("raw{seed}");
        let mut data = random(seed as u64 + 7, 2 << 20);
        let open = one.open(&name, MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        site.claim(job);
        // In the last round the writer changes bytes that were read.
        let spoils = way == Way::Well;
        let before = new_bytes(&one);
        let begins = Barrier::new(2);
        let taken = std::thread::scope(|scope| {
            let delegated = scope.spawn(|| delegate.carry(number, way, 1 << 20, &begins));
            begins.wait();
            for (at, part) in data.chunks(1 << 20).enumerate() {
                open.write((at as u64) << 20, part).unwrap();
            }
            if spoils {
                // The synced bytes are taken over; a change after that makes another content.
                open.sync().unwrap();
                open.write(5, b"changed").unwrap();
                open.write(2 << 20, &[7; 300_000]).unwrap();
            }
            open.close().unwrap();
            delegated.join().unwrap().1
        });
        if spoils {
            data[5..12].copy_from_slice(b"changed");
            data.extend([7; 300_000]);
        }
        wait_closed(&one, number);
        assert_eq!(taken, usize::from(spoils), "{way:?}");
        assert!(two.cat(&name).unwrap() == data, "{way:?}");
        assert!(site.input(job) == data, "{way:?}");
        let state = if spoils { SplitState::Waiting } else { SplitState::Running };
        assert_eq!(site.split(job).state, state, "{way:?}: what was read counts, or does not");
        // The chunks that the agent stored all the same are found.
        let stores_all = matches!(way, Way::HangsUp | Way::CannotStore | Way::Lies);
        assert!(!stores_all || new_bytes(&one) >= before + data.len() as u64, "{way:?}: it has stored it");
        // The agent goes without a word: the collector's next run releases what it held.
        drop(delegate);
        site.reclaim();
        assert!(two.cat(&name).unwrap() == data, "{way:?}");
        site.nothing_is_left();
    }
    drop((remote, one, two));
    site.cluster.check();
}

#[test]
fn who_cannot_write_to_the_database_is_not_let_in_and_a_mount_that_ends_offers_nothing() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering(64 << 20);
    let delegate = Delegate::new(&site, &one);
    let offer = offer_of(&delegate.store, delegate.mount).unwrap().unwrap();
    assert!(offer.is_reached());
    let open = one.open("raw", MAKE).unwrap();
    open.write(0, b"secret").unwrap();
    let say = |line: &[u8]| {
        let mut talk = BufReader::new(offer.talk(Duration::from_secs(60)).unwrap());
        let mut greeting = String::new();
        talk.read_line(&mut greeting).unwrap();
        assert!(greeting.starts_with("outrigger follow 1 "));
        // It may have hung up already.
        let stream = talk.get_mut();
        let _ = stream
            .write_all(line)
            .and_then(|()| stream.write_all(format!("\nfollow {} 0\n", open.number).as_bytes()));
        talk.lines().map_while(Result::ok).collect::<Vec<_>>()
    };
    // A live session, which everybody may know.
    for line in [
        format!("session {}", delegate.session.id().0),
        "session 12345".into(),
        format!("follow {} 0", open.number),
    ] {
        let said = say(line.as_bytes());
        assert!(said.len() == 1 && said[0].starts_with("error Denied"), "{line}: {said:?}");
    }
    // The mount does not read on after the first words, so the answer may be lost with the
    // connection.
    let said = say(&vec![b'x'; 1 << 20]);
    assert!(said.iter().all(|line| line.starts_with("error Denied")), "a line without an end: {said:?}");
    let mut client = delegate.reach();
    assert_eq!(client.tail(open.number, 0).unwrap(), Tailed::Data(b"secret".to_vec()));
    for line in ["stored", "status", "hold", "rules", "next {}"] {
        assert_eq!(client.ask(line).unwrap_err().kind(), ErrorKind::Invalid, "{line}");
    }
    // A client cannot report a file that it does not carry, and cannot carry a file that is not
    // being written.
    assert_eq!(client.ask(&format!("stored {} 6", open.number)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!client.carry(open.number + 1000).unwrap());
    assert!(client.carry(open.number).unwrap());
    let other = Delegate::new(&site, &one);
    assert!(!other.reach().carry(open.number).unwrap(), "one at a time");
    open.close().unwrap();
    assert_eq!(site.store.meta.records().records("knock").unwrap(), [], "they were used");
    drop(remote);
    assert_eq!(offer_of(&delegate.store, delegate.mount).unwrap(), None);
    assert!(Client::reach(&delegate.store, delegate.mount, delegate.session.id()).unwrap().is_none());
    drop(client);
    // One that was killed has left its note; the next one removes it.
    let (two, second) = site.mount_offering(64 << 20);
    std::mem::forget(second);
    drop(two);
    let (three, third) = site.mount_offering(64 << 20);
    assert_eq!(site.store.registry().all::<Offer>().unwrap().len(), 1);
    drop((third, three));
}

/// An eavesdropper that passes on the conversation with this address, and records it. Returns where
/// it listens.
fn overhear(to: std::net::SocketAddr, heard: &Arc<Mutex<Vec<u8>>>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, heard) = (listener.local_addr().unwrap(), Arc::clone(heard));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(mount)) = (client, TcpStream::connect(to)) else { return };
            let ways = [
                (client.try_clone().unwrap(), mount.try_clone().unwrap()),
                (mount.try_clone().unwrap(), client.try_clone().unwrap()),
            ];
            for (mut from, mut to) in ways {
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || {
                    let mut room = vec![0; 64 << 10];
                    while let Ok(len @ 1..) = from.read(&mut room) {
                        heard.lock().unwrap().extend(&room[..len]);
                        if to.write_all(&room[..len]).is_err() {
                            return;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

fn contains(heard: &[u8], what: &[u8]) -> bool {
    heard.windows(what.len()).any(|window| window == what)
}

#[test]
fn who_is_in_between_hears_nothing_and_who_takes_a_mounts_place_is_not_spoken_to() {
    let Some(site) = Site::new() else { return };
    let (one, remote) = site.mount_offering(64 << 20);
    let delegate = Delegate::new(&site, &one);
    let registry = site.store.registry();
    let offer = offer_of(&delegate.store, delegate.mount).unwrap().unwrap();
    let heard = Arc::default();
    let between = overhear(offer.address, &heard);
    registry.put(&Offer { address: between, ..offer.clone() }).unwrap();
    let open = one.open("raw", MAKE).unwrap();
    let secret = b"nobody else is to know this".repeat(1000);
    open.write(0, &secret).unwrap();
    let mut client = delegate.reach();
    assert_eq!(client.tail(open.number, 0).unwrap(), Tailed::Data(secret.clone()));
    let said_to_it = format!("follow {}", open.number);
    {
        let heard = heard.lock().unwrap();
        assert!(heard.len() > secret.len(), "it was overheard");
        assert!(!contains(&heard, &secret[..27]) && !contains(&heard, b"outrigger follow"));
        assert!(!contains(&heard, said_to_it.as_bytes()));
    }
    drop(client);
    open.close().unwrap();
    // Another mount listens there.
    let (two, other) = site.mount_offering(64 << 20);
    let theirs = offer_of(&delegate.store, two.volume.session_id()).unwrap().unwrap();
    assert!(theirs.is_reached());
    registry.put(&Offer { address: theirs.address, ..offer }).unwrap();
    assert!(!offer_of(&delegate.store, delegate.mount).unwrap().unwrap().is_reached());
    assert!(Client::reach(&delegate.store, delegate.mount, delegate.session.id()).unwrap().is_none());
    assert_eq!(site.store.meta.records().records("knock").unwrap(), [], "nothing was asked for");
    drop((remote, other, one, two));
    site.cluster.check();
}
