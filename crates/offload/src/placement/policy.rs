//! The policy's thresholds, each with a name, a default and a reason.

use std::fmt;
use std::time::Duration;

use outrigger_format::{parse_size, print_size};

use crate::work::Class;

/// The aim of placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Objective {
    /// The most bytes in a second: each task goes to the device that is predicted to finish it
    /// first.
    #[default]
    Throughput,
    /// The shortest time for each task. Unlike with throughput, a task's stages count in full even
    /// on a busy device, which would overlap them with others'.
    Latency,
    /// The least work for the processor: a device does the task, unless it needs more than
    /// `cpu_slack` times the processor's time.
    Cpu,
}

impl Objective {
    /// Parses a name: `throughput`, `latency` or `cpu`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Throughput, Self::Latency, Self::Cpu].into_iter().find(|objective| objective.name() == text)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Cpu => "cpu",
        }
    }
}

/// The settings of placement and of trust in devices. `docs/offload.md` has the table with the
/// reasons. [`Policy::set`] sets them by name.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// The aim.
    pub objective: Objective,
    /// Devices are opened once each thread of the processor has had so many bytes of work, as
    /// opening does not pay for less. 0: before the first byte.
    pub open_after: u64,
    /// Frames of fewer bytes are compressed and decompressed by the processor, as the way to the
    /// device and back takes longer.
    pub codec_min_bytes: u64,
    /// Frames of more bytes are, too, as devices have buffers of this size.
    pub codec_max_bytes: u64,
    /// A device with so many frames to compress, waiting or in flight, gets no more for now. 0: one
    /// and a half times the frames that it keeps in flight.
    pub codec_queue_max: u32,
    /// A device may take at most so many times as long as the processor to compress a frame, as
    /// nobody waits for it.
    pub codec_slack: f64,
    /// A frame whose sample has more bits a byte stays on the processor, as compression gains
    /// little.
    pub codec_max_bits: f64,
    /// All other tasks of fewer bytes stay on the processor.
    pub offload_min_bytes: u64,
    /// All other tasks of more bytes do, too.
    pub offload_max_bytes: u64,
    /// The submitting thread executes a task itself, before `submit` returns, if one thread of the
    /// processor is predicted to need no longer than this, and no device is faster. Handing such a
    /// task over would take longer. Excluded are tasks with a deadline, tasks with a callback that
    /// must not be called there, and users' operations that are not
    /// [brief](crate::work::UserOperation::brief). Zero: never.
    pub inline_max: Duration,
    /// For [`Objective::Cpu`]: how many times the processor's time a device may take.
    pub cpu_slack: f64,
    /// A device that was never measured with an (operation, size decade) gets so many such tasks.
    pub first_tasks: u32,
    /// One task in so many goes to the second-best prediction, so that a faster device is noticed.
    /// 0: never.
    pub explore_every: u32,
    /// But only if that prediction is at most so many times the best one. With `explore_every`,
    /// this bounds the cost of exploring: `(explore_worst − 1) / explore_every`, 0.4 % by default.
    pub explore_worst: f64,
    /// The weight of the newest measurement in a prediction.
    pub learn: f64,
    /// The processor also computes one result in so many and compares. 0: never.
    pub check_every: u32,
    /// It also checks so many results after a device was admitted.
    pub check_first: u32,
    /// A task counts as hung after so many times its predicted time.
    pub hang_factor: f64,
    /// But never before this time.
    pub hang_floor: Duration,
    /// A device is cut off after so many failures in a row. A grave one (lost, hung, wrong)
    /// suffices alone.
    pub failures_max: u32,
    /// A device that was cut off is re-initialised after this time. Each time that fails, the pause
    /// doubles.
    pub retry_first: Duration,
    /// The longest such pause.
    pub retry_last: Duration,
    /// So many tasks must succeed, one at a time and all checked, before the device gets more.
    pub trial_tasks: u32,
    /// So many tasks may wait. Further submitters wait for room.
    pub outstanding_max: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            objective: Objective::Throughput,
            open_after: 256 << 20,
            codec_min_bytes: 4 << 10,
            codec_max_bytes: 1 << 20,
            codec_queue_max: 0,
            codec_slack: 4.0,
            codec_max_bits: 8.0,
            offload_min_bytes: 4 << 10,
            offload_max_bytes: 1 << 30,
            inline_max: Duration::from_micros(20),
            cpu_slack: 2.0,
            first_tasks: 2,
            explore_every: 256,
            explore_worst: 2.0,
            learn: 0.2,
            check_every: 64,
            check_first: 8,
            hang_factor: 20.0,
            hang_floor: Duration::from_secs(2),
            failures_max: 3,
            retry_first: Duration::from_millis(100),
            retry_last: Duration::from_secs(30),
            trial_tasks: 4,
            outstanding_max: 256,
        }
    }
}

/// A name or value that [`Policy::set`] rejects.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// There is no such threshold.
    #[error("`{0}` is no threshold; they are {names}", names = Policy::NAMES.join(", "))]
    Name(String),
    /// The value is not of the right kind, or out of bounds.
    #[error("{name}: `{value}` is not {wanted}")]
    Value {
        /// The threshold.
        name: &'static str,
        /// The given value.
        value: String,
        /// The accepted values.
        wanted: &'static str,
    },
}

impl Policy {
    /// Every threshold's name, in the order of the fields.
    pub const NAMES: [&'static str; 24] = [
        "objective",
        "open_after",
        "codec_min_bytes",
        "codec_max_bytes",
        "codec_queue_max",
        "codec_slack",
        "codec_max_bits",
        "offload_min_bytes",
        "offload_max_bytes",
        "inline_max",
        "cpu_slack",
        "first_tasks",
        "explore_every",
        "explore_worst",
        "learn",
        "check_every",
        "check_first",
        "hang_factor",
        "hang_floor",
        "failures_max",
        "retry_first",
        "retry_last",
        "trial_tasks",
        "outstanding_max",
    ];

    /// Sets a threshold by name. Sizes are written as `64K`, times as seconds.
    ///
    /// # Errors
    /// [`PolicyError`] says what is accepted.
    ///
    /// ```
    /// use outrigger_offload::placement::Policy;
    /// let mut policy = Policy::default();
    /// policy.set("codec_max_bytes", "4M")?;
    /// policy.set("hang_floor", "0.5")?;
    /// assert_eq!(policy.get("codec_max_bytes").as_deref(), Some("4M"));
    /// assert!(policy.set("learn", "2").is_err());
    /// # Ok::<_, outrigger_offload::placement::PolicyError>(())
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), PolicyError> {
        let Some(&name) = Self::NAMES.iter().find(|known| **known == name) else {
            return Err(PolicyError::Name(name.to_string()));
        };
        let bad = |wanted| PolicyError::Value { name, value: value.to_string(), wanted };
        let size = || parse_size(value).map_err(|_| bad("a size such as 64K"));
        let whole = || value.parse::<u32>().map_err(|_| bad("a whole number"));
        let positive = || whole().and_then(|n| if n > 0 { Ok(n) } else { Err(bad("a whole number from 1")) });
        let number = |from: f64, to: f64, wanted| {
            value.parse().ok().filter(|number| (from..=to).contains(number)).ok_or_else(|| bad(wanted))
        };
        let seconds = || {
            number(0.001, 86_400.0, "a number of seconds from 0.001 to 86400").map(Duration::from_secs_f64)
        };
        match name {
            "objective" => {
                self.objective = Objective::parse(value).ok_or_else(|| bad("throughput, latency or cpu"))?;
            }
            "open_after" => self.open_after = size()?,
            "codec_min_bytes" => self.codec_min_bytes = size()?,
            "codec_max_bytes" => self.codec_max_bytes = size()?,
            "codec_queue_max" => self.codec_queue_max = whole()?,
            "codec_slack" => self.codec_slack = number(0.01, 1e6, "a number from 0.01")?,
            "codec_max_bits" => self.codec_max_bits = number(0.0, 8.0, "a number from 0 to 8")?,
            "offload_min_bytes" => self.offload_min_bytes = size()?,
            "offload_max_bytes" => self.offload_max_bytes = size()?,
            "inline_max" => {
                let secs = number(0.0, 1.0, "a number of seconds from 0 to 1")?;
                self.inline_max = Duration::from_secs_f64(secs);
            }
            "cpu_slack" => self.cpu_slack = number(0.01, 1e6, "a number from 0.01")?,
            "first_tasks" => self.first_tasks = whole()?,
            "explore_every" => self.explore_every = whole()?,
            "explore_worst" => self.explore_worst = number(1.0, 1e6, "a number from 1")?,
            "learn" => self.learn = number(0.0, 1.0, "a number from 0 to 1")?,
            "check_every" => self.check_every = whole()?,
            "check_first" => self.check_first = whole()?,
            "hang_factor" => self.hang_factor = number(1.0, 1e9, "a number from 1")?,
            "hang_floor" => self.hang_floor = seconds()?,
            "failures_max" => self.failures_max = positive()?,
            "retry_first" => self.retry_first = seconds()?,
            "retry_last" => self.retry_last = seconds()?,
            "trial_tasks" => self.trial_tasks = whole()?,
            _ => self.outstanding_max = positive()? as usize,
        }
        Ok(())
    }

    /// Names two thresholds that exclude every task or every retry, if there are any.
    pub fn contradiction(&self) -> Option<String> {
        let pairs = [
            ("codec_min_bytes", "codec_max_bytes", self.codec_min_bytes > self.codec_max_bytes),
            ("offload_min_bytes", "offload_max_bytes", self.offload_min_bytes > self.offload_max_bytes),
            ("retry_first", "retry_last", self.retry_first > self.retry_last),
        ];
        let (low, high, _) = pairs.into_iter().find(|(_, _, crossed)| *crossed)?;
        let value = |name| self.get(name).unwrap_or_default();
        Some(format!("{low}={} is above {high}={}: nothing is left between them", value(low), value(high)))
    }

    /// A threshold in the form of [`Policy::set`].
    pub fn get(&self, name: &str) -> Option<String> {
        let secs = |time: Duration| time.as_secs_f64().to_string();
        Some(match name {
            "objective" => self.objective.name().to_string(),
            "open_after" => print_size(self.open_after),
            "codec_min_bytes" => print_size(self.codec_min_bytes),
            "codec_max_bytes" => print_size(self.codec_max_bytes),
            "codec_queue_max" => self.codec_queue_max.to_string(),
            "codec_slack" => self.codec_slack.to_string(),
            "codec_max_bits" => self.codec_max_bits.to_string(),
            "offload_min_bytes" => print_size(self.offload_min_bytes),
            "offload_max_bytes" => print_size(self.offload_max_bytes),
            "inline_max" => self.inline_max.as_secs_f64().to_string(),
            "cpu_slack" => self.cpu_slack.to_string(),
            "first_tasks" => self.first_tasks.to_string(),
            "explore_every" => self.explore_every.to_string(),
            "explore_worst" => self.explore_worst.to_string(),
            "learn" => self.learn.to_string(),
            "check_every" => self.check_every.to_string(),
            "check_first" => self.check_first.to_string(),
            "hang_factor" => self.hang_factor.to_string(),
            "hang_floor" => secs(self.hang_floor),
            "failures_max" => self.failures_max.to_string(),
            "retry_first" => secs(self.retry_first),
            "retry_last" => secs(self.retry_last),
            "trial_tasks" => self.trial_tasks.to_string(),
            "outstanding_max" => self.outstanding_max.to_string(),
            _ => return None,
        })
    }

    /// True if a task of this class and size may leave the processor.
    pub fn may_offload(&self, class: Class, bytes: usize) -> bool {
        let (min, max) = if class.is_codec() {
            (self.codec_min_bytes, self.codec_max_bytes)
        } else {
            (self.offload_min_bytes, self.offload_max_bytes)
        };
        (min..=max).contains(&(bytes as u64))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES.iter().try_for_each(|name| writeln!(f, "{name} = {}", self.get(name).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_threshold_can_be_set_to_what_it_is() {
        let mut policy = Policy::default();
        for name in Policy::NAMES {
            let value = policy.get(name).expect(name);
            policy.set(name, &value).expect(name);
        }
        assert_eq!(policy, Policy::default());
        assert_eq!(policy.get("none"), None);
        for (name, value) in [
            ("none", "1"),
            ("learn", "-1"),
            ("failures_max", "0"),
            ("objective", "fast"),
            ("retry_last", "0"),
        ] {
            policy.set(name, value).expect_err(name);
        }
        assert_eq!(policy, Policy::default());
    }

    #[test]
    fn thresholds_that_leave_nothing_between_them_are_named() {
        let with = |name: &str, value: &str| {
            let mut policy = Policy::default();
            policy.set(name, value).unwrap();
            policy.contradiction()
        };
        assert_eq!(Policy::default().contradiction(), None);
        let said = with("codec_min_bytes", "2M").expect("above the usual codec_max_bytes");
        assert!(said.contains("codec_min_bytes=2M") && said.contains("codec_max_bytes=1M"), "{said}");
        assert!(with("offload_max_bytes", "1").is_some() && with("retry_first", "86400").is_some());
    }

    #[test]
    fn bounds_of_codecs_are_their_own() {
        let policy = Policy::default();
        let compress = Class::Compress(outrigger_format::Codec::Zstd, 3);
        let may = |class, sizes: [usize; 4]| sizes.map(|bytes| policy.may_offload(class, bytes));
        assert_eq!(may(compress, [4095, 4096, 1 << 20, (1 << 20) + 1]), [false, true, true, false]);
        assert_eq!(may(Class::Scan, [4095, 4096, 1 << 20, 128 << 20]), [false, true, true, true]);
    }
}
