//! The unsafe part: memory that is lent to the kernel, and the submission of it.
//!
//! An entry is a page of headers and room for the longest request or answer. It belongs to the
//! kernel from the submission of `REGISTER` or `COMMIT_AND_FETCH` to that command's completion.
//! From then on it is ours, as [`Held`]; in between nobody has a reference into it. Memory that the
//! kernel may still write to when a queue ends is never freed.
#![allow(unsafe_code)]
#![allow(clippy::host_endian_bytes, reason = "both sides of this protocol are on one machine")]

use std::alloc::{self, Layout};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::super::wire::Request;
use super::super::wire::decode::HEADER_BYTES;
use super::super::wire::encode::answer_header;
use crate::fs::Result;

/// Commands, as `include/uapi/linux/fuse.h` has them.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Offsets in the header page: the header of request or answer, the operation's fields, the ring's
/// part.
const IN_OUT: usize = 0;
const FIELDS: usize = 128;
const RING: usize = 256;
const HEADERS_LEN: usize = 288;
/// Offsets in the ring's part.
const COMMIT_ID: usize = RING + 8;
const PAYLOAD_LEN: usize = RING + 16;
/// Where in the header page, behind what the kernel knows of, the two segments are listed.
const SEGMENTS: usize = 512;
const PAGE: usize = 4096;
/// Marks the completion of waiting for the event.
const WAKE: u64 = u64::MAX;

/// An entry's memory. Freed when dropped, so it must not be dropped while it is the kernel's.
#[derive(Debug)]
struct Entry {
    start: NonNull<u8>,
    payload_len: usize,
    queue: u16,
}

// SAFETY: it is the only owner of its memory.
unsafe impl Send for Entry {}

impl Entry {
    fn layout(payload_len: usize) -> Layout {
        Layout::from_size_align(PAGE + payload_len, PAGE).expect("a constant")
    }

    fn new(queue: u16, payload_len: usize) -> Self {
        let layout = Self::layout(payload_len);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| alloc::handle_alloc_error(layout));
        Self { start, payload_len, queue }
    }

    /// Lists the segments for `REGISTER`, and returns where.
    fn list_segments(&mut self) -> *const u8 {
        let base = self.start.as_ptr();
        // SAFETY: all within the allocation, whose alignment is a page's; `struct iovec` is an address and a length.
        unsafe {
            let list = base.add(SEGMENTS);
            let segments = [base as usize, HEADERS_LEN, base.add(PAGE) as usize, self.payload_len];
            list.cast::<[usize; 4]>().write(segments);
            list
        }
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= PAGE + self.payload_len);
        // SAFETY: within the allocation, which was zeroed; the kernel does not write while we hold the entry.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= PAGE + self.payload_len);
        // SAFETY: as above, and it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), Self::layout(self.payload_len)) }
    }
}

/// A request that we hold, and where its answer goes.
#[derive(Debug)]
pub struct Held {
    entry: Entry,
    slot: usize,
}

impl Held {
    /// The request.
    ///
    /// # Errors
    /// `EIO` when the kernel's lengths are not right.
    pub fn request(&self) -> Result<Request<'_>> {
        let len = self.entry.bytes(PAYLOAD_LEN, 4).try_into().map(u32::from_ne_bytes).unwrap_or(0) as usize;
        if len > self.entry.payload_len {
            return Err(Errno::IO);
        }
        let fields = self.entry.bytes(FIELDS, RING - FIELDS);
        Request::new(self.entry.bytes(IN_OUT, HEADER_BYTES), fields, self.entry.bytes(PAGE, len))
    }

    fn commit_id(&self) -> u64 {
        self.entry.bytes(COMMIT_ID, 8).try_into().map(u64::from_ne_bytes).unwrap_or(0)
    }

    /// Puts the answer where the request was.
    pub fn answer(&mut self, answer: Result<&[u8]>) {
        let answer = answer
            .and_then(|bytes| if bytes.len() <= self.entry.payload_len { Ok(bytes) } else { Err(Errno::IO) });
        let (bytes, error) = match answer {
            Ok(bytes) => (bytes, 0),
            Err(errno) => ([].as_slice(), -errno.raw_os_error()),
        };
        let (unique, len) = (self.commit_id(), bytes.len() as u32);
        self.entry.bytes_mut(PAGE, bytes.len()).copy_from_slice(bytes);
        let header = answer_header(unique, error, bytes.len());
        self.entry.bytes_mut(IN_OUT, header.len()).copy_from_slice(&header);
        self.entry.bytes_mut(PAYLOAD_LEN, 4).copy_from_slice(&len.to_ne_bytes());
    }
}

/// A completed event of the ring.
#[derive(Debug)]
pub enum Event {
    /// A request.
    Request(Held),
    /// Somebody wrote to the event.
    Woken,
}

/// A ring of one thread, and the entries that it lends to the kernel.
pub struct Queue {
    ring: IoUring<Entry128>,
    lent: Vec<Option<ManuallyDrop<Entry>>>,
    /// Entries that are the kernel's or held.
    live: usize,
    wake: Arc<OwnedFd>,
}

impl Queue {
    /// A ring for at most `entries`, which can be woken by writing to the event `wake`. Belongs to
    /// the calling thread.
    ///
    /// # Errors
    /// When the kernel has no rings for us.
    pub fn new(entries: usize, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let ring = IoUring::<Entry128>::builder()
            // Requests are brought in when we ask for them, not by interrupting us.
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build((entries + 1).next_power_of_two() as u32)?;
        Ok(Self { ring, lent: Vec::new(), live: 0, wake })
    }

    /// Lends entries for the kernel's `queue`.
    ///
    /// # Errors
    /// When the ring has no room.
    pub fn register(
        &mut self,
        device: &OwnedFd,
        queue: u16,
        entries: usize,
        payload_len: usize,
    ) -> io::Result<()> {
        if self.lent.is_empty() {
            self.ring.submitter().register_files(&[device.as_raw_fd()])?;
            self.listen()?;
        }
        for _ in 0..entries {
            let mut entry = Entry::new(queue, payload_len);
            let slot = self.lent.len();
            let mut command = command(REGISTER, slot, 0, queue, Some(entry.list_segments() as u64));
            // SAFETY: `Entry128` is `repr(C)` and begins with the kernel's `io_uring_sqe`, whose `len`, the number of segments here, is the
            // seventh of its 32-bit words. The crate has no setter for it with this operation.
            unsafe { std::ptr::from_mut(&mut command).cast::<u32>().add(6).write(2) };
            self.lent.push(Some(ManuallyDrop::new(entry)));
            self.live += 1;
            self.push(&command)?;
        }
        Ok(())
    }

    /// Entries that have not come back for good.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Sends an answer, with the next [`wait`](Self::wait).
    ///
    /// # Errors
    /// When the ring has no room.
    pub fn commit(&mut self, held: Held) -> io::Result<()> {
        let commit = command(COMMIT_AND_FETCH, held.slot, held.commit_id(), held.entry.queue, None);
        let slot = held.slot;
        self.lent[slot] = Some(ManuallyDrop::new(held.entry));
        self.push(&commit)
    }

    /// Sends answers, waits until something has come, and appends it to `events`.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => (),
        }
        let mut woken = false;
        for completion in self.ring.completion() {
            if completion.user_data() == WAKE {
                woken = true;
                continue;
            }
            let slot = completion.user_data() as usize;
            let Some(entry) = self.lent.get_mut(slot).and_then(Option::take) else { continue };
            match completion.result() {
                0.. => events.push(Event::Request(Held { entry: ManuallyDrop::into_inner(entry), slot })),
                error => {
                    self.live -= 1;
                    // The mount is gone, and the kernel's knowledge of the entry with it. After
                    // other errors it may still know of it.
                    if -error == Errno::NOTCONN.raw_os_error() {
                        drop(ManuallyDrop::into_inner(entry));
                    }
                }
            }
        }
        if woken {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            events.push(Event::Woken);
            self.listen()?;
        }
        Ok(())
    }

    /// Has the next write to the event complete something.
    fn listen(&mut self) -> io::Result<()> {
        let event = types::Fd(self.wake.as_raw_fd());
        let poll = opcode::PollAdd::new(event, rustix::event::PollFlags::IN.bits().into()).build();
        self.push(&poll.user_data(WAKE).into())
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: what commands refer to is in `lent`, and stays there until their completion or for ever; the event lives as long as the
        // ring.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)
    }
}

/// A command for the registered device.
fn command(operation: u32, slot: usize, commit_id: u64, queue: u16, segments: Option<u64>) -> Entry128 {
    let mut fields = [0; 80];
    fields[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    fields[16..18].copy_from_slice(&queue.to_ne_bytes());
    opcode::UringCmd80::new(types::Fixed(0), operation)
        .cmd(fields)
        .addr(segments)
        .build()
        .user_data(slot as u64)
}
