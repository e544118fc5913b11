//! Requests through io_uring: a queue for each processor, answered on the processor that asked.
//!
//! Through the device, a caller wakes a thread on some other processor and sleeps until that one
//! wakes it; waking an idle processor takes longer than most requests. Here the kernel gives a
//! request to the queue of the caller's processor. That queue's thread (`worker`) is pinned
//! there: caller and thread take each other's place. One system call sends an answer and fetches
//! the next request.
//!
//! ```text
//!   program ─► kernel ─► queue of its CPU ─► worker (ring) ─┬─► wire::answer ─► FileSystem ─┬─► ring ─► kernel
//!                                                           └─► pool: what may wait ────────┘
//! ```
//!
//! The kernel offers this since 6.14, where it was switched on
//! (`/sys/module/fuse/parameters/enable_uring`). Having accepted the offer, a server must come with
//! queues for all processors, or every request waits for them. So the rings are made first
//! ([`Rings::prepare`], within the handshake), and the offer is accepted only if that went well.
//! `FORGET` and `INTERRUPT` still come through the device, as does everything if the kernel then
//! refuses a queue.

mod pool;
mod shim;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use self::pool::{Answered, Job};
use self::shim::Queue;
use super::REQUEST_BYTES;
use super::threads::{processors, stay_on};
use crate::fs::FileSystem;

/// The kernel's parameter.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Tells users how to switch it on.
pub const SWITCH_ON: &str = "the kernel's io_uring for FUSE is off; `echo Y > /sys/module/fuse/parameters/enable_uring` as root, then mount again";

/// True if the kernel could pass requests through io_uring, and does not offer it.
pub fn is_switched_off() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "N")
}

/// Requests of a processor that can be under way; each has room for a request of [`REQUEST_BYTES`],
/// which costs memory once it was used.
const DEPTH: usize = 8;
/// The same on machines with many processors.
const DEPTH_OF_MANY: usize = 4;
const MANY: usize = 16;
/// Threads for requests that may wait.
const POOL: std::ops::RangeInclusive<usize> = 4..=16;

/// Threads with a ring each, which wait for the device.
pub struct Rings {
    start: Vec<Sender<Arc<OwnedFd>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Rings {
    /// Makes rings for all processors.
    ///
    /// # Errors
    /// When this process may not have rings, or that many threads.
    pub fn prepare<F: FileSystem>(fs: &Arc<F>) -> io::Result<Self> {
        let plans = plan()?;
        let threads = (2 * plans.len()).clamp(*POOL.start(), *POOL.end());
        let (slow, mut threads) = pool::start(fs, threads)?;
        let (made, wait) = mpsc::channel();
        let mut start = Vec::new();
        for plan in plans {
            let (fs, slow, made) = (Arc::clone(fs), slow.clone(), made.clone());
            let (sender, device) = mpsc::channel();
            let name = format!("mount-cpu-{}", plan.cpu);
            let run = move || be_worker(&*fs, &plan, &slow, &made, &device);
            threads.push(std::thread::Builder::new().name(name).spawn(run)?);
            start.push(sender);
        }
        let rings: io::Result<()> = wait.iter().take(start.len()).collect();
        rings.map(|()| Self { start, threads })
    }

    /// Has them serve `device`, whose kernel side has accepted the offer.
    pub fn start(self, device: OwnedFd) -> Serving {
        let device = Arc::new(device);
        // One that is gone would be seen by the kernel, which then uses the device.
        self.start.iter().for_each(|start| drop(start.send(Arc::clone(&device))));
        Serving { threads: self.threads }
    }
}

/// Threads that serve.
pub struct Serving {
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Waits until they have ended, which they do when the mount is gone.
    pub fn join(self) {
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// The queues that one worker serves.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    cpu: usize,
    /// The kernel's queues: that of this processor, and of some that we may not run on or that are
    /// not there at present.
    queues: Vec<u16>,
    depth: usize,
}

/// A worker for each processor that we may run on; the queues of the others are divided among them.
fn plan() -> io::Result<Vec<Plan>> {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let possible =
        count(&possible).ok_or_else(|| io::Error::other("how many processors there may be is not known"))?;
    Ok(divide(&processors(), possible))
}

fn divide(cpus: &[usize], possible: usize) -> Vec<Plan> {
    let depth = if cpus.len() > MANY { DEPTH_OF_MANY } else { DEPTH };
    let mut plans: Vec<Plan> = cpus.iter().map(|&cpu| Plan { cpu, queues: Vec::new(), depth }).collect();
    for queue in 0..possible {
        let at = cpus.iter().position(|cpu| *cpu == queue).unwrap_or(queue % plans.len().max(1));
        if let Some(plan) = plans.get_mut(at) {
            plan.queues.push(queue as u16);
        }
    }
    plans
}

/// How many numbers a list such as `0-3,8` has.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

fn be_worker<F: FileSystem>(
    fs: &F,
    plan: &Plan,
    slow: &Sender<Job>,
    made: &Sender<io::Result<()>>,
    device: &Receiver<Arc<OwnedFd>>,
) {
    stay_on(plan.cpu);
    let ring = Answered::new().and_then(|answered| {
        let queue = Queue::new(plan.queues.len() * plan.depth, Arc::clone(&answered.wake))?;
        Ok((answered, queue))
    });
    let (answered, mut queue) = match ring {
        Ok(ring) => ring,
        Err(error) => return drop(made.send(Err(error))),
    };
    let _ = made.send(Ok(()));
    let Ok(device) = device.recv() else { return };
    let registered = plan
        .queues
        .iter()
        .try_for_each(|number| queue.register(&device, *number, plan.depth, REQUEST_BYTES as usize));
    if let Err(error) = registered.and_then(|()| worker::serve(fs, &mut queue, slow, &answered)) {
        eprintln!("outrigger: the queue of processor {} has failed: {error}", plan.cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, processors) in
            [("0\n", Some(1)), ("0-1", Some(2)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)]
        {
            assert_eq!(count(list), processors, "{list:?}");
        }
    }

    #[test]
    fn every_queue_has_one_worker() {
        for (cpus, possible) in [(vec![0, 1], 2), (vec![5], 8), ((0..64).collect(), 128)] {
            let plans = divide(&cpus, possible);
            let mut queues: Vec<u16> = plans.iter().flat_map(|plan| plan.queues.clone()).collect();
            queues.sort_unstable();
            assert_eq!(queues, (0..possible as u16).collect::<Vec<_>>());
            assert!(plans.iter().all(|plan| plan.queues.contains(&(plan.cpu as u16))));
        }
    }
}
