//! The promises for a store that several hosts have mounted: each sentence of `docs/semantics.md`
//! about it, without a kernel. After these: random operations through random mounts beside a plain
//! directory, and mounts that get in each other's way on purpose.

mod anonymous;
mod deferred;
mod delegated;
mod destage_order;
mod faults;
mod follow;
mod hosts;
mod in_doubt;
mod increments;
mod lease;
mod locks;
mod overwrite;
mod path_prefetch;
mod random;
mod small;

use std::sync::Barrier;
use std::time::Duration;

use hosts::{Cluster, USER};
use outrigger_format::catalogue::Time;
use outrigger_fuse::fs::{Caller, FileSystem, Found, OpenFlags, ROOT, SetAttr, SetTime};
use outrigger_fuse::running::EXEC;
use outrigger_fuse::shared::SharedOptions;
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_workload::Rng;
use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

const RDWR: OpenFlags = OpenFlags::RDWR;

fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn close_and_fsync_make_visible_and_nothing_else_does() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let open = one.open("f", RDWR | OFlags::CREATE).unwrap();
    assert_eq!(two.cat("f").unwrap(), b"", "a name is there at once");
    open.write(0, b"first").unwrap();
    assert_eq!(open.read().unwrap(), b"first");
    assert_eq!((two.cat("f").unwrap(), two.stat("f").unwrap().size), (Vec::new(), 0));
    open.sync().unwrap();
    assert_eq!((two.cat("f").unwrap(), two.stat("f").unwrap().size), (b"first".to_vec(), 5));
    open.write(5, b", second").unwrap();
    assert_eq!(two.cat("f").unwrap(), b"first");
    let mtime = one.stat("f").unwrap().mtime;
    open.close().unwrap();
    assert_eq!(two.cat("f").unwrap(), b"first, second");
    assert_eq!(two.stat("f").unwrap().mtime, mtime, "when it was written, not when it was closed");
    // A file that was open there shows the new content when it is asked again.
    let reader = two.open("f", OpenFlags::RDONLY).unwrap();
    one.put("f", &random(1, 300_000)).unwrap();
    assert_eq!(two.stat("f").unwrap().size, 300_000);
    assert_eq!(two.cat("f").unwrap(), random(1, 300_000));
    assert_eq!(reader.read().unwrap(), random(1, 300_000));
    reader.close().unwrap();
    cluster.check();
}

#[test]
fn a_running_program_is_not_emptied_by_who_opens_it_to_read() {
    let Some(cluster) = Cluster::new() else { return };
    let host = cluster.mount();
    host.put("program", b"text").unwrap();
    let runs = host.open("program", EXEC).unwrap();
    assert_eq!(host.open("program", OFlags::TRUNC).err(), Some(Errno::TXTBSY));
    assert_eq!(host.cat("program").unwrap(), b"text");
    runs.close().unwrap();
    host.open("program", OFlags::TRUNC).unwrap().close().unwrap();
    assert_eq!(host.cat("program").unwrap(), b"");
    cluster.check();
}

#[test]
fn a_directory_that_is_removed_while_it_is_open_has_attributes() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for by in [&one, &two] {
        one.mkdir("d").unwrap();
        let number = one.find("d").unwrap();
        let handle = one.volume.open_dir(USER, number).unwrap().handle;
        by.rmdir("d").unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(one.volume.attributes(USER, number, None).unwrap().attr.links, 0);
        assert_eq!(one.find("d").err(), Some(Errno::NOENT));
        one.volume.release_dir(number, handle);
        one.volume.forget(number, 1);
        assert_eq!(one.volume.attributes(USER, number, None).err(), Some(Errno::STALE));
    }
    cluster.check();
}

#[test]
fn a_file_handle_finds_its_file_on_every_host() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    one.mkdir("d").unwrap();
    one.put("d/f", b"text").unwrap();
    let (directory, file) = (one.find("d").unwrap(), one.find("d/f").unwrap());
    let at = |number, name: &[u8]| match two.volume.lookup(USER, number, name) {
        Ok(Found::Entry(entry)) => Ok(entry.attr.number),
        Ok(Found::Missing { .. }) => panic!("a handle's file is there or stale"),
        Err(errno) => Err(errno),
    };
    assert_eq!([at(file, b"."), at(directory, b".."), at(ROOT, b"..")], [Ok(file), Ok(ROOT), Ok(ROOT)]);
    one.unlink("d/f").unwrap();
    assert_eq!(at(file, b"."), Err(Errno::STALE));
    cluster.check();
}

#[test]
fn of_several_that_make_the_same_name_one_succeeds() {
    let Some(cluster) = Cluster::new() else { return };
    let hosts: Vec<_> = (0..3).map(|_| cluster.mount()).collect();
    hosts[0].put("source", b"x").unwrap();
    for round in 0..12 {
        let name = format!("n{round}");
        let start = Barrier::new(hosts.len());
        let made: Vec<_> = std::thread::scope(|scope| {
            let work = hosts.iter().enumerate().map(|(number, host)| {
                let (name, start) = (&name, &start);
                let own = format!("own{round}-{number}");
                if round % 4 == 3 {
                    host.put(&own, b"y").unwrap();
                }
                scope.spawn(move || {
                    start.wait();
                    match round % 4 {
                        0 => host.mkdir(name),
                        1 => host
                            .open(name, RDWR | OFlags::CREATE | OFlags::EXCL)
                            .and_then(|open| open.close()),
                        2 => host.link("source", name),
                        _ => host.rename(&own, name, RenameFlags::NOREPLACE),
                    }
                })
            });
            let work: Vec<_> = work.collect();
            work.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{round}: {made:?}");
        assert!(made.iter().all(|made| matches!(made, Ok(()) | Err(Errno::EXIST))), "{made:?}");
    }
    assert_eq!(hosts[1].stat("source").unwrap().links, 4);
    cluster.check();
}

#[test]
fn directories_that_hosts_move_into_each_other_do_not_make_a_cycle() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for round in 0..8 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        one.mkdir(&a).unwrap();
        two.mkdir(&b).unwrap();
        let start = Barrier::new(2);
        let moved = std::thread::scope(|scope| {
            let go = |host, from: String, to: String| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    hosts::Host::rename(host, &from, &to, RenameFlags::empty())
                })
            };
            let moves = [go(&one, a.clone(), format!("{b}/in")), go(&two, b.clone(), format!("{a}/in"))];
            moves.map(|thread| thread.join().unwrap())
        });
        assert_eq!(moved.iter().filter(|moved| moved.is_ok()).count(), 1, "{moved:?}");
    }
    // A directory that gets an entry is not removed, and one that is removed gets none.
    for round in 0..8 {
        let name = format!("d{round}");
        one.mkdir(&name).unwrap();
        let start = Barrier::new(2);
        let (removed, made) = std::thread::scope(|scope| {
            let removed = scope.spawn(|| (start.wait(), one.rmdir(&name)).1);
            let made = scope.spawn(|| (start.wait(), two.put(&format!("{name}/f"), b"x")).1);
            (removed.join().unwrap(), made.join().unwrap())
        });
        assert!(removed.is_ok() != made.is_ok(), "{removed:?} {made:?}");
        assert_eq!(removed.is_ok(), two.find(&name).is_err());
    }
    cluster.check();
}

#[test]
fn two_names_are_exchanged_for_all_hosts_at_once_or_not_at_all() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    one.put("f", b"first").unwrap();
    one.mkdir("d").unwrap();
    two.put("d/g", b"second").unwrap();
    two.mkdir("d/e").unwrap();
    two.put("d/e/in", b"below").unwrap();
    let exchange = |host: &hosts::Host, from: &str, to: &str| host.rename(from, to, RenameFlags::EXCHANGE);
    let (first, second) = (one.find("f").unwrap(), one.find("d/g").unwrap());
    let open = one.open("f", RDWR).unwrap();
    open.write(0, b"FIRST").unwrap();
    exchange(&one, "f", "d/g").unwrap();
    assert_eq!((two.find("f").unwrap(), two.find("d/g").unwrap()), (second, first));
    // One that is open is the same file.
    open.close().unwrap();
    assert_eq!((two.cat("f").unwrap(), two.cat("d/g").unwrap()), (b"second".to_vec(), b"FIRST".to_vec()));
    // A file and a directory with what is in it; in one directory.
    exchange(&two, "d/e", "f").unwrap();
    assert_eq!((one.cat("f/in").unwrap(), one.cat("d/e").unwrap()), (b"below".to_vec(), b"second".to_vec()));
    exchange(&one, "f", "d").unwrap();
    assert_eq!((two.cat("d/in").unwrap(), two.cat("f/g").unwrap()), (b"below".to_vec(), b"FIRST".to_vec()));
    // What cannot be.
    one.mkdir("d/deep").unwrap();
    assert_eq!(exchange(&one, "d", "d/deep"), Err(Errno::INVAL));
    assert_eq!(exchange(&one, "d/deep", "d"), Err(Errno::INVAL));
    assert_eq!(exchange(&one, "d", "none"), Err(Errno::NOENT));
    one.link("f/g", "more").unwrap();
    exchange(&one, "f/g", "more").unwrap();
    assert_eq!((two.find("f/g").unwrap(), two.stat("more").unwrap().links), (first, 2));
    for (path, names) in [("", ["d", "f", "more"]), ("f", ["e", "g", ""]), ("d", ["deep", "in", ""])] {
        let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
        assert_eq!(two.list(path).unwrap(), names, "in `{path}`");
    }
    // Both hosts at the same time, an even number of times: nothing is lost, and all is where it
    // was.
    let before = (one.find("f/g").unwrap(), one.find("d/in").unwrap());
    std::thread::scope(|scope| {
        for host in [&one, &two] {
            scope.spawn(|| (0..20).for_each(|_| exchange(host, "f/g", "d/in").unwrap()));
        }
    });
    assert_eq!((one.find("f/g").unwrap(), one.find("d/in").unwrap()), before);
    cluster.check();
}

#[test]
fn what_several_append_is_there_whole_and_what_they_write_elsewhere_too() {
    let Some(cluster) = Cluster::new() else { return };
    let hosts: Vec<_> = (0..3).map(|_| cluster.mount()).collect();
    const ROUNDS: usize = 12;
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    host.append("log", format!("{number}:{round}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = String::from_utf8(hosts[0].cat("log").unwrap()).unwrap();
    for number in 0..hosts.len() {
        let own = text.lines().filter(|line| line.starts_with(&format!("{number}:")));
        let wanted: Vec<_> = (0..ROUNDS).map(|round| format!("{number}:{round}")).collect();
        assert_eq!(own.collect::<Vec<_>>(), wanted, "each in its order");
    }
    // Two have it open, and write different parts.
    let whole = random(3, 900_000);
    hosts[0].put("file", &vec![0; whole.len()]).unwrap();
    let (one, two) = (hosts[0].open("file", RDWR).unwrap(), hosts[1].open("file", RDWR).unwrap());
    one.write(0, &whole[..400_000]).unwrap();
    two.write(400_000, &whole[400_000..]).unwrap();
    one.close().unwrap();
    two.close().unwrap();
    assert_eq!(hosts[2].cat("file").unwrap(), whole);
    // The last close wins where both wrote; what one cut off does not come back.
    let (one, two) = (hosts[0].open("file", RDWR).unwrap(), hosts[1].open("file", RDWR).unwrap());
    one.write(10, b"one").unwrap();
    two.write(10, b"two").unwrap();
    two.close().unwrap();
    one.close().unwrap();
    assert_eq!(&hosts[2].cat("file").unwrap()[10..13], b"one");
    let (one, two) =
        (hosts[0].open("file", RDWR).unwrap(), hosts[1].open("file", RDWR | OFlags::TRUNC).unwrap());
    one.write(700_000, b"far").unwrap();
    two.write(0, b"short").unwrap();
    one.close().unwrap();
    two.close().unwrap();
    assert_eq!(hosts[2].cat("file").unwrap(), b"short");
    cluster.check();
}

#[test]
fn attributes_that_several_set_do_not_undo_each_other() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    one.put("f", b"x").unwrap();
    let number = two.find("f").unwrap();
    assert_eq!(one.find("f").unwrap(), number);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|at| one.chmod("f", 0o600 | (at % 8)).unwrap()));
        for at in 0..20_u8 {
            let name = format!("user.{at}");
            two.volume.set_xattr(USER, number, name.as_bytes(), &[at], XattrFlags::empty()).unwrap();
        }
    });
    assert_eq!(two.stat("f").unwrap().mode, 0o603);
    // As a kernel does, which looks a path up first.
    assert_eq!(one.find("f").unwrap(), number);
    assert_eq!(one.volume.xattrs(USER, number).unwrap().len(), 20);
    let twice = two.volume.set_xattr(USER, number, b"user.3", b"", XattrFlags::CREATE);
    assert_eq!(twice, Err(Errno::EXIST));
    // A time that was set holds, although what was written before is stored later.
    let open = one.open("f", RDWR).unwrap();
    open.write(0, b"later").unwrap();
    let time = Time { secs: 1_000_000_000, nanos: 7 };
    let set = SetAttr { mtime: Some(SetTime::To(time)), handle: Some(open.handle), ..SetAttr::default() };
    one.volume.set_attributes(USER, number, &set).unwrap();
    two.chmod("f", 0o640).unwrap();
    open.close().unwrap();
    let attr = two.stat("f").unwrap();
    assert_eq!((attr.mtime, attr.mode, attr.size), (time, 0o640, 5));
    // Set-id bits go with a write, on whatever host they were set.
    two.chmod("f", 0o4755).unwrap();
    let open = one.open("f", RDWR).unwrap();
    one.volume.write(USER, number, open.handle, 0, b"y", true).unwrap();
    open.close().unwrap();
    assert_eq!(two.stat("f").unwrap().mode, 0o755);
    // A directory changes with its entries.
    one.mkdir("d").unwrap();
    let before = two.stat("d").unwrap();
    // Not within the same tick.
    std::thread::sleep(Duration::from_millis(20));
    one.put("d/f", b"").unwrap();
    let after = two.stat("d").unwrap();
    let key = |time: Time| (time.secs, time.nanos);
    assert!(key(after.mtime) > key(before.mtime) && key(after.ctime) > key(before.ctime));
    cluster.check();
}

#[test]
fn what_a_program_sets_of_a_file_that_it_writes_is_there_with_its_close() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    const OTHER: Caller = Caller { pid: 2, ..USER };
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let mtime = Time { secs: 1_000_000_000, nanos: 7 };
    let times =
        SetAttr { mtime: Some(SetTime::To(mtime)), atime: Some(SetTime::To(mtime)), ..SetAttr::default() };
    // As tar does: nobody sees the bytes without the mode.
    let open = one.open("f", RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
    let number = open.number;
    let before = two.stat("f").unwrap();
    let set = |caller, set: &SetAttr| one.volume.set_attributes(caller, number, set).unwrap().attr;
    set(USER, &mode(0o4600));
    open.write(0, b"secret").unwrap();
    let owner = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    // A change of owner clears set-id bits, as does a write by a user other than root.
    let attr = set(USER, &owner);
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o600, 7, 8, 6), "here it is seen at once");
    set(USER, &mode(0o4640));
    assert_eq!(set(USER, &times).mtime, mtime);
    assert_eq!(two.stat("f").unwrap(), before, "nothing has been told yet");
    open.sync().unwrap();
    let attr = two.stat("f").unwrap();
    assert_eq!((attr.mode, attr.uid, attr.mtime, attr.size), (0o4640, 7, mtime, 6));
    // Written after the time was set: the time is that of the write.
    open.write(6, b"!").unwrap();
    set(USER, &mode(0o644));
    // A change by another process is visible to others at once, and in its order.
    set(OTHER, &mode(0o604));
    assert_eq!(two.stat("f").unwrap().mode, 0o604);
    // Meanwhile another host sets something else: both are kept.
    set(USER, &mode(0o666));
    let group = SetAttr { gid: Some(9), ..SetAttr::default() };
    two.volume.set_attributes(USER, number, &group).unwrap();
    open.close().unwrap();
    let attr = two.stat("f").unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o666, 7, 9, 7));
    assert!(attr.mtime.secs > mtime.secs && two.cat("f").unwrap() == b"secret!");
    // The same for an empty file; and nothing waits for long when nothing is being written.
    let open = one.open("g", RDWR | OFlags::CREATE | OFlags::EXCL).unwrap();
    one.volume.set_attributes(USER, open.number, &times).unwrap();
    open.close().unwrap();
    assert_eq!(two.stat("g").unwrap().mtime, mtime);
    let open = one.open("g", RDWR).unwrap();
    one.chmod("g", 0o400).unwrap();
    assert_eq!(two.stat("g").unwrap().mode, 0o400);
    // A mount that is killed takes it along.
    open.write(0, b"never").unwrap();
    one.chmod("g", 0o444).unwrap();
    drop(one);
    let attr = two.stat("g").unwrap();
    assert_eq!((attr.mode, attr.size, attr.mtime), (0o400, 0, mtime));
    cluster.check();
}

fn reclaim(cluster: &Cluster) {
    let options = GcOptions { live_ratio: 1.0, threads: 2, grace_secs: 0, ..GcOptions::default() };
    for _ in 0..2 {
        collect(&cluster.store(), &options, &GcProgress::default()).unwrap();
    }
}

#[test]
fn a_file_without_a_name_is_used_until_it_is_closed_whatever_is_reclaimed() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let bytes = random(5, 2_000_000);
    one.put("f", &bytes).unwrap();
    one.put("g", &random(6, 500_000)).unwrap();
    let (open, over) = (one.open("f", RDWR).unwrap(), one.open("g", RDWR).unwrap());
    one.unlink("f").unwrap();
    two.put("h", b"h").unwrap();
    one.rename("h", "g", RenameFlags::empty()).unwrap();
    reclaim(&cluster);
    // Nothing of it is in memory.
    one.store.packs.set_cache_bytes(0);
    assert!(open.read().unwrap() == bytes && over.read().unwrap() == random(6, 500_000));
    open.write(0, b"still").unwrap();
    open.sync().unwrap();
    assert_eq!(&open.read().unwrap()[..5], b"still");
    assert_eq!(two.find("f"), Err(Errno::NOENT));
    assert_eq!(one.volume.link(USER, open.number, ROOT, b"again").map(drop), Err(Errno::NOENT));
    open.close().unwrap();
    over.close().unwrap();
    // One that another host removes while something is written to it is gone, and nobody is told of
    // an error.
    let open = one.open("g", RDWR).unwrap();
    open.write(0, b"lost").unwrap();
    two.unlink("g").unwrap();
    open.close().unwrap();
    assert_eq!(one.list("").unwrap(), [""; 0]);
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn what_two_hosts_write_is_stored_once() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let stored = || -> u64 { one.store.meta.packs().unwrap().iter().map(|pack| pack.raw_bytes).sum() };
    let files: Vec<_> = (0..8).map(|seed| random(seed, 400_000)).collect();
    let write = |host: &hosts::Host, dir: &str| {
        host.mkdir(dir).unwrap();
        files.iter().enumerate().for_each(|(at, bytes)| host.put(&format!("{dir}/{at}"), bytes).unwrap());
    };
    write(&one, "a");
    let first = stored();
    // The second one had begun before, and has to learn of the first one's packs.
    write(&two, "b");
    let second = stored();
    assert!(second * 100 <= first * 105, "{first} bytes became {second}");
    for (at, bytes) in files.iter().enumerate() {
        assert!(one.cat(&format!("b/{at}")).unwrap() == *bytes);
    }
    cluster.check();
}

#[test]
fn a_full_log_is_stored_while_it_is_written_to() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (
        cluster.mount_with(SharedOptions { staging_bytes: 8 << 20, ..SharedOptions::new(2) }),
        cluster.mount(),
    );
    let bytes = random(9, 40 << 20);
    let open = one.open("large", RDWR | OFlags::CREATE).unwrap();
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        open.write((at << 20) as u64, part).unwrap();
    }
    assert!(open.read().unwrap() == bytes);
    open.close().unwrap();
    assert!(two.cat("large").unwrap() == bytes);
    assert_eq!(
        two.store.meta.versions(two.find("large").unwrap()).unwrap().len(),
        0,
        "one close, one version"
    );
    one.put("large", b"small").unwrap();
    assert_eq!(two.store.meta.versions(two.find("large").unwrap()).unwrap().len(), 1);
    assert_eq!(one.volume.close(|| ()).map_err(|error| error.to_string()), Ok(()));
    cluster.check();
}
