//! Which devices a store's writers may give work to, and what these did.

use std::sync::Arc;

use clap::Args;
use outrigger_offload::discover;
use outrigger_offload::placement::{Policy, default_path};
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_store::Store;
use serde_json::Value;

use super::{Context, devices};
use crate::exit::Failure;
use crate::output::{Object, complain, size};

/// Who may do the hashing beside the processor.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// The devices there are, where they are faster.
    Auto,
    /// Nobody.
    Nobody,
    /// A simulated device of this preset.
    Simulated(&'static str, Speed),
}

/// For commands that write.
#[derive(Args, Clone, Copy)]
pub struct Offload {
    /// Who may do the hashing beside the processor: auto (the devices there are, where they are faster), off, or sim:PRESET, a
    /// simulated device, for experiments
    #[arg(long, value_name = "WHO", env = "OUTRIGGER_OFFLOAD", default_value = "auto", value_parser = who)]
    offload: Who,
}

impl Offload {
    /// What was said, for another process.
    pub fn word(self) -> String {
        match self.offload {
            Who::Auto => "auto".to_string(),
            Who::Nobody => "off".to_string(),
            Who::Simulated(preset, _) => format!("sim:{preset}"),
        }
    }
}

fn who(text: &str) -> Result<Who, String> {
    match text.split_once(':') {
        None if text == "auto" => Ok(Who::Auto),
        None if text == "off" => Ok(Who::Nobody),
        Some(("sim", preset)) => {
            devices::named_preset(preset).map(|(name, speed)| Who::Simulated(name, speed))
        }
        _ => Err(format!("`{text}`: use auto, off or sim:PRESET")),
    }
}

/// Lets the writers of `store` use devices. Where there are none, nothing is started.
pub fn use_devices(context: &Context, store: &Store, Offload { offload }: Offload) -> Result<(), Failure> {
    let found = match offload {
        Who::Nobody => return Ok(()),
        Who::Auto => discover().devices,
        Who::Simulated(_, speed) => vec![Box::new(SimDevice::new(SimOptions::new("sim:0", speed))) as _],
    };
    if found.is_empty() {
        return Ok(());
    }
    store.use_devices(Arc::new(devices::runtime_of(context, found, Policy::default())?));
    Ok(())
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
    format!("hashed by {}\n", each.collect::<Vec<_>>().join("; "))
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
