//! Which devices a store's writers may give work to, and what these did.

use std::sync::Arc;

use clap::Args;
use outrigger_offload::discover;
use outrigger_offload::placement::{Policy, default_path};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_store::Store;
use serde_json::Value;

use super::{Context, devices};
use crate::exit::Failure;
use crate::output::{Object, complain, size};

/// Who may work beside the processor.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// The devices there are, where they are faster.
    Auto,
    /// Nobody.
    Nobody,
    /// A simulated device of this speed.
    Simulated(Speed),
}

/// Who may work beside the processor, and from which thresholds on.
#[derive(Clone, Debug)]
pub struct Wish {
    who: Who,
    policy: Policy,
    /// As it was given.
    text: String,
}

/// For commands that write or read much.
#[derive(Args, Clone)]
pub struct Offload {
    /// Who may hash, compress and decompress beside the processor: auto (the devices there are, where they are faster), off, or sim:PRESET, a
    /// simulated device, for experiments; then thresholds: `auto,codec_min_bytes=64K,codec_queue_max=8` (docs/offload.md has them all)
    #[arg(long, value_name = "WHO[,NAME=VALUE...]", env = "OUTRIGGER_OFFLOAD", default_value = "auto", value_parser = wish)]
    offload: Wish,
}

impl Offload {
    /// What was said, for another process.
    pub fn word(&self) -> String {
        self.offload.text.clone()
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
    Ok(Wish { who, policy, text: text.to_string() })
}

fn who(text: &str) -> Result<Who, String> {
    match text.split_once(':') {
        None if text == "auto" => Ok(Who::Auto),
        None if text == "off" => Ok(Who::Nobody),
        Some(("sim", preset)) => devices::named_preset(preset).map(|(_, speed)| Who::Simulated(speed)),
        _ => Err(format!("`{text}`: use auto, off or sim:PRESET")),
    }
}

/// Lets writers and readers of `store` use devices. Where there are none, nothing is started.
pub fn use_devices(context: &Context, store: &Store, offload: &Offload) -> Result<(), Failure> {
    if let Some(runtime) = runtime(context, offload)? {
        store.use_devices(runtime);
    }
    Ok(())
}

/// A runtime of the processor and the devices that may work; `None` where there are none.
pub fn runtime(context: &Context, Offload { offload }: &Offload) -> Result<Option<Arc<Runtime>>, Failure> {
    let found = match offload.who {
        Who::Nobody => return Ok(None),
        Who::Auto => discover().devices,
        Who::Simulated(speed) => vec![Box::new(SimDevice::new(SimOptions::new("sim:0", speed))) as _],
    };
    if found.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(devices::runtime_of(context, found, offload.policy.clone())?)))
}

/// Keeps what was learned of the devices, for later runs.
pub fn remember(store: &Store) {
    let (Some(runtime), Some(path)) = (store.devices(), default_path()) else { return };
    if let Err(error) = runtime.calibration().save(&path) {
        complain(&format!(
            "what was learned of the devices is lost: cannot write {}: {error}",
            path.display()
        ));
    }
}

/// What each device did, for people; nothing where there are none.
pub fn told(store: &Store) -> String {
    let Some(runtime) = store.devices() else { return String::new() };
    let each = runtime.metrics().devices.into_iter().map(|device| {
        let failed =
            if device.given_up > 0 { format!(", {} given up", device.given_up) } else { String::new() };
        format!("{} {} in {} tasks{failed}", device.identity.name, size(device.bytes), device.tasks)
    });
    format!("offloaded work: {}\n", each.collect::<Vec<_>>().join("; "))
}

/// The same for programs.
pub fn json(store: &Store) -> Option<Value> {
    let devices = store.devices()?.metrics().devices;
    let each = devices.into_iter().map(|device| {
        let object = Object::new().with("name", device.identity.name.as_str());
        object
            .with("tasks", device.tasks)
            .with("bytes", device.bytes)
            .with("given_up", device.given_up)
            .into()
    });
    Some(Value::Array(each.collect()))
}
