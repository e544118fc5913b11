//! Lines with points and spreads; bars side by side and on top of each other.

use std::fmt::Write;

use super::Drawing;
use super::axis::Mapped;
use crate::lines::is_reference;
use crate::record::{Series, SeriesKind};

/// The style class of a colour and of the numbers' origin.
pub fn class(colour: usize, kind: SeriesKind) -> String {
    let kind = match kind {
        SeriesKind::Measured => "measured",
        SeriesKind::Model => "model",
        SeriesKind::Paper => "paper",
        SeriesKind::Limit => "limit",
    };
    format!("s{colour} {kind}")
}

/// The style class of a line with this name.
pub fn line_class(name: &str) -> &'static str {
    if is_reference(name) { "reference" } else { "limit" }
}

/// A point of a line.
pub fn dot(x: f64, y: f64, class: &str, out: &mut String) {
    let _ = writeln!(out, "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
}

/// A whisker from the least to the most; none if it is no longer than the point itself.
fn whisker(x: f64, low: f64, high: f64, class: &str, out: &mut String) {
    if (low - high).abs() > 7.0 {
        let _ = writeln!(
            out,
            "<path class=\"whisker {class}\" d=\"M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6\"/>",
            x - 3.0,
            x - 3.0
        );
    }
}

pub fn lines(drawing: &Drawing, x: &Mapped, y: &Mapped, out: &mut String) {
    for (series, colour) in drawing.plot.series.iter().zip(&drawing.colours) {
        let class = class(*colour, series.kind);
        let mut path = String::new();
        for point in &series.points {
            let step = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x.place(point.x), y.place(point.y));
        }
        if series.kind == SeriesKind::Limit {
            let _ = writeln!(out, "<path class=\"{}\" d=\"{path}\"/>", line_class(&series.name));
            continue;
        }
        if series.points.len() > 1 {
            let _ = writeln!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
        }
        for point in &series.points {
            let at = x.place(point.x);
            whisker(at, y.place(point.low), y.place(point.high), &class, out);
            dot(at, y.place(point.y), &class, out);
        }
    }
}

/// The series that have bars, with their colours.
fn coloured(drawing: &Drawing) -> impl Iterator<Item = (&Series, usize)> {
    let all = drawing.plot.series.iter().zip(drawing.colours.iter().copied());
    all.filter(|(series, _)| series.kind != SeriesKind::Limit)
}

pub fn bars(drawing: &Drawing, x: &Mapped, y: &Mapped, out: &mut String) {
    let count = coloured(drawing).count().max(1) as f64;
    let width = (x.band() * 0.8 / count).min(64.0);
    // Bars start at zero, which lies higher if there are negative ones.
    let nothing = if drawing.plot.y.log { super::BOTTOM } else { y.place(0.0) };
    for (at, (series, colour)) in coloured(drawing).enumerate() {
        let class = class(colour, series.kind);
        for point in &series.points {
            let left = x.place(point.x) + (at as f64 - count / 2.0) * width;
            let end = y.place(point.y);
            bar(left + 1.0, width - 2.0, end.min(nothing), end.max(nothing), &class, out);
            whisker(left + width / 2.0, y.place(point.low), y.place(point.high), "ink", out);
        }
    }
    limits(drawing, x, y, out);
}

/// Limits of single bands, drawn across each.
fn limits(drawing: &Drawing, x: &Mapped, y: &Mapped, out: &mut String) {
    for series in drawing.plot.series.iter().filter(|series| series.kind == SeriesKind::Limit) {
        for point in &series.points {
            let (left, width) = (x.place(point.x) - 0.45 * x.band(), 0.9 * x.band());
            let class = line_class(&series.name);
            let _ = writeln!(
                out,
                "<path class=\"{class}\" d=\"M{left:.1} {:.1}h{width:.1}\"/>",
                y.place(point.y)
            );
        }
    }
}

pub fn stacked(drawing: &Drawing, x: &Mapped, y: &Mapped, out: &mut String) {
    let width = (x.band() * 0.7).min(64.0);
    let mut tops = vec![0.0; drawing.plot.x.names.len()];
    for (series, colour) in coloured(drawing) {
        let class = class(colour, series.kind);
        for point in &series.points {
            let Some(top) = tops.get_mut(point.x as usize) else { continue };
            let bottom = y.place(*top);
            *top += point.y;
            bar(x.place(point.x) - width / 2.0, width, y.place(*top), bottom, &class, out);
        }
    }
    limits(drawing, x, y, out);
}

fn bar(left: f64, width: f64, top: f64, bottom: f64, class: &str, out: &mut String) {
    let height = (bottom - top).max(0.0);
    let _ = writeln!(
        out,
        "<rect class=\"bar {class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
        width.max(1.0)
    );
}
