//! Facts about a snapshot besides its name and time.
//!
//! They are kept in the list of the snapshot's tags, as `KEY:VALUE`. A tag from a user has no colon
//! ([`check_name`](crate::ops::snapshots::check_name)). So every engine, the catalogue and copies
//! of a store keep these facts without knowing them.

use crate::error::Result;
use crate::meta::{Meta, SnapshotRow};
use crate::text::{escape, unescape};
use crate::tree::StorePath;

/// Why a snapshot exists, and so who may delete it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// A user gave it its name: only a user who names it again deletes it.
    #[default]
    Named,
    /// Named by its time, by timers and `put --tag`: `keep` deletes it by its rules.
    Dated,
    /// Taken by a command before it removed or replaced something: goes when it is old enough.
    Automatic,
}

impl Kind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Dated => "dated",
            Self::Automatic => "automatic",
        }
    }
}

/// The changes that a command made after its snapshot was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Entries that were new.
    pub created: u64,
    /// Entries that were changed, replaced or moved.
    pub changed: u64,
    /// Entries that were removed, including those in removed directories.
    pub removed: u64,
}

/// The snapshot of another program's repository that a snapshot was imported from. Its time is then
/// the original's, and so are its host and its sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// The program.
    pub tool: String,
    /// The repository, by its id.
    pub repository: String,
    /// The snapshot in it, by its id.
    pub snapshot: String,
}

/// The facts in a snapshot's tags.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Why it exists.
    pub kind: Kind,
    /// Nothing deletes it until it is released.
    pub held: bool,
    /// The host on which it was taken.
    pub host: Option<String>,
    /// The command that took it.
    pub command: Option<String>,
    /// The sources of a put: paths of the host.
    pub sources: Vec<Vec<u8>>,
    /// The targets that the command could change: paths in the store.
    pub targets: Vec<StorePath>,
    /// The source that a target mirrored before the command.
    pub mirrored: Vec<(StorePath, String)>,
    /// The changes of the command, once it was done.
    pub counts: Option<Counts>,
    /// The snapshot that it was imported from.
    pub imported: Option<Imported>,
    /// Files that it has, and their bytes.
    pub size: Option<(u64, u64)>,
    /// The tags that users gave it.
    pub tags: Vec<String>,
}

impl Facts {
    /// Adds the size of the tree as it is now.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn sized(self, meta: &dyn Meta) -> Result<Self> {
        let totals = meta.totals()?;
        Ok(Self { size: Some((totals.files, totals.bytes)), ..self })
    }

    /// Reads a snapshot's tags.
    pub fn of(row: &SnapshotRow) -> Self {
        let mut facts = Self::default();
        for tag in &row.tags {
            let Some((key, value)) = tag.split_once(':') else {
                facts.tags.push(tag.clone());
                continue;
            };
            let path = |value: &str| StorePath::parse(&unescape(value)).ok();
            match key {
                "kind" if value == "automatic" => facts.kind = Kind::Automatic,
                "kind" if value == "dated" => facts.kind = Kind::Dated,
                "held" => facts.held = true,
                "host" => facts.host = Some(String::from_utf8_lossy(&unescape(value)).into_owned()),
                "command" => facts.command = Some(value.to_string()),
                "source" => facts.sources.push(unescape(value)),
                "target" => facts.targets.extend(path(value)),
                "mirrored" => {
                    let both =
                        value.split_once(' ').and_then(|(at, from)| Some((path(at)?, from.to_string())));
                    facts.mirrored.extend(both);
                }
                "changes" => facts.counts = parse_counts(value),
                IMPORTED => facts.imported = parse_imported(value),
                "size" => {
                    let both = value.split_once(',');
                    facts.size =
                        both.and_then(|(files, bytes)| Some((files.parse().ok()?, bytes.parse().ok()?)));
                }
                // From a later version.
                _ => {}
            }
        }
        facts
    }

    /// The list of tags with all of it.
    pub fn to_tags(&self) -> Vec<String> {
        let mut tags = self.tags.clone();
        if self.kind != Kind::Named {
            tags.push(format!("kind:{}", self.kind.name()));
        }
        if self.held {
            tags.push("held:yes".to_string());
        }
        tags.extend(self.host.iter().map(|host| format!("host:{}", escape(host.as_bytes()))));
        tags.extend(self.command.iter().map(|command| format!("command:{command}")));
        tags.extend(self.sources.iter().map(|source| format!("source:{}", escape(source))));
        tags.extend(self.targets.iter().map(|target| format!("target:{}", escape(&target.to_bytes()))));
        let mirrored =
            |(at, from): &(StorePath, String)| format!("mirrored:{} {from}", escape(&at.to_bytes()));
        tags.extend(self.mirrored.iter().map(mirrored));
        if let Some(Counts { created, changed, removed }) = self.counts {
            tags.push(format!("changes:{created},{changed},{removed}"));
        }
        if let Some(Imported { tool, repository, snapshot }) = &self.imported {
            let [tool, repository, snapshot] =
                [tool, repository, snapshot].map(|text| escape(text.as_bytes()));
            tags.push(format!("{IMPORTED}:{tool} {repository} {snapshot}"));
        }
        tags.extend(self.size.map(|(files, bytes)| format!("size:{files},{bytes}")));
        tags
    }
}

const IMPORTED: &str = "imported";

fn parse_imported(value: &str) -> Option<Imported> {
    let mut texts = value.split(' ').map(|text| String::from_utf8_lossy(&unescape(text)).into_owned());
    Some(Imported { tool: texts.next()?, repository: texts.next()?, snapshot: texts.next()? })
}

/// Snapshots in the order of time, oldest first. Those taken in this store come in the order in
/// which they were taken, whatever the clocks said. An imported one comes before the first of them
/// that is younger than its original.
pub fn in_order(rows: Vec<SnapshotRow>) -> Vec<SnapshotRow> {
    let is_imported = |row: &SnapshotRow| {
        row.tags.iter().any(|tag| tag.split_once(':').is_some_and(|(key, _)| key == IMPORTED))
    };
    let (mut imported, mut taken): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_imported);
    imported.sort_by_key(|row| (row.time, row.epoch));
    taken.sort_by_key(|row| row.epoch);
    let mut imported = imported.into_iter().peekable();
    let mut all = Vec::new();
    for row in taken {
        while let Some(older) = imported.next_if(|other| other.time < row.time) {
            all.push(older);
        }
        all.push(row);
    }
    all.extend(imported);
    all
}

/// Of snapshots that are [in order](in_order), the one of this name, else the newest that a user gave
/// this tag.
pub fn named<'a>(rows: &'a [SnapshotRow], text: &str) -> Option<&'a SnapshotRow> {
    let tagged = || rows.iter().rev().find(|row| row.tags.iter().any(|tag| tag == text));
    rows.iter().find(|row| row.name == text).or_else(tagged)
}

/// Of snapshots that are [in order](in_order), the newest one that is not younger than `time`,
/// nanoseconds since 1970.
pub fn as_of(rows: &[SnapshotRow], time: u64) -> Option<&SnapshotRow> {
    rows.iter().rev().find(|row| row.time <= time)
}

fn parse_counts(value: &str) -> Option<Counts> {
    let mut numbers = value.split(',').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Counts { created: next()?, changed: next()?, removed: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tags: Vec<String>) -> SnapshotRow {
        SnapshotRow { name: "s".to_string(), epoch: 1, time: 2, tags, role: None }
    }

    #[test]
    fn facts_come_back_as_they_were() {
        let target = StorePath::parse(b"a b/\xff%41\n\xc3\xa9").unwrap();
        let facts = Facts {
            kind: Kind::Automatic,
            held: true,
            host: Some("the host".to_string()),
            command: Some("put".to_string()),
            sources: vec![b"/home/\xfe x".to_vec(), b"/b".to_vec()],
            targets: vec![StorePath::default(), target.clone()],
            mirrored: vec![(target, "h m ef53:1 /a%20b".to_string())],
            counts: Some(Counts { created: 1, changed: 2, removed: 3 }),
            imported: Some(Imported {
                tool: "restic".to_string(),
                repository: "5e58".to_string(),
                snapshot: "a b:c".to_string(),
            }),
            size: Some((3, 4)),
            tags: vec!["nightly".to_string()],
        };
        assert_eq!(Facts::of(&row(facts.to_tags())), facts);
    }

    #[test]
    fn tags_alone_are_those_of_a_named_snapshot() {
        let tags = vec!["daily".to_string(), "later:fact".to_string()];
        let facts = Facts::of(&row(tags));
        assert_eq!((facts.kind, facts.tags), (Kind::Named, vec!["daily".to_string()]));
    }

    #[test]
    fn imported_snapshots_come_by_their_time_and_others_as_they_were_taken() {
        let row = |epoch: u64, time: u64, is_imported: bool| {
            let imported = Imported {
                tool: "borg".to_string(),
                repository: "r".to_string(),
                snapshot: epoch.to_string(),
            };
            let facts = Facts { imported: is_imported.then_some(imported), ..Facts::default() };
            SnapshotRow { name: epoch.to_string(), epoch, time, tags: facts.to_tags(), role: None }
        };
        // The clock was wrong when the second was taken.
        let rows = vec![
            row(1, 50, false),
            row(2, 90, false),
            row(3, 60, false),
            row(4, 20, true),
            row(5, 70, true),
            row(6, 40, true),
            row(7, 95, true),
            row(8, 100, false),
        ];
        let epochs: Vec<u64> = in_order(rows).into_iter().map(|row| row.epoch).collect();
        assert_eq!(epochs, [4, 6, 1, 5, 2, 3, 7, 8]);
    }
}
