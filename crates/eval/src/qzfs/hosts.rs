//! Figures 9 and 10 with clients and servers on separate hosts, as `bench/genomes.py` measured
//! them. In tiny runs it runs on this machine alone.

use serde_json::Value;

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::recorded::{Recorded, run_tiny, spread};

const COMMAND: &str = "bench/genomes.py --outrigger target/release/outrigger --work DIR --record";
const OPERATIONS: [&str; 5] = ["converting", "viewing", "sorting", "merging", "indexing"];
/// The baseline of the paper's card.
const BASE: &str = "gzip:6";

/// The paper's gains of its card over gzip in software.
struct Paper {
    arrangement: &'static str,
    /// All five operations, and converting: time over gzip's.
    all: Option<f64>,
    converting: f64,
    /// Cost efficiency over gzip's.
    efficiency: f64,
    /// Sorting with the most threads.
    threads: Option<f64>,
}

const PAPER: [Paper; 3] = [
    Paper { arrangement: "one machine", all: None, converting: 0.27, efficiency: 3.91, threads: Some(0.4) },
    Paper {
        arrangement: "1 client, 2 servers",
        all: Some(0.369),
        converting: 0.3105,
        efficiency: 6.0,
        threads: None,
    },
    Paper {
        arrangement: "2 clients, 2 servers",
        all: Some(0.3686),
        converting: f64::NAN,
        efficiency: 6.26,
        threads: None,
    },
];

/// One arrangement of the record.
struct Arrangement<'a> {
    name: &'a str,
    json: &'a Value,
}

impl Arrangement<'_> {
    fn codecs(&self) -> Vec<String> {
        let mut codecs: Vec<String> =
            self.json.as_object().into_iter().flatten().map(|(codec, _)| codec.clone()).collect();
        // The order of the other plots; unknown codecs come last.
        let order = ["none", BASE, "lz4", "zstd:1", "auto"];
        codecs.sort_by_key(|codec| order.iter().position(|known| known == codec).unwrap_or(order.len()));
        codecs
    }

    fn operation(&self, codec: &str, operation: &str, key: &str) -> Option<Spread> {
        spread(&self.json[codec]["operations"][operation], |round| round[key].as_f64())
    }

    fn threads(&self, codec: &str, count: &str, key: &str) -> Option<Spread> {
        spread(&self.json[codec]["threads"][count], |round| round[key].as_f64())
    }

    fn ratio(&self, codec: &str) -> Option<f64> {
        spread(&self.json[codec]["ratio"], Value::as_f64).map(|ratio| ratio.median)
    }

    /// Medians of all five operations together.
    fn all(&self, codec: &str, key: &str) -> Option<f64> {
        let each = OPERATIONS.iter().map(|operation| self.operation(codec, operation, key));
        each.map(|spread| spread.map(|spread| spread.median)).sum()
    }

    /// Processor seconds of mounts and servers for one operation.
    fn processor(&self, codec: &str, operation: &str) -> Option<f64> {
        let of = |key| self.operation(codec, operation, key).map(|spread| spread.median);
        Some(of("client_cpu_s")? + of("server_cpu_s")?)
    }

    /// Ratio over processor time, relative to gzip.
    fn efficiency(&self, codec: &str, operation: &str) -> Option<f64> {
        let of = |codec| Some(self.ratio(codec)? / self.processor(codec, operation)?.max(0.01));
        Some(of(codec)? / of(BASE)?)
    }
}

/// All of its measurements.
pub fn drawn(lab: &Lab) -> Result<Outcome, Failed> {
    let record =
        if lab.scale == Scale::Tiny { tiny(lab)? } else { Recorded::newest(lab, "genomes", COMMAND)? };
    let mut outcome = Outcome::default();
    let below = &record.json["below"];
    for paper in &PAPER {
        let json = &record.json["arrangements"][paper.arrangement];
        if json.is_null() {
            continue;
        }
        let of = Arrangement { name: paper.arrangement, json };
        findings(&of, paper, &mut outcome);
        outcome.plots.push(operations(&of, below)?);
        outcome.plots.push(threads(&of, below)?);
        outcome.plots.push(efficiency(&of)?);
        outcome.plots.extend(wire(&of));
    }
    check(!outcome.plots.is_empty(), "the record has no arrangement")?;
    for (part, why) in record.json["left_out"].as_object().into_iter().flatten() {
        outcome.note(format!("Left out: {part} ({}).", why.as_str().unwrap_or_default()));
    }
    outcome.note(
        "Times end when all that was written is in packs, compressed. Each client runs its processes side by side, and has mounted anew, so that what it reads comes from \
         the servers. BAM is written uncompressed. The limit is the same work in a directory of the file system below, by one client. Cost efficiency is ratio over the \
         processor time of mounts and servers together, in times gzip's.",
    );
    let more =
        format!(", {} processes a client, {} reads a file", record.json["processes"], record.json["reads"]);
    record.note(&mut outcome, &more);
    Ok(outcome)
}

fn findings(of: &Arrangement<'_>, paper: &Paper, outcome: &mut Outcome) {
    let name = of.name;
    let mut find = |what: &str, value: Option<f64>, unit: &str, paper: Option<f64>| {
        if let Some(value) = value {
            outcome.find(format!("{name}: {what}"), value, unit, paper.filter(|paper| paper.is_finite()));
        }
    };
    find("gzip:6, ratio", of.ratio(BASE), "x", Some(3.78));
    find("zstd:1, ratio", of.ratio("zstd:1"), "x", None);
    let times = |codec: &str, key| Some(of.all(codec, key)? / of.all(BASE, key)?);
    find("zstd:1 over gzip, all five", times("zstd:1", "stored_s"), "x", paper.all);
    find("no codec over gzip, all five", times("none", "stored_s"), "x", None);
    let converting = |codec| Some(of.operation(codec, "converting", "stored_s")?.median);
    let gain = converting("zstd:1").zip(converting(BASE)).map(|(ours, base)| ours / base);
    find("zstd:1 over gzip, converting", gain, "x", Some(paper.converting));
    let mean = OPERATIONS.iter().map(|operation| of.efficiency("zstd:1", operation)).sum::<Option<f64>>();
    let mean = mean.map(|sum| sum / OPERATIONS.len() as f64);
    find("zstd:1 over gzip, cost efficiency", mean, "x", Some(paper.efficiency));
    let most = of.json[BASE]["threads"]
        .as_object()
        .and_then(|all| all.keys().max_by_key(|count| count.parse::<u32>().unwrap_or(0)).map(String::as_str));
    let sorting = |codec| Some(of.threads(codec, most?, "stored_s")?.median);
    let gain = sorting("zstd:1").zip(sorting(BASE)).map(|(ours, base)| ours / base);
    find("zstd:1 over gzip, sorting, most threads", gain, "x", paper.threads);
    let shares = |codec: &str| {
        let servers = of.all(codec, "server_cpu_s")?;
        Some(100.0 * servers / (servers + of.all(codec, "client_cpu_s")?).max(1e-9))
    };
    if of.name != "one machine" {
        find("of the processor time for gzip, the servers'", shares(BASE), "%", Some(100.0));
    }
}

fn operations(of: &Arrangement<'_>, below: &Value) -> Result<Plot, Failed> {
    let mut series = Vec::new();
    for codec in of.codecs() {
        let mut line = Series::measured(codec.clone());
        for (at, operation) in OPERATIONS.iter().enumerate() {
            let found = of.operation(&codec, operation, "stored_s");
            found.into_iter().for_each(|spread| line.push(at as f64, spread));
        }
        series.push(line);
    }
    let floor = |at: usize| {
        let wall = spread(&below["operations"][OPERATIONS[at]], |round| round["wall_s"].as_f64());
        wall.map(|wall| (at as f64, wall.median))
    };
    let floors: Vec<(f64, f64)> = (0..OPERATIONS.len()).filter_map(floor).collect();
    check(!floors.is_empty(), "the record does not say what the file system below does")?;
    series.push(Series::limit("file system below", &floors));
    Ok(Plot {
        title: format!("Five operations, {}", of.name),
        form: Form::Bars,
        x: Axis::of("operation", OPERATIONS),
        y: Axis::new("time", "s"),
        series,
        limits: Vec::new(),
    })
}

fn threads(of: &Arrangement<'_>, below: &Value) -> Result<Plot, Failed> {
    let counts = |json: &Value| {
        let mut counts: Vec<u32> =
            json.as_object().into_iter().flatten().filter_map(|(count, _)| count.parse().ok()).collect();
        counts.sort_unstable();
        counts
    };
    let mut series = Vec::new();
    for codec in of.codecs() {
        let mut line = Series::measured(codec.clone());
        for count in counts(&of.json[&codec]["threads"]) {
            let found = of.threads(&codec, &count.to_string(), "stored_s");
            found.into_iter().for_each(|spread| line.push(f64::from(count), spread));
        }
        series.push(line);
    }
    let floors: Vec<(f64, f64)> = counts(&below["threads"])
        .into_iter()
        .filter_map(|count| {
            let wall = spread(&below["threads"][count.to_string()], |round| round["wall_s"].as_f64())?;
            Some((f64::from(count), wall.median))
        })
        .collect();
    check(!floors.is_empty(), "the record does not say what the file system below does")?;
    series.push(Series::limit("file system below", &floors));
    Ok(Plot {
        title: format!("Sorting by threads of each process, {}", of.name),
        form: Form::Lines,
        x: Axis::log("threads", "at once"),
        y: Axis::new("time", "s"),
        series,
        limits: Vec::new(),
    })
}

fn efficiency(of: &Arrangement<'_>) -> Result<Plot, Failed> {
    let mut series = Vec::new();
    for codec in of.codecs() {
        let mut line = Series::measured(codec.clone());
        for (at, operation) in OPERATIONS.iter().enumerate() {
            of.efficiency(&codec, operation).into_iter().for_each(|value| line.exact(at as f64, value));
        }
        series.push(line);
    }
    check(series.iter().any(|line| !line.points.is_empty()), "the record has no gzip to compare with")?;
    // The best ratio at the least time of any codec.
    let ratio = of.codecs().iter().filter_map(|codec| of.ratio(codec)).fold(0.0, f64::max);
    let bound = |at: usize| {
        let least = of
            .codecs()
            .iter()
            .filter_map(|codec| of.processor(codec, OPERATIONS[at]))
            .fold(f64::MAX, f64::min);
        let base = of.ratio(BASE)? / of.processor(BASE, OPERATIONS[at])?.max(0.01);
        Some((at as f64, ratio / least.max(0.01) / base))
    };
    let bounds: Vec<(f64, f64)> = (0..OPERATIONS.len()).filter_map(bound).collect();
    series.push(Series::limit("best ratio at the least processor time", &bounds));
    Ok(Plot {
        title: format!("Cost efficiency, {}", of.name),
        form: Form::Bars,
        x: Axis::of("operation", OPERATIONS),
        y: Axis::new("ratio over processor time, in times gzip's", "x"),
        series,
        limits: Vec::new(),
    })
}

/// Bytes at the clients' interfaces, if they have some.
fn wire(of: &Arrangement<'_>) -> Option<Plot> {
    let none = of.all("none", "wire_bytes")?;
    let mut line = Series::measured("all five operations");
    let codecs = of.codecs();
    for (at, codec) in codecs.iter().enumerate() {
        line.exact(at as f64, of.all(codec, "wire_bytes")? / 1e6);
    }
    Some(Plot {
        title: format!("Bytes at the clients' interfaces, {}", of.name),
        form: Form::Bars,
        x: Axis::of("codec", codecs),
        y: Axis::new("sent and received", "MB"),
        series: vec![line],
        limits: vec![Limit {
            name: "as they are: what crosses where servers compress".into(),
            y: none / 1e6,
        }],
    })
}

fn tiny(lab: &Lab) -> Result<Recorded, Failed> {
    let workload = lab.outrigger.as_ref().map(|program| program.with_file_name("outrigger-workload"));
    if workload.is_some_and(|workload| !workload.exists()) {
        return Err(Failed::Missing(
            "the program `outrigger-workload` is not beside `outrigger`: build it".into(),
        ));
    }
    let options = "--reads 300 --processes 2 --rounds 1 --threads 1,2 --codecs none,gzip:6,zstd:1";
    let json = run_tiny(lab, "genomes.py", options, &[("samtools", "samtools")])?;
    Ok(Recorded::made(json, COMMAND))
}
