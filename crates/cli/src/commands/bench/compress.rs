//! `bench compress`: codecs side by side, on the same blocks, in memory.
//!
//! For each codec and block size, four passes: blocks encoded in order and in random order, decoded in order and in random order, each by all
//! threads at once. What comes out of the first decoding is compared with what went in. Processor time is that of the threads, so other load
//! disturbs it less than the rates.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use outrigger_format::{Codec, CodecChoice, Encoding, print_size};
use outrigger_offload::{Auto, Encoder, FrameDecoder, Wanted};
use outrigger_store::clock::thread_time;
use serde_json::Value;

use super::data;
use crate::args;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Object, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger bench compress
  outrigger bench compress /usr/lib --size 256M --blocks 64K,512K
  outrigger bench compress --codecs gzip:6,zstd:3,auto --json

write, read   MB/s (10^6 bytes of source a second), in order and in random order
processor     processor time: seconds for 10^9 bytes of source
efficiency    ratio / processor time of writing: the higher, the more a processor achieves";

/// Compare codecs in memory: rate, ratio and processor time
///
/// Without a path, a mixture is compressed: this program, lines of a log, numbers, noise and zeros.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompressArgs {
    /// Files and directories whose bytes are compressed
    paths: Vec<PathBuf>,
    /// Bytes of them at most
    #[arg(long, default_value = "64M", value_parser = args::size)]
    size: u64,
    /// Sizes of blocks
    #[arg(long, value_delimiter = ',', default_value = "4K,16K,64K,256K,1M", value_parser = block)]
    blocks: Vec<usize>,
    /// Codecs
    #[arg(long, value_delimiter = ',', default_value = "none,gzip:6,lz4,zstd:3,zle,auto", value_parser = args::codec)]
    codecs: Vec<CodecChoice>,
}

/// `4K` to `16M`.
fn block(text: &str) -> Result<usize, String> {
    let size = args::size(text)?;
    let fits = usize::try_from(size).ok().filter(|size| (512..=16 << 20).contains(size));
    fits.ok_or_else(|| format!("`{text}`: blocks are from 512 bytes to 16M"))
}

/// One pass over all blocks.
#[derive(Clone, Copy)]
struct Pass {
    wall: Duration,
    processor: Duration,
}

/// What one codec did with blocks of one size.
struct Row {
    codec: CodecChoice,
    block: usize,
    bytes: usize,
    stored: usize,
    write: Pass,
    write_random: Pass,
    read: Pass,
    read_random: Pass,
}

impl Row {
    fn rate(&self, pass: Pass) -> f64 {
        self.bytes as f64 / 1e6 / pass.wall.as_secs_f64().max(1e-9)
    }

    fn processor(&self, pass: Pass) -> f64 {
        pass.processor.as_secs_f64() * 1e9 / self.bytes as f64
    }

    fn ratio(&self) -> f64 {
        self.bytes as f64 / self.stored.max(1) as f64
    }

    fn efficiency(&self) -> f64 {
        self.ratio() / self.processor(self.write).max(1e-9)
    }
}

pub fn run(context: &Context, args: &CompressArgs) -> Outcome {
    let bytes = if args.paths.is_empty() {
        data::mixture(args.size)
    } else {
        data::of_paths(&args.paths, args.size)?
    };
    let mut rows = Vec::new();
    if !context.json {
        print_text(&format!(
            "{} in memory, {} threads\n\nblock  codec        ratio    write   random     read   random  processor (s/GB)  efficiency\n                           MB/s     MB/s     MB/s     MB/s   write    read\n",
            size(bytes.len() as u64),
            context.threads,
        ))?;
    }
    for &block in &args.blocks {
        for &codec in &args.codecs {
            let row = measure(&bytes, block, codec, context.threads)?;
            if !context.json {
                print_text(&describe(&row))?;
            }
            rows.push(row);
        }
    }
    if context.json {
        let rows: Vec<Value> = rows.iter().map(json).collect();
        print_json(
            Object::new().with("bytes", bytes.len()).with("threads", context.threads).with("rows", rows),
        )?;
    }
    Ok(Exit::Done)
}

fn describe(row: &Row) -> String {
    format!(
        "{:>5}  {:10} {:>7.3} {:>8.0} {:>8.0} {:>8.0} {:>8.0}  {:>6.2}  {:>6.2}  {:>10.3}\n",
        print_size(row.block as u64),
        row.codec.to_string(),
        row.ratio(),
        row.rate(row.write),
        row.rate(row.write_random),
        row.rate(row.read),
        row.rate(row.read_random),
        row.processor(row.write),
        row.processor(row.read),
        row.efficiency(),
    )
}

fn json(row: &Row) -> Value {
    Object::new()
        .with("block", row.block)
        .with("codec", row.codec.to_string())
        .with("stored_bytes", row.stored)
        .with("ratio", row.ratio())
        .with("write_mb_per_s", row.rate(row.write))
        .with("write_random_mb_per_s", row.rate(row.write_random))
        .with("read_mb_per_s", row.rate(row.read))
        .with("read_random_mb_per_s", row.rate(row.read_random))
        .with("write_processor_s_per_gb", row.processor(row.write))
        .with("read_processor_s_per_gb", row.processor(row.read))
        .with("efficiency", row.efficiency())
        .into()
}

/// A block as it is stored.
struct Stored {
    encoding: Encoding,
    bytes: Vec<u8>,
}

fn measure(bytes: &[u8], block: usize, codec: CodecChoice, threads: usize) -> Result<Row, Failure> {
    let blocks: Vec<&[u8]> = bytes.chunks(block).collect();
    let (in_order, random) = ((0..blocks.len()).collect::<Vec<_>>(), shuffled(blocks.len()));
    let (stored, write) = encode(&blocks, &in_order, codec, threads);
    let (_, write_random) = encode(&blocks, &random, codec, threads);
    let read = decode(&stored, &blocks, &in_order, threads, true)?;
    let read =
        Pass { wall: read.wall.min(decode(&stored, &blocks, &in_order, threads, false)?.wall), ..read };
    let read_random = decode(&stored, &blocks, &random, threads, false)?;
    let stored = stored.iter().map(|stored| stored.bytes.len()).sum();
    Ok(Row { codec, block, bytes: bytes.len(), stored, write, write_random, read, read_random })
}

/// 0 to `len` − 1 in an order that is always the same.
fn shuffled(len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for at in (1..len).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, (state % (at as u64 + 1)) as usize);
    }
    order
}

/// Blocks that a thread takes at once.
const AT_ONCE: usize = 8;

/// Has `threads` threads do `work` for all of `order`, a few at a time; each makes its own tools first.
fn pass<T: Send>(
    order: &[usize],
    threads: usize,
    work: impl Fn(&mut dyn FnMut() -> Option<usize>) -> T + Sync,
) -> (Vec<T>, Pass) {
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let done: Vec<(T, Duration)> = std::thread::scope(|scope| {
        let run = || {
            let before = thread_time();
            let mut mine = 0..0;
            let result = work(&mut || {
                if mine.is_empty() {
                    let from = next.fetch_add(AT_ONCE, Ordering::Relaxed).min(order.len());
                    mine = from..(from + AT_ONCE).min(order.len());
                }
                mine.next().map(|at| order[at])
            });
            (result, thread_time() - before)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let wall = began.elapsed();
    let processor = done.iter().map(|(_, time)| *time).sum();
    (done.into_iter().map(|(result, _)| result).collect(), Pass { wall, processor })
}

fn encode(blocks: &[&[u8]], order: &[usize], codec: CodecChoice, threads: usize) -> (Vec<Stored>, Pass) {
    let (parts, pass) = pass(order, threads, |next| {
        let (mut encoder, mut out, mut stored) = (Encoder::new(), Vec::new(), Vec::new());
        while let Some(at) = next() {
            let wanted = Wanted::of(codec.into(), &Auto::new());
            let encoding = encoder.encode(wanted, blocks[at], &mut out);
            let bytes = if encoding.codec == Codec::None { blocks[at] } else { &out };
            stored.push((at, Stored { encoding, bytes: bytes.to_vec() }));
        }
        stored
    });
    let mut stored: Vec<(usize, Stored)> = parts.into_iter().flatten().collect();
    stored.sort_by_key(|(at, _)| *at);
    (stored.into_iter().map(|(_, stored)| stored).collect(), pass)
}

fn decode(
    stored: &[Stored],
    blocks: &[&[u8]],
    order: &[usize],
    threads: usize,
    compare: bool,
) -> Result<Pass, Failure> {
    let (results, pass) = pass(order, threads, |next| {
        let (mut decoder, mut out) = (FrameDecoder::new(), Vec::new());
        while let Some(at) = next() {
            let Stored { encoding, bytes } = &stored[at];
            decoder
                .decode(*encoding, bytes, blocks[at].len(), &mut out)
                .map_err(|error| error.to_string())?;
            if compare && out != blocks[at] {
                return Err(format!("{encoding} gave back another block than it took"));
            }
        }
        Ok(())
    });
    for result in results {
        result.map_err(|why: String| Failure::usage(format!("please report this: {why}")))?;
    }
    Ok(pass)
}
