//! `import`: stores the content of a tar archive, or the snapshots of another program's repository.
//!
//! For a repository its own program runs twice for each snapshot, at the same time: one process
//! lists the snapshot, the other writes it as a tar archive. The archive goes into the directory as
//! any other does, and each of its entries is compared with the list on the way. Both processes
//! have to end well before anything is removed and before the snapshot is taken.

mod archive;
mod borg;
mod checked;
mod child;
mod plan;
mod repository;
mod restic;
mod tool;

use std::ffi::OsString;

use clap::Args;
use outrigger_store::ops::snapshots;

use super::Context;
use super::before::Before;
use super::offload::Offload;
use crate::exit::{Failure, Outcome};

const EXAMPLES: &str = "\
Examples:
  outrigger import linux.tar --to linux
  xzcat linux.tar.xz | outrigger import - --to linux
  tar c --xattrs src | outrigger import - --to src --tag nightly
  outrigger import restic:/srv/restic --to documents    all snapshots of a restic repository
  outrigger import restic:s3:s3.example.com/backups --to documents
  outrigger import borg:ssh://nas/./borg --to documents --host laptop
  outrigger import restic: --to documents --snapshot latest

The entries of an archive are added to the content of PATH, as by `tar x`. A leading slash is
dropped. Entries with `..` in their name are skipped and named (exit code 4).

Of a repository, the snapshots are imported one after the other, oldest first. PATH then has what
the newest one has, and nothing else, and each has become a snapshot of the store with its time, its
tags and its host. Those that are there already are skipped: run the command again to go on after an
interruption, or to fetch new ones. `restic` or `borg` must be installed, and gets the password as
usual (RESTIC_PASSWORD, BORG_PASSPHRASE, ...). With no REPOSITORY it uses its own RESTIC_REPOSITORY
or BORG_REPO.

Before something is replaced or removed, a snapshot is taken, to which `outrigger undo` goes back.";

/// Store a tar archive, or the snapshots of restic or Borg
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// A tar archive (pax, ustar or GNU, not compressed; `-` is standard input), or a repository:
    /// restic:REPOSITORY or borg:REPOSITORY
    #[arg(value_name = "FILE|REPOSITORY")]
    file: OsString,
    /// The directory in the store that the entries go into
    #[arg(long, value_name = "PATH")]
    to: OsString,
    /// Take a snapshot afterwards, with this tag; of a repository, each snapshot gets it as well
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Import only this snapshot of a repository, by its id or the name of the archive; may be repeated
    #[arg(long, value_name = "ID")]
    snapshot: Vec<String>,
    /// Import only the repository's snapshots of this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Import a repository even if PATH is the root, or has other data, which goes
    #[arg(long)]
    replace_source: bool,
    #[command(flatten)]
    before: Before,
    #[command(flatten)]
    offload: Offload,
}

pub fn run(context: &Context, args: ImportArgs) -> Outcome {
    args.tag.iter().try_for_each(|tag| snapshots::check_name("tag", tag))?;
    if let Some(tool) = tool::named(&args.file) {
        return repository::run(context, &args, &*tool);
    }
    if !args.snapshot.is_empty() || args.host.is_some() || args.replace_source {
        return Err(Failure::usage(
            "--snapshot, --host and --replace-source are for repositories; give restic:REPOSITORY or borg:REPOSITORY instead of an archive",
        ));
    }
    archive::run(context, args)
}
