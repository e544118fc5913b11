//! `bench compress`: codecs side by side, on the same blocks, in memory.
//!
//! For each codec and block size there are four passes: blocks are encoded in order and in random
//! order, and decoded in order and in random order, each by all threads at once. The result of the
//! first decoding is compared with the source. Processor time is the threads' own, so other load
//! disturbs it less than the rates. A codec with a device in its name (`gzip:6@qat`) goes through
//! the offload runtime as a store's frames do, with many blocks in flight from each thread. There,
//! all processor time of the process counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use outrigger_clock::Instant;
use outrigger_clock::process_time;
use outrigger_format::{Codec, CodecChoice, CodecDevice, Encoding, Listed, print_size};
use outrigger_offload::pool::{Buffer, Pool};
use outrigger_offload::{Auto, Backlog, Encoder, FrameDecoder, FrameDevices, Missing, Planned, Wanted};
use serde_json::Value;

use super::data;
use crate::args;
use crate::commands::Context;
use crate::commands::offload::{self, Offload};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger bench compress
  outrigger bench compress /usr/lib --size 256M --blocks 64K,512K
  outrigger bench compress --codecs gzip:6,zstd:3,auto --json
  outrigger bench compress --codecs gzip:6,gzip:6@qat      compare the processor with a QAT card

write, read   MB/s (10^6 bytes of source a second), in order and in random order
processor     processor time: seconds for 10^9 bytes of source
efficiency    ratio / processor time of writing: higher is better
by devices    if a codec names a device: the share of the source that devices compressed";

/// Compare codecs in memory: rate, ratio and processor time
///
/// Without a path, a mixture is compressed: this program, lines of a log, numbers, noise and zeros.
/// Devices that compress have rows of their own; all other rows are the processor's.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompressArgs {
    /// Files and directories whose bytes are compressed
    paths: Vec<PathBuf>,
    /// Compress at most so many bytes of them
    #[arg(long, default_value = "64M", value_parser = args::size)]
    size: u64,
    /// Sizes of blocks
    #[arg(long, value_delimiter = ',', default_value = "4K,16K,64K,256K,1M", value_parser = block)]
    blocks: Vec<usize>,
    /// Codecs
    #[arg(long, value_delimiter = ',', default_value = "none,gzip:6,lz4,zstd:3,zle,auto", value_parser = args::codec)]
    codecs: Vec<CodecChoice>,
    #[command(flatten)]
    offload: Offload,
}

/// The bytes to compress. They lie in memory that the devices can reach, if there are devices.
struct Data {
    bytes: Arc<Buffer>,
    block: usize,
    devices: Option<Arc<FrameDevices>>,
}

impl Data {
    fn blocks(&self) -> Vec<&[u8]> {
        self.bytes.chunks(self.block).collect()
    }

    /// The devices, if `codec` names one.
    fn devices_for(&self, codec: CodecChoice) -> Option<&Arc<FrameDevices>> {
        self.devices.as_ref().filter(|_| matches!(codec, CodecChoice::Listed(_)))
    }
}

/// The given codecs, and for each device that has one of them the same codec on that device.
fn with_devices(codecs: &[CodecChoice], devices: Option<&Arc<FrameDevices>>) -> Vec<CodecChoice> {
    let mut all = codecs.to_vec();
    let named = codecs.iter().any(|codec| matches!(codec, CodecChoice::Listed(_)));
    let Some(devices) = devices.filter(|_| !named) else { return all };
    for kind in devices.kinds() {
        let of = |codec: &CodecChoice| CodecChoice::parse(&format!("{codec}@{}", kind.name())).ok();
        let fixed = codecs.iter().filter(|codec| matches!(codec, CodecChoice::Fixed(_)));
        all.extend(fixed.filter_map(of).filter(|&codec| {
            devices.route(codec.into(), &Auto::new(), 64 << 10, Backlog::default()).device > 0
        }));
    }
    all
}

/// `512` to `16M`.
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

/// Results of one codec on blocks of one size.
struct Row {
    codec: CodecChoice,
    block: usize,
    bytes: usize,
    stored: usize,
    write: Pass,
    write_random: Pass,
    read: Pass,
    read_random: Pass,
    /// Bytes of source that devices compressed, where the codec names one.
    by_devices: Option<usize>,
}

impl Row {
    fn device_share(&self) -> Option<f64> {
        self.by_devices.map(|bytes| bytes as f64 / self.bytes as f64)
    }

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

/// The devices that `codec` names and that are not there.
fn absent(codec: CodecChoice, devices: Option<&Arc<FrameDevices>>) -> Vec<CodecDevice> {
    let there: Vec<CodecDevice> = devices.into_iter().flat_map(|devices| devices.kinds()).collect();
    let CodecChoice::Listed(list) = codec else { return Vec::new() };
    let named = list.entries().map(|entry| entry.device);
    let asked = named.filter(|kind| !matches!(kind, CodecDevice::Any | CodecDevice::Cpu));
    asked.filter(|kind| !there.contains(kind)).collect()
}

/// A line for each device that a codec names and this machine lacks, with the reason.
fn missed(codecs: &[CodecChoice], devices: Option<&Arc<FrameDevices>>, missing: &[Missing]) -> Vec<String> {
    let mut names: Vec<&str> =
        codecs.iter().flat_map(|&codec| absent(codec, devices)).map(|kind| kind.name()).collect();
    names.sort_unstable();
    names.dedup();
    let why = |name: &str| {
        let known = missing.iter().find(|missing| missing.kind == name);
        known.map_or_else(|| "--offload does not give it".to_string(), |missing| missing.why.clone())
    };
    names
        .into_iter()
        .map(|name| format!("{name} is missing: {}; its rows use the next entry's", why(name)))
        .collect()
}

pub fn run(context: &Context, args: &CompressArgs) -> Outcome {
    if args.size == 0 {
        return Err(Failure::usage("--size 0: there is nothing to compress; give a size from 1"));
    }
    let bytes = if args.paths.is_empty() {
        data::mixture(args.size)
    } else {
        data::of_paths(&args.paths, args.size)?
    };
    let (runtime, missing) = offload::runtime_and_missing(context, &args.offload)?;
    let devices = runtime.as_ref().and_then(FrameDevices::of);
    let codecs = with_devices(&args.codecs, devices.as_ref());
    missed(&codecs, devices.as_ref(), &missing).iter().for_each(|line| complain(line));
    let pool = runtime.as_ref().map_or_else(|| Pool::new(None, 0), |runtime| runtime.pool().clone());
    if bytes.len() > 1 << 30 {
        return Err(Failure::usage("at most 1G is compressed at once; give a smaller --size"));
    }
    let mut memory = pool.alloc(bytes.len());
    memory.extend_from_slice(&bytes);
    drop(bytes);
    let mut data = Data { bytes: Arc::new(memory), block: 0, devices };
    let bytes = Arc::clone(&data.bytes);
    let mut rows = Vec::new();
    if !context.json {
        print_text(&format!(
            "{} in memory, {} threads\n\nblock  codec             ratio    write   random     read   random  processor (s/GB)  efficiency  by devices\n                                MB/s     MB/s     MB/s     MB/s   write    read\n",
            size(bytes.len() as u64),
            context.threads,
        ))?;
    }
    // A warm-up of memory, threads and processor clocks, which the first row would otherwise pay
    // for.
    if let (Some(&block), Some(&codec)) = (args.blocks.first(), codecs.first()) {
        data.block = block;
        measure(&data, codec, context.threads)?;
    }
    for &block in &args.blocks {
        data.block = block;
        for &codec in &codecs {
            let row = measure(&data, codec, context.threads)?;
            let away = absent(codec, data.devices.as_ref());
            if !context.json {
                print_text(&describe(&row, &away))?;
            }
            rows.push((row, away));
        }
    }
    if context.json {
        let rows: Vec<Value> = rows.iter().map(|(row, away)| json(row, away)).collect();
        print_json(
            Object::new().with("bytes", bytes.len()).with("threads", context.threads).with("rows", rows),
        )?;
    }
    Ok(Exit::Done)
}

fn describe(row: &Row, away: &[CodecDevice]) -> String {
    let mut last = row.device_share().map_or(String::new(), |share| format!("{:>9.0} %", 100.0 * share));
    for kind in away {
        last += &format!("  no {}", kind.name());
    }
    let text = format!(
        "{:>5}  {:15} {:>7.3} {:>8.0} {:>8.0} {:>8.0} {:>8.0}  {:>6.2}  {:>6.2}  {:>10.3} {last}",
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
    );
    format!("{}\n", text.trim_end())
}

fn json(row: &Row, away: &[CodecDevice]) -> Value {
    let away: Vec<&str> = away.iter().map(|kind| kind.name()).collect();
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
        .with("device_share", row.device_share())
        .with("devices_missing", away)
        .into()
}

/// A block as it is stored.
struct Stored {
    by_device: bool,
    encoding: Encoding,
    bytes: Vec<u8>,
}

fn measure(data: &Data, codec: CodecChoice, threads: usize) -> Result<Row, Failure> {
    let len = data.bytes.len().div_ceil(data.block);
    let (in_order, random) = ((0..len).collect::<Vec<_>>(), shuffled(len));
    let (stored, write) = encode(data, &in_order, codec, threads);
    let (_, write_random) = encode(data, &random, codec, threads);
    let read = decode(data, &stored, &in_order, codec, threads, true)?;
    let again = decode(data, &stored, &in_order, codec, threads, false)?;
    let read = Pass { wall: read.wall.min(again.wall), processor: read.processor.min(again.processor) };
    let read_random = decode(data, &stored, &random, codec, threads, false)?;
    let names_device = |entry: Listed| !matches!(entry.device, CodecDevice::Any | CodecDevice::Cpu);
    let by_devices = match codec {
        CodecChoice::Listed(list) if list.entries().any(names_device) => {
            let by_devices = stored.iter().zip(data.blocks()).filter(|(stored, _)| stored.by_device);
            Some(by_devices.map(|(_, block)| block.len()).sum())
        }
        _ => None,
    };
    let stored = stored.iter().map(|stored| stored.bytes.len()).sum();
    let (block, bytes) = (data.block, data.bytes.len());
    Ok(Row { by_devices, codec, block, bytes, stored, write, write_random, read, read_random })
}

/// 0 to `len` − 1 in an order that is the same in each run.
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

/// Blocks that a thread claims at once.
const AT_ONCE: usize = 8;

/// `threads` threads do `work` for all of `order`, a few items at a time. Each makes its own tools
/// first.
fn pass<T: Send>(
    order: &[usize],
    threads: usize,
    work: impl Fn(&mut dyn FnMut() -> Option<usize>) -> T + Sync,
) -> (Vec<T>, Pass) {
    let next = AtomicUsize::new(0);
    let (began, before) = (Instant::now(), process_time());
    let done: Vec<T> = std::thread::scope(|scope| {
        let run = || {
            let mut mine = 0..0;
            work(&mut || {
                if mine.is_empty() {
                    let from = next.fetch_add(AT_ONCE, Ordering::Relaxed).min(order.len());
                    mine = from..(from + AT_ONCE).min(order.len());
                }
                mine.next().map(|at| order[at])
            })
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // Devices have threads in this process, so the time of the whole process counts.
    (done, Pass { wall: began.elapsed(), processor: process_time().saturating_sub(before) })
}

fn encode(data: &Data, order: &[usize], codec: CodecChoice, threads: usize) -> (Vec<Stored>, Pass) {
    let blocks = data.blocks();
    let (parts, pass) = pass(order, threads, |next| match data.devices_for(codec) {
        Some(devices) => encode_by_devices(devices, data, next, codec),
        None => {
            let (mut encoder, mut out, mut stored) = (Encoder::new(), Vec::new(), Vec::new());
            while let Some(at) = next() {
                let wanted = Wanted::of(codec.into(), &Auto::new());
                let encoding = encoder.encode(wanted, blocks[at], &mut out);
                stored.push((at, keep(encoding, &out, blocks[at])));
            }
            stored
        }
    });
    let mut stored: Vec<(usize, Stored)> = parts.into_iter().flatten().collect();
    stored.sort_by_key(|(at, _)| *at);
    (stored.into_iter().map(|(_, stored)| stored).collect(), pass)
}

fn keep(encoding: Encoding, out: &[u8], block: &[u8]) -> Stored {
    let bytes = if encoding.codec == Codec::None { block } else { out };
    Stored { by_device: false, encoding, bytes: bytes.to_vec() }
}

/// Works like a store's workers: a block goes to a device that has room, and its result comes back
/// later. The thread itself compresses the others.
fn encode_by_devices(
    devices: &Arc<FrameDevices>,
    data: &Data,
    next: &mut dyn FnMut() -> Option<usize>,
    codec: CodecChoice,
) -> Vec<(usize, Stored)> {
    let (mut encoder, mut out, mut stored) = (Encoder::new(), Vec::new(), Vec::new());
    let (auto, blocks) = (Auto::new(), data.blocks());
    let (send, receive) = channel();
    let mut away = 0;
    let mut come_back = |encoder: &mut Encoder, away: &mut usize, wait: bool| {
        while *away > 0 {
            let back = if wait { receive.recv().ok() } else { receive.try_recv().ok() };
            let Some((at, made)): Option<(usize, Option<outrigger_offload::Made>)> = back else {
                return stored.len();
            };
            *away -= 1;
            let one = match made {
                Some(made) => Stored {
                    by_device: made.device() > 0,
                    ..keep(made.conclude(encoder), made.bytes(), blocks[at])
                },
                None => keep(Encoding::NONE, &[], blocks[at]),
            };
            stored.push((at, one));
        }
        stored.len()
    };
    let mut here = Vec::new();
    while let Some(at) = next() {
        come_back(&mut encoder, &mut away, false);
        let mut refused = None;
        loop {
            let (route, planned) =
                devices.plan(&mut encoder, codec.into(), &auto, blocks[at], Backlog::default(), refused);
            let plan = match planned {
                Planned::Plain(encoding) => {
                    here.push((at, keep(encoding, &[], blocks[at])));
                    break;
                }
                Planned::Compress(plan) => plan,
            };
            if route.device == 0 {
                let encoding = encoder.compress(&plan, blocks[at], &mut out);
                here.push((at, keep(encoding, &out, blocks[at])));
                break;
            }
            let range = at * data.block..at * data.block + blocks[at].len();
            let send = send.clone();
            let back = Arc::new(move |at, made| {
                let _ = send.send((at, made));
            });
            if devices.submit(route.device, plan, &data.bytes, range, at, back).is_ok() {
                away += 1;
                break;
            }
            refused = Some(route);
        }
    }
    come_back(&mut encoder, &mut away, true);
    stored.extend(here);
    stored
}

fn decode(
    data: &Data,
    stored: &[Stored],
    order: &[usize],
    codec: CodecChoice,
    threads: usize,
    compare: bool,
) -> Result<Pass, Failure> {
    let blocks = data.blocks();
    let (results, pass) = pass(order, threads, |next| {
        let (mut decoder, mut out) = (FrameDecoder::new(), Vec::new());
        while let Some(at) = next() {
            let Stored { encoding, bytes, .. } = &stored[at];
            let (encoding, raw_len) = (*encoding, blocks[at].len());
            let by_device = data.devices_for(codec).is_some_and(|devices| {
                let device = devices.decoder_for(encoding, bytes.len(), raw_len);
                device.is_some_and(|device| devices.decode_copied(device, encoding, bytes, raw_len, &mut out))
            });
            if !by_device {
                decoder.decode(encoding, bytes, raw_len, &mut out).map_err(|error| error.to_string())?;
            }
            if compare && out != blocks[at] {
                return Err(format!("{encoding} did not return the block that it was given"));
            }
        }
        Ok(())
    });
    for result in results {
        result.map_err(|why: String| Failure::usage(format!("please report this: {why}")))?;
    }
    Ok(pass)
}
