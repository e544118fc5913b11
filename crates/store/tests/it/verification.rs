//! Packs of other clients are relied on once they were compared with their data: corrupt footers
//! lose no one's data, and honest ones are not stored twice.
#![cfg(feature = "testing")]

use crate::gc_support;

use std::path::PathBuf;

use gc_support::{collect, committed, put_bytes, read, remove, scratch, small_packs, thorough, unique};
use outrigger_format::{PackId, PackKind};
use outrigger_store::backend::Location;
use outrigger_store::inline;
use outrigger_store::meta::{Change, SessionKind};
use outrigger_store::testing::damage::corrupt;
use outrigger_store::{Store, StoreConfig, VerifiedCounts};
use outrigger_workload::postgres::Server;

/// A store that hosts share, and one host at a time that uses it.
struct Place {
    dir: tempfile::TempDir,
    server: &'static Server,
    schema: String,
}

impl Place {
    /// `None`, with a message, without PostgreSQL.
    fn new() -> Option<Self> {
        let server = Server::shared()?;
        let place = Self { dir: scratch(), server, schema: server.fresh() };
        let packs = format!("file:{}", place.dir.path().join("packs").display());
        let packs = Some(Location::parse(&packs).unwrap());
        drop(Store::init(&place.url(), &StoreConfig { packs, ..small_packs() }).unwrap());
        Some(place)
    }

    fn url(&self) -> PathBuf {
        self.server.url(&self.schema).into()
    }

    /// The host that was used last.
    fn same_host(&self) -> Store {
        Store::open(&self.url(), false).unwrap()
    }

    /// A host that has never used the store.
    fn new_host(&self) -> Store {
        let store = self.same_host();
        let dir = store.dir().to_path_buf();
        drop(store);
        std::fs::remove_dir_all(dir).unwrap();
        self.same_host()
    }

    fn pack(&self, id: PackId) -> PathBuf {
        let name = format!("{id}.pack");
        self.dir.path().join("packs/packs").join(&name[14..16]).join(name)
    }

    /// Makes packs corrupt, as a client can that publishes them so; the rows, which are that
    /// client's, have their length.
    fn lie(&self, ids: &[PackId]) {
        for id in ids {
            let pack = corrupt(&std::fs::read(self.pack(*id)).unwrap(), *id);
            std::fs::write(self.pack(*id), &pack).unwrap();
            let (schema, bytes) = (&self.schema, pack.len());
            self.server.sql(&format!("UPDATE {schema}.pack SET bytes = {bytes} WHERE id = {}", id.0));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(store) = Store::open(&self.url(), true) {
            let _ = std::fs::remove_dir_all(store.dir());
        }
    }
}

fn counts(store: &Store) -> VerifiedCounts {
    store.verified().expect("hosts share it").counts()
}

fn new_bytes(store: &Store, name: &str, bytes: &[u8]) -> u64 {
    put_bytes(store, name, bytes.to_vec()).unwrap().write.progress.bytes_new
}

/// Enough for several packs, and for manifest nodes.
fn content() -> Vec<u8> {
    unique(7, 3_500_000)
}

#[test]
fn what_another_host_has_stored_is_read_once_and_stored_once() {
    let Some(place) = Place::new() else { return };
    let bytes = content();
    let store = place.same_host();
    assert_eq!(new_bytes(&store, "a", &bytes), bytes.len() as u64);
    // Packs that a host has stored itself need no proof, in this process or another one.
    assert_eq!(new_bytes(&store, "again", &bytes), 0);
    assert_eq!(counts(&store), VerifiedCounts::default());
    drop(store);
    let store = place.same_host();
    assert_eq!(new_bytes(&store, "and again", &bytes), 0);
    assert_eq!(counts(&store), VerifiedCounts::default());
    drop(store);

    let store = place.new_host();
    let before: u64 = committed(&store).iter().map(|row| row.bytes).sum();
    assert_eq!(new_bytes(&store, "b", &bytes), 0);
    let after: u64 = committed(&store).iter().map(|row| row.bytes).sum();
    assert!(after * 100 <= before * 105, "{before} bytes, then {after}");
    let read_once = counts(&store);
    assert!(read_once.bytes >= bytes.len() as u64, "{read_once:?}");
    assert!(read_once.bytes <= bytes.len() as u64 * 105 / 100, "{read_once:?}");
    assert!(read_once.corrupt.is_empty(), "{read_once:?}");
    // Not again, now or later.
    assert_eq!(new_bytes(&store, "c", &bytes), 0);
    assert_eq!(counts(&store), read_once);
    drop(store);
    let store = place.same_host();
    assert_eq!(new_bytes(&store, "d", &bytes), 0);
    assert_eq!(counts(&store), VerifiedCounts::default());
    drop(store);

    // Only the needed frames are read.
    let store = place.new_host();
    assert!(new_bytes(&store, "e", &bytes[..1_000_000]) < 100_000);
    assert!(counts(&store).bytes < 1_500_000, "{:?}", counts(&store));
    drop(store);

    // Frames that were read for another reason are compared, too.
    let store = place.new_host();
    assert!(read(&store, "a") == bytes);
    assert_eq!(new_bytes(&store, "f", &bytes), 0);
    assert!(counts(&store).bytes < 100_000, "{:?}", counts(&store));
}

#[test]
fn footers_that_lie_are_not_relied_on() {
    let Some(place) = Place::new() else { return };
    let bytes = content();
    let store = place.same_host();
    new_bytes(&store, "a", &bytes);
    let packs: Vec<PackId> = committed(&store).iter().map(|row| row.id).collect();
    assert!(packs.len() > 3);
    place.lie(&packs);
    drop(store);

    let store = place.new_host();
    assert_eq!(new_bytes(&store, "b", &bytes), bytes.len() as u64);
    assert!(read(&store, "b") == bytes);
    let caught = counts(&store);
    assert!(caught.corrupt.len() >= 3, "{caught:?}");
    // Found corrupt once: this host's own copy is found instead.
    assert_eq!(new_bytes(&store, "c", &bytes), 0);
    drop(store);
    let store = place.same_host();
    assert_eq!(new_bytes(&store, "d", &bytes), 0);
    assert_eq!(counts(&store), VerifiedCounts::default());
    drop(store);
    // Another host finds out for itself, and finds the good copy.
    let store = place.new_host();
    assert!(read(&store, "b") == bytes);
}

#[test]
fn a_host_that_trusts_others_reads_nothing() {
    let Some(place) = Place::new() else { return };
    let bytes = content();
    drop(put_bytes(&place.same_host(), "a", bytes.clone()).unwrap());
    drop(place.new_host());
    let url = format!("{}&packs=trust", place.url().display());
    let store = Store::open(url.as_ref(), false).unwrap();
    assert!(store.verified().is_none());
    assert_eq!(new_bytes(&store, "b", &bytes), 0);
}

/// A pack that cannot be read counts as one that is not there, and does not have the same data
/// stored again and again.
#[test]
fn damage_is_stored_again_once() {
    let Some(place) = Place::new() else { return };
    let bytes = content();
    let store = place.same_host();
    new_bytes(&store, "a", &bytes);
    let rows = committed(&store);
    let victim = rows.iter().find(|row| row.kind == PackKind::Data).unwrap().id;
    let range = store.packs.read_footer(victim).unwrap().frame_range(1).unwrap();
    let mut pack = std::fs::read(place.pack(victim)).unwrap();
    pack[range.end as usize - 10] ^= 1;
    std::fs::write(place.pack(victim), pack).unwrap();
    drop(store);

    let store = place.new_host();
    let new = new_bytes(&store, "b", &bytes);
    assert!(new > 0 && new < 1_500_000, "{new} bytes");
    assert!(read(&store, "b") == bytes);
    assert_eq!(new_bytes(&store, "c", &bytes), 0);
    drop(store);
    let store = place.same_host();
    assert_eq!(new_bytes(&store, "d", &bytes), 0);
    assert!(read(&store, "d") == bytes);
}

/// The corrupt copies have the lower ids, and so are those that count: no good copy may be given up
/// for them.
#[test]
fn the_collector_gives_up_no_copy_for_one_that_lies() {
    let Some(place) = Place::new() else { return };
    let bytes = content();
    let store = place.same_host();
    new_bytes(&store, "a", &bytes);
    let packs: Vec<PackId> = committed(&store).iter().map(|row| row.id).collect();
    place.lie(&packs);
    drop(store);
    drop(put_bytes(&place.new_host(), "b", bytes.clone()).unwrap());

    // A host that knows nothing of all this.
    let store = place.new_host();
    let report = collect(&store, &thorough()).unwrap();
    assert!(!report.unreadable.is_empty(), "{report:?}");
    assert!(read(&store, "b") == bytes && read(&store, "a") == bytes);
    drop(store);
    // It knows by now: corrupt packs go, and then everything stays where it is.
    let store = place.same_host();
    collect(&store, &thorough()).unwrap();
    let rows = committed(&store);
    assert!(rows.iter().all(|row| !packs.contains(&row.id)), "{rows:?}");
    assert!(collect(&store, &thorough()).unwrap().unreadable.is_empty());
    assert_eq!(committed(&store), rows, "nothing is moved to and fro");
    assert!(read(&store, "b") == bytes);
    drop(store);
    let store = place.new_host();
    remove(&store, "a").unwrap();
    collect(&store, &thorough()).unwrap();
    assert!(read(&store, "b") == bytes);
}

/// Small contents do not wait for anything to be read: they are kept in the database, and compared
/// when they are packed.
#[test]
fn rows_are_packed_once_another_hosts_pack_was_compared() {
    let Some(place) = Place::new() else { return };
    // Shorter than any cut: one chunk.
    let bytes = unique(9, 4_000);
    let store = place.same_host();
    new_bytes(&store, "a", &bytes);
    drop(store);
    let store = place.new_host();
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let name = outrigger_offload::hash(store.config.fingerprint, &bytes);
    let chunk = outrigger_store::meta::inline::InlineChunk {
        fingerprint: name,
        codec: outrigger_format::CodecChoice::parse("zstd:1").unwrap(),
        bytes: bytes.clone(),
    };
    let added = inline::commit(&store, &session, session.id(), Vec::<Change>::new(), vec![chunk]).unwrap();
    assert_eq!(added, bytes.len() as u64);
    assert_eq!(counts(&store), VerifiedCounts::default());
    let before = committed(&store).len();
    assert_eq!(inline::pack(&store, &session, 2).unwrap(), 1);
    assert_eq!(counts(&store).frames, 1);
    let data = |row: &&outrigger_store::meta::PackRow| row.kind == PackKind::Data;
    assert_eq!(committed(&store).iter().filter(data).count(), 1, "of {before} packs before");
}
