//! Data on which codecs differ, through the mount: for figures 7a and 7c.

use super::data::{self, Kind};
use super::fio::{Rounds, efficiency, median, rates, rounds};
use crate::lab::{Failed, Lab, check};
use crate::record::{Axis, Form, Outcome, Plot, Series};

/// The same with text and reads: each codec's ratio, cost and speed. The ratios of fio's data stand
/// beside them.
pub fn compare(lab: &Lab, codecs: &[&str], of_fio: &[Rounds], outcome: &mut Outcome) -> Result<(), Failed> {
    let (bytes, count) = (lab.scale.pick(2 << 20, 48 << 20, 256 << 20), lab.scale.pick(1, 2, 3));
    let of = |kind: Kind| -> Result<Vec<Rounds>, Failed> {
        let data = kind.make(bytes)?;
        codecs.iter().map(|codec| rounds(lab, codec, false, 128 << 10, bytes, count, &data)).collect()
    };
    let (text, reads) = (of(Kind::Text)?, of(Kind::Reads)?);
    let of_kinds = [of_fio, &text[..], &reads[..]];
    let at = |name: &str| codecs.iter().position(|codec| *codec == name);
    for (kind, all) in Kind::ALL.into_iter().zip(of_kinds).skip(1) {
        let what = kind.name();
        for (codec, one) in codecs.iter().zip(all) {
            outcome.find(format!("{codec}: ratio of {what}"), one.ratio, "x", None);
        }
        let (Some(gzip), Some(lz4), Some(zstd)) = (at("gzip:6"), at("lz4"), at("zstd:1")) else { continue };
        let (gzip, lz4, zstd) = (&all[gzip], &all[lz4], &all[zstd]);
        check(
            gzip.ratio > 1.1 * lz4.ratio,
            format!("{what}: gzip has ratio {}, and lz4 {}", gzip.ratio, lz4.ratio),
        )?;
        let gain = median(&zstd.stored) / median(&gzip.stored);
        outcome.find(format!("zstd:1 over gzip, writing {what}"), gain, "x", None);
        let cost = |one: &Rounds| one.ratio / median(&one.write_cost).max(0.01);
        outcome.find(
            format!("zstd:1 over gzip, cost efficiency of writing {what}"),
            cost(zstd) / cost(gzip),
            "x",
            None,
        );
    }
    let series = codecs.iter().enumerate().map(|(codec, name)| {
        let mut series = Series::measured(*name);
        of_kinds.iter().enumerate().for_each(|(at, all)| series.exact(at as f64, all[codec].ratio));
        series
    });
    outcome.plots.push(Plot {
        title: "Ratio that each codec reached, by what was written".into(),
        form: Form::Bars,
        x: Axis::of("data", Kind::ALL.map(Kind::name)),
        y: Axis::new("raw / stored", "x"),
        series: series.chain([data::best_ratios()?]).collect(),
        limits: Vec::new(),
    });
    let (written, read) = (|one: &Rounds| one.stored.clone(), |one: &Rounds| one.read.clone());
    let line =
        |all: &[Rounds], of: fn(&Rounds) -> Vec<f64>| -> Vec<Vec<f64>> { all.iter().map(of).collect() };
    let lines = [line(&text, written), line(&reads, written), line(&text, read), line(&reads, read)];
    let names = ["text, SeqW", "reads, SeqW", "text, SeqR", "reads, SeqR"];
    let lines = names.into_iter().zip(&lines).map(|(name, line)| (name, line.iter().collect())).collect();
    let title = format!("Text and reads through the mount, {} each", crate::plot::bytes(bytes as f64));
    outcome.plots.push(rates(lab, title, codecs, lines)?);
    let cost =
        |all: &'_ [Rounds]| all.iter().map(|one| (one.ratio, one.write_cost.clone())).collect::<Vec<_>>();
    let (of_text, of_reads) = (cost(&text), cost(&reads));
    let lines = [("writing text", &of_text), ("writing reads", &of_reads)]
        .map(|(name, line)| (name, line.iter().map(|(ratio, cost)| (*ratio, cost)).collect()));
    outcome.plots.push(efficiency("Cost efficiency with text and reads", codecs, lines.into()));
    outcome.note(
        "fio can fill its buffers with a pattern of 512 bytes at most, and from no file: text (generated program source) and reads (generated FASTQ) are written in its blocks by this program, synced as its are, read by fio, and compared.",
    );
    Ok(())
}
