//! The page for the repository: numbers as tables.

use std::fmt::Write;

use super::drawn::Drawn;
use super::{
    HOW_TO_READ, Section, all_drawn, command, machines, missing, rows, told, unlimited, verdicts, warning,
};
use crate::experiment::Paper;
use crate::lines::is_reference;
use crate::plot::number;
use crate::record::{Point, Series, SeriesKind};

pub fn page(sections: &[Section<'_>]) -> String {
    let mut out = String::from(
        "# Evaluation\n\nMade by `outrigger-eval report` from the records in docs/evaluation/records. The same with plots: \
         [report.html](report.html); what the numbers come to at an exabyte, on paper: docs/evaluation/records/2026-11-22-exabyte.md.\n\n",
    );
    if let Some(warning) = warning(sections) {
        let _ = writeln!(out, "**{warning}**\n");
    }
    first(sections, &mut out);
    let _ = writeln!(out, "## How to read it\n\n{HOW_TO_READ}\n");
    for machine in machines(sections) {
        let _ = writeln!(out, "- {machine}");
    }
    let missing = missing(sections);
    if !missing.is_empty() {
        let _ = writeln!(out, "\nWithout a record so far: {}.", missing.join(", "));
    }
    let all = all_drawn(sections);
    for paper in Paper::ALL {
        let mut of = all.iter().filter(|(section, _)| section.experiment.paper == paper).peekable();
        if of.peek().is_none() {
            continue;
        }
        let _ = writeln!(out, "\n## {}", paper.title());
        for (section, plots) in of {
            let experiment = section.experiment;
            let _ = writeln!(
                out,
                "\n### {}: {} (`{}`)\n",
                capital(experiment.figure),
                experiment.title,
                experiment.id
            );
            let _ = writeln!(out, "*{}.* {}\n", paper_word(paper), experiment.found);
            let _ = writeln!(out, "*What differs.* {}\n", experiment.differs);
            findings(section, &mut out);
            for record in &section.records {
                let of = plots.iter().filter(|plot| std::ptr::eq(plot.record, *record));
                of.for_each(|plot| table(plot, &mut out));
                for note in &record.outcome.notes {
                    let _ = writeln!(out, "- {note}");
                }
                let _ = writeln!(out, "\n`{}` ({})", command(record), told(record));
            }
        }
    }
    out
}

/// The first section: where the processor wins, and where it does not.
fn first(sections: &[Section<'_>], out: &mut String) {
    let verdicts = verdicts(sections);
    if verdicts.is_empty() {
        return;
    }
    let (wins, losses): (Vec<_>, Vec<_>) = verdicts.iter().partition(|verdict| verdict.ratio() >= 1.0);
    for (title, all) in
        [("Where today's processor beats the device", wins), ("Where the device wins", losses)]
    {
        if all.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "## {title}\n\n| what | all cores | device | times | device is | machine | |\n| --- | ---: | ---: | ---: | --- | --- | --- |"
        );
        for verdict in all {
            let duel = &verdict.duel;
            let _ = writeln!(
                out,
                "| {} | {} {} | {} | {} | {} | {} | `{}` |",
                duel.what,
                number(duel.processor),
                duel.unit,
                number(duel.device),
                number(verdict.ratio()),
                duel.device_is,
                verdict.record.machine.slug(),
                verdict.experiment.id
            );
        }
        out.push('\n');
    }
}

/// Single numbers: the paper's, and a column for each machine.
fn findings(section: &Section<'_>, out: &mut String) {
    let rows = rows(section);
    if rows.is_empty() {
        return;
    }
    let names: Vec<String> = section.records.iter().map(|record| record.machine.slug()).collect();
    let _ = writeln!(
        out,
        "| | unit | {} | {} |\n| --- | --- | ---: |{}",
        paper_column(section.experiment.paper),
        names.join(" | "),
        " ---: |".repeat(names.len())
    );
    for row in rows {
        let _ = writeln!(out, "| {} | {} | {} | {} |", row.name, row.unit, row.said, row.ours.join(" | "));
    }
    out.push('\n');
}

/// A plot's medians, with their spread.
fn table(drawn: &Drawn<'_>, out: &mut String) {
    let plot = &drawn.drawing.plot;
    let mut places: Vec<f64> =
        plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let series: Vec<String> = plot.series.iter().map(label).collect();
    let corner = &drawn.drawing.corner;
    let rounds = if corner.is_empty() { String::new() } else { format!(" ({corner})") };
    let _ = writeln!(
        out,
        "<details><summary>{}: {}, {}{rounds}</summary>\n",
        plot.title, plot.y.label, plot.y.unit
    );
    let _ = writeln!(
        out,
        "| {} | {} |\n| --- |{}",
        plot.x.label,
        series.join(" | "),
        " ---: |".repeat(series.len())
    );
    for place in places {
        let name = match plot.x.names.get(place as usize) {
            Some(name) => name.clone(),
            None if plot.x.unit == "bytes" => crate::plot::bytes(place),
            None => format!("{} {}", number(place), plot.x.unit),
        };
        let values = plot.series.iter().map(|series| {
            let point = series.points.iter().find(|point| point.x == place);
            point.map_or(String::new(), value)
        });
        let _ = writeln!(out, "| {name} | {} |", values.collect::<Vec<_>>().join(" | "));
    }
    for limit in &plot.limits {
        let what = if is_reference(&limit.name) { "Reference" } else { "Limit" };
        let _ = writeln!(out, "\n{what}: {} {} ({})", number(limit.y), plot.y.unit, limit.name);
    }
    if let Some(why) = unlimited(plot) {
        let _ = writeln!(out, "\n{why}");
    }
    let _ = writeln!(out, "\n</details>\n");
}

/// A series' name, with its kind.
fn label(series: &Series) -> String {
    if series.kind == SeriesKind::Limit && is_reference(&series.name) {
        return format!("{} (reference)", series.name);
    }
    series.label()
}

/// The median; also the least and the most, if they differ by more than some percent.
fn value(point: &Point) -> String {
    let (low, high) = (number(point.low), number(point.high));
    let apart = (point.high - point.low).abs() > 0.05 * point.y.abs();
    if point.rounds > 1 && apart && low != high {
        format!("{} ({low}–{high})", number(point.y))
    } else {
        number(point.y)
    }
}

/// The source of a number.
pub fn paper_word(paper: Paper) -> &'static str {
    if paper == Paper::Beyond { "Asked" } else { "The paper" }
}

/// The heading of the column beside ours.
pub fn paper_column(paper: Paper) -> &'static str {
    if paper == Paper::Beyond { "asked" } else { "paper" }
}

/// With a capital first letter.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + letters.as_str())
}
