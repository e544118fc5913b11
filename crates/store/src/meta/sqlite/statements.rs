//! The statements of one commit, prepared once. Each runs once or twice per change, so each finds
//! its rows by a primary key.

use rusqlite::{CachedStatement, Connection};

use super::row::stored_columns;
use super::sums::dentry_intact;

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident: $($sql:expr),+;)*) => {
        /// Statements that change the tree.
        pub(super) struct Statements<'c> {
            $($(#[$doc])* pub $name: CachedStatement<'c>,)*
        }

        impl<'c> Statements<'c> {
            /// Takes them from the connection's cache.
            pub fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
                Ok(Self { $($name: connection.prepare_cached(concat!($($sql),+))?,)* })
            }
        }
    };
}

statements! {
    // ---- names ----
    /// Changes no row when the name is taken.
    insert_dentry: "INSERT INTO dentry (parent, name, inode, epoch) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    find: "SELECT d.epoch, ", stored_columns!(), ", ", dentry_intact!(), " FROM dentry d CROSS JOIN inode i ON i.number = d.inode \
           CROSS JOIN traits t ON t.id = i.traits WHERE d.parent = ?1 AND d.name = ?2";
    /// As [`Self::find`], whether or not its inode is there.
    name: "SELECT d.inode, d.epoch, ", dentry_intact!(), " FROM dentry d WHERE d.parent = ?1 AND d.name = ?2";
    has_names: "SELECT 1 FROM dentry WHERE parent = ?1 LIMIT 1";
    /// Some entries of a directory, any.
    some_entries: "SELECT d.name, d.epoch, ", stored_columns!(), ", ", dentry_intact!(), " FROM dentry d \
                   CROSS JOIN inode i ON i.number = d.inode CROSS JOIN traits t ON t.id = i.traits \
                   WHERE d.parent = ?1 LIMIT ?2";
    archive_dentry: "INSERT INTO dentry_old (parent, name, epoch_from, epoch_to, inode) \
                     SELECT parent, name, epoch, ?3, inode FROM dentry WHERE parent = ?1 AND name = ?2";
    delete_dentry: "DELETE FROM dentry WHERE parent = ?1 AND name = ?2";

    // ---- inodes ----
    stored: "SELECT ", stored_columns!(), " FROM inode i CROSS JOIN traits t ON t.id = i.traits WHERE i.number = ?1";
    /// Changes no row when the inode is there already.
    insert_inode: "INSERT INTO inode (number, epoch, traits, links, version, mtime_secs, mtime_nanos, time, stamp, \
                   special, root, times) VALUES (?1, ?2, ?3, 1, 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING";
    update_inode: "UPDATE inode SET epoch = ?2, traits = ?3, links = ?4, version = ?5, mtime_secs = ?6, \
                   mtime_nanos = ?7, time = ?8, stamp = ?9, special = ?10, root = ?11, times = ?12 WHERE number = ?1";
    update_links: "UPDATE inode SET epoch = ?2, links = ?3 WHERE number = ?1";
    update_stamp: "UPDATE inode SET stamp = ?2 WHERE number = ?1";
    archive_inode: "INSERT INTO inode_old (number, epoch_from, epoch_to, traits, links, mtime_secs, mtime_nanos, \
                    stamp, special, root, times) SELECT number, epoch, ?2, traits, links, mtime_secs, mtime_nanos, stamp, \
                    special, root, times FROM inode WHERE number = ?1";
    delete_inode: "DELETE FROM inode WHERE number = ?1";

    // ---- directories and their policies ----
    parent_of: "SELECT parent FROM directory WHERE inode = ?1";
    insert_directory: "INSERT INTO directory (inode, parent) VALUES (?1, ?2)";
    move_directory: "UPDATE directory SET parent = ?2 WHERE inode = ?1";
    delete_directory: "DELETE FROM directory WHERE inode = ?1";
    delete_policies: "DELETE FROM policy WHERE inode = ?1";
    /// The nearest setting of `versions`, from a directory upwards. The bound is for a damaged
    /// database, in which directories go in circles.
    versions_policy: "WITH RECURSIVE up (inode, distance) AS (SELECT ?1, 0 UNION ALL \
                      SELECT directory.parent, up.distance + 1 FROM up CROSS JOIN directory ON directory.inode = up.inode \
                      WHERE directory.parent <> up.inode AND up.distance < 100000) \
                      SELECT policy.value FROM up CROSS JOIN policy ON policy.inode = up.inode AND policy.key = 'versions' \
                      ORDER BY up.distance LIMIT 1";

    // ---- earlier contents ----
    insert_version: "INSERT INTO version (inode, number, time, mtime_secs, mtime_nanos, root) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    trim_versions: "DELETE FROM version WHERE inode = ?1 AND number < ?2";
    delete_versions: "DELETE FROM version WHERE inode = ?1";

    // ---- traits ----
    find_traits: "SELECT id, mode, uid, gid, xattrs FROM traits WHERE digest = ?1";
    xattrs: "SELECT xattrs FROM traits WHERE id = ?1";
    insert_traits: "INSERT INTO traits (digest, mode, uid, gid, xattrs) VALUES (?1, ?2, ?3, ?4, ?5)";
}
