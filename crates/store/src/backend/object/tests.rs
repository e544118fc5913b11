use std::io::IoSlice;
use std::time::Duration;

use super::*;
use crate::testing::conformance;
use crate::testing::s3::{ACCESS_KEY, ENDLESS, HttpFault, S3Server};

/// Short enough for tests, long enough for a machine that is busy.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(5),
    request: Duration::from_secs(10),
    give_up: Duration::from_secs(60),
};

fn open(server: &S3Server, patience: Patience) -> ObjectBackend {
    let keys = Keys { id: ACCESS_KEY.into(), secret: "secret-of-the-test".into(), token: None };
    open_as(server, patience, keys, Access::default()).unwrap()
}

fn open_as(server: &S3Server, patience: Patience, keys: Keys, access: Access) -> Result<ObjectBackend> {
    open_locking(server, patience, keys, access, None)
}

fn open_locking(
    server: &S3Server,
    patience: Patience,
    keys: Keys,
    access: Access,
    lock: Option<u32>,
) -> Result<ObjectBackend> {
    let location = S3Location {
        bucket: "bucket".into(),
        prefix: "some/where".into(),
        endpoint: Some(server.endpoint.clone()),
        region: Some("here".into()),
        patience: None,
        lock,
    };
    ObjectBackend::open_with(&location, access, patience, Some(keys))
}

fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) -> Result<()> {
    let mut writer = backend.create(PackId(id))?;
    writer.append(&[IoSlice::new(bytes)])?;
    writer.seal()
}

fn read(backend: &dyn Backend, id: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    backend.read_at(PackId(id), 0, &mut bytes).map(|()| bytes)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4099) as u8).collect()
}

#[test]
fn conforms() {
    let server = S3Server::start();
    conformance::backend(&open(&server, PATIENCE));
}

#[test]
fn packs_are_locked_for_longer_and_never_for_less() {
    let server = S3Server::start();
    let keys = || Keys { id: ACCESS_KEY.into(), secret: "secret-of-the-test".into(), token: None };
    let open = |days| open_locking(&server, PATIENCE, keys(), Access::default(), Some(days)).unwrap();
    let backend = open(30);
    write(&backend, 1, b"one").unwrap();
    write(&backend, 2, b"two").unwrap();
    assert_eq!((backend.lock_days(), backend.lock(&[PackId(1), PackId(9)]).unwrap()), (Some(30), 1));
    let locked = server.locks();
    assert_eq!(locked.len(), 1, "{locked:?}");
    let (key, date) = locked.first_key_value().unwrap();
    assert!(key.ends_with("/0000000000000001.pack") && date.ends_with('Z'), "{locked:?}");
    assert_eq!(open(60).lock(&[PackId(1), PackId(2)]).unwrap(), 2);
    assert!(server.locks()[key] > *date);
    // A server that fails once is asked again; one that has no locks says so.
    server.fault("PUT", 1..=1, HttpFault::Status(503));
    assert_eq!(open(90).lock(&[PackId(1)]).unwrap(), 1);
    server.fault("PUT", 1..=100, HttpFault::Status(400));
    let error = open(90).lock(&[PackId(1)]).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("OnPurpose"), "{error}");
    server.heal();
    server.fault("PUT", 1..=100, HttpFault::Status(403));
    assert_eq!(open(90).lock(&[PackId(1)]).unwrap_err().kind(), ErrorKind::Denied);
}

#[test]
fn lies_where_a_local_store_would_have_it() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    write(&backend, 0x1234_56ab, b"data").unwrap();
    backend.claim("text").unwrap();
    backend.put_text("keys/slot", "text").unwrap();
    let keys: Vec<String> = server.objects().into_iter().map(|(key, _)| key).collect();
    let below = ["keys/slot", "packs/ab/00000000123456ab.pack", "store.toml"];
    assert_eq!(keys, below.map(|name| format!("bucket/some/where/{name}")));
    let error = backend.claim("other").unwrap_err().to_string();
    assert_eq!(error, "s3://bucket/some/where/ is another store's");
}

/// Larger than one request takes: in parts, after its name is taken.
#[test]
fn large_packs_go_up_in_parts() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    let bytes = bytes(writer::WHOLE_MAX + 2 * writer::PART_LEN + 12_345);
    write(&backend, 1, &bytes).unwrap();
    assert!(read(&backend, 1, bytes.len()).unwrap() == bytes);
    assert_eq!(server.count("POST"), 2, "one upload in parts");
    assert_eq!(server.uploads(), 0);

    // A second one of that id fails before that.
    let error = write(&backend, 1, &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");

    // One that is dropped leaves no parts behind, and a name to be swept.
    let mut writer = backend.create(PackId(2)).unwrap();
    writer.append(&[IoSlice::new(&bytes)]).unwrap();
    drop(writer);
    for _ in 0..500 {
        if server.uploads() == 0 {
            break;
        }
        outrigger_clock::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.uploads(), 0);
    assert!(backend.len(PackId(2)).unwrap().is_some_and(|len| len < 100));
}

/// Whichever request fails twice, the third try succeeds, and the object has what was written.
#[test]
fn every_fault_is_outlived() {
    let small = bytes(100_000);
    let large = bytes(writer::WHOLE_MAX + writer::PART_LEN + 5);
    for fault in [
        HttpFault::Status(500),
        HttpFault::Status(503),
        HttpFault::Status(429),
        HttpFault::DoneButStatus(500),
        HttpFault::Reset,
        HttpFault::DoneButReset,
        HttpFault::Half,
        HttpFault::Slow,
    ] {
        let server = S3Server::start();
        let backend = open(&server, PATIENCE);
        let every = ["PUT", "GET", "HEAD", "DELETE", "POST"];
        every.iter().for_each(|method| server.fault(method, 1..=2, fault));
        write(&backend, 1, &small).unwrap();
        assert!(read(&backend, 1, small.len()).unwrap() == small, "{fault:?}");
        assert_eq!(backend.list().unwrap(), [PackId(1)], "{fault:?}");
        every.iter().for_each(|method| server.fault(method, 1..=2, fault));
        write(&backend, 2, &large).unwrap();
        assert!(read(&backend, 2, large.len()).unwrap() == large, "{fault:?}");
        backend.remove(PackId(1)).unwrap();
        assert_eq!(backend.len(PackId(1)).unwrap(), None, "{fault:?}");
        assert!(server.faults() >= 6, "{fault:?}: {} faults", server.faults());
        if !matches!(fault, HttpFault::Slow | HttpFault::Half) {
            assert!(backend.retries() >= 6, "{fault:?}");
        }
        assert!(backend.trouble().is_none(), "{fault:?}");
    }
}

/// The put succeeded, the answer was lost, and the second put finds the name taken: by our own
/// bytes.
#[test]
fn a_put_that_succeeded_though_it_failed_is_recognised() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    let bytes = bytes(300_000);
    server.fault("PUT", 1..=1, HttpFault::DoneButReset);
    write(&backend, 1, &bytes).unwrap();
    assert!(server.count("PUT") >= 2, "it was put again");
    assert!(read(&backend, 1, bytes.len()).unwrap() == bytes);

    // The same if other bytes of the same length have the name: never.
    let mut mine = backend.create(PackId(2)).unwrap();
    mine.append(&[IoSlice::new(&bytes)]).unwrap();
    let mut theirs = bytes.clone();
    theirs[200_000] ^= 1;
    write(&backend, 2, &theirs).unwrap();
    server.fault("PUT", 1..=1, HttpFault::Reset);
    assert_eq!(mine.seal().unwrap_err().kind(), ErrorKind::Exists);
    assert!(read(&backend, 2, bytes.len()).unwrap() == theirs);
}

/// The same of a text.
#[test]
fn a_text_that_was_put_though_it_failed_is_recognised() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    server.fault("PUT", 1..=1, HttpFault::DoneButReset);
    backend.put_text("keys/a", "slot").unwrap();
    assert!(server.count("PUT") >= 2, "it was put again");
    assert_eq!(backend.text("keys/a").unwrap().as_deref(), Some("slot"));
    // Another's under that name is never ours.
    server.fault("PUT", 1..=1, HttpFault::Reset);
    assert_eq!(backend.put_text("keys/a", "other").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(backend.text("keys/a").unwrap().as_deref(), Some("slot"));
}

/// An answer that does not come in time is not waited for.
#[test]
fn time_outs_are_retried() {
    let server = S3Server::start();
    let patience = Patience { idle: Duration::from_millis(300), ..PATIENCE };
    let backend = open(&server, patience);
    server.fault("PUT", 1..=1, HttpFault::Late(3000));
    server.fault("GET", 1..=1, HttpFault::Late(3000));
    write(&backend, 1, b"data").unwrap();
    assert_eq!(read(&backend, 1, 4).unwrap(), b"data");
    assert!(backend.retries() >= 2);
}

/// A missing store is reported, and is used again when it is back.
#[test]
fn a_store_that_is_gone_comes_back() {
    let server = S3Server::start();
    let impatient = Patience { give_up: Duration::from_millis(300), ..PATIENCE };
    let backend = open(&server, impatient);
    write(&backend, 1, b"data").unwrap();
    server.go_down();
    let error = read(&backend, 1, 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("given up after"), "{error}");
    let trouble = backend.trouble().expect("it says so");
    assert!(trouble.contains("no request has succeeded"), "{trouble}");
    assert_eq!(write(&backend, 2, b"more").unwrap_err().kind(), ErrorKind::Io);
    // None of this is taken for a missing pack.
    assert_eq!(backend.len(PackId(1)).unwrap_err().kind(), ErrorKind::Io);

    let waiting = open(&server, PATIENCE);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| write(&waiting, 3, b"patient"));
        outrigger_clock::sleep(Duration::from_millis(200));
        server.heal();
        late.join().unwrap().unwrap();
    });
    assert_eq!(read(&backend, 1, 4).unwrap(), b"data");
    assert_eq!(read(&backend, 3, 7).unwrap(), b"patient");
    assert!(backend.trouble().is_none());
}

#[test]
fn whom_it_does_not_know_it_refuses() {
    let server = S3Server::start();
    let keys = Keys { id: "WHO".into(), secret: "hunter2".into(), token: None };
    let backend = open_as(&server, PATIENCE, keys, Access::default()).unwrap();
    let error = write(&backend, 1, b"data").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let said = error.to_string();
    assert!(!said.contains("hunter2") && !said.contains("WHO"), "{said}");

    // A read-only client changes nothing.
    let good = open(&server, PATIENCE);
    write(&good, 1, b"data").unwrap();
    let keys = Keys { id: ACCESS_KEY.into(), secret: "x".into(), token: None };
    let access = Access { read_only: true, ..Access::default() };
    let reader = open_as(&server, PATIENCE, keys, access).unwrap();
    assert_eq!(read(&reader, 1, 4).unwrap(), b"data");
    assert_eq!(write(&reader, 2, b"data").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.remove(PackId(1)).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.set_aside(PackId(1)).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.put_text("keys/a", "slot").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(reader.remove_text("keys/a").unwrap_err().kind(), ErrorKind::Denied);
}

/// Appending does not run ahead of a store that takes nothing: finished packs that are not stored
/// yet are bounded.
#[test]
fn appending_waits_for_a_slow_store() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    server.fault("PUT", 1..=u64::MAX, HttpFault::Reset);
    let part = bytes(16 << 20);
    let mut sealing = Vec::new();
    for id in 1..=4 {
        let mut writer = backend.create(PackId(id)).unwrap();
        writer.append(&[IoSlice::new(&part)]).unwrap();
        writer.finish().unwrap();
        sealing.push(writer);
    }
    let mut fifth = backend.create(PackId(5)).unwrap();
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            fifth.append(&[IoSlice::new(&part)]).unwrap();
            fifth.seal().unwrap();
        });
        outrigger_clock::sleep(Duration::from_millis(300));
        assert!(!appending.is_finished(), "64 MiB wait already");
        server.heal();
        sealing.into_iter().for_each(|writer| writer.seal().unwrap());
        appending.join().unwrap();
    });
    assert_eq!(backend.list().unwrap().len(), 5);
}

/// A server's claims reserve no memory, and no answer is read beyond its bound.
#[test]
fn what_a_server_answers_is_bounded() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    backend.claim("text").unwrap();
    server.fault("GET", 1..=1, HttpFault::Claims);
    assert_eq!(backend.claimed().unwrap().as_deref(), Some("text"));
    write(&backend, 1, b"data").unwrap();
    server.fault("GET", 1..=1, HttpFault::Claims);
    assert_eq!(read(&backend, 1, 4).unwrap(), b"data");
    server.heal();
    server.fault("GET", 1..=u64::MAX, HttpFault::Farthest);
    let error = read(&backend, 1, 4).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("cannot be"), "{error}");
    server.heal();

    // The beginning of an error's body is read, and its status believed: none of these is tried
    // again.
    server.fault("GET", 1..=1, HttpFault::Endless(404));
    assert_eq!(backend.claimed().unwrap(), None);
    server.heal();
    server.fault("GET", 1..=1, HttpFault::Endless(403));
    assert_eq!(read(&backend, 1, 4).unwrap_err().kind(), ErrorKind::Denied);
    server.heal();
    server.fault("GET", 1..=u64::MAX, HttpFault::Endless(200));
    let error = backend.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("longer than the 16777216 bytes"), "{error}");
    // Buffers of the kernel take some MiB of each.
    assert!(server.taken() < ENDLESS, "{} bytes were taken", server.taken());
}

/// Pages without an end would be read for ever.
#[test]
fn a_listing_that_repeats_itself_is_refused() {
    let server = S3Server::start();
    let backend = open(&server, PATIENCE);
    for id in 1..=9 {
        write(&backend, id, b"data").unwrap();
        backend.put_text(&format!("keys/{id}"), "slot").unwrap();
    }
    server.fault("GET", 1..=u64::MAX, HttpFault::SamePage);
    for error in [backend.list().unwrap_err(), backend.texts("keys").unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.to_string().contains("goes back from"), "{error}");
    }
    server.heal();
    assert_eq!((backend.list().unwrap().len(), backend.texts("keys").unwrap().len()), (9, 9));
}
