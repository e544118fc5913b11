//! Maps values to places, and chooses ticks.

use std::fmt::Write;

use super::{LETTER, escape};
use crate::record::Axis;

/// An axis with its ends.
pub struct Mapped {
    low: f64,
    high: f64,
    log: bool,
    bytes: bool,
    places: (f64, f64),
}

impl Mapped {
    /// An axis with round ends around all values. A linear one starts at 0.
    pub fn fit(axis: &Axis, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let (mut low, mut high) = ends(values);
        if axis.log {
            // Half a decade is enough margin.
            low = 10_f64.powf((low.log10() * 2.0 - 0.1).floor() / 2.0);
            high = 10_f64.powf((high.log10() * 2.0 + 0.1).ceil() / 2.0);
        } else {
            low = low.min(0.0) * 1.08;
            high = high.max(0.0) * 1.08;
        }
        Self::new(axis, low, high, places)
    }

    /// From the first value to the last, with a small margin.
    pub fn fit_tight(axis: &Axis, values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let (low, high) = ends(values);
        if axis.log {
            return Self::new(axis, low / 1.25, high * 1.25, places);
        }
        let room = (high - low).max(1e-9) * 0.03;
        Self::new(axis, if low == 0.0 { 0.0 } else { low - room }, high + room, places)
    }

    /// One band per name.
    pub fn names(count: usize, places: (f64, f64)) -> Self {
        Self { low: -0.5, high: count as f64 - 0.5, log: false, bytes: false, places }
    }

    fn new(axis: &Axis, low: f64, high: f64, places: (f64, f64)) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, log: axis.log, bytes: axis.unit == "bytes", places }
    }

    /// The place of a value.
    pub fn place(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.places.0 + (self.places.1 - self.places.0) * part
    }

    /// The width of a band.
    pub fn band(&self) -> f64 {
        (self.places.1 - self.places.0) / (self.high - self.low)
    }

    /// Values that get a grid line, with their names.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let values = match (self.log, self.bytes) {
            (true, true) => powers(self.low, self.high, 2.0, 9),
            (true, false) => decades(self.low, self.high),
            (false, _) => rounded(self.low, self.high),
        };
        let name = |value: f64| if self.bytes { bytes(value) } else { number(value) };
        values.into_iter().map(|value| (value, name(value))).collect()
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high { (0.0, 1.0) } else { (low, high) }
}

/// Powers of `base` between the ends, at most `count` of them.
fn powers(low: f64, high: f64, base: f64, count: usize) -> Vec<f64> {
    let (first, last) = (low.log(base).ceil() as i32, high.log(base).floor() as i32);
    let step = (1..).find(|step| (last - first) / step < count as i32).unwrap_or(1).max(1);
    (first..=last).step_by(step as usize).map(|power| base.powi(power)).collect()
}

/// Powers of ten; if there are few, also 2 and 5 times those.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let all = powers(low, high, 10.0, 9);
    if all.len() > 2 {
        return all;
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let steps = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    steps.filter(|value| (low..=high).contains(value)).collect()
}

/// Multiples of 1, 2 or 5 times a power of ten: four to nine of them.
fn rounded(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power);
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (first..=last).map(|at| at as f64 * step).collect()
}

/// `4 KiB`.
pub fn bytes(value: f64) -> String {
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut at) = (value, 0);
    while value >= 1024.0 && at + 1 < names.len() {
        (value, at) = (value / 1024.0, at + 1);
    }
    format!("{} {}", number(value), names[at])
}

/// Three significant digits, without needless zeros.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 || size > 0.0 && size < 1e-3 {
        let power = size.log10().floor();
        let front = value / 10_f64.powf(power);
        let names = [(9, "G"), (6, "M")];
        if let Some((power, name)) = names.into_iter().find(|(power, _)| size >= 10_f64.powi(*power)) {
            return format!("{}{name}", number(value / 10_f64.powi(power)));
        }
        return format!("{front:.0}e{power:.0}");
    }
    let digits = if size >= 100.0 || size == 0.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    let text = format!("{value:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text };
    match text.len() {
        // 10,000 is easier to read than 10000.
        len if size >= 10_000.0 => format!("{},{}", &text[..len - 3], &text[len - 3..]),
        _ => text,
    }
}

/// The words of a name, in lines that fit a band.
fn wrapped(name: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    // Breaks between words, and within those that have parts: `gear32:` and `4K/16K/64K`.
    let pieces = name.split(' ').flat_map(|word| {
        let parts = word.split_inclusive([':', '/']).enumerate();
        parts.map(|(number, part)| (if number == 0 { " " } else { "" }, part))
    });
    for (before, piece) in pieces {
        match lines.last_mut() {
            Some(line)
                if (line.chars().count() + before.len() + piece.chars().count()) as f64 * LETTER <= width =>
            {
                let _ = write!(line, "{before}{piece}");
            }
            _ => lines.push(piece.to_string()),
        }
    }
    lines
}

/// How many lines the longest name needs.
pub fn lines_of(names: &[String], width: f64) -> usize {
    let band = width / names.len().max(1) as f64;
    names.iter().map(|name| wrapped(name, band).len()).max().unwrap_or(1)
}

/// Writes names below their bands.
pub fn place_names(names: &[String], x: &Mapped, bottom: f64, out: &mut String) {
    for (at, name) in names.iter().enumerate() {
        for (line, words) in wrapped(name, x.band()).iter().enumerate() {
            let (at, y) = (x.place(at as f64), bottom + 16.0 + 13.0 * line as f64);
            let _ =
                writeln!(out, "<text class=\"tick mid\" x=\"{at:.1}\" y=\"{y:.0}\">{}</text>", escape(words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axis = |log, unit: &str| Axis { log, ..Axis::new("x", unit) };
        let names = |mapped: Mapped| mapped.ticks().into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        let fit = |axis: &Axis, low: f64, high: f64| Mapped::fit(axis, [low, high].into_iter(), (0.0, 1.0));
        assert_eq!(names(fit(&axis(false, "s"), 0.0, 9.0)), ["0", "2", "4", "6", "8"]);
        assert_eq!(names(fit(&axis(true, "x"), 0.05, 20.0)), ["0.1", "1", "10"]);
        let sizes = Mapped::fit_tight(&axis(true, "bytes"), [4096.0, 1e8].into_iter(), (0.0, 1.0));
        assert_eq!(
            names(sizes),
            ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB"]
        );
    }

    #[test]
    fn long_names_go_on_in_the_next_line() {
        let lines = |name, letters: f64| wrapped(name, letters * LETTER);
        assert_eq!(lines("zstd:1 in the file system", 20.0), ["zstd:1 in the file", "system"]);
        assert_eq!(lines("gear32:4K/16K/64K", 12.0), ["gear32:4K/", "16K/64K"]);
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.05, 1.5, 12.0, 123.4, 4567.0, 12345.0, 2.5e6, 3e9, 2e-5];
        let texts = ["0", "0.05", "1.5", "12", "123", "4567", "12,345", "2.5M", "3G", "2e-5"];
        assert_eq!(numbers.map(number), texts);
        assert_eq!([512.0, 4096.0, 1.5 * 1048576.0].map(bytes), ["512 B", "4 KiB", "1.5 MiB"]);
    }
}
