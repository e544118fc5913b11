//! Writing what a commit has changed: one statement over arrays for each table and kind of change.

use tokio_postgres::types::Type;

use super::columns::{DirectoryColumns, NameColumns};
use super::connection::Query;
use super::row::{self, InodeColumns};
use super::sealing::{Private, Seals, Subject};
use super::tree::by_names;
use super::working::{Name, Slot, Working};
use outrigger_format::catalogue::Time;

/// Rows of `InodeColumns`.
macro_rules! columns {
    () => {
        "unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int4[], $8::int4[], \
         $9::int4[], $10::int4[], $11::int4[], $12::int4[], $13::int8[], $14::bytea[], $15::bytea[], $16::bytea[], $17::bytea[])"
    };
}

const INSERT_INODES: &str = concat!(
    "INSERT INTO @inode (number, epoch, version, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum, device, \
     target, xattrs, root, times) SELECT * FROM ",
    columns!()
);
const UPDATE_INODES: &str = concat!(
    "UPDATE @inode i SET epoch = n.epoch, version = n.version, mtime_secs = n.mtime_secs, time = n.time, stamp = n.stamp, \
     mtime_nanos = n.mtime_nanos, mode = n.mode, uid = n.uid, gid = n.gid, links = n.links, sum = n.sum, device = n.device, \
     target = n.target, xattrs = n.xattrs, root = n.root, times = n.times FROM ",
    columns!(),
    " AS n (number, epoch, version, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum, device, target, xattrs, \
     root, times) WHERE i.number = n.number"
);
const INSERT_FORMER: &str = concat!(
    "INSERT INTO @inode_old (number, epoch_from, epoch_to, mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, sum, device, \
     target, xattrs, root, times) SELECT number, epoch_from, epoch_to, mtime_secs, stamp, mtime_nanos, mode, uid, gid, links, \
     sum, device, target, xattrs, root, times FROM ",
    columns!(),
    " AS n (number, epoch_from, epoch_to, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum, device, target, \
     xattrs, root, times)"
);

impl Working<'_, '_> {
    /// Adds the statements that write all changes to the transaction's next ones.
    pub fn flush(&mut self) {
        self.flush_history();
        self.flush_names();
        self.flush_inodes();
        self.flush_directories();
        self.flush_versions();
        for (holder, root) in std::mem::take(&mut self.held) {
            self.tx.later(Query::new("DELETE FROM @held WHERE holder = $1").public(&holder));
            if let Some(root) = root {
                let hold = super::reclaim::hold_one(&self.tx.seals(), &holder, root);
                self.tx.later(hold);
            }
        }
    }

    fn flush_history(&mut self) {
        let seals = self.tx.seals();
        let mut columns = InodeColumns::new(&seals);
        for (former, epoch_to) in self.former_inodes.drain(..) {
            columns.push(&former, Some(epoch_to));
        }
        if !columns.is_empty() {
            self.tx.later(columns.into_query(INSERT_FORMER));
        }
        if self.former_names.is_empty() {
            return;
        }
        let mut numbers: [Vec<i64>; 4] = Default::default();
        let (mut sums, mut names) = (Vec::new(), Vec::new());
        for (parent, name, Name { inode, epoch }, epoch_to) in self.former_names.drain(..) {
            sums.push(row::former_name_sum(&seals, parent, &name, inode, (epoch, epoch_to)));
            let row = [parent, inode, epoch, epoch_to];
            numbers.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
            names.push(Private::new(Subject::Name { parent }, name));
        }
        let mut query = Query::new(
            "INSERT INTO @dentry_old (parent, inode, epoch_from, epoch_to, sum, name) \
             SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int4[], $6::bytea[])",
        );
        for column in numbers {
            query = query.ints(column);
        }
        self.tx.later(query.with(sums, Type::INT4_ARRAY).each_bytes(names));
    }

    fn flush_names(&mut self) {
        let seals = self.tx.seals();
        let mut gone = Vec::new();
        let (mut made, mut changed) = (Vec::new(), NameColumns::new(&seals));
        for (&parent, names) in &self.names {
            for (name, slot) in names {
                match (slot.before, slot.now) {
                    (Some(_), None) => gone.push((parent, name.as_slice())),
                    (None, Some(now)) => made.push((parent, name.clone(), now)),
                    (Some(before), Some(now)) if before != now => changed.push(parent, name.clone(), now),
                    _ => {}
                }
            }
        }
        if !gone.is_empty() {
            let sql = "DELETE FROM @dentry d USING unnest($1::int8[], $2::bytea[]) AS g (parent, name) \
                       WHERE d.parent = g.parent AND d.name = g.name";
            let query = by_names(sql, gone.into_iter());
            self.tx.later(query);
        }
        if !changed.is_empty() {
            self.tx.later(changed.with_all(Query::new(
                "UPDATE @dentry d SET inode = n.inode, epoch = n.epoch, sum = n.sum \
                 FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int4[], $5::bytea[]) AS n (parent, inode, epoch, sum, name) \
                 WHERE d.parent = n.parent AND d.name = n.name",
            )));
        }
        if !made.is_empty() {
            // In the order of the key: neighbours in the index come together, and two commits
            // cannot wait for each other.
            made.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            let mut columns = NameColumns::new(&seals);
            made.into_iter().for_each(|(parent, name, now)| columns.push(parent, name, now));
            self.tx.later(columns.with_all(Query::new(
                "INSERT INTO @dentry (parent, inode, epoch, sum, name) \
                 SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int4[], $5::bytea[])",
            )));
        }
    }

    fn flush_inodes(&mut self) {
        let mut gone = Vec::new();
        let (mut made, mut changed) = (Vec::new(), Vec::new());
        for (&number, slot) in &self.inodes {
            match slot {
                Slot { before: Some(_), now: None } => gone.push(number),
                Slot { before: None, now: Some(now) } => made.push(now),
                Slot { before: Some(before), now: Some(now) } if before != now => changed.push(now),
                _ => {}
            }
        }
        let seals = self.tx.seals();
        let columns = |mut inodes: Vec<&row::Stored>| {
            inodes.sort_unstable_by_key(|inode| inode.number);
            let mut columns = InodeColumns::new(&seals);
            inodes.into_iter().for_each(|inode| columns.push(inode, None));
            columns
        };
        let (made, changed) = (columns(made), columns(changed));
        if !gone.is_empty() {
            self.tx.later(Query::new("DELETE FROM @inode WHERE number = ANY ($1)").ints(gone));
        }
        if !changed.is_empty() {
            self.tx.later(changed.into_query(UPDATE_INODES));
        }
        if !made.is_empty() {
            self.tx.later(made.into_query(INSERT_INODES));
        }
    }

    fn flush_directories(&mut self) {
        let mut gone = Vec::new();
        let mut set = DirectoryColumns::new(&self.tx.seals());
        for (&inode, slot) in &self.directories {
            match (slot.before, slot.now) {
                (Some(_), None) => gone.push(inode),
                (before, Some(now)) if before != Some(now) => set.push(inode, now),
                _ => {}
            }
        }
        if !gone.is_empty() {
            self.tx.later(Query::new("DELETE FROM @directory WHERE inode = ANY ($1)").ints(gone));
        }
        if !set.is_empty() {
            let sql = "INSERT INTO @directory (inode, parent, sum) SELECT * FROM unnest($1::int8[], $2::int8[], $3::int4[]) \
                       ON CONFLICT (inode) DO UPDATE SET parent = excluded.parent, sum = excluded.sum";
            self.tx.later(set.with_all(Query::new(sql)));
        }
        let mut bare = std::mem::take(&mut self.policies_gone);
        if !bare.is_empty() {
            bare.sort_unstable();
            self.tx.later(Query::new("DELETE FROM @policy WHERE inode = ANY ($1)").ints(bare));
        }
    }

    fn flush_versions(&mut self) {
        let trims = std::mem::take(&mut self.trims);
        if !trims.is_empty() {
            let (inodes, oldest): (Vec<i64>, Vec<i64>) = trims.into_iter().unzip();
            let sql = "DELETE FROM @version v USING unnest($1::int8[], $2::int8[]) AS t (inode, oldest) \
                       WHERE v.inode = t.inode AND v.number < t.oldest";
            self.tx.later(Query::new(sql).ints(inodes).ints(oldest));
        }
        if self.versions.is_empty() {
            return;
        }
        let versions = std::mem::take(&mut self.versions).into_iter().map(|version| VersionColumn {
            inode: version.number,
            number: version.version,
            time: version.time,
            mtime: version.content.mtime,
            root: version.content.root,
        });
        let query = insert_versions(
            &self.tx.seals(),
            versions,
            "INSERT INTO @version (inode, number, time, mtime_secs, mtime_nanos, sum, root) \
             SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int4[], $6::int4[], $7::bytea[])",
        );
        self.tx.later(query);
    }
}

/// A row of `version`.
pub(super) struct VersionColumn {
    pub inode: i64,
    pub number: i64,
    pub time: i64,
    pub mtime: Time,
    pub root: Option<Vec<u8>>,
}

/// A statement with rows of `version` as `$1` to `$7`.
pub(super) fn insert_versions(
    seals: &Seals,
    versions: impl Iterator<Item = VersionColumn>,
    sql: &'static str,
) -> Query {
    let mut numbers: [Vec<i64>; 4] = Default::default();
    let (mut nanos, mut sums, mut roots) = (Vec::new(), Vec::new(), Vec::new());
    for VersionColumn { inode, number, time, mtime, root } in versions {
        let row = [inode, number, time, mtime.secs];
        numbers.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        nanos.push(mtime.nanos.cast_signed());
        sums.push(row::version_sum(seals, [inode, number], time, mtime, root.as_deref()));
        roots.push(root.map(|root| Private::new(Subject::VersionRoot { inode, number }, root)));
    }
    let mut query = Query::new(sql);
    for column in numbers {
        query = query.ints(column);
    }
    query.with(nanos, Type::INT4_ARRAY).with(sums, Type::INT4_ARRAY).each_maybe_bytes(roots)
}
