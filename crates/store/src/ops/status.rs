//! Who uses a store just now, and which work is waiting: for the people who run it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::errors::{self, ErrorsStatus};
use super::mounts::{self, MountStatus};
use crate::backend::{Fill, Location, Place};
use crate::copy::CopyNote;
use crate::error::Result;
use crate::gc::{Collecting, LastGc};
use crate::meta::{SessionKind, SessionOwner, SessionRow, is_gone};
use crate::store::Store;

/// The state of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It renews its lease.
    Live,
    /// It is of this host, and its process is gone: the next collector here ends it.
    Gone,
    /// Its lease is over, by the database's clock: the next collector anywhere ends it.
    Over,
}

/// One session.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Its number.
    pub id: u64,
    /// Seconds that are left of its lease, by the database's clock.
    pub lease_left_secs: u64,
    /// Its purpose.
    pub kind: SessionKind,
    /// Its state.
    pub standing: Standing,
    /// The process that it belongs to.
    pub owner: SessionOwner,
    /// Generations that it has not acknowledged: a collector waits for it.
    pub lag: u64,
    /// Locks on files that its programs hold.
    pub locks: u64,
}

/// Packs in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacksStatus {
    /// How many.
    pub packs: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// One place of packs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierStatus {
    /// Where it is.
    pub place: String,
    /// Bytes of packs there. With several places, only directories are counted; the last place has
    /// the rest.
    pub bytes: Option<u64>,
    /// How much of it new packs may use.
    pub bound: Option<Fill>,
    /// Free bytes of its file system, for a directory.
    pub free_bytes: Option<u64>,
}

/// The places of packs, the first one first. While they do not answer, only their names.
fn tiers(store: &Store, packs: &BTreeMap<&'static str, PacksStatus>) -> Vec<TierStatus> {
    let answers = store.backend.trouble().is_none();
    let free = |dir: &Path| {
        let system = rustix::fs::statvfs(dir).ok().filter(|_| answers)?;
        Some(system.f_bavail * system.f_frsize)
    };
    let all: u64 = packs.iter().filter(|(state, _)| **state != "writing").map(|(_, packs)| packs.bytes).sum();
    let one = |place: String, dir: Option<&Path>| {
        vec![TierStatus { place, bytes: Some(all), bound: None, free_bytes: dir.and_then(free) }]
    };
    match (&store.config.packs, store.backend.tiers()) {
        (Some(Location::Tiers(_)), Some(tiers)) => {
            let (mut above, last) = (0, tiers.places().len() - 1);
            let of = |(at, place): (usize, &Place)| {
                let dir = match &place.tier.location {
                    Location::Directory(dir) => Some(dir.as_path()),
                    _ => None,
                };
                let counted = dir.filter(|_| answers).and_then(|_| place.bytes().ok());
                above += counted.unwrap_or(0);
                let rest = (at == last && answers).then(|| all.saturating_sub(above));
                TierStatus {
                    place: place.tier.location.to_string(),
                    bytes: counted.or(rest),
                    bound: place.tier.fill,
                    free_bytes: dir.and_then(free),
                }
            };
            tiers.places().iter().enumerate().map(of).collect()
        }
        (Some(Location::Directory(dir)), _) => one(Location::Directory(dir.clone()).to_string(), Some(dir)),
        (Some(location), _) => one(location.to_string(), None),
        (None, _) => one("in the store's directory".to_owned(), Some(store.home().path())),
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Status {
    /// Sessions that are not over, by their numbers.
    pub sessions: Vec<SessionStatus>,
    /// Where it is mounted.
    pub mounts: Vec<MountStatus>,
    /// The last errors that mounts and agents met.
    pub errors: Vec<ErrorsStatus>,
    /// The last run of the collector that was completed. `None` for an unmodified copy, whose
    /// record is the source's.
    pub last_gc: Option<LastGc>,
    /// The phase of the collector that runs just now.
    pub collecting: Option<Collecting>,
    /// The places of packs.
    pub tiers: Vec<TierStatus>,
    /// Packs by their state.
    pub packs: BTreeMap<&'static str, PacksStatus>,
    /// Inline chunks, which wait to be packed …
    pub inline_chunks: u64,
    /// … and their bytes.
    pub inline_bytes: u64,
    /// Owners of holds, mostly mounts.
    pub holders: Vec<String>,
    /// Snapshots.
    pub snapshots: u64,
    /// Bytes that the database takes; 0 when that cannot be found out.
    pub database_bytes: u64,
    /// What is wrong with the packs' place just now.
    pub trouble: Option<String>,
    /// The source of a copy, until the copy itself is changed.
    pub copy: Option<CopyNote>,
    /// See [`mounts::unsaved`].
    pub unsaved: Vec<PathBuf>,
}

/// Asks the database.
///
/// # Errors
/// When it does not answer.
pub fn status(store: &Store) -> Result<Status> {
    let rows = store.meta.sessions()?;
    let acknowledged = |row: &SessionRow| Some(row.acknowledged).filter(|number| *number != u64::MAX);
    // Read after the rows, so that no session can be ahead of it. The newest acknowledgement would
    // not do: a single writer that hangs has no other to lag behind.
    let newest = store.meta.generation()?;
    let locks = store.locks_dir();
    let held = store.meta.file_locks().map(|locks| locks.lock_counts()).transpose()?.unwrap_or_default();
    let sessions = rows.iter().map(|row| {
        let standing = match (row.lease_is_over, is_gone(row, Some(&locks))) {
            (true, _) => Standing::Over,
            (false, true) => Standing::Gone,
            (false, false) => Standing::Live,
        };
        let lag = newest.saturating_sub(acknowledged(row).unwrap_or(newest));
        let locks = held.iter().find(|(session, _)| *session == row.id).map_or(0, |(_, count)| *count);
        let (id, kind, owner) = (row.id.0, row.kind, row.owner.clone());
        SessionStatus { id, lease_left_secs: row.lease_left_secs, kind, standing, owner, lag, locks }
    });
    let sessions: Vec<SessionStatus> = sessions.collect();
    let mut packs = BTreeMap::new();
    for sum in store.meta.pack_sums()? {
        packs.insert(sum.state.name(), PacksStatus { packs: sum.packs, bytes: sum.bytes });
    }
    let inline = store.meta.inline().inline_owners()?;
    let note = CopyNote::read(&*store.meta)?;
    let given_out = store.meta.counters()?;
    let copy = note.filter(|note| note.counters() == given_out);
    let now = store.meta.now()?;
    let is_live = |session: &SessionStatus, id: u64| session.id == id && session.standing == Standing::Live;
    let collecting = Collecting::read(&*store.meta, now)?
        .filter(|run| sessions.iter().any(|session| is_live(session, run.session.0)));
    Ok(Status {
        collecting,
        tiers: tiers(store, &packs),
        mounts: mounts::mounts(&*store.meta, &sessions)?,
        errors: errors::errors(&*store.meta, &sessions)?,
        last_gc: LastGc::read(&*store.meta)?.filter(|_| copy.is_none()),
        copy,
        sessions,
        packs,
        inline_chunks: inline.iter().map(|owner| owner.chunks).sum(),
        inline_bytes: inline.iter().map(|owner| owner.bytes).sum(),
        holders: store.meta.holders()?,
        snapshots: store.meta.snapshots()?.len() as u64,
        database_bytes: store.database_bytes(),
        trouble: store.backend.trouble(),
        unsaved: mounts::unsaved(store),
    })
}
