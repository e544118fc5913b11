//! The chunks in use of one frame of a victim: read, checked to the last byte, and prepared to be
//! appended elsewhere.
//!
//! If all chunks of a frame are in use, the stored frame is copied. It is decompressed all the
//! same: a frame that cannot be decoded to the chunks in the footer must not get a new, valid
//! checksum. From other frames the chunks in use are taken out.

use outrigger_format::{ChunkKind, Codec, Encoding, Fingerprint, Footer, FrameHeader, PackId};
use outrigger_offload::{Auto, Compression, Encoder, FrameDecoder, Wanted};

use super::recompress::Targets;

use crate::error::{Context, Error, Result};
use crate::packs::Naming;
use crate::store::Store;

/// Verified chunks of one frame.
pub(super) struct Salvage {
    pub kind: ChunkKind,
    pub encoding: Encoding,
    pub lengths: Vec<u32>,
    pub fingerprints: Vec<Fingerprint>,
    /// The frame's stored bytes if it is `whole`, else the chunks' own.
    pub bytes: Vec<u8>,
    pub whole: bool,
    /// The encoding that it should have, if it has another.
    pub other: Option<Compression>,
    /// Its stored length before, if it was encoded anew.
    pub recoded: Option<u64>,
}

/// A frame that was read.
struct Frame {
    pack: PackId,
    number: u16,
    /// Its offset in the pack.
    start: u32,
    header: FrameHeader,
}

/// Chunks in use of each frame: position and name, rising by position.
pub(super) type WantedChunks = Vec<Vec<(u16, Fingerprint)>>;

/// Buffers that one thread keeps from frame to frame.
#[derive(Default)]
pub(super) struct Salvager {
    decoder: FrameDecoder,
    encoder: Encoder,
    stored: Vec<u8>,
    raw: Vec<u8>,
}

impl Salvager {
    /// Reads frame `number` and verifies its `wanted` chunks. A frame stays whole if all of it is
    /// wanted and it has at least `whole_min` raw bytes; smaller ones are better joined. A frame
    /// for which `targets` wants another encoding is encoded anew.
    #[expect(clippy::too_many_arguments, reason = "which frame, which chunks of it, and what of them")]
    pub fn salvage(
        &mut self,
        store: &Store,
        pack: PackId,
        footer: &Footer,
        number: u16,
        wanted: &[(u16, Fingerprint)],
        whole_min: usize,
        targets: Option<&Targets>,
    ) -> Result<Salvage> {
        let frame = self.read(store, pack, footer, number)?;
        let header = &frame.header;
        let whole = wanted.len() == header.lengths.len()
            && (header.raw_len() >= whole_min || header.kind == ChunkKind::Catalogue);
        let mut salvage = Salvage {
            kind: header.kind,
            encoding: header.encoding,
            lengths: Vec::with_capacity(wanted.len()),
            fingerprints: wanted.iter().map(|(_, fingerprint)| *fingerprint).collect(),
            bytes: Vec::new(),
            whole,
            other: None,
            recoded: None,
        };
        if header.kind == ChunkKind::Data {
            salvage.other = targets.and_then(|targets| targets.other(pack, number, header.encoding));
        }
        self.take_chunks(&store.packs.naming(pack)?, &frame, wanted, &mut salvage)?;
        let stored = &self.stored[header.encoded_len()..];
        match salvage.other.filter(|_| whole) {
            Some(target) => {
                let (raw, auto, out) = (&self.raw, &Auto::at_rest(), &mut salvage.bytes);
                salvage.encoding = match store.frame_devices() {
                    Some(devices) => devices.encode(&mut self.encoder, target, auto, raw, out),
                    None => self.encoder.encode(Wanted::of(target, auto), raw, out),
                };
                if salvage.encoding.codec == Codec::None {
                    salvage.bytes.clone_from(&self.raw);
                }
                salvage.recoded = Some(stored.len() as u64);
            }
            None if whole => salvage.bytes.extend_from_slice(stored),
            None => {}
        }
        Ok(salvage)
    }

    /// Reads a frame into `stored`, verifies it, and decodes it into `raw`.
    fn read(&mut self, store: &Store, pack: PackId, footer: &Footer, number: u16) -> Result<Frame> {
        let range = footer.frame_range(number).ok_or_else(|| missing(pack, number))?;
        let start = range.start;
        let at = || at(pack, start);
        self.stored.resize(range.len(), 0);
        store.backend.read_at(pack, start.into(), &mut self.stored)?;
        let header = FrameHeader::decode(&self.stored).context(at)?;
        let stored = &self.stored[header.encoded_len()..];
        header.verify_stored(stored).context(at)?;
        if let Some(devices) = store.store_devices() {
            devices.opening.note(stored.len());
        }
        let by_device = store.frame_devices().is_some_and(|devices| {
            let (encoding, raw_len) = (header.encoding, header.raw_len());
            let device = devices.decoder_for(encoding, stored.len(), raw_len);
            device
                .is_some_and(|device| devices.decode_copied(device, encoding, stored, raw_len, &mut self.raw))
        });
        if !by_device {
            let decoded = self.decoder.decode(header.encoding, stored, header.raw_len(), &mut self.raw);
            decoded.map_err(|error| Error::damaged(at()).caused_by(error))?;
        }
        Ok(Frame { pack, number, start, header })
    }

    /// Verifies the `wanted` chunks of the frame in `raw`. Copies their bytes, unless the frame stays
    /// whole.
    fn take_chunks(
        &self,
        naming: &Naming,
        frame: &Frame,
        wanted: &[(u16, Fingerprint)],
        salvage: &mut Salvage,
    ) -> Result<()> {
        let Frame { pack, number, start: frame_start, header } = frame;
        let (mut position, mut start) = (0, 0);
        for &(wanted, fingerprint) in wanted {
            while position < wanted {
                start += header.lengths.get(position as usize).copied().unwrap_or(0) as usize;
                position += 1;
            }
            let len = header.lengths.get(position as usize).copied();
            let len = len.ok_or_else(|| missing(*pack, *number))?;
            let chunk = &self.raw[start..start + len as usize];
            if naming.name(chunk) != fingerprint {
                let at = at(*pack, *frame_start);
                return Err(Error::damaged(format!("{at}: chunk {fingerprint} does not match its name")));
            }
            salvage.lengths.push(len);
            if !salvage.whole {
                salvage.bytes.extend_from_slice(chunk);
            }
        }
        Ok(())
    }
}

fn missing(pack: PackId, number: u16) -> Error {
    Error::damaged(format!("pack {pack} has no frame {number}"))
}

fn at(pack: PackId, start: u32) -> String {
    format!("pack {pack}, frame at byte {start}")
}
