//! Tests that need a real cluster: Ceph's pools and its gateway for S3 (`make test-cluster`,
//! `scripts/cluster.sh`). They are skipped, and report it, if `OUTRIGGER_TEST_RADOS` and
//! `OUTRIGGER_TEST_S3` name none.

use std::io::IoSlice;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use outrigger_format::PackId;
use outrigger_store::backend::{
    self, Access, Backend, Keys, Location, ObjectBackend, Patience, RadosBackend, S3Location,
};
use outrigger_store::testing::conformance;
use outrigger_store::testing::gateway::{ask, keys_of, policy, try_to_ask};
use outrigger_store::{ErrorKind, Result};

/// The location that a variable names, with a place of the test's own in it; `None`, and a word,
/// where there is none.
fn location(variable: &str) -> Option<Location> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Ok(text) = std::env::var(variable) else {
        outrigger_workload::skipped!("{variable} names no cluster (make cluster starts one)");
        return None;
    };
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let own = format!("test-{time}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut location = Location::parse(&text).unwrap();
    match &mut location {
        Location::S3(location) => location.prefix = own,
        Location::Rados(location) => location.namespace = own,
        Location::Directory(_) | Location::Tiers(_) => {}
    }
    Some(location)
}

fn open(location: &Location) -> std::sync::Arc<dyn Backend> {
    backend::open(location, Access::default()).unwrap()
}

fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) -> Result<()> {
    let mut writer = backend.create(PackId(id))?;
    for part in bytes.chunks(100_000) {
        writer.append(&[IoSlice::new(part)])?;
    }
    writer.finish()?;
    writer.seal()
}

fn read(backend: &dyn Backend, id: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    backend.read_at(PackId(id), 0, &mut bytes).unwrap();
    bytes
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4099 + seed * 7) as u8).collect()
}

/// A command of Ceph's, with the configuration of the cluster that `scripts/cluster.sh` has made.
fn ceph_of_cluster(program: &str, args: &[&str]) {
    let conf = format!("{}/ceph.conf", std::env::var("OUTRIGGER_CLUSTER").unwrap());
    let output = Command::new(program).args(["-c", &conf]).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A command of Ceph's, with the cluster's configuration.
fn ceph(location: &Location, program: &str, args: &[&str]) -> String {
    let Location::Rados(location) = location else { unreachable!("asked of a pool") };
    let mut command = Command::new(program);
    if let Some(conf) = &location.conf {
        command.args(["-c", conf]);
    }
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `scripts/cluster.sh osd N WHAT`.
fn osd(number: u32, what: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster.sh");
    let status = Command::new(script).args(["osd", &number.to_string(), what]).status().unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_gateway_conforms() {
    let Some(location) = location("OUTRIGGER_TEST_S3") else { return };
    conformance::backend(&*open(&location));
}

/// In parts, and not over another's.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_gateway_takes_large_packs() {
    let Some(location) = location("OUTRIGGER_TEST_S3") else { return };
    let backend = open(&location);
    let data = bytes(1, 45_000_000);
    write(&*backend, 1, &data).unwrap();
    assert!(read(&*backend, 1, data.len()) == data);
    assert_eq!(write(&*backend, 1, &data).unwrap_err().kind(), ErrorKind::Exists);
    backend.remove(PackId(1)).unwrap();
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_bucket_that_is_not_there_is_no_missing_pack() {
    let Some(Location::S3(mut location)) = location("OUTRIGGER_TEST_S3") else { return };
    location.bucket = "no-such-bucket-at-all".into();
    let patience = Patience { give_up: Duration::from_secs(1), ..Patience::default() };
    let backend = ObjectBackend::open(&location, Access::default(), patience).unwrap();
    let error = backend.read_at(PackId(1), 0, &mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
}

/// The documented rights of a writer and a reader (docs/packs.md) suffice. With them the writer can
/// do no harm elsewhere, and the reader none at all.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_rights_that_are_documented_suffice_and_are_all() {
    let Some(Location::S3(mut location)) = location("OUTRIGGER_TEST_S3") else { return };
    location.bucket = format!("rights-{}", location.prefix);
    ask("PUT", &location, "", "");
    ask("PUT", &location, "?policy=", &policy(&location));
    let as_user = |user: &str, location: &S3Location| {
        let [id, secret] = keys_of(user);
        let keys = Some(Keys { id, secret, token: None });
        ObjectBackend::open_with(location, Access::default(), Patience::default(), keys).unwrap()
    };
    let (writer, reader) = (as_user("writer", &location), as_user("reader", &location));
    conformance::backend(&writer);
    // In parts, too.
    let data = bytes(1, 45_000_000);
    write(&writer, 1, &data).unwrap();
    assert!(read(&reader, 1, data.len()) == data);
    assert_eq!((reader.list().unwrap(), reader.len(PackId(2)).unwrap()), (vec![PackId(1)], None));
    assert!(reader.claimed().unwrap().is_some(), "the conformance suite has left one");
    for (what, done) in [
        ("writing", write(&reader, 2, b"data")),
        ("writing in parts", write(&reader, 2, &data)),
        ("removing", reader.remove(PackId(1))),
        ("setting aside", reader.set_aside(PackId(1))),
        ("claiming", reader.claim("another store's")),
    ] {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Denied, "{what}");
    }
    assert_eq!((writer.list().unwrap(), writer.len(PackId(1)).unwrap()), (vec![PackId(1)], Some(45_000_000)));
    // Neither does anything in another store's place.
    let elsewhere = S3Location { prefix: "elsewhere".into(), ..location.clone() };
    for user in ["writer", "reader"] {
        let there = as_user(user, &elsewhere);
        assert_eq!(write(&there, 1, b"data").unwrap_err().kind(), ErrorKind::Denied, "{user}");
        assert_eq!(
            there.read_at(PackId(1), 0, &mut [0; 4]).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{user}"
        );
    }
    writer.remove(PackId(1)).unwrap();
    ceph_of_cluster("radosgw-admin", &["bucket", "rm", "--bucket", &location.bucket, "--purge-objects"]);
}

/// Ceph's gateway keeps a locked pack, also from its owner, and lets the lock be renewed.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_gateway_keeps_locked_packs() {
    let Some(Location::S3(mut location)) = location("OUTRIGGER_TEST_S3") else { return };
    location.bucket = format!("locked-{}", location.prefix);
    (location.prefix, location.lock) = ("store".into(), Some(1));
    let locks = ["x-amz-bucket-object-lock-enabled: true"];
    try_to_ask("PUT", &location, "", "", &locks).0.unwrap();
    let backend = ObjectBackend::open(&location, Access::default(), Patience::default()).unwrap();
    for id in 1..=3 {
        write(&backend, id, b"a pack").unwrap();
    }
    assert_eq!(
        (backend.lock_days(), backend.lock(&[PackId(1), PackId(2), PackId(9)]).unwrap()),
        (Some(1), 2)
    );
    let versions = ask("GET", &location, "?versions=", "");
    let of = |text: &str, from: &str, to: &str| {
        text.split(from).skip(1).map(|rest| rest.split(to).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (keys, ids) = (of(&versions, "<Key>", "</Key>"), of(&versions, "<VersionId>", "</VersionId>"));
    let pack = |id: u64| {
        let at = keys.iter().position(|key| key.ends_with(&format!("{}.pack", PackId(id)))).unwrap();
        format!("/{}?versionId={}", keys[at], ids[at])
    };
    let until = |id: u64| {
        let said = ask("GET", &location, &pack(id).replace("?", "?retention=&"), "");
        assert!(said.contains("COMPLIANCE"), "{said}");
        of(&said, "<RetainUntilDate>", "</RetainUntilDate>").remove(0)
    };
    let first = until(1);
    // Renewed, as `gc` does it: never shorter.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(backend.lock(&[PackId(1)]).unwrap(), 1);
    assert!(until(1) > first && until(2) == first, "{first}");
    // The program removes both; what was locked is there all the same, as an earlier version.
    for id in 1..=3 {
        backend.remove(PackId(id)).unwrap();
    }
    assert_eq!(backend.list().unwrap(), []);
    for (id, is_locked) in [(1, true), (2, true), (3, false)] {
        assert_eq!(ask("GET", &location, &pack(id), ""), "a pack");
        let (removed, why) = try_to_ask("DELETE", &location, &pack(id), "", &[]);
        assert_eq!(removed.is_err(), is_locked, "{id} {removed:?} {why}");
    }
    // A bucket without locks says so.
    let plain = S3Location { bucket: format!("plain-{}", location.bucket), ..location.clone() };
    ask("PUT", &plain, "", "");
    let backend = ObjectBackend::open(&plain, Access::default(), Patience::default()).unwrap();
    write(&backend, 1, b"a pack").unwrap();
    assert_eq!(backend.lock(&[PackId(1)]).unwrap_err().kind(), ErrorKind::Invalid);
    ceph_of_cluster("radosgw-admin", &["bucket", "rm", "--bucket", &plain.bucket, "--purge-objects"]);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn the_pool_conforms() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    conformance::backend(&*open(&location));
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_missing_pool_is_named() {
    let Some(Location::Rados(mut location)) = location("OUTRIGGER_TEST_RADOS") else { return };
    location.pool = "no-such-pool".into();
    let error = RadosBackend::open(&location, Access::default(), Patience::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("ceph osd pool create no-such-pool"), "{error}");
}

/// CRUSH is asked the same way as Ceph asks itself.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn packs_are_located_where_ceph_says() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    let backend = open(&location);
    let Location::Rados(rados) = &location else { unreachable!("it is one") };
    for id in [1, 2, 77, 0xffff, 1 << 40] {
        let hosts = backend.locate(PackId(id)).unwrap();
        let name = format!("{}.pack", PackId(id));
        let text = ceph(
            &location,
            "ceph",
            &["osd", "map", &rados.pool, &name, &rados.namespace, "--format", "json"],
        );
        let map: serde_json::Value = serde_json::from_str(&text).unwrap();
        // In the test cluster OSD N lives on host hN.
        let wanted: Vec<String> =
            map["acting"].as_array().unwrap().iter().map(|osd| format!("h{osd}")).collect();
        assert_eq!(hosts, wanted, "pack {id}: {map}");
    }
}

/// However many packs are looked for, the monitors are asked once for each placement group and each
/// OSD.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn where_packs_lie_is_asked_once_a_placement_group() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    let Location::Rados(rados) = &location else { unreachable!("it is one") };
    let backend = RadosBackend::open(rados, Access::default(), Patience::default()).unwrap();
    let text = ceph(&location, "ceph", &["osd", "pool", "get", &rados.pool, "pg_num", "--format", "json"]);
    let groups = serde_json::from_str::<serde_json::Value>(&text).unwrap()["pg_num"].as_u64().unwrap();
    let locate = || (1..=2000).map(|id| backend.locate(PackId(id)).unwrap()).collect::<Vec<_>>();
    let before = backend.asks();
    let found = locate();
    let asks = backend.asks() - before;
    // How many groups there are, each of them, and the hosts of three OSDs.
    assert!(asks > groups / 2 && asks <= 1 + groups + 3, "{asks} asks, {groups} groups");
    assert_eq!(locate(), found);
    assert_eq!(backend.asks() - before, asks, "nothing was asked again");
}

/// A read of several pieces returns all requested bytes, between any two places of the pack.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn long_reads_are_whole() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    let backend = open(&location);
    let data = bytes(7, (9 << 20) + 4321);
    write(&*backend, 1, &data).unwrap();
    for (from, len) in [
        (0, data.len()),
        (1, data.len() - 1),
        ((1 << 20) - 1, 2),
        (1 << 20, 4 << 20),
        (12_345, (5 << 20) + 77),
        (data.len() - 1, 1),
    ] {
        let mut buf = vec![0; len];
        backend.read_at(PackId(1), from as u64, &mut buf).unwrap();
        assert!(buf == data[from..from + len], "{len} bytes at {from}");
    }
    for (from, len) in [(0, data.len() + 1), (5 << 20, 5 << 20), (data.len(), 1), (data.len() + (3 << 20), 1)]
    {
        let error = backend.read_at(PackId(1), from as u64, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    }
    let error = backend.read_at(PackId(2), 0, &mut vec![0; 3 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    backend.remove(PackId(1)).unwrap();
}

/// Which hosts there are to choose from, and that each of them is the first to hold some ids.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn every_host_of_the_pool_can_be_chosen() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    let backend = open(&location);
    let hosts = backend.hosts().unwrap();
    assert_eq!(hosts, ["h0", "h1", "h2"], "OSD N lives on host hN");
    for host in hosts {
        assert_eq!(backend::place_on(&*backend, &host).unwrap(), host);
        let first = |id: &u64| backend.locate(PackId(*id)).unwrap()[0] == host;
        assert!((1..200).any(|id| first(&id)), "{host}");
    }
    assert!(backend::place_on(&*backend, "h7").unwrap_err().to_string().contains("h0, h1, h2"));
}

/// A read-only client reads, and changes nothing, whatever its program tries.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_reader_of_the_pool_cannot_write() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    let as_user = |user: &str| {
        let Location::Rados(mut rados) = location.clone() else { unreachable!("it is one") };
        rados.user = Some(user.into());
        RadosBackend::open(&rados, Access::default(), Patience::default()).unwrap()
    };
    let (writer, reader) = (as_user("client.writer"), as_user("client.reader"));
    write(&writer, 1, b"data").unwrap();
    assert_eq!(read(&reader, 1, 4), b"data");
    assert_eq!(reader.list().unwrap(), [PackId(1)]);
    assert_eq!(write(&reader, 2, b"data").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.remove(PackId(1)).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(read(&writer, 1, 4), b"data");
    writer.remove(PackId(1)).unwrap();
}

/// An OSD is killed while packs are written and read, another one hangs, both come back: nothing
/// fails, and all data is unchanged.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn osds_come_and_go() {
    let Some(location) = location("OUTRIGGER_TEST_RADOS") else { return };
    if std::env::var_os("OUTRIGGER_TEST_FAULTS").is_none() {
        return outrigger_workload::skipped!("OUTRIGGER_TEST_FAULTS is not set: OSDs are not to be killed");
    }
    let backend = open(&location);
    let data: Vec<Vec<u8>> = (0..12).map(|seed| bytes(seed, 6_000_000 + seed)).collect();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for (number, data) in data.iter().enumerate() {
                write(&*backend, 1 + number as u64, data).unwrap();
                assert!(read(&*backend, 1 + number as u64, data.len()) == *data);
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        osd(0, "kill");
        std::thread::sleep(Duration::from_secs(3));
        osd(0, "start");
        std::thread::sleep(Duration::from_secs(3));
        osd(1, "pause");
        std::thread::sleep(Duration::from_secs(3));
        osd(1, "continue");
        writing.join().unwrap();
    });
    for (number, data) in data.iter().enumerate() {
        assert!(read(&*backend, 1 + number as u64, data.len()) == *data);
    }
    for id in backend.list().unwrap() {
        backend.remove(id).unwrap();
    }
}

/// A full pool reports it at once, and accepts data again when there is space.
#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_full_pool_is_said_to_be_full() {
    let Some(Location::Rados(mut rados)) = location("OUTRIGGER_TEST_RADOS") else { return };
    let pool = format!("small-{}", std::process::id());
    let all = Location::Rados(rados.clone());
    ceph(&all, "ceph", &["osd", "pool", "create", &pool, "4"]);
    ceph(&all, "ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "8000000"]);
    rados.pool.clone_from(&pool);
    let backend = RadosBackend::open(&rados, Access::default(), Patience::default()).unwrap();
    // The pool counts its use only now and then, so some data goes in beyond the quota.
    let data = bytes(1, 4_000_000);
    let mut packs = 1u64..200;
    let full = packs.by_ref().find_map(|id| {
        std::thread::sleep(Duration::from_millis(200));
        write(&backend, id, &data).err()
    });
    let error = full.expect("8 MB are less than 200 packs");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    for id in backend.list().unwrap() {
        backend.remove(id).unwrap();
    }
    ceph(&all, "ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "0"]);
    let again = packs.find_map(|id| {
        std::thread::sleep(Duration::from_millis(200));
        write(&backend, id, &data).ok().map(|()| id)
    });
    assert!(read(&backend, again.expect("there is room again"), data.len()) == data);
    ceph(&all, "ceph", &["osd", "pool", "delete", &pool, &pool, "--yes-i-really-really-mean-it"]);
}
