//! Devices join a writer when they are open: at its start, or in the middle of its work.
//!
//! The first worker that finds them open lets them in. From then on, buffers lie where devices
//! reach them, frames have the lengths that devices take, and deduplication asks the table cache.

use std::sync::{Arc, OnceLock};

use outrigger_offload::FrameDevices;

use super::devices::Devices;
use super::framer::Framer;
use super::queue::Queue;
use super::sequence::Sequencer;
use crate::devices::StoreDevices;

/// Bytes of batches that may be with devices, besides those that the workers have.
const BATCHES_BYTES: usize = 4 << 20;
/// Further bytes of batches, for frames that are under way to devices.
const FRAMES_BYTES_MAX: usize = 32 << 20;

/// The devices of a writer.
pub(super) struct Joining {
    pub source: Option<Arc<StoreDevices>>,
    pub joined: OnceLock<Joined>,
}

/// Devices that are open.
pub(super) struct Joined {
    /// Devices that cut and hash, if there are any.
    pub devices: Option<Devices>,
    /// Devices that compress.
    pub frames: Option<Arc<FrameDevices>>,
}

impl Joining {
    /// Lets them in, if they are open.
    pub fn get(&self, queue: &Queue, sequencer: &Sequencer) -> Option<&Joined> {
        if let Some(joined) = self.joined.get() {
            return Some(joined);
        }
        let source = self.source.as_ref()?;
        source.opening.runtime()?;
        Some(self.joined.get_or_init(|| join(source, queue, sequencer)))
    }

    /// Counts bytes that devices might have worked on.
    pub fn note(&self, bytes: usize) {
        if let Some(source) = self.source.as_ref().filter(|_| self.joined.get().is_none()) {
            source.opening.note(bytes);
        }
    }

    /// A frame is meant for a device. Says whether there may be one yet.
    pub fn wants_device(&self) -> bool {
        self.source.as_ref().is_some_and(|source| {
            source.opening.begin();
            !source.opening.is_over()
        })
    }
}

fn join(source: &StoreDevices, queue: &Queue, sequencer: &Sequencer) -> Joined {
    let (devices, frames) = (Devices::of(source), source.opening.frame_devices().cloned());
    let joined = Joined { devices, frames };
    let Some(runtime) =
        source.opening.runtime().filter(|_| joined.devices.is_some() || joined.frames.is_some())
    else {
        return joined;
    };
    let frame_size = source.config.frame_size as usize;
    // Batches may be with devices; and frames under way hold the batches that they were read into.
    let batches = joined.devices.as_ref().map_or(0, |_| BATCHES_BYTES);
    let frames = joined.frames.as_ref().map_or(0, |devices| devices.in_flight() * frame_size);
    queue.use_memory(runtime.pool(), batches + frames.min(FRAMES_BYTES_MAX));
    let mut stage = sequencer.stage.lock().expect("no panic in the stage");
    stage.framer.use_memory(runtime.pool());
    if let Some(devices) = &joined.frames {
        let limit = devices.frame_limit(frame_size, Framer::usual_limit(frame_size));
        stage.framer.set_limit(limit);
    }
    if joined.devices.is_some() {
        stage.dedup.use_table_cache(source.start_table_cache().cloned());
    }
    joined
}
