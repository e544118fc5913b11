//! The cost of a request between a program, the kernel and a file system that does nothing:
//!
//! ```text
//! cargo bench -p outrigger-fuse --bench transport [-- read write getattr create readlarge writelarge]
//! ```
//!
//! Operations per second, the median of several rounds in turns, with one and with two client
//! threads. Needs the right to mount. `cargo test --benches` runs everything once, for a moment.
//! Results are checked.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod client;
mod memory;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use outrigger_fuse::kernel::{MountOptions, Transport, mount_by};
use outrigger_fuse::mounts;

use client::Work;
use memory::Memory;

/// Threads of the program.
const CLIENTS: [usize; 2] = [1, 2];

/// A way between kernel and file system.
struct Variant {
    name: &'static str,
    transport: Transport,
    threads: usize,
}

const VARIANTS: [Variant; 3] = [
    Variant { name: "device, 1 thread", transport: Transport::Device, threads: 1 },
    Variant { name: "device, 2 threads", transport: Transport::Device, threads: 2 },
    Variant { name: "io_uring", transport: Transport::Rings, threads: 2 },
];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, work, dir, threads, millis] = arguments.as_slice()
        && first == "client"
    {
        return be_client(work, Path::new(dir), threads, millis);
    }
    // Cargo passes `--bench` when benchmarking and nothing when testing.
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let wanted = |name: &str| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|argument| argument.eq_ignore_ascii_case(name))
    };
    let (rounds, time) = if quick { (1, Duration::from_millis(30)) } else { (5, Duration::from_millis(600)) };

    let works: Vec<Work> = Work::ALL.into_iter().filter(|work| wanted(&format!("{work:?}"))).collect();
    let columns: Vec<(Work, usize)> =
        works.iter().flat_map(|work| CLIENTS.map(|clients| (*work, clients))).collect();
    let mut rates = vec![vec![Vec::new(); columns.len()]; VARIANTS.len()];
    for _ in 0..rounds {
        for (variant, rates) in VARIANTS.iter().zip(&mut rates) {
            let Some(measured) = measure(variant, &columns, time)? else { continue };
            rates.iter_mut().zip(measured).for_each(|(rates, rate)| rates.push(rate));
        }
    }

    print!("| |");
    columns.iter().for_each(|(work, clients)| print!(" {work:?} x{clients} |"));
    println!("\n|{}", " --- |".repeat(columns.len() + 1));
    let medians: Vec<Vec<f64>> =
        rates.into_iter().map(|rates| rates.into_iter().map(median).collect()).collect();
    for (variant, rates) in VARIANTS.iter().zip(&medians).filter(|(_, rates)| !rates.contains(&0.0)) {
        print!("| {} |", variant.name);
        for (rate, first) in rates.iter().zip(&medians[0]) {
            print!(" {rate:.0}/s ({:.2}) |", rate / first);
        }
        println!();
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

/// Operations per second of each column; `None`, with the reason printed, where FUSE cannot be
/// used.
fn measure(variant: &Variant, columns: &[(Work, usize)], time: Duration) -> io::Result<Option<Vec<f64>>> {
    let dir = tempfile::tempdir()?;
    let point = dir.path().canonicalize()?;
    let options = MountOptions {
        source: "bench".to_string(),
        read_only: false,
        allow_other: false,
        check_permissions: false,
        suid: false,
        dev: false,
        exec: false,
        threads: variant.threads,
    };
    let mounted = match mount_by(variant.transport, Memory::new(CLIENTS[1]), &point, &options) {
        Ok(mounted) if mounted.transport() != variant.transport => {
            println!("skipped: {}: the kernel does not offer it", variant.name);
            drop(mounted);
            mounts::unmount(&point, true)?;
            return Ok(None);
        }
        Ok(mounted) => mounted,
        Err(error) => {
            println!("skipped: cannot mount: {error}");
            return Ok(None);
        }
    };
    let (ready, wait) = mpsc::channel();
    let serving = std::thread::spawn(move || {
        mounted.serve(move || {
            let _ = ready.send(());
        })
    });
    wait.recv().map_err(io::Error::other)?;
    let rates: io::Result<Vec<f64>> = columns
        .iter()
        .map(|&(work, clients)| {
            wait_for_quiet(time);
            ask_client(work, &point, clients, time)
        })
        .collect();
    mounts::unmount(&point, true)?;
    serving.join().unwrap()?;
    rates.map(Some)
}

/// Waits, with a limit, until the machine is otherwise idle: a processor that other work keeps
/// awake reacts at once, which hides the differences to be measured.
fn wait_for_quiet(time: Duration) {
    let busy = || {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = ticks.filter_map(|ticks| ticks.parse().ok()).collect();
        // All but idle and waiting for disks.
        ticks
            .iter()
            .enumerate()
            .filter(|(kind, _)| !matches!(kind, 3 | 4))
            .map(|(_, ticks)| ticks)
            .sum::<u64>()
    };
    for _ in 0..5 {
        let (before, pause) = (busy(), time / 4);
        std::thread::sleep(pause);
        // A tick is 10 ms.
        if (busy() - before) * 100 <= pause.as_millis() as u64 {
            return;
        }
    }
}

/// Runs this program again as a client.
fn ask_client(work: Work, point: &Path, threads: usize, time: Duration) -> io::Result<f64> {
    let program: PathBuf = std::env::current_exe()?;
    let said = Command::new(program)
        .args(["client", &format!("{work:?}")])
        .arg(point)
        .args([threads.to_string(), time.as_millis().to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    text.trim().parse().map_err(|_| {
        let why = String::from_utf8_lossy(&said.stderr);
        io::Error::other(format!("{work:?}: {text}{why}"))
    })
}

fn be_client(work: &str, dir: &Path, threads: &str, millis: &str) -> io::Result<()> {
    let work = Work::ALL.into_iter().find(|known| format!("{known:?}") == work);
    let (Some(work), Ok(threads), Ok(millis)) = (work, threads.parse(), millis.parse()) else {
        return Err(io::Error::other("bench client: what?"));
    };
    println!("{}", client::run(work, dir, threads, Duration::from_millis(millis))?);
    Ok(())
}
