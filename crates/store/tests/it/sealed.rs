//! Metadata of an encrypted store in PostgreSQL: the server sees nothing that is private, and what
//! it changes is found out. That the engine is as before, the conformance suite shows.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use outrigger_format::catalogue::FileKind;
use outrigger_format::{CodecChoice, Entry, Fingerprint, Root};
use outrigger_store::ErrorKind;
use outrigger_store::keys::Key;
use outrigger_store::meta::inline::{InlineChange, InlineChunk};
use outrigger_store::meta::jobs::{JobChange, JobInput, JobState, NewJob, NewSplit, Seen};
use outrigger_store::meta::{At, Change, Meta, PinTarget, PostgresMeta, ROOT_INODE as R, Sealer, VersionRow};
use outrigger_workload::postgres::Server;

use crate::meta_support::{
    self, Fixture, attributes, commit, dir, dump, file, kind, link, put, remove, rename, sealer, writer,
};

/// A fingerprint that is found wherever it is.
fn secret_fingerprint(seed: u8) -> [u8; 32] {
    std::array::from_fn(|at| seed.wrapping_mul(37) ^ (at as u8).wrapping_mul(29) ^ 0xa5)
}

fn secret_root(seed: u8) -> Root {
    Root::Inline(vec![Entry::Chunk { fingerprint: Fingerprint(secret_fingerprint(seed)), len: 5000 }])
}

/// What [`fill`] puts into a database and the server must not see.
const TEXTS: &[&str] = &[
    "secret-name-of-a-directory",
    "secret-name-of-a-file",
    "secret-name-of-a-second-file",
    "secret-name-of-a-hard-link",
    "secret-name-of-a-symlink",
    "secret-name-after-a-move",
    "/secret/target/of/the/symlink",
    "user.secret-attribute-name",
    "secret-value-of-an-attribute",
    "secret-bytes-of-an-inline-chunk",
    "secret-name-of-a-snapshot",
    "secret-tag-of-a-snapshot",
    "secret-argument-of-a-job",
    "SECRET_VARIABLE_OF_A_JOB",
    "secret-value-of-a-variable",
    "secret/path/of/an/input",
    "secret-name-of-an-output",
    "secret-log-of-an-attempt",
    "secret-log-of-a-failed-attempt",
    "secret-measurement-of-an-attempt",
    "secret-reason-of-a-failure",
    "secret-result-of-a-job",
    "secret-result-for-the-runner",
    "secret-reason-to-cancel-a-job",
    "secret-name-of-a-record",
    "secret-value-of-a-record",
    "secret-other-value-of-a-record",
    "secret-name-of-a-rule",
    "secret-mark-of-a-file",
];
/// Roots and inline chunks with [`secret_fingerprint`]s of these are there, too.
const FINGERPRINTS: std::ops::Range<u8> = 1..10;

fn fill(meta: &dyn Meta) {
    meta.raise_counters(1, 100, 1).unwrap();
    let session = writer(meta);
    let with_attributes = || {
        let xattrs = vec![(b"user.secret-attribute-name".to_vec(), b"secret-value-of-an-attribute".to_vec())];
        outrigger_format::catalogue::Attributes { xattrs, ..attributes(FileKind::File, 0o644) }
    };
    let symlink = outrigger_format::catalogue::Attributes {
        target: b"/secret/target/of/the/symlink".to_vec(),
        ..attributes(FileKind::Symlink, 0o777)
    };
    let inline = InlineChunk {
        fingerprint: Fingerprint(secret_fingerprint(1)),
        codec: CodecChoice::parse("zstd:3").unwrap(),
        bytes: b"secret-bytes-of-an-inline-chunk".repeat(3),
    };
    let inline = Change::InlineChunks(InlineChange::Add { chunk: inline, owner: session });
    let changes = vec![
        dir(R, "secret-name-of-a-directory", 10),
        put(10, "secret-name-of-a-file", 11, with_attributes(), secret_root(2)),
        put(10, "secret-name-of-a-second-file", 12, with_attributes(), secret_root(3)),
        put(10, "secret-name-of-a-symlink", 13, symlink, Root::Empty),
        link(R, "secret-name-of-a-hard-link", 11),
        inline,
    ];
    commit(meta, session, changes, 1).unwrap();
    // By the short way: one name.
    let put_one = put(10, "one", 14, with_attributes(), secret_root(4));
    commit(meta, session, vec![put_one], 2).unwrap();
    meta.create_snapshot("secret-name-of-a-snapshot", 3, &["secret-tag-of-a-snapshot".into()]).unwrap();
    meta.set_snapshot_tags("secret-name-of-a-snapshot", &["secret-tag-of-a-snapshot".into()]).unwrap();
    // Former names and inodes, and a version.
    let again = put(10, "secret-name-of-a-file", 11, with_attributes(), secret_root(5));
    commit(meta, session, vec![again], 4).unwrap();
    let moved = rename(10, "secret-name-of-a-second-file", R, "secret-name-after-a-move");
    commit(meta, session, vec![moved, remove(10, "one")], 5).unwrap();
    let version = meta.versions(11).unwrap()[0].number;
    meta.pin(session, &PinTarget::Version { inode: 11, number: version }).unwrap();
    let row = VersionRow { number: 1, time: 1, mtime: Default::default(), root: secret_root(6) };
    meta.restore_versions(12, &[row]).unwrap();
    meta.hold("mount", &[secret_root(7)]).unwrap();
    fill_jobs(meta);
    let records = meta.records();
    records.set_record("test", "secret-name-of-a-record", Some("secret-value-of-a-record")).unwrap();
    records.add_record("test", "other", "secret-value-of-a-record").unwrap();
    let swapped = records.swap_record(
        "test",
        "other",
        "secret-value-of-a-record",
        Some("secret-other-value-of-a-record"),
    );
    assert!(swapped.unwrap());
}

fn fill_jobs(meta: &dyn Meta) {
    let (session, jobs) = (writer(meta), meta.jobs());
    let spec = r#"{"argv":["secret-argument-of-a-job"],"env":{"SECRET_VARIABLE_OF_A_JOB":"secret-value-of-a-variable"}}"#;
    let (rule, mark) = ("secret-name-of-a-rule".into(), "secret-mark-of-a-file".into());
    let new = NewJob {
        spec: spec.into(),
        inputs: vec![JobInput { path: b"secret/path/of/an/input".to_vec(), root: secret_root(8) }],
        splits: [0, 1]
            .map(|number| NewSplit { input: Some(0), from: number * 10, to: number * 10 + 10 })
            .into(),
        seen: Some(Seen { rule, inode: 11, before: None, mark }),
    };
    let job = jobs.create_job(&new).unwrap();
    let claimed = jobs.claim_splits(session, job, 9, 3, None).unwrap().claimed;
    jobs.fail_split(job, &claimed[1], 9, "secret-reason-of-a-failure", b"secret-log-of-a-failed-attempt")
        .unwrap();
    let finish = |split, attempt| {
        let name = b"secret-name-of-an-output".to_vec();
        let log = b"secret-log-of-an-attempt".to_vec();
        let measured = Some("secret-measurement-of-an-attempt".into());
        [
            Change::Job(JobChange::Output { job, split, attempt, name, root: secret_root(9) }),
            Change::Job(JobChange::Finish { job, split, attempt, log, measured }),
        ]
    };
    commit(meta, session, finish(claimed[0].number, claimed[0].attempt).into(), 6).unwrap();
    // The reason is read while the second split waits again.
    let split = jobs.split(job, 1).unwrap().unwrap();
    assert_eq!(
        (split.why.as_str(), &split.log[..]),
        ("secret-reason-of-a-failure", &b"secret-log-of-a-failed-attempt"[..])
    );
    let other = jobs.create_job(&NewJob { spec: spec.into(), seen: None, ..new.clone() }).unwrap();
    jobs.end_job(other, JobState::Cancelled, "secret-reason-to-cancel-a-job").unwrap();
    let third = jobs.create_job(&NewJob { splits: Vec::new(), seen: None, ..new }).unwrap();
    jobs.claim_splits(session, third, 1, 1, None).unwrap();
    let (why, made) = ("secret-result-of-a-job".into(), Some("secret-result-for-the-runner".into()));
    commit(meta, session, vec![Change::Job(JobChange::Publish { job: third, why, made })], 7).unwrap();
    let told = (jobs.made(third).unwrap(), jobs.measured(job).unwrap(), jobs.outputs(job).unwrap().len());
    let measured = vec![(0, "secret-measurement-of-an-attempt".to_owned())];
    assert_eq!(told, (Some("secret-result-for-the-runner".to_owned()), measured, 1));
}

/// Every row of every table, as text.
fn everything(server: &Server, schema: &str) -> String {
    let tables = server.sql(&format!("SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"));
    let tables: Vec<&str> = tables.lines().collect();
    assert!(tables.len() > 20, "{tables:?}");
    let rows = |table: &&str| {
        let rows = server.sql(&format!("SELECT t::text FROM {schema}.{table} t"));
        format!("{table}\n{rows}\n")
    };
    tables.iter().map(rows).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True if 16 bytes of a secret that follow each other are there: plain, in hex or in base64.
fn shows(all: &str, secret: &[u8]) -> bool {
    let plain = |part: &[u8]| std::str::from_utf8(part).is_ok_and(|part| all.contains(part));
    // Of twelve bytes each third place gives the sixteen characters that a longer text has there.
    secret.windows(16).any(|part| plain(part) || all.contains(&hex(part)))
        || secret.windows(12).any(|part| all.contains(&BASE64.encode(part)))
}

#[test]
fn the_server_sees_nothing_that_is_private() {
    let (Some(plain), Some(sealed)) = (meta_support::postgres(), meta_support::sealed()) else { return };
    fill(&*plain.meta);
    fill(&*sealed.meta);
    let shown = |fixture: &Fixture| {
        let (server, schema) = fixture.server();
        everything(server, schema)
    };
    let (in_plain, in_sealed) = (shown(&plain), shown(&sealed));
    let fingerprints: Vec<[u8; 32]> = FINGERPRINTS.map(secret_fingerprint).collect();
    let secrets = TEXTS.iter().map(|text| text.as_bytes()).chain(fingerprints.iter().map(|bytes| &bytes[..]));
    for secret in secrets {
        let name = String::from_utf8_lossy(secret);
        assert!(shows(&in_plain, secret), "this test does not put {name} into a database");
        assert!(!shows(&in_sealed, secret), "the server sees {name}");
    }
    // Both hold the same, for who has the key.
    let another = sealed.another();
    for at in [At::Now, At::Epoch(1)] {
        assert_eq!(dump(&*another, at), dump(&*plain.meta, at));
    }
    assert_eq!(another.history(10).unwrap(), plain.meta.history(10).unwrap());
    assert_eq!(another.snapshots().unwrap(), plain.meta.snapshots().unwrap());
    assert_eq!(another.held("mount").unwrap(), [secret_root(7)]);
    assert_eq!(another.versions(12).unwrap(), plain.meta.versions(12).unwrap());
    let records = |meta: &dyn Meta| {
        let rows = meta.records().records("test").unwrap().into_iter();
        rows.map(|row| (row.name, row.value)).collect::<Vec<_>>()
    };
    assert_eq!(records(&*another), records(&*plain.meta));
    assert_eq!((sealed.findings(), plain.findings()), (Vec::new(), Vec::new()));
}

/// A store with names, attributes and contents to be changed.
fn prepared() -> Option<Fixture> {
    let fixture = meta_support::sealed()?;
    fixture.meta.raise_counters(1, 100, 1).unwrap();
    let with = |value: &str| {
        let xattrs = vec![(b"user.a".to_vec(), value.as_bytes().to_vec())];
        outrigger_format::catalogue::Attributes { xattrs, ..attributes(FileKind::File, 0o644) }
    };
    let symlink = |target: &str| outrigger_format::catalogue::Attributes {
        target: target.into(),
        ..attributes(FileKind::Symlink, 0o777)
    };
    let changes = vec![
        dir(R, "a", 10),
        dir(R, "b", 20),
        put(10, "f", 11, with("one"), secret_root(1)),
        put(20, "f", 21, with("two"), secret_root(2)),
        put(10, "l", 12, symlink("one"), Root::Empty),
        put(20, "l", 22, symlink("two"), Root::Empty),
    ];
    let session = fixture.writer();
    fixture.commit(session, changes).unwrap();
    let old = VersionRow { number: 1, time: 1, mtime: Default::default(), root: secret_root(3) };
    for inode in [11, 21] {
        fixture.meta.restore_versions(inode, std::slice::from_ref(&old)).unwrap();
    }
    fixture.meta.hold("one", &[secret_root(4)]).unwrap();
    fixture.meta.hold("two", &[secret_root(5)]).unwrap();
    for (name, epoch) in [("first", 1), ("second", 2)] {
        assert_eq!(fixture.meta.create_snapshot(name, 1, &["tag".into()]).unwrap().epoch, epoch);
    }
    fixture.meta.records().set_record("test", "one", Some("1")).unwrap();
    fixture.meta.records().set_record("test", "two", Some("2")).unwrap();
    assert_eq!(fixture.findings(), [""; 0]);
    Some(fixture)
}

/// A way to harm a database, and the reading that must notice.
type Harm = (&'static str, fn(&dyn Meta) -> outrigger_store::Result<()>);

/// `@` stands for the schema, and `~(COLUMN)` for the column with one bit changed.
const HARMS: &[Harm] = &[
    ("UPDATE @dentry SET name = ~(name) WHERE inode = 11", |meta| page(meta, 10)),
    ("UPDATE @dentry SET parent = 20 WHERE inode = 12", |meta| page(meta, 20)),
    ("UPDATE @dentry SET name = (SELECT name FROM @dentry WHERE inode = 22) WHERE inode = 12", |meta| {
        page(meta, 10)
    }),
    ("UPDATE @dentry SET inode = 21 WHERE inode = 11", |meta| lookup(meta, 10, b"f")),
    (
        "UPDATE @dentry d SET inode = 12, sum = n.sum FROM @dentry n WHERE d.inode = 11 AND n.inode = 12",
        |meta| lookup(meta, 10, b"f"),
    ),
    ("UPDATE @inode SET xattrs = ~(xattrs) WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode i SET xattrs = o.xattrs FROM @inode o WHERE i.number = 11 AND o.number = 21", |meta| {
        inode(meta, 11)
    }),
    (
        "UPDATE @inode i SET xattrs = o.xattrs, sum = o.sum FROM @inode o WHERE i.number = 11 AND o.number = 21",
        |meta| inode(meta, 11),
    ),
    ("UPDATE @inode SET xattrs = NULL WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode SET root = ~(root) WHERE number = 11", |meta| lookup(meta, 10, b"f")),
    (
        "UPDATE @inode i SET root = o.root, sum = o.sum FROM @inode o WHERE i.number = 11 AND o.number = 21",
        |meta| lookup(meta, 10, b"f"),
    ),
    ("UPDATE @inode SET root = xattrs WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode SET root = NULL WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode SET root = '' WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode SET target = ~(target) WHERE number = 12", |meta| page(meta, 10)),
    (
        "UPDATE @inode i SET target = o.target, sum = o.sum FROM @inode o WHERE i.number = 12 AND o.number = 22",
        |meta| inode(meta, 12),
    ),
    ("UPDATE @inode SET mode = mode | 2048 WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @inode SET uid = 0 WHERE number = 11", |meta| inode(meta, 11)),
    ("UPDATE @directory SET parent = 20 WHERE inode = 10", |meta| meta.parent_of(10).map(drop)),
    (
        "UPDATE @version v SET root = o.root, sum = o.sum FROM @version o WHERE v.inode = 11 AND o.inode = 21",
        |meta| meta.versions(11).map(drop),
    ),
    ("UPDATE @version SET root = ~(root) WHERE inode = 11", |meta| meta.versions(11).map(drop)),
    (
        "UPDATE @held h SET root = o.root, sum = o.sum FROM @held o WHERE h.holder = 'one' AND o.holder = 'two'",
        |meta| meta.held("one").map(drop),
    ),
    (
        "UPDATE @snapshot SET name = 'x' || name WHERE epoch = 2; UPDATE @snapshot SET name = (SELECT substr(name, 2) FROM @snapshot WHERE epoch = 2) WHERE epoch = 1",
        |meta| meta.snapshots().map(drop),
    ),
    ("UPDATE @snapshot SET tags = '{}' WHERE epoch = 1", |meta| meta.snapshots().map(drop)),
    ("UPDATE @record SET value = (SELECT max(value) FROM @record WHERE kind = 'test')", |meta| {
        meta.records().records("test").map(drop)
    }),
    ("UPDATE @record SET kind = 'other'", |meta| meta.records().records("other").map(drop)),
];

fn page(meta: &dyn Meta, directory: u64) -> outrigger_store::Result<()> {
    meta.read_dir(At::Now, directory, None, 9).map(drop)
}

fn lookup(meta: &dyn Meta, directory: u64, name: &[u8]) -> outrigger_store::Result<()> {
    meta.lookup(At::Now, directory, name).map(drop)
}

fn inode(meta: &dyn Meta, number: u64) -> outrigger_store::Result<()> {
    meta.inode(At::Now, number).map(drop)
}

#[test]
fn what_the_server_changes_is_damage_and_never_other_data() {
    for (harm, read) in HARMS {
        let Some(fixture) = prepared() else { return };
        let (server, schema) = fixture.server();
        read(&*fixture.meta).unwrap_or_else(|error| panic!("before `{harm}`: {error}"));
        let mut sql = harm.replace('@', &format!("{schema}."));
        while let Some((before, rest)) = sql.split_once("~(") {
            let (column, after) = rest.split_once(')').unwrap();
            sql = format!("{before}set_byte({column}, 7, get_byte({column}, 7) # 1){after}");
        }
        server.sql(&sql);
        let error = read(&*fixture.meta).expect_err(harm);
        assert_eq!(error.kind(), ErrorKind::Damaged, "{harm}: {error}");
        assert_ne!(fixture.findings(), [""; 0], "{harm}");
    }
}

/// Of a host that only stores: what lies in the database of contents has a key that it lacks.
#[test]
fn a_sealer_without_contents_opens_names_and_no_inline_chunk() {
    let Some(fixture) = meta_support::sealed() else { return };
    fill(&*fixture.meta);
    let (server, schema) = fixture.server();
    let location = outrigger_store::meta::Location::parse(&server.url(schema)).unwrap();
    let stores = PostgresMeta::open(location, false).unwrap();
    stores.seal_with(Sealer::with(&Key::new([1; 32]), None));
    let stores: &dyn Meta = &stores;
    let root = |meta: &dyn Meta| meta.read_dir(At::Now, R, None, 9).unwrap();
    assert_eq!(root(stores), root(&*fixture.meta));
    let name = Fingerprint(secret_fingerprint(1));
    let wanted = b"secret-bytes-of-an-inline-chunk".repeat(3);
    assert_eq!(fixture.meta.inline().inline_chunk(&name).unwrap(), Some(wanted));
    assert!(stores.inline().inline_among(&[name]).unwrap().contains(&name), "it may know that it is there");
    let refused = stores.inline().inline_chunk(&name).unwrap_err();
    assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("--key-file"), "{refused}");
    assert_eq!(kind(stores.inline().visit_inline(&mut |_| Ok(()))), ErrorKind::Denied);
}

#[test]
fn another_key_opens_nothing_and_is_said() {
    let Some(fixture) = prepared() else { return };
    let (server, schema) = fixture.server();
    let location = outrigger_store::meta::Location::parse(&server.url(schema)).unwrap();
    let other = PostgresMeta::open(location, false).unwrap();
    other.seal_with(sealer(2));
    use outrigger_store::meta::Tree as _;
    let error = other.read_dir(At::Now, 10, None, 9).unwrap_err();
    let wanted = "a name in directory 10 (dentry.name) cannot be decrypted: it was changed, or sealed under another key";
    assert!(error.to_string().contains(wanted), "{error}");
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(other.lookup(At::Now, 10, b"f").unwrap(), None, "it has no such name, and none is shown");
    assert_eq!(kind(other.inode(At::Now, 11)), ErrorKind::Damaged);
    assert_eq!(kind(commit(&other, writer(&other), vec![remove(R, "a")], 9)), ErrorKind::Damaged);
}

#[test]
fn a_large_directory_is_listed_in_order_while_names_come_and_go() {
    const NAMES: u64 = 3000;
    const PAGE: usize = 100;
    let Some(fixture) = meta_support::sealed() else { return };
    let meta = &*fixture.meta;
    meta.raise_counters(1, 100_000, 1).unwrap();
    let session = fixture.writer();
    let name = |number: u64| format!("{:04x}-{number}", number.wrapping_mul(40_503) % 65_536);
    let mut changes = vec![dir(R, "d", 10)];
    changes.extend((0..NAMES).map(|number| file(10, &name(number), 1000 + number, 1)));
    fixture.commit(session, changes).unwrap();
    let snapshot = meta.create_snapshot("s", 1, &[]).unwrap().epoch;
    let all: BTreeSet<Vec<u8>> = (0..NAMES).map(|number| name(number).into_bytes()).collect();
    // Another client removes names and makes new ones between the pages, and so does this one.
    let other = fixture.another();
    let others = writer(&*other);
    let mut gone = BTreeSet::new();
    let (mut listed, mut after, mut turn): (Vec<Vec<u8>>, Option<Vec<u8>>, u64) = Default::default();
    loop {
        let page = meta.read_dir(At::Now, 10, after.as_deref(), PAGE).unwrap();
        listed.extend(page.iter().map(|entry| entry.name.clone()));
        if page.len() < PAGE {
            break;
        }
        after = listed.last().cloned();
        let mut changes = Vec::new();
        for number in (turn..NAMES).step_by(97) {
            if gone.insert(name(number).into_bytes()) {
                changes.push(remove(10, &name(number)));
            }
        }
        changes.push(file(10, &format!("~other{turn}"), 10_000 + turn, 1));
        commit(&*other, others, changes, 2).unwrap();
        fixture.commit(session, vec![file(10, &format!("~own{turn}"), 20_000 + turn, 1)]).unwrap();
        turn += 1;
    }
    assert!(turn > 15, "many pages: {turn}");
    assert!(listed.is_sorted_by(|a, b| a < b), "names rise");
    let found: BTreeSet<Vec<u8>> = listed.into_iter().collect();
    assert!(all.difference(&gone).all(|name| found.contains(name)), "what was there all the time is listed");
    for number in 0..turn {
        assert!(
            found.contains(format!("~own{number}").as_bytes()),
            "what this client made is listed: {number}"
        );
    }
    let list = |at, size: usize| {
        let (mut listed, mut after): (Vec<Vec<u8>>, Option<Vec<u8>>) = Default::default();
        loop {
            let page = fixture.meta.read_dir(at, 10, after.as_deref(), size).unwrap();
            listed.extend(page.iter().map(|entry| entry.name.clone()));
            if page.len() < size {
                return listed;
            }
            after = listed.last().cloned();
        }
    };
    let then: Vec<Vec<u8>> = all.iter().cloned().collect();
    assert_eq!(list(At::Epoch(snapshot), 250), then, "3,000 are twelve pages, and one that is empty");
    assert_eq!(list(At::Epoch(snapshot), usize::MAX), then);
    let now: BTreeSet<Vec<u8>> = list(At::Now, 701).into_iter().collect();
    let made = (0..turn).flat_map(|number| [format!("~other{number}"), format!("~own{number}")]);
    let made: BTreeSet<Vec<u8>> = made.map(String::into_bytes).collect();
    assert_eq!(now, all.difference(&gone).cloned().chain(made).collect());
    // From a name that no page ended with.
    let some = fixture.meta.read_dir(At::Epoch(snapshot), 10, Some(&then[1234]), 3).unwrap();
    assert_eq!(some.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), then[1235..1238]);
    assert_eq!(fixture.findings(), [""; 0]);
}
