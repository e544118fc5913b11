//! Read-ahead: a few threads that decode frames before they are asked for.
//!
//! A file that is read in order posts the chunks that come next; a thread brings their frames into
//! the store's cache of decoded frames, where the read finds them. Nobody waits for these threads:
//! a post that finds the queue full is dropped, and what they cannot read, the read itself reports.
//! Nothing is verified here; the read verifies every chunk it hands out.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use outrigger_format::Fingerprint;
use outrigger_store::read::Reader;
use outrigger_store::{Context as _, Result, Store};

/// Posts that wait at most: with [`POST_BYTES`] each, a third of what the cache of decoded frames
/// holds.
const QUEUE_MAX: usize = 64;
/// Bytes of chunks in a post, about: a frame's.
pub const POST_BYTES: u64 = 256 << 10;

#[derive(Default)]
struct Queue {
    posts: VecDeque<Vec<Fingerprint>>,
    closed: bool,
}

struct Shared {
    store: Arc<Store>,
    queue: Mutex<Queue>,
    posted: Condvar,
}

/// See the module. Dropping it ends the threads.
pub struct ReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts `threads` threads; with none, posts are dropped.
    ///
    /// # Errors
    /// `Io` when the machine gives no threads.
    pub fn start(store: &Arc<Store>, threads: usize) -> Result<Self> {
        let shared =
            Arc::new(Shared { store: Arc::clone(store), queue: Mutex::default(), posted: Condvar::new() });
        let mut ahead = Self { shared, threads: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&ahead.shared);
            let name = format!("read-ahead-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || shared.work());
            ahead.threads.push(thread.context(|| "cannot start a thread".to_string())?);
        }
        Ok(ahead)
    }

    /// Chunks that will be read soon; `false` when they were dropped.
    pub fn post(&self, chunks: Vec<Fingerprint>) -> bool {
        let mut queue = self.shared.queue.lock().expect("no panic while held");
        if queue.posts.len() >= QUEUE_MAX || self.threads.is_empty() {
            return false;
        }
        queue.posts.push_back(chunks);
        drop(queue);
        self.shared.posted.notify_one();
        true
    }
}

impl Shared {
    fn work(&self) {
        let reader = Reader::new(&self.store);
        loop {
            let mut queue = self.queue.lock().expect("no panic while held");
            let post = loop {
                if queue.closed {
                    return;
                }
                match queue.posts.pop_front() {
                    Some(post) => break post,
                    None => queue = self.posted.wait(queue).expect("no panic while held"),
                }
            };
            drop(queue);
            // The read itself meets the same error, and knows whom to tell.
            let _ = post.iter().try_for_each(|chunk| reader.prefetch(chunk));
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.queue.lock().expect("no panic while held").closed = true;
        self.shared.posted.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
