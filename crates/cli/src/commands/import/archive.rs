//! Import of a tar archive.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_clock::Instant;

use super::super::{Context, before, complain_of_packs, offload, report_skipped, skipped_json, snapshot};
use super::ImportArgs;
use crate::args;
use crate::exit::{Failure, Outcome};
use crate::json::Object;
use crate::output::{counted, print_json, print_text, size};
use crate::progress::{Bar, duration};
use crate::tar::{Archive, Import, Imported, TarError, import};
use crate::when;

pub fn run(context: &Context, args: ImportArgs) -> Outcome {
    let started = Instant::now();
    let to = args::store_path(&args.to)?;
    let (input, len) = open(&args.file)?;
    let read = Arc::new(AtomicU64::new(0));
    let input = Counted { input, read: Arc::clone(&read) };
    // A file that is no archive is refused before the store is opened.
    let mut archive = Archive::new(io::BufReader::with_capacity(1 << 20, input));
    let first = archive.next().map_err(|error| no_archive(&args.file, &error))?;
    let store = context.open_to_store()?;
    // After the import it would be too late.
    when::check_new(&store, None, &args.tag)?;
    offload::use_devices(context, &store, &args.offload)?;
    let progress = context.progress(&store, "committed data is kept; run the same command again");
    let bar = Bar::start_reading(&progress, context.has_no_bar(), len, read);
    let sources = if args.file == "-" { Vec::new() } else { vec![args.file.as_bytes().to_vec()] };
    let before = args.before.snapshot(&store, "import", sources, std::slice::from_ref(&to))?;
    let (threads, before_it) = (context.threads, before.as_ref());
    let how = Import { to: &to, threads, progress: &progress, before: before_it, mirror: None };
    let imported = import(&store, archive, first, how);
    drop(bar);
    let Imported { summary, entries, broken } = imported?;
    let before = before::settle(&store, before.as_deref(), summary.totals.into());
    let broken = broken.map(|error| broken_archive(&args.file, &error));
    // A snapshot with a tag means that the whole archive is there.
    let snapshot = if args.tag.is_empty() || broken.is_some() {
        None
    } else {
        Some(snapshot::tagged(&store, &args.tag, "import", vec![args.file.as_bytes().to_vec()])?)
    };
    context.settle(&store);
    offload::remember(&store);
    offload::complain_of_devices(&store, &progress);
    complain_of_packs(&store);
    let (view, secs) = (&summary.progress, started.elapsed().as_secs_f64());
    if context.json {
        let object = Object::new()
            .with("entries", entries)
            .with("files", view.files_done)
            .with("bytes", view.bytes_done)
            .with("bytes_new", view.bytes_new)
            .with("bytes_stored", view.bytes_stored)
            .with("seconds", secs)
            .with("snapshot", snapshot.map(|snapshot| snapshot.name))
            .with("snapshot_before", before)
            .with("skipped", skipped_json(&progress))
            .with("devices", offload::json(&store))
            .with("table_cache", offload::json_of_table_cache(&store));
        print_json(object)?;
    } else if !context.quiet {
        print_text(&format!(
            "{}, {} in {}: {} new, {} stored{}\n",
            counted(entries, "entry", "entries"),
            size(view.bytes_done),
            duration(secs),
            size(view.bytes_new),
            size(view.bytes_stored),
            before::hint(&store, before.as_deref()),
        ))?;
        print_text(&offload::told(&store))?;
    }
    let exit = report_skipped(&progress);
    match broken {
        Some(failure) => Err(failure),
        None => Ok(exit),
    }
}

/// The archive's bytes, and their number if it is a file.
fn open(file: &OsStr) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    let mut len = None;
    let input: Box<dyn Read> = if file == "-" {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(file)
            .map_err(|error| Failure::io(format!("cannot read {}", Path::new(file).display()), &error))?;
        len = opened.metadata().ok().filter(|found| found.is_file()).map(|found| found.len());
        Box::new(opened)
    };
    Ok((input, len))
}

/// An input that counts the bytes read from it.
struct Counted<R> {
    input: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn no_archive(file: &OsString, error: &TarError) -> Failure {
    let name = if file == "-" { "standard input".to_string() } else { Path::new(file).display().to_string() };
    match error {
        TarError::Io(error) => Failure::io(format!("cannot read {name}"), error),
        TarError::Format(why) => Failure::failed(format!("{name}: {why}")),
    }
}

fn broken_archive(file: &OsString, error: &TarError) -> Failure {
    let mut failure = no_archive(file, error);
    failure.message += "; the entries before that are stored";
    failure
}
