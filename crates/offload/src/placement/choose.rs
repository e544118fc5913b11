//! The decision as a pure function: no clock, no lock, no random number.

use super::{Objective, Policy, Stages};

/// A device that could take a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Its stage times if it were alone.
    pub predicted: Stages,
    /// The time of the tasks that wait or run there, in nanoseconds.
    pub backlog_ns: f64,
    /// The number of tasks that wait or run there.
    pub tasks: usize,
    /// How many tasks it executes at a time without one slowing another. For the processor, its
    /// threads.
    pub width: usize,
}

impl Candidate {
    /// The time until the task is finished, in nanoseconds: the queue, then overhead + in + work +
    /// out. On a busy device, stages overlap with those of other tasks, so only the longest counts
    /// in addition to the overhead. For [`Objective::Latency`] all count.
    pub fn finish_ns(&self, objective: Objective) -> f64 {
        let wait = if self.tasks < self.width { 0.0 } else { self.backlog_ns / self.width as f64 };
        let overlaps = self.tasks > 0 && self.predicted.overlapped() > 0.0 && objective != Objective::Latency;
        let own = if overlaps && self.width == 1 {
            self.predicted.overhead + self.predicted.overlapped()
        } else {
            self.predicted.latency()
        };
        wait + own
    }
}

/// The indices in `candidates` of the device that gets the task and of the next best. The first
/// candidate is the processor. A candidate is `None` if it cannot or must not take the task, or was
/// never measured. Without a candidate, the result is `None`.
pub fn choose(policy: &Policy, candidates: &[Option<Candidate>]) -> (Option<usize>, Option<usize>) {
    let finish = |lane: usize| {
        let candidate = candidates[lane]?;
        let finish = candidate.finish_ns(policy.objective);
        // This objective spares the processor, so a device's prediction is divided by the slack.
        let worth = if policy.objective == Objective::Cpu && lane > 0 { policy.cpu_slack } else { 1.0 };
        Some(finish / worth)
    };
    let (mut best, mut second) = (None::<(usize, f64)>, None::<(usize, f64)>);
    for lane in 0..candidates.len() {
        let Some(finish) = finish(lane) else { continue };
        // On a tie the earlier candidate wins, first of all the processor.
        if best.is_none_or(|(_, earliest)| finish < earliest) {
            second = best;
            best = Some((lane, finish));
        } else if second.is_none_or(|(_, earliest)| finish < earliest) {
            second = Some((lane, finish));
        }
    }
    (best.map(|(lane, _)| lane), second.map(|(lane, _)| lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(stages: [f64; 4]) -> Candidate {
        let [overhead, copy_in, work, copy_out] = stages;
        Candidate {
            predicted: Stages { overhead, copy_in, work, copy_out },
            backlog_ns: 0.0,
            tasks: 0,
            width: 1,
        }
    }

    fn policy(objective: Objective) -> Policy {
        Policy { objective, ..Policy::default() }
    }

    #[test]
    fn the_earliest_finish_wins_and_ties_stay_on_the_processor() {
        let cpu = candidate([0.0, 0.0, 100.0, 0.0]);
        let equal = candidate([10.0, 40.0, 30.0, 20.0]);
        let policy = policy(Objective::Throughput);
        assert_eq!(choose(&policy, &[Some(cpu), Some(equal)]), (Some(0), Some(1)));
        let better = candidate([10.0, 39.0, 30.0, 20.0]);
        assert_eq!(choose(&policy, &[Some(cpu), Some(equal), Some(better)]), (Some(2), Some(0)));
        assert_eq!(choose(&policy, &[None, None]), (None, None));
        assert_eq!(choose(&policy, &[None, Some(equal)]), (Some(1), None));
    }

    #[test]
    fn a_queue_sends_the_next_task_elsewhere() {
        let policy = policy(Objective::Throughput);
        let cpu = candidate([0.0, 0.0, 100.0, 0.0]);
        let mut device = candidate([5.0, 20.0, 30.0, 5.0]);
        assert_eq!(choose(&policy, &[Some(cpu), Some(device)]).0, Some(1));
        // Busy: 64 + 5 + 30 of overlapped work is still before 100; 65 + 5 + 30 is not.
        (device.tasks, device.backlog_ns) = (2, 64.0);
        assert_eq!(choose(&policy, &[Some(cpu), Some(device)]).0, Some(1));
        device.backlog_ns = 65.0;
        assert_eq!(choose(&policy, &[Some(cpu), Some(device)]).0, Some(0));
        // With a thread to spare, the processor's queue is no queue.
        let busy = Candidate { tasks: 1, backlog_ns: 100.0, width: 2, ..cpu };
        assert_eq!(busy.finish_ns(Objective::Throughput), 100.0);
        let full = Candidate { tasks: 2, backlog_ns: 200.0, ..busy };
        assert_eq!(full.finish_ns(Objective::Throughput), 200.0);
    }

    #[test]
    fn objectives_differ_where_they_should() {
        let cpu = candidate([0.0, 0.0, 100.0, 0.0]);
        let slower = candidate([20.0, 60.0, 60.0, 10.0]);
        assert_eq!(choose(&policy(Objective::Throughput), &[Some(cpu), Some(slower)]).0, Some(0));
        assert_eq!(choose(&policy(Objective::Cpu), &[Some(cpu), Some(slower)]).0, Some(1));
        let far_slower = candidate([20.0, 100.0, 100.0, 10.0]);
        assert_eq!(choose(&policy(Objective::Cpu), &[Some(cpu), Some(far_slower)]).0, Some(0));
        // Busy with one task: overlap helps throughput, not this task's own time.
        let busy = Candidate { tasks: 1, backlog_ns: 30.0, ..candidate([10.0, 30.0, 30.0, 10.0]) };
        assert_eq!(busy.finish_ns(Objective::Throughput), 70.0);
        assert_eq!(busy.finish_ns(Objective::Latency), 110.0);
    }
}
