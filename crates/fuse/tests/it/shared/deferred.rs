//! Deferred closes: they are committed in order and within their time, and this mount sees them as
//! if they had been.

use std::time::{Duration, Instant};

use outrigger_fuse::fs::{FileSystem, OpenFlags, ROOT, SetAttr};
use outrigger_fuse::shared::{SharedOptions, await_closed};
use rustix::fs::{OFlags, RenameFlags};

use super::hosts::{Cluster, Host, USER};
use super::{RDWR, random};

const LONG: Duration = Duration::from_secs(3600);

fn mount(cluster: &Cluster, closes_within: Duration) -> Host {
    cluster.mount_with(SharedOptions { closes_within, ..SharedOptions::new(2) })
}

#[test]
fn nothing_that_a_mount_does_is_seen_before_what_was_closed_earlier() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, LONG), cluster.mount());
    one.put("other", b"there").unwrap();
    one.volume.fsync_dir(ROOT, 0).unwrap();
    let number = one.find("other").unwrap();
    type Act = fn(&Host, u64);
    let acts: [(&str, Act); 10] = [
        ("a file", |one, _| one.open("made", RDWR | OFlags::CREATE | OFlags::EXCL).unwrap().close().unwrap()),
        ("a directory", |one, _| one.mkdir("dir").unwrap()),
        ("a link", |one, _| one.link("other", "linked").unwrap()),
        ("a rename", |one, _| one.rename("linked", "moved", RenameFlags::empty()).unwrap()),
        ("a removal", |one, _| one.unlink("moved").unwrap()),
        ("a mode", |one, _| one.chmod("other", 0o600).unwrap()),
        ("a length", |one, number| {
            let set = SetAttr { size: Some(3), ..SetAttr::default() };
            one.volume.set_attributes(USER, number, &set).map(drop).unwrap();
        }),
        ("a sync", |one, _| {
            let open = one.open("other", RDWR).unwrap();
            open.sync().unwrap();
            open.close().unwrap();
        }),
        ("a large file", |one, _| one.put("large", &random(1, 300_000)).unwrap()),
        ("a file that gets its name", |one, _| one.publish("published", b"whole").unwrap()),
    ];
    for (what, act) in acts {
        let name = format!("closed before {what}");
        one.put(&name, what.as_bytes()).unwrap();
        assert_eq!(two.cat(&name).unwrap(), b"", "a name is there at once, and {what} brings the bytes");
        assert_eq!(one.cat(&name).unwrap(), what.as_bytes());
        act(&one, number);
        assert_eq!(two.cat(&name).unwrap(), what.as_bytes());
        assert_eq!(two.stat(&name).unwrap().mtime, one.stat(&name).unwrap().mtime);
    }
    cluster.check();
}

#[test]
fn what_waits_is_stored_in_time_and_at_the_unmount_and_a_killed_mount_loses_it() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, Duration::from_millis(50)), cluster.mount());
    one.put("in time", b"there").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while two.cat("in time").unwrap() != b"there" {
        assert!(Instant::now() < end, "it was never stored");
        std::thread::sleep(Duration::from_millis(5));
    }
    let one = mount(&cluster, LONG);
    one.put("unmounted", b"there").unwrap();
    one.volume.close(|| {}).unwrap();
    assert_eq!(two.cat("unmounted").unwrap(), b"there");
    let one = mount(&cluster, LONG);
    one.put("killed", b"gone").unwrap();
    drop(one);
    assert_eq!(two.cat("killed").unwrap(), b"");
    cluster.check();
}

/// The content at the close is a version; a file that is opened again is one file.
#[test]
fn a_file_that_waits_is_opened_changed_and_removed_like_any_other() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, LONG), cluster.mount());
    one.put("f", b"first").unwrap();
    one.append("f", b", second").unwrap();
    assert_eq!(one.cat("f").unwrap(), b"first, second");
    assert_eq!(two.cat("f").unwrap(), b"first", "it was stored before it was written to again");
    // Two descriptors, of which one is closed.
    let open = one.open("g", RDWR | OFlags::CREATE).unwrap();
    open.write(0, b"one").unwrap();
    one.volume.flush(USER, open.number, open.handle).unwrap();
    open.write(3, b" two").unwrap();
    open.close().unwrap();
    assert_eq!(one.cat("g").unwrap(), b"one two");
    one.mkdir("carries").unwrap();
    assert_eq!(two.cat("g").unwrap(), b"one two");
    one.put("h", b"here").unwrap();
    let reader = one.open("h", OpenFlags::RDONLY).unwrap();
    one.unlink("h").unwrap();
    assert!(one.stat("h").is_err() && two.stat("h").is_err());
    assert_eq!(reader.read().unwrap(), b"here");
    reader.close().unwrap();
    one.put("f", b"").unwrap();
    one.mkdir("carries too").unwrap();
    assert_eq!(two.cat("f").unwrap(), b"");
    cluster.check();
}

/// Other hosts may do to a file that waits what they may do to one that is open.
#[test]
fn what_others_do_to_a_file_that_waits_is_in_nobodys_way() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, LONG), cluster.mount());
    for (name, other) in [("removed", true), ("written", false)] {
        one.put(name, b"here").unwrap();
        one.put("beside", name.as_bytes()).unwrap();
        one.put(&format!("{name} waits"), b"too").unwrap();
        if other {
            two.unlink(&format!("{name} waits")).unwrap();
        } else {
            two.put(&format!("{name} waits"), b"longer text").unwrap();
        }
        // The batch with the name is refused, and each file is committed alone.
        one.put(&format!("{name} last"), b"last").unwrap();
        one.volume.fsync_dir(ROOT, 0).unwrap();
        assert_eq!(two.cat(name).unwrap(), b"here");
        assert_eq!(two.cat("beside").unwrap(), name.as_bytes());
        assert_eq!(two.cat(&format!("{name} last")).unwrap(), b"last");
    }
    assert!(two.stat("removed waits").is_err());
    assert_eq!(two.cat("written waits").unwrap(), b"tooger text", "byte by byte the last close wins");
    cluster.check();
}

#[test]
fn many_that_make_files_at_once_are_seen_each_in_its_order() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, Duration::from_millis(2)), cluster.mount());
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|thread| {
                let one = &one;
                scope.spawn(move || {
                    for number in 0..30 {
                        one.put(&format!("{thread}-{number}"), format!("{thread} {number}").as_bytes())
                            .unwrap();
                    }
                })
            })
            .collect();
        let mut seen = 0;
        while !makers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            for name in two.list("").unwrap() {
                let (thread, number) = name.split_once('-').unwrap();
                let Some(before) = number.parse::<u32>().unwrap().checked_sub(1) else { continue };
                let wanted = format!("{thread} {before}");
                assert_eq!(
                    two.cat(&format!("{thread}-{before}")).unwrap(),
                    wanted.as_bytes(),
                    "{name} is there"
                );
                seen += 1;
            }
        }
        assert!(seen > 0, "nothing was looked at");
    });
    one.volume.fsync_dir(ROOT, 0).unwrap();
    assert_eq!(two.list("").unwrap().len(), 120);
    cluster.check();
}

#[test]
fn whoever_waits_for_what_was_closed_in_other_mounts_finds_it_and_waits_for_no_mount_that_is_gone() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (mount(&cluster, LONG), cluster.mount());
    let store = cluster.store();
    let most = Duration::from_secs(60);
    for name in ["part", "more", "again"] {
        one.put(name, b"closed").unwrap();
        assert_eq!(two.cat(name).unwrap(), b"");
        await_closed(&store, most).unwrap();
        assert_eq!(two.cat(name).unwrap(), b"closed");
    }
    // It has no more to say, but has left its record.
    one.put("lost", b"closed").unwrap();
    drop(one);
    await_closed(&store, most).unwrap();
    let records = |kind| store.meta.records().records(kind).unwrap().len();
    assert_eq!((records("close-barrier"), records("deferred-closes")), (0, 0));
    // One that takes its leave has none.
    let one = mount(&cluster, LONG);
    assert_eq!(records("deferred-closes"), 1);
    one.volume.close(|| {}).unwrap();
    assert_eq!(records("deferred-closes"), 0);
    drop((one, two));
    cluster.check();
}
