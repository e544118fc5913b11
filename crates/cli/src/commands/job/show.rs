//! `job show`: one job with its inputs, hosts and splits. [`Shown`] has all that is known of it,
//! read once, and tells it as JSON or as text.

use std::collections::BTreeMap;

use outrigger_active::component::SHORT;
use outrigger_active::job::Held;
use outrigger_active::job::spec::Spec;
use outrigger_active::runner::{Forecast, Measured, Nearby, SetAside, made, measured, set_aside};
use outrigger_active::written::host_of;
use outrigger_format::catalogue::Time;
use outrigger_store::Store;
use outrigger_store::meta::jobs::{JobInput, JobRow, JobState, SplitRow, SplitState};
use outrigger_store::text::show;

use super::JobArgs;
use super::hosts::Hosts;
use super::rows::{about, left_among, left_text, split_text, state_text};
use crate::commands::Context;
use crate::commands::nearby::{describe_nearby, nearby_json, nearby_of};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{count, local, print_json, print_text, size};
use crate::progress::duration;

/// How many of the slowest splits are named.
const SLOWEST: usize = 3;
/// How many of the inputs are named.
const INPUTS_NAMED: usize = 10;

pub fn show_job(context: &Context, args: &JobArgs) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let row = args.row(&store)?;
    let shown = Shown::of(&store, row)?;
    if context.json {
        print_json(shown.json()?)?;
    } else {
        print_text(&shown.text()?)?;
    }
    Ok(Exit::Done)
}

/// What is known of a job.
struct Shown<'s> {
    store: &'s Store,
    row: JobRow,
    /// `None` if another version of outrigger made it.
    spec: Option<Spec>,
    inputs: Vec<JobInput>,
    splits: Vec<SplitRow>,
    aside: Vec<SetAside>,
    times: BTreeMap<u64, Measured>,
    forecast: Forecast,
    hosts: Hosts,
    /// Its file is still being written.
    is_open: bool,
    /// No process runs it any more.
    is_left: bool,
    nearby: Option<Nearby>,
    /// Bytes from packs on the hosts that ran it, and from others, as far as they were counted.
    bytes_here: Option<u64>,
    bytes_elsewhere: Option<u64>,
}

impl<'s> Shown<'s> {
    fn of(store: &'s Store, row: JobRow) -> Result<Self, Failure> {
        let jobs = store.jobs();
        let inputs = jobs.inputs(row.id)?;
        let aside = set_aside(store, row.id)?;
        let spec = Spec::decode(&row.spec).ok();
        let is_followed = spec.as_ref().is_some_and(|spec| spec.written.is_some());
        let is_open = is_followed && jobs.split(row.id, 0)?.is_some_and(|split| split.range.is_open());
        let splits = jobs.splits(row.id)?;
        let is_left = !left_among(store, std::slice::from_ref(&row))?.is_empty();
        let times = measured(store, row.id)?;
        let forecast = Forecast::new(&splits, &times);
        let hosts = Hosts::new(&splits, by_host(spec.as_ref()), &times, &forecast);
        let goes_on = matches!(row.state, JobState::Waiting | JobState::Running) && !is_open;
        let nearby = if goes_on { nearby_of(store, row.id) } else { None };
        let sum = |of: fn(&Measured) -> Option<u64>| {
            times.values().filter_map(of).fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0) + bytes))
        };
        let (bytes_here, bytes_elsewhere) = (sum(|took| took.bytes_here), sum(|took| took.bytes_elsewhere));
        Ok(Self {
            store,
            row,
            spec,
            inputs,
            splits,
            aside,
            times,
            forecast,
            hosts,
            is_open,
            is_left,
            nearby,
            bytes_here,
            bytes_elsewhere,
        })
    }

    fn json(&self) -> Result<Object, Failure> {
        let input = |(input, len): (&JobInput, Option<u64>)| {
            serde_json::Value::from(Object::new().with_name("path", &input.path).with("bytes", len))
        };
        let lengths = lengths(&self.inputs, &self.splits, by_host(self.spec.as_ref()), self.row.state);
        let inputs: Vec<_> = self.inputs.iter().zip(lengths).map(input).collect();
        let aside = |aside: &SetAside| {
            let object = Object::new().with("split", aside.split).with("held_by", aside.held_by.clone());
            serde_json::Value::from(object.with("why", aside.why.clone()))
        };
        let made = made(self.store, self.row.id, self.row.state)?;
        let (held, ran) = self.hosts.json();
        let object = about(&self.row)
            .with("inputs", inputs)
            .with("being_written", self.is_open)
            .with("is_left", self.is_left)
            .with("files_made", made.as_ref().map(|made| made.files))
            .with("bytes_made", made.as_ref().map(|made| made.bytes))
            .with("inputs_lie", nearby_json(self.nearby.as_ref()))
            .with("bytes_here", self.bytes_here)
            .with("bytes_elsewhere", self.bytes_elsewhere)
            .with("held", held)
            .with("ran", ran)
            .with("set_aside", self.aside.iter().map(aside).collect::<Vec<_>>());
        Ok(object.with("attempts", self.attempts_json()))
    }

    /// The splits that have ended or are running, which have a predicted time.
    fn attempts_json(&self) -> Vec<serde_json::Value> {
        let by_host = by_host(self.spec.as_ref());
        let told = |split: &SplitRow| {
            let took = self.times.get(&split.number);
            let object = Object::new()
                .with("split", split.number)
                .with("state", split_text(split.state))
                .with("attempt", split.attempt)
                .with("bytes", (!split.range.is_open()).then(|| split.range.to - split.range.from))
                .with("held_by", by_host.get(split.number as usize).map(|held| held.host.clone()))
                .with("host", took.map(|took| took.host.clone()))
                .with("seconds", took.map(|took| took.secs))
                .with("seconds_predicted", self.forecast.secs(split))
                .with("cpu_seconds", took.and_then(|took| took.cpu_secs))
                .with("memory_peak", took.and_then(|took| took.memory))
                .with("bytes_here", took.and_then(|took| took.bytes_here))
                .with("bytes_elsewhere", took.and_then(|took| took.bytes_elsewhere));
            serde_json::Value::from(object)
        };
        let is_told =
            |split: &&SplitRow| self.times.contains_key(&split.number) || split.state == SplitState::Running;
        self.splits.iter().filter(is_told).map(told).collect()
    }

    fn text(&self) -> Result<String, Failure> {
        let row = &self.row;
        let mut text = format!("job {}: {}", row.id, state_text(row.state));
        if self.is_left {
            text += &format!(" ({})", left_text(self.store, row));
        }
        if !row.why.is_empty() {
            text += &format!(": {}", show(row.why.as_bytes()));
        }
        text += &format!("\n  made      {}\n", local(Time::from_nanos(row.created)));
        text += &self.spec.as_ref().map_or(String::new(), describe_spec);
        text += &self.inputs_text()?;
        text += &self.splits_text();
        if let (Some(here), Some(elsewhere)) = (self.bytes_here, self.bytes_elsewhere) {
            text += &format!(
                "  read      {} from packs on the hosts that ran it, {} from others\n",
                size(here),
                size(elsewhere)
            );
        }
        text += &self.hosts.text();
        text += &describe_times(&self.splits, &self.times, &self.forecast);
        Ok(text)
    }

    fn inputs_text(&self) -> Result<String, Failure> {
        let mut text = format!("  inputs    {}", count(self.inputs.len() as u64));
        if self.is_open {
            text += ", still being written";
            let written = self.spec.as_ref().and_then(|spec| spec.written);
            let host = written.map(|written| host_of(self.store, written)).transpose()?.flatten();
            let host = host.filter(|_| self.store.is_shared());
            text += &host.map_or(String::new(), |host| format!(" on {host}"));
        } else if self.row.state != JobState::Done {
            text += &format!(", {}", size(self.inputs.iter().map(|input| input.root.len()).sum()));
        }
        text += "\n";
        for input in self.inputs.iter().take(INPUTS_NAMED) {
            text += &format!("            {}\n", show(&input.path));
        }
        Ok(text)
    }

    fn splits_text(&self) -> String {
        let [waiting, running, done, set_aside] = self.row.splits.map(count);
        let mut text =
            format!("  splits    {done} done, {running} running, {waiting} waiting, {set_aside} set aside\n");
        for aside in &self.aside {
            let held = aside.held_by.as_ref().map_or(String::new(), |host| format!(" (what {host} held)"));
            text += &show(format!("            split {}{held}: {}", aside.split, aside.why).as_bytes());
            text += "\n";
        }
        if let Some(nearby) = &self.nearby {
            text += &format!("            {}\n", describe_nearby(nearby));
        }
        text
    }
}

/// What each host held of the inputs when the job was made, if its splits are by host.
fn by_host(spec: Option<&Spec>) -> &[Held] {
    spec.map_or(&[], |spec| &spec.by_host)
}

/// The program of a job, where its output goes, and what it may reach.
fn describe_spec(spec: &Spec) -> String {
    let mut text =
        format!("  pattern   {}\n  program   {}\n", spec.pattern, show(spec.describe().as_bytes()));
    for output in &spec.outputs {
        let name = if output.name.is_empty() { "standard output" } else { &output.name };
        text += &show(format!("  output    {name} to {}", output.template).as_bytes());
        text += "\n";
    }
    for to in &spec.reach {
        text += &format!("  reaches   {to}\n");
    }
    let is_bundled = |program: &[String]| program.first().is_some_and(|word| word.contains('/'));
    let bundled = spec.programs().zip(spec.components()).filter(|(program, _)| is_bundled(program));
    for kept in bundled.filter_map(|(_, kept)| kept) {
        text += &format!("  bundles   {}:{}\n", kept.name, &kept.hash[..SHORT.min(kept.hash.len())]);
    }
    for name in &spec.env_here {
        text += &format!("  inherits  {}\n", show(name.as_bytes()));
    }
    text
}

/// Each input's length: the input's own while the job holds it, later as far as the splits show it.
fn lengths(inputs: &[JobInput], splits: &[SplitRow], by_host: &[Held], state: JobState) -> Vec<Option<u64>> {
    if state != JobState::Done {
        return inputs.iter().map(|input| Some(input.root.len())).collect();
    }
    let mut lengths = vec![None; inputs.len()];
    for &(input, _, to) in by_host.iter().flat_map(|held| &held.ranges) {
        if let Some(len) = lengths.get_mut(input as usize) {
            *len = Some(len.unwrap_or(0).max(to));
        }
    }
    for split in splits.iter().filter(|_| by_host.is_empty()) {
        let of = match split.range.input {
            Some(input) => lengths.get_mut(input as usize),
            None => lengths.first_mut().filter(|_| inputs.len() == 1),
        };
        if let Some(len) = of {
            *len = Some(len.unwrap_or(0).max(split.range.to));
        }
    }
    lengths
}

/// The time of all splits together, and the slowest ones beside their predicted times.
fn describe_times(splits: &[SplitRow], times: &BTreeMap<u64, Measured>, forecast: &Forecast) -> String {
    let mut text = String::new();
    let expected =
        |split: &SplitRow| forecast.secs(split).map(|secs| format!("{} by the others", duration(secs)));
    if !times.is_empty() {
        let secs: f64 = times.values().map(|took| took.secs).sum();
        let cpu: f64 = times.values().filter_map(|took| took.cpu_secs).sum();
        let memory = times.values().filter_map(|took| took.memory).max();
        text += &format!("  took      {} together", duration(secs));
        if times.values().any(|took| took.cpu_secs.is_some()) {
            text += &format!(", {} of the processor", duration(cpu));
        }
        if let Some(memory) = memory {
            text += &format!(", {} of memory at most", size(memory));
        }
        text += "\n";
    }
    let mut ended: Vec<(&SplitRow, &Measured)> =
        splits.iter().filter_map(|split| Some((split, times.get(&split.number)?))).collect();
    ended.sort_by(|one, other| other.1.secs.total_cmp(&one.1.secs));
    for (split, took) in ended.into_iter().filter(|_| times.len() > 1).take(SLOWEST) {
        let expected = expected(split).map_or(String::new(), |expected| format!("; predicted: {expected}"));
        text += &format!(
            "            split {}: {} on {}{expected}\n",
            split.number,
            duration(took.secs),
            took.host
        );
    }
    let running = splits.iter().filter(|split| split.state == SplitState::Running);
    for (split, expected) in running.filter_map(|split| Some((split, expected(split)?))).take(SLOWEST) {
        text += &format!("            split {} is running; predicted: {expected}\n", split.number);
    }
    text
}
