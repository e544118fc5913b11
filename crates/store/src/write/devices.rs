//! Naming chunks by devices: a batch that was cut becomes a task of the offload runtime, whose placement decides between the processor and
//! devices, and comes back through the queue.
//!
//! The device reads the batch where it lies, in the pool's page-locked memory. Whoever submits waits while too many tasks are
//! outstanding; results do not wait for anybody. A task that the runtime gives back undone is done by a worker, so nothing depends on any device.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use outrigger_format::FingerprintKind;
use outrigger_offload::runtime::{Failed, Finished, Runtime};
use outrigger_offload::work::Class;

use super::ingest::ChunkRef;
use super::oracle::UNNAMED;
use super::queue::Queue;
use super::sequence::Sequenced;

/// Sizes of batches that are looked at, bytes.
const SIZES: Range<u32> = 20..25;
/// A size at which a device does so much of its best is large enough.
const ENOUGH: f64 = 0.9;

/// Whether any device beside the processor can name chunks.
pub(super) fn can_name(runtime: &Runtime, kind: FingerprintKind) -> bool {
    let mut draft = runtime.draft(0);
    draft.hash_many(kind, []);
    (1..runtime.metrics().devices.len()).any(|device| runtime.supports(device, draft.work()))
}

/// Bytes of a batch from which the devices do about their best, as far as they were measured.
pub(super) fn batch_bytes(runtime: &Runtime, kind: FingerprintKind) -> Option<usize> {
    let devices = 1..runtime.metrics().devices.len();
    let rate = |bytes: usize| {
        let times =
            devices.clone().filter_map(|device| runtime.predict(device, Class::HashMany(kind), bytes));
        times.map(|time| bytes as f64 / time.as_secs_f64()).fold(0.0, f64::max)
    };
    let best = SIZES.map(|log| rate(1 << log)).fold(0.0, f64::max);
    (best > 0.0).then(|| SIZES.map(|log| 1 << log).find(|&bytes| rate(bytes) >= ENOUGH * best)).flatten()
}

/// Has the chunks of a batch named that have no fingerprints yet. It comes back through `queue`, which has been told that one is away.
pub(super) fn name(
    runtime: &Runtime,
    queue: &Arc<Queue>,
    kind: FingerprintKind,
    ticket: u64,
    batch: Sequenced,
) {
    let (buffer, chunks) = batch.chunks();
    let unnamed = || chunks.iter().filter(|chunk| chunk.fingerprint == UNNAMED);
    let (Some(first), Some(last)) = (unnamed().next(), unnamed().next_back()) else {
        return queue.come_back_named(ticket, batch);
    };
    let range = first.start..last.start + last.len;
    let mut draft = runtime.draft(0);
    draft.hash_many(
        kind,
        unnamed().map(|chunk| {
            let start = chunk.start - range.start;
            start..start + chunk.len
        }),
    );
    draft.share(buffer.bytes.lend(), range.start as usize..range.end as usize);
    let away = Arc::new(Mutex::new(Some(batch)));
    let (back, waits) = (Arc::clone(queue), Arc::clone(&away));
    draft.set_callback(Arc::new(move |ended| {
        if let Some(batch) = take(&waits) {
            come_back(&back, ticket, batch, ended);
        }
    }));
    if let Err(refused) = runtime.submit(draft) {
        // It is being shut down.
        drop(refused);
        if let Some(batch) = take(&away) {
            queue.come_back_unnamed(ticket, batch);
        }
    }
}

fn take(away: &Mutex<Option<Sequenced>>) -> Option<Sequenced> {
    away.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn come_back(queue: &Queue, ticket: u64, mut batch: Sequenced, ended: Result<Finished, Failed>) {
    let named = match &ended {
        Ok(done) => put_names(batch.chunks_mut(), &done.output().fingerprints),
        Err(_) => false,
    };
    // The batch is nobody else's any more, before it goes on.
    drop(ended);
    if named {
        queue.come_back_named(ticket, batch);
    } else {
        queue.come_back_unnamed(ticket, batch);
    }
}

/// Gives the chunks without names theirs; `false` when there are not as many.
fn put_names(chunks: &mut [ChunkRef], names: &[outrigger_format::Fingerprint]) -> bool {
    let mut unnamed: Vec<&mut ChunkRef> =
        chunks.iter_mut().filter(|chunk| chunk.fingerprint == UNNAMED).collect();
    if unnamed.len() != names.len() {
        return false;
    }
    unnamed.iter_mut().zip(names).for_each(|(chunk, name)| chunk.fingerprint = *name);
    true
}
