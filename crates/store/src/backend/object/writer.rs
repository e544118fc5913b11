//! Writes one pack as an object.
//!
//! Appended bytes gather in parts of [`PART_LEN`], which become the bodies of requests without
//! another copy. States:
//!
//! - *gathering*: nothing was sent. [`PackWriter::finish`] sends all of it in one request, in the
//!   background; `seal` waits for the answer.
//! - *in parts*: more than [`WHOLE_MAX`] has gathered. A small object takes the name, on condition
//!   that the name is free. Then parts are uploaded while more is appended, at most [`PARTS_MAX`]
//!   at once; beyond that, appending waits. `finish` completes the upload. Older gateways cannot
//!   make the completion conditional, hence the small object: the writer that made it owns the
//!   name.
//!
//! Appending waits while [`UPLOADING_MAX`] bytes of finished packs are on their way. That, with the
//! open packs, bounds the memory. It never waits for work of its own thread: uploads end by
//! themselves.
//!
//! A failure may have been a success (a time-out, an answer that was cut off). Then the object's
//! length and the checksums of its parts are compared with what was sent. A writer that is dropped
//! unsealed aborts its upload in parts, and leaves the small object.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};

use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{GetRange, PutPayload};
use outrigger_clock as clock;
use outrigger_format::{PackId, checksum};
use tokio::task::JoinHandle;

use super::Shared;
use super::retry::attempt;
use crate::backend::PackWriter;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a part.
pub(super) const PART_LEN: usize = 8 << 20;
/// Packs up to this length are put by one request.
pub(super) const WHOLE_MAX: usize = 4 * PART_LEN;
/// Parts of one pack under way at once.
const PARTS_MAX: usize = 4;

/// About so many bytes of finished packs may be on their way.
const UPLOADING_MAX: u64 = 64 << 20;

/// Bytes of finished packs on their way.
#[derive(Default)]
pub(super) struct Uploading {
    bytes: Mutex<u64>,
    less: Condvar,
}

impl Uploading {
    fn wait_for_room(&self) {
        let mut bytes = self.bytes.lock().expect("no panic while it is held");
        while *bytes >= UPLOADING_MAX {
            bytes = self.less.wait(bytes).expect("no panic while it is held");
        }
    }
}

/// Subtracts its bytes when it is dropped: at the end of the upload, successful or not.
struct OnItsWay {
    shared: Arc<Shared>,
    bytes: u64,
}

impl OnItsWay {
    fn new(shared: &Arc<Shared>, bytes: u64) -> Self {
        *shared.uploading.bytes.lock().expect("no panic while it is held") += bytes;
        Self { shared: Arc::clone(shared), bytes }
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        if let Ok(mut bytes) = self.shared.uploading.bytes.lock() {
            *bytes -= self.bytes;
        }
        self.shared.uploading.less.notify_all();
    }
}

/// The length and checksum of each part that was sent.
type Sums = Vec<(u64, u64)>;

/// An upload in parts.
struct Parts {
    upload: String,
    sent: VecDeque<JoinHandle<Result<PartId>>>,
    done: Vec<PartId>,
    sums: Sums,
}

enum State {
    /// Full parts that wait.
    Gathering(Vec<Vec<u8>>),
    InParts(Parts),
    /// The last request is under way.
    Finishing(JoinHandle<Result<()>>),
    Failed,
}

/// See the module.
pub(super) struct Writer {
    id: PackId,
    shared: Arc<Shared>,
    state: State,
    /// The part being filled.
    part: Vec<u8>,
}

impl Writer {
    pub(super) fn new(id: PackId, shared: Arc<Shared>) -> Self {
        Self { id, shared, state: State::Gathering(Vec::new()), part: Vec::new() }
    }

    fn refused(&self) -> Error {
        Error::new(ErrorKind::Io, format!("an earlier write to {} failed", self.shared.name(self.id)))
    }

    /// Keeps the full part, or sends it.
    fn part_is_full(&mut self) -> Result<()> {
        let part = std::mem::take(&mut self.part);
        match &mut self.state {
            State::Gathering(parts) => {
                parts.push(part);
                if parts.len() * PART_LEN < WHOLE_MAX {
                    return Ok(());
                }
                let parts = std::mem::take(parts);
                self.state = State::Failed;
                self.state = State::InParts(self.begin_parts()?);
                parts.into_iter().try_for_each(|part| self.send(part))
            }
            State::InParts(_) => self.send(part),
            State::Finishing(_) | State::Failed => Err(self.refused()),
        }
    }

    /// Takes the name, and begins an upload in parts.
    fn begin_parts(&self) -> Result<Parts> {
        let (shared, id) = (&self.shared, self.id);
        let key = shared.key(id);
        let what = || format!("cannot create {}", shared.name(id));
        // Unique, so that if a failure was in fact a success, the object is known to be ours.
        let claim = [&b"unfinished "[..], &clock::random::<16>()?].concat();
        shared.block_on(async {
            put_whole(shared, id, vec![claim]).await?;
            let begin =
                attempt(&shared.health, &shared.patience, &what, |_| shared.client.create_multipart(&key));
            let upload = begin.await?;
            Ok(Parts { upload, sent: VecDeque::new(), done: Vec::new(), sums: Vec::new() })
        })
    }

    /// Sends a part in the background; waits while too many are under way.
    fn send(&mut self, part: Vec<u8>) -> Result<()> {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let State::InParts(parts) = &mut self.state else { return Err(self.refused()) };
        while parts.sent.len() >= PARTS_MAX {
            if let Err(error) = wait_one(&shared, parts) {
                self.abort();
                return Err(error);
            }
        }
        parts.sums.push((part.len() as u64, checksum(&[&part])));
        let (number, upload) = (parts.sums.len() - 1, parts.upload.clone());
        let payload = PutPayload::from(part);
        parts.sent.push_back(self.shared.handle.spawn(async move {
            let key = shared.key(id);
            let what = || format!("cannot write part {} of {}", number + 1, shared.name(id));
            attempt(&shared.health, &shared.patience, &what, |_| async {
                let _permit = shared.requests.acquire().await;
                shared.client.put_part(&key, &upload, number, payload.clone()).await
            })
            .await
        }));
        Ok(())
    }

    /// Aborts an upload in parts. Without this its parts would be kept, and paid for.
    fn abort(&mut self) {
        let State::InParts(parts) = std::mem::replace(&mut self.state, State::Failed) else { return };
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        self.shared.handle.spawn(async move {
            for part in parts.sent {
                part.abort();
            }
            let _ = shared.client.abort_multipart(&shared.key(id), &parts.upload).await;
        });
    }
}

/// Waits for the oldest part.
fn wait_one(shared: &Shared, parts: &mut Parts) -> Result<()> {
    let Some(oldest) = parts.sent.pop_front() else { return Ok(()) };
    parts.done.push(shared.block_on(oldest).unwrap_or_else(|panic| Err(gone(&panic)))?);
    Ok(())
}

fn gone(error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Io, format!("an upload ended by itself: {error}"))
}

/// Puts a whole pack. If exactly these bytes have the name already, an earlier try put them.
async fn put_whole(shared: &Shared, id: PackId, parts: Vec<Vec<u8>>) -> Result<()> {
    let (key, what) = (shared.key(id), || format!("cannot create {}", shared.name(id)));
    let sums: Sums = parts.iter().map(|part| (part.len() as u64, checksum(&[part]))).collect();
    let payload: PutPayload = parts.into_iter().map(bytes::Bytes::from).collect();
    let tries = AtomicU32::new(0);
    loop {
        match shared.put_new(&key, payload.clone(), &tries, &what).await {
            Err(error) if error.kind() == ErrorKind::Exists => match holds(shared, &key, &sums).await? {
                Some(true) => return Ok(()),
                Some(false) => return Err(error),
                // Two puts met, and the other object is gone: once more.
                None => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            },
            put => return put,
        }
    }
}

/// Waits for all parts and makes them one object.
async fn complete(shared: &Shared, id: PackId, mut parts: Parts) -> Result<()> {
    let (key, what) = (shared.key(id), || format!("cannot complete {}", shared.name(id)));
    for part in std::mem::take(&mut parts.sent) {
        parts.done.push(part.await.unwrap_or_else(|panic| Err(gone(&panic)))?);
    }
    let done = attempt(&shared.health, &shared.patience, &what, |_| {
        shared.client.complete_multipart(&key, &parts.upload, parts.done.clone())
    });
    match done.await {
        // A missing upload may be one that an earlier try completed.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Exists) => {
            match holds(shared, &key, &parts.sums).await? {
                Some(true) => Ok(()),
                _ => Err(Error::new(ErrorKind::Io, error.to_string())),
            }
        }
        done => done.map(drop),
    }
}

/// True if the object at `key` has these lengths and checksums; `None` when there is no object.
async fn holds(shared: &Shared, key: &Path, sums: &Sums) -> Result<Option<bool>> {
    let what = || format!("cannot read back {}{key}", shared.place);
    let len: u64 = sums.iter().map(|(len, _)| len).sum();
    match shared.head(key, &what).await? {
        None => return Ok(None),
        Some(found) if found != len => return Ok(Some(false)),
        Some(_) => {}
    }
    let mut at = 0;
    for (len, sum) in sums.iter().filter(|(len, _)| *len > 0) {
        let (bytes, _) = shared.get(key, GetRange::Bounded(at..at + len), &what).await?;
        if checksum(&[&bytes]) != *sum {
            return Ok(Some(false));
        }
        at += len;
    }
    Ok(Some(true))
}

impl PackWriter for Writer {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        if matches!(self.state, State::Failed | State::Finishing(_)) {
            return Err(self.refused());
        }
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                if self.part.len() == PART_LEN {
                    self.part_is_full()?;
                }
                if self.part.is_empty() {
                    self.shared.uploading.wait_for_room();
                }
                if self.part.capacity() < PART_LEN && self.part.len() + rest.len() > self.part.capacity() {
                    // A small pack takes little memory, and a full part is never moved.
                    let more = if self.part.is_empty() { 64 << 10 } else { PART_LEN - self.part.len() };
                    self.part.reserve_exact(more.max(rest.len().min(PART_LEN - self.part.len())));
                }
                let n = rest.len().min(PART_LEN - self.part.len());
                self.part.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let last = std::mem::take(&mut self.part);
        if let State::InParts(_) = self.state
            && !last.is_empty()
        {
            self.send(last)?;
        } else if let State::Gathering(parts) = &mut self.state {
            parts.push(last);
        }
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Gathering(parts) => {
                let bytes = parts.iter().map(|part| part.len() as u64).sum();
                let way = OnItsWay::new(&shared, bytes);
                State::Finishing(self.shared.handle.spawn(async move {
                    let put = put_whole(&shared, id, parts).await;
                    drop(way);
                    put
                }))
            }
            State::InParts(parts) => {
                State::Finishing(self.shared.handle.spawn(async move { complete(&shared, id, parts).await }))
            }
            state => state,
        };
        Ok(())
    }

    fn seal(mut self: Box<Self>) -> Result<()> {
        self.finish()?;
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Finishing(last) => self.shared.block_on(last).unwrap_or_else(|panic| Err(gone(&panic))),
            _ => Err(self.refused()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
        if let State::Finishing(last) = &self.state {
            last.abort();
        }
    }
}
