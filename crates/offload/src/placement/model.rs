//! A device's speed: for each class of work, one measured point for each decade of sizes.
//!
//! Between two points, each stage's time is interpolated on logarithmic scales. Beyond them, the
//! overhead stays, and the rest grows with the size. A new measurement moves its decade's point by
//! a part of the difference to the prediction for that size, and by at most a factor of four at a
//! time. So one interrupted task cannot spoil the point.

/// Decades of sizes in bytes: below 10, below 100, ..., and the last without a bound.
pub const DECADES: usize = 10;

/// The decade of a size.
pub fn decade(bytes: usize) -> usize {
    (bytes.max(1).ilog10() as usize).min(DECADES - 1)
}

/// How long each stage of a task takes alone, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Stages {
    /// Time that does not depend on the size: submission, launch, notification.
    pub overhead: f64,
    /// Copying to the device.
    pub copy_in: f64,
    /// The kernel. For the processor, everything.
    pub work: f64,
    /// Copying from the device.
    pub copy_out: f64,
}

impl Stages {
    /// The time of all stages in a row.
    pub fn latency(&self) -> f64 {
        self.overhead + self.copy_in + self.work + self.copy_out
    }

    /// The time that a task adds if stages of several tasks overlap: that of the longest stage.
    pub fn overlapped(&self) -> f64 {
        self.copy_in.max(self.work).max(self.copy_out)
    }

    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            overhead: f(self.overhead, other.overhead),
            copy_in: f(self.copy_in, other.copy_in),
            work: f(self.work, other.work),
            copy_out: f(self.copy_out, other.copy_out),
        }
    }

    /// The stages for `factor` times as many bytes.
    fn scaled(self, factor: f64) -> Self {
        Self {
            overhead: self.overhead,
            copy_in: self.copy_in * factor,
            work: self.work * factor,
            copy_out: self.copy_out * factor,
        }
    }
}

/// A measured point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// The size of the measured tasks.
    pub bytes: f64,
    /// The time of their stages.
    pub stages: Stages,
    /// The number of measurements.
    pub samples: u32,
    /// The recent error of predictions: the mean of `|ln(actual / predicted)|` over whole tasks,
    /// with their waiting.
    pub error: f64,
}

/// The measurements of one class of work on one device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Curve {
    points: [Option<Point>; DECADES],
    /// Tasks that were sent as measurements, by decade.
    pub(crate) trials: [u32; DECADES],
}

impl Curve {
    /// The points, smallest size first.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().flatten()
    }

    /// Sets the point of its decade.
    pub fn set(&mut self, point: Point) {
        self.points[decade(point.bytes as usize)] = Some(point);
    }

    /// The number of measurements in this decade.
    pub fn samples(&self, bytes: usize) -> u32 {
        self.points[decade(bytes)].map_or(0, |point| point.samples)
    }

    /// Each stage's time for this many bytes. `None` if nothing was ever measured.
    pub fn predict(&self, bytes: usize) -> Option<Stages> {
        let size = bytes.max(1) as f64;
        let below = self.points().filter(|point| point.bytes <= size).last();
        let above = self.points().find(|point| point.bytes > size);
        match (below, above) {
            (None, None) => None,
            (Some(point), None) | (None, Some(point)) => Some(point.stages.scaled(size / point.bytes)),
            (Some(low), Some(high)) => {
                let part = (size / low.bytes).ln() / (high.bytes / low.bytes).ln();
                // Below a nanosecond, logarithms are useless.
                let between = |a: f64, b: f64| {
                    if a < 1.0 || b < 1.0 { a + (b - a) * part } else { a * (b / a).powf(part) }
                };
                Some(low.stages.zip(high.stages, between))
            }
        }
    }

    /// Learns from a measurement. `learn` is the weight of the newest one. The first one of a
    /// decade warms up, as the device loads its code and memory is touched for the first time. So
    /// the second replaces it, and the next few are averaged.
    pub fn observe(&mut self, bytes: usize, measured: Stages, learn: f64) {
        let expected = self.predict(bytes);
        let slot = &mut self.points[decade(bytes)];
        match (slot, expected) {
            (Some(point), Some(expected)) if point.samples > 1 => {
                let weight = learn.max(1.0 / f64::from(point.samples.saturating_add(1)));
                let correct = |old: f64, ratio: f64| {
                    if old < 1.0 { old + (ratio - old) * weight } else { old * ratio.powf(weight) }
                };
                // Without an expectation there is no ratio, so the measurement itself replaces it.
                let ratio = measured.zip(expected, |measured, expected| {
                    if expected < 1.0 { measured } else { (measured.max(1.0) / expected).clamp(0.25, 4.0) }
                });
                point.stages = point.stages.zip(ratio, correct);
                point.samples = point.samples.saturating_add(1);
            }
            (slot, _) => {
                let samples = slot.map_or(1, |point| point.samples + 1);
                *slot = Some(Point { bytes: bytes.max(1) as f64, stages: measured, samples, error: 0.0 });
            }
        }
    }

    /// Learns how far a prediction of a whole task was off.
    pub fn judge(&mut self, bytes: usize, predicted_ns: f64, actual_ns: f64, learn: f64) {
        if let Some(point) = &mut self.points[decade(bytes)] {
            let off = (actual_ns.max(1.0) / predicted_ns.max(1.0)).ln().abs();
            point.error += (off - point.error) * learn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(ns: f64) -> Stages {
        Stages { work: ns, ..Stages::default() }
    }

    #[test]
    fn between_and_beyond_measured_sizes() {
        let mut curve = Curve::default();
        assert_eq!(curve.predict(5000), None);
        let stages = Stages { overhead: 10_000.0, copy_in: 1000.0, work: 500.0, copy_out: 0.0 };
        curve.observe(10_000, stages, 0.2);
        assert_eq!(curve.predict(10_000), Some(stages));
        let tenth = curve.predict(1000).unwrap();
        assert_eq!((tenth.overhead, tenth.copy_in, tenth.work), (10_000.0, 100.0, 50.0));
        curve.observe(1_000_000, Stages { copy_in: 100_000.0, work: 50_000.0, ..stages }, 0.2);
        let middle = curve.predict(100_000).unwrap();
        assert!((middle.copy_in - 10_000.0).abs() < 1.0 && (middle.overhead - 10_000.0).abs() < 1.0);
        assert!((curve.predict(10_000_000).unwrap().work - 500_000.0).abs() < 1.0);
    }

    #[test]
    fn a_device_that_changes_is_followed_and_an_outlier_is_not() {
        let mut curve = Curve::default();
        for _ in 0..100 {
            curve.observe(100_000, work(1000.0), 0.2);
        }
        curve.observe(100_000, work(1e9), 0.2);
        assert!(curve.predict(100_000).unwrap().work < 1400.0);
        for _ in 0..40 {
            curve.observe(100_000, work(3000.0), 0.2);
        }
        assert!((curve.predict(100_000).unwrap().work - 3000.0).abs() < 30.0);
    }

    #[test]
    fn other_sizes_of_a_decade_do_not_bend_its_point() {
        let mut curve = Curve::default();
        curve.observe(10_000, work(1000.0), 0.2);
        for bytes in [20_000, 50_000, 99_999] {
            (0..50).for_each(|_| curve.observe(bytes, work(bytes as f64 / 10.0), 0.2));
        }
        assert!((curve.predict(10_000).unwrap().work - 1000.0).abs() < 1.0);
    }
}
