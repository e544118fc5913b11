//! Files that are overwritten in one of several mounts while programs read them.

use std::thread;

use outrigger_fuse::fs::{FileSystem as _, OpenFlags, SetAttr};
use outrigger_fuse::live::Tailed;
use outrigger_fuse::shared::{left_open, let_go};
use outrigger_store::meta::jobs::{JobState, SplitState};
use rustix::fs::{OFlags, RenameFlags, XattrFlags};

use super::follow::{MAKE, Site, follow, wait_closed};
use super::hosts::{Host, USER};

const OVERWRITE: OpenFlags = OpenFlags::RDWR.union(OFlags::TRUNC);

/// A file that is there, and whose job has ended.
fn made(host: &Host, name: &str, content: &[u8]) -> u64 {
    host.put(name, content).unwrap();
    let number = host.find(name).unwrap();
    wait_closed(host, number);
    number
}

fn data(bytes: &[u8]) -> Tailed {
    Tailed::Data(bytes.to_vec())
}

#[test]
fn what_is_emptied_and_written_is_followed_from_then_on_and_others_see_it_when_it_is_closed() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let number = made(&one, "raw", b"before");
    let jobs = || site.store.jobs().jobs(99).unwrap().len();
    // Opened with O_TRUNC; cut by who has it open; cut by its name, and then opened; on the host
    // that made it, and on another; where it was moved to.
    let cut = |host: &Host| SetAttr {
        size: Some(0),
        handle: Some(host.open("raw", MAKE).unwrap().handle),
        ..SetAttr::default()
    };
    for (round, host) in [&one, &two, &one, &two, &one, &two].into_iter().enumerate() {
        let before = (jobs(), two.cat("raw").unwrap());
        let open = match round {
            0 | 1 => host.open("raw", OVERWRITE).unwrap(),
            2 | 3 => {
                let set = cut(host);
                host.volume.set_attributes(USER, number, &set).unwrap();
                super::hosts::Open { host, number, handle: set.handle.unwrap() }
            }
            _ => {
                host.truncate("raw", 0).unwrap();
                assert_eq!(jobs(), before.0, "nobody writes it yet");
                host.open("raw", OpenFlags::WRONLY).unwrap()
            }
        };
        assert_eq!((open.number, jobs()), (number, before.0 + 1), "round {round}");
        let (job, text) = (site.newest(), format!("overwritten {round}"));
        let claimed = site.claim(job);
        open.write(0, text.as_bytes()).unwrap();
        assert_eq!(follow(host, number, 0), data(text.as_bytes()));
        open.write(text.len() as u64, b"!").unwrap();
        if round < 4 {
            let other = if host.volume.dir() == one.volume.dir() { &two } else { &one };
            assert_eq!(other.cat("raw").unwrap(), before.1, "round {round}");
        }
        open.close().unwrap();
        wait_closed(host, number);
        let expected = [text.as_bytes(), b"!"].concat();
        assert_eq!((one.cat("raw").unwrap(), two.cat("raw").unwrap()), (expected.clone(), expected.clone()));
        assert!(site.input(job) == expected);
        let split = site.split(job);
        assert_eq!((split.state, split.attempt), (SplitState::Running, claimed.attempt), "round {round}");
    }
    // A file that is only appended to is not followed; nor is one that another host has written
    // since it was cut.
    let before = jobs();
    one.append("raw", b"more").unwrap();
    one.truncate("raw", 0).unwrap();
    let wrote = two.open("raw", OpenFlags::WRONLY | OFlags::APPEND).unwrap();
    wrote.write(0, b"from two").unwrap();
    wrote.close().unwrap();
    one.append("raw", b", and one").unwrap();
    assert_eq!((jobs(), two.cat("raw").unwrap()), (before, b"from two, and one".to_vec()));
    // The rules for its present place count.
    two.rename("raw", "other", RenameFlags::empty()).unwrap();
    one.put("other", b"none").unwrap();
    assert_eq!(jobs(), before);
    one.rename("other", "raw2", RenameFlags::empty()).unwrap();
    two.put("raw2", b"last").unwrap();
    wait_closed(&two, number);
    assert_eq!(jobs(), before + 1);
    assert_eq!(site.store.jobs().inputs(site.newest()).unwrap()[0].path, b"raw2");
    two.volume.close(|| ()).unwrap();
    one.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn each_of_two_mounts_that_overwrite_a_file_follows_it_and_leaves_the_others_version_alone() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let number = made(&one, "raw", b"before");
    let first = one.open("raw", OVERWRITE).unwrap();
    let job = site.newest();
    let claimed = site.claim(job);
    let second = two.open("raw", OVERWRITE).unwrap();
    let later = site.newest();
    assert!(job < later);
    first.write(0, b"first, and longer").unwrap();
    second.write(0, b"second").unwrap();
    assert_eq!(
        (follow(&one, number, 0), follow(&two, number, 0)),
        (data(b"first, and longer"), data(b"second"))
    );
    second.close().unwrap();
    wait_closed(&two, number);
    site.reclaim();
    assert_eq!(
        (site.input(later), one.cat("raw").unwrap()),
        (b"second".to_vec(), b"first, and longer".to_vec())
    );
    // The last close wins; what was read before another content came between counts as changed.
    first.close().unwrap();
    wait_closed(&one, number);
    site.reclaim();
    assert_eq!(
        (site.input(job), two.cat("raw").unwrap()),
        (b"first, and longer".to_vec(), b"first, and longer".to_vec())
    );
    let split = site.split(job);
    assert!(split.state == SplitState::Waiting && split.attempt > claimed.attempt);
    // One takes the name away: what it writes is still its job's, whatever becomes of the other
    // one.
    let first = one.open("raw", OVERWRITE).unwrap();
    let job = site.newest();
    let second = two.open("raw", OVERWRITE).unwrap();
    let later = site.newest();
    first.write(0, b"nameless").unwrap();
    one.unlink("raw").unwrap();
    first.sync().unwrap();
    let _ = second.close();
    wait_closed(&two, number);
    let row = site.row(later);
    assert!(row.state == JobState::Failed && row.why.contains("another host removed"), "{}", row.why);
    site.reclaim();
    first.close().unwrap();
    wait_closed(&one, number);
    site.reclaim();
    assert_eq!(site.input(job), b"nameless");
    two.volume.close(|| ()).unwrap();
    one.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn programs_of_one_mount_that_overwrite_a_file_at_once_begin_one_job() {
    let Some(site) = Site::new() else { return };
    let one = site.mount();
    let number = made(&one, "rawslow", b"before");
    let before = site.store.jobs().jobs(99).unwrap().len();
    thread::scope(|scope| {
        let open = || {
            let open = one.open("rawslow", OVERWRITE).unwrap();
            open.write(0, b"all").unwrap();
            open
        };
        let opened: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        let opened: Vec<_> = opened.into_iter().map(|open| open.join().unwrap()).collect();
        assert_eq!(site.store.jobs().jobs(99).unwrap().len(), before + 1);
        opened.into_iter().for_each(|open| open.close().unwrap());
    });
    wait_closed(&one, number);
    assert_eq!(site.input(site.newest()), b"all");
    one.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn what_is_given_up_or_lost_while_it_is_overwritten_stays_a_file() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let number = made(&one, "raw", b"before");
    let open = one.open("raw", OVERWRITE).unwrap();
    let job = site.newest();
    open.write(0, b"wrong").unwrap();
    one.volume.set_xattr(USER, number, b"user.outrigger.abort", b"1", XattrFlags::empty()).unwrap();
    open.close().unwrap();
    wait_closed(&one, number);
    let row = site.row(job);
    assert!(row.state == JobState::Failed && row.why.contains("gave"), "{}", row.why);
    assert_eq!((two.cat("raw").unwrap(), two.find("raw").unwrap()), (b"wrong".to_vec(), number));
    assert!(two.volume.xattrs(USER, number).unwrap().is_empty(), "the next one has not given up");
    // One of two mounts that overwrite it is killed: what is let go of is its own.
    let (first, second) = (one.open("raw", OVERWRITE).unwrap(), two.open("raw", OVERWRITE).unwrap());
    let job = site.newest();
    first.write(0, b"lost").unwrap();
    second.write(0, b"kept").unwrap();
    two.unlink("raw").unwrap();
    second.sync().unwrap();
    drop(one);
    let left = left_open(&site.store).unwrap();
    assert_eq!(left.iter().map(|left| left.record.inode).collect::<Vec<_>>(), [number]);
    let_go(&site.store, &left[0]).unwrap();
    site.reclaim();
    second.close().unwrap();
    wait_closed(&two, number);
    site.reclaim();
    assert_eq!(site.input(job), b"kept");
    two.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}
