//! Stage pack: frames appended to an open pack; full packs handed on to be sealed.
//!
//! Used by the write pipeline and by the collector, which copies frames' chunks into packs of its
//! own.
//!
//! **Placed packs.** If a pack's id decides which hosts hold it, a pack for a certain host gets a
//! suitable id. The sink announces several ids, takes the first that suits, and withdraws the
//! others' intents before anything is written; ids are not scarce. If that fails (no id suits, or
//! the engine does not answer), the pack goes anywhere: placing is only advice.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::{
    ChunkKind, Domain, Encoding, Fingerprint, FingerprintKind, Footer, FooterBuilder, FrameHeader,
    PACK_HEADER_LEN, PackHeader, PackId, PackKind, StoreId, checksum,
};

use crate::backend::{Backend, PackWriter};
use crate::counters::raise_counters;
use crate::disk::Reserve;
use crate::error::{Error, ErrorKind, Result};
use crate::latency;
use crate::meta::{Meta, PackRow, PackState, SessionId};
use crate::session::Session;
use crate::store::Store;
use crate::verified::Verified;

/// Taken names that are skipped, each after counters were raised above all packs. One is enough,
/// unless another database makes packs here.
const TRIES: usize = 8;

/// Ids announced at once for a pack that is to lie on a certain host, and how often that is tried.
const PLACING: (u32, usize) = (16, 16);

/// Packs that one sink keeps open at most.
const OPEN_MAX: usize = 16;

/// A compressed frame, ready to append.
pub(crate) struct StoredFrame<'a> {
    /// Its chunks' domain.
    pub domain: Domain,
    pub kind: ChunkKind,
    pub encoding: Encoding,
    pub lengths: Vec<u32>,
    pub fingerprints: &'a [Fingerprint],
    pub stored: &'a [u8],
    /// The pipeline's number for it; 0 when no frame waits for it.
    pub sequence: u64,
}

/// A pack being written.
pub(crate) struct OpenPack {
    id: PackId,
    kind: PackKind,
    writer: Box<dyn PackWriter>,
    offset: u64,
    footer: FooterBuilder,
    raw_bytes: u64,
    sequences: Vec<u64>,
    /// Why it cannot be finished: several threads append, and each gets the cause.
    failure: Option<Error>,
    /// Told when the pack is durable.
    verified: Option<Arc<Verified>>,
}

/// A pack that nothing is appended to any more, and that is being made durable.
pub(crate) struct SealingPack {
    pack: OpenPack,
    footer: Arc<Footer>,
}

/// A pack that is durable.
pub struct SealedPack {
    /// Its row, state [`PackState::Sealed`].
    pub row: PackRow,
    /// Its footer.
    pub footer: Arc<Footer>,
    /// Numbers of the pipeline's frames in it.
    pub sequences: Vec<u64>,
}

/// Appends frames to packs of one kind, and of one domain each.
pub struct PackSink {
    backend: Arc<dyn Backend>,
    meta: Arc<dyn Meta>,
    session: SessionId,
    store: StoreId,
    kind: PackKind,
    fingerprint: FingerprintKind,
    pack_bytes: u64,
    open: BTreeMap<Domain, OpenPack>,
    header: Vec<u8>,
    verified: Option<Arc<Verified>>,
    /// The host that is to hold the packs.
    host: Option<Arc<str>>,
    /// Keeps the room that frames leave free.
    reserve: Option<Arc<Reserve>>,
}

impl PackSink {
    /// A sink for packs of `kind`, which `session` announces in `meta`: the store's own, or one
    /// that is being rebuilt.
    pub fn new(store: &Store, meta: &Arc<dyn Meta>, session: SessionId, kind: PackKind) -> Self {
        let config = &store.config;
        Self {
            backend: Arc::clone(&store.backend),
            meta: Arc::clone(meta),
            session,
            store: config.id,
            kind,
            fingerprint: config.fingerprint,
            pack_bytes: u64::from(config.pack_size).min(3 << 30),
            open: BTreeMap::new(),
            header: Vec::new(),
            verified: store.verified().cloned(),
            host: None,
            reserve: store.reserve_of_packs().filter(|_| kind == PackKind::Data).cloned(),
        }
    }

    /// May also take the reserved space of the disk: for content that was acknowledged.
    pub(crate) fn with_reserve(mut self, may_use_it: bool) -> Self {
        self.reserve = self.reserve.filter(|_| !may_use_it);
        self
    }

    /// Places packs on a host if possible; the name is the engine's ([`crate::backend::place_on`]).
    pub(crate) fn on_host(mut self, host: Option<&Arc<str>>) -> Self {
        self.host = host.cloned();
        self
    }

    /// Appends a frame; returns the pack if that filled it.
    pub(crate) fn append(&mut self, frame: StoredFrame<'_>) -> Result<Option<OpenPack>> {
        if let Some(reserve) = &self.reserve {
            reserve.check_content(frame.stored.len() as u64)?;
        }
        let (mut full, domain) = (None, frame.domain);
        if self.open.get(&domain).is_some_and(|open| !open.footer.has_room(frame.lengths.len())) {
            full = self.open.remove(&domain);
        }
        if !self.open.contains_key(&domain) {
            if full.is_none() && self.open.len() >= OPEN_MAX {
                full = self.take_oldest();
            }
            let begun = self.begin(domain)?;
            self.open.insert(domain, begun);
        }
        let open = self.open.get_mut(&domain).expect("just opened");
        let header = FrameHeader {
            kind: frame.kind,
            encoding: frame.encoding,
            stored_len: frame.stored.len() as u32,
            stored_sum: checksum(&[frame.stored]),
            lengths: frame.lengths,
        };
        self.header.clear();
        header.encode(&mut self.header);
        open.write(&[IoSlice::new(&self.header), IoSlice::new(frame.stored)])?;
        open.footer.push(open.offset as u32, frame.kind, frame.fingerprints);
        open.offset += (self.header.len() + frame.stored.len()) as u64;
        open.raw_bytes += header.raw_len() as u64;
        if frame.sequence != 0 {
            open.sequences.push(frame.sequence);
        }
        if full.is_none() && open.offset >= self.pack_bytes {
            full = self.open.remove(&domain);
        }
        Ok(full)
    }

    /// The open pack, if it is at least a sixteenth of a full one. If there are several, the one with the
    /// oldest frame, however small: changes wait for that frame, and its pack may never get another.
    pub(crate) fn take_early(&mut self) -> Option<OpenPack> {
        match self.open.len() {
            0 => None,
            1 if self.open.first_key_value()?.1.offset < self.pack_bytes / 16 => None,
            _ => self.take_oldest(),
        }
    }

    fn take_oldest(&mut self) -> Option<OpenPack> {
        let oldest = |open: &OpenPack| open.sequences.iter().min().copied().unwrap_or(u64::MAX);
        let domain = *self.open.iter().min_by_key(|(_, open)| oldest(open))?.0;
        self.open.remove(&domain)
    }

    /// The open pack outside of domains, if it would be full before it has taken `bytes` more.
    pub(crate) fn take_unless_room(&mut self, bytes: u64) -> Option<OpenPack> {
        let open = self.open.get(&Domain::COMMON)?;
        if open.offset + bytes >= self.pack_bytes { self.open.remove(&Domain::COMMON) } else { None }
    }

    /// A pack that is still open, to be sealed.
    pub(crate) fn take_open(&mut self) -> Option<OpenPack> {
        self.open.pop_first().map(|(_, open)| open)
    }

    fn begin(&self, domain: Domain) -> Result<OpenPack> {
        // By this mark the pack's maker is known even if another database gives out the same id.
        let mark = u64::from_le_bytes(clock::random()?);
        let (id, mut writer) = self.create(mark)?;
        if domain != Domain::COMMON {
            writer.use_domain(&*self.backend.domain_key(domain)?)?;
        }
        let header =
            PackHeader { kind: self.kind, fingerprint: self.fingerprint, id, store: self.store, mark };
        writer.append(&[IoSlice::new(&header.encode())])?;
        Ok(OpenPack {
            id,
            kind: self.kind,
            writer,
            offset: PACK_HEADER_LEN as u64,
            footer: FooterBuilder::default(),
            raw_bytes: 0,
            sequences: Vec::new(),
            failure: None,
            verified: self.verified.clone(),
        })
    }

    fn create(&self, mark: u64) -> Result<(PackId, Box<dyn PackWriter>)> {
        let mut tries = 0;
        loop {
            // The intent is durable before the object exists, so that nothing is ever written that
            // no row announces.
            let id = self.announce(mark)?;
            match self.backend.create(id) {
                // The database is stale, or there is another one, which has made this pack.
                Err(error) if error.kind() == ErrorKind::Exists && tries < TRIES => {
                    self.meta.withdraw_packs(self.session, &[id])?;
                    raise_counters(&*self.meta, &*self.backend)?;
                    tries += 1;
                }
                created => return Ok((id, created?)),
            }
        }
    }
}

impl PackSink {
    fn announce(&self, mark: u64) -> Result<PackId> {
        let (count, tries) = PLACING;
        for _ in 0..self.host.as_ref().map_or(0, |_| tries) {
            let mut ids = self.meta.announce_packs(self.session, self.kind, count, mark)?;
            let chosen = self.first_on_host(&ids).map(|at| ids.remove(at));
            self.meta.withdraw_packs(self.session, &ids)?;
            if let Some(id) = chosen {
                return Ok(id);
            }
        }
        Ok(self.meta.announce_packs(self.session, self.kind, 1, mark)?[0])
    }

    /// Which of `ids` the host would be the first to hold.
    fn first_on_host(&self, ids: &[PackId]) -> Option<usize> {
        let host = self.host.as_deref()?;
        ids.iter().position(|id| {
            self.backend.locate(*id).is_ok_and(|hosts| hosts.first().is_some_and(|first| first == host))
        })
    }
}

impl OpenPack {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.again());
        }
        self.writer.append(parts).inspect_err(|error| self.failure = Some(error.again()))
    }

    /// Writes footer and trailer, and begins to make the pack durable.
    pub(crate) fn finish(mut self) -> Result<SealingPack> {
        let (footer, bytes) = std::mem::take(&mut self.footer).finish(self.id, self.offset as u32);
        self.writer.begin_footer()?;
        self.write(&[IoSlice::new(&bytes)])?;
        self.offset += bytes.len() as u64;
        self.writer.finish()?;
        Ok(SealingPack { pack: self, footer: Arc::new(footer) })
    }

    /// Writes footer and trailer and makes the pack durable.
    pub(crate) fn seal(self, session: &Session) -> Result<SealedPack> {
        self.finish()?.seal(session)
    }
}

impl SealingPack {
    /// Waits until the pack is durable.
    pub(crate) fn seal(self, session: &Session) -> Result<SealedPack> {
        let Self { pack, footer } = self;
        session.confirm()?;
        latency::PACK_WRITES.timed(|| pack.writer.seal())?;
        // This writer named its bytes, so they match the footer and need not be compared.
        if let Some(verified) = &pack.verified {
            verified.note_own(pack.id);
        }
        let row = PackRow {
            id: pack.id,
            kind: pack.kind,
            state: PackState::Sealed,
            session: session.id(),
            bytes: pack.offset,
            raw_bytes: pack.raw_bytes,
            chunks: footer.fingerprints().len() as u32,
            dead_since: 0,
            mark: 0,
        };
        Ok(SealedPack { row, footer, sequences: pack.sequences })
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::CodecSpec;

    use super::*;
    use crate::backend::MemoryBackend;
    use crate::config::{Profile, StoreConfig};
    use crate::follow::Census;
    use crate::keys::{Key, NewKeys, Secret, domains};
    use crate::layout::create_store_dirs;
    use crate::meta::{OpenMode, Others, SessionKind, SqliteMeta};
    use crate::store::Parts;

    /// Changes wait for the oldest frame. A small file of a domain among many others must not hold
    /// them up for ever.
    #[test]
    fn the_pack_with_the_oldest_frame_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let config = Profile::Default.config().unwrap();
        let mut keys = NewKeys::new(config.id).unwrap();
        keys.add(&Secret::Key(Key::random().unwrap()), "first").unwrap();
        let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
        let store = Store::init_with(&dir.path().join("store"), &config, Some(&keys)).unwrap();
        let session = store.session(SessionKind::Writer, "test").unwrap();
        let mut sink = PackSink::new(&store, &store.meta, session.id(), PackKind::Data);
        let domains: Vec<Domain> =
            (0..OPEN_MAX).map(|_| domains::create(&*store.backend, store.keys().unwrap()).unwrap()).collect();
        let mut sequence = 0;
        let mut append = |sink: &mut PackSink, domain: Domain, len: usize| {
            sequence += 1;
            let frame = StoredFrame {
                domain,
                kind: ChunkKind::Data,
                encoding: Encoding::plain(CodecSpec::NONE.codec),
                lengths: vec![len as u32],
                fingerprints: &[Fingerprint([sequence as u8; 32])],
                stored: &vec![7; len],
                sequence,
            };
            sink.append(frame).unwrap()
        };
        assert!(append(&mut sink, domains[0], 1).is_none());
        assert!(sink.take_early().is_none(), "alone it waits for more");
        assert!(append(&mut sink, Domain::COMMON, 8 << 20).is_none());
        let sequences = |open: OpenPack| open.sequences;
        assert_eq!(sink.take_early().map(sequences), Some(vec![1]));
        assert_eq!(sink.take_early().map(sequences), Some(vec![2]));
        // One more than it keeps open.
        for domain in &domains {
            assert!(append(&mut sink, *domain, 1).is_none());
        }
        assert!(append(&mut sink, domains[0], 1).is_none());
        assert_eq!(append(&mut sink, Domain::COMMON, 1).map(sequences), Some(vec![3, 19]));
        let left: Vec<_> = std::iter::from_fn(|| sink.take_open()).collect();
        assert_eq!(left.len(), OPEN_MAX);
    }

    #[test]
    fn packs_get_ids_that_lie_on_the_host_and_leave_no_other_intents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        create_store_dirs(&path).unwrap();
        let meta: Arc<dyn Meta> =
            Arc::new(SqliteMeta::open(&path.join("meta.db"), OpenMode::Create).unwrap());
        let backend = Arc::new(MemoryBackend::on_hosts(&["h0", "h1", "h2"]));
        let config = Profile::Default.config().unwrap();
        let mut rows = Census::default();
        let parts = Parts { config, meta: Arc::clone(&meta), backend, keys: None };
        let store = Store::assemble(&path, parts, false, Others::Trust, &mut rows).unwrap();
        let session = store.session(SessionKind::Writer, "test").unwrap();
        let mut made = Vec::new();
        for host in ["h2", "h0", "h1", "h1", "nowhere"] {
            let host = Some(Arc::from(host));
            let mut sink = PackSink::new(&store, &meta, session.id(), PackKind::Data).on_host(host.as_ref());
            let frame = StoredFrame {
                domain: Domain::COMMON,
                kind: ChunkKind::Data,
                encoding: Encoding::plain(CodecSpec::NONE.codec),
                lengths: vec![1],
                fingerprints: &[Fingerprint([1; 32])],
                stored: b"x",
                sequence: 0,
            };
            assert!(sink.append(frame).unwrap().is_none());
            let sealed = sink.take_open().unwrap().seal(&session).unwrap();
            let first = store.backend.locate(sealed.row.id).unwrap().swap_remove(0);
            assert!(host.as_deref() == Some(&*first) || host.as_deref() == Some("nowhere"), "{first}");
            made.push(sealed.row.id);
        }
        let announced: Vec<PackId> = meta.packs().unwrap().iter().map(|row| row.id).collect();
        assert_eq!(announced, made, "what was not taken is nobody's");
    }
}
