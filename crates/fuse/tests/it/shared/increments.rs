//! Incremental flush: what others may read of large files before they are closed, and that it does
//! not change the files' final content.

use std::time::{Duration, Instant};

use outrigger_format::Root;
use outrigger_fuse::fs::{FileSystem, SetAttr};
use outrigger_fuse::live::Tailed;
use outrigger_fuse::shared::SharedOptions;
use outrigger_store::increments;
use outrigger_store::meta::jobs::SplitState;
use outrigger_store::meta::{Role, SessionId};
use outrigger_workload::Rng;
use outrigger_workload::eventually;

use super::follow::{MAKE, Site, follow, wait_closed};
use super::hosts::{Host, USER};
use super::random;

impl Site {
    fn mount_incremental(&self, increment_bytes: u64) -> Host {
        self.cluster.mount_with(SharedOptions { increment_bytes, ..SharedOptions::new(2) })
    }

    /// The mount that holds a prefix of this file, and which.
    fn prefix(&self, inode: u64) -> Option<Root> {
        let holders = self.store.meta.holders().unwrap();
        let ending = format!(":{inode}");
        let holder =
            holders.iter().find(|holder| holder.starts_with("early:") && holder.ends_with(&ending))?;
        let mount = holder.split(':').nth(1).unwrap().parse().unwrap();
        increments::prefix(&*self.store.meta, inode, SessionId(mount)).unwrap()
    }

    #[track_caller]
    fn wait_for_prefix(&self, inode: u64, len: u64) -> Root {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(root) = self.prefix(inode).filter(|root| root.len() >= len) {
                return root;
            }
            assert!(Instant::now() < end, "{:?} is stored of inode {inode}", self.prefix(inode));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub fn wait_let_go(&self) {
        let is_held = || self.store.meta.holders().unwrap().iter().any(|holder| holder.starts_with("early:"));
        eventually("nothing is held", || !is_held());
    }

    fn packed_bytes(&self) -> u64 {
        self.store
            .meta
            .packs()
            .unwrap()
            .iter()
            .filter(|pack| pack.is_committed())
            .map(|pack| pack.bytes)
            .sum()
    }
}

#[test]
fn most_of_a_large_file_is_stored_before_it_is_closed_and_once() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount_incremental(1 << 20), site.mount());
    let data = random(1, 5 << 20);
    let open = one.open("large", MAKE).unwrap();
    for (at, part) in data.chunks(128 << 10).enumerate() {
        open.write((at as u64) << 17, part).unwrap();
    }
    let root = site.wait_for_prefix(open.number, 4 << 20);
    assert!(site.content(&root) == data[..root.len() as usize]);
    assert!(two.cat("large").unwrap().is_empty(), "others see what was closed");
    assert!(site.packed_bytes() >= root.len());
    site.reclaim();
    assert!(site.content(&root) == data[..root.len() as usize], "it is held");
    open.close().unwrap();
    assert!(two.cat("large").unwrap() == data);
    site.wait_let_go();
    site.reclaim();
    assert!(two.cat("large").unwrap() == data);
    let packed = site.packed_bytes();
    assert!(packed < data.len() as u64 * 11 / 10, "{packed} bytes of packs");
    // Bytes that are added later are stored early, too.
    let open = one.open("large", outrigger_fuse::fs::OpenFlags::WRONLY).unwrap();
    open.write(data.len() as u64, &data[..3 << 20]).unwrap();
    let root = site.wait_for_prefix(open.number, 7 << 20);
    let all = [&data[..], &data[..3 << 20]].concat();
    assert!(site.content(&root) == all[..root.len() as usize]);
    open.close().unwrap();
    assert!(two.cat("large").unwrap() == all);
    site.wait_let_go();
    drop((one, two));
    site.cluster.check();
}

#[test]
fn who_reads_a_file_from_the_log_has_no_need_of_small_rounds() {
    let Some(site) = Site::new() else { return };
    // Rounds of a followed file begin with 64 KiB, and are of 1 MiB at most.
    let one = site.mount_as(SharedOptions { increment_bytes: 4 << 20, ..SharedOptions::new(2) });
    let data = random(3, 3 << 20);
    let open = one.open("raw read", MAKE).unwrap();
    let number = open.number;
    site.claim(site.newest());
    let mut at = 0;
    let mut write_and_read = |to: usize| {
        for part in data[at..to].chunks(32 << 10) {
            open.write(at as u64, part).unwrap();
            let read = follow(&one, open.number, at as u64);
            assert!(matches!(read, Tailed::Data(read) if read == part), "at {at}");
            at += part.len();
        }
    };
    write_and_read(900 << 10);
    // Enough for many small increments, which would exist by now or soon.
    std::thread::sleep(Duration::from_millis(300));
    assert!(site.prefix(open.number).is_none());
    write_and_read(data.len());
    let root = site.wait_for_prefix(number, 1 << 20);
    assert!(site.content(&root) == data[..root.len() as usize]);
    open.close().unwrap();
    wait_closed(&one, number);
    // Nobody reads this file here: a reader elsewhere is to start early.
    let open = one.open("raw unread", MAKE).unwrap();
    open.write(0, &data[..100 << 10]).unwrap();
    let number = open.number;
    // Even if more is there by then, the first increment is short.
    assert_eq!(site.wait_for_prefix(number, 64 << 10).len(), 64 << 10);
    open.close().unwrap();
    wait_closed(&one, number);
    site.wait_let_go();
    drop(one);
    site.cluster.check();
}

#[test]
fn a_file_becomes_what_was_written_whatever_was_stored_before_and_whoever_writes_beside() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount_incremental(8 << 10), site.mount());
    let (mut rounds, mut changed, mut outside) = (0, 0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let name = format!("file{seed}");
        let open = one.open(&name, MAKE).unwrap();
        let mut content = Vec::<u8>::new();
        let mut is_others = false;
        for step in 0..4 + rng.below(24) {
            let end = content.len() as u64;
            match rng.below(16) {
                0 => {
                    let len = rng.below(end + 9000);
                    let set = SetAttr { size: Some(len), handle: Some(open.handle), ..Default::default() };
                    one.volume.set_attributes(USER, open.number, &set).unwrap();
                    content.resize(len as usize, 0);
                    changed += 1;
                }
                1 if end > 0 => {
                    let (from, data) = (rng.below(end), random(rng.below(1 << 20), 3000));
                    open.write(from, &data).unwrap();
                    content.resize(content.len().max(from as usize + data.len()), 0);
                    content[from as usize..from as usize + data.len()].copy_from_slice(&data);
                    changed += 1;
                }
                2 => open.sync().unwrap(),
                3 if !is_others => {
                    // All that was written here lies over what is put there, when it is stored.
                    two.put(&name, b"of another host").unwrap();
                    is_others = true;
                    outside += 1;
                }
                4 => std::thread::sleep(Duration::from_millis(30)),
                _ => {
                    let data = random(seed * 1000 + step, 1 + rng.below(20_000) as usize);
                    open.write(end, &data).unwrap();
                    content.extend_from_slice(&data);
                }
            }
        }
        rounds += u32::from(site.prefix(open.number).is_some());
        open.close().unwrap();
        if !is_others {
            assert!(two.cat(&name).unwrap() == content, "seed {seed}");
        }
    }
    site.wait_let_go();
    assert!(rounds > 15 && changed > 40 && outside > 10, "{rounds} {changed} {outside}");
    drop((one, two));
    site.cluster.check();
}

#[test]
fn what_another_host_has_stored_meanwhile_is_under_all_that_was_written() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount_incremental(1 << 20), site.mount());
    let data = random(7, 3 << 20);
    let open = one.open("both", MAKE).unwrap();
    open.write(0, &data).unwrap();
    site.wait_for_prefix(open.number, 3 << 20);
    let longer = random(8, 4 << 20);
    two.put("both", &longer).unwrap();
    open.close().unwrap();
    let wanted = [&data[..], &longer[3 << 20..]].concat();
    assert!(one.cat("both").unwrap() == wanted && two.cat("both").unwrap() == wanted);
    site.wait_let_go();
    drop((one, two));
    site.cluster.check();
}

#[test]
fn what_a_mount_held_that_is_gone_goes_with_the_collectors_next_run() {
    let Some(site) = Site::new() else { return };
    let one = site.mount_incremental(1 << 20);
    let open = one.open("lost", MAKE).unwrap();
    open.write(0, &random(9, 2 << 20)).unwrap();
    site.wait_for_prefix(open.number, 2 << 20);
    assert!(site.packed_bytes() > 2 << 20);
    for row in site.store.meta.sessions().unwrap() {
        if matches!(row.owner.role, Role::Mount | Role::Command(_)) {
            site.store.meta.fence(row.id).unwrap();
        }
    }
    site.reclaim();
    site.wait_let_go();
    assert!(site.packed_bytes() < 1 << 20, "{}", site.packed_bytes());
    drop(one);
    site.cluster.check();
}

#[test]
fn of_a_file_that_programs_wait_for_steps_grow_and_what_has_waited_is_stored() {
    let Some(site) = Site::new() else { return };
    let one = site.mount_as(SharedOptions::new(2));
    let data = random(13, 17 << 20);
    let open = one.open("raw-long", MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    // Positions up to which it is written, in MiB, and how much is stored at once there; without
    // that, it would be another step.
    let mut from = 0;
    for (to, stored) in [(1, 1), (4, 4), (16, 16)] {
        open.write(from, &data[from as usize..to << 20]).unwrap();
        from = (to as u64) << 20;
        assert_eq!(site.wait_for_prefix(number, stored << 20).len(), stored << 20, "{to} MiB are written");
    }
    // Much less than the next step, and nothing more is written: it is stored all the same.
    open.write(16 << 20, &data[16 << 20..]).unwrap();
    assert_eq!(site.wait_for_prefix(number, 17 << 20).len(), 17 << 20);
    open.close().unwrap();
    wait_closed(&one, number);
    assert!(site.input(job) == data);
    site.wait_let_go();
    drop(one);
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn what_programs_on_other_hosts_may_have_read_is_invalidated_when_it_changes() {
    let Some(site) = Site::new() else { return };
    let one = site.mount_as(SharedOptions { increment_bytes: 4 << 20, ..SharedOptions::new(2) });
    for (name, spoils) in [("raw-kept", false), ("raw-changed", true)] {
        let open = one.open(name, MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        let claimed = site.claim(job);
        let data = random(11, 3 << 20);
        open.write(0, &data).unwrap();
        // Less than a round takes else.
        let root = site.wait_for_prefix(number, 1 << 20);
        assert!(site.content(&root) == data[..root.len() as usize]);
        let mut wanted = data;
        if spoils {
            open.write(5, b"changed").unwrap();
            wanted[5..12].copy_from_slice(b"changed");
        }
        open.close().unwrap();
        wait_closed(&one, number);
        let split = site.split(job);
        // An attempt is void if it has read bytes that were changed since: its split is to be
        // claimed again.
        let void = split.state != SplitState::Running || split.attempt != claimed.attempt;
        assert_eq!(void, spoils, "{split:?}");
        assert!(site.input(job) == wanted);
    }
    // A prefix from before a file was tailed is for nobody to read.
    let open = one.open("other", MAKE).unwrap();
    open.write(0, &random(12, 9 << 20)).unwrap();
    site.wait_for_prefix(open.number, 4 << 20);
    one.rename("other", "raw-later", rustix::fs::RenameFlags::empty()).unwrap();
    let again = one.open("raw-later", MAKE | rustix::fs::OFlags::TRUNC).unwrap();
    assert_eq!(site.prefix(open.number), None);
    again.close().unwrap();
    open.close().unwrap();
    wait_closed(
        &one,
        site.store.meta.lookup(outrigger_store::meta::At::Now, 1, b"raw-later").unwrap().unwrap().number,
    );
    site.wait_let_go();
    drop(one);
    site.nothing_is_left();
    site.cluster.check();
}
