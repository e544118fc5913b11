//! A small content without the pipeline: its manifest root, and the chunks that are new in it, in memory.
//!
//! For contents whose chunks are committed as rows ([`crate::loose`]). What comes out is what the pipeline would have stored, so it finds these chunks again, and they those that it stored.

use outrigger_format::{CodecChoice, Entry, INLINE_ENTRIES_MAX, Root};
use outrigger_offload::Compression;

use super::ingest::cut_here;
use super::item::{Content, FileItem, Part, PartSource, Parts, hinted};
use crate::error::Result;
use crate::meta::loose::LooseChunk;
use crate::read::Reader;

/// A content, and the chunks that are new in it, or not looked for yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composed {
    /// The content.
    pub root: Root,
    /// Its chunks but for those that were kept.
    pub chunks: Vec<LooseChunk>,
}

/// Composes the content of a file, if at most `new_max` bytes of it are new and its root has room for all of its entries: a manifest node would have to lie in a pack. `None`
/// too if it is to be stored in a way that a row does not tell.
///
/// # Errors
/// Those of the source.
pub fn compose(reader: &Reader<'_>, file: &FileItem, new_max: u64) -> Result<Option<Composed>> {
    let Content::Parts(Parts { parts, source }) = &file.content else { return Ok(None) };
    let codec = hinted(file.codec, &file.attributes.xattrs);
    let is_usual = codec == Compression::from(codec.codec) && file.dedup && file.frame.is_none();
    let new = parts.iter().map(|part| match part {
        Part::Data { len, .. } => *len,
        Part::Keep { .. } | Part::Hole { .. } => 0,
    });
    if !is_usual || new.sum::<u64>() > new_max {
        return Ok(None);
    }
    let mut composing =
        Composing { codec: codec.codec, entries: Vec::with_capacity(INLINE_ENTRIES_MAX), chunks: Vec::new() };
    for part in parts {
        let fits = match part {
            Part::Hole { len } => composing.push(Entry::Hole { len: *len }),
            Part::Keep { root, from, to } => composing.keep(root, (*from, *to)),
            Part::Data { offset, len } => composing.data(reader, file, &**source, (*offset, *len))?,
        };
        if !fits {
            return Ok(None);
        }
    }
    let Composing { entries, chunks, .. } = composing;
    let root = if entries.is_empty() { Root::Empty } else { Root::Inline(entries) };
    Ok(Some(Composed { root, chunks }))
}

/// What there is so far. Its methods are false when it cannot be had so.
struct Composing {
    codec: CodecChoice,
    entries: Vec<Entry>,
    chunks: Vec<LooseChunk>,
}

impl Composing {
    fn push(&mut self, entry: Entry) -> bool {
        match (entry, self.entries.last_mut()) {
            (Entry::Hole { len: 0 }, _) => return true,
            (Entry::Hole { len }, Some(Entry::Hole { len: last })) => {
                let Some(sum) = last.checked_add(len) else { return false };
                *last = sum;
            }
            _ => self.entries.push(entry),
        }
        self.entries.len() <= INLINE_ENTRIES_MAX
    }

    fn keep(&mut self, root: &Root, (from, to): (u64, u64)) -> bool {
        let entries: &[Entry] = match root {
            Root::Empty => &[],
            Root::Inline(entries) => entries,
            // Its nodes would have to be read; the pipeline does that.
            Root::Tree { .. } => return from == to,
        };
        let mut at = 0;
        for &entry in entries {
            let (start, end) = (at.max(from), (at + entry.len()).min(to));
            at += entry.len();
            let fits = match entry {
                _ if start >= end => true,
                Entry::Hole { .. } => self.push(Entry::Hole { len: end - start }),
                // A part of a chunk cannot be kept: the pipeline says so.
                Entry::Chunk { .. } => end - start == entry.len() && self.push(entry),
            };
            if !fits {
                return false;
            }
        }
        to <= at
    }

    fn data(
        &mut self,
        reader: &Reader<'_>,
        file: &FileItem,
        source: &dyn PartSource,
        (offset, len): (u64, u64),
    ) -> Result<bool> {
        let mut bytes = vec![0; len as usize];
        source.read_at(offset, &mut bytes)?;
        for range in cut_here(&bytes, offset, file.chunker) {
            let fingerprint = outrigger_offload::hash(reader.fingerprint_kind(), &bytes[range.clone()]);
            if !self.push(Entry::Chunk { fingerprint, len: range.len() as u32 }) {
                return Ok(false);
            }
            self.chunks.push(LooseChunk { fingerprint, codec: self.codec, bytes: bytes[range].to_vec() });
        }
        Ok(true)
    }
}
