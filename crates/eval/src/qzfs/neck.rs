//! The rule that names the bottleneck of a write, from the resources in use meanwhile.

use std::fmt;

use crate::threads::Role;

/// From this share on, something counts as fully used. The rest is the beginning, the end, and
/// other users of the machine.
const FULL: f64 = 0.8;
/// If four jobs are this many times as fast as one, then one job waits for its own requests.
const GAIN: f64 = 1.2;

/// A part of a write.
#[derive(Clone, Debug)]
pub struct Phase {
    pub which: Which,
    pub seconds: f64,
    /// Shares of all processors, and of the disk's rate.
    pub processors: f64,
    pub disk: f64,
    /// Processor seconds of fio, of the mount's threads, of the kernel's own, and of all
    /// processors.
    pub fio: f64,
    pub roles: Vec<Role>,
    pub kernel: f64,
    pub all: f64,
}

/// The parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Until fio has ended: the mount has acknowledged all data.
    Fio,
    /// Until the mount has stored all data.
    Draining,
    /// Until the mount has ended.
    Unmount,
}

impl Which {
    /// The name in plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::Draining => "draining",
            Self::Unmount => "unmount",
        }
    }
}

/// Consumers of processor time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consumer {
    Compression,
    Packing,
    Requests,
    Flusher,
    Rest,
    Fio,
    Kernel,
    Others,
}

impl Consumer {
    pub const ALL: [Consumer; 8] = [
        Self::Fio,
        Self::Requests,
        Self::Packing,
        Self::Compression,
        Self::Flusher,
        Self::Rest,
        Self::Kernel,
        Self::Others,
    ];

    /// The name in plots and sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compression => "compression",
            Self::Packing => "cutting, hashing and packing",
            Self::Requests => "the mount's threads that serve the kernel's FUSE queue",
            Self::Flusher => "the flusher",
            Self::Rest => "the mount's other threads",
            Self::Fio => "fio itself",
            Self::Kernel => "the kernel's own threads",
            Self::Others => "others on this machine",
        }
    }

    /// The consumer for a thread of the mount. Workers also compress for a part of their time.
    fn of(role: &str) -> Self {
        match role {
            "write" => Self::Packing,
            "flusher" => Self::Flusher,
            _ if role.starts_with("mount-") => Self::Requests,
            _ => Self::Rest,
        }
    }
}

impl Phase {
    /// Processor seconds of each, in the order of [`Consumer::ALL`]. `compressing` is the codec's
    /// share of the workers' time.
    pub fn consumers(&self, compressing: f64) -> [(Consumer, f64); 8] {
        let of = |which| {
            let roles = self.roles.iter().filter(|role| Consumer::of(&role.name) == which);
            roles.map(|role| role.seconds).sum::<f64>()
        };
        let mount: f64 = self.roles.iter().map(|role| role.seconds).sum();
        Consumer::ALL.map(|consumer| {
            let seconds = match consumer {
                Consumer::Compression => of(Consumer::Packing) * compressing,
                Consumer::Packing => of(Consumer::Packing) * (1.0 - compressing),
                Consumer::Fio => self.fio,
                Consumer::Kernel => self.kernel,
                // The counters do not tick at the same moments.
                Consumer::Others => (self.all - mount - self.fio - self.kernel).max(0.0),
                Consumer::Requests | Consumer::Flusher | Consumer::Rest => of(consumer),
            };
            (consumer, seconds)
        })
    }

    /// Processor seconds of the mount's workers.
    pub fn workers(&self) -> f64 {
        self.roles.iter().filter(|role| role.name == "write").map(|role| role.seconds).sum()
    }

    /// The thread that was busy for the largest share of the time.
    pub fn busiest(&self) -> Option<(&str, f64)> {
        let most = self.roles.iter().max_by(|a, b| a.most.total_cmp(&b.most))?;
        Some((&most.name, most.most / self.seconds.max(1e-9)))
    }
}

/// The bottleneck of a write.
#[derive(Clone, PartialEq, Debug)]
pub enum Neck {
    Disk,
    Processors(Consumer),
    Thread(String),
    /// One job, which has only one request in flight.
    OneJob,
    /// Nothing is fully used.
    Waiting(Which),
}

/// The rule. The first condition that holds for the longest part of a write decides:
///
/// 1. The disk is fully used: the disk.
/// 2. The processors are: their largest consumer. If that is other programs, nothing is known.
/// 3. One thread of the mount is always busy: that thread.
/// 4. It is fio's part, and four jobs are faster than one: one job, which waits for each request to
///    pass through the kernel's FUSE queue.
/// 5. Else nothing is fully used. The write waits for the kernel's FUSE queue, or for syncs.
fn neck(longest: &Phase, compressing: f64, gain_of_jobs: f64) -> Neck {
    let by_time = |a: &(Consumer, f64), b: &(Consumer, f64)| a.1.total_cmp(&b.1);
    let most = longest.consumers(compressing).into_iter().max_by(by_time);
    match (most, longest.busiest()) {
        _ if longest.disk >= FULL => Neck::Disk,
        (Some((consumer, _)), _) if longest.processors >= FULL => Neck::Processors(consumer),
        (_, Some((thread, share))) if share >= FULL => Neck::Thread(thread.to_string()),
        _ if longest.which == Which::Fio && gain_of_jobs >= GAIN => Neck::OneJob,
        _ => Neck::Waiting(longest.which),
    }
}

impl fmt::Display for Neck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk => write!(f, "the disk"),
            Self::Processors(Consumer::Others) => {
                write!(f, "not to be told, as others keep the processors busy")
            }
            Self::Processors(consumer) => write!(f, "the processors, most of all by {}", consumer.name()),
            Self::Thread(name) => write!(f, "one thread of the mount, `{name}`, which is busy all the time"),
            Self::OneJob => write!(
                f,
                "the kernel's FUSE queue as one job sees it, which waits for each of its requests to come back"
            ),
            Self::Waiting(Which::Fio) => {
                write!(f, "the kernel's FUSE queue, in which requests wait for each other")
            }
            Self::Waiting(Which::Draining | Which::Unmount) => {
                write!(f, "waiting for the disk to have what was synced")
            }
        }
    }
}

/// A write, and what names its bottleneck.
pub struct Case<'a> {
    pub phases: &'a [Phase],
    /// The codec's share of the workers' time.
    pub compressing: f64,
    /// One job's time until fio ends, divided by that of four jobs.
    pub gain_of_jobs: f64,
}

impl Case<'_> {
    fn longest(&self) -> Option<&Phase> {
        self.phases.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// By the rule.
    pub fn neck(&self) -> Option<Neck> {
        self.longest().map(|longest| neck(longest, self.compressing, self.gain_of_jobs))
    }

    /// One sentence.
    pub fn sentence(&self) -> String {
        let (Some(longest), Some(neck)) = (self.longest(), self.neck()) else {
            return "Nothing was written.".into();
        };
        let all: f64 = self.phases.iter().map(|phase| phase.seconds).sum();
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        format!(
            "The bottleneck is {neck}: {} takes {} of {all:.2} s, with {} of the processors and {} of the disk in use.",
            longest.which.name(),
            percent(longest.seconds / all.max(1e-9)),
            percent(longest.processors),
            percent(longest.disk),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(which: Which, processors: f64, disk: f64, threads: &[(&str, f64)]) -> Phase {
        let role =
            |(name, seconds): &(&str, f64)| Role { name: (*name).into(), seconds: *seconds, most: *seconds };
        let roles = threads.iter().map(role).collect();
        Phase { which, seconds: 10.0, processors, disk, fio: 1.0, roles, kernel: 1.0, all: processors * 20.0 }
    }

    #[test]
    fn what_is_in_full_use_is_the_bottleneck() {
        let busy = [("write", 12.0), ("mount-cpu", 3.0), ("flusher", 1.0)];
        // The disk comes before the consumers that fill it.
        assert_eq!(neck(&phase(Which::Draining, 0.95, 0.9, &busy), 0.9, 1.0), Neck::Disk);
        let full = phase(Which::Draining, 0.95, 0.1, &busy);
        assert_eq!(neck(&full, 0.9, 1.0), Neck::Processors(Consumer::Compression));
        // The same without a codec: none of the workers' time is compression.
        assert_eq!(neck(&full, 0.0, 1.0), Neck::Processors(Consumer::Packing));
        let requests =
            phase(Which::Fio, 0.9, 0.1, &[("write", 3.0), ("mount-cpu", 6.0), ("mount-slow", 5.0)]);
        assert_eq!(neck(&requests, 0.5, 2.0), Neck::Processors(Consumer::Requests));
        // Time of no known consumer belongs to others. If others keep the machine busy, there is no
        // conclusion.
        let busy = neck(&phase(Which::Fio, 0.9, 0.1, &[]), 0.0, 1.0);
        assert_eq!(busy, Neck::Processors(Consumer::Others));
        assert!(busy.to_string().starts_with("not to be told"));
        let kernel = Phase { kernel: 15.0, ..phase(Which::Fio, 0.9, 0.1, &[]) };
        assert_eq!(neck(&kernel, 0.0, 1.0), Neck::Processors(Consumer::Kernel));
        let one = phase(Which::Draining, 0.5, 0.1, &[("flusher", 9.0)]);
        assert_eq!(neck(&one, 0.0, 1.0), Neck::Thread("flusher".into()));
        let none = [("write", 2.0)];
        assert_eq!(neck(&phase(Which::Fio, 0.4, 0.3, &none), 0.0, 1.5), Neck::OneJob);
        assert_eq!(neck(&phase(Which::Fio, 0.4, 0.3, &none), 0.0, 1.0), Neck::Waiting(Which::Fio));
        assert_eq!(neck(&phase(Which::Draining, 0.4, 0.3, &none), 0.0, 1.5), Neck::Waiting(Which::Draining));
    }

    #[test]
    fn the_sentence_is_of_the_longest_part() {
        let mut short = phase(Which::Fio, 0.1, 0.99, &[]);
        short.seconds = 2.5;
        let long = phase(Which::Draining, 0.9, 0.2, &[("write", 16.0)]);
        let case = Case { phases: &[short, long], compressing: 0.75, gain_of_jobs: 1.0 };
        let expected = "The bottleneck is the processors, most of all by compression: draining takes 80 % of 12.50 s, with 90 % of the processors and 20 % of the disk in use.";
        assert_eq!(case.sentence(), expected);
    }

    #[test]
    fn all_of_a_part_is_accounted_for() {
        let one = phase(
            Which::Draining,
            0.9,
            0.2,
            &[("write", 8.0), ("flusher", 2.0), ("reads", 1.0), ("mount-dev", 3.0)],
        );
        let consumers = one.consumers(0.25);
        let sum: f64 = consumers.iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - one.all).abs() < 1e-9, "{consumers:?}");
        let of = |which| consumers.iter().find(|(consumer, _)| *consumer == which).unwrap().1;
        assert_eq!((of(Consumer::Compression), of(Consumer::Packing), of(Consumer::Kernel)), (2.0, 6.0, 1.0));
    }
}
