//! Packs against their rows, their footers and their own bytes.
//!
//! Workers take packs one by one. They read header, trailer and footer of every pack. They read all
//! frames of meta packs, which are small, and whose catalogue `recover` needs; those of data packs
//! only on request. A frame is checked by its stored checksum, by decoding it, and by comparing
//! every chunk's fingerprint with the footer's. Memory: a footer and a frame per thread.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_format::catalogue::Block;
use outrigger_format::{ChunkKind, Fingerprint, Footer, PackId, PackKind};

use super::report::{CheckProgress, Finding, FindingKind, add};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::PackRow;
use crate::store::Store;

/// A finding about a pack, and the chunks and nodes that cannot be read because of it.
pub(super) struct PackFinding {
    pub finding: Finding,
    pub bad: Vec<Fingerprint>,
    /// It is about a pack of manifest nodes and catalogue blocks.
    pub is_meta: bool,
    /// The pack should be rewritten from its readable parts.
    pub rewrite: Option<PackRow>,
    /// The pack's object is gone.
    pub gone: Option<PackId>,
}

/// Checks `rows`, the committed packs.
pub(super) fn check_packs(
    store: &Store,
    rows: &[PackRow],
    read_data: bool,
    threads: usize,
    progress: &CheckProgress,
) -> Result<Vec<PackFinding>> {
    let wanted = |row: &&PackRow| read_data || row.kind == PackKind::Meta;
    add(&progress.bytes_expected, rows.iter().filter(wanted).map(|row| row.bytes).sum());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, rows.len().max(1)) {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match check_pack(store, row, read_data, progress) {
                        Ok(mut some) => found.lock().expect("no panic while held").append(&mut some),
                        Err(error) => {
                            next.store(rows.len(), Ordering::Relaxed);
                            failed.lock().expect("no panic while held").get_or_insert(error);
                        }
                    }
                    add(&progress.packs_done, 1);
                }
            });
        }
    });
    match failed.into_inner().expect("no panic while held") {
        Some(error) => Err(error),
        None => Ok(found.into_inner().expect("no panic while held")),
    }
}

/// Errors of the pack itself, not of the machine or of this program's age.
fn is_about_the_pack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound | ErrorKind::Io | ErrorKind::Invalid)
}

fn check_pack(
    store: &Store,
    row: &PackRow,
    read_data: bool,
    progress: &CheckProgress,
) -> Result<Vec<PackFinding>> {
    let whole = |what: String, rewrite: bool| {
        let mut finding = Finding::damage(FindingKind::Pack, what);
        finding.pack = Some(row.id.to_string());
        finding.mendable = rewrite;
        let is_meta = row.kind == PackKind::Meta;
        vec![PackFinding {
            finding,
            bad: Vec::new(),
            is_meta,
            rewrite: rewrite.then(|| row.clone()),
            gone: None,
        }]
    };
    let Some(len) = store.backend.len(row.id)? else {
        let what = format!(
            "pack {} is missing: its object is gone. Put it back from a copy of the store if there is one; what of it is still in the files it was \
             stored from is stored again by `check --repair` and then `put --rescan`",
            row.id
        );
        let mut found = whole(what, false);
        found[0].gone = Some(row.id);
        return Ok(found);
    };
    let header = store.packs.read_header(row.id);
    let footer = match header.and_then(|header| Ok((header, store.packs.read_footer(row.id)?))) {
        Ok((header, footer)) if header.kind == row.kind => footer,
        Ok(_) => return Ok(whole(format!("pack {} is of another kind than its row says", row.id), false)),
        Err(error) if is_about_the_pack(&error) => {
            // After an I/O error a rewrite could not read the pack either: that is for another
            // disk, not for a repair.
            let rewrite = error.kind() == ErrorKind::Damaged && !super::salvage::is_foreign(store, row.id);
            return Ok(whole(error.to_string(), rewrite));
        }
        Err(error) => return Err(error),
    };
    match store.packs.naming(row.id) {
        Err(error) if error.kind() == ErrorKind::Destroyed => {
            add(&progress.packs_destroyed, 1);
            return Ok(Vec::new());
        }
        // The key of its domain is missing: nothing is wrong with the pack, so nothing is rewritten.
        Err(error) if error.kind() == ErrorKind::Damaged => return Ok(whole(error.to_string(), false)),
        naming => drop(naming?),
    }
    let mut found = Vec::new();
    let chunks = footer.fingerprints().len() as u64;
    if (len, chunks) != (row.bytes, u64::from(row.chunks)) {
        let what = format!(
            "pack {} has {len} bytes and {chunks} chunks; its row says {} and {}",
            row.id, row.bytes, row.chunks
        );
        found.append(&mut whole(what, true));
    }
    if read_data || row.kind == PackKind::Meta {
        check_frames(store, row, &footer, &mut found, progress)?;
    }
    Ok(found)
}

/// Which fingerprint should lie where in each frame.
pub(super) fn slots_by_frame(footer: &Footer) -> HashMap<(u16, u16), Fingerprint> {
    let numbered = footer.fingerprints().iter().zip(0..);
    numbered.filter_map(|(fingerprint, slot)| Some((footer.position(slot)?, *fingerprint))).collect()
}

fn check_frames(
    store: &Store,
    row: &PackRow,
    footer: &Footer,
    found: &mut Vec<PackFinding>,
    progress: &CheckProgress,
) -> Result<()> {
    let slots = slots_by_frame(footer);
    for (number, entry) in (0u16..).zip(footer.frames()) {
        let range = footer.frame_range(number).expect("its own frame");
        let expected: Vec<Option<Fingerprint>> =
            (0..entry.chunks).map(|at| slots.get(&(number, at)).copied()).collect();
        let checked = check_frame(store, row, footer, number, &expected, progress);
        add(&progress.bytes_done, u64::from(range.end - range.start));
        let (what, bad) = match checked {
            Ok(bad) if bad.is_empty() => continue,
            Ok(bad) => {
                let what = format!(
                    "pack {}, frame {number} at byte {}: {} of {} chunks do not match their fingerprints",
                    row.id,
                    range.start,
                    bad.len(),
                    entry.chunks
                );
                (what, bad)
            }
            Err(error) if is_about_the_pack(&error) => {
                (error.to_string(), expected.into_iter().flatten().collect())
            }
            Err(error) => return Err(error),
        };
        let kind =
            if entry.kind == ChunkKind::Catalogue { FindingKind::Catalogue } else { FindingKind::Frame };
        let mut finding = Finding::damage(kind, what);
        finding.pack = Some(row.id.to_string());
        finding.frame = Some(number);
        finding.offset = Some(range.start.into());
        // The database has the contents of a catalogue block, too.
        finding.mendable = kind == FindingKind::Catalogue || has_other_copies(store, row, &bad)?;
        let is_meta = row.kind == PackKind::Meta;
        found.push(PackFinding { finding, bad, is_meta, rewrite: Some(row.clone()), gone: None });
    }
    Ok(())
}

/// Returns the fingerprints that the frame should hold and does not.
fn check_frame(
    store: &Store,
    row: &PackRow,
    footer: &Footer,
    number: u16,
    expected: &[Option<Fingerprint>],
    progress: &CheckProgress,
) -> Result<Vec<Fingerprint>> {
    let entry = footer.frames()[number as usize];
    let frame = store.packs.load(row.id, footer, number)?;
    let at = || format!("pack {}, frame {number} at byte {}", row.id, entry.offset);
    let is_meta = entry.kind != ChunkKind::Data;
    if frame.header.kind != entry.kind
        || frame.chunks() != expected.len()
        || is_meta != (row.kind == PackKind::Meta)
    {
        return Err(Error::damaged(format!("{}: its header and the footer disagree", at())));
    }
    add(&progress.frames, 1);
    add(&progress.chunks, expected.len() as u64);
    let mut bad = Vec::new();
    for (position, expected) in (0u16..).zip(expected) {
        let bytes = frame.chunk(position).unwrap_or_default();
        let fingerprint = frame.name(bytes);
        match expected {
            Some(expected) if *expected != fingerprint => bad.push(*expected),
            // A second copy of a chunk within the pack: the footer names the first only.
            None if footer.find(&fingerprint).is_none() => bad.push(fingerprint),
            _ if entry.kind == ChunkKind::Catalogue => {
                Block::decode(bytes).map_err(|error| Error::damaged(at()).caused_by(error))?;
                add(&progress.blocks, 1);
            }
            _ => {}
        }
    }
    Ok(bad)
}

/// True when every chunk lies in another committed pack, too.
fn has_other_copies(store: &Store, row: &PackRow, bad: &[Fingerprint]) -> Result<bool> {
    for fingerprint in bad {
        let other = store.index.resolve_lowest(fingerprint, |pack| pack != row.id)?;
        if other.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
