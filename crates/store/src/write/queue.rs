//! The work queue: bounded batches in, tickets out, and the buffers that go with them.
//!
//! One mutex guards everything. Tasks are large (about a mebibyte, or a frame), so it is taken a
//! few thousand times a second at most. `submit` waits while too many batches wait. A worker waits
//! while there is no task it could start; a batch without a buffer counts as none. Some other
//! worker then holds the buffer of the oldest ticket, and is not waiting here.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_offload::Backlog;
use outrigger_offload::pool::Pool;

use super::bytes::{Buffer, Bytes};
use super::devices::Ingested;
use super::framer::RawFrame;
use super::frames::Compressed;
use super::item::FileItem;
use super::large::{LargeFile, Segment};
use super::sequence::Sequenced;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::Change;

/// A batch that was read, and the frames that it becomes.
const TASKS_PER_BATCH: usize = 3;

/// One element of a batch of small files.
pub(super) enum Small {
    Change(Change),
    File(FileItem),
}

/// A batch that waits to be taken.
pub(super) enum Batch {
    /// Changes and small files, which together fit a buffer.
    Small(Vec<Small>),
    /// A file that is read segment by segment; it stays at the head until its last segment was
    /// taken.
    Large(Arc<LargeFile>),
}

/// The next task of a worker.
pub(super) enum Task {
    /// Was compressed by a device.
    Append(Compressed),
    Compress(RawFrame),
    /// Was cut, and has no fingerprints.
    Hash(u64, Sequenced),
    /// Has all fingerprints.
    Bring(u64, Sequenced),
    /// Was with a device, to be cut, named and looked up.
    Ingested(Box<Ingested>),
    Small(u64, Vec<Small>, Buffer),
    Segment(u64, Arc<LargeFile>, Segment, Buffer),
}

struct State {
    append: VecDeque<Compressed>,
    compress: VecDeque<RawFrame>,
    hash: VecDeque<(u64, Sequenced)>,
    bring: VecDeque<(u64, Sequenced)>,
    ingested: VecDeque<Box<Ingested>>,
    /// Batches and frames that are with the offload runtime.
    away: usize,
    batches: VecDeque<Batch>,
    /// Free ones, and how many more may be made: a small batch must not pay for all of them.
    buffers: Vec<Buffer>,
    unmade: usize,
    /// Buffers that were made before devices had memory for them: each is freed when it comes back.
    outdated: usize,
    plan: BufferPlan,
    next_ticket: u64,
    active: usize,
    /// Workers that wait for something to do.
    idle: usize,
    /// How long a task takes, lately.
    task: Duration,
    closed: bool,
    failure: Option<Error>,
}

pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    threads: usize,
}

/// How many buffers there are, and how long.
pub(super) struct BufferPlan {
    pub count: usize,
    pub headroom: usize,
    pub data: usize,
    /// Where their memory comes from.
    pub pool: Pool,
}

impl Queue {
    pub fn new(plan: BufferPlan, threads: usize) -> Self {
        let state = State {
            append: VecDeque::new(),
            compress: VecDeque::new(),
            hash: VecDeque::new(),
            bring: VecDeque::new(),
            ingested: VecDeque::new(),
            away: 0,
            batches: VecDeque::new(),
            buffers: Vec::new(),
            unmade: plan.count,
            outdated: 0,
            plan,
            next_ticket: 0,
            active: 0,
            idle: 0,
            task: Duration::ZERO,
            closed: false,
            failure: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), room: Condvar::new(), threads }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the queue is held")
    }

    /// Room for so many bytes of batches more, and all buffers in memory of `pool`, as they come
    /// back.
    pub fn use_memory(&self, pool: &Pool, more_bytes: usize) {
        let mut state = self.lock();
        let BufferPlan { count, headroom, data, .. } = state.plan;
        let more = more_bytes.div_ceil(data);
        state.outdated = state.plan.count - state.unmade - state.buffers.len();
        state.unmade += state.buffers.len() + more;
        state.buffers.clear();
        state.plan = BufferPlan { count: count + more, headroom, data, pool: pool.clone() };
        self.work.notify_all();
    }

    /// Waits for room, then appends a batch.
    pub fn submit(&self, batch: Batch) -> Result<()> {
        let (mut state, batches_max) = (self.lock(), 4 * self.threads + 8);
        while state.batches.len() >= batches_max && state.failure.is_none() {
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

    pub fn push_hash(&self, ticket: u64, batch: Sequenced) {
        self.lock().hash.push_back((ticket, batch));
        self.work.notify_one();
    }

    /// A batch or a frame goes to the offload runtime: it will come back.
    pub fn go_away(&self) {
        self.lock().away += 1;
    }

    /// It did not go after all.
    pub fn stay(&self) {
        self.lock().away -= 1;
    }

    /// A batch is back, with its fingerprints.
    pub fn come_back_named(&self, ticket: u64, batch: Sequenced) {
        let mut state = self.lock();
        state.away -= 1;
        state.bring.push_back((ticket, batch));
        self.work.notify_one();
    }

    /// Returns a batch from a device, with its report if there is one.
    pub fn come_back_ingested(&self, batch: Box<Ingested>) {
        let mut state = self.lock();
        state.away -= 1;
        state.ingested.push_back(batch);
        self.work.notify_one();
    }

    /// A batch is back as it was.
    pub fn come_back_unnamed(&self, ticket: u64, batch: Sequenced) {
        let mut state = self.lock();
        state.away -= 1;
        state.hash.push_back((ticket, batch));
        self.work.notify_one();
    }

    /// A frame is back, compressed.
    pub fn come_back_compressed(&self, frame: Compressed) {
        let mut state = self.lock();
        state.away -= 1;
        state.append.push_back(frame);
        self.work.notify_one();
    }

    /// A frame is back as it was, for the processor.
    pub fn come_back_raw(&self, frame: RawFrame) {
        let mut state = self.lock();
        state.away -= 1;
        state.compress.push_back(RawFrame { for_processor: true, ..frame });
        self.work.notify_one();
    }

    /// The work that waits for the workers.
    pub fn backlog(&self) -> Backlog {
        let state = self.lock();
        let queued = state.append.len()
            + state.compress.len()
            + state.bring.len()
            + state.ingested.len()
            + state.hash.len();
        // A batch becomes some frames. The number of batches left in a large file is unknown:
        // assume as many as there are buffers.
        let batches = if state.batches.is_empty() { 0 } else { state.buffers.len() + state.unmade };
        let ahead = state.task * (queued + TASKS_PER_BATCH * batches) as u32 / self.threads.max(1) as u32;
        Backlog { is_idle: state.idle > 0, ahead }
    }

    /// Frees a buffer, unless a frame still borrows it: then the worker that compresses the frame
    /// frees it.
    pub fn give_back(&self, buffer: Arc<Buffer>) {
        if let Some(buffer) = Arc::into_inner(buffer) {
            let mut state = self.lock();
            if state.outdated > 0 && !buffer.bytes.is_of(&state.plan.pool) {
                state.outdated -= 1;
                state.unmade += 1;
            } else {
                state.buffers.push(buffer);
            }
            self.work.notify_one();
        }
    }

    /// The next task, or `None` when all is done or something failed. `done` is how long the
    /// caller's last task took, if it has just ended one.
    pub fn take(&self, done: Option<Duration>) -> Option<Task> {
        let mut state = self.lock();
        if let Some(took) = done {
            state.active -= 1;
            state.task = (state.task * 15 + took) / 16;
        }
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(task) = state.next(&self.room) {
                state.active += 1;
                return Some(task);
            }
            if state.closed && state.active == 0 && state.away == 0 && state.batches.is_empty() {
                self.work.notify_all();
                return None;
            }
            state.idle += 1;
            state = self.work.wait(state).expect("no panic while the queue is held");
            state.idle -= 1;
        }
    }
}

impl State {
    fn next(&mut self, room: &Condvar) -> Option<Task> {
        // These are all but through.
        if let Some(frame) = self.append.pop_front() {
            return Some(Task::Append(frame));
        }
        if let Some(frame) = self.compress.pop_front() {
            return Some(Task::Compress(frame));
        }
        if let Some((ticket, batch)) = self.bring.pop_front() {
            return Some(Task::Bring(ticket, batch));
        }
        if let Some(batch) = self.ingested.pop_front() {
            return Some(Task::Ingested(batch));
        }
        if let Some((ticket, batch)) = self.hash.pop_front() {
            return Some(Task::Hash(ticket, batch));
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
        let BufferPlan { headroom, data, pool, .. } = &self.plan;
        let made = || Buffer { headroom: *headroom, bytes: Bytes::new(pool, headroom + data) };
        match self.buffers.pop() {
            Some(buffer) if !buffer.bytes.is_lent() => buffer,
            // One that a device may still read is left to it.
            Some(_) => made(),
            None => {
                self.unmade -= 1;
                made()
            }
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_is_what_waits_by_how_long_it_takes_all_threads() {
        let plan = BufferPlan { count: 5, headroom: 0, data: 10, pool: Pool::new(None, 0) };
        let queue = Queue::new(plan, 2);
        let backlog = |is_idle, ms| Backlog { is_idle, ahead: Duration::from_millis(ms) };
        assert_eq!(queue.backlog(), backlog(false, 0));
        (0..6).for_each(|_| queue.submit(Batch::Small(Vec::new())).unwrap());
        assert!(queue.take(None).is_some());
        assert!(queue.take(Some(Duration::from_millis(16 * 2))).is_some());
        // Three buffers are left: as many batches, each with its frames, on two threads.
        assert_eq!(queue.backlog(), backlog(false, 2 * 9 / 2));
    }

    #[test]
    fn buffers_of_before_are_let_go_of_when_they_come_back() {
        let (before, after) = (Pool::new(None, 0), Pool::new(None, 1 << 20));
        let plan = BufferPlan { count: 2, headroom: 0, data: 4096, pool: before };
        let queue = Queue::new(plan, 1);
        (0..6).for_each(|_| queue.submit(Batch::Small(Vec::new())).unwrap());
        let taken = || match queue.take(None) {
            Some(Task::Small(_, _, buffer)) => Arc::new(buffer),
            _ => panic!("a batch"),
        };
        let (one, two) = (taken(), taken());
        queue.use_memory(&after, 1);
        assert!(taken().bytes.is_of(&after), "a buffer more");
        for old in [one, two] {
            queue.give_back(old);
            assert!(taken().bytes.is_of(&after));
        }
    }
}
