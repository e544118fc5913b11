//! Tar archives: ours against GNU tar's, and hostile ones.

use std::path::Path;
use std::process::Command;

use outrigger_workload::{CompareOptions, TreeOptions};
use tar::{Builder, EntryType, Header};

use crate::run::Place;

fn gnu_tar(place: &Place, args: &[&str]) -> bool {
    let is_gnu = Command::new("tar")
        .arg("--version")
        .output()
        .is_ok_and(|out| out.stdout.starts_with(b"tar (GNU tar)"));
    if is_gnu {
        let status = Command::new("tar").args(args).current_dir(place.path("")).status().unwrap();
        assert!(status.success(), "{args:?}");
    }
    is_gnu
}

fn tree(place: &Place) {
    outrigger_workload::source_tree(&place.path("src"), &TreeOptions::new(8, 60)).unwrap();
    let long = format!("src/{}/{}", "n".repeat(120), "m".repeat(200));
    place.write(&long, "long names");
    std::os::unix::fs::symlink("t".repeat(300), place.path("src/far")).unwrap();
    std::fs::hard_link(place.path(&long), place.path("src/link")).unwrap();
    place.write("src/big", vec![9; 3 << 20]);
    std::fs::File::create(place.path("src/sparse")).unwrap().set_len(1 << 20).unwrap();
    use std::os::unix::fs::FileExt;
    let sparse = std::fs::OpenOptions::new().write(true).open(place.path("src/sparse")).unwrap();
    sparse.write_all_at(b"middle", 300_000).unwrap();
    // The last entry changes the top directory's time, so it is set after it.
    std::fs::File::open(place.path("src")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
}

fn same(a: &Path, b: &Path) {
    let options = CompareOptions { sparseness: false, ..CompareOptions::default() };
    let found = outrigger_workload::compare_trees_with(a, b, &options).unwrap();
    assert!(found.is_empty(), "{}", found.iter().map(|found| format!("{found}\n")).collect::<String>());
}

#[test]
fn gnu_tar_reads_what_we_write() {
    let place = Place::new();
    tree(&place);
    place.done(&["put", "src"]);
    let piped = place.done(&["export", "src"]);
    place.done(&["export", "src", "src.tar"]);
    assert_eq!(piped.out, place.read("src.tar"));
    std::fs::create_dir(place.path("out")).unwrap();
    if gnu_tar(&place, &["xpf", "src.tar", "-C", "out", "--xattrs"]) {
        same(&place.path("src"), &place.path("out"));
        holes(&place, "out/sparse");
    }
}

/// True if this file system has access control lists. Makes `src/f` with mode 0600 and another user
/// who may read and write, and `src/d`, whose files inherit a list.
fn lists(place: &Place) -> bool {
    let list = |entries: &[(u16, u16, u32)]| {
        let mut value = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let nobody = u32::MAX;
    let given = list(&[(1, 6, nobody), (2, 6, 1234), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)]);
    let inherited = list(&[(1, 7, nobody), (4, 5, nobody), (8, 7, 4321), (16, 7, nobody), (32, 0, nobody)]);
    place.write("src/f", "guarded");
    std::fs::create_dir(place.path("src/d")).unwrap();
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(place.path(name), key, value, rustix::fs::XattrFlags::empty())
    };
    let set = set("src/f", "system.posix_acl_access", &given)
        .and_then(|()| set("src/d", "system.posix_acl_default", &inherited));
    if let Err(error) = &set {
        println!("access control lists not tried: {error}");
    }
    set.is_ok()
}

#[test]
fn access_control_lists_go_to_gnu_tar_and_come_from_it() {
    let place = Place::new();
    if !lists(&place) {
        return;
    }
    place.done(&["put", "src"]);
    place.done(&["export", "src", "ours.tar"]);
    std::fs::create_dir(place.path("out")).unwrap();
    if !gnu_tar(&place, &["xpf", "ours.tar", "-C", "out", "--acls"]) {
        return;
    }
    // The comparison includes extended attributes, and lists are such.
    same(&place.path("src"), &place.path("out"));
    assert!(gnu_tar(&place, &["cf", "theirs.tar", "--format=pax", "--acls", "-C", "src", "."]));
    for archive in ["ours.tar", "theirs.tar"] {
        place.done(&["import", archive, "--to", archive]);
        let out = format!("{archive}.out");
        place.done(&["get", archive, &out]);
        same(&place.path("src"), &place.path(&out));
    }
    // A list with an unknown user is left out. Then its mask is not what the group may do.
    let named = place.read("ours.tar");
    let at = named.windows(9).position(|part| part == b"user:1234").unwrap();
    let mut named = named;
    named[at..at + 9].copy_from_slice(b"user:?who");
    let said = place.feed(&["import", "-", "--to", "named"], &named);
    assert_eq!(said.code, 4, "{}", said.err);
    assert!(said.err.contains("`?who`"), "{}", said.err);
    assert!(place.lines(&["ls", "-l", "named/f"])[0].starts_with("-rw-------"));
}

/// Checks that the file of [`tree`] has its holes and its data in the right places.
fn holes(place: &Place, file: &str) {
    use std::os::unix::fs::MetadataExt;
    let blocks = std::fs::metadata(place.path(file)).unwrap().blocks();
    assert!(blocks <= 256, "{file} takes {blocks} blocks");
    assert!(place.read(file) == place.read("src/sparse"));
}

#[test]
fn we_read_what_gnu_tar_writes() {
    let place = Place::new();
    tree(&place);
    for (number, format) in ["--format=gnu", "--format=pax"].iter().enumerate() {
        for sparse in ["--sparse", "--no-recursion"] {
            let mut args = vec!["cf", "a.tar", *format, "-C", "src", "."];
            if sparse == "--sparse" {
                args.insert(2, sparse);
            }
            if !gnu_tar(&place, &args) {
                return;
            }
            place.done(&["import", "a.tar", "--to", "t"]);
            let out = format!("out{number}{sparse}");
            place.done(&["get", "t", &out]);
            let options =
                CompareOptions { sparseness: false, mtimes: *format == "--format=pax", ..Default::default() };
            let found =
                outrigger_workload::compare_trees_with(&place.path("src"), &place.path(&out), &options)
                    .unwrap();
            assert!(found.is_empty(), "{format}: {found:?}");
            if sparse == "--sparse" {
                holes(&place, &format!("{out}/sparse"));
            }
        }
    }
}

#[test]
fn an_archive_read_again_changes_nothing() {
    let place = Place::new();
    tree(&place);
    place.done(&["put", "src", "--tag", "put"]);
    place.done(&["export", "src", "src.tar"]);
    for _ in 0..2 {
        place.done(&["import", "src.tar", "--to", "src"]);
    }
    place.done(&["get", "src", "out"]);
    same(&place.path("src"), &place.path("out"));
    let imported =
        place.feed(&["import", "-", "--to", "x", "--tag", "tar", "--json"], &place.read("src.tar"));
    assert_eq!(imported.code, 0, "{}", imported.err);
    assert_eq!(imported.json()["bytes_new"].as_u64(), Some(0));
    assert_eq!(place.lines(&["diff", "tar:x", "put:src"]), Vec::<String>::new());
}

#[test]
fn sparse_files_come_back_with_their_holes_in_every_shape() {
    let place = Place::new();
    let extents = |name: &str, size: u64, data: &[(u64, usize)]| {
        use std::os::unix::fs::FileExt;
        place.write(format!("src/{name}"), "");
        let file = std::fs::OpenOptions::new().write(true).open(place.path(format!("src/{name}"))).unwrap();
        file.set_len(size).unwrap();
        for &(offset, len) in data {
            let bytes: Vec<u8> = (0..len as u64).map(|at| ((at * at / 7 + offset) % 251) as u8 + 1).collect();
            file.write_all_at(&bytes, offset).unwrap();
        }
    };
    let long = "l".repeat(150);
    extents("none", 3 << 20, &[]);
    extents("begin", 9 << 20, &[(0, 5 << 20)]);
    extents("end", 9 << 20, &[(4 << 20, 5 << 20)]);
    extents("odd", (9 << 20) + 77, &[(100_000, 70_000), (3 << 20, 2_500_001)]);
    extents(&long, 1 << 40, &[(1 << 39, 4096)]);
    let many: Vec<(u64, usize)> = (0..5000).map(|n| (n * 16384, 4096)).collect();
    extents("many", 5000 * 16384, &many);
    place.done(&["put", "src", "--tag", "put"]);
    place.done(&["export", "src", "src.tar"]);
    let archive = std::fs::metadata(place.path("src.tar")).unwrap().len();
    assert!(archive < 120 << 20, "the archive has {archive} bytes");
    place.done(&["import", "src.tar", "--to", "x"]);
    // One file has more holes than an archive's map may have. They become zeros in it.
    assert_eq!(place.lines(&["diff", "put:src", "x"]), ["C many"]);
    std::fs::create_dir(place.path("out")).unwrap();
    if gnu_tar(&place, &["xpf", "src.tar", "-C", "out"]) {
        same(&place.path("src"), &place.path("out"));
        use std::os::unix::fs::MetadataExt;
        for name in ["none", "begin", "end", "odd", &long] {
            let blocks = |dir: &str| std::fs::metadata(place.path(dir).join(name)).unwrap().blocks();
            assert!(blocks("out") <= blocks("src") + 64, "{name}");
        }
    }
}

#[test]
fn a_sparse_entry_that_breaks_off_is_not_stored() {
    let place = Place::new();
    std::fs::create_dir(place.path("src")).unwrap();
    let file = std::fs::File::create(place.path("src/f")).unwrap();
    use std::os::unix::fs::FileExt;
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&vec![7; 3 << 20], 4 << 20).unwrap();
    place.done(&["put", "src"]);
    place.done(&["export", "src", "src.tar"]);
    let whole = place.read("src.tar");
    place.write("cut.tar", &whole[..2 << 20]);
    let imported = place.run(&["import", "cut.tar", "--to", "x"]);
    assert_ne!(imported.code, 0);
    assert!(imported.err.contains("ends early"), "{}", imported.err);
    assert_eq!(place.lines(&["ls", "x"]), Vec::<String>::new());
}

/// Path, kind, link, data.
type Raw<'a> = (&'a [u8], EntryType, &'a [u8], &'a [u8]);

fn archive(entries: &[Raw<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind, link, data) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn hostile_names_stay_below_the_target() {
    use EntryType as E;
    let place = Place::new();
    place.write("keep", "untouched");
    place.done(&["put", "keep"]);
    let bytes = archive(&[
        (b"../keep", E::Regular, b"", b"evil"),
        (b"a/../../keep", E::Regular, b"", b"evil"),
        (b"/abs/olute", E::Regular, b"", b"below"),
        (b"out", E::Symlink, b"/etc", b""),
        (b"out/passwd", E::Regular, b"", b"below"),
        (b"hard", E::Link, b"../keep", b""),
        (b"nothing", E::Link, b"not/there", b""),
        (b"ok", E::Regular, b"", b"ok"),
        (b"again", E::Link, b"/ok", b""),
        (b"ok", E::Regular, b"", b"second"),
        (b"weird", E::new(b'Z'), b"", b"data"),
        (b"last", E::Regular, b"", b"last"),
    ]);
    let said = place.feed(&["import", "-", "--to", "t"], &bytes);
    assert_eq!(said.code, 4, "{}", said.err);
    assert_eq!(said.err.lines().count(), 5, "{}", said.err);
    let lines = place.lines(&["ls", "-R"]);
    assert_eq!(
        lines,
        ["keep", "t", "t/abs", "t/abs/olute", "t/again", "t/last", "t/ok", "t/out", "t/out/passwd"]
    );
    assert_eq!(place.done(&["cat", "keep"]).text(), "untouched");
    assert_eq!(place.done(&["cat", "t/ok", "t/again", "t/last"]).text(), "secondoklast");
    place.done(&["check", "--read-data"]);
}

#[test]
fn names_that_lead_elsewhere_are_not_exported() {
    let place = Place::plain();
    place.write("src/good", "good");
    place.write("src/file", "evil");
    place.write("src/dir/below", "evil");
    place.done(&["put", "src"]);
    let database = outrigger_store::testing::database(&place.path("store/meta.db")).unwrap();
    for (name, evil) in [(&b"file"[..], &b"../../evil"[..]), (b"dir", b".")] {
        let sql = "UPDATE dentry SET name = ?1 WHERE name = ?2";
        assert_eq!(database.execute(sql, (evil, name)).unwrap(), 1);
    }
    drop(database);
    let said = place.code(4, &["export", "src", "src.tar"]);
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
    assert!(said.err.contains("`../../evil` holds a slash"), "{}", said.err);
    let mut archive = tar::Archive::new(std::io::Cursor::new(place.read("src.tar")));
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names, ["./", "good"]);
    let said = place.code(3, &["ls", "-R", "src"]);
    assert!(said.err.contains("`../../evil` holds a slash"), "{}", said.err);
    assert!(said.text().lines().any(|line| line == "good"));
}

#[test]
fn one_entry_may_be_deep() {
    let place = Place::new();
    let mut builder = Builder::new(Vec::new());
    let deep = ["d"; 900].join("/");
    for name in [format!("{deep}/f"), format!("{deep}/g")] {
        builder.append_pax_extensions([("path", name.as_bytes())]).unwrap();
        let mut header = Header::new_ustar();
        header.set_size(0);
        builder.append_data(&mut header, "x", &b""[..]).unwrap();
    }
    builder
        .append_pax_extensions([("path", b"hard".as_slice()), ("linkpath", format!("{deep}/f").as_bytes())])
        .unwrap();
    let mut link = Header::new_ustar();
    link.set_entry_type(EntryType::Link);
    link.set_size(0);
    builder.append_data(&mut link, "x", &b""[..]).unwrap();
    place.write("deep.tar", builder.into_inner().unwrap());
    place.done(&["import", "deep.tar", "--to", "t"]);
    assert_eq!(place.lines(&["ls", "-R", "t"]).len(), 903);
    assert!(place.lines(&["ls", "-l", "t/hard"])[0].contains(" 2 "));
}

/// One name of a million bytes would make half a million directories.
#[test]
fn names_longer_than_paths_may_be_are_skipped() {
    let place = Place::new();
    let mut builder = Builder::new(Vec::new());
    let (deep, far) = ("d/".repeat(400_000), "t".repeat(5000));
    let entries = [
        (EntryType::Regular, [("path", deep.as_str()), ("comment", "")]),
        (EntryType::Symlink, [("path", "symbolic"), ("linkpath", &far)]),
        (EntryType::Link, [("path", "hard"), ("linkpath", &far)]),
        (EntryType::Regular, [("path", "last"), ("comment", "")]),
    ];
    for (kind, records) in entries {
        builder.append_pax_extensions(records.map(|(key, value)| (key, value.as_bytes()))).unwrap();
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(0);
        builder.append_data(&mut header, "x", &b""[..]).unwrap();
    }
    let said = place.feed(&["import", "-", "--to", "t"], &builder.into_inner().unwrap());
    assert_eq!(said.code, 4, "{}", said.err);
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.contains("longer than 4096 bytes") && line.len() < 400),
        "{lines:?}"
    );
    assert_eq!(place.lines(&["ls", "-R", "t"]), ["last"]);
}

#[test]
fn what_is_no_archive_is_refused() {
    let place = Place::new();
    let good = archive(&[
        (b"a", EntryType::Regular, b"", b"first"),
        (b"b", EntryType::Regular, b"", &[5; 3_000_000]),
    ]);
    let mut damaged = good.clone();
    damaged[1024 + 10] ^= 1;
    for (input, sentence) in [
        (&b""[..], "empty, not a tar archive"),
        (&[7; 5000], "not a tar archive"),
        (&[0x1f, 0x8b].repeat(600), "compressed with gzip"),
        (&good[..700], "ends early"),
        (&good[..1_000_000], "ends early"),
        (&damaged, "header at byte 1024 is damaged"),
    ] {
        let said = place.feed(&["import", "-", "--to", "t"], input);
        assert_eq!(said.code, 1, "{sentence}: {}", said.err);
        assert!(said.err.contains(sentence), "{sentence}: {}", said.err);
    }
    // Entries before the damage are there, and no others.
    assert_eq!(place.lines(&["ls", "-R", "t"]), ["a"]);
    assert_eq!(place.done(&["cat", "t/a"]).text(), "first");
    place.code(1, &["import", "missing.tar", "--to", "t"]);
    // An input that never was an archive changes nothing. The error names the file, also if its
    // data was read.
    let refused: [(&str, &[u8]); 3] = [("random", &[7; 5000]), ("empty", b""), ("gz", &[0x1f; 2000])];
    for (name, input) in refused {
        place.write(name, input);
        assert!(place.code(1, &["import", name, "--to", "new/dir"]).err.contains(&format!("{name}: ")));
    }
    std::fs::create_dir(place.path("dir")).unwrap();
    assert!(place.code(1, &["import", "dir", "--to", "new"]).err.contains("cannot read dir: Is a directory"));
    assert_eq!(place.lines(&["ls"]), ["t"]);
    place.write("cut.tar", &good[..1_000_000]);
    let said = place.code(1, &["import", "cut.tar", "--to", "t"]);
    assert!(said.err.contains("cut.tar: the archive ends early"), "{}", said.err);
    assert!(said.err.contains("skipped b: ") && !said.err.contains("standard input"), "{}", said.err);
    place.code(2, &["import", "x.tar"]);
}
