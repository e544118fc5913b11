use std::fs as std_fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::*;

/// The differences of two equal trees with one entry of every kind, after `change` in the second.
fn spoiled(change: impl FnOnce(&Path)) -> Vec<Difference> {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for root in [&a, &b] {
        std_fs::create_dir_all(root.join("sub")).unwrap();
        std_fs::write(root.join("file"), vec![7u8; 600_000]).unwrap();
        std_fs::write(root.join("sub/other"), b"other").unwrap();
        std_fs::hard_link(root.join("file"), root.join("linked")).unwrap();
        symlink("file", root.join("symlink")).unwrap();
        let sparse = File::create(root.join("sparse")).unwrap();
        sparse.set_len(4 << 20).unwrap();
        sparse.write_all_at(b"end", (4 << 20) - 3).unwrap();
        fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        for name in ["file", "sub/other", "symlink", "sparse", "fifo", "sub", "."] {
            crate::set_mtime(&root.join(name), 1_000_000, 5).unwrap();
        }
    }
    assert_eq!(compare_trees(&a, &b).unwrap(), [], "the same before the change");
    change(&b);
    // The change moved the times of its directories; only the change itself should count.
    for name in ["sub", "."] {
        crate::set_mtime(&b.join(name), 1_000_000, 5).unwrap();
    }
    let found = compare_trees(&a, &b).unwrap();
    assert!(found.iter().all(|d| !d.to_string().is_empty()));
    found
}

fn touch(path: &Path) {
    crate::set_mtime(path, 1_000_000, 5).unwrap();
}

fn only(path: &str, what: What) -> Vec<Difference> {
    vec![Difference { path: PathBuf::from(path), what }]
}

#[test]
fn notices_missing_and_extra_entries() {
    let found = spoiled(|b| std_fs::remove_file(b.join("sub/other")).unwrap());
    assert_eq!(found, only("sub/other", What::OnlyIn(Side::A)));
    let found = spoiled(|b| std_fs::create_dir(b.join("sub/new")).unwrap());
    assert_eq!(found, only("sub/new", What::OnlyIn(Side::B)));
}

#[test]
fn notices_another_kind() {
    let found = spoiled(|b| {
        std_fs::remove_file(b.join("sub/other")).unwrap();
        std_fs::create_dir(b.join("sub/other")).unwrap();
    });
    assert_eq!(found, only("sub/other", What::Kind { a: Kind::File, b: Kind::Directory }));
}

#[test]
fn notices_bytes_and_sizes() {
    let found = spoiled(|b| {
        let file = File::options().write(true).open(b.join("file")).unwrap();
        file.write_all_at(b"x", 599_999).unwrap();
        touch(&b.join("file"));
    });
    assert_eq!(
        found,
        only("file", What::Content { offset: 599_999 })
            .into_iter()
            .chain(only("linked", What::Content { offset: 599_999 }))
            .collect::<Vec<_>>()
    );
    let found = spoiled(|b| {
        std_fs::write(b.join("sub/other"), b"others").unwrap();
        touch(&b.join("sub/other"));
    });
    assert_eq!(found, only("sub/other", What::Size { a: 5, b: 6 }));
    let found = spoiled(|b| {
        File::options().write(true).open(b.join("sparse")).unwrap().write_all_at(b"!", 2 << 20).unwrap();
        touch(&b.join("sparse"));
    });
    assert_eq!(found, only("sparse", What::Content { offset: 2 << 20 }));
}

#[test]
fn notices_modes_and_times() {
    let mode = |mode| std_fs::Permissions::from_mode(mode);
    let found = spoiled(|b| {
        std_fs::set_permissions(b.join("sub/other"), mode(0o600)).unwrap();
    });
    assert!(matches!(found[..], [Difference { what: What::Mode { b: 0o600, .. }, .. }]), "{found:?}");
    let found = spoiled(|b| std_fs::set_permissions(b.join("sub"), mode(0o1755)).unwrap());
    assert!(matches!(found[..], [Difference { what: What::Mode { b: 0o1755, .. }, .. }]), "{found:?}");
    for name in ["sub/other", "symlink", "fifo"] {
        let found = spoiled(|b| crate::set_mtime(&b.join(name), 1_000_000, 6).unwrap());
        assert_eq!(found, only(name, What::Mtime { a: (1_000_000, 5), b: (1_000_000, 6) }));
    }
}

#[test]
fn notices_owners_where_they_can_be_changed() {
    let found = spoiled(|b| {
        let _ = std::os::unix::fs::lchown(b.join("symlink"), Some(1234), Some(5678));
        touch(&b.join("symlink"));
    });
    if rustix::process::geteuid().is_root() {
        assert_eq!(found, only("symlink", What::Owner { a: (0, 0), b: (1234, 5678) }));
    }
}

#[test]
fn notices_targets_and_links() {
    let found = spoiled(|b| {
        std_fs::remove_file(b.join("symlink")).unwrap();
        symlink("elsewhere", b.join("symlink")).unwrap();
        touch(&b.join("symlink"));
    });
    assert_eq!(found, only("symlink", What::Target { a: "file".into(), b: "elsewhere".into() }));
    let found = spoiled(|b| {
        std_fs::remove_file(b.join("linked")).unwrap();
        std_fs::copy(b.join("file"), b.join("linked")).unwrap();
        touch(&b.join("linked"));
    });
    assert_eq!(found, only("linked", What::HardLink { a: "file".into(), b: "linked".into() }));
}

#[test]
fn notices_xattrs() {
    let mut supported = true;
    let found = spoiled(|b| {
        let set = fs::lsetxattr(b.join("sub/other"), "user.tag", b"v", XattrFlags::empty());
        supported = set != Err(Errno::NOTSUP);
    });
    if supported {
        assert_eq!(
            found,
            only("sub/other", What::Xattr { name: b"user.tag".into(), a: None, b: Some(b"v".into()) })
        );
    }
}

#[test]
fn notices_filled_holes() {
    let found = spoiled(|b| {
        let file = File::options().write(true).open(b.join("sparse")).unwrap();
        file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        file.sync_all().unwrap();
        touch(&b.join("sparse"));
    });
    assert!(matches!(found[..], [Difference { what: What::Sparseness { .. }, .. }]), "{found:?}");
}

#[test]
fn notices_device_numbers_where_they_can_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, minor| {
        let (path, mode) = (dir.path().join(name), Mode::from_raw_mode(0o600));
        let made = fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, fs::makedev(1, minor));
        made.map(|()| crate::set_mtime(&path, 1, 1).unwrap())
    };
    if make("a", 3).and(make("b", 5)).is_ok() {
        let found = compare_trees(&dir.path().join("a"), &dir.path().join("b")).unwrap();
        assert_eq!(found, only("", What::Device { a: (1, 3), b: (1, 5) }));
    }
}

#[test]
fn options_leave_things_out() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    std_fs::write(&a, b"same").unwrap();
    std_fs::write(&b, b"same").unwrap();
    crate::set_mtime(&b, 1, 1).unwrap();
    let options = CompareOptions { mtimes: false, ..CompareOptions::default() };
    assert_eq!(compare_trees_with(&a, &b, &options).unwrap(), []);
    assert_eq!(compare_trees(&a, &b).unwrap().len(), 1);
    let options = CompareOptions { roots: false, ..CompareOptions::default() };
    assert_eq!(compare_trees_with(&a, &b, &options).unwrap(), []);
    assert!(compare_trees(&a, &dir.path().join("none")).is_err());
}
