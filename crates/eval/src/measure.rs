//! Repeated measurements: the median, with the least and the most.

use std::time::{Duration, Instant};

use crate::lab::{Lab, Scale};

/// The approximate time for one point of a plot.
const AT_ONE_POINT: Duration = Duration::from_secs(4);

/// Several rounds of one measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The middle value, or the mean of the middle two.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// How many there were.
    pub rounds: u32,
}

impl Spread {
    /// The spread of these values.
    ///
    /// # Panics
    /// When there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        // With an even count, the mean of the middle two.
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median, low, high, rounds: values.len() as u32 }
    }

    /// Applies a monotonic function, ascending or descending: a rate from a time.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.low), f(self.high));
        Self { median: f(self.median), low: a.min(b), high: a.max(b), rounds: self.rounds }
    }
}

impl Lab {
    /// How often a measurement of a fraction of a second is repeated.
    pub fn rounds(&self) -> usize {
        self.scale.pick(1, 5, 7)
    }

    /// As many of `rounds` as a point's time allows, but at least two: slow measurements are
    /// repeated less often.
    fn affordable(rounds: usize, once: Duration) -> usize {
        let room = AT_ONE_POINT.as_secs_f64() / once.as_secs_f64().max(1e-9);
        rounds.min(room.max(2.0) as usize).max(1)
    }

    /// `rounds` values of `measure`, after one that warms up; fewer if they take seconds.
    pub fn spread(&self, rounds: usize, mut measure: impl FnMut() -> f64) -> Spread {
        let begun = Instant::now();
        if self.scale != Scale::Tiny {
            measure();
        }
        let rounds = Self::affordable(rounds, begun.elapsed());
        Spread::of((0..rounds).map(|_| measure()).collect())
    }

    /// Seconds that `work` takes. A round has so many calls that it takes some hundredths of a
    /// second.
    pub fn seconds(&self, mut work: impl FnMut()) -> Spread {
        let at_least = self.scale.pick(Duration::ZERO, Duration::from_millis(10), Duration::from_millis(40));
        let begun = Instant::now();
        work();
        let once = begun.elapsed().max(Duration::from_nanos(20));
        let calls = (at_least.as_secs_f64() / once.as_secs_f64()).ceil().clamp(1.0, 1e7) as usize;
        let rounds = Self::affordable(self.rounds(), once);
        let round = || {
            let begun = Instant::now();
            (0..calls).for_each(|_| work());
            begun.elapsed().as_secs_f64() / calls as f64
        };
        Spread::of(std::iter::repeat_with(round).take(rounds).collect())
    }

    /// Bytes per second, if `work` processes so many.
    pub fn rate(&self, bytes: usize, work: impl FnMut()) -> Spread {
        self.seconds(work).map(|seconds| bytes as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_seconds_is_repeated_less_often() {
        let rounds = |millis| Lab::affordable(7, Duration::from_millis(millis));
        assert_eq!([0, 100, 1000, 1900, 60_000].map(rounds), [7, 7, 4, 2, 2]);
        assert_eq!(Lab::affordable(1, Duration::from_secs(9)), 1);
    }

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!((spread.median, spread.low, spread.high, spread.rounds), (3.0, 1.0, 9.0, 5));
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0, 4.0]).median, 3.0);
        let turned = spread.map(|seconds| 18.0 / seconds);
        assert_eq!((turned.median, turned.low, turned.high), (6.0, 2.0, 18.0));
    }
}
