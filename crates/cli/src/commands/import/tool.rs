//! The interface to programs whose repositories are imported.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::Command;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use outrigger_format::catalogue::Time;

use super::borg::Borg;
use super::restic::Restic;
use crate::exit::Failure;

/// A program and a repository of it.
pub trait Tool {
    /// The name of the program.
    fn name(&self) -> &'static str;

    /// The repository's id, and its snapshots, oldest first.
    ///
    /// # Errors
    /// When the program fails.
    fn contents(&self) -> Result<(String, Vec<Original>), Failure>;

    /// Lists all entries of a snapshot, one a line.
    fn list(&self, original: &Original) -> Command;

    /// The entry that a line of the list is about, if it is about one.
    ///
    /// # Errors
    /// When the line is none of a list.
    fn node(&self, line: &str) -> Result<Option<Node>, serde_json::Error>;

    /// Stands in a list for each byte of a name that is not UTF-8.
    fn replacement(&self) -> char;

    /// Writes a snapshot as a tar archive.
    ///
    /// # Errors
    /// When the program cannot be asked how it is to be called.
    fn dump(&self, original: &Original) -> Result<Command, Failure>;
}

/// The repository that `word` names, if it names one.
pub fn named(word: &OsStr) -> Option<Box<dyn Tool>> {
    let at = |prefix: &[u8]| -> Option<OsString> {
        let rest = word.as_bytes().strip_prefix(prefix)?;
        Some(OsString::from_vec(rest.to_vec()))
    };
    if let Some(repository) = at(b"restic:") {
        return Some(Box::new(Restic { repository }));
    }
    Some(Box::new(Borg { repository: at(b"borg:")? }))
}

/// A snapshot of the repository.
#[derive(Clone, Debug)]
pub struct Original {
    /// Its id.
    pub id: String,
    /// The name that people know it by.
    pub name: String,
    /// Its time.
    pub time: Timestamp,
    /// The host it was made on.
    pub host: Option<String>,
    /// The directories or the archive that it was made of.
    pub sources: Vec<Vec<u8>>,
    /// Its tags.
    pub tags: Vec<String>,
}

/// An entry of a snapshot, as the program lists it.
#[derive(Debug)]
pub struct Node {
    /// Its path, without a slash in front.
    pub path: String,
    /// What it is.
    pub kind: NodeKind,
    /// Time of the last modification; archives may have whole seconds.
    pub mtime: Time,
    /// The repository has lost parts of it.
    pub is_broken: bool,
}

/// The kinds that the check of an archive distinguishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum NodeKind {
    File {
        size: u64,
    },
    HardLink,
    Directory,
    Symlink,
    /// A device, a pipe or a socket, which the archive may lack.
    Special,
}

/// A time of a list. Without an offset it is in UTC.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| local().map(|zoned| zoned.timestamp()))
}

/// As [`parse_time`], for a file; the beginning of 1970 if it is none.
pub fn file_time(text: &str) -> Time {
    let time = parse_time(text).unwrap_or(Timestamp::UNIX_EPOCH).as_nanosecond();
    let (secs, nanos) = (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000));
    Time { secs: secs as i64, nanos: nanos as u32 }
}

/// Why the output of a program cannot be used.
pub fn unreadable(what: &str, error: &serde_json::Error) -> Failure {
    Failure::failed(format!("cannot understand the output of {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_lists_are_understood() {
        let time = |text| file_time(text);
        assert_eq!(time("2020-01-02T03:04:05.123456789Z"), Time { secs: 1_577_934_245, nanos: 123_456_789 });
        assert_eq!(time("2020-01-02T04:04:05.5+01:00"), Time { secs: 1_577_934_245, nanos: 500_000_000 });
        assert_eq!(time("2020-01-02T03:04:05.123457"), Time { secs: 1_577_934_245, nanos: 123_457_000 });
        assert_eq!(time("1969-12-31T23:59:59.5Z"), Time { secs: -1, nanos: 500_000_000 });
        assert_eq!(parse_time("yesterday"), None);
    }

    #[test]
    fn words_name_repositories() {
        assert_eq!(named(OsStr::new("restic:/srv/r")).map(|tool| tool.name()), Some("restic"));
        assert_eq!(named(OsStr::new("borg:")).map(|tool| tool.name()), Some("borg"));
        assert!(named(OsStr::new("./restic:x")).is_none() && named(OsStr::new("a.tar")).is_none());
    }
}
