//! The work queue: bounded batches in, tickets out, and the buffers that go with them.
//!
//! One mutex guards everything; tasks are large (about a mebibyte, or a frame), so it is taken a few thousand times a
//! second at most. Who waits for whom: `submit` waits while too many batches wait; a worker waits while there is no
//! task it could start, which includes a batch for which there is no buffer. Some worker then holds the buffer of the
//! oldest ticket and is not waiting here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use super::framer::RawFrame;
use super::item::FileItem;
use super::large::{LargeFile, Scanned, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::Change;

/// A place for one batch's bytes, reused.
pub(super) struct Buffer {
    /// Bytes before the data, into which a large file's unfinished chunk is carried over.
    pub headroom: usize,
    /// Headroom and data.
    pub bytes: Vec<u8>,
}

/// One element of a batch of small files.
pub(super) enum Small {
    Change(Change),
    File(FileItem),
}

/// What waits to be taken.
pub(super) enum Batch {
    /// Changes and small files, which together fit a buffer.
    Small(Vec<Small>),
    /// A file that is read segment by segment; it stays at the head until its last segment was taken.
    Large(Arc<LargeFile>),
}

/// What a worker does next.
pub(super) enum Task {
    Compress(RawFrame),
    Hash(Scanned),
    Small(u64, Vec<Small>, Buffer),
    Segment(u64, Arc<LargeFile>, Segment, Buffer),
}

struct State {
    compress: VecDeque<RawFrame>,
    hash: VecDeque<Scanned>,
    batches: VecDeque<Batch>,
    /// Free ones, and how many more may be made: a small batch must not pay for all of them.
    buffers: Vec<Buffer>,
    unmade: usize,
    plan: BufferPlan,
    next_ticket: u64,
    active: usize,
    closed: bool,
    failure: Option<Error>,
}

pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    batches_max: usize,
}

/// How many buffers there are, and how long.
#[derive(Clone, Copy)]
pub(super) struct BufferPlan {
    pub count: usize,
    pub headroom: usize,
    pub data: usize,
}

impl Queue {
    pub fn new(plan: BufferPlan, batches_max: usize) -> Self {
        let state = State {
            compress: VecDeque::new(),
            hash: VecDeque::new(),
            batches: VecDeque::new(),
            buffers: Vec::new(),
            unmade: plan.count,
            plan,
            next_ticket: 0,
            active: 0,
            closed: false,
            failure: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), room: Condvar::new(), batches_max }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the queue is held")
    }

    /// Waits for room, then appends a batch.
    pub fn submit(&self, batch: Batch) -> Result<()> {
        let mut state = self.lock();
        while state.batches.len() >= self.batches_max && state.failure.is_none() {
            state = self.room.wait(state).expect("no panic while the queue is held");
        }
        if state.failure.is_some() {
            return Err(Error::new(ErrorKind::Cancelled, "the write pipeline has stopped"));
        }
        state.batches.push_back(batch);
        self.work.notify_one();
        Ok(())
    }

    /// No more batches will come: workers end once all is done.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Stops everything; the first failure is kept.
    pub fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.failure.get_or_insert(error);
        self.work.notify_all();
        self.room.notify_all();
    }

    /// The failure, once all workers have ended.
    pub fn take_failure(&self) -> Option<Error> {
        self.lock().failure.take()
    }

    /// True once something failed.
    pub fn failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    pub fn push_compress(&self, frame: RawFrame) {
        self.lock().compress.push_back(frame);
        self.work.notify_one();
    }

    pub fn push_hash(&self, scanned: Scanned) {
        self.lock().hash.push_back(scanned);
        self.work.notify_one();
    }

    /// Frees a buffer, unless a frame still borrows it: then whoever compresses that frame does.
    pub fn give_back(&self, buffer: Arc<Buffer>) {
        if let Some(buffer) = Arc::into_inner(buffer) {
            self.lock().buffers.push(buffer);
            self.work.notify_one();
        }
    }

    /// The next task, or `None` when all is done or something failed. `done_one` says that the caller has just ended a task.
    pub fn take(&self, done_one: bool) -> Option<Task> {
        let mut state = self.lock();
        if done_one {
            state.active -= 1;
        }
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(task) = state.next(&self.room) {
                state.active += 1;
                return Some(task);
            }
            if state.closed && state.active == 0 && state.batches.is_empty() {
                self.work.notify_all();
                return None;
            }
            state = self.work.wait(state).expect("no panic while the queue is held");
        }
    }
}

impl State {
    fn next(&mut self, room: &Condvar) -> Option<Task> {
        if let Some(frame) = self.compress.pop_front() {
            return Some(Task::Compress(frame));
        }
        if let Some(scanned) = self.hash.pop_front() {
            return Some(Task::Hash(scanned));
        }
        if self.buffers.is_empty() && self.unmade == 0 {
            return None;
        }
        loop {
            match self.batches.front()? {
                Batch::Large(file) => {
                    if let Some(segment) = file.take_segment() {
                        let file = Arc::clone(file);
                        return Some(Task::Segment(self.ticket(), file, segment, self.buffer()));
                    }
                    self.batches.pop_front();
                    room.notify_one();
                }
                Batch::Small(_) => {
                    let Some(Batch::Small(items)) = self.batches.pop_front() else {
                        unreachable!("just seen")
                    };
                    room.notify_one();
                    return Some(Task::Small(self.ticket(), items, self.buffer()));
                }
            }
        }
    }

    /// One of those that were just seen to be free.
    fn buffer(&mut self) -> Buffer {
        self.buffers.pop().unwrap_or_else(|| {
            self.unmade -= 1;
            let BufferPlan { headroom, data, .. } = self.plan;
            Buffer { headroom, bytes: vec![0; headroom + data] }
        })
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }
}
