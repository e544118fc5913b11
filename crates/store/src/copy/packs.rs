//! Packs from one engine to another, several at once, each checked on its way.

use std::io::IoSlice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_format::{
    Domain, Footer, FrameHeader, PACK_HEADER_LEN, PackHeader, PackId, TRAILER_LEN, Trailer,
};

use super::journal::Journal;
use super::{CopyOptions, CopyProgress, CopyReport, add};
use crate::backend::{Backend, PackWriter};
use crate::config::StoreConfig;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::PackRow;
use crate::store::Store;

/// Bytes read and appended at once.
const STEP: usize = 4 << 20;

/// Copies missing packs. The report names packs that are damaged in the source; other errors end
/// the copy.
pub(super) fn copy(
    store: &Store,
    to: &dyn Backend,
    rows: &[PackRow],
    journal: &mut Journal,
    options: &CopyOptions,
    progress: &CopyProgress,
    report: &mut CopyReport,
) -> Result<()> {
    add(&progress.packs_expected, rows.len() as u64);
    let (done, mut missing): (Vec<&PackRow>, Vec<&PackRow>) =
        rows.iter().partition(|row| journal.has(row.id));
    add(&progress.packs_done, done.len() as u64);
    report.packs_kept += done.len() as u64;
    missing.sort_by_key(|row| row.id);
    add(&progress.bytes_expected, missing.iter().map(|row| row.bytes).sum());
    let (state, failed) = (Mutex::new((journal, report)), Mutex::new(None));
    // The copy is made from the source itself, not from cached blocks.
    store.backend.use_cache(false);
    in_parallel(&missing, options.threads.max(to.uploads_max()), &|row| {
        let copied = copy_one(&*store.backend, &store.config, to, row);
        add(&progress.bytes_done, row.bytes);
        add(&progress.packs_done, 1);
        let (journal, report) = &mut *state.lock().expect("no panic while it is held");
        let added = match copied {
            Ok(true) => {
                report.packs_copied += 1;
                report.bytes_copied += row.bytes;
                journal.add(row.id)
            }
            Ok(false) => {
                report.packs_kept += 1;
                journal.add(row.id)
            }
            Err(error) if error.kind() == ErrorKind::Damaged => {
                report.problems.push(format!(
                    "not copied: {error}; run `outrigger check --repair` to find and repair damage"
                ));
                Ok(())
            }
            Err(error) => Err(error),
        };
        match added {
            Ok(()) => true,
            Err(error) => {
                failed.lock().expect("no panic while it is held").get_or_insert(error);
                false
            }
        }
    });
    store.backend.use_cache(true);
    match failed.into_inner().expect("no panic while it is held") {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Reads all packs of the copy again.
pub(super) fn verify(
    to: &dyn Backend,
    config: &StoreConfig,
    rows: &[PackRow],
    threads: usize,
    report: &mut CopyReport,
) {
    let report = Mutex::new(report);
    let rows: Vec<&PackRow> = rows.iter().collect();
    in_parallel(&rows, threads, &|row| {
        let read = check(to, config, row, &mut |_| Ok(()));
        let mut report = report.lock().expect("no panic while it is held");
        match read {
            Ok(()) => report.packs_verified += 1,
            Err(error) if error.kind() == ErrorKind::Destroyed => {}
            Err(error) => report.problems.push(format!("the copy of pack {} is not whole: {error}", row.id)),
        }
        true
    });
}

/// Calls `each` from several threads, until it is false.
fn in_parallel(rows: &[&PackRow], threads: usize, each: &(dyn Fn(&PackRow) -> bool + Sync)) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, rows.len().max(1)) {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !each(row) {
                        next.store(rows.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Copies a pack; false when it was there already, whole.
pub(crate) fn copy_one(
    from: &dyn Backend,
    config: &StoreConfig,
    to: &dyn Backend,
    row: &PackRow,
) -> Result<bool> {
    if let Some((from, to)) = sealed_ends(from, to, row.id)? {
        return copy_sealed(from, to, row.id, &|| to.create(row.id).map(Some));
    }
    if to.len(row.id)?.is_some() {
        match check(to, config, row, &mut |_| Ok(())) {
            Ok(()) => return Ok(false),
            // An interrupted writer left it.
            Err(error) if error.kind() == ErrorKind::Damaged => to.remove(row.id)?,
            Err(error) => return Err(error),
        }
    }
    let mut writer = to.create(row.id)?;
    let copied = check(from, config, row, &mut |part| append(&mut *writer, &part));
    if let Err(error) = copied {
        drop(writer);
        to.remove(row.id)?;
        return Err(error);
    }
    writer.seal()?;
    Ok(true)
}

/// Copies a pack to a tier that readers ask first, so that they find it there only when it is
/// whole. False when it was there already. A pack that is there and damaged is left to
/// `check --repair`: the other one may be worse.
///
/// # Errors
/// As [`copy_one`]; `Invalid` if the engine cannot hide an unfinished pack.
pub(crate) fn copy_before_readers(
    from: &dyn Backend,
    config: &StoreConfig,
    to: &dyn Backend,
    row: &PackRow,
) -> Result<bool> {
    if let Some((from, to)) = sealed_ends(from, to, row.id)? {
        return copy_sealed(from, to, row.id, &|| to.create_unseen(row.id));
    }
    if to.len(row.id)?.is_some() {
        return check(to, config, row, &mut |_| Ok(())).map(|()| false);
    }
    let mut writer = to.create_unseen(row.id)?.ok_or_else(|| not_from_below(row.id))?;
    check(from, config, row, &mut |part| append(&mut *writer, &part))?;
    writer.seal()?;
    Ok(true)
}

fn not_from_below(id: PackId) -> Error {
    let why = format!("pack {id} cannot be moved up: only directories take packs from below");
    Error::new(ErrorKind::Invalid, why)
}

/// The engines that have a pack of a domain as it is stored, and are to have it. Both have the same
/// keys; the domain's may have been destroyed.
fn sealed_ends<'a>(
    from: &'a dyn Backend,
    to: &'a dyn Backend,
    id: PackId,
) -> Result<Option<(&'a dyn Backend, &'a dyn Backend)>> {
    match from.domain_of(id) {
        // The check of the pack reports what is wrong with it.
        Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound) => Ok(None),
        Ok(Domain::COMMON) => Ok(None),
        domain => domain.map(|_| from.stored().zip(to.stored())),
    }
}

/// Copies a pack as it is stored. False if one of its length is there already.
fn copy_sealed(
    from: &dyn Backend,
    to: &dyn Backend,
    id: PackId,
    create: &dyn Fn() -> Result<Option<Box<dyn PackWriter>>>,
) -> Result<bool> {
    let missing = || Error::damaged(format!("pack {id} is missing"));
    let len = from.len(id)?.ok_or_else(missing)?;
    match to.len(id)? {
        Some(there) if there == len => return Ok(false),
        Some(_) => to.remove(id)?,
        None => {}
    }
    let mut writer = create()?.ok_or_else(|| not_from_below(id))?;
    let mut buffer = Vec::new();
    for at in (0..len).step_by(STEP) {
        buffer.resize((len - at).min(STEP as u64) as usize, 0);
        from.read_at(id, at, &mut buffer)?;
        writer.append(&[IoSlice::new(&buffer)])?;
    }
    writer.finish()?;
    writer.seal()?;
    Ok(true)
}

/// A part of a pack that is read from front to back.
enum Part<'a> {
    /// The next bytes.
    Bytes(&'a [u8]),
    /// The footer comes next.
    Footer,
}

fn append(writer: &mut dyn PackWriter, part: &Part<'_>) -> Result<()> {
    match part {
        Part::Bytes(bytes) => writer.append(&[IoSlice::new(bytes)]),
        Part::Footer => writer.begin_footer(),
    }
}

/// Reads a pack from front to back, handing out its bytes, and checks header, frames, footer and
/// trailer.
///
/// # Errors
/// `Damaged` when it is not whole; by then its bytes may have been handed out.
fn check(
    backend: &dyn Backend,
    config: &StoreConfig,
    row: &PackRow,
    take: &mut dyn FnMut(Part<'_>) -> Result<()>,
) -> Result<()> {
    let id = row.id;
    let damaged = |why: &str| Error::damaged(format!("pack {id} {why}"));
    match backend.len(id)? {
        Some(len) if len == row.bytes => {}
        Some(len) => return Err(damaged(&format!("has {len} bytes, and should have {}", row.bytes))),
        None => return Err(damaged("is missing")),
    }
    let mut reader = Front { backend, row, buffer: Vec::new(), start: 0, read: 0, take };
    let header = PackHeader::decode(reader.next(PACK_HEADER_LEN)?).context(|| format!("pack {id}"))?;
    if header.id != id || header.store != config.id {
        return Err(damaged("is another's, by its header"));
    }
    // The trailer has the end of the frames.
    let mut end = [0; TRAILER_LEN];
    backend.read_at(
        id,
        row.bytes.checked_sub(TRAILER_LEN as u64).ok_or_else(|| damaged("is too short"))?,
        &mut end,
    )?;
    let trailer = Trailer::decode(&end, row.bytes).context(|| format!("pack {id}"))?;
    if trailer.id != id {
        return Err(damaged("is another's, by its trailer"));
    }
    let frames_end = u64::from(trailer.footer_offset);
    while reader.at() < frames_end {
        let at = reader.at();
        let context = || format!("pack {id}, frame at byte {at}");
        // The header has its own length; lengths of chunks follow its fixed part.
        let mut known = FRAME_GUESS.min((frames_end - at) as usize);
        let (header_len, stored_len, sum) = loop {
            let header = FrameHeader::decode(reader.peek(known)?);
            match header {
                Ok(header) => break (header.encoded_len(), header.stored_len as usize, header.stored_sum),
                Err(_) if (known as u64) < frames_end - at && known < 1 << 20 => {
                    known = (known * 8).min((frames_end - at) as usize);
                }
                Err(error) => return Err(error).context(context),
            }
        };
        let frame = reader.next(header_len + stored_len)?;
        if outrigger_format::checksum(&[&frame[header_len..]]) != sum {
            return Err(Error::damaged(format!("{}: its bytes do not match their checksum", context())));
        }
    }
    if reader.at() != frames_end {
        return Err(damaged("has a frame that reaches into its footer"));
    }
    reader.hand_out()?;
    (reader.take)(Part::Footer)?;
    let at = || format!("pack {id}, footer");
    for step in trailer.steps() {
        Footer::check_beginning(reader.peek(step)?).context(at)?;
    }
    trailer.decode_footer(reader.next(trailer.footer_len as usize)?).context(at)?;
    let rest = (row.bytes - reader.at()) as usize;
    if *reader.next(rest)? != end[end.len().saturating_sub(rest)..] {
        return Err(damaged("has two trailers"));
    }
    reader.hand_out()
}

/// Bytes of a frame's header in most cases.
const FRAME_GUESS: usize = 1024;

/// Reads a pack front to back in large steps.
struct Front<'a> {
    backend: &'a dyn Backend,
    row: &'a PackRow,
    /// Bytes read and not handed out, from `start` on not looked at either.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of the pack that were read.
    read: u64,
    take: &'a mut dyn FnMut(Part<'_>) -> Result<()>,
}

impl Front<'_> {
    /// Where the next byte lies in the pack.
    fn at(&self) -> u64 {
        self.read - (self.buffer.len() - self.start) as u64
    }

    /// The next `len` bytes, which stay next.
    fn peek(&mut self, len: usize) -> Result<&[u8]> {
        if self.buffer.len() - self.start < len {
            self.hand_out()?;
            let have = self.buffer.len();
            let left = (self.row.bytes - self.read) as usize;
            let more = (len - have).max(STEP).min(left);
            if have + more < len {
                return Err(Error::damaged(format!("pack {} ends too early", self.row.id)));
            }
            self.buffer.resize(have + more, 0);
            self.backend.read_at(self.row.id, self.read, &mut self.buffer[have..])?;
            self.read += more as u64;
        }
        Ok(&self.buffer[self.start..self.start + len])
    }

    /// The next `len` bytes.
    fn next(&mut self, len: usize) -> Result<&[u8]> {
        self.peek(len)?;
        self.start += len;
        Ok(&self.buffer[self.start - len..self.start])
    }

    /// Hands out what was looked at.
    fn hand_out(&mut self) -> Result<()> {
        (self.take)(Part::Bytes(&self.buffer[..self.start]))?;
        self.buffer.drain(..self.start);
        self.start = 0;
        Ok(())
    }
}
