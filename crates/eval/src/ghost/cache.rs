//! Figure 9: GHOST's data cache in the host, and its eviction order; simulated, and in a mount.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use outrigger_format::FingerprintKind;
use outrigger_fuse::live::Order;
use outrigger_offload::hash_many;
use outrigger_workload::{Rewrite, rewrite_bytes, rewrites};

use super::staged;
use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

/// Written segments that are not deduplicated yet, by the time of the last write.
struct Cache {
    by_age: BTreeMap<u64, Rewrite>,
    age_of: HashMap<u64, u64>,
    clock: u64,
}

/// The outcome of one run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Ran {
    /// Segments that were fingerprinted.
    named: u64,
    seconds: f64,
}

impl Cache {
    fn write(&mut self, request: Rewrite) {
        self.clock += 1;
        // A write hit: the older content need not be deduplicated any more.
        if let Some(age) = self.age_of.insert(request.block, self.clock) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.clock, request);
    }

    fn take(&mut self, oldest: bool, count: usize) -> Vec<Rewrite> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let next = if oldest { self.by_age.pop_first() } else { self.by_age.pop_last() };
            let Some((_, request)) = next else { break };
            self.age_of.remove(&request.block);
            taken.push(request);
        }
        taken
    }
}

/// Passes all requests through a cache of `room` segments, which offloads half of it at once, the
/// oldest or the newest first.
fn run(requests: &[Rewrite], segment: usize, room: usize, oldest: bool) -> Ran {
    let mut cache = Cache { by_age: BTreeMap::new(), age_of: HashMap::new(), clock: 0 };
    let mut buffer = vec![0; segment * (room / 2).max(1)];
    let (mut ran, begun) = (Ran::default(), Instant::now());
    // The bytes come from the request's number. Making them takes as long as a memory copy, like
    // the paper's storage.
    let mut offload = |taken: Vec<Rewrite>| {
        for (request, bytes) in taken.iter().zip(buffer.chunks_mut(segment)) {
            rewrite_bytes(1, *request, bytes);
        }
        let mut names = Vec::with_capacity(taken.len());
        hash_many(
            FingerprintKind::Sha1,
            &buffer,
            (0..taken.len()).map(|n| n * segment..(n + 1) * segment),
            &mut names,
        );
        std::hint::black_box(&names);
        ran.named += taken.len() as u64;
    };
    for request in requests {
        cache.write(*request);
        if cache.by_age.len() >= room {
            offload(cache.take(oldest, room / 2));
        }
    }
    while !cache.by_age.is_empty() {
        offload(cache.take(oldest, room / 2));
    }
    ran.seconds = begun.elapsed().as_secs_f64();
    ran
}

/// Both orders.
pub fn order(lab: &Lab) -> Result<Outcome, Failed> {
    // The paper has segments of 32 KB and a cache of 256 MB, half of which is offloaded at once.
    // The short form has an eighth of that, so that it fills often.
    let (segment, room, count) =
        lab.scale.pick((512, 64, 4000), (32 << 10, 1024, 40_000), (32 << 10, 8192, 400_000));
    let mut series =
        vec![Series::measured("least recently written first"), Series::measured("reverse order")];
    let mut work = vec![
        Series::measured("least recently written first"),
        Series::measured("reverse order"),
        Series::measured("a mount, least recently written first"),
        Series::measured("a mount, reverse order"),
    ];
    for percent in [0_u64, 20, 40, 60, 80] {
        // A rewritten segment was new within the last quarter of a cache.
        let requests = rewrites(1, count, percent * 10, room as u64 / 4);
        for (at, oldest) in [(0, true), (1, false)] {
            let runs: Vec<Ran> =
                (0..lab.scale.pick(1, 3, 5)).map(|_| run(&requests, segment, room, oldest)).collect();
            check(
                runs.iter().all(|other| other.named == runs[0].named),
                "a cache that is not the same twice",
            )?;
            let written = (count * segment as u64) as f64 / 1e6;
            series[at]
                .push(percent as f64, Spread::of(runs.iter().map(|run| written / run.seconds).collect()));
            work[at].exact(percent as f64, 100.0 * runs[0].named as f64 / count as f64);
        }
        for (at, order) in [(2, Order::LeastRecentlyWritten), (3, Order::MostRecentlyWritten)] {
            work[at].exact(percent as f64, staged::stored(lab, order, percent * 10)?);
        }
        let [first, second] = [&work[0], &work[1]].map(|line| line.last());
        let better = if percent == 0 { first == second } else { first < second };
        check(better, format!("at {percent} % the orders hash {first} and {second} % of what was written"))?;
    }
    let [first, second] = [&work[2], &work[3]].map(|line| line.last());
    let better = first < second || lab.scale == Scale::Tiny;
    check(better, format!("a mount stores {first} and {second} % of what was written"))?;
    let mut outcome = Outcome::default();
    outcome.find("stored by a mount, 80 % rewrites, least recently written first", first, "%", None);
    outcome.find("stored by a mount in reverse order", second, "%", None);
    outcome.find(
        "hashed of what was written, 80 % rewrites, least recently written first",
        work[0].last(),
        "%",
        None,
    );
    outcome.find("the same in reverse order", work[1].last(), "%", None);
    outcome.find(
        "throughput, 80 % rewrites, over the reverse order",
        series[0].last() / series[1].last(),
        "x",
        None,
    );
    outcome.plots.push(Plot {
        title: "Throughput of a write cache that deduplicates, by rewrite ratio".into(),
        form: Form::Lines,
        x: Axis::new("requests that write again", "%"),
        y: Axis::log("written", "MB/s"),
        series,
        limits: vec![Limit {
            name: "memory, read by all cores".into(),
            y: crate::similarity::memory_rate(lab) / 1e6,
        }],
    });
    outcome.plots.push(Plot {
        title: "Work: segments hashed for all that were written".into(),
        form: Form::Lines,
        x: Axis::new("requests that write again", "%"),
        y: Axis::new("hashed", "%"),
        series: work,
        limits: vec![Limit { name: "each request once".into(), y: 100.0 }],
    });
    outcome.note(format!(
        "One core hashes (SHA-1), as its data leaves a cache of {room} segments, half of them at a time."
    ));
    Ok(outcome)
}
