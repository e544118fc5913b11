//! A file system given to Linux through FUSE.
//!
//! **Threads.** Through `/dev/fuse`, each of a few threads, one on every processor (`threads`),
//! reads a request from its own clone of the device, calls the file system and writes the answer.
//! The kernel sends read-ahead requests while earlier ones are in progress, so one reader keeps
//! several threads busy.
//!
//! **Rings.** Where the kernel offers it, requests come through io_uring instead, to a thread on
//! the processor that asked (`uring`). The handshake and the messages that only the device brings
//! stay with the device (`device`). The protocol is the same for both (`wire`).
//!
//! **Locks.** A file system that keeps programs' locks is always served by the device. A request
//! for a lock may wait for days, and would occupy one of a ring's few entries for as long. Such
//! requests are handed over with a way to answer them later, from any thread (`device/serve.rs`).
//!
//! In both ways, a thread that answers requests must not make the kernel drop its cache and wait
//! for that: the kernel may be waiting for this very thread.
//!
//! **Mounting.** Root mounts by `mount(2)` (`direct`); others through the set-uid program
//! `fusermount3` (`helper`). The mount lives until somebody unmounts it or the process ends. After
//! that, open files in it answer `ENOTCONN`.

mod convert;
mod device;
mod direct;
mod helper;
mod threads;
pub mod uring;
mod wire;

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::device::{Crowd, Device};
use self::uring::Rings;
use crate::fs::{FileSystem, ROOT};
use crate::live::Stale;
use crate::mounts;

/// Bytes of a read-ahead or write request.
const REQUEST_BYTES: u32 = 1 << 20;

/// Options of a mount: who may do what in it, and how it is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// The mounted source's name in the kernel's list of mounts.
    pub source: String,
    /// Refuse changes before they reach the file system.
    pub read_only: bool,
    /// Let other users in.
    pub allow_other: bool,
    /// Let the kernel check modes, owners and ACLs. Without it, every user that is let in may read
    /// everything.
    pub check_permissions: bool,
    /// Honour set-id bits.
    pub suid: bool,
    /// Allow devices.
    pub dev: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Threads that serve requests.
    pub threads: usize,
}

/// How requests reach the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Through the device.
    Device,
    /// Through io_uring, if the kernel offers it and the file system does not keep locks; otherwise
    /// through the device.
    Rings,
}

/// A mounted file system, to be served.
pub struct Mounted<F: FileSystem> {
    fs: Arc<F>,
    device: Arc<Device>,
    rings: Option<Rings>,
    point: PathBuf,
    threads: usize,
}

/// Mounts `fs` at `point`. Nothing answers until [`Mounted::serve`] is called.
///
/// # Errors
/// When the kernel or `fusermount3` refuses, with the reason.
pub fn mount<F: FileSystem>(fs: Arc<F>, point: &Path, options: &MountOptions) -> io::Result<Mounted<F>> {
    mount_by(Transport::Rings, fs, point, options)
}

/// [`mount`], by a chosen transport.
///
/// # Errors
/// As there.
pub fn mount_by<F: FileSystem>(
    transport: Transport,
    fs: Arc<F>,
    point: &Path,
    options: &MountOptions,
) -> io::Result<Mounted<F>> {
    let device = match direct::mount(point, options)? {
        Some(device) => device,
        None => helper::mount(point, options)?,
    };
    let device = Device::new(device);
    let mut rings = None;
    let accept = || {
        let may = transport == Transport::Rings && !fs.keeps_locks();
        rings = if may { Rings::prepare(&fs).ok() } else { None };
        rings.is_some()
    };
    let (others, locks, exports) = (fs.changes_elsewhere(), fs.keeps_locks(), fs.is_exportable());
    let checks = options.check_permissions;
    device::shake_hands(&device, checks, others, locks, exports, accept).inspect_err(|_| {
        // A mount that cannot be served must not stay, and nobody else would unmount it.
        let _ = mounts::unmount(point, true);
    })?;
    let threads = options.threads.max(1);
    Ok(Mounted { fs, device: Arc::new(device), rings, point: point.to_path_buf(), threads })
}

/// Makes the kernel drop its cache.
pub struct Forgetter(Arc<Device>);

impl Forgetter {
    /// Drops names in the root, with all below them, and what the kernel knows of inodes. Unknown
    /// names are no error.
    pub fn forget(&self, stale: &Stale) {
        for name in &stale.names {
            let _ = self.0.forget_name(ROOT, name);
        }
        for &inode in &stale.inodes {
            let _ = self.0.forget_inode(inode);
        }
    }
}

impl<F: FileSystem> Mounted<F> {
    /// A handle to tell the kernel what has changed without it.
    pub fn forgetter(&self) -> Forgetter {
        Forgetter(Arc::clone(&self.device))
    }

    /// How requests will come.
    pub fn transport(&self) -> Transport {
        if self.rings.is_some() { Transport::Rings } else { Transport::Device }
    }

    /// Answers requests until it is unmounted; calls `ready`, from another thread, once the mount
    /// answers.
    ///
    /// # Errors
    /// When the device fails; the mount is still there then.
    pub fn serve(self, ready: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Self { fs, device, rings, point, threads } = self;
        // Beside rings, few requests come through the device, and none of them waits.
        let cpus = if rings.is_some() || threads < 2 { Vec::new() } else { threads::processors() };
        let rings = rings
            .map(|rings| Ok::<_, io::Error>(rings.start(device.as_fd().try_clone_to_owned()?)))
            .transpose()?;
        let others = (1..threads).map(|_| device.another().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        std::thread::Builder::new().name("mount-ready".to_string()).spawn(move || {
            // Returns once the threads below have answered a request.
            let _ = rustix::fs::stat(&point);
            widen_read_ahead(&point);
            ready();
        })?;
        let crowd = Crowd::new(threads);
        std::thread::scope(|scope| {
            let mut serving = Vec::new();
            for (at, device) in std::iter::once(&device).chain(&others).enumerate() {
                // One for each processor, if there is a choice; more threads may run anywhere.
                let cpu = cpus.get(at).copied().filter(|_| cpus.len() > 1);
                let (fs, crowd) = (&*fs, &crowd);
                let serve = move || {
                    cpu.into_iter().for_each(threads::stay_on);
                    device::serve(fs, device, crowd, at)
                };
                serving.push(
                    std::thread::Builder::new().name(format!("mount-dev-{at}")).spawn_scoped(scope, serve)?,
                );
            }
            let (watched, watcher) = (&crowd, std::thread::Builder::new().name("mount-watch".to_string()));
            let (fs, device) = (&*fs, &device);
            watcher.spawn_scoped(scope, move || watched.watch(fs, device, scope, threads))?;
            let ended = serving.into_iter().map(|thread| thread.join().expect("it catches panics"));
            // Wait for all of them, even if the first fails.
            let ended = ended.collect::<Vec<_>>();
            crowd.ended();
            ended.into_iter().collect::<io::Result<()>>()
        })?;
        rings.into_iter().for_each(uring::Serving::join);
        Ok(())
    }
}

/// How far the kernel reads ahead of a program that reads sequentially, bytes: some requests at a
/// time, so that no decoding thread waits for the next. Cold sequential reads: 1029 and 1221 MiB/s
/// with one request's worth, 1517 and 1524 with this (device, 2 processors).
const READ_AHEAD_BYTES: usize = 4 << 20;

/// The kernel begins with a read-ahead of 128 KiB for every mount, and lets only root raise it.
/// Where that cannot be done, reads are smaller.
fn widen_read_ahead(point: &Path) {
    if let Ok(Some(row)) = mounts::at(point) {
        let kib = (READ_AHEAD_BYTES >> 10).to_string();
        let (major, minor) = (rustix::fs::major(row.device), rustix::fs::minor(row.device));
        let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib);
    }
}
