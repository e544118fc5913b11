//! Segments in memory: a disk that may be full or fail, and that records all calls.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_format::staging::SegmentHeader;

use crate::keys::Key;
use crate::staging::files::{Files, SegmentFile};
use crate::testing::crash::Recording;

#[derive(Default)]
pub struct Disk {
    pub segments: BTreeMap<u32, Vec<u8>>,
    /// Free bytes; a write takes what fits, and fails when nothing does.
    pub room: Option<u64>,
    /// A write takes at most so many bytes.
    pub write_max: Option<usize>,
    pub fail_truncate: bool,
    pub fail_sync: bool,
    /// How long a sync of a segment takes.
    pub sync_takes: Duration,
    /// Syncs of segments so far.
    pub syncs: usize,
    pub recording: Option<Recording>,
    /// Of the segments that were begun here.
    salts: BTreeMap<u32, [u8; 32]>,
    pub sealed: BTreeMap<[u8; 32], Sealed>,
}

/// Shared by a log and the test that looks at its disk.
#[derive(Clone)]
pub struct Memory {
    disk: Arc<Mutex<Disk>>,
    /// The key of the log that lies here.
    pub key: Option<Key>,
}

/// All bytes that were encrypted with one salt, by their position.
type Sealed = BTreeMap<u64, u8>;

struct Segment {
    memory: Memory,
    number: u32,
}

fn name(number: u32) -> String {
    format!("{number:08}.log")
}

impl Memory {
    pub fn new(key: &Option<Key>, segments: BTreeMap<u32, Vec<u8>>) -> Self {
        let disk = Arc::new(Mutex::new(Disk { segments, ..Disk::default() }));
        Self { disk, key: key.clone() }
    }

    pub fn empty(key: &Option<Key>) -> Self {
        Self::new(key, BTreeMap::new())
    }

    /// A log with the same segments and key.
    pub fn copy(&self) -> Self {
        Self::new(&self.key, self.disk().segments.clone())
    }

    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }
}

impl Disk {
    fn record(&mut self, step: impl FnOnce(&mut Recording) -> crate::Result<()>) {
        if let Some(recording) = &mut self.recording {
            step(recording).unwrap();
        }
    }

    /// Checks that no position of an encrypted segment is given two texts.
    fn see(&mut self, number: u32, offset: u64, bytes: &[u8]) {
        if offset == 0 {
            let SegmentHeader { seal, .. } = SegmentHeader::decode(bytes).expect("the header comes first");
            self.salts.insert(number, seal.expect("the log has a key").salt);
        }
        let salt = self.salts.get(&number).expect("nothing is written to a segment that was opened");
        let sealed = self.sealed.entry(*salt).or_default();
        for (at, &byte) in (offset..).zip(bytes) {
            assert_eq!(*sealed.entry(at).or_insert(byte), byte, "two texts at {at} of {number}");
        }
    }

    fn segment(&mut self, number: u32) -> io::Result<&mut Vec<u8>> {
        self.segments.get_mut(&number).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Files for Memory {
    fn create(&self, number: u32) -> io::Result<Box<dyn SegmentFile>> {
        let mut disk = self.disk();
        assert!(disk.segments.insert(number, Vec::new()).is_none(), "no leftover");
        disk.record(|steps| steps.create(Path::new(&name(number))));
        drop(disk);
        self.open(number)
    }

    fn open(&self, number: u32) -> io::Result<Box<dyn SegmentFile>> {
        self.disk().segment(number)?;
        Ok(Box::new(Segment { memory: self.clone(), number }))
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.segments.remove(&number).is_some() {
            disk.record(|steps| steps.remove(Path::new(&name(number))));
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<u32>> {
        Ok(self.disk().segments.keys().copied().collect())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk().record(|steps| steps.sync(Path::new(""), false));
        Ok(())
    }

    fn disk(&self) -> Option<crate::disk::Disk> {
        None
    }

    fn remove_directory(&self) -> io::Result<()> {
        assert!(self.disk().segments.is_empty(), "only when there are no segments");
        Ok(())
    }

    fn name(&self, number: u32) -> String {
        name(number)
    }
}

impl SegmentFile for Segment {
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let mut disk = self.memory.disk();
        if self.memory.key.is_some() {
            disk.see(self.number, offset, &bytes);
        }
        let room = disk.room.map_or(usize::MAX, |room| room as usize);
        bytes.truncate(room.min(disk.write_max.unwrap_or(usize::MAX)));
        if bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.room = disk.room.map(|room| room - bytes.len() as u64);
        let content = disk.segment(self.number)?;
        assert_eq!(content.len() as u64, offset, "appended at the end");
        content.extend_from_slice(&bytes);
        disk.record(|steps| steps.write(Path::new(&name(self.number)), offset, &bytes));
        Ok(bytes.len())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.memory.disk();
        let content = disk.segment(self.number)?;
        let rest = content.get(offset as usize..).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.memory.disk().segment(self.number)?.len() as u64)
    }

    fn reserve(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut disk = self.memory.disk();
        if disk.fail_truncate {
            return Err(io::Error::other("truncating failed on purpose"));
        }
        let content = disk.segment(self.number)?;
        let Some(freed) = (content.len() as u64).checked_sub(len).filter(|freed| *freed > 0) else {
            return Ok(());
        };
        content.truncate(len as usize);
        disk.room = disk.room.map(|room| room + freed);
        disk.record(|steps| steps.resize(Path::new(&name(self.number)), len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let takes = self.memory.disk().sync_takes;
        outrigger_clock::sleep(takes);
        let mut disk = self.memory.disk();
        if disk.fail_sync {
            return Err(io::Error::other("syncing failed on purpose"));
        }
        disk.syncs += 1;
        disk.record(|steps| steps.sync(Path::new(&name(self.number)), true));
        Ok(())
    }
}
