//! Damage in every structure of a small store: it is named, nothing else is affected, wrong bytes
//! are never returned, and a repair restores as much as possible.

use crate::checking;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use checking::{
    Contents, assert_same_or_unreadable, contents, copy_store, flip, make_store, open, pack_files, run_check,
    said, scratch,
};
use outrigger_format::{
    ChunkKind, FRAME_HEADER_LEN, Footer, FrameHeader, PACK_HEADER_LEN, TRAILER_LEN, Trailer,
};
use outrigger_store::check::{CheckOptions, CheckProgress, CheckReport, DAMAGED_DIR, FindingKind, check};
use outrigger_store::meta::{SessionKind, SessionOwner};
use outrigger_store::{ErrorKind, Store};
use outrigger_workload::spaced;
use tempfile::TempDir;

/// The store that all cases begin with, made once.
fn original() -> &'static (TempDir, PathBuf, Contents) {
    static MADE: OnceLock<(TempDir, PathBuf, Contents)> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = scratch();
        let path = make_store(dir.path());
        let before = contents(&open(&path));
        (dir, path, before)
    })
}

/// A copy of the original with `damage` done to one of its files.
fn damaged(relative: &Path, damage: impl FnOnce(&Path)) -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join("store");
    copy_store(&original().1, &path);
    damage(&path.join(relative));
    (dir, path)
}

fn read_pack(path: &Path) -> (Vec<u8>, Trailer, Footer) {
    let bytes = std::fs::read(path).unwrap();
    let trailer = Trailer::decode(&bytes[bytes.len() - TRAILER_LEN..], bytes.len() as u64).unwrap();
    let start = trailer.footer_offset as usize;
    let footer = trailer.decode_footer(&bytes[start..start + trailer.footer_len as usize]).unwrap();
    (bytes, trailer, footer)
}

/// (what, offset) of a byte of every field of a pack, in its first, middle and last frame.
fn fields(path: &Path) -> Vec<(String, usize)> {
    let (bytes, trailer, footer) = read_pack(path);
    let mut fields = Vec::new();
    for offset in [0, 8, 10, 11, 12, 16, 20, 24, 32, 48, 56] {
        fields.push((format!("header+{offset}"), offset));
    }
    let count = footer.frames().len();
    let mut numbers = vec![0, count / 2, count - 1];
    numbers.dedup();
    for number in numbers {
        let start = footer.frames()[number].offset as usize;
        let header = FrameHeader::decode(&bytes[start..]).unwrap();
        for offset in [0, 4, 5, 6, 7, 8, 12, 16, 20, 21, 24, 32, FRAME_HEADER_LEN] {
            fields.push((format!("frame {number}+{offset}"), start + offset));
        }
        let stored = start + header.encoded_len();
        fields.push((format!("frame {number} stored"), stored + header.stored_len as usize / 2));
        fields.push((format!("frame {number} last"), stored + header.stored_len as usize - 1));
    }
    let start = trailer.footer_offset as usize;
    for offset in [0, 4, 8, 12, 16, 20, 22, 16 + 8 * count, trailer.footer_len as usize - 4] {
        fields.push((format!("footer+{offset}"), start + offset));
    }
    for offset in [0, 8, 12, 16, 20, 24, 32, 40] {
        fields.push((format!("trailer+{offset}"), bytes.len() - TRAILER_LEN + offset));
    }
    fields
}

fn relative(pack: &Path) -> PathBuf {
    pack.strip_prefix(&original().1).unwrap().to_path_buf()
}

/// A data pack, and a meta pack with manifest nodes, and the largest meta pack's catalogue is among
/// them.
fn packs() -> Vec<PathBuf> {
    let mut with = [None, None, None];
    for path in pack_files(&original().1) {
        let (bytes, _, footer) = read_pack(&path);
        for frame in footer.frames() {
            let slot: &mut Option<(usize, PathBuf)> = &mut with[frame.kind as usize];
            if slot.as_ref().is_none_or(|(len, _)| *len < bytes.len()) {
                *slot = Some((bytes.len(), path.clone()));
            }
        }
    }
    let mut packs: Vec<PathBuf> = with.into_iter().flatten().map(|(_, path)| path).collect();
    packs.dedup();
    assert!(packs.len() >= 2);
    packs
}

fn names_pack(report: &CheckReport, pack: &Path) -> bool {
    let id = pack.file_stem().unwrap().to_str().unwrap();
    report.findings.iter().any(|finding| finding.pack.as_deref() == Some(id) && finding.what.contains(id))
}

#[test]
fn every_field_of_a_pack() {
    let before = &original().2;
    for pack in packs() {
        for (field, offset) in fields(&pack).into_iter().step_by(spaced(2)) {
            let case = format!("{} {field}", pack.display());
            let (_dir, path) = damaged(&relative(&pack), |file| flip(file, offset, (offset % 8) as u8));
            let store = open(&path);
            let unreadable = assert_same_or_unreadable(before, &contents(&store), &case);
            let report = run_check(&store, false);
            assert!(report.damaged > 0, "{case}: not noticed");
            assert!(names_pack(&report, &pack), "{case}: {}", said(&report));
            for name in &unreadable {
                let path = name.split("/tree/").nth(1).unwrap();
                let named = report.findings.iter().flat_map(|finding| &finding.files);
                assert!(
                    named.into_iter().any(|file| file.path.ends_with(path)),
                    "{case}: {name}: {}",
                    said(&report)
                );
            }
            drop(store);

            let store = open(&path);
            let repaired = run_check(&store, true);
            assert!(
                repaired.mended > 0 || field.contains("stored") || field.contains("last"),
                "{case}: {}",
                said(&repaired)
            );
            drop(store);
            let store = open(&path);
            let after = contents(&store);
            let still = assert_same_or_unreadable(before, &after, &case);
            assert!(still.iter().all(|name| unreadable.contains(name)), "{case}: worse: {still:?}");
            let again = run_check(&store, false);
            assert_eq!(again.damaged > 0, !still.is_empty(), "{case}: {}", said(&again));
            // All but the stored bytes themselves can be made again.
            let is_lost = field.contains("stored") || field.contains("last");
            assert!(still.is_empty() || is_lost, "{case}: {still:?}");
            assert!(path.join(DAMAGED_DIR).join(pack.file_name().unwrap()).exists(), "{case}");
        }
    }
}

#[test]
fn a_second_copy_replaces_a_damaged_one() {
    let before = &original().2;
    // `copies/twin` was stored without deduplication: all its chunks are in `big`'s packs, too.
    let mut mended = 0;
    for pack in pack_files(&original().1) {
        let (bytes, trailer, footer) = read_pack(&pack);
        if footer.frames()[0].kind != ChunkKind::Data || bytes.len() < 120_000 {
            continue;
        }
        let middle = trailer.footer_offset as usize / 4;
        let (_dir, path) = damaged(&relative(&pack), |file| flip(file, middle, 3));
        let report = run_check(&open(&path), true);
        if report.findings.iter().any(|finding| finding.mendable) {
            assert_eq!(report.damaged, 0, "{}", said(&report));
            assert_eq!(&contents(&open(&path)), before);
            assert_eq!(run_check(&open(&path), false).damaged, 0);
            mended += 1;
        }
    }
    assert!(mended > 0);
}

#[test]
fn a_lost_catalogue_block_is_written_anew() {
    let (_, original, before) = original();
    for pack in pack_files(original) {
        let (_, _, footer) = read_pack(&pack);
        let is_catalogue = |frame: &&outrigger_format::FrameEntry| frame.kind == ChunkKind::Catalogue;
        let Some(frame) = footer.frames().iter().find(is_catalogue) else { continue };
        let at = frame.offset as usize + FRAME_HEADER_LEN + 8;
        let (_dir, path) = damaged(&relative(&pack), |file| flip(file, at, 3));
        let repaired = run_check(&open(&path), true);
        let about = repaired.findings.iter().find(|finding| finding.kind == FindingKind::Catalogue);
        assert!(about.is_some_and(|finding| finding.mended), "{}", said(&repaired));
        assert_eq!(run_check(&open(&path), true).damaged, 0);
        // Without the database, the catalogue alone has to have everything.
        for name in ["meta.db", "meta.db-wal", "meta.db-shm"] {
            let _ = std::fs::remove_file(path.join(name));
        }
        outrigger_store::recover::recover(&path, &Default::default()).unwrap();
        assert_eq!(&contents(&open(&path)), before, "{}", pack.display());
    }
}

#[test]
fn packs_that_are_cut_zeroed_or_gone() {
    let before = &original().2;
    type Damage = (&'static str, fn(Vec<u8>) -> Vec<u8>);
    let damages: [Damage; 6] = [
        ("empty", |_| Vec::new()),
        ("header only", |bytes| bytes[..PACK_HEADER_LEN].to_vec()),
        ("half", |bytes| bytes[..bytes.len() / 2].to_vec()),
        ("no trailer", |bytes| bytes[..bytes.len() - TRAILER_LEN].to_vec()),
        ("all zero", |bytes| vec![0; bytes.len()]),
        ("a page of zeros", |mut bytes| {
            let middle = bytes.len() / 2;
            let end = bytes.len().min(middle + 4096);
            bytes[middle..end].fill(0);
            bytes
        }),
    ];
    for pack in packs() {
        for (name, damage) in damages {
            let case = format!("{} {name}", pack.display());
            let change = |file: &Path| std::fs::write(file, damage(std::fs::read(file).unwrap())).unwrap();
            let (_dir, path) = damaged(&relative(&pack), change);
            let store = open(&path);
            let unreadable = assert_same_or_unreadable(before, &contents(&store), &case);
            let report = run_check(&store, false);
            assert!(report.damaged > 0 && names_pack(&report, &pack), "{case}: {}", said(&report));
            drop(store);
            run_check(&open(&path), true);
            let still = assert_same_or_unreadable(before, &contents(&open(&path)), &case);
            assert!(still.iter().all(|name| unreadable.contains(name)), "{case}: worse");
            assert!(still.is_empty() || name != "no trailer", "{case}: {still:?}");
        }
        let (_dir, path) = damaged(&relative(&pack), |file| std::fs::remove_file(file).unwrap());
        let store = open(&path);
        assert_same_or_unreadable(before, &contents(&store), "gone");
        let report = run_check(&store, true);
        assert!(report.damaged > 0 && names_pack(&report, &pack), "{}", said(&report));
        drop(store);
        // A pack that comes back is taken as if it had never been away.
        std::fs::copy(&pack, path.join(relative(&pack))).unwrap();
        assert_eq!(&contents(&open(&path)), before);
        assert_eq!(run_check(&open(&path), false).damaged, 0);
    }
}

#[test]
fn the_index_is_only_a_cache() {
    let before = &original().2;
    let index = original().1.join("index");
    let names = || std::fs::read_dir(&index).unwrap().map(|entry| entry.unwrap().path());
    let mut runs = 0;
    for file in
        names().filter(|file| file.extension().is_some_and(|end| end == "run") || file.ends_with("CURRENT"))
    {
        let len = std::fs::metadata(&file).unwrap().len() as usize;
        let parts: Vec<usize> =
            (0..8).map(|part| part * len / 8 + 1).chain([len - 1, 4096.min(len - 1), 17]).collect();
        for offset in parts.into_iter().filter(|offset| *offset < len) {
            let case = format!("{} at {offset}", file.display());
            let (_dir, path) = damaged(&relative(&file), |file| flip(file, offset, 4));
            let store = open(&path);
            let report = run_check(&store, false);
            // Padding behind the run header's fields is not read by anything.
            let is_padding = file.extension().is_some() && (96..4096).contains(&offset);
            let named = report.findings.iter().any(|finding| finding.kind == FindingKind::Index);
            assert!(named || is_padding, "{case}: {}", said(&report));
            assert_eq!(&contents(&store), before, "{case}");
            drop(store);
            run_check(&open(&path), true);
            assert_eq!(run_check(&open(&path), false).damaged, 0, "{case}");
            assert_eq!(&contents(&open(&path)), before, "{case}");
            runs += 1;
        }
    }
    assert!(runs > 10);
    let (_dir, path) = damaged(Path::new("index"), |index| std::fs::remove_dir_all(index).unwrap());
    assert_eq!(&contents(&open(&path)), before);
}

#[test]
fn the_configuration_is_refused_when_damaged() {
    let len = std::fs::metadata(original().1.join("store.toml")).unwrap().len() as usize;
    let mut cases: Vec<usize> = (0..len).step_by(7).collect();
    cases.push(len - 1);
    let (_dir, path) = damaged(Path::new("store.toml"), |_| {});
    let text = std::fs::read(path.join("store.toml")).unwrap();
    for offset in cases {
        let mut bytes = text.clone();
        bytes[offset] ^= 1 << (offset % 7);
        std::fs::write(path.join("store.toml"), bytes).unwrap();
        let error = Store::open(&path, false).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Newer | ErrorKind::Invalid),
            "{offset}: {error}"
        );
    }
}

#[test]
fn the_database_is_never_believed_when_damaged() {
    const PAGE: usize = 8192;
    let before = &original().2;
    let len = std::fs::metadata(original().1.join("meta.db")).unwrap().len() as usize;
    let (mut noticed, mut cases, mut by_checksum) = (0, 0, 0);
    for page in 0..len / PAGE {
        // The page's type (behind the file's header on the first), its cell count, and where its
        // cells begin. Then bytes of its cells, which lie at its end: names, times, roots,
        // checksums.
        let start = page * PAGE + if page == 0 { 100 } else { 0 };
        let cells = (0..12).step_by(spaced(3)).map(|n| (page + 1) * PAGE - 1 - n * (17 + page));
        for (number, offset) in [start, start + 4, start + 5].into_iter().chain(cells).enumerate() {
            let is_structure = number < 3;
            cases += usize::from(is_structure);
            let (_dir, path) = damaged(Path::new("meta.db"), |file| flip(file, offset, 2));
            let Ok(store) = Store::open(&path, false) else {
                noticed += usize::from(is_structure);
                continue;
            };
            let report = run_check(&store, false);
            if report.damaged > 0 {
                noticed += usize::from(is_structure);
                by_checksum += usize::from(said(&report).contains("not what was written"));
                assert!(report.findings[0].what.contains("recover"), "{}", said(&report));
                // A repair does not touch a database that is broken.
                drop(store);
                let bytes = std::fs::read(path.join("meta.db")).unwrap();
                run_check(&open(&path), true);
                assert_eq!(std::fs::read(path.join("meta.db")).unwrap(), bytes);
            } else {
                assert_eq!(&contents(&store), before, "byte {offset} of meta.db");
            }
        }
    }
    assert!(noticed * 10 > cases * 9, "{noticed} of {cases}");
    assert!(by_checksum > 5, "{by_checksum}: rows are not compared with their checksums");
}

/// As when `recompress` or `gc` was killed: its lease runs on, but its lock is free.
#[test]
fn a_collector_that_was_killed_keeps_no_check_waiting() {
    let (_dir, path) = damaged(Path::new("."), |_| {});
    let store = open(&path);
    let owner = SessionOwner::this("ghost".into(), "recompress".into());
    let (ghost, _) = store.meta.open_session(SessionKind::Collector, &owner, 600).unwrap();
    store.meta.take_collector(ghost).unwrap();
    // Without its lock it might be another host's.
    let options = CheckOptions { read_data: false, repair: false, threads: 1 };
    let waits = check(&store, &options, &CheckProgress::default());
    assert_eq!(waits.unwrap_err().kind(), ErrorKind::Busy);
    std::fs::write(store.locks_dir().join("ghost.lock"), "").unwrap();
    assert!(run_check(&store, false).findings.is_empty());
}
