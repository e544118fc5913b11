//! Files without a name (`O_TMPFILE`), and their first one: nobody else sees them before, everybody
//! sees them whole afterwards, and of one that never gets one nothing is left.

use std::sync::Barrier;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, Found, NewNode, OpenFlags, ROOT, SetAttr};
use outrigger_fuse::shared::{SharedOptions, left_open, let_go};
use outrigger_store::Store;
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use super::hosts::{Cluster, Host, Open, USER};
use super::{RDWR, random, reclaim};

/// The shortest log there is: what is longer than half of it is stored before it has a name.
fn short_log() -> SharedOptions {
    SharedOptions { staging_bytes: 8 << 20, ..SharedOptions::new(2) }
}

fn anonymous_in(host: &Host, parent: u64) -> Open<'_> {
    let new = NewNode { kind: FileKind::File, mode: 0o666, umask: 0o022, rdev: 0 };
    let (entry, opened) = host.volume.create_anonymous(USER, parent, new, RDWR | OFlags::EXCL).unwrap();
    assert_eq!((entry.attr.links, entry.attr.kind), (0, FileKind::File));
    Open { host, number: entry.attr.number, handle: opened.handle }
}

pub fn anonymous(host: &Host) -> Open<'_> {
    anonymous_in(host, ROOT)
}

fn fill(open: &Open<'_>, bytes: &[u8]) {
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        open.write((at << 20) as u64, part).unwrap();
    }
}

fn link(open: &Open<'_>, name: &str) -> Result<outrigger_fuse::fs::Attr, Errno> {
    open.host.volume.link(USER, open.number, ROOT, name.as_bytes()).map(|entry| entry.attr)
}

fn stored(store: &Store) -> u64 {
    store.meta.packs().unwrap().iter().map(|pack| pack.bytes).sum()
}

/// Nothing of a file without a name is in the database.
#[track_caller]
fn nothing_is_held(cluster: &Cluster) {
    assert_eq!(cluster.store().meta.holders().unwrap(), [""; 0]);
    let notes = format!("SELECT count(*) FROM {}.record WHERE kind = 'open-version'", cluster.schema);
    assert_eq!(cluster.server.sql(&notes), "0");
}

#[test]
fn it_is_there_for_all_hosts_whole_once_it_was_linked_and_not_before() {
    let Some(cluster) = Cluster::new() else { return };
    // Nothing; what goes with the name; what is stored before it has one; what the log has no room
    // for.
    for (round, len) in [0, 5_000, 2_000_000, 20 << 20].into_iter().enumerate() {
        let (one, two) = (cluster.mount_with(short_log()), cluster.mount());
        let name = format!("f{round}");
        let open = anonymous(&one);
        let mut wanted = random(round as u64, len);
        fill(&open, &wanted);
        wanted.resize(len + 70_000, 0);
        let set = SetAttr { size: Some(len as u64 + 70_000), mode: Some(0o640), ..SetAttr::default() };
        let set = SetAttr { handle: Some(open.handle), ..set };
        one.volume.set_attributes(USER, open.number, &set).unwrap();
        one.volume.set_xattr(USER, open.number, b"user.kept", b"yes", XattrFlags::empty()).unwrap();
        open.sync().unwrap();
        assert!(open.read().unwrap() == wanted);
        assert_eq!((two.find(&name), two.stat(&name)), (Err(Errno::NOENT), Err(Errno::NOENT)));
        assert_eq!(two.volume.open(USER, open.number, RDWR).map(drop), Err(Errno::STALE));
        assert_eq!(two.list("").unwrap().len(), round, "no directory lists it");
        reclaim(&cluster);
        one.store.packs.set_cache_bytes(0);
        assert!(open.read().unwrap() == wanted, "what of it is stored is not reclaimed");
        let attr = link(&open, &name).unwrap();
        let kept = (attr.links, attr.size, attr.mode);
        assert_eq!(kept, (1, len as u64 + 70_000, 0o640));
        // Others have all of it at once, and it does not need its mount any more.
        let shown = two.stat(&name).unwrap();
        assert_eq!((shown.links, shown.size, shown.mode, shown.mtime), (1, attr.size, 0o640, attr.mtime));
        assert!(two.cat(&name).unwrap() == wanted);
        drop(one);
        reclaim(&cluster);
        two.store.packs.set_cache_bytes(0);
        assert!(two.cat(&name).unwrap() == wanted);
        let number = two.find(&name).unwrap();
        assert_eq!(two.volume.xattr(USER, number, b"user.kept").unwrap(), b"yes");
        nothing_is_held(&cluster);
    }
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn it_is_an_ordinary_file_from_then_on() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let open = anonymous(&one);
    open.write(0, b"before").unwrap();
    assert_eq!(link(&open, ""), Err(Errno::NOENT));
    two.put("taken", b"of another host").unwrap();
    assert_eq!(link(&open, "taken"), Err(Errno::EXIST));
    assert_eq!(two.cat("taken").unwrap(), b"of another host");
    link(&open, "one").unwrap();
    // As with any file: others see it when it is synced or closed.
    open.write(6, b", between").unwrap();
    assert_eq!(two.cat("one").unwrap(), b"before");
    open.sync().unwrap();
    assert_eq!(two.cat("one").unwrap(), b"before, between");
    open.write(15, b", after").unwrap();
    assert_eq!(link(&open, "two").unwrap().links, 2);
    two.chmod("two", 0o600).unwrap();
    two.append("one", b"!").unwrap();
    open.close().unwrap();
    assert_eq!(
        (two.cat("two").unwrap(), two.stat("one").unwrap().mode),
        (b"before, between, after".to_vec(), 0o600)
    );
    // It has had names: once they are gone, so is it.
    let open = one.open("one", RDWR).unwrap();
    for name in ["one", "two"] {
        one.unlink(name).unwrap();
    }
    assert_eq!(link(&open, "three"), Err(Errno::NOENT));
    open.close().unwrap();
    assert_eq!(two.list("").unwrap(), ["taken"]);
    nothing_is_held(&cluster);
    cluster.check();
}

fn default_list() -> Vec<u8> {
    // u::rwx, g::r-x, m::rwx, user 5: rw-, o::---
    let entries =
        [(1_u16, 7_u16, u32::MAX), (2, 6, 5), (4, 5, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        acl.extend(tag.to_le_bytes());
        acl.extend(rights.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

#[test]
fn it_inherits_what_any_new_file_does_and_goes_to_any_directory_that_is_there() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for name in ["group", "listed", "gone"] {
        one.mkdir(name).unwrap();
    }
    let number = |name: &str| one.find(name).unwrap();
    let set = SetAttr { gid: Some(77), ..SetAttr::default() };
    // Each was set by another host only now.
    let (group, listed, gone) = (number("group"), number("listed"), number("gone"));
    two.volume.set_attributes(USER, group, &set).unwrap();
    two.chmod("group", 0o2775).unwrap();
    let acl = default_list();
    two.volume.set_xattr(USER, listed, b"system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
    let caller = Caller { uid: 5, gid: 6, pid: 1 };
    let made = |parent: u64| {
        let new = NewNode { kind: FileKind::File, mode: 0o666, umask: 0o027, rdev: 0 };
        let (entry, opened) = one.volume.create_anonymous(caller, parent, new, RDWR).unwrap();
        let number = entry.attr.number;
        (entry.attr, Open { host: &one, number, handle: opened.handle })
    };
    let (attr, plain) = made(gone);
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o640));
    let (attr, open) = made(group);
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 77, 0o640));
    link(&open, "of-the-group").unwrap();
    open.close().unwrap();
    let (attr, open) = made(listed);
    assert_eq!(attr.mode, 0o660, "as the list says, whatever the umask");
    link(&open, "of-the-list").unwrap();
    open.close().unwrap();
    // As what is made there by name.
    let named = one.volume.create(
        caller,
        listed,
        b"named",
        NewNode { kind: FileKind::File, mode: 0o666, umask: 0o027, rdev: 0 },
        RDWR,
    );
    let (entry, opened) = named.unwrap();
    one.volume.release(entry.attr.number, opened.handle);
    let list = |path: &str| {
        let number = two.find(path).unwrap();
        two.volume.xattr(USER, number, b"system.posix_acl_access").unwrap()
    };
    assert_eq!(list("of-the-list"), list("listed/named"));
    assert_eq!((two.stat("of-the-group").unwrap().gid, two.stat("of-the-list").unwrap().mode), (77, 0o660));
    // The directory that it was made in may go; one that is gone takes nothing.
    two.rmdir("gone").unwrap();
    plain.write(0, b"kept").unwrap();
    let done = one.volume.link(caller, plain.number, gone, b"f").map(drop);
    assert!(matches!(done, Err(Errno::NOENT | Errno::STALE)), "{done:?}");
    let file = two.find("of-the-list").unwrap();
    assert_eq!(one.volume.link(caller, plain.number, file, b"f").map(drop), Err(Errno::NOTDIR));
    link(&plain, "plain").unwrap();
    plain.close().unwrap();
    assert_eq!(two.cat("plain").unwrap(), b"kept");
    let new = NewNode { kind: FileKind::File, mode: 0o666, umask: 0, rdev: 0 };
    let done = one.volume.create_anonymous(caller, gone, new, RDWR).map(drop);
    assert!(matches!(done, Err(Errno::NOENT | Errno::STALE)), "{done:?}");
    assert_eq!(one.volume.create_anonymous(caller, file, new, RDWR).map(drop), Err(Errno::NOTDIR));
    cluster.check();
}

#[test]
fn of_one_that_is_closed_without_a_name_nothing_is_left() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount_with(short_log()), cluster.mount());
    let before = stored(&two.store);
    let (small, large) = (anonymous(&one), anonymous(&one));
    small.write(0, b"a few bytes").unwrap();
    fill(&large, &random(3, 30 << 20));
    assert!(stored(&two.store) > before, "the log has no room for it");
    // Opened once more by its descriptor, as through /proc, it is the same file.
    let again = one.volume.open(USER, large.number, OpenFlags::RDONLY).unwrap();
    let again = Open { host: &one, number: large.number, handle: again.handle };
    let number = large.number;
    small.close().unwrap();
    large.close().unwrap();
    assert!(again.read().unwrap() == random(3, 30 << 20));
    again.close().unwrap();
    nothing_is_held(&cluster);
    assert_eq!(one.volume.open(USER, number, RDWR).map(drop), Err(Errno::STALE));
    assert_eq!(one.volume.link(USER, number, ROOT, b"late").map(drop), Err(Errno::STALE));
    // The mount goes on.
    one.put("f", b"x").unwrap();
    assert_eq!(two.list("").unwrap(), ["f"]);
    one.volume.close(|| ()).unwrap();
    drop((one, two));
    reclaim(&cluster);
    let left = stored(&cluster.store());
    assert!(left < 1 << 20, "{left} bytes are still stored");
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn a_mount_that_is_killed_leaves_nothing_of_it() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount_with(short_log()), cluster.mount());
    let (small, large) = (anonymous(&one), anonymous(&one));
    small.write(0, b"a few bytes").unwrap();
    fill(&large, &random(4, 30 << 20));
    let number = large.number;
    assert_eq!(left_open(&two.store).unwrap(), [], "its mount is at work");
    drop(one);
    cluster.check();
    let left = left_open(&two.store).unwrap();
    assert!(left.iter().any(|left| left.record.inode == number), "{left:?}");
    // As whoever ends jobs of killed mounts does, and `gc`.
    left.iter().for_each(|left| let_go(&two.store, left).unwrap());
    nothing_is_held(&cluster);
    assert_eq!(two.list("").unwrap(), [""; 0]);
    drop(two);
    reclaim(&cluster);
    let left = stored(&cluster.store());
    assert!(left < 1 << 20, "{left} bytes are still stored");
    cluster.check();
}

#[test]
fn of_several_that_link_to_one_name_one_succeeds_and_the_others_can_take_another() {
    let Some(cluster) = Cluster::new() else { return };
    let hosts: Vec<_> = (0..3).map(|_| cluster.mount()).collect();
    for round in 0..8 {
        let name = format!("n{round}");
        let len = [100, 300_000][round % 2];
        let start = Barrier::new(hosts.len());
        let winners = std::thread::scope(|scope| {
            let work = hosts.iter().enumerate().map(|(number, host)| {
                let (name, start) = (&name, &start);
                scope.spawn(move || {
                    let open = anonymous(host);
                    fill(&open, &random(number as u64, len));
                    start.wait();
                    let done = link(&open, name);
                    if let Err(errno) = done {
                        assert_eq!(errno, Errno::EXIST);
                        link(&open, &format!("{name}-{number}")).unwrap();
                    }
                    open.close().unwrap();
                    done.is_ok().then_some(number as u64)
                })
            });
            let work: Vec<_> = work.collect();
            work.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(winners.len(), 1, "{round}");
        for host in &hosts {
            assert!(host.cat(&name).unwrap() == random(winners[0], len), "{round}");
        }
    }
    assert_eq!(hosts[0].list("").unwrap().len(), 8 * hosts.len());
    nothing_is_held(&cluster);
    cluster.check();
}

#[test]
fn what_is_set_and_written_while_it_is_linked_is_not_lost() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    for round in 0..12 {
        let name = format!("f{round}");
        let open = anonymous(&one);
        let len = [2_000, 400_000][round % 2];
        fill(&open, &random(1, len));
        std::thread::scope(|scope| {
            let set = SetAttr { mode: Some(0o4711), handle: Some(open.handle), ..SetAttr::default() };
            let (one, open) = (&one, &open);
            scope.spawn(move || one.volume.set_attributes(USER, open.number, &set).unwrap());
            scope.spawn(move || {
                for at in 0..40 {
                    open.write((len + at * 9_000) as u64, &random(2 + at as u64, 9_000)).unwrap();
                }
            });
            link(open, &name).unwrap();
            let found = one.volume.lookup(USER, ROOT, name.as_bytes()).unwrap();
            assert!(matches!(found, Found::Entry(entry) if entry.attr.number == open.number));
        });
        open.close().unwrap();
        let mut wanted = random(1, len);
        (0..40).for_each(|at| wanted.extend(random(2 + at, 9_000)));
        assert!(two.cat(&name).unwrap() == wanted, "{round}");
        assert_eq!(two.stat(&name).unwrap().mode, 0o4711, "{round}");
    }
    nothing_is_held(&cluster);
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}
