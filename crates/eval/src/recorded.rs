//! Records made by scripts under `bench/`, to be drawn. These scripts measure what needs a cluster,
//! or an hour.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::lab::{Failed, Lab, Scale};
use crate::machine::Machine;
use crate::measure::Spread;
use crate::mounted::{needs, run};
use crate::record::Outcome;

/// The directory of the sources.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// True if a script's description of a machine (`bench/common.py`) means this one: it compares the
/// parts that name its directory of records, without the devices.
fn is_of(machine: &Value, here: &Machine) -> bool {
    let has = |flag: &str| {
        machine["flags"]
            .as_array()
            .is_some_and(|flags| flags.iter().any(|known| known.as_str() == Some(flag)))
    };
    let simd = match (has("avx512f"), has("avx2"), has("gfni")) {
        (true, _, true) => "avx512",
        (_, true, true) => "avx2gfni",
        (_, true, false) => "avx2",
        _ => "portable",
    };
    let gib = |bytes: u64| (bytes as f64 / f64::from(1 << 30)).round() as u64;
    machine["cpu"].as_str().map(str::trim) == Some(&here.cpu)
        && machine["cpus"].as_u64() == Some(here.cpus as u64)
        && machine["memory"].as_u64().map(gib) == Some(gib(here.memory))
        && simd == here.simd
}

/// A script's record.
pub struct Recorded {
    /// Its content.
    pub json: Value,
    /// Its file, unless it was just made.
    pub file: Option<PathBuf>,
    /// The command that makes it again.
    command: &'static str,
}

impl Recorded {
    /// The newest record of this machine whose name has `-KIND-` in it; `command` makes one. In
    /// tiny runs, one of any machine: only answers count.
    ///
    /// # Errors
    /// `Missing` if there is none of this machine, with the others' names: another machine's
    /// numbers would be kept, and drawn, as this one's.
    pub fn newest(lab: &Lab, kind: &str, command: &'static str) -> Result<Self, Failed> {
        let places = [PathBuf::from("docs/evaluation/records"), repository().join("docs/evaluation/records")];
        let is_record = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.contains(&format!("-{kind}-")) && name.ends_with(".json")
        };
        let in_place = |place: PathBuf| {
            std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        let mut files: Vec<PathBuf> = places.into_iter().flat_map(in_place).filter(is_record).collect();
        // The names begin with the day.
        files.sort_by(|a, b| b.file_stem().cmp(&a.file_stem()));
        let (here, mut others) = (Machine::here(&lab.work), Vec::new());
        for file in files {
            let json: Value = serde_json::from_slice(&std::fs::read(&file)?).map_err(std::io::Error::from)?;
            if lab.scale == Scale::Tiny || is_of(&json["machine"], &here) {
                return Ok(Self { json, file: Some(file), command });
            }
            others.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        others.dedup();
        Err(Failed::Missing(if others.is_empty() {
            format!("there is no record of it in docs/evaluation/records; `{command}` makes one")
        } else {
            format!(
                "there is no record of it of this machine in docs/evaluation/records, only {}; `{command}` makes one",
                others.join(", ")
            )
        }))
    }

    /// A record that [`run_tiny`] has just made.
    pub fn made(json: Value, command: &'static str) -> Self {
        Self { json, file: None, command }
    }

    /// Adds a note: the record's origin, the command that made it, and `more`.
    pub fn note(&self, outcome: &mut Outcome, more: &str) {
        let of = |name: &str| self.json[name].as_str().unwrap_or("unknown").to_string();
        let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        outcome.drawn_from = self.file.as_ref().map(name);
        let file = self
            .file
            .as_ref()
            .map_or_else(String::new, |file| format!(": `docs/evaluation/records/{}`", name(file)));
        let load = self.json["machine"]["load"][0].as_f64();
        outcome.note(format!(
            "Measured by `{}` on {}, on {} with {} CPUs{}, revision {}, {} rounds{more}{file}.",
            self.command,
            of("date"),
            self.json["machine"]["cpu"].as_str().unwrap_or("unknown"),
            self.json["machine"]["cpus"],
            load.map_or_else(String::new, |load| format!(", load {load:.1} when it began")),
            of("revision"),
            self.json["rounds"],
        ));
    }
}

/// The spread of a list's numbers; `None` if there are none.
pub fn spread(rounds: &Value, value: impl Fn(&Value) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = rounds.as_array().into_iter().flatten().filter_map(value).collect();
    (!values.is_empty()).then(|| Spread::of(values))
}

/// Lets `bench/SCRIPT` make a record with these options, on this machine alone. `tools` are
/// programs that it needs, with their Debian packages.
///
/// # Errors
/// `Missing` if one of them, or FUSE, is not available.
pub fn run_tiny(lab: &Lab, script: &str, options: &str, tools: &[(&str, &str)]) -> Result<Value, Failed> {
    let Some(program) = &lab.outrigger else {
        return Err(Failed::Missing(
            "the program `outrigger` is not beside this one: build it, or give --outrigger".into(),
        ));
    };
    needs("python3", "python3")?;
    for (tool, package) in tools {
        needs(tool, package)?;
    }
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Err(Failed::Missing("this user cannot open /dev/fuse".into()));
    }
    let room = lab.room()?;
    let record = room.path().join("record.json");
    run(Command::new("python3")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(repository().join("bench").join(script))
        .arg("--outrigger")
        .arg(program)
        .arg("--local")
        .args(options.split(' '))
        .arg("--work")
        .arg(room.path().join("work"))
        .arg("--json")
        .arg(&record))?;
    Ok(serde_json::from_slice(&std::fs::read(record)?).map_err(std::io::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_s_record_is_of_the_machine_that_it_names() {
        let mut here = Machine::here(Path::new("/"));
        (here.cpu, here.cpus, here.simd, here.memory) =
            ("AMD EPYC".into(), 2, "avx512".into(), 25_276_502_016);
        let flags = ["avx2", "avx512f", "gfni", "vaes", "sha_ni"];
        let mut machine =
            serde_json::json!({"cpu": "AMD EPYC", "cpus": 2, "memory": 25_276_514_304_u64, "flags": flags});
        assert!(is_of(&machine, &here), "a few pages of memory are no other machine");
        machine["flags"] = serde_json::json!(["avx2", "vaes"]);
        assert!(!is_of(&machine, &here));
        here.simd = "avx2".into();
        assert!(is_of(&machine, &here));
        machine["cpus"] = 4.into();
        assert!(!is_of(&machine, &here));
        machine["cpus"] = 2.into();
        machine["memory"] = (64_u64 << 30).into();
        assert!(!is_of(&machine, &here));
        assert!(!is_of(&Value::Null, &here));
    }
}
