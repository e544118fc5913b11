//! The report, made from records alone: `report.md` to be read as text, and `report.html`
//! with the plots, in one file.

mod drawn;
mod html;
mod markdown;

use std::path::Path;

use crate::experiment::Experiment;
use crate::lab::Failed;
use crate::plot::number;
use crate::record::{Duel, Plot, Record, SeriesKind};
use drawn::{Drawn, Palettes, drawn};

/// An experiment with its records, one per machine.
struct Section<'a> {
    experiment: &'a Experiment,
    records: Vec<&'a Record>,
}

/// A comparison, with its experiment and record.
struct Verdict<'a> {
    experiment: &'a Experiment,
    record: &'a Record,
    duel: Duel,
}

/// Writes both. Experiments without a record are only named.
///
/// # Errors
/// Those of writing.
pub fn write(experiments: &[Experiment], records: &[Record], out: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(out)?;
    let sections = sections(experiments, records);
    std::fs::write(out.join("report.md"), markdown::page(&sections))?;
    std::fs::write(out.join("report.html"), html::page(&sections))?;
    Ok(())
}

/// Writes each plot to a file, `EXPERIMENT-N.svg` and `EXPERIMENT-N.dark.svg`. The numbers go on
/// with a second machine's plots.
///
/// # Errors
/// Those of writing.
pub fn write_plots(experiments: &[Experiment], records: &[Record], out: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(out)?;
    for (section, plots) in all_drawn(&sections(experiments, records)) {
        for (n, Drawn { drawing, .. }) in plots.iter().enumerate() {
            let name = format!("{}-{n}", section.experiment.id);
            std::fs::write(out.join(format!("{name}.svg")), crate::plot::file(drawing, false))?;
            std::fs::write(out.join(format!("{name}.dark.svg")), crate::plot::file(drawing, true))?;
        }
    }
    Ok(())
}

/// The plots of every section that has some, in order.
fn all_drawn<'a, 'b>(sections: &'b [Section<'a>]) -> Vec<(&'b Section<'a>, Vec<Drawn<'a>>)> {
    let mut palettes = Palettes::new();
    let plots = |section: &'b Section<'a>| {
        let palette = palettes.entry(section.experiment.paper).or_default();
        (section, drawn(section, palette))
    };
    sections.iter().filter(|section| !section.records.is_empty()).map(plots).collect()
}

/// A number of an experiment, with a column for each record.
struct Row<'a> {
    name: &'a str,
    unit: &'a str,
    said: String,
    ours: Vec<String>,
}

/// Stands for an unknown number.
const UNKNOWN: &str = "–";

/// Every number of any of the records.
fn rows<'a>(section: &Section<'a>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for finding in section.records.iter().flat_map(|record| &record.outcome.findings) {
        if rows.iter().any(|row| row.name == finding.name) {
            continue;
        }
        let same = |record: &Record| {
            let same = record.outcome.findings.iter().find(|other| other.name == finding.name);
            same.map_or_else(|| UNKNOWN.into(), |finding| number(finding.value))
        };
        let table = section.experiment.said.iter().find(|(name, _)| *name == finding.name);
        let said = table.map(|(_, said)| (*said).to_string()).or_else(|| finding.paper.map(number));
        rows.push(Row {
            name: &finding.name,
            unit: &finding.unit,
            said: said.unwrap_or_else(|| UNKNOWN.into()),
            ours: section.records.iter().map(|record| same(record)).collect(),
        });
    }
    rows
}

/// The command that makes such a record again. Older records name a program without its path, and
/// data as `BENCH_DATA=…`.
fn command(record: &Record) -> String {
    crate::record::command(&record.experiment, record.scale, record.command.contains("BENCH_DATA="))
}

/// The reason if a plot has no line that bounds it.
fn unlimited(plot: &Plot) -> Option<&'static str> {
    let is_limited =
        !plot.limits.is_empty() || plot.series.iter().any(|series| series.kind == SeriesKind::Limit);
    (!is_limited).then_some(
        "No limit: the record is older than the measurement of one; `run` measures it with the next.",
    )
}

fn sections<'a>(experiments: &'a [Experiment], records: &'a [Record]) -> Vec<Section<'a>> {
    let of = |experiment: &'a Experiment| {
        let records = records.iter().filter(|record| record.experiment == experiment.id).collect();
        Section { experiment, records }
    };
    experiments.iter().map(of).collect()
}

/// Experiments without a record.
fn missing<'a>(sections: &'a [Section<'_>]) -> Vec<&'a str> {
    sections
        .iter()
        .filter(|section| section.records.is_empty())
        .map(|section| section.experiment.id)
        .collect()
}

/// Comparisons by ratio, those that the processor wins first.
fn verdicts<'a>(sections: &[Section<'a>]) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for section in sections {
        for record in &section.records {
            let experiment = section.experiment;
            let duels = crate::papers::duels(record).into_iter();
            verdicts.extend(duels.map(|duel| Verdict { experiment, record, duel }));
        }
    }
    verdicts.sort_by(|a, b| b.ratio().total_cmp(&a.ratio()));
    verdicts
}

impl Verdict<'_> {
    /// The processor's rate divided by the device's.
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

/// Processors that others may keep busy without a warning.
const OTHERS_MAX: f64 = 0.15;

/// True if others worked on the machine at the start.
fn is_busy(record: &Record) -> bool {
    record.others.is_some_and(|others| others > OTHERS_MAX)
}

/// A warning before any number, if others worked on a machine.
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

/// The explanation for every reader.
const HOW_TO_READ: &str = "Points and numbers are medians; whiskers, and numbers in brackets, go from the least to the most of all rounds where these are more than 5 % apart; `1 round` says that nothing was repeated. Solid lines and filled points were measured on the machine named; \
                           dashed lines and open points belong to models, dotted ones to the papers, whose figures are known here by the numbers in their text and tables: where those do not give one, there is a –. \
                           Red dotted lines are limits: what is measured stays on one side of them, but for the 5 % that measurements scatter by, or the limit's name says `passed`. Grey dash-dotted lines are references, which may be passed: \
                           a disk's rate where only a part of the data has to be written, the paper's bus where no data crosses one, what others do. A model has limits of its own.";
