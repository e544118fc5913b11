//! `cat`: writes files to standard output.

use std::ffi::OsString;

use clap::Args;
use outrigger_format::catalogue::FileKind;
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind};

use super::Context;
use super::get::version_root;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Out;
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger cat notes.txt
  outrigger cat --offset 1G --length 4K images/disk.img | xxd
  outrigger cat 'logs/*.txt'                     a quoted pattern: stored names that match
  outrigger cat --at -1d notes.txt | diff - notes.txt";

/// Write files to standard output
///
/// Only verified bytes are written. At damage the command stops with exit code 3.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CatArgs {
    /// Files in the store, or quoted patterns
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// The offset to start at, in each file
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = args::size)]
    offset: u64,
    /// At most so many bytes of each file
    #[arg(long, value_name = "BYTES", value_parser = args::size)]
    length: Option<u64>,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
    /// An earlier version, by its number
    #[arg(long, value_name = "N", conflicts_with = "at")]
    version: Option<u64>,
}

pub fn run(context: &Context, args: CatArgs) -> Outcome {
    let store = context.open()?;
    store.require_contents()?;
    let view = context.view(&store, "cat", args.at.as_deref())?;
    let named = args::expand(&store, view.at, &args.paths)?;
    let (reader, mut out) = (Reader::new(&store), Out::new());
    for (path, inode) in &named {
        if inode.attributes.kind != FileKind::File {
            return Err(Failure::usage(format!("`{path}` is not a file")));
        }
        let root = match args.version {
            Some(number) => version_root(&store, &view, path, inode, number)?,
            None => inode.root.clone(),
        };
        // The callback can only return an error of the store, so a failure of standard output is
        // kept here.
        let mut refused = None;
        let read = reader.read(&root, args.offset, args.length.unwrap_or(u64::MAX), &mut |bytes| {
            out.bytes(bytes).map_err(|failure| {
                refused = Some(failure);
                Error::new(ErrorKind::Cancelled, "standard output is closed")
            })
        });
        if let Some(failure) = refused {
            return Err(failure);
        }
        read.map_err(|error| {
            let _ = out.flush();
            Failure::from(error.context(format!("`{path}`")))
        })?;
    }
    out.finish()?;
    Ok(Exit::Done)
}
