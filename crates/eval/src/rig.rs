//! A runtime for measurements: the processor's threads, and devices that are real or modelled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_offload::accelerator::{Accelerator, StageTimes};
use outrigger_offload::placement::Policy;
use outrigger_offload::pool::Buffer;
use outrigger_offload::runtime::{Draft, Finished, Runtime, Ticket};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::work::Request;

use crate::lab::{Lab, Scale};
use crate::record::Series;

/// A runtime whose device 0 is the processor; other devices follow.
pub struct Rig {
    /// The runtime. It neither checks results nor explores.
    pub runtime: Runtime,
    /// Device names.
    pub names: Vec<String>,
}

/// The reuse of buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// Reused from task to task.
    Reused,
    /// Allocated and page-locked for each task.
    Fresh,
}

impl Rig {
    /// The processor alone.
    pub fn processor(threads: usize) -> Self {
        Self::new(threads, Vec::new(), Buffers::Reused)
    }

    /// Modelled devices of these speeds. Their results are computed once for each size and
    /// repeated, so the data must stay the same.
    pub fn modelled(speeds: &[Speed], in_flight: usize, buffers: Buffers) -> Self {
        let sim = |(n, speed): (usize, &Speed)| -> Box<dyn Accelerator> {
            let options =
                SimOptions { replay: true, in_flight, ..SimOptions::new(format!("sim:{n}"), *speed) };
            Box::new(SimDevice::new(options))
        };
        Self::new(1, speeds.iter().enumerate().map(sim).collect(), buffers)
    }

    /// [The devices of this machine](found).
    pub fn real(lab: &Lab) -> Self {
        Self::real_with(lab, Buffers::Reused)
    }

    /// The same, with or without reused buffers.
    pub fn real_with(lab: &Lab, buffers: Buffers) -> Self {
        Self::new(1, found(lab), buffers)
    }

    /// Its devices, each with its name.
    pub fn devices(&self) -> impl Iterator<Item = (usize, &str)> {
        self.names.iter().enumerate().map(|(n, name)| (n + 1, &**name))
    }

    /// Lines for [`Self::devices`], in their order.
    pub fn lines(&self) -> Vec<Series> {
        self.names.iter().map(Series::measured).collect()
    }

    fn new(threads: usize, devices: Vec<Box<dyn Accelerator>>, buffers: Buffers) -> Self {
        let policy = Policy { check_every: 0, check_first: 0, explore_every: 0, ..Policy::default() };
        let keep = if buffers == Buffers::Reused { 4 << 30 } else { 0 };
        let names = devices.iter().map(|device| device.identity().model.clone()).collect();
        let builder = Runtime::builder().cpu_threads(threads).policy(policy).keep_bytes(keep);
        let runtime = devices.into_iter().fold(builder, |builder, device| builder.device(device)).build();
        Self { runtime, names }
    }

    /// `data` in a buffer of the runtime.
    pub fn buffer(&self, data: &[u8]) -> Arc<Buffer> {
        let mut buffer = self.runtime.pool().alloc(data.len());
        buffer.extend_from_slice(data);
        Arc::new(buffer)
    }

    /// Submits the request on all of `data`.
    pub fn submit(&self, device: usize, request: &Request, data: &Arc<Buffer>) -> Ticket {
        let mut draft = self.runtime.draft(0);
        draft.share(Arc::clone(data), 0..data.len()).set_request(request.clone()).pin(device);
        self.admit(draft)
    }

    fn admit(&self, draft: Draft) -> Ticket {
        self.runtime
            .submit(draft)
            .unwrap_or_else(|refused| panic!("a runtime that runs admits tasks: {refused}"))
    }

    /// Runs one task, and returns its time from submission to end.
    pub fn once(&self, device: usize, request: &Request, data: &Arc<Buffer>) -> (Duration, Finished) {
        let begun = Instant::now();
        let done = wait(self.submit(device, request, data));
        (begun.elapsed(), done)
    }

    /// Runs one task in a buffer to which the caller's data is copied: StoreGPU's call. With fresh
    /// buffers it is allocated first, and that time is the first result.
    pub fn call(&self, device: usize, request: &Request, bytes: usize) -> (Duration, Duration, StageTimes) {
        let begun = Instant::now();
        let mut draft = self.runtime.draft(bytes);
        draft.input().set_len(bytes);
        let made = begun.elapsed();
        draft.set_request(request.clone()).pin(device);
        let done = wait(self.admit(draft));
        (made, begun.elapsed(), done.report().stages)
    }

    /// Runs `count` tasks, with `window` of them in flight, on the devices in turn (without the
    /// processor), each with its own buffer of `bytes`.
    pub fn stream(
        &self,
        devices: &[usize],
        window: usize,
        count: usize,
        request: &Request,
        bytes: usize,
    ) -> Duration {
        let begun = Instant::now();
        let mut under_way = VecDeque::with_capacity(window);
        for n in 0..count {
            if under_way.len() == window
                && let Some(first) = under_way.pop_front()
            {
                wait(first);
            }
            let mut draft = self.runtime.draft(bytes);
            draft.input().set_len(bytes);
            draft.set_request(request.clone()).pin(devices[n % devices.len()]);
            under_way.push_back(self.admit(draft));
        }
        under_way.into_iter().for_each(|ticket| drop(wait(ticket)));
        begun.elapsed()
    }
}

/// The devices of this machine. In tiny runs, where only answers count, a simulated one stands in
/// for none, so that tests cover the work on devices, too.
pub fn found(lab: &Lab) -> Vec<Box<dyn Accelerator>> {
    let mut found = outrigger_offload::discover().devices;
    if found.is_empty() && lab.scale == Scale::Tiny {
        found.push(Box::new(SimDevice::new(SimOptions::new("sim:0", Speed::PCIE5_GPU))));
    }
    found
}

fn wait(ticket: Ticket) -> Finished {
    ticket.wait().unwrap_or_else(|failed| panic!("the processor does what devices do not: {failed}"))
}
