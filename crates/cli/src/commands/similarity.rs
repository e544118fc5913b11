//! `similarity`: how much of one tree another has, by ways of cutting it.

use std::collections::HashSet;
use std::path::PathBuf;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_format::{ChunkerSpec, Fingerprint};
use outrigger_offload::{cut, name_chunks};
use serde_json::Value;

use super::Context;
use super::bench::of_paths;
use crate::args;
use crate::exit::{Exit, Outcome};
use crate::json::Object;
use crate::output::{bar, count, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger similarity linux-6.1 linux-6.2
  outrigger similarity vm-monday.img vm-tuesday.img --size 4G
  outrigger similarity a b --chunkers fixed:1M,gear32:2K/8K/32K,rabin:2K/8K/32K

Nothing is stored. `similar` is the share of B's bytes that lie in chunks which A has, too: what a
store that has A does not store again. The rate is that of one core that cuts and names chunks.";

/// Compare two files or trees by their chunks, cut in several ways
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SimilarityArgs {
    /// A file or directory
    a: PathBuf,
    /// Another one
    b: PathBuf,
    /// Ways of cutting
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = chunker,
        default_value = "fixed:4K,fixed:64K,fixed:1M,gear32:4K/16K/64K,gear32:64K/256K/1M,rabin:4K/16K/64K")]
    chunkers: Vec<ChunkerSpec>,
    /// Read at most so many bytes of each
    #[arg(long, default_value = "1G", value_parser = args::size)]
    size: u64,
}

fn chunker(text: &str) -> Result<ChunkerSpec, String> {
    ChunkerSpec::parse(text).map_err(|error| error.to_string())
}

/// The chunks and similar bytes that one chunker finds.
struct Row {
    chunker: ChunkerSpec,
    /// Of B.
    chunks: usize,
    similar_bytes: u64,
    /// Bytes a second.
    rate: f64,
}

/// Compares two trees.
///
/// # Errors
/// When one cannot be read, or is empty.
pub fn run(context: &Context, args: SimilarityArgs) -> Outcome {
    let read = |path: &PathBuf| of_paths(std::slice::from_ref(path), args.size);
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let rows: Vec<Row> = args.chunkers.iter().map(|&chunker| compare(chunker, &a, &b)).collect();
    let share = |row: &Row| row.similar_bytes as f64 / b.len() as f64;
    if context.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                Object::new()
                    .with("chunker", row.chunker.to_string())
                    .with("chunks", row.chunks)
                    .with("similar_bytes", row.similar_bytes)
                    .with("similarity", share(row))
                    .with("bytes_per_second", row.rate)
                    .into()
            })
            .collect();
        print_json(Object::new().with("bytes_a", a.len()).with("bytes_b", b.len()).with("rows", rows))?;
        return Ok(Exit::Done);
    }
    let mut text = format!("{} and {} read\n\n", size(a.len() as u64), size(b.len() as u64));
    text += "chunker                  chunks      mean   similar      MB/s\n";
    for row in &rows {
        text += &format!(
            "{:20} {:>10} {:>9} {:>7.1} % {:>9.0}  {}\n",
            row.chunker.to_string(),
            count(row.chunks as u64),
            size(b.len() as u64 / row.chunks.max(1) as u64),
            100.0 * share(row),
            row.rate / 1e6,
            bar(share(row), 20)
        );
    }
    print_text(&text)?;
    Ok(Exit::Done)
}

fn compare(chunker: ChunkerSpec, a: &[u8], b: &[u8]) -> Row {
    let began = Instant::now();
    let known: HashSet<Fingerprint> =
        name_chunks(a, &cut(chunker, a)).into_iter().map(|(name, _)| name).collect();
    let named = name_chunks(b, &cut(chunker, b));
    let rate = (a.len() + b.len()) as f64 / began.elapsed().as_secs_f64().max(1e-9);
    let similar = named.iter().filter(|(name, _)| known.contains(name)).map(|(_, len)| *len as u64);
    Row { chunker, chunks: named.len(), similar_bytes: similar.sum(), rate }
}
