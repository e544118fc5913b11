//! A small content without the pipeline: its manifest root, and the chunks that are new in it, in
//! memory.
//!
//! For contents whose chunks are committed as rows ([`crate::inline`]). The result is what the
//! pipeline would have stored, so each finds the other's chunks. Manifest nodes are chunks like the
//! others: readers look them up by fingerprint.

use outrigger_format::{CodecChoice, Domain, Entry, Fingerprint, Node, Root};
use outrigger_offload::Compression;

use super::ingest::cut_here;
use super::item::{Content, FileItem, Part, PartSource, Parts, hinted};
use super::manifest::{ManifestBuilder, NodeSink};
use super::sequence::node_fingerprint;
use crate::error::Result;
use crate::meta::inline::InlineChunk;
use crate::read::Reader;

/// Entries of a composed content, at most: they and their nodes are in memory, and nodes that it
/// shares with its earlier content are read.
const ENTRIES_MAX: usize = 256;

/// A content, and the chunks that are new in it, or not looked for yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composed {
    /// The content.
    pub root: Root,
    /// Its chunks but for those that were kept.
    pub chunks: Vec<InlineChunk>,
}

/// Composes the content of a file, if at most `new_max` bytes of it are new and it has few entries.
/// `None` otherwise, and if it asks for a storage form that a row does not have: rows are not
/// encrypted with the key of a domain.
///
/// # Errors
/// Those of the source, and of reading the manifests of kept ranges.
pub fn compose(reader: &Reader<'_>, file: &FileItem, new_max: u64) -> Result<Option<Composed>> {
    let Content::Parts(Parts { parts, source }) = &file.content else { return Ok(None) };
    let codec = hinted(file.codec, &file.attributes.xattrs);
    let is_common = file.attributes.domain() == Domain::COMMON;
    let is_usual = is_common && codec == Compression::from(codec.codec) && file.dedup && file.frame.is_none();
    let new = parts.iter().map(|part| match part {
        Part::Data { len, .. } => *len,
        Part::Keep { .. } | Part::Hole { .. } => 0,
    });
    if !is_usual || new.sum::<u64>() > new_max {
        return Ok(None);
    }
    let nodes = Chunks { reader, codec: codec.codec, chunks: Vec::new() };
    let mut composing = Composing { manifest: ManifestBuilder::default(), entries: 0, nodes };
    for part in parts {
        let fits = match part {
            Part::Hole { len: 0 } => true,
            Part::Hole { len } => composing.push(Entry::Hole { len: *len })?,
            Part::Keep { root, from, to } => composing.keep(root, (*from, *to))?,
            Part::Data { offset, len } => composing.data(file, &**source, (*offset, *len))?,
        };
        if !fits {
            return Ok(None);
        }
    }
    let Composing { mut manifest, mut nodes, .. } = composing;
    let root = manifest.finish(&mut nodes)?;
    Ok(Some(Composed { root, chunks: nodes.chunks }))
}

/// New chunks, nodes among them.
struct Chunks<'r> {
    reader: &'r Reader<'r>,
    codec: CodecChoice,
    chunks: Vec<InlineChunk>,
}

impl Chunks<'_> {
    fn add(&mut self, fingerprint: Fingerprint, bytes: Vec<u8>) {
        self.chunks.push(InlineChunk { fingerprint, codec: self.codec, bytes });
    }
}

impl NodeSink for Chunks<'_> {
    fn put_node(&mut self, node: &Node) -> Result<Fingerprint> {
        let (fingerprint, bytes) = node_fingerprint(self.reader.fingerprint_kind(), node);
        self.add(fingerprint, bytes);
        Ok(fingerprint)
    }
}

/// The parts so far. Its methods return false if the content cannot be composed here.
struct Composing<'r> {
    manifest: ManifestBuilder,
    entries: usize,
    nodes: Chunks<'r>,
}

impl Composing<'_> {
    fn push(&mut self, entry: Entry) -> Result<bool> {
        self.entries += 1;
        self.manifest.push(entry, &mut self.nodes)?;
        Ok(self.entries <= ENTRIES_MAX)
    }

    fn keep(&mut self, root: &Root, (from, to): (u64, u64)) -> Result<bool> {
        let (reader, mut fits) = (self.nodes.reader, true);
        reader.entries(root, from, to, &mut |at, entry| {
            let (start, end) = (at.max(from), (at + entry.len()).min(to));
            fits = match entry {
                Entry::Hole { .. } => self.push(Entry::Hole { len: end - start })?,
                // A part of a chunk cannot be kept: the pipeline reports that.
                Entry::Chunk { .. } => end - start == entry.len() && self.push(entry)?,
            };
            Ok(fits)
        })?;
        Ok(fits && to <= root.len())
    }

    fn data(&mut self, file: &FileItem, source: &dyn PartSource, (offset, len): (u64, u64)) -> Result<bool> {
        let mut bytes = vec![0; len as usize];
        source.read_at(offset, &mut bytes)?;
        for range in cut_here(&bytes, offset, file.chunker) {
            let fingerprint =
                outrigger_offload::hash(self.nodes.reader.fingerprint_kind(), &bytes[range.clone()]);
            if !self.push(Entry::Chunk { fingerprint, len: range.len() as u32 })? {
                return Ok(false);
            }
            self.nodes.add(fingerprint, bytes[range].to_vec());
        }
        Ok(true)
    }
}
