//! Delegated upload, the agent's part: an in-line agent on another host than the writer's stores
//! what its program reads, for the mount.
//!
//! ```text
//!  the mount ─▶ feed.rs ─┬─▶ standard input of the program
//!                        └─▶ a writer of this host, whose packs lie here where they can ─▶ a content without a name, held
//! ```
//!
//! The bytes go into one content until the mount asks for it: because the file is closed or synced,
//! or the mount's log fills. Later bytes become another piece, which is joined to the
//! content before. The hold is released when the file is closed, or this ends: by then the mount
//! holds the content itself, or does not want it. If anything fails, the mount stores the file from
//! its log, so nothing here is an error for the program.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use outrigger_format::{Domain, Root};
use outrigger_store::increments::delegated_to;
use outrigger_store::meta::SessionId;
use outrigger_store::policy::{Policies, WritePolicy};
use outrigger_store::session::Session;
use outrigger_store::tree::{StorePath, domain_at};
use outrigger_store::write::{CommitWhen, Content, FileItem, Item, Progress, Target, WriteOptions, Writer};
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::content::{Block, Raw, joined, made_file};

/// Threads that cut, hash and compress.
const THREADS: usize = 2;

/// A file that is stored for a mount.
pub(super) struct Carry {
    making: Making,
    holder: String,
    /// The stored content so far.
    stored: Option<Root>,
    /// A piece that is being stored, to be joined behind it.
    piece: Option<Piece>,
}

struct Piece {
    blocks: SyncSender<Block>,
    thread: JoinHandle<Result<Root>>,
}

/// How contents are made.
#[derive(Clone)]
struct Making {
    store: Arc<Store>,
    session: Arc<Session>,
    place: Option<Arc<str>>,
    policy: WritePolicy,
    chunk_max: usize,
    inode: u64,
    domain: Domain,
}

impl Carry {
    /// Stores a file that is written in this mount, by the policy of its path.
    ///
    /// # Errors
    /// Those of the database.
    pub fn new(
        store: &Arc<Store>,
        session: &Arc<Session>,
        place: Option<&Arc<str>>,
        (path, inode, mount): (&StorePath, u64, SessionId),
    ) -> Result<Self> {
        let policies = Policies::load(store)?;
        let making = Making {
            store: Arc::clone(store),
            session: Arc::clone(session),
            place: place.cloned(),
            policy: policies.at(&*store.meta, &path.parent())?,
            chunk_max: policies.chunk_max()?,
            inode,
            domain: domain_at(&*store.meta, path)?,
        };
        let holder = delegated_to(inode, mount, session.id());
        Ok(Self { making, holder, stored: None, piece: None })
    }

    /// Takes the next bytes; waits for those before them. False if it cannot go on.
    pub fn give(&mut self, bytes: &[u8]) -> bool {
        let holder = if self.stored.is_some() { self.holder_of_more() } else { self.holder.clone() };
        let piece = self.piece.get_or_insert_with(|| {
            let (blocks, raw) = Raw::channel();
            let making = self.making.clone();
            let thread = std::thread::spawn(move || making.make(holder, Content::Stream(Box::new(raw))));
            Piece { blocks, thread }
        });
        piece.blocks.send(Block::Data(bytes.to_vec())).is_ok()
    }

    /// Stores and holds all bytes given so far; returns how many they are.
    ///
    /// # Errors
    /// Those of the store.
    pub fn store(&mut self) -> Result<u64> {
        if let Some(Piece { blocks, thread }) = self.piece.take() {
            // If the send fails, the thread's result says why.
            let _ = blocks.send(Block::End);
            drop(blocks);
            let panicked =
                || Err(Error::new(ErrorKind::Io, "the thread that stores it panicked: please report this"));
            let piece = thread.join().unwrap_or_else(|_| panicked())?;
            let whole = match self.stored.take() {
                None => piece,
                Some(before) => {
                    let joined = joined([before, piece].into_iter());
                    let whole = self.making.make(self.holder.clone(), joined)?;
                    self.making.store.meta.release(&self.holder_of_more(), None)?;
                    whole
                }
            };
            self.stored = Some(whole);
        }
        Ok(self.stored.as_ref().map_or(0, Root::len))
    }

    fn holder_of_more(&self) -> String {
        format!("{}:more", self.holder)
    }
}

impl Drop for Carry {
    fn drop(&mut self) {
        if let Some(Piece { blocks, thread }) = self.piece.take() {
            // Without its end marker nothing of it is committed.
            drop(blocks);
            let _ = thread.join();
        }
        // If this fails, the holds end with this session.
        for holder in [self.holder_of_more(), self.holder.clone()] {
            let _ = self.making.store.meta.release(&holder, None);
        }
    }
}

impl Making {
    /// Stores a content. The commit makes `holder` hold it, in place of what it held before.
    fn make(&self, holder: String, content: Content) -> Result<Root> {
        let options =
            WriteOptions { threads: THREADS, chunk_max: self.chunk_max, commit: CommitWhen::AtTheEnd };
        let progress = Arc::new(Progress::default());
        let mut writer =
            Writer::start_on(&self.store, &self.session, &options, self.place.as_ref(), &progress);
        let submitted = writer.submit(Item::File(FileItem::under(
            Target::Orphan { inode: self.inode, holder },
            made_file().in_domain(self.domain),
            content,
            self.policy,
        )));
        // A pipeline that stopped reports the cause better than the submitter.
        let summary = writer.finish()?;
        submitted?;
        let lost = || Error::new(ErrorKind::Io, "the writer does not say what the file became");
        summary.nodes.into_iter().next().map(|(_, root)| root).ok_or_else(lost)
    }
}
