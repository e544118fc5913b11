//! A file system that costs next to nothing: one directory of files whose bytes follow from their
//! place.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_format::catalogue::{FileKind, Time};
use outrigger_fuse::fs::{
    Attr, Caller, Entry, FileSystem, Found, Handle, NewNode, OpenFlags, Opened, ROOT, Result, Seek, SetAttr,
    Statfs, TakeEntry,
};
use rustix::io::Errno;

/// Bytes of a block of one value.
pub const BLOCK: u64 = 4096;
/// Length of files that were there from the beginning.
pub const FILE_BYTES: u64 = 64 << 20;
/// Their names are this and a digit.
pub const FILE_NAME: &str = "file";

/// The value of all bytes of a block.
pub fn value_at(offset: u64) -> u8 {
    (offset / BLOCK % 251) as u8
}

/// Names and lengths, in memory.
#[derive(Default)]
pub struct Memory {
    names: Mutex<HashMap<Vec<u8>, u64>>,
    sizes: Mutex<HashMap<u64, u64>>,
    last: AtomicU64,
}

impl Memory {
    /// With `files` files to read and write.
    pub fn new(files: usize) -> Arc<Self> {
        let memory = Self { last: AtomicU64::new(ROOT), ..Self::default() };
        (0..files).for_each(|file| {
            memory.add(format!("{FILE_NAME}{file}").as_bytes(), FILE_BYTES);
        });
        Arc::new(memory)
    }

    fn add(&self, name: &[u8], size: u64) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.sizes.lock().unwrap().insert(number, size);
        self.names.lock().unwrap().insert(name.to_vec(), number);
        number
    }

    /// Attributes that hold for no time, so that every question comes here.
    fn entry(&self, number: u64) -> Result<Entry> {
        let size = match number {
            ROOT => 0,
            _ => *self.sizes.lock().unwrap().get(&number).ok_or(Errno::STALE)?,
        };
        let (kind, mode) =
            if number == ROOT { (FileKind::Directory, 0o755) } else { (FileKind::File, 0o644) };
        let time = Time { secs: 1_700_000_000, nanos: 0 };
        let (atime, mtime, ctime) = (time, time, time);
        let attr = Attr {
            number,
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            allocated: size,
            atime,
            mtime,
            ctime,
        };
        Ok(Entry::new(attr, Duration::ZERO))
    }
}

const OPENED: Opened = Opened { handle: 0, flushes: false, keep_cache: false };

impl FileSystem for Memory {
    fn lookup(&self, _: Caller, _: u64, name: &[u8]) -> Result<Found> {
        let number = self.names.lock().unwrap().get(name).copied();
        number.map_or(Ok(Found::Missing { valid: Duration::ZERO }), |number| {
            self.entry(number).map(Found::Entry)
        })
    }

    fn attributes(&self, _: Caller, number: u64, _: Option<Handle>) -> Result<Entry> {
        self.entry(number)
    }

    fn read_link(&self, _: Caller, _: u64) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn xattr(&self, _: Caller, _: u64, _: &[u8]) -> Result<Vec<u8>> {
        // So that the kernel does not ask for `security.capability` before each write.
        Err(Errno::NOSYS)
    }

    fn xattrs(&self, _: Caller, _: u64) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn statfs(&self) -> Result<Statfs> {
        Ok(Statfs { block_bytes: BLOCK as u32, name_max: 255, ..Statfs::default() })
    }

    fn open(&self, _: Caller, _: u64, _: OpenFlags) -> Result<Opened> {
        Ok(OPENED)
    }

    fn read(&self, number: u64, _: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let end = self.entry(number)?.attr.size.min(offset + len as u64);
        let mut at = offset;
        while at < end {
            let next = (at / BLOCK + 1) * BLOCK;
            let len = (next.min(end) - at) as usize;
            out.resize(out.len() + len, value_at(at));
            at += len as u64;
        }
        Ok(())
    }

    fn seek(&self, _: u64, _: Handle, offset: u64, _: Seek) -> Result<u64> {
        Ok(offset)
    }

    fn release(&self, _: u64, _: Handle) {}

    fn open_dir(&self, _: Caller, _: u64) -> Result<Opened> {
        Ok(OPENED)
    }

    fn read_dir(&self, _: u64, _: Handle, _: u64, _: bool, _: &mut TakeEntry<'_>) -> Result<()> {
        Ok(())
    }

    fn release_dir(&self, _: u64, _: Handle) {}

    fn set_attributes(&self, _: Caller, number: u64, set: &SetAttr) -> Result<Entry> {
        if let Some(size) = set.size {
            self.sizes.lock().unwrap().insert(number, size);
        }
        self.entry(number)
    }

    fn create(&self, _: Caller, _: u64, name: &[u8], _: NewNode, _: OpenFlags) -> Result<(Entry, Opened)> {
        Ok((self.entry(self.add(name, 0))?, OPENED))
    }

    fn unlink(&self, _: Caller, _: u64, name: &[u8]) -> Result<()> {
        let number = self.names.lock().unwrap().remove(name).ok_or(Errno::NOENT)?;
        self.sizes.lock().unwrap().remove(&number);
        Ok(())
    }

    fn write(&self, _: Caller, number: u64, _: Handle, offset: u64, data: &[u8], _: bool) -> Result<()> {
        // Damaged on its way?
        let last = offset + data.len() as u64 - 1;
        if data[0] != value_at(offset) || data[data.len() - 1] != value_at(last) {
            return Err(Errno::IO);
        }
        let mut sizes = self.sizes.lock().unwrap();
        let size = sizes.get_mut(&number).ok_or(Errno::STALE)?;
        *size = (*size).max(last + 1);
        Ok(())
    }
}
