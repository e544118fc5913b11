//! `component add|list`: programs kept in the store.

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use outrigger_active::component::{self, LIBRARY, SHORT};
use outrigger_store::Store;
use outrigger_store::local::put::{PutOptions, Source, put};

use super::{Context, report_skipped};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{Out, count, local};

const EXAMPLES: &str = "\
Examples:
  outrigger component add ./dscal                 named `dscal`
  outrigger component add build/filter --name filter
  outrigger component add --library               outrigger's own: archive, index, scale, statistics
  outrigger component list
  outrigger run --in numbers --out scaled --records lines -- @dscal 2.5
  outrigger run --in numbers --out scaled -- @dscal:0123456789ab 2.5    only with this hash

Components are ordinary files below `.components` in the store: they have versions, and can be
copied, read and removed. A job runs the content that existed when the job was made, on whatever
host its agent is. Other files that a component needs must be in /usr there.";

/// Keep programs in the store, to run them wherever its agents are
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum ComponentCommand {
    /// Keep programs; a new one of the same name replaces the old one, which becomes an earlier
    /// version
    Add(AddArgs),
    /// Show the programs that are kept, with the BLAKE3 hash of their content
    #[command(after_help = "Examples:\n  outrigger component list\n  outrigger component list --json")]
    List,
}

/// Keep programs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct AddArgs {
    /// The programs
    #[arg(required_unless_present = "library", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The program's name in the store [default: the file's name]
    #[arg(long)]
    name: Option<String>,
    /// Keep the programs that come with outrigger
    #[arg(long, conflicts_with_all = ["files", "name"])]
    library: bool,
}

pub fn run(context: &Context, command: ComponentCommand) -> Outcome {
    match command {
        ComponentCommand::Add(args) => add(context, args),
        ComponentCommand::List => list(context),
    }
}

fn add(context: &Context, args: AddArgs) -> Outcome {
    let mut sources = Vec::new();
    if args.library {
        for (name, text) in LIBRARY {
            sources.push((Source::Stream(Box::new(Cursor::new(text))), component::path(name)?));
        }
    }
    if args.name.is_some() && args.files.len() > 1 {
        return Err(Failure::usage("--name is for one program; add the others with commands of their own"));
    }
    for file in &args.files {
        let at = |error: std::io::Error| Failure::io(format!("cannot read {}", file.display()), &error);
        let own = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = component::path(args.name.as_deref().unwrap_or(&own))?;
        // The file that a symlink leads to is kept, under the link's name.
        let file = std::fs::canonicalize(file).map_err(at)?;
        if !file.is_file() {
            return Err(Failure::usage(format!("{} is not a file", file.display())));
        }
        sources.push((Source::Path(file), path));
    }
    let store = Arc::new(context.open_for_changes()?);
    let progress = context.progress(&store, "stored programs are kept; run the same command again");
    put(&store, sources, &PutOptions::default(), context.threads, &progress)?;
    context.settle(&store);
    Ok(report_skipped(&progress))
}

fn list(context: &Context) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let kept = component::list(&store)?;
    let mut out = Out::new();
    if context.json {
        let object = |kept: &component::Kept| -> serde_json::Value {
            Object::new()
                .with("name", kept.component.name.clone())
                .with("hash", kept.component.hash.clone())
                .with("bytes", kept.bytes)
                .into()
        };
        out.json(Object::new().with("components", kept.iter().map(object).collect::<Vec<_>>()))?;
    } else {
        for kept in kept {
            let (hash, when) = (&kept.component.hash[..SHORT], local(kept.mtime));
            out.line(&format!("{:<20}  {hash}  {:>12}  {when}", kept.component.name, count(kept.bytes)))?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}
