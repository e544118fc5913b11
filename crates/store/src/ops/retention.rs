//! Which snapshots to keep. Pure: the caller defines the periods (time zones, weeks).

use std::collections::HashSet;

/// Periods of which the newest snapshot is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Period {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// A rule's words and its period.
pub const PERIODS: [(Period, &str); 5] = [
    (Period::Hour, "hourly"),
    (Period::Day, "daily"),
    (Period::Week, "weekly"),
    (Period::Month, "monthly"),
    (Period::Year, "yearly"),
];

/// The rules. A snapshot is kept when any rule says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Retention {
    /// The newest this many.
    pub last: usize,
    /// The newest of each of this many hours, days, weeks, months, years that have any, in the
    /// order of [`PERIODS`].
    pub periods: [usize; 5],
    /// All with any of these tags.
    pub tags: Vec<String>,
}

/// The properties of a snapshot that rules use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate<'a> {
    /// Its tags.
    pub tags: &'a [String],
    /// Names the hour, day, week, month and year it was taken in; equal in the same one.
    pub keys: [i64; 5],
}

impl Retention {
    /// True when no rule keeps anything.
    pub fn is_empty(&self) -> bool {
        self.last == 0 && self.periods == [0; 5] && self.tags.is_empty()
    }

    /// For each candidate, oldest first, the rules that keep it: none for those to delete.
    pub fn decide(&self, candidates: &[Candidate<'_>]) -> Vec<Vec<&'static str>> {
        let mut kept = vec![Vec::new(); candidates.len()];
        // Dates need not rise: a period counts once, whatever lies between two of its snapshots.
        let mut seen: [HashSet<i64>; 5] = Default::default();
        for (age, (candidate, reasons)) in candidates.iter().zip(&mut kept).rev().enumerate() {
            if age < self.last {
                reasons.push("last");
            }
            for (rule, seen) in seen.iter_mut().enumerate() {
                if seen.len() < self.periods[rule] && seen.insert(candidate.keys[rule]) {
                    reasons.push(PERIODS[rule].1);
                }
            }
            if candidate.tags.iter().any(|tag| self.tags.contains(tag)) {
                reasons.push("tag");
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_counts_once_whatever_the_order_of_dates() {
        let of_days = |days: &[i64]| -> Vec<bool> {
            let candidates: Vec<Candidate<'_>> =
                days.iter().map(|day| Candidate { tags: &[], keys: [*day; 5] }).collect();
            let retention = Retention { periods: [0, 3, 0, 0, 0], ..Retention::default() };
            retention.decide(&candidates).iter().map(|reasons| !reasons.is_empty()).collect()
        };
        assert_eq!(of_days(&[1, 2, 3, 4, 3, 4, 3, 4]), [false, true, false, false, false, false, true, true]);
    }

    /// Snapshots at these hours since the epoch.
    fn decide(retention: &Retention, hours: &[i64]) -> Vec<bool> {
        let tags = Vec::new();
        let keys = |hour: i64| [hour, hour / 24, hour / 168, hour / 720, hour / 8760];
        let candidates: Vec<_> =
            hours.iter().map(|&hour| Candidate { tags: &tags, keys: keys(hour) }).collect();
        retention.decide(&candidates).iter().map(|reasons| !reasons.is_empty()).collect()
    }

    #[test]
    fn the_newest_of_each_period_is_kept() {
        let daily = Retention { periods: [0, 2, 0, 0, 0], ..Retention::default() };
        assert_eq!(decide(&daily, &[1, 2, 25, 26, 50, 51]), [false, false, false, true, false, true]);
        let hourly = Retention { periods: [3, 0, 0, 0, 0], ..Retention::default() };
        assert_eq!(decide(&hourly, &[1, 1, 2, 9, 9]), [false, true, true, false, true]);
    }

    #[test]
    fn last_and_tags_add_up() {
        let last = Retention { last: 2, ..Retention::default() };
        assert_eq!(decide(&last, &[1, 2, 3]), [false, true, true]);
        let tags = vec!["release".to_string()];
        let tagged = Retention { tags: tags.clone(), ..Retention::default() };
        let candidates = [Candidate { tags: &tags, keys: [0; 5] }, Candidate { tags: &[], keys: [0; 5] }];
        assert_eq!(tagged.decide(&candidates), [vec!["tag"], vec![]]);
    }

    #[test]
    fn no_rule_keeps_nothing() {
        assert!(Retention::default().is_empty());
        assert_eq!(decide(&Retention::default(), &[1, 2]), [false, false]);
    }
}
