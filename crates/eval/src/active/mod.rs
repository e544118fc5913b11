//! "Evaluation of Active Storage Strategies for the Lustre Parallel File System": its two programs,
//! run by a client and by storage hosts.
//!
//! `bench/active.py` runs on several hosts; it needs a cluster and a quarter of an hour. Its newest
//! record is drawn. In tiny runs the same script runs on this machine alone, as one host.

mod measured;

use crate::experiment::{Experiment, Paper};
use crate::lab::{Failed, Lab};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

use measured::{PROGRAMS, Program, Report};

/// The paper's experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::ActiveStorage;
    vec![
        Experiment {
            id: "active-6",
            paper,
            figure: "figure 6",
            title: "DSCAL and AMINOGEN with 1, 2 and 4 storage hosts: the whole time",
            found: "With one host all ways of DSCAL took the same time; with 2 and 4 the storage hosts took a half and a quarter of it, the client as long as before. AMINOGEN in the \
                    path of the data took 1.8 to 2.1 times as long as beside it.",
            said: &[
                ("dscal, 1 hosts: in the path over beside", "about 1"),
                ("dscal, 2 hosts: in the path over beside", "about 1"),
                ("dscal, 4 hosts: in the path over beside", "about 1"),
                ("aminogen, 1 hosts: in the path over beside", "1.80"),
                ("aminogen, 2 hosts: in the path over beside", "2.07"),
                ("aminogen, 4 hosts: in the path over beside", "2.07"),
                ("dscal, 2 hosts: beside, one host's time over theirs", "about 2"),
                ("dscal, 4 hosts: beside, one host's time over theirs", "about 4"),
                ("aminogen, 2 hosts: beside, one host's time over theirs", "about 2"),
                ("aminogen, 4 hosts: beside, one host's time over theirs", "about 4"),
            ],
            differs: "Hosts are network namespaces of one machine, so they share its processors: what more hosts bring is seen with programs of a limited rate only. In the path: a \
                      host's agent hands what is written in the client's mount to program and store as it comes; stream: the client sends its input to programs on the hosts (which older records call the path); beside: agents, over what is stored. In the path is mostly the quicker of the two here: the program works while data still come \
                      and nothing is read back, where the paper's stream bypassed the servers' cache and had one thread.",
            run: overall,
        },
        Experiment {
            id: "active-3",
            paper,
            figure: "tables 3, 4",
            title: "When the client is free again",
            found: "As soon as its data is transferred: 6 to 31 s for DSCAL instead of over 1,100 s, under a second for AMINOGEN instead of 300 s; hardly a difference between the two ways.",
            said: &[
                ("dscal, 1 hosts: client free, over a plain write", "about 1"),
                ("dscal, 2 hosts: client free, over a plain write", "about 1"),
                ("dscal, 4 hosts: client free, over a plain write", "about 1"),
                ("dscal, 1 hosts: client free, over doing it itself", "0.027"),
                ("dscal, 2 hosts: client free, over doing it itself", "0.012"),
                ("dscal, 4 hosts: client free, over doing it itself", "0.0057"),
                ("aminogen, 1 hosts: client free, over doing it itself", "under 0.0031"),
                ("aminogen, 2 hosts: client free, over doing it itself", "under 0.0033"),
                ("aminogen, 4 hosts: client free, over doing it itself", "under 0.0033"),
                ("dscal, 1 hosts: client free, in the path over beside", "0.97"),
                ("dscal, 2 hosts: client free, in the path over beside", "0.97"),
                ("dscal, 4 hosts: client free, in the path over beside", "0.98"),
            ],
            differs: "The client waits until the data is durable, in packs and database; the paper's had it in servers' memory. In the path it also waits for a program that is slower than it writes: up to four times \
                      as long as beside. A plain write of the same files is measured beside it.",
            run: client,
        },
        Experiment {
            id: "active-5",
            paper,
            figure: "tables 5, 6",
            title: "What crosses the client's interface",
            found: "DSCAL: 2,840 MB when the client does it, 1,050 to 1,086 MB for the input of 1 GB with active storage. AMINOGEN: 14.8 GB against 4 to 22 MB.",
            said: &[
                ("aminogen: without, over input and output", "1.04"),
                ("aminogen: with, over the input", "about 275,000"),
                ("dscal, 2 hosts: without", "2840"),
                ("dscal, 4 hosts: without", "2839"),
                ("dscal, 2 hosts: in the path", "1063"),
                ("dscal, 4 hosts: in the path", "1051"),
                ("dscal, 2 hosts: with", "1062"),
                ("dscal, 4 hosts: with", "1050"),
                ("aminogen, 2 hosts: without", "14,808"),
                ("aminogen, 4 hosts: without", "14,848"),
                ("aminogen, 2 hosts: in the path", "15.77"),
                ("aminogen, 4 hosts: in the path", "7.20"),
                ("aminogen, 2 hosts: with", "7.69"),
                ("aminogen, 4 hosts: with", "4.02"),
            ],
            differs: "Bytes sent and received by the client's interface, headers included, as in the paper. A mount compresses before it sends, so that less can cross than is written; \
                      sizes are smaller, and shown as multiples of what goes in.",
            run: traffic,
        },
        Experiment {
            id: "active-rates",
            paper,
            figure: "section 5",
            title: "What a split costs, what a program is fed, and whether hosts add up",
            found: "Work that is done where its data lies grows with the number of servers; the paper gives no cost of a split.",
            said: &[],
            differs: "Splits are tiny, so that nothing else is seen; programs are compared with themselves on a local file. Hosts add up with programs that read at a limited rate.",
            run: rates,
        },
    ]
}

fn overall(lab: &Lab) -> Result<Outcome, Failed> {
    let report = Report::find(lab)?;
    let mut outcome = Outcome::default();
    for program in PROGRAMS {
        let of = report.program(program)?;
        let (ways, limit) = (["none", "stream", "path", "beside"], plain_write(&report, of)?);
        outcome.plots.push(plot(&report, of, "time", "s", &ways, ("overall_s", 1.0), limit)?);
        for (at, host) in report.hosts()?.iter().enumerate() {
            let both = of.spread("path", *host, "overall_s").zip(of.spread("beside", *host, "overall_s"));
            if let Some((path, beside)) = both {
                let said = [1.799, 2.068, 2.074].get(at).copied().filter(|_| program == "aminogen");
                let name = format!("{program}, {host} hosts: in the path over beside");
                outcome.find(name, path.median / beside.median, "x", said);
            }
        }
        for way in ["path", "beside"] {
            let Some(one) = of.spread(way, 1, "overall_s") else { continue };
            for host in report.hosts()?.into_iter().filter(|host| *host > 1) {
                if let Some(several) = of.spread(way, host, "overall_s") {
                    let way = if way == "path" { "in the path" } else { way };
                    let name = format!("{program}, {host} hosts: {way}, one host's time over theirs");
                    outcome.find(name, one.median / several.median, "x", None);
                }
            }
        }
    }
    report.note(&mut outcome);
    Ok(outcome)
}

fn client(lab: &Lab) -> Result<Outcome, Failed> {
    let report = Report::find(lab)?;
    let mut outcome = Outcome::default();
    for program in PROGRAMS {
        let of = report.program(program)?;
        let ways = ["plain", "none", "stream", "path", "beside"];
        let limit = plain_write(&report, of)?;
        outcome.plots.push(plot(&report, of, "time of the client", "s", &ways, ("client_s", 1.0), limit)?);
        for host in report.hosts()? {
            let both = of.spread("beside", host, "client_s").zip(of.spread("plain", host, "client_s"));
            if let Some((beside, plain)) = both {
                let name = format!("{program}, {host} hosts: client free, over a plain write");
                outcome.find(name, beside.median / plain.median, "x", None);
            }
            let both = of.spread("beside", host, "client_s").zip(of.spread("none", host, "client_s"));
            if let Some((beside, none)) = both {
                let name = format!("{program}, {host} hosts: client free, over doing it itself");
                outcome.find(name, beside.median / none.median, "x", None);
            }
            let both = of.spread("path", host, "client_s").zip(of.spread("beside", host, "client_s"));
            if let Some((path, beside)) = both {
                let name = format!("{program}, {host} hosts: client free, in the path over beside");
                outcome.find(name, path.median / beside.median, "x", None);
            }
        }
    }
    report.note(&mut outcome);
    Ok(outcome)
}

fn traffic(lab: &Lab) -> Result<Outcome, Failed> {
    let report = Report::find(lab)?;
    let mut outcome = Outcome::default();
    // With active storage and without, as multiples of the input and of input and output.
    for (program, said) in PROGRAMS.into_iter().zip([Some([2840.0 / 2700.0, 1084.0 / 1000.0]), None]) {
        let of = report.program(program)?;
        let (none, beside) = (of.spread("none", 1, "client_bytes"), of.spread("beside", 1, "client_bytes"));
        let Some((none, beside)) = none.zip(beside) else {
            return Err(Failed::Missing(
                "bytes can be counted only where the client has an interface: on a cluster".into(),
            ));
        };
        let (input, output) = of.bytes()?;
        let limit = Limit { name: "input and output, as they are".into(), y: (input + output) / 1e6 };
        let ways = ["none", "stream", "path", "beside"];
        outcome.plots.push(plot(&report, of, "at the client", "MB", &ways, ("client_bytes", 1e6), limit)?);
        let (without, with) = (none.median / (input + output), beside.median / input);
        outcome.find(
            format!("{program}: without, over input and output"),
            without,
            "x",
            said.map(|said| said[0]),
        );
        outcome.find(format!("{program}: with, over the input"), with, "x", said.map(|said| said[1]));
        outcome.find(
            format!("{program}: with"),
            beside.median / 1e6,
            "MB",
            Some(if program == "dscal" { 1084.1 } else { 12.12 }),
        );
        for host in report.hosts()?.into_iter().filter(|host| *host > 1) {
            for (way, name) in [("none", "without"), ("path", "in the path"), ("beside", "with")] {
                if let Some(bytes) = of.spread(way, host, "client_bytes") {
                    outcome.find(format!("{program}, {host} hosts: {name}"), bytes.median / 1e6, "MB", None);
                }
            }
        }
    }
    report.note(&mut outcome);
    Ok(outcome)
}

fn rates(lab: &Lab) -> Result<Outcome, Failed> {
    let report = Report::find(lab)?;
    let mut outcome = Outcome::default();
    report.costs(&mut outcome)?;
    let hosts = report.hosts()?;
    let mut line = Series::measured("limited programs");
    let mut limit = Series::limit("what they are limited to", &[]);
    for (at, host) in hosts.iter().enumerate() {
        let (rate, most) = report.scale(*host)?;
        line.exact(at as f64, rate / 1e6);
        limit.exact(at as f64, most / 1e6);
        let [fed, came] = report.elsewhere(*host);
        let told = [
            ("their input from other hosts", fed),
            ("all that came to their hosts, over their input as stored", came),
        ];
        for (what, share) in told {
            if let Some(share) = share {
                outcome.find(format!("limited programs, {host} hosts: {what}"), share, "%", None);
            }
        }
    }
    outcome.plots.push(Plot {
        title: "Programs that read at a limited rate, one a host".into(),
        form: Form::Bars,
        x: Axis::of("hosts", hosts.iter().map(ToString::to_string)),
        y: Axis::new("rate of all", "MB/s"),
        series: vec![line, limit],
        limits: Vec::new(),
    });
    report.note(&mut outcome);
    Ok(outcome)
}

/// A plain write of the input: no way that stores it is faster.
fn plain_write(report: &Report, program: Program<'_>) -> Result<Limit, Failed> {
    let plain = report.hosts()?.into_iter().filter_map(|host| program.spread("plain", host, "client_s"));
    let y = plain.map(|spread| spread.median).fold(f64::MAX, f64::min);
    Ok(Limit { name: "a plain write of the input".into(), y })
}

/// Bars by number of hosts, with one colour per way.
fn plot(
    report: &Report,
    program: Program<'_>,
    what: &str,
    unit: &str,
    ways: &[&str],
    (key, factor): (&str, f64),
    limit: Limit,
) -> Result<Plot, Failed> {
    let hosts = report.hosts()?;
    let mut series = Vec::new();
    for way in ways {
        let mut line = Series::measured(*way);
        for (at, host) in hosts.iter().enumerate() {
            if let Some(spread) = program.spread(way, *host, key) {
                line.push(at as f64, spread.map(|value| value / factor));
            }
        }
        // Older records have no asynchronous stream.
        if !line.points.is_empty() {
            series.push(line);
        }
    }
    Ok(Plot {
        title: format!("{}: {what}", program.name),
        form: Form::Bars,
        x: Axis::of("hosts", hosts.iter().map(ToString::to_string)),
        y: Axis::new(what, unit),
        series,
        limits: vec![limit],
    })
}
