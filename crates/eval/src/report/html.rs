//! The page with the plots. It has no scripts and nothing from other sites, and is light or dark
//! like the reader's system.

use std::fmt::Write;

use super::drawn::Drawn;
use super::markdown::{capital, paper_column, paper_word};
use super::{
    HOW_TO_READ, Section, all_drawn, command, machines, missing, rows, told, unlimited, verdicts, warning,
};
use crate::experiment::Paper;
use crate::plot::{escape, number, svg};

const STYLE: &str = include_str!("style.css");

pub fn page(sections: &[Section<'_>]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Outrigger: evaluation</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\n\
         <style>{STYLE}{}</style></head><body><main>\n<h1>Evaluation</h1>\n\
         <p>What the numbers come to at an exabyte, on paper: <a href=\"../../docs/evaluation/records/2026-11-22-exabyte.md\">exabyte.md</a>.</p>\n",
        crate::plot::STYLE
    );
    if let Some(warning) = warning(sections) {
        let _ = writeln!(out, "<p><b>{}</b></p>", escape(&warning));
    }
    first(sections, &mut out);
    let _ = writeln!(out, "<h2>How to read it</h2><p>{}</p><ul>", code(HOW_TO_READ));
    for machine in machines(sections) {
        let _ = writeln!(out, "<li>{}</li>", escape(&machine));
    }
    out.push_str("</ul>\n");
    let missing = missing(sections);
    if !missing.is_empty() {
        let _ = writeln!(out, "<p>Without a record so far: {}.</p>", escape(&missing.join(", ")));
    }
    contents(sections, &mut out);
    let all = all_drawn(sections);
    for paper in Paper::ALL {
        let mut of = all.iter().filter(|(section, _)| section.experiment.paper == paper).peekable();
        if of.peek().is_some() {
            let _ = writeln!(out, "<h2>{}</h2>", escape(paper.title()));
            of.for_each(|(section, plots)| experiment(section, plots, &mut out));
        }
    }
    out.push_str("</main></body></html>\n");
    out
}

fn contents(sections: &[Section<'_>], out: &mut String) {
    out.push_str("<nav><ul>\n");
    for section in sections.iter().filter(|section| !section.records.is_empty()) {
        let experiment = section.experiment;
        let _ =
            writeln!(out, "<li><a href=\"#{0}\">{0}</a> {1}</li>", experiment.id, escape(experiment.title));
    }
    out.push_str("</ul></nav>\n");
}

fn first(sections: &[Section<'_>], out: &mut String) {
    let verdicts = verdicts(sections);
    let (wins, losses): (Vec<_>, Vec<_>) = verdicts.iter().partition(|verdict| verdict.ratio() >= 1.0);
    for (title, all) in
        [("Where today’s processor beats the device", wins), ("Where the device wins", losses)]
    {
        if all.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "<h2>{title}</h2><div class=\"wide\"><table><tr><th>what</th><th>all cores</th><th>device</th><th>times</th><th>the device is</th><th>machine</th><th></th></tr>"
        );
        for verdict in all {
            let duel = &verdict.duel;
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td class=\"n\">{} {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>{}</td><td><a href=\"#{id}\">{id}</a></td></tr>",
                code(&duel.what),
                number(duel.processor),
                escape(&duel.unit),
                number(duel.device),
                number(verdict.ratio()),
                escape(&duel.device_is),
                escape(&verdict.record.machine.slug()),
                id = verdict.experiment.id
            );
        }
        out.push_str("</table></div>\n");
    }
}

fn experiment(section: &Section<'_>, plots: &[Drawn<'_>], out: &mut String) {
    let experiment = section.experiment;
    let _ = writeln!(
        out,
        "<section id=\"{}\"><h3>{}: {}</h3>",
        experiment.id,
        escape(&capital(experiment.figure)),
        escape(experiment.title)
    );
    let _ = writeln!(out, "<p><b>{}.</b> {}</p>", paper_word(experiment.paper), code(experiment.found));
    for record in &section.records {
        out.push_str("<div class=\"plots\">\n");
        for plot in plots.iter().filter(|plot| std::ptr::eq(plot.record, *record)) {
            let why = unlimited(&plot.drawing.plot).map_or_else(String::new, |why| {
                format!("<figcaption class=\"told\">{}</figcaption>", code(why))
            });
            let _ = write!(out, "<figure>{}{why}</figure>", svg(&plot.drawing));
        }
        let _ = writeln!(
            out,
            "</div><p class=\"told\"><code>{}</code><br>{}</p>",
            escape(&command(record)),
            escape(&told(record))
        );
    }
    let _ = writeln!(out, "<p><b>What differs.</b> {}</p>", code(experiment.differs));
    findings(section, out);
    let mut notes: Vec<&String> = section.records.iter().flat_map(|record| &record.outcome.notes).collect();
    notes.dedup();
    if !notes.is_empty() {
        out.push_str("<ul>");
        for note in notes {
            let _ = writeln!(out, "<li>{}</li>", code(note));
        }
        out.push_str("</ul>");
    }
    out.push_str("</section>\n");
}

fn findings(section: &Section<'_>, out: &mut String) {
    let rows = rows(section);
    if rows.is_empty() {
        return;
    }
    let column = paper_column(section.experiment.paper);
    let _ = write!(out, "<div class=\"wide\"><table><tr><th></th><th>unit</th><th>{column}</th>");
    for record in &section.records {
        let _ = write!(out, "<th>{}</th>", escape(&record.machine.slug()));
    }
    out.push_str("</tr>\n");
    for row in rows {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td>",
            escape(row.name),
            escape(row.unit),
            escape(&row.said)
        );
        for ours in row.ours {
            let _ = write!(out, "<td class=\"n\">{ours}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// Text, with the parts between backquotes as code.
fn code(text: &str) -> String {
    let parts = escape(text);
    let mut out = String::new();
    for (at, part) in parts.split('`').enumerate() {
        let _ = if at % 2 == 1 { write!(out, "<code>{part}</code>") } else { write!(out, "{part}") };
    }
    out
}
