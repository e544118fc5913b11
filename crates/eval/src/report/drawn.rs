//! Records' plots with the names, axes and colours of today, which may differ from those at the
//! time of the record.

use std::collections::HashMap;

use super::Section;
use crate::experiment::Paper;
use crate::plot::{COLOURS, Drawing};
use crate::record::{Form, Plot, Record, Series, SeriesKind};
use crate::{lines, papers};

/// If values differ by more than this factor, the smaller ones cannot be seen on a linear axis.
const LINEAR_MAX: f64 = 100.0;

/// One plot of a record, ready.
pub struct Drawn<'a> {
    pub record: &'a Record,
    pub drawing: Drawing,
}

/// All plots of one section, record by record. `palette` is its paper's.
pub fn drawn<'a>(section: &Section<'a>, palette: &mut Palette) -> Vec<Drawn<'a>> {
    let several = section.records.len() > 1;
    let mut all = Vec::new();
    for record in &section.records {
        for (at, plot) in record.outcome.plots.iter().enumerate() {
            let plot = today(plot, at, record, several);
            let (colours, corner) = (palette.colours(&plot), corner(&plot));
            all.push(Drawn { record, drawing: Drawing { plot, colours, corner } });
        }
    }
    all
}

/// The plot with today's names of lines, today's numbers of the papers, the machine's name if there
/// are several, and an axis on which everything can be seen.
fn today(plot: &Plot, at: usize, record: &Record, several: bool) -> Plot {
    let mut plot = plot.clone();
    papers::join(&record.experiment, at, &mut plot);
    for limit in &mut plot.limits {
        limit.name = lines::name(&record.experiment, &limit.name).to_string();
    }
    for series in plot.series.iter_mut().filter(|series| series.kind == SeriesKind::Limit) {
        series.name = lines::name(&record.experiment, &series.name).to_string();
    }
    let passed: Vec<String> = lines::passed(&plot).into_iter().map(str::to_string).collect();
    let names = plot.limits.iter_mut().map(|limit| &mut limit.name);
    let names = names.chain(plot.series.iter_mut().map(|series| &mut series.name));
    for name in names.filter(|name| passed.contains(*name)) {
        name.push_str(" (passed)");
    }
    if several {
        plot.title = format!("{}, {}", plot.title, record.machine.slug());
    }
    plot.y.log |= plot.form != Form::Stacked && is_far_apart(&plot);
    plot
}

/// True if all values are above 0 and the largest is many times the smallest.
fn is_far_apart(plot: &Plot) -> bool {
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let least = points().map(|point| point.low).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.high).fold(0.0, f64::max);
    least > 0.0 && most > LINEAR_MAX * least && plot.limits.iter().all(|limit| limit.y > 0.0)
}

/// `1 round`, if times and rates have no spread because nothing was repeated.
fn corner(plot: &Plot) -> String {
    let measured: Vec<&Series> =
        plot.series.iter().filter(|series| series.kind == SeriesKind::Measured).collect();
    let most = measured.iter().flat_map(|series| &series.points).map(|point| point.rounds).max();
    let is_timed = plot.y.unit.ends_with("/s") || ["s", "ms", "µs"].contains(&&*plot.y.unit);
    match most {
        Some(1) => "1 round".into(),
        Some(0) if is_timed => "1 round".into(),
        _ => String::new(),
    }
}

/// The colours of one paper's series: the same name has the same colour, while there are enough.
#[derive(Default)]
pub struct Palette {
    known: HashMap<String, usize>,
}

/// One for each paper.
pub type Palettes = HashMap<Paper, Palette>;

impl Palette {
    fn colours(&mut self, plot: &Plot) -> Vec<usize> {
        let mut colours: Vec<Option<usize>> = vec![None; plot.series.len()];
        let drawn = |series: &Series| series.kind != SeriesKind::Limit;
        // Known names come first, so that no new one takes their colour.
        for (at, series) in plot.series.iter().enumerate().filter(|(_, series)| drawn(series)) {
            if let Some(colour) = self.known.get(&series.name)
                && !colours.contains(&Some(*colour))
            {
                colours[at] = Some(*colour);
            }
        }
        for (at, series) in plot.series.iter().enumerate().filter(|(_, series)| drawn(series)) {
            if colours[at].is_none() {
                let free = |colour: &usize| !colours.contains(&Some(*colour));
                let unknown = |colour: &usize| !self.known.values().any(|known| known == colour);
                let fresh = (0..COLOURS).find(|colour| free(colour) && unknown(colour));
                let colour = fresh.or_else(|| (0..COLOURS).find(free)).unwrap_or(at % COLOURS);
                colours[at] = Some(colour);
                self.known.entry(series.name.clone()).or_insert(colour);
            }
        }
        colours.into_iter().map(|colour| colour.unwrap_or(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Axis, Limit};

    fn plot(names: &[&str], values: [f64; 2]) -> Plot {
        let series = names.iter().map(|name| {
            let mut series = Series::measured(*name);
            values.into_iter().enumerate().for_each(|(at, value)| series.exact(at as f64, value));
            series
        });
        Plot {
            title: "a".into(),
            form: Form::Bars,
            x: Axis::of("x", ["0", "1"]),
            y: Axis::new("time", "s"),
            series: series.collect(),
            limits: vec![Limit { name: "roof".into(), y: 1e4 }],
        }
    }

    #[test]
    fn the_same_name_has_the_same_colour_in_every_plot() {
        let mut palette = Palette::default();
        assert_eq!(palette.colours(&plot(&["none", "path", "beside"], [1.0, 2.0])), [0, 1, 2]);
        assert_eq!(palette.colours(&plot(&["plain", "none", "path", "beside"], [1.0, 2.0])), [3, 0, 1, 2]);
        let many: Vec<String> = (0..8).map(|n| format!("other {n}")).collect();
        let many: Vec<&str> = many.iter().map(|name| &**name).chain(["path"]).collect();
        let colours = palette.colours(&plot(&many[1..], [1.0, 2.0]));
        assert_eq!(colours[7], 1);
        assert!((0..COLOURS).all(|colour| colours.contains(&colour)), "{colours:?}");
    }

    #[test]
    fn what_is_far_apart_is_drawn_in_powers() {
        assert!(!is_far_apart(&plot(&["a"], [1.0, 90.0])));
        assert!(is_far_apart(&plot(&["a"], [0.1, 22.0])));
        assert!(!is_far_apart(&plot(&["a"], [0.0, 22.0])), "0 is on no such axis");
    }

    #[test]
    fn what_was_not_repeated_is_marked() {
        let mut plot = plot(&["a"], [1.0, 2.0]);
        assert_eq!(corner(&plot), "1 round");
        plot.y.unit = "%".into();
        assert_eq!(corner(&plot), "", "counts are what they are");
        plot.series[0].points[0].rounds = 1;
        assert_eq!(corner(&plot), "1 round");
        plot.series[0].points[1].rounds = 3;
        assert_eq!(corner(&plot), "");
    }
}
