//! One tier, in the syntax of `store.toml` and the command line: a place, and how much of it may be
//! used.
//!
//! ```text
//! file:/mnt/nvme?fill=200G     at most so many bytes of packs
//! file:/mnt/nvme?fill=90%      as long as so much of its file system is in use at most
//! s3://bucket/prefix           all of it
//! ```

use std::fmt;

use outrigger_format::{parse_size, print_size};

use crate::backend::Location;
use crate::error::{Context, Error, ErrorKind, Result};

/// How much of a tier may be used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fill {
    /// Bytes of packs.
    Bytes(u64),
    /// A percentage of the file system, including other files.
    Percent(u8),
}

/// A place among others.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tier {
    /// Where it is.
    pub location: Location,
    /// How much new packs may take of it; `None`: until it is full.
    pub fill: Option<Fill>,
}

impl Fill {
    /// From its text.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        let none = || Error::new(ErrorKind::Invalid, format!("fill={text}: use a size (200G) or 1% to 99%"));
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| (1..=99).contains(percent));
                percent.map(Self::Percent).ok_or_else(none)
            }
            None => parse_size(text).ok().filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or_else(none),
        }
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&print_size(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Tier {
    /// Parses its text.
    ///
    /// # Errors
    /// `Invalid`, also for a bound of a place that is not a directory.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((place, fill)) = text.rsplit_once("?fill=") else {
            return Ok(Self { location: Location::parse(text)?, fill: None });
        };
        let location = Location::parse(place)?;
        if !matches!(location, Location::Directory(_)) {
            let why = "only a directory can have `fill`: elsewhere a quota of the bucket or pool says how much may be used";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(Self { location, fill: Some(Fill::parse(fill)?) })
    }

    /// True if more than `most` percent of a directory's file system would be in use after `more`
    /// bytes were added (or removed, if negative).
    pub(crate) fn is_above(&self, most: u8, more: i64) -> Result<bool> {
        let Location::Directory(path) = &self.location else { return Ok(false) };
        Ok(percent_of(path, more)? > f64::from(most))
    }

    /// True if a tier with `used` bytes of packs is below `fill`.
    pub(super) fn is_below(&self, fill: Fill, used: u64) -> Result<bool> {
        match (fill, &self.location) {
            (Fill::Bytes(most), _) => Ok(used < most),
            (Fill::Percent(most), Location::Directory(path)) => Ok(percent_of(path, 0)? < f64::from(most)),
            (Fill::Percent(_), _) => Ok(true),
        }
    }
}

/// How much of a directory's file system would be in use with `more` bytes, as `df` counts it.
fn percent_of(path: &std::path::Path, more: i64) -> Result<f64> {
    let system = rustix::fs::statvfs(path).context(|| format!("cannot look at {}", path.display()))?;
    let used = system.f_blocks.saturating_sub(system.f_bfree) as f64;
    let usable = used + system.f_bavail as f64;
    let used = (used + more as f64 / system.f_frsize.max(1) as f64).max(0.0);
    Ok(if usable > 0.0 { 100.0 * used / usable } else { 100.0 })
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.location)?;
        self.fill.map_or(Ok(()), |fill| write!(f, "?fill={fill}"))
    }
}
