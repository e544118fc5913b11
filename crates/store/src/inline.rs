//! Small contents without a pack of their own: committed as rows of the database, and packed
//! together later.
//!
//! ```text
//!  close ─▶ write::compose ─▶ commit: rows of new chunks + the files' roots, one transaction      (who closes waits for this)
//!                                                  │
//!            of this session, or of one that is over ─▶ pack: Writer ─▶ packs durable ─▶ packs live + rows gone, one transaction
//! ```
//!
//! **The order of [`commit`].** It first looks up which chunks are stored, and relies on these
//! until the transaction (rules 4 and 7 of `docs/decisions/0003-reclaim-protocol.md`). The
//! transaction adds rows for the others and gives the files their roots. When it returns, it is
//! durable, and so are the files: nothing else has to be synced. A chunk in another client's pack
//! that this host has not compared with its data (`verified/`) counts as not stored, so that a
//! close does not wait for the comparison. [`pack`] compares it, and then packs nothing twice.
//!
//! **The order of [`pack`].** It reads rows, and compares them with their fingerprints. The
//! pipeline deduplicates and packs them like any data. When the packs are durable, one transaction
//! makes them live and removes the rows. It is refused as a whole unless every row exists and
//! belongs to this session. So a crash before it leaves the rows, and a pack that is swept; after
//! it nothing is left to do. If a chunk was found in an existing pack, the session relies on that
//! pack until then, as for a file that is committed.
//!
//! **Two packers** never have the same row. A row belongs to its session, and another session takes
//! it over only when the row of that session is gone, which waits for that session's transactions.

use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::{ChunkerSpec, Fingerprint};

use crate::error::{Error, ErrorKind, Result};
use crate::meta::inline::{InlineChange, InlineChunk, InlineChunks, InlineRow};
use crate::meta::{Change, Commit, SessionId, SessionKind};
use crate::session::Session;
use crate::store::Store;
use crate::write::{
    CommitWhen, Content, FileItem, Item, Oracle, Progress, Target, Verification, WriteOptions, Writer,
};

/// At most so many new bytes of a content are committed as rows.
pub const NEW_BYTES_MAX: u64 = 128 << 10;

/// The same for this process: none, if its role only adds. Nobody in the database could say whether
/// such a role removes a row before its chunk is packed.
pub fn new_bytes_max(store: &Store) -> u64 {
    if store.meta.only_adds().is_some() { 0 } else { NEW_BYTES_MAX }
}

/// About so many raw bytes are packed at once: they are in memory.
const PACK_BYTES: u64 = 16 << 20;

/// Commits `changes`, in one transaction with `chunks`, which they may refer to. Chunks that are in
/// no pack become rows, which `owner` is to pack; returns the bytes of these.
///
/// A session has one writer at a time, and this is one.
///
/// # Errors
/// Those of [`crate::meta::Tree::commit`]; then nothing has changed.
pub fn commit(
    store: &Store,
    session: &Session,
    owner: SessionId,
    mut changes: Vec<Change>,
    mut chunks: Vec<InlineChunk>,
) -> Result<u64> {
    chunks.sort_unstable_by_key(|chunk| chunk.fingerprint);
    chunks.dedup_by_key(|chunk| chunk.fingerprint);
    // Like a writer: packs that an earlier writer left behind count in lookups, and become live
    // with this commit.
    let (before, packs) = session.resume()?;
    let done = before + changes.len() as u64;
    let fingerprints: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.fingerprint).collect();
    let mut places = Vec::new();
    let verification = Verification::of(store);
    session.rely(done, |usable| {
        let usable = |pack| usable(pack) && verification.is_trusted(pack);
        store.index.resolve_batch(&fingerprints, usable, &mut places)?;
        for found in &mut places {
            if let Some(place) = *found
                && !verification.vouches(place)?
            {
                *found = None;
            }
        }
        Ok(places.iter().flatten().map(|place| place.pack))
    })?;
    let mut bytes = 0;
    let new = chunks.into_iter().zip(&places).filter(|(_, place)| place.is_none());
    changes.extend(new.map(|(chunk, _)| {
        bytes += chunk.bytes.len() as u64;
        Change::InlineChunks(InlineChange::Add { chunk, owner })
    }));
    let commit = Commit { packs, changes, time: clock::now_nanos() };
    session.commit(done, &commit.packs, || store.meta.commit(session.id(), &commit))?;
    Ok(bytes)
}

/// Packs the rows of `session`, which has no other writer, and returns how many there were.
///
/// # Errors
/// `Damaged` names rows that do not match their fingerprints, after all others are packed; they
/// stay. Otherwise those of the store; chunks that were packed before stay packed.
pub fn pack(store: &Store, session: &Arc<Session>, threads: usize) -> Result<u64> {
    let inline = store.meta.inline();
    let (mut packed, mut after, mut damaged) = (0, 0, Vec::new());
    loop {
        let rows = inline.inline_of(session.id(), after, PACK_BYTES)?;
        let Some(last) = rows.last() else { break };
        after = last.number;
        let (whole, bad): (Vec<InlineRow>, Vec<InlineRow>) =
            rows.into_iter().partition(|row| row.chunk.is_whole(store.config.fingerprint));
        damaged.extend(bad.into_iter().map(|row| row.chunk.fingerprint.to_string()));
        packed += whole.len() as u64;
        if !whole.is_empty() {
            pack_rows(store, session, whole, threads)?;
        }
    }
    if damaged.is_empty() {
        return Ok(packed);
    }
    let what = format!(
        "the database has other bytes for the chunks {}; `outrigger check --read-data` names the files",
        damaged.join(", ")
    );
    Err(Error::damaged(what))
}

fn pack_rows(store: &Store, session: &Arc<Session>, rows: Vec<InlineRow>, threads: usize) -> Result<()> {
    // Chunks that others have packed meanwhile are not packed again.
    session.follow()?;
    store.follow_packs()?;
    // Longer than any row, so each row becomes one chunk.
    let longest = rows.iter().map(|row| row.chunk.bytes.len()).max().unwrap_or_default().max(512);
    let options = WriteOptions { threads, chunk_max: longest, commit: CommitWhen::AtTheEnd };
    let mut writer = Writer::start(store, session, &options, &Arc::new(Progress::default()));
    for InlineRow { chunk, .. } in rows {
        let item = FileItem {
            to: Target::Packed { fingerprint: chunk.fingerprint },
            attributes: no_attributes(),
            content: Content::Bytes(chunk.bytes),
            chunker: ChunkerSpec::Fixed { size: longest as u32 },
            codec: chunk.codec.into(),
            dedup: true,
            frame: None,
            oracle: Oracle::Off,
        };
        if let Err(error) = writer.submit(Item::File(item)) {
            // If the committer has stopped, its error says more.
            return match (error.kind(), writer.finish()) {
                (ErrorKind::Cancelled, Err(better)) => Err(better),
                _ => Err(error),
            };
        }
    }
    writer.finish().map(drop)
}

/// A chunk has no attributes.
fn no_attributes() -> Attributes {
    Attributes {
        kind: FileKind::File,
        mode: 0,
        uid: 0,
        gid: 0,
        mtime: Default::default(),
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    }
}

/// Takes over for `session` the rows of ended sessions, after ending those whose process is gone;
/// returns how many chunks that are.
///
/// # Errors
/// Those of the database.
pub fn take_over(store: &Store, session: &Session) -> Result<u64> {
    let inline = store.meta.inline();
    if store.meta.only_adds().is_none() && has_left(store, inline)? {
        inline.adopt_inline(session.id())
    } else {
        Ok(0)
    }
}

/// Packs the rows of ended sessions, in a session of its own; returns how many chunks that were.
///
/// # Errors
/// Those of [`pack`].
pub fn pack_left(store: &Store, threads: usize) -> Result<u64> {
    let inline = store.meta.inline();
    if store.meta.only_adds().is_some() || !has_left(store, inline)? {
        return Ok(0);
    }
    let session = store.session(SessionKind::Writer, "packing")?;
    inline.adopt_inline(session.id())?;
    pack(store, &session, threads)
}

/// True if there are rows of ended sessions.
fn has_left(store: &Store, inline: &dyn InlineChunks) -> Result<bool> {
    let owners = inline.inline_owners()?;
    if owners.is_empty() {
        return Ok(false);
    }
    let live = store.live_sessions(|session| owners.iter().any(|owner| owner.session == session.id))?;
    Ok(owners.iter().any(|owner| live.iter().all(|session| session.id != owner.session)))
}
