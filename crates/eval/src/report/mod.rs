//! The report, from records alone: `report.md` to be read in the repository, `report.html` with the plots, in one file.

mod html;
mod markdown;

use std::path::Path;

use crate::experiment::{Experiment, Failed, Paper};
use crate::record::{Duel, Record};

/// An experiment with its records, one a machine.
struct Section<'a> {
    experiment: &'a Experiment,
    records: Vec<&'a Record>,
}

/// A comparison with what it belongs to.
struct Verdict<'a> {
    experiment: &'a Experiment,
    duel: &'a Duel,
}

/// Writes both. Experiments without a record are left out of the sections, and named.
///
/// # Errors
/// Whatever writing says.
pub fn write(experiments: &[Experiment], records: &[Record], out: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(out)?;
    let sections = sections(experiments, records);
    std::fs::write(out.join("report.md"), markdown::page(&sections))?;
    std::fs::write(out.join("report.html"), html::page(&sections))?;
    Ok(())
}

/// Each plot as a file, `EXPERIMENT-N.svg` and `EXPERIMENT-N.dark.svg`.
///
/// # Errors
/// Whatever writing says.
pub fn write_plots(records: &[Record], out: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(out)?;
    for record in records {
        for (n, plot) in record.outcome.plots.iter().enumerate() {
            let name = format!("{}-{n}", record.experiment);
            std::fs::write(out.join(format!("{name}.svg")), crate::plot::file(plot, false))?;
            std::fs::write(out.join(format!("{name}.dark.svg")), crate::plot::file(plot, true))?;
        }
    }
    Ok(())
}

fn sections<'a>(experiments: &'a [Experiment], records: &'a [Record]) -> Vec<Section<'a>> {
    let of = |experiment: &'a Experiment| {
        let records = records.iter().filter(|record| record.experiment == experiment.id).collect();
        Section { experiment, records }
    };
    experiments.iter().map(of).collect()
}

/// Of one paper, in order.
fn of_paper<'a, 'b>(sections: &'b [Section<'a>], paper: Paper) -> impl Iterator<Item = &'b Section<'a>> {
    sections.iter().filter(move |section| section.experiment.paper == paper && !section.records.is_empty())
}

/// What has no record.
fn missing<'a>(sections: &'a [Section<'_>]) -> Vec<&'a str> {
    sections
        .iter()
        .filter(|section| section.records.is_empty())
        .map(|section| section.experiment.id)
        .collect()
}

/// Comparisons, those that the processor wins first, by how far.
fn verdicts<'a>(sections: &[Section<'a>]) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for section in sections {
        for record in &section.records {
            let experiment = section.experiment;
            verdicts.extend(record.outcome.duels.iter().map(|duel| Verdict { experiment, duel }));
        }
    }
    verdicts.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    verdicts
}

impl Verdict<'_> {
    /// How many times as fast as the device the processor is.
    fn ratio(&self) -> f64 {
        self.duel.processor / self.duel.device.max(f64::MIN_POSITIVE)
    }
}

/// The machines of all records, once each.
fn machines(sections: &[Section<'_>]) -> Vec<String> {
    let all = sections.iter().flat_map(|section| section.records.iter());
    let mut machines: Vec<String> = all.map(|record| record.machine.describe()).collect();
    machines.sort();
    machines.dedup();
    machines
}

/// Processors that others may keep busy before it is said.
const OTHERS_MAX: f64 = 0.15;

/// Whether others worked on the machine when it began.
fn is_busy(record: &Record) -> bool {
    record.others.is_some_and(|others| others > OTHERS_MAX)
}

/// What has to be said before any number, if others worked on a machine.
fn warning(sections: &[Section<'_>]) -> Option<String> {
    let all = || sections.iter().flat_map(|section| section.records.iter());
    let busy = all().filter(|record| is_busy(record)).count();
    (busy > 0).then(|| {
        format!(
            "{busy} of {} records were taken while others worked on the machine: processors look slower there than they are. What they took is said with \
             each. Counts (similarity, ratios, work done) are not touched by that.",
            all().count()
        )
    })
}

/// `2026-11-22, short, commit abc, others 0.1`.
fn told(record: &Record) -> String {
    let commit = if record.commit.is_empty() { String::new() } else { format!(", commit {}", record.commit) };
    format!(
        "{}, {}, {} scale, version {}{commit}, {}, {:.0} s",
        record.machine.slug(),
        record.date,
        record.scale.name(),
        record.version,
        match record.others {
            _ if record.outcome.drawn_from.is_some() => "drawn from the record of a script".into(),
            Some(others) => format!("others took {others:.2} of its processors when it began"),
            None => format!("load {:.1} when it began", record.load),
        },
        record.seconds
    )
}

/// What every reader is told.
const HOW_TO_READ: &str = "Points and numbers are medians; whiskers, and numbers in brackets, go from the least to the most of all rounds where these are more than 5 % apart. Solid lines and filled points were measured on the machine named; \
                           dashed lines and open points belong to models, dotted ones to the papers, whose figures are known here by the numbers in their text and tables. \
                           Red lines are limits: what is measured does not pass them on that machine; a model has limits of its own.";
