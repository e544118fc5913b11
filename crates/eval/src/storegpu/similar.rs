//! Tables 3 and 4: how fast similarity is found, and how much.

use std::hint::black_box;

use outrigger_format::{ChunkerSpec, FingerprintKind};
use outrigger_offload::op::{Digest, WindowFunction};
use outrigger_offload::work::Request;
use outrigger_offload::{SimdLevel, cut, hash, hash_many, name_chunks, window_hash_with};

use super::{direct, ordinary, window};
use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};
use crate::similarity::{checkpoints, cut_by_windows, ends_of, memory_rate, similarity};

/// Low zero bits at a boundary: with a window at every fourth byte, blocks have 256 KiB.
const BITS: u32 = 16;

/// Both tables.
pub fn tables(lab: &Lab) -> Result<Outcome, Failed> {
    let (which, images) = checkpoints(lab)?;
    let (fixed, bits) = lab.scale.pick((20_000, 9), (20 << 20, BITS), (20 << 20, BITS));
    let mut outcome = Outcome::default();
    outcome.note(format!("{which}, {:.0} MB each.", images.last().map_or(0, Vec::len) as f64 / 1e6));
    let chunker =
        |text: &str| ChunkerSpec::parse(text).map_err(|error| Failed::Wrong(format!("{text}: {error}")));
    let blocks = |size: usize| {
        move |data: &[u8]| (0..data.len()).step_by(size).map(|at| data.len().min(at + size)).collect()
    };

    let (mut found, mut names) = (Series::measured("similarity to the image before"), Vec::new());
    let mut add = |name: &str, percent: f64| {
        found.exact(names.len() as f64, percent);
        names.push(name.to_string());
        percent
    };
    let large = add("fixed 20 MiB", similarity(&images, blocks(fixed)).0);
    for size in [1 << 20, 64 << 10, 4 << 10] {
        add(&format!("fixed {}", crate::plot::bytes(size as f64)), similarity(&images, blocks(size)).0);
    }
    let mut variable = Vec::new();
    for function in [WindowFunction::Sha1, WindowFunction::Md5] {
        let spec = window(function, 20, 4, 4);
        let percent = similarity(&images, |data| cut_by_windows(spec, bits, data)).0;
        variable.push(add(&format!("{} windows 20/4", function.name()), percent));
    }
    for text in ["lbfs-sha1:64K/256K/1M", "rabin:64K/256K/1M", "gear32:64K/256K/1M", "gear32:4K/16K/64K"] {
        // Hashing every window of every image takes minutes.
        if lab.scale == Scale::Full || !text.starts_with("lbfs") {
            let chunker = chunker(text)?;
            add(text, similarity(&images, |data| cut(chunker, data)).0);
        }
    }
    check(variable.iter().all(|percent| *percent >= large), "contents find less than large blocks")?;
    outcome.find("fixed 20 MiB, similarity", large, "%", Some(23.0));
    outcome.find("SHA-1 windows, similarity", variable[0], "%", Some(82.0));
    outcome.find("MD5 windows, similarity", variable[1], "%", Some(80.0));
    outcome.plots.push(Plot {
        title: "Similarity between successive images, by the way they are cut".into(),
        form: Form::Bars,
        x: Axis::of("how images are cut", names),
        y: Axis::new("bytes that the image before has too", "%"),
        series: vec![found],
        limits: vec![Limit { name: "all of it".into(), y: 100.0 }],
    });

    let image = &images[images.len() - 1];
    let image = &image[..image.len().min(lab.scale.pick(1 << 16, 32 << 20, usize::MAX))];
    let mut series = vec![
        Series::measured("one core, ordinary function"),
        Series::measured("one core"),
        Series::measured("all cores"),
        Series::model("GeForce 8800"),
    ];
    series.extend(Rig::real(lab).lines());
    let paper = [(155.76, 1015.9), (234.17, 1101.6), (8.06, 194.24), (11.05, 255.21)];
    let ways = [
        ("fixed, SHA-1", Digest::Sha1),
        ("fixed, MD5", Digest::Md5),
        ("variable, SHA-1", Digest::Sha1),
        ("variable, MD5", Digest::Md5),
    ];
    for (at, (name, digest)) in ways.into_iter().enumerate() {
        let rates = if at < 2 {
            direct_rates(lab, image, fixed, digest)
        } else {
            variable_rates(lab, image, bits, digest)
        };
        for (series, rate) in series.iter_mut().zip(&rates) {
            series.push(at as f64, rate.map(|rate| rate / 1e6));
        }
        outcome.find(
            format!("{name}: one core, ordinary function"),
            rates[0].median / 1e6,
            "MB/s",
            Some(paper[at].0),
        );
        outcome.find(format!("{name}: all cores"), rates[2].median / 1e6, "MB/s", None);
        outcome.find(
            format!("{name}: GeForce 8800 (model)"),
            rates[3].median / 1e6,
            "MB/s",
            Some(paper[at].1),
        );
    }
    let gear = ChunkerSpec::DEFAULT;
    let rolled = lab.rate(image.len(), || drop(black_box(name_chunks(image, &cut(gear, image)))));
    outcome.find("gear32 and BLAKE3, one core", rolled.median / 1e6, "MB/s", None);
    outcome.plots.push(Plot {
        title: "Finding similarity: cutting and naming an image".into(),
        form: Form::Bars,
        x: Axis::of("blocks and function", ways.map(|(name, _)| name)),
        y: Axis::log("rate", "MB/s"),
        series,
        limits: vec![Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 }],
    });
    models::note(&mut outcome);
    Ok(outcome)
}

/// On all cores, on the model of the paper's card, and on real devices.
fn on_rigs(lab: &Lab, of_rig: impl Fn(&Rig, usize) -> Spread) -> Vec<Spread> {
    let (real, model) = (Rig::real(lab), Rig::modelled(&[models::GEFORCE_8800], 1, Buffers::Reused));
    let mut rates = vec![of_rig(&Rig::processor(lab.threads), 0), of_rig(&model, 1)];
    rates.extend(real.devices().map(|(device, _)| of_rig(&real, device)));
    rates
}

/// Blocks of a fixed size, each hashed: by the ordinary function, by one core, by all, on the
/// model, and on real devices.
fn direct_rates(lab: &Lab, image: &[u8], size: usize, digest: Digest) -> Vec<Spread> {
    let request = direct(digest);
    let usual = lab.rate(image.len(), || {
        image.chunks(size).for_each(|block| {
            black_box(hash(ordinary(digest), block));
        })
    });
    let of_rig = |rig: &Rig, device: usize| {
        let buffers: Vec<_> = image.chunks(size).map(|block| rig.buffer(block)).collect();
        let all = || buffers.iter().for_each(|buffer| drop(black_box(rig.once(device, &request, buffer))));
        all();
        lab.rate(image.len(), all)
    };
    let one = of_rig(&Rig::processor(1), 0);
    [usual, one].into_iter().chain(on_rigs(lab, of_rig)).collect()
}

/// Hashes windows, cuts blocks behind some of them, and hashes these.
fn variable_rates(lab: &Lab, image: &[u8], bits: u32, digest: Digest) -> Vec<Spread> {
    let function = if digest == Digest::Sha1 { WindowFunction::Sha1 } else { WindowFunction::Md5 };
    let spec = window(function, 20, 4, 4);
    let kind = ordinary(digest);
    let usual = lab.rate(image.len(), || {
        for start in (0..(image.len() + 1).saturating_sub(20)).step_by(4) {
            black_box(hash(kind, &image[start..start + 20]));
        }
        black_box(hash(kind, image));
    });
    let name = |kind: FingerprintKind, ends: &[usize]| {
        let (mut start, mut out) = (0, Vec::new());
        hash_many(kind, image, ends.iter().map(|&end| std::mem::replace(&mut start, end)..end), &mut out);
        drop(black_box(out));
    };
    let mut hashes = Vec::new();
    let one = lab.rate(image.len(), || {
        hashes.clear();
        window_hash_with(SimdLevel::current(), spec, image, &mut hashes);
        name(kind, &ends_of(spec, bits, &hashes, image.len()));
    });
    let of_rig = |rig: &Rig, device: usize| {
        let (buffer, request) = (rig.buffer(image), Request::WindowHash { spec });
        let all = || {
            let (_, done) = rig.once(device, &request, &buffer);
            let mut start = 0;
            let ends = ends_of(spec, bits, &done.output().bytes, image.len());
            let ranges =
                ends.iter().map(|&end| std::mem::replace(&mut start, end) as u32..end as u32).collect();
            rig.once(device, &Request::HashMany { kind, ranges }, &buffer);
        };
        all();
        lab.rate(image.len(), all)
    };
    [usual, one].into_iter().chain(on_rigs(lab, of_rig)).collect()
}
