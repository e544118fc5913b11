//! The order of write-back: what is written again before its turn is not stored, and nothing is
//! lost of what is kept back.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use outrigger_fuse::fs::{FileSystem, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume, Order};
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_workload::eventually;
use rustix::fs::RenameFlags;
use support::rewritten::{ROOM, Rewritten};
use support::volume::{close, create, mount, random, read, reclaim, write};
use support::{Place, ROOT_USER, find, read_whole};

fn options(order: Order, staging_bytes: u64) -> LiveOptions {
    let batch_bytes = staging_bytes / 2;
    // Nothing is stored for being idle.
    let idle = Duration::from_secs(3600);
    LiveOptions { order, staging_bytes, batch_bytes, idle, ..LiveOptions::new(2) }
}

fn status(volume: &LiveVolume) -> Status {
    let mut status = Status::default();
    volume.watch(&mut status);
    assert_eq!(status.destage_failures, 0);
    status
}

/// Percent of the written bytes that the flusher stored.
fn stored_of_rewritten(order: Order, permille: u64) -> f64 {
    let place = Place::new();
    let volume = mount(&place, options(order, ROOM));
    let file = create(&volume, ROOT, b"file");
    let mut workload = Rewritten::new(10_000, permille);
    workload.run(usize::MAX, |offset, bytes| write(&volume, file, offset, bytes));
    assert!(workload.is(&read(&volume, file, workload.len())));
    volume.destage_all().unwrap();
    assert!(workload.is(&read(&volume, file, workload.len())));
    let Status { destaged_bytes, new_bytes, .. } = status(&volume);
    println!("{order:?}: {destaged_bytes} and {new_bytes} of {} bytes", workload.written);
    assert!(new_bytes * 100 <= destaged_bytes * 105, "neighbours of what is due were cut again");
    close(&volume, file);
    volume.close().unwrap();
    100.0 * destaged_bytes as f64 / workload.written as f64
}

#[test]
fn data_that_is_written_again_soon_is_stored_once() {
    let [destage_aware, fifo, reverse] =
        [Order::LeastRecentlyWritten, Order::FirstWritten, Order::MostRecentlyWritten]
            .map(|order| stored_of_rewritten(order, 800));
    // A fifth of the requests are new.
    assert!((19.0..=24.0).contains(&destage_aware), "{destage_aware} %");
    assert!(fifo > destage_aware + 4.0, "{fifo} % and {destage_aware} %");
    assert!(reverse > destage_aware + 12.0, "{reverse} % and {destage_aware} %");
}

#[test]
fn data_that_is_written_all_the_time_is_seldom_stored_and_stops_nobody() {
    let place = Place::new();
    let volume = mount(&place, options(Order::default(), 8 << 20));
    let file = create(&volume, ROOT, b"hot");
    let bytes = random(1, 1 << 20);
    for round in 0..100 {
        for (at, part) in bytes.chunks(64 << 10).enumerate() {
            write(&volume, file, (((at + round) % 16) << 16) as u64, part);
        }
    }
    let stored = status(&volume).destaged_bytes;
    // None at all, if the flusher keeps up; on a busy machine it comes late, and frees more at once.
    assert!(stored <= 33 << 20, "{stored} of {} bytes were stored", 100 << 20);
    close(&volume, file);
    volume.close().unwrap();
}

#[test]
fn data_that_is_written_once_is_stored_in_large_batches() {
    let place = Place::new();
    let volume = mount(&place, options(Order::default(), ROOM));
    let file = create(&volume, ROOT, b"file");
    for at in 0..96 {
        write(&volume, file, at << 20, &random(at, 1 << 20));
    }
    let Status { destaged_bytes, destage_seconds, .. } = status(&volume);
    let batches = destage_seconds.count();
    assert!(destaged_bytes >= batches * (ROOM / 4), "{destaged_bytes} bytes in {batches} batches");
    close(&volume, file);
    volume.close().unwrap();
}

/// Runs the workload until a part of the file is stored and the rest is kept back.
fn until_some_is_kept(volume: &LiveVolume, file: (u64, u64), workload: &mut Rewritten) {
    let mut rounds = 0;
    while rounds < 3 {
        let before = status(volume).destaged_bytes;
        workload.run(1500, |offset, bytes| write(volume, file, offset, bytes));
        eventually("a part is stored", || status(volume).destaged_bytes > before);
        rounds += 1;
    }
    assert!(status(volume).staging_used_bytes > ROOM / 4, "most of the log is kept");
}

#[test]
fn what_is_kept_back_survives_the_process_and_renames() {
    let place = Place::new();
    let volume = mount(&place, options(Order::default(), ROOM));
    let (file, gone) = (create(&volume, ROOT, b"file"), create(&volume, ROOT, b"gone"));
    let mut workload = Rewritten::new(10_000, 800);
    let mut other = Rewritten::new(10_000, 800);
    until_some_is_kept(&volume, file, &mut workload);
    other.run(600, |offset, bytes| write(&volume, gone, offset, bytes));
    volume.unlink(ROOT_USER, ROOT, b"gone").unwrap();
    volume.rename(ROOT_USER, (ROOT, b"file"), (ROOT, b"renamed"), RenameFlags::empty()).unwrap();
    other.run(600, |offset, bytes| write(&volume, gone, offset, bytes));
    workload.run(600, |offset, bytes| write(&volume, file, offset, bytes));
    assert!(other.is(&read(&volume, gone, other.len())));
    reclaim(&place);
    assert!(workload.is(&read(&volume, file, workload.len())));
    drop(volume);
    let volume = mount(&place, options(Order::default(), ROOM));
    let renamed = find(&volume, "renamed");
    assert!(workload.is(&read_whole(&volume, &renamed, 1 << 20).unwrap()));
    assert!(support::is_missing(&volume, ROOT, "gone"));
    volume.close().unwrap();
    let report = check(
        &place.open(),
        &CheckOptions { read_data: true, repair: false, threads: 2 },
        &CheckProgress::default(),
    );
    assert!(report.unwrap().findings.is_empty());
    let view = place.volume(None);
    assert!(workload.is(&read_whole(&view, &find(&view, "renamed"), 1 << 20).unwrap()));
}

#[test]
fn a_snapshot_has_what_was_kept_back() {
    let place = Place::new();
    let volume = Arc::new(mount(&place, options(Order::default(), ROOM)));
    let file = create(&volume, ROOT, b"file");
    let mut workload = Rewritten::new(10_000, 800);
    until_some_is_kept(&volume, file, &mut workload);
    let paused = volume.pause().unwrap();
    place.snapshot("now");
    drop(paused);
    let view = place.volume(Some("now"));
    assert!(workload.is(&read_whole(&view, &find(&view, "file"), 1 << 20).unwrap()));
    close(&volume, file);
    volume.close().unwrap();
}

#[test]
fn a_file_that_is_cut_while_a_part_of_it_is_kept_back_stays_cut() {
    let place = Place::new();
    let volume = mount(&place, options(Order::default(), ROOM));
    let file = create(&volume, ROOT, b"file");
    let mut workload = Rewritten::new(10_000, 800);
    until_some_is_kept(&volume, file, &mut workload);
    let half = workload.len() as u64 / 2;
    let resize = |size| {
        let set = outrigger_fuse::fs::SetAttr { size: Some(size), ..Default::default() };
        volume.set_attributes(ROOT_USER, file.0, &set).unwrap();
    };
    resize(half);
    resize(half + 1000);
    let mut expected = read(&volume, file, workload.len());
    assert!(expected.len() as u64 == half + 1000 && expected[half as usize..] == [0; 1000]);
    // Another file fills the log, so that the cut is stored with a part of the data.
    let other = create(&volume, ROOT, b"other");
    let mut more = Rewritten::new(10_000, 800);
    until_some_is_kept(&volume, other, &mut more);
    assert!(read(&volume, file, 1 << 30) == expected);
    write(&volume, file, half + 500, b"end");
    expected[half as usize + 500..][..3].copy_from_slice(b"end");
    drop(volume);
    let volume = mount(&place, options(Order::default(), ROOM));
    assert!(read_whole(&volume, &find(&volume, "file"), 1 << 20).unwrap() == expected);
    assert!(more.is(&read_whole(&volume, &find(&volume, "other"), 1 << 20).unwrap()));
    volume.close().unwrap();
}
