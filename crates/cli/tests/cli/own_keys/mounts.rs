//! The same in mounts.

use super::*;

/// A store that is mounted at `mnt`; unmounted when dropped.
struct Mounted<'h>(&'h Home, Child);

impl<'h> Mounted<'h> {
    fn new(home: &'h Home) -> Self {
        let _ = std::fs::create_dir(home.0.path("mnt"));
        let mut command = home.command(&["mount", "--foreground", "mnt"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("mounting", || home.0.path("mnt/common").exists());
        Self(home, child)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.path("mnt").join(name)
    }

    fn unmount(mut self) {
        // The kernel tells of a close a little later.
        eventually("unmounting", || self.0.run(&["unmount", "mnt"]).code == 0);
        self.1.wait().unwrap();
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = Command::new("umount").arg("-l").arg(self.path("")).stderr(Stdio::null()).status();
        let _ = self.1.wait();
    }
}

#[test]
fn a_mount_keeps_it_apart() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    for home in homes() {
        let mount = Mounted::new(&home);
        let (inside, outside) = (mount.path("secret/files"), mount.path("common"));
        // Made in it, in a new directory, and written again.
        std::fs::create_dir(inside.join("dir")).unwrap();
        std::fs::write(inside.join("dir/made"), noise(3, 700_000)).unwrap();
        std::fs::write(inside.join("dir/tiny"), "tiny").unwrap();
        std::fs::write(inside.join("below/small"), "written in the mount").unwrap();
        std::fs::hard_link(inside.join("dir/made"), inside.join("linked")).unwrap();
        std::fs::remove_file(inside.join("dir/made")).unwrap();
        std::fs::rename(inside.join("dir/tiny"), inside.join("tiny")).unwrap();
        std::os::unix::fs::symlink("tiny", inside.join("link")).unwrap();
        let across = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(Errno::XDEV.raw_os_error()));
        };
        across(std::fs::rename(outside.join("large"), inside.join("moved")));
        across(std::fs::rename(inside.join("large"), outside.join("moved")));
        across(std::fs::hard_link(outside.join("large"), inside.join("linked2")));
        across(std::fs::hard_link(inside.join("large"), outside.join("linked2")));
        across(std::fs::rename(outside.join("below"), inside.join("moved")));
        // As `mv` and `cp` do.
        let done = Command::new("mv").args([outside.join("below"), inside.join("moved")]).status().unwrap();
        assert!(done.success() && inside.join("moved/small").exists() && !outside.join("below").exists());
        std::fs::copy(outside.join("large"), inside.join("copied")).unwrap();
        std::fs::copy(inside.join("large"), outside.join("copied")).unwrap();
        assert!(std::fs::read(outside.join("copied")).unwrap() == noise(1, LARGE));
        for (name, from, to) in [("nameless", &inside, &outside), ("nameless2", &outside, &inside)] {
            let file = nameless(from);
            rustix::io::write(&file, b"nameless").unwrap();
            let named = |directory: &Path| {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, path, rustix::fs::CWD, directory.join(name), flags)
            };
            assert_eq!(named(to), Err(Errno::XDEV));
            named(from).unwrap();
        }
        // A name of the kernel's for the attribute that marks it.
        let mut value = [0; 64];
        let name = "outrigger.domain";
        let path = inside.join("tiny");
        assert!(rustix::fs::getxattr(&path, name, &mut value[..]).is_err());
        assert!(rustix::fs::setxattr(&path, name, &[1; 8], rustix::fs::XattrFlags::empty()).is_err());
        assert!(rustix::fs::removexattr(&path, name).is_err());
        assert_eq!(rustix::fs::listxattr(&path, &mut value[..]).unwrap(), 0);
        mount.unmount();
        let only = |path: &str, expected: &[u8]| only_reads(&home, path, expected);
        only("secret/files/linked", &noise(3, 700_000));
        only("secret/files/tiny", b"tiny");
        only("secret/files/below/small", b"written in the mount");
        only("secret/files/moved/small", b"a small file");
        only("secret/files/copied", &noise(1, LARGE));
        only("secret/files/nameless", b"nameless");
        home.done(&["check", "--read-data"]);
        home.done(&["key", "destroy", "secret", "--yes"]);
        assert!(home.done(&["cat", "common/copied"]).out == noise(1, LARGE), "what was copied out stays");
        for path in ["secret/files/linked", "secret/files/tiny", "secret/files/copied"] {
            is_refused(&home, 1, "was destroyed", &["cat", path]);
        }
    }
}

/// An open file without a name, made in a directory.
fn nameless(directory: &Path) -> OwnedFd {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    rustix::fs::open(directory, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap()
}

/// What a mount has not stored yet when the key goes is lost, and nothing else; what is written after
/// that is refused.
#[test]
fn a_mount_goes_on_without_its_key() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    for home in homes() {
        let mount = Mounted::new(&home);
        let open = File::create(mount.path("secret/open")).unwrap();
        std::fs::write(mount.path("secret/staged"), noise(6, 400_000)).unwrap();
        std::fs::write(mount.path("common/staged"), noise(7, 400_000)).unwrap();
        // It is killed, and has both in its log alone, if the store is in a directory.
        drop(mount);
        home.done(&["key", "destroy", "secret", "--yes"]);
        drop(open);
        let mount = Mounted::new(&home);
        let gone = |done: std::io::Result<()>| {
            assert_eq!(done.unwrap_err().raw_os_error(), Some(Errno::KEYREVOKED.raw_os_error()));
        };
        gone(std::fs::write(mount.path("secret/new"), "new"));
        gone(std::fs::read(mount.path("secret/files/large")).map(drop));
        std::fs::write(mount.path("common/new"), "new").unwrap();
        mount.unmount();
        assert_eq!(home.done(&["cat", "common/new"]).text(), "new");
        home.done(&["put", "files", "--to", "more"]);
        home.done(&["snapshot", "create", "after"]);
        let mount = Mounted::new(&home);
        std::fs::remove_dir_all(mount.path("secret")).unwrap();
        mount.unmount();
        home.done(&["check", "--read-data"]);
    }
}

/// A mount that is killed has written what it made to its log alone.
#[test]
fn a_log_that_is_replayed_keeps_it_apart() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    let home = home();
    let mut mount = Mounted::new(&home);
    std::fs::create_dir(mount.path("secret/new")).unwrap();
    std::fs::write(mount.path("secret/new/file"), noise(4, 500_000)).unwrap();
    std::fs::write(mount.path("secret/files/below/small"), "written before it was killed").unwrap();
    // Its directory is gone by the time that its content is stored.
    std::fs::write(mount.path("secret/new/other"), noise(5, 500_000)).unwrap();
    std::fs::hard_link(mount.path("secret/new/other"), mount.path("secret/other")).unwrap();
    std::fs::remove_file(mount.path("secret/new/other")).unwrap();
    File::open(mount.path("secret/new/file")).unwrap().sync_all().unwrap();
    mount.1.kill().unwrap();
    drop(mount);
    let mount = Mounted::new(&home);
    assert!(std::fs::metadata(mount.path("secret/other")).unwrap().len() == 500_000);
    assert!(std::fs::metadata(mount.path("secret/new/file")).unwrap().nlink() == 1);
    mount.unmount();
    for (path, expected) in [
        ("secret/new/file", noise(4, 500_000)),
        ("secret/other", noise(5, 500_000)),
        ("secret/files/below/small", b"written before it was killed".to_vec()),
    ] {
        only_reads(&home, path, &expected);
    }
    home.done(&["check", "--read-data"]);
}
