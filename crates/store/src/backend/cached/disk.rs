//! Blocks on local disk: one file a block, `XX/ID-NUMBER`, its checksum before its bytes.
//!
//! Nothing is synced: a file that a crash tore does not match its checksum, and is removed when it
//! is read. A lock lets one process at a time keep blocks here; a second one goes without. One
//! thread writes them. At most [`QUEUE`] blocks wait for it, and further ones are dropped, so the
//! cache never slows a reader down. Over the limit, the least recently used block goes.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use outrigger_format::{PackId, checksum};

use super::blocks::Block;
use crate::owner;

/// Blocks that wait to be written.
const QUEUE: usize = 16;

type Key = (PackId, u64);

enum Message {
    Keep(Key, Block),
    /// Answered when all before it is done.
    Settle(SyncSender<()>),
}

/// The cached files, by key and by age.
#[derive(Default)]
struct Kept {
    files: HashMap<Key, (u64, u64)>,
    ages: BTreeMap<u64, Key>,
    bytes: u64,
    clock: u64,
}

impl Kept {
    fn touch(&mut self, key: Key) {
        let clock = &mut self.clock;
        if let Some((age, _)) = self.files.get_mut(&key) {
            self.ages.remove(age);
            *clock += 1;
            *age = *clock;
            self.ages.insert(*clock, key);
        }
    }

    fn add(&mut self, key: Key, len: u64) {
        self.remove(key);
        self.clock += 1;
        self.files.insert(key, (self.clock, len));
        self.ages.insert(self.clock, key);
        self.bytes += len;
    }

    fn remove(&mut self, key: Key) -> bool {
        let Some((age, len)) = self.files.remove(&key) else { return false };
        self.ages.remove(&age);
        self.bytes -= len;
        true
    }
}

/// See the module.
pub(super) struct Disk {
    dir: PathBuf,
    kept: Arc<Mutex<Kept>>,
    queue: SyncSender<Message>,
    /// Held, for its lock.
    _lock: File,
}

impl Disk {
    /// Opens the cache in `dir`, making it; `None` when it cannot be used, or another process has
    /// it.
    pub(super) fn open(dir: &Path, limit: u64) -> Option<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).ok()?;
        let lock = owner::create(&dir.join("lock"), false).ok()?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
        let kept = Arc::new(Mutex::new(scan(dir)));
        let (queue, receiver) = sync_channel(QUEUE);
        let writer = Writer { dir: dir.to_path_buf(), kept: Arc::clone(&kept), limit };
        std::thread::Builder::new().name("cache".into()).spawn(move || writer.run(&receiver)).ok()?;
        Some(Self { dir: dir.to_path_buf(), kept, queue, _lock: lock })
    }

    /// The block, if it is there and whole.
    pub(super) fn find(&self, id: PackId, number: u64) -> Option<Block> {
        let key = (id, number);
        {
            let mut kept = self.kept.lock().expect("no panic while it is held");
            kept.files.get(&key)?;
            kept.touch(key);
        }
        let path = path(&self.dir, key);
        let bytes = fs::read(&path).ok();
        let whole = bytes.as_deref().and_then(|bytes| {
            let (sum, block) = bytes.split_first_chunk::<8>()?;
            (u64::from_le_bytes(*sum) == checksum(&[block])).then(|| Block::from(block))
        });
        if whole.is_none() {
            self.kept.lock().expect("no panic while it is held").remove(key);
            let _ = fs::remove_file(&path);
        }
        whole
    }

    /// Queues the block to be written, if there is room.
    pub(super) fn keep(&self, id: PackId, number: u64, block: &Block) {
        let _ = self.queue.try_send(Message::Keep((id, number), Arc::clone(block)));
    }

    /// Removes a pack's blocks; whether there were any.
    pub(super) fn forget(&self, id: PackId) -> bool {
        let mut kept = self.kept.lock().expect("no panic while it is held");
        let of_pack: Vec<Key> = kept.files.keys().filter(|key| key.0 == id).copied().collect();
        for key in &of_pack {
            kept.remove(*key);
            let _ = fs::remove_file(path(&self.dir, *key));
        }
        !of_pack.is_empty()
    }

    pub(super) fn settle(&self) {
        let (done, wait) = sync_channel(0);
        if self.queue.send(Message::Settle(done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

fn path(dir: &Path, (id, number): Key) -> PathBuf {
    dir.join(format!("{:02x}/{id}-{number}", id.0 as u8))
}

/// Finds the blocks of an earlier process, oldest first.
fn scan(dir: &Path) -> Kept {
    let mut found = Vec::new();
    for directory in fs::read_dir(dir).into_iter().flatten().flatten() {
        for file in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
            let name = file.file_name();
            let key = name.to_str().and_then(|name| {
                let (id, number) = name.split_once('-')?;
                Some((PackId(u64::from_str_radix(id, 16).ok()?), number.parse().ok()?))
            });
            match (key, file.metadata()) {
                (Some(key), Ok(metadata)) => found.push((metadata.modified().ok(), key, metadata.len())),
                // An unfinished file of a process that ended.
                _ => drop(fs::remove_file(file.path())),
            }
        }
    }
    found.sort_unstable();
    let mut kept = Kept::default();
    found.into_iter().for_each(|(_, key, len)| kept.add(key, len));
    kept
}

/// The thread that writes.
struct Writer {
    dir: PathBuf,
    kept: Arc<Mutex<Kept>>,
    limit: u64,
}

impl Writer {
    fn run(self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            match message {
                Message::Keep(key, block) => {
                    // If the disk takes no more, the cache keeps what it has.
                    let _ = self.write(key, &block);
                }
                Message::Settle(done) => drop(done.send(())),
            }
        }
    }

    fn write(&self, key: Key, block: &Block) -> std::io::Result<()> {
        if self.kept.lock().expect("no panic while it is held").files.contains_key(&key) {
            return Ok(());
        }
        let path = path(&self.dir, key);
        let temporary = path.with_extension("new");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = owner::create(&temporary, true)?;
        file.write_all(&checksum(&[block]).to_le_bytes())?;
        let written = file.write_all(block).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        let mut kept = self.kept.lock().expect("no panic while it is held");
        kept.add(key, block.len() as u64 + 8);
        while kept.bytes > self.limit {
            let Some((_, &oldest)) = kept.ages.first_key_value() else { break };
            kept.remove(oldest);
            let _ = fs::remove_file(self::path(&self.dir, oldest));
        }
        Ok(())
    }
}
