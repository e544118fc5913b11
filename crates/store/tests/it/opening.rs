//! The rows of packs that are read when a shared store is opened, or asked for its size: each of
//! them once, or none; and the cost of that.

use crate::gc_support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gc_support::{put_bytes, read, scratch, small_packs, unique};
use outrigger_store::backend::Location;
use outrigger_store::meta::SessionKind;
use outrigger_store::{Store, StoreConfig};
use outrigger_workload::postgres::Server;

/// A store with many rows of packs, on a server that counts the rows that its statements return.
struct Place {
    server: Server,
    packs: tempfile::TempDir,
}

impl Place {
    /// With so many rows of packs that are dead: they are read like all others, and have no
    /// objects.
    fn new(rows: usize) -> Option<Self> {
        let config = "fsync = off\nshared_preload_libraries = 'pg_stat_statements'\npg_stat_statements.track_utility = off\n";
        let server = Server::start(config)?;
        let place = Self { server, packs: scratch() };
        let packs = Some(Location::parse(&format!("file:{}", place.packs.path().display())).unwrap());
        let store = Store::init(&place.url(), &StoreConfig { packs, ..small_packs() }).unwrap();
        put_bytes(&store, "a", unique(1, 300_000)).unwrap();
        drop(store);
        place.server.sql(&format!(
            "CREATE EXTENSION pg_stat_statements; \
             INSERT INTO s.pack (id, session, bytes, raw_bytes, chunks, generation, dead_since, kind, state) \
             SELECT 1000 + id, 0, 1000, 2000, 5, 0, 1, 1, 4 FROM generate_series(1, {rows}) id; ANALYZE s.pack"
        ));
        Some(place)
    }

    fn url(&self) -> PathBuf {
        self.server.url("s").into()
    }

    fn open(&self) -> Store {
        Store::open(&self.url(), false).unwrap()
    }

    fn rows(&self) -> usize {
        self.server.sql("SELECT count(*) FROM s.pack").parse().unwrap()
    }

    /// The result of `work`, and how many rows statements about packs have returned meanwhile.
    fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        self.server.sql("SELECT pg_stat_statements_reset()");
        let done = work();
        let asked = "SELECT coalesce(sum(rows), 0) FROM pg_stat_statements \
                     WHERE query LIKE 'SELECT%.pack%' AND query NOT LIKE '%pg_stat_statements%'";
        (done, self.server.sql(asked).parse().unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(store) = Store::open(&self.url(), true) {
            let _ = std::fs::remove_dir_all(store.dir());
        }
    }
}

#[test]
fn each_row_of_packs_is_read_once_when_a_store_is_opened() {
    let Some(place) = Place::new(25_000) else { return };
    let all = place.rows();
    let (store, read_rows) = place.counted(|| place.open());
    assert_eq!(read_rows, all);
    assert_eq!(read(&store, "a"), unique(1, 300_000));
    // How much it holds is asked of the server as one sum, and not each time.
    let (stored, read_rows) = place.counted(|| [(); 10].map(|()| store.stored_bytes().unwrap()));
    let sum: u64 = place.server.sql("SELECT sum(bytes) FROM s.pack WHERE state > 0").parse().unwrap();
    assert!(stored.iter().all(|bytes| *bytes == sum) && sum > 25_000_000, "{stored:?}");
    assert!(read_rows <= 5 * stored.len(), "{read_rows}");
    // Opening it to describe its state needs no row.
    let ((), read_rows) = place.counted(|| drop(Store::open_to_look(&place.url()).unwrap()));
    assert_eq!(read_rows, 0);
    // The first look at other clients' packs goes on from there.
    place.server.sql("UPDATE s.pack SET bytes = bytes WHERE id = 1001");
    let ((), read_rows) = place.counted(|| store.follow_packs().unwrap());
    assert!((1..all / 2).contains(&read_rows), "{read_rows}");
}

/// `PACKS=100000 cargo test --workspace --all-features --test opening cost -- --nocapture` for
/// figures.
#[test]
fn the_cost_of_opening_grows_with_the_rows_of_packs() {
    let packs: usize = std::env::var("PACKS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let Some(place) = Place::new(packs) else { return };
    let best = |times: usize, work: &mut dyn FnMut()| {
        let timed = (0..times).map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        });
        timed.min().unwrap_or(Duration::ZERO)
    };
    let opened = best(10, &mut || drop(place.open()));
    let looked = best(10, &mut || drop(Store::open_to_look(&place.url()).unwrap()));
    let first = {
        let stores: Vec<Store> = (0..10).map(|_| place.open()).collect();
        let mut stores = stores.iter();
        best(10, &mut || stores.next().unwrap().follow_packs().unwrap())
    };
    let store = place.open();
    // The packs that a writer may rely on.
    for sql in ["UPDATE s.pack SET state = 2", "VACUUM ANALYZE s.pack"] {
        place.server.sql(sql);
    }
    let reading = best(20, &mut || drop(store.session(SessionKind::Reader, "test").unwrap()));
    let writing = best(20, &mut || drop(store.session(SessionKind::Writer, "test").unwrap()));
    let all = best(10, &mut || assert!(store.meta.packs().unwrap().len() >= packs));
    let sums = best(10, &mut || assert!(store.meta.pack_sums().unwrap()[0].packs as usize > packs));
    println!(
        "{packs} packs: opening {opened:?}, to look {looked:?}, first following {first:?}; \
         a session that reads {reading:?}, that writes {writing:?}; all rows {all:?}, their sums {sums:?}"
    );
}
