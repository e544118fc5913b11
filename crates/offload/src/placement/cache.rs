//! The calibration file: text, one line for each point, with fields separated by tabs.
//!
//! ```text
//! outrigger calibration 1
//! device  NVIDIA H200 | 570.86 | 139 GiB
//! hash_many/blake3  1048576  21000  19065  9800  1200  40  0.031     class, bytes, ns: overhead in work out, samples, error
//! ```
//!
//! It is a cache: a file of another version and lines that make no sense are ignored and counted
//! ([`Calibration::load_counting`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::{Curve, Point, Stages};

const HEAD: &str = "outrigger calibration 1";

/// The measurements of devices, by identity and then by class.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Calibration {
    devices: BTreeMap<String, BTreeMap<String, Curve>>,
}

/// The calibration file's default path: `OUTRIGGER_CALIBRATION`, or `outrigger/calibration` in the
/// user's cache directory. `None` if neither is known.
pub fn default_path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("OUTRIGGER_CALIBRATION").or_else(|| {
        let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("outrigger/calibration"))
    })
}

impl Calibration {
    /// A device's measurements for a class.
    pub fn get(&self, device: &str, class: &str) -> Option<Curve> {
        self.devices.get(device)?.get(class).copied()
    }

    /// All measurements of a device, by class.
    pub fn of_device(&self, device: &str) -> impl Iterator<Item = (&str, &Curve)> {
        self.devices.get(device).into_iter().flatten().map(|(class, curve)| (class.as_str(), curve))
    }

    /// Replaces a device's measurements for a class, unless `curve` is empty.
    pub fn put(&mut self, device: &str, class: &str, curve: Curve) {
        if curve.points().next().is_some() {
            self.devices.entry(device.to_string()).or_default().insert(class.to_string(), curve);
        }
    }

    /// Forgets a device.
    pub fn forget(&mut self, device: &str) {
        self.devices.remove(device);
    }

    /// Reads a file. The result is empty if there is no file, or one of another version.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        Self::load_counting(path).map(|(all, _)| all)
    }

    /// Like [`Calibration::load`], with the number of ignored lines. In a file of another kind, all
    /// lines are ignored.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn load_counting(path: &Path) -> io::Result<(Self, usize)> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Self::default(), 0)),
            Err(error) => Err(error),
        }
    }

    /// Writes a file by renaming, so that no reader sees half of it. If two processes write at
    /// once, the later one wins.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        std::fs::write(&new, self.print())?;
        std::fs::rename(&new, path).inspect_err(|_| drop(std::fs::remove_file(&new)))
    }

    fn parse(text: &str) -> (Self, usize) {
        let (mut all, mut strange) = (Self::default(), 0);
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return (all, text.lines().count().max(1));
        }
        let mut device = None;
        for line in lines {
            if let Some(("device", key)) = line.split_once('\t') {
                device = Some(key.to_string());
            } else if let (Some(device), Some((class, point))) = (&device, parse_point(line)) {
                let classes = all.devices.entry(device.clone()).or_default();
                classes.entry(class.to_string()).or_default().set(point);
            } else {
                strange += 1;
            }
        }
        (all, strange)
    }

    fn print(&self) -> String {
        let mut text = format!("{HEAD}\n");
        // Writing into a string cannot fail.
        for (device, classes) in &self.devices {
            let _ = writeln!(text, "device\t{device}");
            for (class, curve) in classes {
                for Point { bytes, stages, samples, error } in curve.points() {
                    let Stages { overhead, copy_in, work, copy_out } = stages;
                    let _ = writeln!(
                        text,
                        "{class}\t{bytes:.0}\t{overhead:.0}\t{copy_in:.0}\t{work:.0}\t{copy_out:.0}\t{samples}\t{error:.4}"
                    );
                }
            }
        }
        text
    }
}

fn parse_point(line: &str) -> Option<(&str, Point)> {
    let mut fields = line.split('\t');
    let class = fields.next()?;
    let mut number = || {
        let number: f64 = fields.next()?.parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number)
    };
    let bytes = number()?;
    let stages = Stages { overhead: number()?, copy_in: number()?, work: number()?, copy_out: number()? };
    let (samples, error) = (number()? as u32, number()?);
    let sound = !class.is_empty() && bytes >= 1.0 && stages.latency() > 0.0 && samples > 0;
    sound.then_some((class, Point { bytes, stages, samples, error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Calibration {
        let mut all = Calibration::default();
        for (device, class, bytes) in
            [("a | 1 | 2 GiB", "scan", 5000.0), ("a | 1 | 2 GiB", "scan", 70_000.0), ("b", "user/x y", 1.0)]
        {
            let stages = Stages { overhead: 10.0, copy_in: 0.0, work: bytes, copy_out: 3.0 };
            let mut curve = all.get(device, class).unwrap_or_default();
            curve.set(Point { bytes, stages, samples: 7, error: 0.25 });
            all.put(device, class, curve);
        }
        all
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/calibration");
        assert_eq!(Calibration::load(&path).unwrap(), Calibration::default());
        example().save(&path).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), example());
        assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
        let mut less = example();
        less.forget("b");
        less.save(&path).unwrap();
        assert_eq!(Calibration::load(&path).unwrap().of_device("b").count(), 0);
    }

    #[test]
    fn nonsense_counts_as_not_there() {
        let good = example().print();
        assert_eq!(Calibration::parse(&good), (example(), 0));
        let (none, strange) = Calibration::parse(&good.replace("calibration 1", "calibration 2"));
        assert_eq!((none, strange), (Calibration::default(), good.lines().count()));
        assert_eq!(Calibration::parse("").1, 1);
        for line in [
            "",
            "scan",
            "scan\t1\t2",
            "scan\tNaN\t1\t1\t1\t1\t1\t0",
            "scan\t-1\t1\t1\t1\t1\t1\t0",
            "\u{fffd}",
        ] {
            assert_eq!(Calibration::parse(&format!("{good}{line}\n")), (example(), 1), "{line}");
        }
        for cut in 0..good.len() {
            Calibration::parse(&good[..cut]);
        }
    }
}
