//! Identifiers, records and byte maps of Outrigger's on-disk format, and the chunk-boundary rule.
//!
//! This crate does no I/O and knows no file, thread or database. It turns bytes into checked values
//! and back. The byte maps are in `docs/format.md`, and repeated above the offsets here. Every
//! decoder treats its input as hostile. It returns a [`FormatError`] that names the fault, never
//! panics, and allocates no more than the input's size permits.

pub mod boundary;
pub mod catalogue;
mod codec;
mod codec_choice;
mod codec_list;
mod cursor;
mod encoding;
mod error;
mod frame;
mod id;
mod manifest;
mod pack;
mod parity;
mod spec;
pub mod staging;

pub use codec::{Codec, CodecSpec, Objective};
pub use codec_choice::CodecChoice;
pub use codec_list::{CodecDevice, CodecList, Listed, ListedCodec};
pub use cursor::{Cursor, Put};
pub use encoding::{Encoding, Filter, Reason};
pub use error::FormatError;
pub use frame::{ChunkKind, FRAME_HEADER_LEN, FRAME_MAGIC, FrameHeader, MAX_FRAME_LEN};
pub use id::{
    Domain, Fingerprint, FingerprintHasher, FingerprintKind, FingerprintMap, PackId, Place, StoreId, checksum,
};
pub use manifest::{
    Entry, INLINE_ENTRIES_MAX, MAX_LEVEL, NODE_ENTRIES_MAX, NODE_ENTRIES_MIN, Node, Root, ends_node,
};
pub use pack::{
    Footer, FooterBuilder, FrameEntry, MAX_PACK_CHUNKS, MAX_PACK_FRAMES, PACK_HEADER_LEN, PackHeader,
    PackKind, TRAILER_LEN, Trailer,
};
pub use parity::{
    PARITY_END_LEN, PARITY_FILES_MAX, PARITY_MEMBERS_MAX, PARITY_UNIT, ParityDescription, ParityMember,
};
pub use spec::{ChunkerSpec, WindowedHash, parse_size, print_size};
