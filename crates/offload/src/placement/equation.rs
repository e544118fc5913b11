//! The papers' model of a task on a GPU (StoreGPU, equation 1), with the stages named as in their
//! table 1:
//!
//! ```text
//! T_Total = T_GPUInit + T_MemAlloc + T_PreProc + T_DataHtoG + T_Processing + T_DataGtoH + T_PostProc
//! ```
//!
//! In the papers, T_Processing is a sum over passes: from global to shared memory, processing, and
//! results back. From outside a device, that is one latency and one rate, and so is each copy. So
//! every stage is `a + b × bytes`, fitted to measurements of the smallest and the largest size. The
//! sizes in between are predicted, and can be compared with their measurements.

use super::{Curve, Point, Stages};

/// A stage's time: a fixed part, and a part for each byte, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Line {
    /// For any task.
    pub fixed: f64,
    /// For each byte of data.
    pub per_byte: f64,
}

impl Line {
    /// The line through two points `(bytes, nanoseconds)`, where neither part is below zero.
    pub fn through(low: (f64, f64), high: (f64, f64)) -> Self {
        let per_byte = if high.0 > low.0 { ((high.1 - low.1) / (high.0 - low.0)).max(0.0) } else { 0.0 };
        Self { fixed: (low.1 - per_byte * low.0).max(0.0), per_byte }
    }

    /// The nanoseconds for so many bytes.
    pub fn at(&self, bytes: f64) -> f64 {
        self.fixed + self.per_byte * bytes
    }
}

/// One operation on one device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EquationOne {
    /// T_MemAlloc: page-locking a buffer. Zero if buffers are reused.
    pub mem_alloc: Line,
    /// T_PreProc and T_PostProc together: handing the task over, launch, notification. (T_GPUInit
    /// happens once, before.)
    pub pre_post: Line,
    /// T_DataHtoG.
    pub data_htog: Line,
    /// T_Processing.
    pub processing: Line,
    /// T_DataGtoH.
    pub data_gtoh: Line,
}

impl EquationOne {
    /// Fits a calibration's first and last point. `None` with fewer than two points.
    pub fn fit(curve: &Curve, mem_alloc: Line) -> Option<Self> {
        let (first, last) = (curve.points().next()?, curve.points().last()?);
        if last.bytes <= first.bytes {
            return None;
        }
        let line = |stage: fn(&Stages) -> f64| {
            Line::through((first.bytes, stage(&first.stages)), (last.bytes, stage(&last.stages)))
        };
        Some(Self {
            mem_alloc,
            // A cost for each task shows best on the smallest one.
            pre_post: Line { fixed: first.stages.overhead, per_byte: 0.0 },
            data_htog: line(|stages| stages.copy_in),
            processing: line(|stages| stages.work),
            data_gtoh: line(|stages| stages.copy_out),
        })
    }

    /// T_Total of a single task in nanoseconds, with new or reused buffers.
    pub fn total(&self, bytes: f64, reuse: bool) -> f64 {
        let alloc = if reuse { 0.0 } else { self.mem_alloc.at(bytes) };
        let stages = [self.pre_post, self.data_htog, self.processing, self.data_gtoh];
        alloc + stages.iter().map(|stage| stage.at(bytes)).sum::<f64>()
    }

    /// The nanoseconds that a task adds to a stream of tasks whose stages overlap: those of the
    /// longest stage.
    pub fn overlapped(&self, bytes: f64) -> f64 {
        self.data_htog.at(bytes).max(self.processing.at(bytes)).max(self.data_gtoh.at(bytes))
    }

    /// How far T_Total is from the measurement, for each point between the first and the last, to
    /// which it was fitted: bytes, predicted and measured nanoseconds.
    pub fn errors(&self, curve: &Curve) -> Vec<(f64, f64, f64)> {
        let points: Vec<&Point> = curve.points().collect();
        let between = points.get(1..points.len().saturating_sub(1)).unwrap_or_default();
        between
            .iter()
            .map(|point| (point.bytes, self.total(point.bytes, true), point.stages.latency()))
            .collect()
    }
}

/// The smallest size from which on `device` is always faster than `cpu`, among the powers of two
/// from 512 bytes to 1 GiB. `None` if there is none.
pub fn break_even(device: impl Fn(f64) -> f64, cpu: impl Fn(f64) -> f64) -> Option<u64> {
    let sizes = || (9..=30).map(|power| 1_u64 << power);
    let wins = |bytes: u64| device(bytes as f64) < cpu(bytes as f64);
    let last_loss = sizes().rev().find(|&bytes| !wins(bytes));
    match last_loss {
        None => sizes().next(),
        Some(loss) => sizes().find(|&bytes| bytes > loss),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Speed;
    use crate::work::Class;

    fn curve(speed: &Speed) -> Curve {
        let mut curve = Curve::default();
        for bytes in [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20] {
            let times = speed.times(Class::Scan, bytes, bytes / 8);
            let nanos = |time: std::time::Duration| time.as_nanos() as f64;
            let (copy_in, work, copy_out) =
                (nanos(times.copy_in), nanos(times.kernel), nanos(times.copy_out));
            let stages = Stages { overhead: 30_000.0, copy_in, work, copy_out };
            curve.set(Point { bytes: bytes as f64, stages, samples: 3, error: 0.0 });
        }
        curve
    }

    #[test]
    fn a_device_that_follows_the_equation_is_predicted() {
        let curve = curve(&Speed::GEFORCE_8800);
        let equation = EquationOne::fit(&curve, Line { fixed: 1e5, per_byte: 1.0 }).unwrap();
        let errors = equation.errors(&curve);
        assert_eq!(errors.len(), 3);
        for (bytes, predicted, measured) in errors {
            assert!((predicted / measured - 1.0).abs() < 1e-4, "{bytes}: {predicted} {measured}");
        }
        // The fixed parts contain the latencies of the paper's model, the others its bandwidths.
        assert!((equation.data_htog.fixed - 20_000.0).abs() < 10.0);
        assert!((equation.data_htog.per_byte - 0.4).abs() < 1e-3);
        assert_eq!(equation.total(1e6, false) - equation.total(1e6, true), 1e5 + 1e6);
        assert!(equation.overlapped(1e6) < equation.total(1e6, true));
        assert_eq!(EquationOne::fit(&Curve::default(), Line::default()), None);
    }

    #[test]
    fn the_paper_s_block_takes_the_paper_s_time() {
        // 96 MB on a GeForce 8800 GTX: 37.06 ms in, 14.7 ms of hashing.
        let times = Speed::GEFORCE_8800.times(Class::Scan, 96_000_000, 3_000_000);
        let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        assert!((millis(times.copy_in) / 37.06 - 1.0).abs() < 0.05, "{times:?}");
        assert!((millis(times.kernel) / 14.7 - 1.0).abs() < 0.02, "{times:?}");
    }

    #[test]
    fn break_even_is_where_it_stays_better() {
        assert_eq!(break_even(|_| 1000.0, |bytes| bytes), Some(1024));
        assert_eq!(break_even(|_| 1000.0, |_| 10.0), None);
        assert_eq!(break_even(|_| 1.0, |_| 10.0), Some(512));
        // It is better only for the smallest size, which does not count.
        assert_eq!(break_even(|bytes| bytes, |_| 1000.0), None);
    }
}
