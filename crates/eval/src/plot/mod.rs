//! Drawings as SVG, by our own renderer. It uses no scripts and no fonts, and colours by classes,
//! so that a style sheet makes them light or dark.
//!
//! `axis.rs` maps values to places and chooses ticks; `marks.rs` draws lines and bars. This module
//! draws the frame around them, with the limits and the legend.

mod axis;
mod marks;

use std::fmt::Write;

use crate::record::{Form, Limit, Plot, SeriesKind};
use axis::{Mapped, place_names};
pub use axis::{bytes, number};

/// The size of every drawing.
const WIDTH: f64 = 720.0;
/// The area inside the axes.
const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 18.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 330.0;
/// The approximate width of a letter.
const LETTER: f64 = 6.3;

/// The number of colours in the style sheet.
pub const COLOURS: usize = 8;

/// A plot with its colours and its corner text.
pub struct Drawing {
    /// What is drawn.
    pub plot: Plot,
    /// The colour of each series, below [`COLOURS`].
    pub colours: Vec<usize>,
    /// A word in the corner, which says that nothing was repeated.
    pub corner: String,
}

impl Drawing {
    /// A drawing with colours in turn.
    pub fn of(plot: Plot) -> Self {
        let colours = (0..plot.series.len()).map(|at| at % COLOURS).collect();
        Self { plot, colours, corner: String::new() }
    }
}

/// Colours and strokes of [`svg`]'s classes, for light and dark. `.paper` and `.model` mark the
/// origin of numbers.
pub const STYLE: &str = include_str!("style.css");

/// The drawing, for a page that has [`STYLE`].
pub fn svg(drawing: &Drawing) -> String {
    let plot = &drawing.plot;
    let y =
        Mapped::fit(&plot.y, plot.series.iter().flat_map(values(plot)).chain(limits(plot)), (BOTTOM, TOP));
    let x = if plot.form == Form::Lines {
        let values = plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.x));
        Mapped::fit_tight(&plot.x, values, (LEFT, RIGHT))
    } else {
        Mapped::names(plot.x.names.len(), (LEFT, RIGHT))
    };
    let mut body = String::new();
    frame(plot, &x, &y, &mut body);
    // Limits lie behind the data, their names in front.
    plot.limits.iter().for_each(|limit| limit_line(limit, &y, &mut body));
    match plot.form {
        Form::Lines => marks::lines(drawing, &x, &y, &mut body),
        Form::Bars => marks::bars(drawing, &x, &y, &mut body),
        Form::Stacked => marks::stacked(drawing, &x, &y, &mut body),
    }
    plot.limits.iter().for_each(|limit| limit_name(limit, &y, &mut body));
    place_limits(plot, &x, &y, &mut body);
    let height = legend(drawing, names_bottom(plot), &mut body);
    if !drawing.corner.is_empty() {
        let y = names_bottom(plot) - 8.0;
        let _ = writeln!(body, "<text class=\"key end\" x=\"{RIGHT}\" y=\"{y}\">{}</text>", drawing.corner);
    }
    let title = escape(&plot.title);
    let squeeze = squeezed(&plot.title, 8.2, RIGHT - LEFT);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{title}\">\n<text class=\"title\" x=\"{LEFT}\" y=\"18\"{squeeze}>{title}</text>\n{body}</svg>\n"
    )
}

/// The drawing as a separate file.
pub fn file(drawing: &Drawing, dark: bool) -> String {
    let svg = svg(drawing);
    let (open, rest) = svg.split_once(">\n").unwrap_or(("", &svg));
    let style = if dark { dark_style() } else { STYLE.to_string() };
    format!("{open}>\n<style>{style}</style><rect class=\"sheet\" width=\"100%\" height=\"100%\"/>\n{rest}")
}

/// The style sheet with its dark part in force.
fn dark_style() -> String {
    let (light, dark) = STYLE.split_once("@media (prefers-color-scheme: dark) {").unwrap_or((STYLE, ""));
    let dark = dark.rsplit_once('}').map_or("", |(inside, _)| inside);
    format!("{light}{dark}")
}

/// All values that have to fit into the height.
fn values(plot: &Plot) -> impl Fn(&crate::record::Series) -> Vec<f64> + '_ {
    move |series| match plot.form {
        Form::Stacked if series.kind != SeriesKind::Limit => {
            let sum = |at: f64| -> f64 {
                let stacked = plot.series.iter().filter(|series| series.kind != SeriesKind::Limit);
                let all = stacked.flat_map(|series| &series.points);
                all.filter(|point| point.x == at).map(|point| point.y).sum()
            };
            series.points.iter().map(|point| sum(point.x)).collect()
        }
        _ => series.points.iter().flat_map(|point| [point.low, point.high]).collect(),
    }
}

fn limits(plot: &Plot) -> impl Iterator<Item = f64> + '_ {
    plot.limits.iter().map(|limit| limit.y)
}

/// Axes, grid, ticks and labels.
fn frame(plot: &Plot, x: &Mapped, y: &Mapped, out: &mut String) {
    for (value, label) in y.ticks() {
        let at = y.place(value);
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>");
        let _ = writeln!(
            out,
            "<text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    if plot.form == Form::Lines {
        for (value, label) in x.ticks() {
            let at = x.place(value);
            let _ = writeln!(out, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{BOTTOM}\"/>");
            let _ = writeln!(
                out,
                "<text class=\"tick mid\" x=\"{at:.1}\" y=\"{}\">{label}</text>",
                BOTTOM + 16.0
            );
        }
    } else {
        place_names(&plot.x.names, x, BOTTOM, out);
    }
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>");
    let unit = |axis: &crate::record::Axis| match &*axis.unit {
        "" | "bytes" => escape(&axis.label),
        unit => format!("{}, {}", escape(&axis.label), escape(unit)),
    };
    let _ = writeln!(
        out,
        "<text class=\"label mid\" x=\"{}\" y=\"{}\">{}</text>",
        (LEFT + RIGHT) / 2.0,
        names_bottom(plot) - 8.0,
        unit(&plot.x)
    );
    let middle = (TOP + BOTTOM) / 2.0;
    let name = unit(&plot.y);
    let squeeze = squeezed(&name, 6.5, BOTTOM - TOP);
    let _ = writeln!(
        out,
        "<text class=\"label mid\" transform=\"translate(16 {middle}) rotate(-90)\"{squeeze}>{name}</text>"
    );
}

/// Attributes that squeeze a long text into its room; `letter` is the approximate width of a
/// letter.
fn squeezed(text: &str, letter: f64, room: f64) -> String {
    if text.chars().count() as f64 * letter > room {
        format!(" textLength=\"{room}\" lengthAdjust=\"spacingAndGlyphs\"")
    } else {
        String::new()
    }
}

/// The bottom of the x axis with its labels.
fn names_bottom(plot: &Plot) -> f64 {
    let lines = if plot.form == Form::Lines { 1 } else { axis::lines_of(&plot.x.names, RIGHT - LEFT) };
    BOTTOM + 30.0 + 14.0 * lines as f64
}

fn limit_line(limit: &Limit, y: &Mapped, out: &mut String) {
    let class = marks::line_class(&limit.name);
    let _ = writeln!(out, "<path class=\"{class}\" d=\"M{LEFT} {:.1}H{RIGHT}\"/>", y.place(limit.y));
}

fn limit_name(limit: &Limit, y: &Mapped, out: &mut String) {
    name_limit(&limit.name, RIGHT - 4.0, y.place(limit.y), true, out);
}

/// Writes a limit's name above its line, with a background because it may cover bars.
fn name_limit(name: &str, x: f64, line: f64, ends: bool, out: &mut String) {
    // Letters of this size are somewhat narrower.
    let width = name.chars().count() as f64 * (LETTER - 0.6) + 4.0;
    let left = (if ends { x - width } else { x }).clamp(LEFT, (RIGHT - width).max(LEFT));
    let _ = writeln!(
        out,
        "<rect class=\"limit-ground\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"13\"/>",
        line - 14.5
    );
    let _ = writeln!(
        out,
        "<text class=\"{}-name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        marks::line_class(name),
        left + 2.0,
        line - 4.0,
        escape(name)
    );
}

/// Writes names of limits that differ by place: at the first band, or the last point.
fn place_limits(plot: &Plot, x: &Mapped, y: &Mapped, out: &mut String) {
    for series in plot.series.iter().filter(|series| series.kind == SeriesKind::Limit) {
        let bars = plot.form != Form::Lines;
        let point = if bars { series.points.first() } else { series.points.last() };
        let Some(point) = point else { continue };
        let at = if bars { x.place(point.x) - 0.45 * x.band() } else { x.place(point.x) };
        name_limit(&series.name, at, y.place(point.y), !bars, out);
    }
}

/// The legend, in rows. Returns its bottom.
fn legend(drawing: &Drawing, top: f64, out: &mut String) -> f64 {
    let plot = &drawing.plot;
    let (mut x, mut y) = (LEFT, top + 14.0);
    let named = |(_, series): &(usize, &crate::record::Series)| series.kind != SeriesKind::Limit;
    for (at, series) in plot.series.iter().enumerate().filter(named) {
        let name = series.label();
        let width = 34.0 + name.chars().count() as f64 * LETTER;
        if x > LEFT && x + width > RIGHT + 8.0 {
            (x, y) = (LEFT, y + 18.0);
        }
        let class = marks::class(drawing.colours[at], series.kind);
        if plot.form == Form::Lines {
            let _ = writeln!(out, "<path class=\"line {class}\" d=\"M{x:.0} {:.0}h22\"/>", y - 4.0);
            marks::dot(x + 11.0, y - 4.0, &class, out);
        } else {
            let _ = writeln!(
                out,
                "<rect class=\"bar {class}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"20\" height=\"10\"/>",
                y - 9.0
            );
        }
        let _ =
            writeln!(out, "<text class=\"key\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>", x + 27.0, escape(&name));
        x += width + 12.0;
    }
    y + 12.0
}

/// For text in XML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Axis, Series};

    fn plot(form: Form) -> Plot {
        let mut one = Series::measured("one <core>");
        let mut two = Series::paper("two", &[]);
        for at in 0..3 {
            one.exact(f64::from(1 << at), f64::from(at + 1));
            two.exact(f64::from(1 << at), 10.0);
        }
        let bound = Series::limit("bound", &[(1.0, 11.0), (2.0, 9.0)]);
        let names = ["none", "some & more", "all"];
        let x = if form == Form::Lines { Axis::log("size", "bytes") } else { Axis::of("case", names) };
        if form != Form::Lines {
            for series in [&mut one, &mut two] {
                series.points.iter_mut().enumerate().for_each(|(at, point)| point.x = at as f64);
            }
        }
        let limits = vec![Limit { name: "memory".into(), y: 12.0 }];
        Plot {
            title: "A & B".into(),
            form,
            x,
            y: Axis::new("rate", "MB/s"),
            series: vec![one, two, bound],
            limits,
        }
    }

    /// A page needs valid XML: every tag closed, no bare `&`, and places inside the drawing.
    #[test]
    fn drawings_are_well_formed_and_show_everything() {
        for form in [Form::Lines, Form::Bars, Form::Stacked] {
            let svg = file(&Drawing::of(plot(form)), false);
            let (mut open, mut rest) = (Vec::new(), &svg[..]);
            while let Some(at) = rest.find('<') {
                let end = rest[at..].find('>').expect("a tag ends") + at;
                let tag = &rest[at + 1..end];
                if let Some(name) = tag.strip_prefix('/') {
                    assert_eq!(open.pop(), Some(name), "{form:?}");
                } else if !tag.ends_with('/') {
                    open.push(tag.split(' ').next().unwrap_or_default());
                }
                rest = &rest[end + 1..];
            }
            assert_eq!(open, [""; 0]);
            assert!(
                svg.contains("one &lt;core&gt;") && svg.contains("A &amp; B") && svg.contains("two (paper)")
            );
            assert!(svg.contains(">bound<") && svg.matches("class=\"limit\"").count() >= 2);
            assert!(svg.contains("memory") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    /// Bars of negative values hang from the zero line.
    #[test]
    fn bars_of_less_than_nothing_hang() {
        let mut plot = plot(Form::Bars);
        plot.series.truncate(1);
        plot.series[0].points[1] =
            crate::record::Point { y: -2.0, low: -2.0, high: -2.0, ..plot.series[0].points[1] };
        let svg = file(&Drawing::of(plot), false);
        let bars = svg.split("<rect class=\"bar").skip(1).map(|bar| {
            let of = |name: &str| -> f64 {
                let (_, rest) = bar.split_once(&format!(" {name}=\"")).expect("a bar has a place");
                rest.split('"').next().unwrap().parse().unwrap()
            };
            (of("y"), of("y") + of("height"))
        });
        let bars: Vec<(f64, f64)> = bars.take(3).collect();
        // Places grow downwards: one bar ends where the other begins.
        assert!((bars[0].1 - bars[1].0).abs() < 0.2 && bars[1].1 > bars[1].0 + 10.0, "{bars:?}");
        assert!((bars[0].1 - bars[2].1).abs() < 0.2 && bars[1].1 < BOTTOM, "{bars:?}");
    }

    #[test]
    fn a_dark_drawing_has_the_dark_colours_in_force() {
        assert!(!file(&Drawing::of(plot(Form::Lines)), true).contains("@media"));
        assert!(file(&Drawing::of(plot(Form::Lines)), false).contains("@media"));
    }
}
