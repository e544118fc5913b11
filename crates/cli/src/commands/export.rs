//! `export`: writes a tree as a tar archive.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_store::file::Extent;
use outrigger_store::meta::{At, DirEntry, Inode};
use outrigger_store::read::Reader;
use outrigger_store::text::show;
use outrigger_store::tree::{check_name, listing};
use outrigger_store::write::{Progress, Step};
use outrigger_store::{Error, ErrorKind, Store};

use super::get::stored_bytes;
use super::{Context, report_skipped, skipped_json};
use crate::args;
use crate::exit::{Failure, Outcome};
use crate::json::Object;
use crate::output::{counted, print_json, print_text, size};
use crate::progress::{Bar, Total};
use crate::tar::{Fields, TarWriter};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger export tree tree.tar
  outrigger export tree | tar x -C out --xattrs
  outrigger export --at nightly src - | zstd > src.tar.zst

Names in the archive start below the directory, so `outrigger import tree.tar --to tree` makes the
same tree again. The format is pax: it keeps long names, times to the nanosecond, extended
attributes and holes (as GNU tar's `--sparse`). Sockets are left out and named (exit code 4).";

/// Write a tree or file as a tar archive
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// A directory or file in the store
    path: OsString,
    /// The archive; `-` is standard output
    #[arg(default_value = "-")]
    file: OsString,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
}

pub fn run(context: &Context, args: ExportArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let to_stdout = args.file == "-";
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "an archive cannot go to a terminal; name a file, or redirect standard output",
        ));
    }
    let store = context.open()?;
    store.require_contents()?;
    let view = context.view(&store, "export", args.at.as_deref())?;
    let top = args::entry(&store, view.at, &path)?;
    let progress = context.progress_beside(&store, "the archive is incomplete", to_stdout);
    let total = Total::default();
    let bar = Bar::start(&progress, context.has_no_bar(), Arc::clone(&total), false);
    if bar.is_some() {
        let _ = total.set(stored_bytes(&store, view.at, &top)?);
    }
    let out: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        let created = File::create(&args.file);
        Box::new(created.map_err(|error| {
            Failure::io(format!("cannot write {}", Path::new(&args.file).display()), &error)
        })?)
    };
    let mut export = Export {
        store: &store,
        at: view.at,
        reader: Reader::new(&store),
        tar: TarWriter::new(BufWriter::with_capacity(1 << 20, out)),
        links: HashMap::new(),
        progress: &progress,
    };
    let written = export.tree(&top, path.name().unwrap_or_default()).and_then(|()| {
        export.tar.finish().map(drop).map_err(|error| Failure::io("cannot write the archive", &error))
    });
    drop(bar);
    if let Err(mut failure) = written {
        if !failure.message.is_empty() {
            failure.message += "; the archive is incomplete";
        }
        return Err(failure);
    }
    let counters = progress.view();
    if !to_stdout && context.json {
        let object = Object::new().with("entries", counters.files_done).with("bytes", counters.bytes_done);
        print_json(object.with("skipped", skipped_json(&progress)))?;
    } else if !to_stdout && !context.quiet {
        let entries = counted(counters.files_done, "entry", "entries");
        print_text(&format!("exported {entries}, {}\n", size(counters.bytes_done)))?;
    }
    Ok(report_skipped(&progress))
}

struct Export<'a, W: Write> {
    store: &'a Store,
    at: At,
    reader: Reader<'a>,
    tar: TarWriter<W>,
    /// Maps an inode with several names to the first of them.
    links: HashMap<u64, Vec<u8>>,
    progress: &'a Progress,
}

impl<W: Write> Export<'_, W> {
    fn tree(&mut self, top: &Inode, name: &[u8]) -> Result<(), Failure> {
        if top.attributes.kind != FileKind::Directory {
            return self.entry(name, top);
        }
        self.entry(b".", top)?;
        let (store, at) = (self.store, self.at);
        // The directory that was left out last. Paths that begin with it are below it.
        let mut refused: Option<Vec<u8>> = None;
        listing::walk(&*store.meta, at, top.number, true, &mut |path, entry: &DirEntry| {
            if refused.as_ref().is_some_and(|refused| path.starts_with(refused)) {
                return Ok(());
            }
            // A store is untrusted, and a program that unpacks the archive may trust its names.
            if let Err(error) = check_name(&entry.name) {
                self.progress.skip(show(path), error.to_string());
                refused = Some([path, b"/"].concat());
                return Ok(());
            }
            self.entry(path, &entry.inode)
        })
    }

    fn entry(&mut self, path: &[u8], inode: &Inode) -> Result<(), Failure> {
        let attributes = &inode.attributes;
        if attributes.kind == FileKind::Socket {
            self.progress.skip(show(path), "a socket; tar archives cannot hold sockets");
            return Ok(());
        }
        let is_directory = attributes.kind == FileKind::Directory;
        let mut path = path.to_vec();
        if is_directory {
            path.push(b'/');
        }
        // Before its header is written: what cannot be read for want of a key is passed over.
        if attributes.kind == FileKind::File
            && !inode.root.is_empty()
            && let Err(error) = self.store.require_readable(attributes)
        {
            self.progress.skip(show(&path), error.to_string());
            return Ok(());
        }
        let link = self.links.get(&inode.number).cloned();
        if link.is_none() && inode.links > 1 && !is_directory {
            self.links.insert(inode.number, path.clone());
        }
        let has_data = link.is_none() && attributes.kind == FileKind::File;
        let size = if has_data { inode.root.len() } else { 0 };
        let refused = |error: io::Error| Failure::io("cannot write the archive", &error);
        let named = |error: Error| Failure::from(error.context(format!("`{}`", show(&path))));
        let extents = if has_data { self.reader.sparse_extents(&inode.root).map_err(named)? } else { None };
        let (extents, link) = (extents.as_deref(), link.as_deref());
        self.tar.begin_entry(&Fields { path: &path, attributes, link, size, extents }).map_err(refused)?;
        if has_data {
            let whole = [Extent { hole_before: 0, start: 0, len: u64::MAX }];
            for extent in extents.unwrap_or(&whole) {
                self.content(&path, inode, extent.start, extent.len)?;
            }
        }
        self.tar.end_entry().map_err(refused)?;
        Progress::add(&self.progress.files_done, 1);
        self.progress.entry(Step::Added, || path);
        Ok(())
    }

    fn content(&mut self, path: &[u8], inode: &Inode, offset: u64, len: u64) -> Result<(), Failure> {
        let (tar, progress, mut refused) = (&mut self.tar, self.progress, None);
        let read = self.reader.read(&inode.root, offset, len, &mut |bytes| {
            Progress::add(&progress.bytes_done, bytes.len() as u64);
            tar.data(bytes).map_err(|error| {
                refused = Some(Failure::io("cannot write the archive", &error));
                Error::new(ErrorKind::Cancelled, "the archive cannot be written")
            })
        });
        match refused {
            Some(failure) => Err(failure),
            None => read.map_err(|error| Failure::from(error.context(format!("`{}`", show(path))))),
        }
    }
}
