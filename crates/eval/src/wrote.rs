//! Writes to stores in this process: MosaStore's configurations as they are here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use outrigger_format::ChunkerSpec;
use outrigger_offload::runtime::Runtime;
use outrigger_store::local::put;
use outrigger_store::policy::Overrides;
use outrigger_store::tree::StorePath;
use outrigger_store::write::{OracleMode, Progress};
use outrigger_store::{Profile, Store};

use crate::kept;
use crate::lab::{Failed, Lab, check};
use crate::rig::found;

/// The papers' configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// *non-CA*: nothing is looked up.
    NonCa,
    /// *CA-CPU*: the processor cuts, fingerprints and looks up.
    Cpu,
    /// *CA-Infinite*: cutting and fingerprinting cost nothing.
    Infinite,
    /// *CA-GPU*: whole batches go to a device where that is faster.
    Device,
}

impl Way {
    /// The ways that this machine can run, in the order of plots. A simulated device computes with
    /// the processor that it is meant to free. So it is used only where answers count and times do
    /// not.
    pub fn all(lab: &Lab) -> Vec<Way> {
        let mut ways = vec![Self::NonCa, Self::Cpu, Self::Infinite];
        if !found(lab).is_empty() {
            ways.push(Self::Device);
        }
        ways
    }

    /// The papers' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::NonCa => "non-CA",
            Self::Cpu => "CA-CPU",
            Self::Infinite => "CA-Infinite",
            Self::Device => "CA-device",
        }
    }
}

/// Results of a put.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put {
    /// Its duration.
    pub seconds: f64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes of them that were not stored before.
    pub new: u64,
}

/// A new store without compression, for experiments, in `dir`.
///
/// # Errors
/// Those of the store.
pub fn store(dir: &Path, codec: &str) -> Result<Store, Failed> {
    let mut config = Profile::Default.config()?;
    config.experiment = true;
    config.codec = outrigger_format::CodecChoice::parse(codec)
        .map_err(|error| Failed::Program(format!("{codec}: {error}")))?;
    Ok(Store::init(dir, &config)?)
}

/// Puts all of `source` under a name, cut by `chunker`.
///
/// # Errors
/// Those of the store; [`Failed::Wrong`] when something was skipped.
pub fn write(
    lab: &Lab,
    store: &Store,
    source: &Path,
    name: &str,
    chunker: ChunkerSpec,
    way: Way,
    oracle: &Path,
) -> Result<Put, Failed> {
    if way == Way::Device && store.devices().is_none() {
        store.use_devices(Arc::new(devices(lab)), None);
    }
    let oracle = (way == Way::Infinite).then(|| OracleMode::Replay(oracle.to_path_buf()));
    put_with(lab, store, source, name, chunker, way != Way::NonCa, oracle)
}

/// A runtime with the devices of this machine; in tiny runs a simulated one.
fn devices(lab: &Lab) -> Runtime {
    let builder = Runtime::builder().cpu_threads(lab.threads);
    found(lab).into_iter().fold(builder, |builder, device| builder.device(device)).build()
}

fn put_with(
    lab: &Lab,
    store: &Store,
    source: &Path,
    name: &str,
    chunker: ChunkerSpec,
    dedup: bool,
    oracle: Option<OracleMode>,
) -> Result<Put, Failed> {
    let overrides = Overrides { chunker: Some(chunker), dedup: Some(dedup) };
    let options = put::PutOptions { rescan: true, oracle, overrides, ..put::PutOptions::default() };
    let (progress, target) = (Arc::new(Progress::default()), StorePath::parse(name.as_bytes())?);
    let begun = Instant::now();
    let sources = vec![(put::Source::Path(source.to_path_buf()), target)];
    put::put(store, sources, &options, lab.threads, &progress)?;
    let seconds = begun.elapsed().as_secs_f64();
    check(progress.view().bytes_done > 0, "nothing was stored")?;
    kept::restored(lab, store, source, name)?;
    Ok(Put {
        seconds,
        bytes: progress.bytes_done.load(Ordering::Relaxed),
        new: progress.bytes_new.load(Ordering::Relaxed),
    })
}

/// Lets an oracle record `source`, for [`Way::Infinite`].
///
/// # Errors
/// Those of the store.
pub fn record(lab: &Lab, source: &Path, chunker: ChunkerSpec, oracle: &Path) -> Result<(), Failed> {
    let room = lab.room()?;
    let store = store(&room.path().join("recorded"), "none")?;
    let _ = std::fs::remove_file(oracle);
    put_with(lab, &store, source, "a", chunker, true, Some(OracleMode::Record(oracle.to_path_buf())))?;
    Ok(())
}

/// `count` files of `bytes` in a new directory: all different, or all the same.
///
/// # Errors
/// Those of writing.
pub fn files(lab: &Lab, room: &Path, count: usize, bytes: usize, same: bool) -> Result<PathBuf, Failed> {
    let dir = room.join(format!("files-{bytes}-{same}-{}", lab.threads));
    std::fs::create_dir_all(&dir)?;
    let mut data = vec![0; bytes];
    for n in 0..count {
        if n == 0 || !same {
            outrigger_workload::Rng::part(17, n as u64).fill(&mut data);
        }
        std::fs::write(dir.join(format!("f{n:02}")), &data)?;
    }
    Ok(dir)
}

/// Parses a chunker's name.
///
/// # Errors
/// When it is invalid.
pub fn chunker(text: &str) -> Result<ChunkerSpec, Failed> {
    ChunkerSpec::parse(text).map_err(|error| Failed::Program(format!("{text}: {error}")))
}

/// Bytes per second that the file system takes in one synced file. No store on it can be faster
/// with new data.
///
/// # Errors
/// Those of writing.
pub fn disk_rate(lab: &Lab) -> Result<f64, Failed> {
    static RATE: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    if let Some(rate) = RATE.get() {
        return Ok(*rate);
    }
    let bytes = lab.scale.pick(1 << 20, 256 << 20, 1 << 30);
    let mut block = vec![0; 1 << 20];
    outrigger_workload::Rng::new(1).fill(&mut block);
    let mut best: f64 = 0.0;
    for _ in 0..lab.rounds().min(3) {
        use std::io::Write;
        let room = lab.room()?;
        let begun = Instant::now();
        let mut file = std::fs::File::create(room.path().join("file"))?;
        (0..bytes >> 20).try_for_each(|_| file.write_all(&block))?;
        file.sync_all()?;
        best = best.max(bytes as f64 / begun.elapsed().as_secs_f64());
    }
    Ok(*RATE.get_or_init(|| best))
}
