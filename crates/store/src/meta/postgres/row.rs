//! Rows to values and back, with their checksums. Everything read here is checked: anybody may have
//! changed the database.
//!
//! **Checksums.** A cluster may lack page checksums (before PostgreSQL 18 they were only on
//! request), and a flipped bit in a name, a time or a root would go unnoticed. So the rows of the
//! tree end with a CRC-32 over their values, or with a keyed hash where values are sealed
//! (`sealing.rs`). It is computed here when they are written, and compared here when they are read.
//! Rows are always written whole, so no statement in the server has to compute it.

use outrigger_format::catalogue::{Attributes, FileKind, Time, decode_xattrs};
use outrigger_format::{Cursor, Root};
use tokio_postgres::types::Type;

use super::connection::{Query, Row};
use super::sealing::{Private, Public, Seals, Subject, Sum};
use crate::error::ErrorKind;
use crate::meta::change::row::{self as common, Content, Special};
use crate::meta::change::times;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::{Inode, VersionRow};

/// A row's part on an inode besides its content.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Traits {
    /// With the kind.
    pub mode: i64,
    pub uid: i64,
    pub gid: i64,
    pub xattrs: Option<Vec<u8>>,
}

/// An inode as commits work on it.
pub(super) type Stored = common::Stored<Traits>;

fn damaged(what: impl std::fmt::Display) -> Fault {
    refuse(ErrorKind::Damaged, what.to_string())
}

/// Refuses a row with another checksum.
pub(super) fn require(kept: i32, computed: i32, what: impl FnOnce() -> String) -> Outcome<()> {
    if kept == computed { Ok(()) } else { Err(damaged(what())) }
}

/// Columns of `inode` as `i` for [`read_stored`].
macro_rules! stored_columns {
    () => {
        "i.number, i.epoch, i.version, i.mtime_secs, i.time, i.stamp, i.mtime_nanos, i.mode, i.uid, i.gid, i.links, i.sum, \
         i.device, i.target, i.xattrs, i.root, i.times"
    };
}
/// The same for `inode_old`, which has no versions and times of commit.
macro_rules! former_columns {
    () => {
        "i.number, i.epoch_from, i.epoch_to, i.mtime_secs, 0::bigint, i.stamp, i.mtime_nanos, i.mode, i.uid, i.gid, i.links, \
         i.sum, i.device, i.target, i.xattrs, i.root, i.times"
    };
}
/// The same for [`read_either`], with whether it is to be read by [`read_former`] first. A row that
/// the server has compared with that of `inode` has all that this had, its checksum with it.
macro_rules! ended_columns {
    () => {
        "i.was_sum IS NULL, i.number, i.epoch_from, coalesce(i.was_version, i.epoch_to), i.mtime_secs, coalesce(i.was_time, 0), \
         i.stamp, i.mtime_nanos, i.mode, i.uid, i.gid, i.links, coalesce(i.was_sum, i.sum), i.device, i.target, i.xattrs, \
         i.root, i.times"
    };
}
pub(super) use ended_columns;
pub(super) use former_columns;
pub(super) use stored_columns;

fn sum_of_content(sum: Sum, links: i64, stamp: i64, content: &Content<Traits>) -> i32 {
    let Content { traits, mtime, special, root, times } = content;
    let (device, target) = special_columns(special);
    sum.int(mtime.secs)
        .int(mtime.nanos.into())
        .int(stamp)
        .int(links)
        .int(traits.mode)
        .int(traits.uid)
        .int(traits.gid)
        .int(device.unwrap_or(-1))
        .bytes(target)
        .bytes(traits.xattrs.as_deref())
        .bytes(root.as_deref())
        .bytes(times.as_deref())
        .end()
}

/// Checksum of a row of `inode`.
pub(super) fn inode_sum(seals: &Seals, inode: &Stored) -> i32 {
    let sum = Sum::new(seals, "inode").int(inode.number).int(inode.epoch).int(inode.version).int(inode.time);
    sum_of_content(sum, inode.links, inode.stamp, &inode.content)
}

/// Checksum of a row of `inode_old`.
pub(super) fn former_sum(seals: &Seals, inode: &Stored, epoch_to: i64) -> i32 {
    let sum = Sum::new(seals, "inode_old").int(inode.number).int(inode.epoch).int(epoch_to);
    sum_of_content(sum, inode.links, inode.stamp, &inode.content)
}

/// Checksum of a row of `dentry`.
pub(super) fn name_sum(seals: &Seals, parent: i64, name: &[u8], inode: i64, epoch: i64) -> i32 {
    Sum::new(seals, "dentry").int(parent).bytes(Some(name)).int(inode).int(epoch).end()
}

/// Checksum of a row of `dentry_old`.
pub(super) fn former_name_sum(
    seals: &Seals,
    parent: i64,
    name: &[u8],
    inode: i64,
    epochs: (i64, i64),
) -> i32 {
    let sum = Sum::new(seals, "dentry_old").int(parent).bytes(Some(name)).int(inode);
    sum.int(epochs.0).int(epochs.1).end()
}

/// Checksum of a row of `directory`.
pub(super) fn directory_sum(seals: &Seals, inode: i64, parent: i64) -> i32 {
    Sum::new(seals, "directory").int(inode).int(parent).end()
}

/// Checksum of a row of `version`: inode and number, time, mtime, root.
pub(super) fn version_sum(
    seals: &Seals,
    [inode, number]: [i64; 2],
    time: i64,
    mtime: Time,
    root: Option<&[u8]>,
) -> i32 {
    let sum = Sum::new(seals, "version").int(inode).int(number).int(time);
    sum.int(mtime.secs).int(mtime.nanos.into()).bytes(root).end()
}

/// Checksum of a row of `held`.
pub(super) fn held_sum(seals: &Seals, holder: &str, root: &[u8]) -> i32 {
    Sum::new(seals, "held").text(holder).bytes(Some(root)).end()
}

/// Checksum of a row of `job_input`.
pub(super) fn input_sum(seals: &Seals, job: i64, number: i64, path: &[u8], root: Option<&[u8]>) -> i32 {
    Sum::new(seals, "job_input").int(job).int(number).bytes(Some(path)).bytes(root).end()
}

/// Checksum of a row of `job_output`: job, split and attempt, name, root.
pub(super) fn output_sum(seals: &Seals, numbers: [i64; 3], name: &[u8], root: Option<&[u8]>) -> i32 {
    let sum = numbers.into_iter().fold(Sum::new(seals, "job_output"), Sum::int);
    sum.bytes(Some(name)).bytes(root).end()
}

fn special_columns(special: &Special) -> (Option<i64>, Option<&[u8]>) {
    match special {
        Special::None => (None, None),
        Special::Target(target) => (None, Some(target)),
        Special::Device(device) => (Some(*device), None),
    }
}

/// The bits of a u32 as a column.
pub(super) fn bits(value: i64) -> i32 {
    (value as u32).cast_signed()
}

/// Reads columns `first..`, selected as `stored_columns`, of a row whose checksum `sum` computes.
fn read(row: &Row, first: usize, sum: impl FnOnce(&Stored) -> i32) -> Outcome<Stored> {
    let int = |column: usize| row.try_get::<_, i64>(first + column);
    let small = |column: usize| row.try_get::<_, i32>(first + column);
    let bytes = |column: usize, subject| row.maybe_bytes(first + column, &subject);
    let number = int(0)?;
    let what = || format!("inode {number} is not what was written");
    let nanos = u32::try_from(small(6)?).ok().filter(|nanos| *nanos < 1_000_000_000);
    let mode = i64::from(small(7)?);
    let target = bytes(13, Subject::Target { inode: number })?;
    let stored = Stored {
        number,
        epoch: int(1)?,
        version: int(2)?,
        time: int(4)?,
        stamp: int(5)?,
        links: small(10)?.into(),
        mode,
        content: Content {
            traits: Traits {
                mode,
                uid: small(8)?.cast_unsigned().into(),
                gid: small(9)?.cast_unsigned().into(),
                xattrs: bytes(14, Subject::Xattrs { inode: number })?,
            },
            mtime: Time { secs: int(3)?, nanos: nanos.ok_or_else(|| damaged(what()))? },
            special: match (row.try_get::<_, Option<i64>>(first + 12)?, target) {
                (None, None) => Special::None,
                (Some(device), None) => Special::Device(device),
                (None, Some(target)) => Special::Target(target),
                (Some(_), Some(_)) => return Err(damaged(what())),
            },
            root: bytes(15, Subject::Root { inode: number })?,
            times: row.public(first + 16)?,
        },
    };
    require(small(11)?, sum(&stored), what)?;
    Ok(stored)
}

/// A row of `inode`.
pub(super) fn read_stored(row: &Row, first: usize) -> Outcome<Stored> {
    read(row, first, |stored| inode_sum(row.seals(), stored))
}

/// A row of `inode_old`.
pub(super) fn read_former(row: &Row, first: usize) -> Outcome<Stored> {
    let epoch_to: i64 = row.try_get(first + 2)?;
    read(row, first, |stored| former_sum(row.seals(), stored, epoch_to))
}

/// A row of either, after whether it is of `inode_old`.
pub(super) fn read_either(row: &Row, first: usize) -> Outcome<Stored> {
    match row.try_get::<_, Option<bool>>(first)? {
        Some(false) => read_stored(row, first + 1),
        Some(true) => read_former(row, first + 1),
        None => Err(damaged("a name stands for no inode at that epoch")),
    }
}

/// The inode that a row stands for.
pub(super) fn inode(stored: Stored) -> Outcome<Inode> {
    let number = stored.number;
    let wrong = |error: &dyn std::fmt::Display| damaged(format!("inode {number}: {error}"));
    let Content { traits, mtime, special, root, times } = stored.content;
    let kind = common::kind_of(traits.mode).map_err(|error| wrong(&error))?;
    let (mut rdev, mut target) = (0, Vec::new());
    match (kind, special) {
        (FileKind::Symlink, Special::Target(bytes)) => target = bytes,
        (FileKind::CharDevice | FileKind::BlockDevice, Special::Device(device)) => rdev = device as u64,
        (FileKind::Symlink | FileKind::CharDevice | FileKind::BlockDevice, _) => {
            return Err(wrong(&"it has neither target nor number"));
        }
        _ => {}
    }
    let xattrs = match traits.xattrs {
        None => Vec::new(),
        Some(bytes) => {
            decode_xattrs(&mut Cursor::new("extended attributes", &bytes)).map_err(|error| wrong(&error))?
        }
    };
    let times = times.map(|bytes| times::decode(&bytes, mtime)).transpose().map_err(|error| wrong(&error))?;
    let root = root_of(root.as_deref())?;
    let links = u32::try_from(stored.links).map_err(|error| wrong(&error))?;
    let id = |value: i64| value as u32;
    Ok(Inode {
        number: number as u64,
        links,
        stamp: stored.stamp as u64,
        root,
        attributes: Attributes {
            kind,
            mode: (traits.mode & 0o7777) as u32,
            uid: id(traits.uid),
            gid: id(traits.gid),
            mtime,
            rdev,
            target,
            xattrs,
            times,
        },
    })
}

/// A root column.
pub(super) fn root_of(column: Option<&[u8]>) -> Outcome<Root> {
    match column {
        None => Ok(Root::Empty),
        Some(bytes) => Root::decode(bytes).map_err(|error| damaged(format!("a manifest root: {error}"))),
    }
}

/// A row of `version`: inode, number, time, mtime_secs, mtime_nanos, sum, root.
pub(super) fn read_version(row: &Row) -> Outcome<VersionRow> {
    let (inode, number, time): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let what = || format!("version {number} of inode {inode} is not what was written");
    let nanos = u32::try_from(row.try_get::<_, i32>(4)?).map_err(|_| damaged(what()))?;
    let mtime = Time { secs: row.try_get(3)?, nanos };
    let root = row.maybe_bytes(6, &Subject::VersionRoot { inode, number })?;
    let root = root.as_deref();
    require(row.try_get(5)?, version_sum(row.seals(), [inode, number], time, mtime, root), what)?;
    Ok(VersionRow { number: number as u64, time: time as u64, mtime, root: root_of(root)? })
}

/// Rows of `inode`, column by column, as the parameters of a statement over arrays.
pub(super) struct InodeColumns {
    seals: Seals,
    ints: [Vec<i64>; 6],
    smalls: [Vec<i32>; 6],
    devices: Vec<Option<i64>>,
    blobs: [Vec<Option<Private<Vec<u8>>>>; 3],
    times: Vec<Option<Public<Vec<u8>>>>,
}

impl InodeColumns {
    /// None yet, for the engine that has these.
    pub fn new(seals: &Seals) -> Self {
        Self {
            seals: seals.clone(),
            ints: Default::default(),
            smalls: Default::default(),
            devices: Vec::new(),
            blobs: Default::default(),
            times: Vec::new(),
        }
    }

    /// Adds a row of `inode`, or with `epoch_to` one of `inode_old`.
    pub fn push(&mut self, inode: &Stored, epoch_to: Option<i64>) {
        let Content { traits, mtime, special, root, times } = &inode.content;
        let sum = match epoch_to {
            None => inode_sum(&self.seals, inode),
            Some(epoch_to) => former_sum(&self.seals, inode, epoch_to),
        };
        let third = epoch_to.unwrap_or(inode.version);
        let ints = [inode.number, inode.epoch, third, mtime.secs, inode.time, inode.stamp];
        self.ints.iter_mut().zip(ints).for_each(|(column, value)| column.push(value));
        let nanos = mtime.nanos.cast_signed();
        let smalls = [nanos, bits(traits.mode), bits(traits.uid), bits(traits.gid), bits(inode.links), sum];
        self.smalls.iter_mut().zip(smalls).for_each(|(column, value)| column.push(value));
        let (device, target) = special_columns(special);
        self.devices.push(device);
        let number = inode.number;
        let blobs = [
            target.map(|target| Private::new(Subject::Target { inode: number }, target.to_vec())),
            traits.xattrs.clone().map(|xattrs| Private::new(Subject::Xattrs { inode: number }, xattrs)),
            root.clone().map(|root| Private::new(Subject::Root { inode: number }, root)),
        ];
        self.blobs.iter_mut().zip(blobs).for_each(|(column, value)| column.push(value));
        self.times.push(times.clone().map(Public));
    }

    /// Takes all out.
    pub fn drain(&mut self) -> Self {
        let none = Self::new(&self.seals);
        std::mem::replace(self, none)
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The statement with all columns as `$1` to `$17`, in the order of `stored_columns`.
    pub fn into_query(self, sql: &'static str) -> Query {
        self.with_all(Query::new(sql))
    }

    /// A statement with the only row's values as its next parameters, in the order of
    /// `stored_columns`.
    ///
    /// # Panics
    /// Without a row.
    pub fn with_only(mut self, mut query: Query) -> Query {
        for column in self.ints {
            query = query.int(column[0]);
        }
        for column in self.smalls {
            query = query.with(column[0], Type::INT4);
        }
        query = query.with(self.devices[0], Type::INT8);
        for column in self.blobs {
            query = query.maybe_private(column.into_iter().next().flatten());
        }
        query.with(self.times.pop().flatten(), Type::BYTEA)
    }

    /// A statement with all columns as its next parameters.
    pub fn with_all(self, mut query: Query) -> Query {
        for column in self.ints {
            query = query.ints(column);
        }
        for column in self.smalls {
            query = query.with(column, Type::INT4_ARRAY);
        }
        query = query.with(self.devices, Type::INT8_ARRAY);
        for column in self.blobs {
            query = query.each_maybe_bytes(column);
        }
        query.with(self.times, Type::BYTEA_ARRAY)
    }
}
