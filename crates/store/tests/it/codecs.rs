//! Codecs, filters and policies through the whole store: files come back byte for byte, stored as
//! requested.
#![cfg(feature = "testing")]

use crate::gc_support;

use gc_support::*;
use outrigger_format::{CodecChoice, Reason};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::SessionKind;
use outrigger_store::ops::stats::{FrameKey, FrameTotals, stats};
use outrigger_store::tree::require;
use outrigger_store::write::{Progress, set_policy};
use outrigger_store::{Profile, Store, StoreConfig};
use outrigger_workload::Rng;

fn store_with(dir: &std::path::Path, codec: &str) -> Store {
    let codec = CodecChoice::parse(codec).unwrap();
    let config = StoreConfig {
        codec,
        pack_size: 1 << 20,
        frame_size: 128 << 10,
        ..Profile::Default.config().unwrap()
    };
    Store::init(&dir.join(codec.to_string().replace(':', "-")), &config).unwrap()
}

/// Frames of data, by how they are stored.
fn data_frames(store: &Store) -> Vec<(FrameKey, FrameTotals)> {
    let all = stats(store, usize::MAX).unwrap().frames;
    all.into_iter().filter(|(key, _)| key.kind == "data").collect()
}

fn encodings(store: &Store) -> Vec<String> {
    data_frames(store).into_iter().map(|(key, _)| key.encoding).collect()
}

fn text(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    let mut bytes = Vec::with_capacity(len + 60);
    while bytes.len() < len {
        let line = format!("{:08} host{} GET /item/{}\n", bytes.len(), rng.below(30), rng.below(100_000));
        bytes.extend_from_slice(line.as_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn floats(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len / 4).flat_map(|_| (rng.below(1 << 24) as f32 / (1u32 << 24) as f32 - 0.5).to_le_bytes()).collect()
}

fn wholly_sound(store: &Store) {
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(store, &options, &CheckProgress::default()).unwrap();
    assert_eq!((report.damaged, report.mended), (0, 0), "{report:?}");
}

#[test]
fn every_codec_restores_every_kind_of_data_byte_for_byte() {
    let dir = scratch();
    let contents =
        [text(700_001), floats(1, 900_000), unique(2, 500_003), vec![0; 300_000], text(1), Vec::new()];
    for codec in [
        "none",
        "lz4",
        "zle",
        "lzjb",
        "gzip:1",
        "gzip:9",
        "deflate:6",
        "zstd:-3",
        "zstd:1",
        "zstd:12",
        "auto",
        "auto:ratio",
        "auto:cpu",
    ] {
        let store = store_with(dir.path(), codec);
        for (number, content) in contents.iter().enumerate() {
            put_bytes(&store, &format!("f{number}"), content.clone()).unwrap();
        }
        drop(store);
        let at = dir.path().join(codec.replace(':', "-"));
        let store = Store::open(&at, false).unwrap();
        for (number, content) in contents.iter().enumerate() {
            assert!(read(&store, &format!("f{number}")) == *content, "{codec}: f{number}");
        }
        wholly_sound(&store);
        let found = encodings(&store);
        // Incompressible data is stored uncompressed, whatever codec is asked for; the numbers are
        // grouped wherever there is an entropy stage.
        assert!(found.contains(&"none".to_string()), "{codec}: {found:?}");
        if ["gzip", "deflate", "zstd", "auto"].iter().any(|name| codec.starts_with(name)) {
            let grouped = |one: &String| one.ends_with("+float4") || one.ends_with("+group4");
            assert!(found.iter().any(grouped), "{codec}: {found:?}");
        }
        if !codec.starts_with("auto") {
            assert!(found.iter().all(|one| one == "none" || one.starts_with(codec)), "{codec}: {found:?}");
        }
        // Copied by the collector, the same.
        remove(&store, "f0").unwrap();
        collect(&store, &thorough()).unwrap();
        for (number, content) in contents.iter().enumerate().skip(1) {
            assert!(read(&store, &format!("f{number}")) == *content, "{codec}: f{number} after gc");
        }
        wholly_sound(&store);
    }
}

#[test]
fn what_was_refused_once_is_not_tried_again_when_it_is_copied() {
    let dir = scratch();
    let store = store_with(dir.path(), "zstd:3");
    store.meta.set_policy(1, "versions", Some("none")).unwrap();
    // Chunks of one pack, half of which go: the others are joined to new frames.
    let sources = (0..12).map(|n| {
        let stream = std::io::Cursor::new(unique(n, 50_000));
        (Source::Stream(Box::new(stream)), path(&n.to_string()))
    });
    let progress = std::sync::Arc::new(Progress::default());
    put(&store, sources.collect(), &PutOptions::default(), 2, &progress).unwrap();
    let reasons = |store: &Store| -> Vec<Reason> {
        data_frames(store).into_iter().map(|(key, _)| key.reason).collect()
    };
    assert_eq!(reasons(&store), [Reason::Random]);
    for n in 0..12 {
        if n % 2 == 0 {
            remove(&store, &format!("{n}")).unwrap();
        }
    }
    collect(&store, &thorough()).unwrap();
    assert_eq!(reasons(&store), [Reason::Known]);
    for n in (1..12).step_by(2) {
        assert_eq!(read(&store, &format!("{n}")), unique(n, 50_000));
    }
}

#[test]
fn directories_and_files_may_say_otherwise() {
    let dir = scratch();
    let store = store_with(dir.path(), "zstd:1");
    for name in ["packed", "plain", "tight"] {
        put_bytes(&store, &format!("{name}/first"), Vec::new()).unwrap();
    }
    let session = store.session(SessionKind::Writer, "test").unwrap();
    let inode =
        |name: &str| require(&*store.meta, outrigger_store::meta::At::Now, &path(name)).unwrap().number;
    for (name, key, value) in [
        ("packed", "codec", "gzip:9"),
        ("plain", "codec", "none"),
        ("tight", "budget", "5"),
        ("tight", "filters", "off"),
    ] {
        set_policy(&store, &session, inode(name), key, Some(value)).unwrap();
    }
    for (key, value) in [("budget", "0"), ("budget", "100"), ("filters", "maybe"), ("codec", "brotli")] {
        assert!(set_policy(&store, &session, inode("plain"), key, Some(value)).is_err(), "{key}={value}");
    }
    drop(session);
    for (n, name) in ["packed/a", "plain/a", "tight/a", "a"].into_iter().enumerate() {
        put_bytes(&store, name, text(200_000 + n)).unwrap();
    }
    let mut found = encodings(&store);
    found.dedup();
    assert_eq!(found, ["gzip:9", "none", "zstd:1"]);
    let reasons: Vec<Reason> = data_frames(&store)
        .into_iter()
        .filter(|(key, _)| key.codec == "none")
        .map(|(key, _)| key.reason)
        .collect();
    assert_eq!(reasons, [Reason::Policy, Reason::Budget]);
    for (n, name) in ["packed/a", "plain/a", "tight/a", "a"].into_iter().enumerate() {
        assert_eq!(read(&store, name), text(200_000 + n));
    }
}

#[test]
fn a_file_may_hint() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), "zstd:1");
    let (small, large, wrong) =
        (dir.path().join("small"), dir.path().join("large"), dir.path().join("wrong"));
    for (file, len, hint) in
        [(&small, 100_000, &b"lz4"[..]), (&large, 3_000_000, b"gzip:1\n"), (&wrong, 90_000, b"no such codec")]
    {
        std::fs::write(file, text(len)).unwrap();
        let set = rustix::fs::setxattr(file, "user.outrigger.codec", hint, rustix::fs::XattrFlags::empty());
        if let Err(errno) = set {
            println!("not tested: this file system has no extended attributes of users ({errno})");
            return;
        }
        let source = (Source::Path(file.clone()), path(file.file_name().unwrap().to_str().unwrap()));
        let progress = std::sync::Arc::new(Progress::default());
        put(&store, vec![source], &PutOptions::default(), 2, &progress).unwrap();
    }
    let mut found = encodings(&store);
    found.dedup();
    assert_eq!(found, ["gzip:1", "lz4", "zstd:1"]);
    assert_eq!(read(&store, "large"), text(3_000_000));
}
