//! Records that scripts under `bench/` have made, to be drawn: what needs a cluster, or an hour, is measured there.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::experiment::{Failed, Lab};
use crate::measure::Spread;
use crate::mounted::{needs, run};
use crate::record::Outcome;

/// Where the sources are.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A script's record.
pub struct Recorded {
    /// What it says.
    pub json: Value,
    /// Its file, unless it was made just now.
    pub file: Option<PathBuf>,
    /// What makes it anew.
    command: &'static str,
}

impl Recorded {
    /// The newest one whose name has `-KIND-` in it; `command` makes one.
    ///
    /// # Errors
    /// `Missing` where there is none.
    pub fn newest(kind: &str, command: &'static str) -> Result<Self, Failed> {
        let places = [PathBuf::from("docs/evaluation/records"), repository().join("docs/evaluation/records")];
        let is_record = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.contains(&format!("-{kind}-")) && name.ends_with(".json")
        };
        let in_place = |place: PathBuf| {
            std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        // The names begin with the day.
        let newer = |a: &PathBuf, b: &PathBuf| a.file_stem().cmp(&b.file_stem());
        let file =
            places.into_iter().flat_map(in_place).filter(is_record).max_by(newer).ok_or_else(|| {
                Failed::Missing(format!(
                    "there is no record of it in docs/evaluation/records; `{command}` makes one"
                ))
            })?;
        let json = serde_json::from_slice(&std::fs::read(&file)?).map_err(std::io::Error::from)?;
        Ok(Self { json, file: Some(file), command })
    }

    /// One that was made just now, by [`run_tiny`].
    pub fn made(json: Value, command: &'static str) -> Self {
        Self { json, file: None, command }
    }

    /// Where it is from, what made it, and `more`.
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

/// Numbers of a list, as one with its spread; `None` where there are none.
pub fn spread(rounds: &Value, value: impl Fn(&Value) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = rounds.as_array().into_iter().flatten().filter_map(value).collect();
    (!values.is_empty()).then(|| Spread::of(values))
}

/// Has `bench/SCRIPT` make a record with these options, on this machine alone; `tools` are programs that it needs, and Debian's packages of them.
///
/// # Errors
/// `Missing` where one of them, or FUSE, cannot be had.
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
