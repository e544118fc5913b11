//! The write pipeline, put together: see the picture in `write/mod.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use outrigger_format::{ChunkerSpec, PackId, PackKind, Root};
use outrigger_offload::Auto;
use outrigger_offload::pool::Pool;

use super::commit::{CommitQueue, CommitTotals, CommitWhen, Committer, Ended, Message};
use super::compare::Compare;
use super::dedup::{Dedup, PendingTable, Verification};
use super::framer::Framer;
use super::item::{Content, FileItem, Item, Part};
use super::joining::Joining;
use super::keep::StoredNodes;
use super::large::LargeFile;
use super::meta_frames::{MetaFrames, SharedMetaFrames};
use super::packer::PackSink;
use super::places::Places;
use super::progress::{Progress, ProgressView};
use super::queue::{Batch, BufferPlan, Queue, Small};
use super::sequence::{Sequencer, Stage};
use super::worker::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::read::Nodes;
use crate::session::Session;
use crate::store::Store;

/// How a [`Writer`] works; the stored data does not depend on it.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Worker threads.
    pub threads: usize,
    /// Longest chunk that any file of this writer may have, bytes.
    pub chunk_max: usize,
    /// When changes become visible.
    pub commit: CommitWhen,
}

/// The results of a writer.
#[derive(Clone, Debug, Default)]
pub struct WriteSummary {
    /// Counters.
    pub progress: ProgressView,
    /// Transactions and entries.
    pub totals: CommitTotals,
    /// With [`CommitWhen::AtTheEnd`]: inode and content of every
    /// [`Change::Node`](crate::meta::Change::Node),
    /// [`Change::CompareAndSwap`](crate::meta::Change::CompareAndSwap) and
    /// [`Change::Orphan`](crate::meta::Change::Orphan) that was committed, in order, however it was
    /// submitted.
    pub nodes: Vec<(u64, Root)>,
}

/// Bytes of small files in a batch, and of a large file in a segment, at least.
const SEGMENT: usize = 1 << 20;
/// Bytes of unused memory for frames that are kept.
const KEEP_BYTES: u64 = 16 << 20;
/// Elements of a batch at most, for each [`SEGMENT`] that fits.
const BATCH_ITEMS: usize = 512;

/// Takes items, in order, and makes them durable and visible in that order. Blocks when it gets
/// more than it can handle. If it is dropped without [`Writer::finish`], it stops; committed
/// changes stay. A session has one writer at a time. After a failed one it may have another, which
/// goes on from what the first had stored.
pub struct Writer {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    committer: Option<JoinHandle<Result<Ended>>>,
    messages: Option<Sender<Message>>,
    batch: Vec<Small>,
    batch_bytes: usize,
    /// How the files of the batch are cut, where devices do that: one task cuts all alike.
    batch_chunker: Option<ChunkerSpec>,
    segment: usize,
}

impl Writer {
    /// Starts the pipeline's threads.
    pub fn start(
        store: &Store,
        session: &Arc<Session>,
        options: &WriteOptions,
        progress: &Arc<Progress>,
    ) -> Self {
        Self::start_on(store, session, options, None, progress)
    }

    /// Like [`Writer::start`], with packs of data placed on `host` if possible; the name is the
    /// engine's ([`crate::backend::place_on`]).
    pub fn start_on(
        store: &Store,
        session: &Arc<Session>,
        options: &WriteOptions,
        host: Option<&Arc<str>>,
        progress: &Arc<Progress>,
    ) -> Self {
        let segment = SEGMENT.max(4 * options.chunk_max);
        let (parts, refused) = Parts::of(store, session, options, host, progress);
        let (stage, pending) = parts.stage();
        let shared = Arc::new(parts.shared(stage, segment, host));
        if let Some(error) = refused {
            shared.queue.fail(error);
        }
        // Open devices have buffers from the first batch on.
        shared.devices();
        let (messages, receiver) = channel();
        let committer = start_committer(parts.committer(pending), receiver, Arc::clone(&shared));
        let workers = (0..options.threads)
            .map(|number| start_worker(number, Arc::clone(&shared), messages.clone()))
            .collect();
        let (committer, messages) = (Some(committer), Some(messages));
        let (batch, batch_chunker) = (Vec::new(), None);
        Self { shared, workers, committer, messages, batch, batch_bytes: 0, batch_chunker, segment }
    }

    /// Takes one item.
    ///
    /// # Errors
    /// When the pipeline has stopped; [`Writer::finish`] returns the reason.
    pub fn submit(&mut self, item: Item) -> Result<()> {
        let file = match item {
            Item::Change(change) => return self.batch_up(Small::Change(change), 0),
            Item::File(file) => file,
        };
        let small = match &file.content {
            Content::File(source) if !source.stat.is_sparse() => usize::try_from(source.stat.size).ok(),
            Content::Bytes(bytes) => Some(bytes.len()),
            Content::Parts(parts) => match parts.parts[..] {
                [] => Some(0),
                [Part::Data { len, .. }] => usize::try_from(len).ok(),
                _ => None,
            },
            Content::File(_) | Content::Stream(_) | Content::Sparse { .. } => None,
        };
        match small.filter(|&len| len <= self.segment) {
            Some(len) => self.batch_up(Small::File(file), len),
            None => self.submit_large(file),
        }
    }

    fn submit_large(&mut self, file: FileItem) -> Result<()> {
        self.flush_batch()?;
        let display = match &file.content {
            Content::File(source) => source.display.to_string(),
            _ => "standard input".to_string(),
        };
        match LargeFile::open(file, self.segment) {
            Ok(file) => self.shared.queue.submit(Batch::Large(Arc::new(file))),
            Err(why) => {
                self.shared.progress.skip(display, why);
                Ok(())
            }
        }
    }

    fn batch_up(&mut self, item: Small, len: usize) -> Result<()> {
        let items_max = BATCH_ITEMS * (self.segment / SEGMENT);
        let chunker = match &item {
            Small::File(file)
                if len > 0 && self.shared.devices().is_some_and(|joined| joined.devices.is_some()) =>
            {
                Some(file.chunker)
            }
            _ => None,
        };
        let other = chunker.is_some() && self.batch_chunker.is_some_and(|before| Some(before) != chunker);
        if self.batch_bytes + len > self.segment || self.batch.len() >= items_max || other {
            self.flush_batch()?;
        }
        self.batch_chunker = chunker.or(self.batch_chunker);
        self.batch_bytes += len;
        self.batch.push(item);
        Ok(())
    }

    fn flush_batch(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        self.batch_chunker = None;
        if self.batch.is_empty() {
            return Ok(());
        }
        self.shared.queue.submit(Batch::Small(std::mem::take(&mut self.batch)))
    }

    /// True once something failed: nothing more is taken, and streams that were submitted are not
    /// read any further.
    pub fn has_stopped(&self) -> bool {
        self.shared.queue.failed()
    }

    /// Waits until everything submitted is durable and visible.
    ///
    /// # Errors
    /// The first failure; what was committed before it stays.
    pub fn finish(mut self) -> Result<WriteSummary> {
        let flushed = self.flush_batch();
        self.shared.queue.close();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        let messages = self.messages.take().expect("taken once");
        let last = flushed.and_then(|()| {
            if self.shared.queue.failed() { Ok(()) } else { self.shared.finish_packs(&messages) }
        });
        if last.is_ok() && !self.shared.queue.failed() {
            let _ = messages.send(Message::Finish);
        }
        drop(messages);
        let committer = self.committer.take().expect("taken once");
        let ended = committer.join().unwrap_or_else(|_| Err(panicked()));
        match (ended, self.shared.queue.take_failure()) {
            (Err(error), _) | (Ok(_), Some(error)) => Err(error),
            (Ok(Ended { totals, nodes }), None) => {
                last?;
                Ok(WriteSummary { progress: self.shared.progress.view(), totals, nodes })
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.committer.is_some() {
            self.shared.queue.fail(Error::new(ErrorKind::Cancelled, "stopped"));
            self.workers.drain(..).for_each(|worker| drop(worker.join()));
            self.messages = None;
            self.committer.take().into_iter().for_each(|committer| drop(committer.join()));
        }
    }
}

/// The parts that the threads of one pipeline have in common.
struct Parts<'a> {
    store: &'a Store,
    session: &'a Arc<Session>,
    options: &'a WriteOptions,
    progress: &'a Arc<Progress>,
    /// Memory in which frames were copied together is used again.
    pool: Pool,
    verification: Verification,
    compare: Arc<Compare>,
    frames: Arc<Mutex<MetaFrames>>,
    commits: Arc<CommitQueue>,
    /// The number of the session's newest change, and its packs, of earlier writers.
    changes: u64,
    own_packs: Vec<PackId>,
}

impl<'a> Parts<'a> {
    /// The parts, and the reason why the pipeline cannot work, if there is one.
    fn of(
        store: &'a Store,
        session: &'a Arc<Session>,
        options: &'a WriteOptions,
        host: Option<&Arc<str>>,
        progress: &'a Arc<Progress>,
    ) -> (Self, Option<Error>) {
        let resumed = session.resume();
        // Many ids are announced for a placed pack, which are not to be those that a lost history
        // gave out.
        let raised = if host.is_some() { store.raise_counters_once() } else { Ok(()) };
        let begun = raised.and_then(|()| Ok((resumed?, Compare::new(store)?)));
        let ((changes, own_packs), compare, refused) = match begun {
            Ok((resumed, compare)) => (resumed, Arc::new(compare), None),
            Err(error) => (Default::default(), Arc::default(), Some(error)),
        };
        let sink = PackSink::new(store, &store.meta, session.id(), PackKind::Meta);
        let verification = Verification::of(store);
        let (own_session, own_compare) = (Arc::clone(session), Arc::clone(&compare));
        let frames =
            MetaFrames::new(sink, store.config.fingerprint, verification.clone(), own_session, own_compare);
        let (frames, commits) = (Arc::new(Mutex::new(frames)), Arc::default());
        let pool = Pool::new(None, KEEP_BYTES);
        let parts = Self {
            store,
            session,
            options,
            progress,
            pool,
            verification,
            compare,
            frames,
            commits,
            changes,
            own_packs,
        };
        (parts, refused)
    }

    /// The ordered part, and the table of its chunks that are not in a sealed pack yet.
    fn stage(&self) -> (Stage, PendingTable) {
        let dedup = Dedup::new(self.verification.clone(), Arc::clone(self.session));
        let pending = Arc::clone(&dedup.pending);
        let stage = Stage {
            dedup,
            compare: Arc::clone(&self.compare),
            framer: Framer::new(self.store.config.frame_size as usize, self.pool.clone()),
            nodes: Box::new(SharedMetaFrames::new(Arc::clone(&self.frames))),
            stored: StoredNodes::new(Box::new(Nodes::new(self.store))),
            commits: Arc::clone(&self.commits),
            commit: self.options.commit,
            progress: Arc::clone(self.progress),
            large: None,
            changes: self.changes,
        };
        (stage, pending)
    }

    fn shared(&self, stage: Stage, segment: usize, host: Option<&Arc<str>>) -> Shared {
        let Self { store, session, options, .. } = *self;
        let (count, headroom) = (options.threads * 3 + 2, options.chunk_max.max(4096));
        let buffers = BufferPlan { count, headroom, data: segment, pool: self.pool.clone() };
        let packs = PackSink::new(store, &store.meta, session.id(), PackKind::Data);
        Shared {
            queue: Arc::new(Queue::new(buffers, options.threads)),
            joining: Joining { source: store.store_devices().cloned(), joined: OnceLock::new() },
            sequencer: Sequencer::new(stage),
            verification: self.verification.clone(),
            packs: Mutex::new(packs.on_host(host).with_reserve(session.may_use_reserve())),
            commits: Arc::clone(&self.commits),
            commit: options.commit,
            progress: Arc::clone(self.progress),
            fingerprint: store.config.fingerprint,
            auto: Auto::new(),
        }
    }

    fn committer(self, pending: PendingTable) -> Committer {
        let Self { store, session, options, progress, .. } = self;
        Committer {
            session: Arc::clone(session),
            meta: Arc::clone(&store.meta),
            index: Arc::clone(&store.index),
            commits: self.commits,
            pending,
            compare: self.compare,
            links: Arc::clone(&store.links),
            frames: self.frames,
            progress: Arc::clone(progress),
            when: options.commit,
            places: store.is_shared().then(Places::default),
            done: self.changes,
            sealing: VecDeque::new(),
            uploads_max: store.backend.uploads_max(),
            sealed: self.own_packs,
            aliases: BTreeMap::new(),
            ended: Ended::default(),
        }
    }
}

fn start_committer(
    committer: Committer,
    messages: Receiver<Message>,
    shared: Arc<Shared>,
) -> JoinHandle<Result<Ended>> {
    spawn("write-commit".to_string(), move || {
        let ended =
            catch_unwind(AssertUnwindSafe(|| committer.run(&messages))).unwrap_or_else(|_| Err(panicked()));
        // The pipeline must not wait for a committer that is gone.
        if let Err(error) = &ended {
            shared.queue.fail(Error::new(error.kind(), "the commit failed"));
        }
        ended
    })
}

fn start_worker(number: usize, shared: Arc<Shared>, messages: Sender<Message>) -> JoinHandle<()> {
    spawn(format!("write-{number}"), move || {
        let ended = catch_unwind(AssertUnwindSafe(|| shared.work(&messages)));
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => shared.queue.fail(error),
            Err(_) => shared.queue.fail(panicked()),
        }
    })
}

/// A thread with a name, so that process tools show where the time goes.
fn spawn<T: Send + 'static>(name: String, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name).spawn(run).expect("a thread can be started")
}

fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a thread of the write pipeline panicked: please report this")
}
