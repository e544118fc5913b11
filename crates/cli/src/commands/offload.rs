//! The devices that a store's writers may use, and reports of what these and the table cache did.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use outrigger_offload::placement::{Policy, default_path};
use outrigger_offload::runtime::{DeviceMetrics, Runtime};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::{Discovered, Missing, Opening, discover_few};
use outrigger_store::Store;
use outrigger_store::table_cache::{Asked, Sharing, TableCacheOptions, TableCacheStats};
use outrigger_store::write::Progress;
use serde_json::Value;

use super::{Context, devices};
use crate::exit::Failure;
use crate::json::Object;
use crate::output::{complain, count, counted, size};

/// The devices that may work beside the processor.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// All devices that there are, for work in which they are faster.
    Auto,
    /// None.
    Nobody,
    /// A simulated device of this speed.
    Simulated(Speed, Opens),
}

/// How a simulated device is opened.
#[derive(Clone, Copy, Debug)]
enum Opens {
    /// In the background, like a real one, which takes so long.
    AtOnce,
    /// Never: it fails like a real one that cannot be opened.
    Within(Duration),
    /// As a real one that cannot be opened.
    Never,
}

/// The value of `--offload`: devices, and the thresholds for using them.
#[derive(Clone, Debug)]
pub struct Wish {
    who: Who,
    policy: Policy,
    /// The text that was given.
    text: String,
}

/// Options of commands that write or read much.
#[derive(Args, Clone)]
pub struct Offload {
    /// Which devices may cut, hash, compress and decompress beside the processor: auto (those
    /// present, where they are faster) or off. Thresholds may follow:
    /// `auto,codec_min_bytes=64K,codec_queue_max=8` (docs/offload.md lists them)
    #[arg(long, value_name = "WHO[,NAME=VALUE...]", env = "OUTRIGGER_OFFLOAD", default_value = "auto", value_parser = wish)]
    offload: Wish,
    /// What devices hold of the store's index: exclusive (the chunks found most often that the host
    /// does not cache), shared (also those in the host's cache), or off (devices are not asked)
    #[arg(long, value_name = "HOW", env = "OUTRIGGER_TABLE_CACHE", default_value = "exclusive", hide = true, value_parser = table_cache)]
    table_cache: Known,
}

/// The value of `--table-cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known(Option<Sharing>);

const KNOWN: [(&str, Known); 3] = [
    ("exclusive", Known(Some(Sharing::Exclusive))),
    ("shared", Known(Some(Sharing::Shared))),
    ("off", Known(None)),
];

fn table_cache(text: &str) -> Result<Known, String> {
    let known = KNOWN.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, known)| known).ok_or_else(|| format!("`{text}`: use exclusive, shared or off"))
}

impl Offload {
    /// The text of `--offload`, for another process.
    pub fn word(&self) -> String {
        self.offload.text.clone()
    }

    /// The text of `--table-cache`, for another process.
    pub fn table_cache(&self) -> &'static str {
        KNOWN.into_iter().find(|(_, known)| *known == self.table_cache).map_or("off", |(name, _)| name)
    }
}

fn wish(text: &str) -> Result<Wish, String> {
    let mut words = text.split(',');
    let who = who(words.next().unwrap_or_default())?;
    let mut policy = Policy::default();
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or_else(|| format!("`{word}`: thresholds are given as NAME=VALUE"))?;
        policy.set(name.trim(), value.trim()).map_err(|error| error.to_string())?;
    }
    match policy.contradiction() {
        Some(why) => Err(why),
        None => Ok(Wish { who, policy, text: text.to_string() }),
    }
}

fn who(text: &str) -> Result<Who, String> {
    match text.split_once(':') {
        None if text == "auto" => Ok(Who::Auto),
        None if text == "off" => Ok(Who::Nobody),
        Some(("sim", sim)) => {
            let (preset, opens) = match sim.split_once('@') {
                None => (sim, Opens::AtOnce),
                Some((preset, "never")) => (preset, Opens::Never),
                Some((preset, secs)) => {
                    let secs = secs.parse().map_err(|_| format!("`{secs}`: use whole seconds, or never"))?;
                    (preset, Opens::Within(Duration::from_secs(secs)))
                }
            };
            devices::named_preset(preset).map(|(_, speed)| Who::Simulated(speed, opens))
        }
        _ => Err(format!("`{text}`: use auto, off or sim:PRESET")),
    }
}

/// Devices that are open or being opened. They are not closed: the end of the process frees them
/// sooner.
static KEPT: Mutex<Vec<Arc<Opening>>> = Mutex::new(Vec::new());

/// So many threads give work to one GPU.
const THREADS_PER_GPU: usize = 16;

/// Lets writers and readers of `store` use devices. A device is opened when there is enough work
/// for it. Without devices nothing starts.
pub fn use_devices(context: &Context, store: &Store, offload: &Offload) -> Result<(), Failure> {
    offer(context, store, offload, context.threads.div_ceil(THREADS_PER_GPU))
}

/// As [`use_devices`], for commands that only read. GPUs do not decompress, so none are opened.
pub fn use_decompressors(context: &Context, store: &Store, offload: &Offload) -> Result<(), Failure> {
    offer(context, store, offload, 0)
}

fn offer(
    context: &Context,
    store: &Store,
    Offload { offload, table_cache }: &Offload,
    gpus_max: usize,
) -> Result<(), Failure> {
    let Wish { who, policy, .. } = offload.clone();
    if matches!(who, Who::Nobody) {
        return Ok(());
    }
    let (threads, after) = (context.threads, policy.open_after);
    let open = move || -> Result<Option<Runtime>, Failure> {
        let found = found(who, gpus_max);
        complain_of_missing(&found.missing);
        let is_some = !found.devices.is_empty();
        is_some.then(|| devices::runtime_of(threads, found.devices, policy)).transpose()
    };
    let opening = if after == 0 || matches!(who, Who::Simulated(_, Opens::AtOnce)) {
        let Some(runtime) = open()? else { return Ok(()) };
        Opening::over(Arc::new(runtime))
    } else {
        Opening::after(after.saturating_mul(threads as u64), || {
            open().unwrap_or_else(|failure| {
                complain(&failure.message);
                None
            })
        })
    };
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&opening));
    let options = |sharing| TableCacheOptions { sharing, ..TableCacheOptions::default() };
    store.use_devices_once_open(opening, table_cache.0.map(options));
    Ok(())
}

/// Looks for devices and opens them.
fn found(who: Who, gpus_max: usize) -> Discovered {
    let Who::Simulated(speed, opens) = who else { return discover_few(gpus_max) };
    let mut found = Discovered::default();
    match opens {
        Opens::Never => {
            found.missing.push(Missing { kind: "sim", why: "sim:0: it was to be so".into(), is_there: true })
        }
        Opens::Within(time) => outrigger_clock::sleep(time),
        Opens::AtOnce => {}
    }
    if found.missing.is_empty() {
        found.devices.push(Box::new(SimDevice::new(SimOptions::new("sim:0", speed))));
    }
    found
}

/// Says which devices this machine has that could not be opened.
fn complain_of_missing(missing: &[Missing]) {
    let failed = missing.iter().filter(|missing| missing.is_there);
    failed.for_each(|missing| {
        complain(&format!("a device cannot be opened, and is left out: {}", missing.why))
    });
}

/// A runtime of the processor and all usable devices, once they are open, and the devices that are
/// missing. No runtime if there are no devices.
pub fn runtime_and_missing(
    context: &Context,
    Offload { offload, .. }: &Offload,
) -> Result<(Option<Arc<Runtime>>, Vec<Missing>), Failure> {
    if matches!(offload.who, Who::Nobody) {
        return Ok((None, Vec::new()));
    }
    let Discovered { devices: found, missing } = found(offload.who, usize::MAX);
    if found.is_empty() {
        return Ok((None, missing));
    }
    let runtime = devices::runtime_of(context.threads, found, offload.policy.clone())?;
    Ok((Some(Arc::new(runtime)), missing))
}

/// Says which devices failed, and how many frames the processor made because their device was
/// missing.
pub fn complain_of_devices(store: &Store, progress: &Progress) {
    let frames = progress.view().frames_without_device;
    if frames > 0 {
        complain(&format!(
            "the processor compressed {}, because their device is missing or not trusted; `outrigger devices` lists the devices",
            counted(frames, "frame", "frames")
        ));
    }
    let devices = store.devices().map(|runtime| runtime.metrics().devices).unwrap_or_default();
    for device in devices.iter().skip(1) {
        if let Some(fault) = failure_of(device) {
            complain(&fault);
        }
    }
}

/// `qat:0 was disabled: 1 x wrong result, 3 tasks rerun`; `None` if all went well.
fn failure_of(device: &DeviceMetrics) -> Option<String> {
    let words = |name: &str| match name {
        "out_of_memory" => "out of memory".to_string(),
        "wrong" => "wrong result".to_string(),
        "hung" => "no answer in time".to_string(),
        name => name.to_string(),
    };
    // A device that is busy or lacks the operation has not failed.
    let faults =
        device.faults.iter().filter(|(name, count)| *count > 0 && !["busy", "unsupported"].contains(name));
    let faults: Vec<String> = faults.map(|(name, count)| format!("{count} x {}", words(name))).collect();
    if faults.is_empty() && device.trips == 0 {
        return None;
    }
    let what = match (device.trips, device.breaker.name()) {
        (0, _) => "failed".to_string(),
        (_, "closed") => "was disabled, and is in use again".to_string(),
        (_, "half-open") => "was disabled, and is being retried".to_string(),
        _ => "was disabled".to_string(),
    };
    let again = counted(device.given_up, "task", "tasks");
    Some(format!("{} {what}: {}, {again} rerun", device.identity.name, faults.join(", ")))
}

/// Saves what was learned of the devices, for later runs.
pub fn remember(store: &Store) {
    if let Some(why) = store.table_cache().and_then(|cache| cache.take_complaint()) {
        complain(&why);
    }
    let (Some(runtime), Some(path)) = (store.devices(), default_path()) else { return };
    if let Err(error) = runtime.calibration().save(&path) {
        complain(&format!("the devices' calibration is not saved: cannot write {}: {error}", path.display()));
    }
}

/// The work of each device, as text; empty without devices.
pub fn told(store: &Store) -> String {
    let Some(runtime) = store.devices() else { return String::new() };
    let each = runtime.metrics().devices.into_iter().map(|device| {
        let failed =
            if device.given_up > 0 { format!(", {} given up", device.given_up) } else { String::new() };
        format!("{} {} in {} tasks{failed}", device.identity.name, size(device.bytes), device.tasks)
    });
    let table_cache =
        table_cache_stats(store).map_or(String::new(), |stats| format!("{}\n", describe(&stats.now)));
    format!("offloaded work: {}\n{table_cache}", each.collect::<Vec<_>>().join("; "))
}

fn table_cache_stats(store: &Store) -> Option<TableCacheStats> {
    store.table_cache().map(|cache| cache.stats()).filter(|stats| stats.now.asked > 0)
}

/// A table cache's rates, as `put` and `stats` print them.
pub fn describe(asked: &Asked) -> String {
    format!(
        "table cache: {} of {} chunks found ({:.1} %), {} relied on",
        count(asked.found),
        count(asked.asked),
        100.0 * rate(asked),
        count(asked.relied)
    )
}

fn rate(asked: &Asked) -> f64 {
    if asked.asked == 0 { 0.0 } else { asked.found as f64 / asked.asked as f64 }
}

/// The same as JSON.
pub fn table_cache_json(asked: &Asked) -> Object {
    Object::new()
        .with("asked", asked.asked)
        .with("found", asked.found)
        .with("relied", asked.relied)
        .with("denied", asked.denied)
        .with("hit_rate", rate(asked))
}

/// The table cache's results as JSON.
pub fn json_of_table_cache(store: &Store) -> Option<Value> {
    let stats = store.table_cache()?.stats();
    let object = table_cache_json(&stats.now);
    Some(object.with("entries", stats.entries).with("counted", stats.counted).into())
}

/// The work of each device as JSON.
pub fn json(store: &Store) -> Option<Value> {
    let devices = store.devices()?.metrics().devices;
    let each = devices.into_iter().map(|device| {
        let object = Object::new().with("name", device.identity.name.as_str());
        let faults = device.faults.iter().filter(|(_, count)| *count > 0);
        let faults: Value = faults.map(|(name, count)| (name.to_string(), Value::from(*count))).collect();
        object
            .with("tasks", device.tasks)
            .with("bytes", device.bytes)
            .with("given_up", device.given_up)
            .with("trips", device.trips)
            .with("breaker", device.breaker.name())
            .with("faults", faults)
            .into()
    });
    Some(Value::Array(each.collect()))
}
