//! Packs in a Ceph pool, without a gateway: one pack, one object `ID.pack` in the store's
//! namespace, replicated by the pool's rule.
//!
//! The first operation on a pack makes its object, and fails if the object exists. Full stages of
//! [`STAGE_LEN`] are written while more is appended, at most [`STAGES_MAX`] of a pack at once; a
//! write never makes an object again that was removed meanwhile. Writes that librados acknowledges
//! are on the disks of all replicas, so a seal only waits for the last of them. A read is made in
//! pieces of [`PIECE_LEN`], at most [`PIECES_MAX`] at once: the first comes over the network while
//! the OSD reads the others.
//!
//! If an OSD does not answer, librados sends the operation again, to the OSD that is responsible by
//! then; OSDs recognise operations that they have done already. After
//! [`Patience::give_up`](super::Patience) it gives up. A full pool is an error at once. Operations
//! that wait are counted ([`Health`]), so they count as trouble before that.
//!
//! CRUSH places packs by the placement group of their names (`place.rs`).

mod library;
mod place;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_format::PackId;
use rustix::io::Errno;

use super::location::RadosLocation;
use super::texts::{self, TEXT_MAX, TextName};
use super::{Access, Backend, PackWriter, Patience, names};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::health::Health;
use crate::note::{Level, note};

use library::{Cluster, NoCluster, Pending, Pool};
use place::Map;

/// Bytes gathered before they are written.
const STAGE_LEN: usize = 4 << 20;
/// Stages of a pack that are being written at once.
const STAGES_MAX: usize = 4;
/// Bytes of a piece of a read.
const PIECE_LEN: usize = 1 << 20;
/// Pieces of a read that are under way at once.
const PIECES_MAX: usize = 4;
/// Packs that may be sealing at once.
const UPLOADS_MAX: usize = 4;

const PIECES: (usize, usize) = (PIECE_LEN, PIECES_MAX);

/// State that [`RadosBackend`] shares with its writers.
struct Shared {
    pool: Pool,
    /// For messages.
    place: String,
    health: Health,
}

/// See the module.
pub struct RadosBackend {
    shared: Arc<Shared>,
    cluster: Arc<Cluster>,
    map: Map,
    read_only: bool,
}

impl RadosBackend {
    /// Connects to the cluster. A pool is never made: how it is replicated is not ours to decide.
    ///
    /// # Errors
    /// `NotFound` when there is no such pool, `Invalid` when librados is not installed, `Denied`,
    /// `Io`.
    pub fn open(location: &RadosLocation, access: Access, patience: Patience) -> Result<Self> {
        let (give_up, connect) = (patience.give_up.as_secs().max(1), patience.connect.as_secs().max(1) * 4);
        let settings = [
            ("rados_osd_op_timeout", give_up.to_string()),
            ("rados_mon_op_timeout", give_up.to_string()),
            ("client_mount_timeout", connect.to_string()),
        ];
        let place = format!("rados://{}", location.pool);
        let cluster = Cluster::connect(location.user.as_deref(), location.conf.as_deref(), &settings);
        let cluster = cluster.map_err(|error| match error {
            NoCluster::Library(why) => Error::new(ErrorKind::Invalid, format!("{place}: {why}")),
            NoCluster::Failed(what, errno) => failed(errno, format!("{place}: {what}")),
        })?;
        let pool =
            Pool::open(&cluster, &location.pool, &location.namespace).map_err(|errno| match errno {
                Errno::NOENT => Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "{place}: there is no such pool; make it with `ceph osd pool create {}`",
                        location.pool
                    ),
                ),
                errno => failed(errno, format!("{place}: cannot open the pool")),
            })?;
        let map = Map::new(&location.pool, &location.namespace, pool.number());
        let place = format!("{place}/{}", location.namespace);
        Ok(Self {
            shared: Arc::new(Shared { pool, place, health: Health::new(patience.give_up) }),
            cluster,
            map,
            read_only: access.read_only,
        })
    }

    /// How often the cluster's monitors were asked where something lies.
    pub fn asks(&self) -> u64 {
        self.cluster.asks.load(Ordering::Relaxed)
    }

    fn refuse_read_only(&self, id: PackId, what: &str) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!("cannot {what} {}: opened read-only", self.shared.name(id)),
        ))
    }

    /// The first bytes of an object, `max` at most; `None` when there is none.
    fn read_first(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let at = || format!("cannot read {}/{name}", self.shared.place);
        let len = match self.shared.asked(|pool| pool.len(name)) {
            Err(Errno::NOENT) => return Ok(None),
            len => len.map_err(|errno| failed(errno, at()))?,
        };
        let mut bytes = vec![0; len.min(max) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            match self.shared.asked(|pool| pool.read(name, rest, filled as u64, PIECES)) {
                Ok(0) => bytes.truncate(filled),
                Ok(n) => filled += n,
                Err(errno) => return Err(failed(errno, at())),
            }
        }
        Ok(Some(bytes))
    }

    /// Makes an object that is not there yet, durably.
    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = || format!("cannot write {}/{name}", self.shared.place);
        let written = self.shared.asked(|pool| pool.write(name, bytes, 0, true).and_then(Pending::wait));
        written.map_err(|errno| failed(errno, at()))
    }
}

/// How long no request is made after one that the cluster did not answer in time.
const REST: Duration = Duration::from_secs(5);

/// An error of librados, of the kind that its number stands for.
fn failed(errno: Errno, what: String) -> Error {
    let result: Result<()> = match errno {
        Errno::TIMEDOUT => Err(Error::new(
            ErrorKind::Io,
            format!("{what}: the cluster does not answer (`ceph -s` says how it is)"),
        )),
        errno => Err(errno).context(|| what),
    };
    result.expect_err("it was made from an error")
}

impl Shared {
    /// Makes a request that is waited for. After one that was not answered in time others fail at
    /// once for a while: an operation of several would wait several times as long as it may.
    fn asked<T>(
        &self,
        request: impl FnOnce(&Pool) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        if self.health.failed_within(REST) {
            return Err(Errno::TIMEDOUT);
        }
        self.waited(|| request(&self.pool))
    }

    /// Waits for an answer.
    fn waited<T>(
        &self,
        answer: impl FnOnce() -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        let waiting = self.health.begin();
        let answer = answer();
        drop(waiting);
        match &answer {
            Err(Errno::TIMEDOUT) => {
                let why = "the cluster does not answer (`ceph -s` says how it is)";
                note(Level::Warning, "retry", || {
                    (why.to_owned(), vec![("what", format!("pool of {}", self.place))])
                });
                self.health.fails(why)
            }
            _ => self.health.works(),
        }
        answer
    }

    /// Pack `id`, for messages.
    fn name(&self, id: PackId) -> String {
        format!("pack {}/{}", self.place, object(id))
    }

    /// The ids that `parse` finds in the names of the store's objects, rising.
    fn list(&self, parse: fn(&str) -> Option<PackId>) -> Result<Vec<PackId>> {
        let mut ids = Vec::new();
        let listed = self.asked(|pool| pool.list(&mut |name| ids.extend(parse(name))));
        listed.map_err(|errno| failed(errno, format!("cannot list {}", self.place)))?;
        ids.sort_unstable();
        // A pool that is just being split may name an object twice.
        ids.dedup();
        Ok(ids)
    }
}

/// The object's name.
fn object(id: PackId) -> String {
    names::file(id)
}

/// The name in `folder` of an object that is a text there. No pack's name has a folder.
fn below(folder: &str, object: &str) -> Option<String> {
    let name = object.strip_prefix(folder)?.strip_prefix('/')?;
    texts::is_slot(name).then(|| name.to_owned())
}

impl Backend for RadosBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.refuse_read_only(id, "create")?;
        let made = self.shared.asked(|pool| pool.write(&object(id), &[], 0, true).and_then(Pending::wait));
        made.map_err(|errno| failed(errno, format!("cannot create {}", self.shared.name(id))))?;
        Ok(Box::new(Writer {
            id,
            shared: Arc::clone(&self.shared),
            stage: Vec::new(),
            written: 0,
            pending: VecDeque::new(),
            has_failed: false,
        }))
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let wanted = buf.len();
        let mut filled = 0;
        while filled < wanted {
            let at = offset + filled as u64;
            match self.shared.asked(|pool| pool.read(&object(id), &mut buf[filled..], at, PIECES)) {
                Ok(0) => {
                    let name = self.shared.name(id);
                    return Err(Error::damaged(format!(
                        "{name} is too short: {wanted} bytes wanted at offset {offset}, it ends before {at}"
                    )));
                }
                Ok(n) => filled += n,
                Err(errno) => {
                    let name = self.shared.name(id);
                    return Err(failed(
                        errno,
                        format!("cannot read {wanted} bytes at offset {offset} of {name}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        match self.shared.asked(|pool| pool.len(&object(id))) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed(errno, format!("cannot look at {}", self.shared.name(id)))),
        }
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "remove")?;
        match self.shared.asked(|pool| pool.remove(&object(id))) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno, format!("cannot remove {}", self.shared.name(id)))),
        }
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.shared.list(names::parse)
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.shared.list(names::parse_parity)
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.refuse_read_only(id, "move")?;
        let Some(bytes) = self.read_first(&object(id), u64::MAX)? else { return Ok(()) };
        let name = format!("{}/{}", super::DAMAGED_DIR, object(id));
        match self.write_new(&name, &bytes) {
            // An earlier try, which did not come to remove it.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            written => written?,
        }
        self.remove(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        let name = TextName::to_put(name, text)?;
        let shown = || format!("{}/{name}", self.shared.place);
        texts::refuse_read_only(self.read_only, "write", shown())?;
        match self.write_new(name.as_str(), text.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::Exists => Err(texts::taken(shown())),
            written => written,
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let name = TextName::parse(name)?;
        let bytes = self.read_first(name.as_str(), TEXT_MAX as u64 + 1)?;
        let shown = || format!("{}/{name}", self.shared.place);
        bytes.map(|bytes| texts::decode(bytes, shown)).transpose()
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        texts::require_folder(folder)?;
        let mut names = Vec::new();
        let listed = self.shared.asked(|pool| pool.list(&mut |name| names.extend(below(folder, name))));
        listed.map_err(|errno| failed(errno, format!("cannot list {}", self.shared.place)))?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        let name = TextName::to_remove(name)?;
        let shown = || format!("{}/{name}", self.shared.place);
        texts::refuse_read_only(self.read_only, "remove", shown())?;
        match self.shared.asked(|pool| pool.remove(name.as_str())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno, format!("cannot remove {}", shown()))),
        }
    }

    fn place(&self) -> Option<String> {
        Some(self.shared.place.clone())
    }

    fn uploads_max(&self) -> usize {
        UPLOADS_MAX
    }

    fn trouble(&self) -> Option<String> {
        self.shared.health.trouble()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        self.map.all_hosts(&self.cluster)
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        self.map.hosts(&self.cluster, &object(id))
    }
}

/// Writes one object.
struct Writer {
    id: PackId,
    shared: Arc<Shared>,
    stage: Vec<u8>,
    /// Bytes handed to librados.
    written: u64,
    pending: VecDeque<Pending>,
    has_failed: bool,
}

impl Writer {
    fn refused(&self) -> Error {
        Error::new(ErrorKind::Io, format!("an earlier write to {} failed", self.shared.name(self.id)))
    }

    /// Begins to write the stage; waits while too many are under way.
    fn write_stage(&mut self) -> Result<()> {
        while self.pending.len() >= STAGES_MAX {
            self.wait_one()?;
        }
        let at = self.written;
        match self.shared.pool.write(&object(self.id), &self.stage, at, false) {
            Ok(pending) => self.pending.push_back(pending),
            Err(errno) => return Err(self.fail(errno)),
        }
        self.written += self.stage.len() as u64;
        self.stage.clear();
        Ok(())
    }

    fn wait_one(&mut self) -> Result<()> {
        let Some(pending) = self.pending.pop_front() else { return Ok(()) };
        let waited = self.shared.waited(|| pending.wait());
        waited.map_err(|errno| self.fail(errno))
    }

    fn fail(&mut self, errno: Errno) -> Error {
        self.has_failed = true;
        failed(errno, format!("cannot write {}", self.shared.name(self.id)))
    }
}

impl PackWriter for Writer {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        if self.has_failed {
            return Err(self.refused());
        }
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                if self.stage.len() == STAGE_LEN {
                    self.write_stage()?;
                }
                let n = rest.len().min(STAGE_LEN - self.stage.len());
                self.stage.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.has_failed {
            return Err(self.refused());
        }
        if self.stage.is_empty() { Ok(()) } else { self.write_stage() }
    }

    fn seal(mut self: Box<Self>) -> Result<()> {
        self.finish()?;
        while !self.pending.is_empty() {
            self.wait_one()?;
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A pack that is dropped unsealed then has all appended bytes, as a file would.
        if !self.has_failed && !self.stage.is_empty() {
            let _ = self.write_stage();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_texts_are_told_apart_by_their_names() {
        let parse = super::super::names::parse;
        for name in ["keys/a", "keys/0000000000000001.pack"] {
            assert_eq!(parse(name), None, "{name}");
            assert_eq!(below("keys", name).as_deref(), name.strip_prefix("keys/"));
        }
        for name in ["0000000000000001.pack", "packs-damaged/0000000000000001.pack", "store.toml", "keysa"] {
            assert_eq!(below("keys", name), None, "{name}");
        }
        assert_eq!(parse("0000000000000001.pack"), Some(PackId(1)));
    }
}
