//! Commits in doubt: the database goes away while a mount commits, and does not come back for as
//! long as the mount waits. In either outcome the written bytes are in the file once, even if
//! another host has written to it meanwhile.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrigger_fuse::fs::{FileSystem, OpenFlags, ROOT};
use outrigger_fuse::shared::SharedOptions;
use outrigger_workload::postgres::{Piece, Proxy};
use rustix::fs::OFlags;

use super::hosts::{Cluster, Host, Open, USER, new_file};
use super::{RDWR, random, reclaim};

/// Which pieces are tried beside each other.
#[derive(Clone, Copy)]
struct Pieces {
    at_once: i64,
    apart: i64,
}

/// A small commit is a round trip or two …
const FEW: Pieces = Pieces { at_once: 8, apart: 1 };
/// … and packs are many. Most of the time all wait. About every other piece is an answer: if it is
/// lost, so is the next question.
const MANY: Pieces = Pieces { at_once: 24, apart: 2 };

const APPEND: OpenFlags = OFlags::WRONLY.union(OFlags::APPEND);

/// A connection to the database that breaks after this many pieces: the last of them arrives, and
/// nothing after it, until [`Way::heal`].
struct Way {
    /// So many.
    pieces: i64,
    proxy: Proxy,
    left: Arc<AtomicI64>,
    is_away: Arc<AtomicBool>,
}

impl Way {
    fn new(cluster: &Cluster, pieces: i64) -> Self {
        let (left, is_away) = (Arc::new(AtomicI64::new(i64::MAX)), Arc::new(AtomicBool::new(false)));
        let (count, away) = (Arc::clone(&left), Arc::clone(&is_away));
        let judge = move || {
            if away.load(Ordering::SeqCst) {
                return Piece::Lose;
            }
            if count.fetch_sub(1, Ordering::SeqCst) == 0 {
                away.store(true, Ordering::SeqCst);
                return Piece::PassAndEnd;
            }
            Piece::Pass
        };
        Self { pieces, proxy: Proxy::start(cluster.server, judge).unwrap(), left, is_away }
    }

    /// A mount that waits for a second.
    fn mount(&self, cluster: &Cluster, options: SharedOptions) -> Host {
        let url = format!("{}&patience=1", self.proxy.url(&cluster.schema));
        cluster.mount_through(&url, options)
    }

    /// From here on pieces count.
    fn begin(&self) {
        self.left.store(self.pieces, Ordering::SeqCst);
    }

    fn is_lost(&self) -> bool {
        self.is_away.load(Ordering::SeqCst)
    }

    fn heal(&self) {
        self.left.store(i64::MAX, Ordering::SeqCst);
        self.is_away.store(false, Ordering::SeqCst);
    }
}

/// The outcome of a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Became {
    /// The mount got the answer.
    Told,
    /// The connection broke, and either nothing has happened or the mount got the answer.
    Lost,
    /// It has happened, and the mount got no answer.
    Outbox,
}

/// Runs `work` with a mount of its own for every piece that may be the last one, or some of them,
/// until the connection does not break any more. `work` is given a number that it has not had
/// before. Some commit has to happen without an answer: as other threads of a mount use the
/// database, too, that may take several tries.
#[track_caller]
fn at_every_piece(
    cluster: &Cluster,
    options: &SharedOptions,
    Pieces { at_once, apart }: Pieces,
    work: impl Fn(&Way, &Host, u64) -> Became + Sync,
) {
    let (outbox, numbers) = (AtomicUsize::new(0), AtomicU64::new(0));
    for attempt in 0..10 {
        for first in (attempt % apart..).step_by((at_once * apart) as usize) {
            let all_lost = AtomicBool::new(true);
            let once = |pieces| {
                let number = numbers.fetch_add(1, Ordering::SeqCst);
                let way = Way::new(cluster, pieces);
                let one = way.mount(cluster, options.clone());
                // So that the connection breaks in the tested step, and not in the mount's first
                // ones.
                one.put(&format!("warm{number}"), b"so").unwrap();
                one.append(&format!("warm{number}"), &random(1000 + number, 200_000)).unwrap();
                one.publish(&format!("warmer{number}"), b"too").unwrap();
                match work(&way, &one, number) {
                    Became::Told => all_lost.store(false, Ordering::SeqCst),
                    Became::Lost => {}
                    Became::Outbox => drop(outbox.fetch_add(1, Ordering::SeqCst)),
                }
                assert_eq!(one.volume.close(|| ()).map_err(|error| error.to_string()), Ok(()), "{pieces}");
            };
            std::thread::scope(|scope| {
                let once = &once;
                (0..at_once).for_each(|at| drop(scope.spawn(move || once(first + at * apart))));
            });
            if !all_lost.into_inner() {
                break;
            }
        }
        if outbox.load(Ordering::SeqCst) > 0 {
            break;
        }
    }
    assert!(outbox.into_inner() > 0, "no commit happened of which the mount was not told");
    // Removes what was being packed when a connection broke.
    reclaim(cluster);
    cluster.check();
}

fn became(was_lost: bool, is_unpublished: bool) -> Became {
    match (was_lost, is_unpublished) {
        (_, true) => Became::Outbox,
        (true, false) => Became::Lost,
        (false, false) => Became::Told,
    }
}

/// Appends to a file, with the way lost at some point of its close, and perhaps by another host
/// before it is there again.
fn appends(cluster: &Cluster, len: usize, pieces: Pieces) {
    let two = cluster.mount();
    at_every_piece(cluster, &SharedOptions::new(2), pieces, |way, one, number| {
        let (mut was_lost, mut is_unpublished) = (false, false);
        for theirs in [&b""[..], b"theirs"] {
            let name = format!("f{number}-{}", theirs.len());
            two.put(&name, b"base").unwrap();
            let ours = random(number, len);
            let open = one.open(&name, APPEND).unwrap();
            open.write(0, &ours).unwrap();
            way.begin();
            let closed = open.close();
            let has_happened = two.cat(&name).unwrap().len() > 4;
            assert!(closed.is_err() || has_happened, "{name}: what was closed is there");
            is_unpublished |= closed.is_err() && has_happened;
            if !theirs.is_empty() {
                two.append(&name, theirs).unwrap();
            }
            was_lost |= way.is_lost();
            way.heal();
            // It goes on by itself: what it could not store is there soon, and nobody has done
            // anything.
            let end = Instant::now() + Duration::from_secs(60);
            let whole = 4 + ours.len() + theirs.len();
            while two.cat(&name).unwrap().len() < whole && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
                if closed.is_err() && !has_happened {
                    one.volume.store_all().unwrap();
                }
            }
            let bytes = two.cat(&name).unwrap();
            let (first, second) = if has_happened { (&ours[..], theirs) } else { (theirs, &ours[..]) };
            assert!(bytes == [b"base", first, second].concat(), "{name}: {} bytes, not {whole}", bytes.len());
            // Nothing else of this mount is refused because of it.
            one.put(&format!("{name}-more"), &random(99 + number, 300_000)).unwrap();
            assert!(one.cat(&name).unwrap() == bytes);
        }
        became(was_lost, is_unpublished)
    });
}

#[test]
fn what_is_appended_is_there_once_whatever_became_of_the_close() {
    let Some(cluster) = Cluster::new() else { return };
    appends(&cluster, 100, FEW);
}

#[test]
#[ignore = "slow: 15 s of the processor; small files are in the quick tests"]
fn what_is_appended_in_packs_is_there_once_whatever_became_of_the_close() {
    let Some(cluster) = Cluster::new() else { return };
    appends(&cluster, 700_000, MANY);
}

#[test]
fn a_file_that_is_written_on_is_what_was_written() {
    let Some(cluster) = Cluster::new() else { return };
    let two = cluster.mount();
    at_every_piece(&cluster, &SharedOptions::new(2), FEW, |way, one, number| {
        let name = format!("f{number}");
        two.put(&name, b"base").unwrap();
        let open = one.open(&name, APPEND).unwrap();
        open.write(0, b"one").unwrap();
        way.begin();
        let synced = open.sync();
        let is_unpublished = synced.is_err() && two.cat(&name).unwrap() == b"baseone";
        let was_lost = way.is_lost();
        open.write(0, b"two").unwrap();
        assert_eq!(one.stat(&name).map(|attr| attr.size).unwrap_or(10), 10, "here it is what was written");
        if is_unpublished {
            two.append(&name, b"theirs").unwrap();
        }
        way.heal();
        open.close().unwrap();
        let wanted: &[u8] = if is_unpublished { b"baseonetheirstwo" } else { b"baseonetwo" };
        assert_eq!(two.cat(&name).unwrap(), wanted, "{name}");
        assert_eq!(one.cat(&name).unwrap(), wanted, "{name}");
        became(was_lost, is_unpublished)
    });
}

#[test]
fn a_file_that_gets_its_first_name_has_it_or_not_and_goes_on() {
    let Some(cluster) = Cluster::new() else { return };
    let two = cluster.mount();
    at_every_piece(&cluster, &SharedOptions::new(2), FEW, |way, one, number| {
        let name = format!("f{number}");
        let (entry, opened) = one.volume.create_anonymous(USER, ROOT, new_file(0o644), RDWR).unwrap();
        let open = Open { host: one, number: entry.attr.number, handle: opened.handle };
        open.write(0, b"first").unwrap();
        way.begin();
        let linked = one.volume.link(USER, open.number, ROOT, name.as_bytes());
        let has_happened = two.find(&name).is_ok();
        let was_lost = way.is_lost();
        way.heal();
        if has_happened {
            assert_eq!(two.cat(&name).unwrap(), b"first", "{name}");
        }
        // A program that got no answer, and sees that the name exists, goes on with it.
        open.write(5, b", second").unwrap();
        open.sync().unwrap();
        open.close().unwrap();
        match two.cat(&name) {
            Ok(bytes) => assert_eq!(bytes, b"first, second", "{name}"),
            Err(_) => assert!(linked.is_err() && !has_happened, "{name}"),
        }
        became(was_lost, linked.is_err() && has_happened)
    });
}

#[test]
#[ignore = "slow: 30 s of the processor and the database's"]
fn what_is_held_of_a_file_that_is_written_is_what_it_is_stored_over() {
    let Some(cluster) = Cluster::new() else { return };
    let two = cluster.mount();
    let reclaiming = Mutex::new(());
    let options = SharedOptions { increment_bytes: 512 << 10, ..SharedOptions::new(2) };
    at_every_piece(&cluster, &options, MANY, |way, one, number| {
        let name = format!("f{number}");
        let bytes = random(number, 3 << 20);
        let held = || {
            let holders = two.store.meta.holders().unwrap();
            let number = one.find(&name).ok()?;
            let holder = holders
                .into_iter()
                .find(|holder| holder.starts_with("early:") && holder.ends_with(&format!(":{number}")))?;
            two.store.meta.held(&holder).unwrap().pop().map(|root| root.len())
        };
        let open = one.open(&name, RDWR | OFlags::CREATE).unwrap();
        let (begin, rest) = bytes.split_at(1 << 20);
        open.write(0, begin).unwrap();
        // One round is held.
        let end = Instant::now() + Duration::from_secs(60);
        while held().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let before = held();
        way.begin();
        open.write(1 << 20, &rest[..1 << 20]).unwrap();
        // The thread that stores it has given up (it waits for one second, and half of one more),
        // or is through.
        std::thread::sleep(Duration::from_millis(2500));
        let was_lost = way.is_lost();
        way.heal();
        let is_unpublished = was_lost && held() > before;
        if is_unpublished {
            // Content that is not held is reclaimed.
            let _alone = reclaiming.lock().unwrap();
            reclaim(&cluster);
        }
        one.store.packs.set_cache_bytes(0);
        open.write(2 << 20, &rest[1 << 20..]).unwrap();
        let closed = open.close();
        assert_eq!(closed, Ok(()), "{name} {:?}", cluster.said.lock().unwrap());
        assert!(two.cat(&name).unwrap() == bytes, "{name}");
        became(was_lost, is_unpublished)
    });
}
