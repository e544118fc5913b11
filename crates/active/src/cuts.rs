//! How a job's inputs are cut into splits.
//!
//! A split is a range of one input, or all inputs one after the other, as its row says. With
//! [`Splits::Hosts`] it is the data that one host holds: many ranges of one or several inputs,
//! which its program gets as one file. They are kept with the job ([`Held`]), since packs move:
//! every attempt on any host reads the same.
//!
//! All cuts are nominal: a record belongs to the range in which it starts
//! ([`crate::job::records`]). Cuts of plug-in records are moved to where records start before the
//! job is made (`plugin.rs`).

use std::collections::BTreeMap;

use outrigger_format::Root;
use outrigger_store::meta::jobs::NewSplit;
use outrigger_store::read::whereabouts::stretches;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::inputs::Found;
use crate::job::Held;
use crate::job::records::{Records, nominal};
use crate::job::spec::Spec;
use crate::pattern::Pattern;

/// How many splits an input is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Splits {
    /// Where the holding host changes, and after each [`AUTO_BYTES`], where the records allow it.
    #[default]
    Auto,
    /// This many splits of each input.
    Count(u64),
    /// One for each host that holds some of it, with all of that.
    Hosts,
}

/// Bytes of a split, unless its count is given: long enough that starting a program costs little
/// beside running it.
pub const AUTO_BYTES: u64 = 64 << 20;
/// Minimum bytes of a range that is cut because another host holds the next bytes.
const STRETCH_MIN: u64 = 4 << 20;
/// Splits of one job at most.
const SPLITS_MAX: usize = 1_000_000;
/// Ranges of a job with splits by host, about; larger inputs have longer ranges. They are kept with
/// the job, which every runner reads as a whole.
const RANGES_AIM: u64 = 10_000;
/// Ranges of such a job at most: each input has one at least.
const RANGES_MAX: usize = 100_000;

impl Splits {
    /// Parses `auto`, `hosts` or a number.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            _ if text == "hosts" => Ok(Self::Hosts),
            Ok(count) if (1..=SPLITS_MAX as u64).contains(&count) => Ok(Self::Count(count)),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("--splits {text}: use auto, hosts or a number from 1 to {SPLITS_MAX}"),
            )),
        }
    }
}

/// A job's splits.
pub(crate) struct Cuts {
    /// Their rows. With splits by host, a row has the input, if it is of one, and the length of the
    /// split.
    pub splits: Vec<NewSplit>,
    /// See [`Spec::by_host`].
    pub by_host: Vec<Held>,
}

impl Cuts {
    /// Where each input, of these lengths, is cut, rising: neither at its start nor at its end.
    pub fn inner(&self, lens: &[u64]) -> Vec<Vec<u64>> {
        let mut cuts = vec![Vec::new(); lens.len()];
        let mut add = |input: u32, at: u64| {
            if let (Some(cuts), Some(len)) = (cuts.get_mut(input as usize), lens.get(input as usize))
                && (1..*len).contains(&at)
            {
                cuts.push(at);
            }
        };
        if self.by_host.is_empty() {
            self.splits
                .iter()
                .filter_map(|split| Some((split.input?, split.from)))
                .for_each(|(input, from)| add(input, from));
        }
        self.by_host.iter().flat_map(|held| &held.ranges).for_each(|&(input, from, _)| add(input, from));
        for cuts in &mut cuts {
            cuts.sort_unstable();
            cuts.dedup();
        }
        cuts
    }

    /// Moves the cuts of each input from the places `from` to `to`: pairs in the same order.
    pub fn move_inner(&mut self, from: &[Vec<u64>], to: &[Vec<u64>]) {
        let moved = |input: u32, at: &mut u64| {
            if let (Some(from), Some(to)) = (from.get(input as usize), to.get(input as usize))
                && let Ok(place) = from.binary_search(at)
            {
                *at = to[place];
            }
        };
        for split in self.splits.iter_mut().filter(|_| self.by_host.is_empty()) {
            if let Some(input) = split.input {
                moved(input, &mut split.from);
                moved(input, &mut split.to);
            }
        }
        for (input, from, to) in self.by_host.iter_mut().flat_map(|held| &mut held.ranges) {
            moved(*input, from);
            moved(*input, to);
        }
    }

    /// Drops empty splits, but keeps one of each input.
    pub fn drop_empty(&mut self) {
        if self.by_host.is_empty() {
            let mut last = None;
            // If all splits of an input are empty, so is the input, and it keeps one.
            self.splits.retain(|split| {
                let is_first = last != Some(split.input);
                let keep = split.from < split.to || (is_first && split.to == 0);
                last = if keep { Some(split.input) } else { last };
                keep
            });
            return;
        }
        // An input without a byte has a range all the same.
        for held in &mut self.by_host {
            held.ranges.retain(|(_, from, to)| from < to || *to == 0);
        }
        let splits = self.splits.drain(..).zip(self.by_host.drain(..));
        let kept: Vec<_> = splits.filter(|(_, held)| !held.ranges.is_empty()).collect();
        let of = |(split, held): (NewSplit, Held)| (NewSplit { to: held.bytes(), ..split }, held);
        (self.splits, self.by_host) = kept.into_iter().map(of).unzip();
    }
}

/// Cuts these inputs.
///
/// # Errors
/// `Invalid` if they cannot be cut this way.
pub(crate) fn cut(store: &Store, spec: &Spec, found: &[Found], splits: Splits) -> Result<Cuts> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let can = spec.records != Records::Whole;
    if matches!(splits, Splits::Count(2..) | Splits::Hosts) && !can {
        return invalid(
            "to split inputs, say what they consist of: --records lines, fixed:BYTES, delimiter:TEXT, bam or plugin:PROGRAM"
                .into(),
        );
    }
    // One component gets all inputs, unless they are to be split: then each gets a part, and the
    // outputs are joined in order.
    let joins = spec.program.is_empty() || !can || splits == Splits::Count(1);
    if spec.pattern == Pattern::ManyToFile && joins {
        let to = found.iter().map(|found| found.inode.root.len()).sum();
        return Ok(Cuts { splits: vec![NewSplit { input: None, from: 0, to }], by_host: Vec::new() });
    }
    if splits == Splits::Hosts {
        check_hosts(spec)?;
        return by_host(spec, found, &|root, shortest| lying(store, root, shortest));
    }
    let mut cuts = Vec::new();
    for (number, one) in (0..).zip(found) {
        let root = &one.inode.root;
        let len = root.len();
        let parts = match splits {
            _ if !can => vec![(0, len, 1)],
            Splits::Count(count) => vec![(0, len, count)],
            Splits::Auto | Splits::Hosts => {
                let count = |from: u64, to: u64| (to - from).div_ceil(AUTO_BYTES).max(1);
                // Only the distance of reads depends on it: if it cannot be found out, that does
                // not matter.
                match stretches(store, root, STRETCH_MIN) {
                    Ok(parts) if parts.len() > 1 => {
                        parts.iter().map(|part| (part.from, part.to, count(part.from, part.to))).collect()
                    }
                    _ => vec![(0, len, count(0, len))],
                }
            }
        };
        if cuts.len() as u64 + parts.iter().map(|part| part.2).sum::<u64>() > SPLITS_MAX as u64 {
            return invalid(format!(
                "that would be more than {SPLITS_MAX} splits; give a smaller --splits, or fewer inputs"
            ));
        }
        for (start, end, count) in parts {
            let ranges = nominal(end - start, count).into_iter();
            let split = |(from, to)| NewSplit { input: Some(number), from: start + from, to: start + to };
            cuts.extend(ranges.map(split));
        }
    }
    Ok(Cuts { splits: cuts, by_host: Vec::new() })
}

/// Refuses options that make no sense with splits by host.
fn check_hosts(spec: &Spec) -> Result<()> {
    let by_number = |word: &String| word.starts_with("{in.") && word.ends_with('}');
    let why = if spec.records == Records::Bam {
        "--splits hosts gives a program ranges of a file one after the other, and each part of a BAM file needs a header of its own: use --splits auto, which cuts where the host changes"
    } else if spec.programs().flatten().any(by_number) {
        "{in.1} is a whole input, and --splits hosts gives a program what one host holds: use {in}, which is that as one file, or --with for files to look at besides"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, why))
}

/// A part of a content: its holder, and its range.
type Lies = (String, u64, u64);

/// Where a content lies, in order and without gaps. Content that is too short to be cut belongs to
/// the host with most of it; to an empty name if the packs' engine does not know.
fn lying(store: &Store, root: &Root, shortest: u64) -> Vec<Lies> {
    // As above: if it cannot be found out, that does not matter.
    let of = |shortest: u64| stretches(store, root, shortest).unwrap_or_default();
    let parts = of(shortest);
    if parts.len() > 1 {
        return parts.into_iter().map(|part| (part.host, part.from, part.to)).collect();
    }
    let mut hosts: BTreeMap<String, u64> = BTreeMap::new();
    for part in if parts.is_empty() { of(1) } else { parts } {
        *hosts.entry(part.host).or_default() += part.to - part.from;
    }
    let most = hosts.into_iter().max_by_key(|(_, bytes)| *bytes);
    vec![(most.map_or(String::new(), |(host, _)| host), 0, root.len())]
}

/// One split for each host that holds some of an input; with several to one, of any input. If the
/// holders are unknown, or there is only one host, they are cut as without hosts.
fn by_host(spec: &Spec, found: &[Found], lying: &dyn Fn(&Root, u64) -> Vec<Lies>) -> Result<Cuts> {
    let together = spec.pattern == Pattern::ManyToFile;
    let bytes: u64 = found.iter().map(|found| found.inode.root.len()).sum();
    let shortest = bytes.div_ceil(RANGES_AIM).max(STRETCH_MIN);
    let (mut all, mut count): (Vec<(Option<u32>, Held)>, usize) = (Vec::new(), 0);
    for (number, one) in (0..).zip(found) {
        let first = if together { 0 } else { all.len() };
        for (host, from, to) in lying(&one.inode.root, shortest) {
            count += 1;
            if count > RANGES_MAX {
                let why = format!(
                    "that would be more than {RANGES_MAX} ranges; give fewer inputs, or --splits auto"
                );
                return Err(Error::new(ErrorKind::Invalid, why));
            }
            // A range without a holder goes with the first that has one.
            let fits = |held: &Held| held.host == host || held.host.is_empty() || host.is_empty();
            let range = (number, from, to);
            match all[first..].iter_mut().find(|(_, held)| fits(held)) {
                Some((_, held)) => {
                    held.ranges.push(range);
                    if held.host.is_empty() {
                        held.host = host;
                    }
                }
                None => all.push(((!together).then_some(number), Held { host, ranges: vec![range] })),
            }
        }
    }
    let split = |(input, held): &(Option<u32>, Held)| NewSplit { input: *input, from: 0, to: held.bytes() };
    let splits = all.iter().map(split).collect();
    let is_plain = if together { all.len() == 1 } else { all.len() == found.len() };
    let by_host = if is_plain { Vec::new() } else { all.into_iter().map(|(_, held)| held).collect() };
    Ok(Cuts { splits, by_host })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(host: &str, ranges: &[(u32, u64, u64)]) -> Held {
        Held { host: host.to_string(), ranges: ranges.to_vec() }
    }

    fn row(input: u32, from: u64, to: u64) -> NewSplit {
        NewSplit { input: Some(input), from, to }
    }

    #[test]
    fn cuts_are_moved_and_what_is_empty_then_is_left_out() {
        let splits = vec![row(0, 0, 10), row(0, 10, 20), row(0, 20, 30), row(1, 0, 0), row(2, 0, 5)];
        let mut cuts = Cuts { splits, by_host: Vec::new() };
        let inner = cuts.inner(&[30, 0, 5]);
        assert_eq!(inner, [vec![10, 20], vec![], vec![]]);
        cuts.move_inner(&inner, &[vec![25, 25], vec![], vec![]]);
        cuts.drop_empty();
        assert_eq!(cuts.splits, [row(0, 0, 25), row(0, 25, 30), row(1, 0, 0), row(2, 0, 5)]);
    }

    #[test]
    fn hosts_ranges_are_moved_together() {
        let by_host = vec![
            held("a", &[(0, 0, 10), (0, 20, 30)]),
            held("b", &[(0, 10, 20)]),
            held("c", &[(0, 30, 40)]),
            held("a", &[(1, 0, 0)]),
        ];
        let splits = vec![row(0, 0, 20), row(0, 0, 10), row(0, 0, 10), row(1, 0, 0)];
        let mut cuts = Cuts { splits, by_host };
        let inner = cuts.inner(&[40, 0]);
        assert_eq!(inner, [vec![10, 20, 30], vec![]]);
        cuts.move_inner(&inner, &[vec![12, 40, 40], vec![]]);
        cuts.drop_empty();
        let wanted = [held("a", &[(0, 0, 12)]), held("b", &[(0, 12, 40)]), held("a", &[(1, 0, 0)])];
        assert_eq!(cuts.by_host, wanted);
        assert_eq!(cuts.splits, [row(0, 0, 12), row(0, 0, 28), row(1, 0, 0)]);
    }

    /// Inputs of these lengths; nothing else matters.
    fn inputs(lens: &[u64]) -> Vec<Found> {
        let inode = |len: u64| outrigger_store::meta::Inode {
            number: len,
            attributes: outrigger_store::local::put::made_now(
                outrigger_format::catalogue::FileKind::File,
                0o600,
            ),
            root: if len == 0 {
                Root::Empty
            } else {
                Root::Inline(vec![outrigger_format::Entry::Hole { len }])
            },
            links: 1,
            stamp: 0,
        };
        let path = outrigger_store::tree::StorePath::default();
        lens.iter().map(|len| Found { path: path.clone(), inode: inode(*len) }).collect()
    }

    /// The splits of inputs of these lengths that lie so.
    fn hosts_of(pattern: Pattern, lens: &[u64], lies: &[&[(&str, u64, u64)]]) -> Cuts {
        let spec = Spec::new(pattern, vec!["cat".to_string()]);
        let lying = |root: &Root, shortest: u64| {
            assert_eq!(shortest, STRETCH_MIN, "these are few");
            let number = lens.iter().position(|len| *len == root.len()).unwrap();
            lies[number].iter().map(|(host, from, to)| (host.to_string(), *from, *to)).collect()
        };
        by_host(&spec, &inputs(lens), &lying).unwrap()
    }

    #[test]
    fn each_of_three_hosts_has_a_split() {
        let lies: &[&[_]] = &[&[("a", 0, 10), ("b", 10, 20), ("c", 20, 25), ("a", 25, 30)], &[("b", 0, 7)]];
        let cuts = hosts_of(Pattern::ManyToFile, &[30, 7], lies);
        let wanted = [
            held("a", &[(0, 0, 10), (0, 25, 30)]),
            held("b", &[(0, 10, 20), (1, 0, 7)]),
            held("c", &[(0, 20, 25)]),
        ];
        assert_eq!(cuts.by_host, wanted);
        let row = |input, to| NewSplit { input, from: 0, to };
        assert_eq!(cuts.splits, [row(None, 15), row(None, 17), row(None, 5)]);
        // With an output for each input, no split has two inputs.
        let cuts = hosts_of(Pattern::ReadToFile, &[30, 7], lies);
        assert_eq!(cuts.splits, [row(Some(0), 15), row(Some(0), 10), row(Some(0), 5), row(Some(1), 7)]);
        assert_eq!(cuts.by_host[3], held("b", &[(1, 0, 7)]));
    }

    #[test]
    fn what_nobody_is_known_to_hold_goes_with_the_first_that_somebody_does() {
        let lies: &[&[_]] = &[&[("", 0, 10), ("b", 10, 20), ("", 20, 25), ("c", 25, 30)]];
        let cuts = hosts_of(Pattern::ReadToFile, &[30], lies);
        assert_eq!(
            cuts.by_host,
            [held("b", &[(0, 0, 10), (0, 10, 20), (0, 20, 25)]), held("c", &[(0, 25, 30)])]
        );
        // No holder is known: they are cut as without hosts.
        let cuts = hosts_of(Pattern::ManyToFile, &[30, 7], &[&[("", 0, 30)], &[("", 0, 7)]]);
        assert_eq!((cuts.splits.len(), cuts.by_host.len()), (1, 0));
    }

    #[test]
    fn an_input_without_a_byte_has_a_split_where_each_has_an_output() {
        let lies: &[&[_]] = &[&[("", 0, 0)], &[("a", 0, 10), ("b", 10, 30)]];
        let cuts = hosts_of(Pattern::ReadToFile, &[0, 30], lies);
        assert_eq!(cuts.by_host[0], held("", &[(0, 0, 0)]));
        assert_eq!(cuts.splits[0], NewSplit { input: Some(0), from: 0, to: 0 });
        let cuts = hosts_of(Pattern::ManyToFile, &[0, 30], lies);
        assert_eq!(cuts.by_host, [held("a", &[(0, 0, 0), (1, 0, 10)]), held("b", &[(1, 10, 30)])]);
    }

    #[test]
    fn more_ranges_than_a_job_can_keep_are_refused() {
        let spec = Spec::new(Pattern::ReadToFile, vec!["cat".to_string()]);
        let lying = |_: &Root, shortest: u64| {
            assert_eq!(shortest, (1_u64 << 40).div_ceil(RANGES_AIM), "of more bytes they are longer");
            (0..=RANGES_MAX as u64).map(|at| (format!("h{}", at % 3), at, at + 1)).collect::<Vec<_>>()
        };
        let Err(error) = by_host(&spec, &inputs(&[1 << 40]), &lying) else { panic!("{RANGES_MAX} and one") };
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("--splits auto"), "{error}");
    }

    #[test]
    fn what_splits_there_are_is_parsed() {
        assert_eq!(Splits::parse("hosts").unwrap(), Splits::Hosts);
        assert_eq!(Splits::parse("3").unwrap(), Splits::Count(3));
        for wrong in ["host", "0", "", "1000001"] {
            assert_eq!(Splits::parse(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
