//! A file system given to Linux through FUSE.
//!
//! **Threads.** Through `/dev/fuse`, each of a few threads, one on every processor (`pinned`), reads a request from its own clone of the
//! device, calls the file system and writes the answer. The kernel sends read-ahead requests while earlier ones are under way, so one reader
//! keeps several threads busy.
//!
//! **Rings.** Where the kernel offers it, requests come through io_uring instead, to a thread on the processor that asked (`uring`, with
//! `wire` for the protocol, which the FUSE crate keeps to itself). That crate then has the handshake and what still comes
//! through the device.
//!
//! In both ways a thread that answers must not tell the kernel to forget what it has cached and wait for that: the kernel may be
//! waiting for this very thread.
//!
//! **Mounting.** Root mounts by `mount(2)`; others through the set-uid helper `fusermount3`. The mount lives until it is unmounted,
//! by whomever, or the process ends: then what is open in it answers `ENOTCONN`.

mod adapter;
mod convert;
mod direct;
mod pinned;
mod uring;
mod wire;

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use fuser::{Config, INodeNo, MountOption, Session, SessionACL};

use self::adapter::{Adapter, Offer};
use self::uring::Rings;
use crate::fs::FileSystem;
use crate::live::Stale;
use crate::mounts;

/// Who may do what in a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// What is mounted, for the kernel's list of mounts.
    pub source: String,
    /// Refuse changes before they reach the file system.
    pub read_only: bool,
    /// Let other users in.
    pub allow_other: bool,
    /// Let the kernel check modes, owners and ACLs. Without it, whoever is let in may read everything.
    pub check_permissions: bool,
    /// Honour set-id bits.
    pub suid: bool,
    /// Devices are devices.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Threads that serve requests.
    pub threads: usize,
}

/// How requests come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Through the device.
    Device,
    /// Through io_uring, if the kernel offers it; else through the device.
    Rings,
}

/// A mounted file system, to be served.
pub struct Mounted<F: FileSystem> {
    session: Session<Adapter<F>>,
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

/// [`mount`], by a transport of one's choice.
///
/// # Errors
/// As there.
pub fn mount_by<F: FileSystem>(
    transport: Transport,
    fs: Arc<F>,
    point: &Path,
    options: &MountOptions,
) -> io::Result<Mounted<F>> {
    let mut config = Config::default();
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    let offer = Arc::new(Offer::default());
    let place = (transport == Transport::Rings).then(|| Arc::clone(&offer));
    let adapter = Adapter::new(fs, options.check_permissions, place);
    let session = match direct::mount(point, options)? {
        Some(device) => Session::from_fd(adapter, device, config.acl, config).inspect_err(|_| {
            // Nobody else would: what cannot be spoken to must not stay.
            let _ = mounts::unmount(point, true);
        })?,
        None => {
            config.mount_options = words(options);
            Session::new(adapter, point, &config)?
        }
    };
    let rings = offer.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Mounted { session, rings, point: point.to_path_buf(), threads: options.threads })
}

/// Options for the helper, which mounts for those who may not.
fn words(options: &MountOptions) -> Vec<MountOption> {
    let mut words = vec![
        MountOption::FSName(options.source.clone()),
        MountOption::Subtype("outrigger".to_string()),
        if options.read_only { MountOption::RO } else { MountOption::RW },
        if options.suid { MountOption::Suid } else { MountOption::NoSuid },
        if options.dev { MountOption::Dev } else { MountOption::NoDev },
        if options.exec { MountOption::Exec } else { MountOption::NoExec },
        MountOption::NoAtime,
    ];
    if options.check_permissions {
        words.push(MountOption::DefaultPermissions);
    }
    words
}

/// Makes the kernel forget.
pub struct Forgetter(fuser::Notifier);

impl Forgetter {
    /// Forgets names in the root, with all below them, and what is known of inodes. What the kernel does not know is no error.
    pub fn forget(&self, stale: &Stale) {
        for name in &stale.names {
            let _ = self.0.inval_entry(INodeNo::ROOT, OsStr::from_bytes(name));
        }
        for &inode in &stale.inodes {
            let _ = self.0.inval_inode(INodeNo(inode), 0, 0);
        }
    }
}

impl<F: FileSystem> Mounted<F> {
    /// For telling the kernel what has changed behind its back.
    pub fn forgetter(&self) -> Forgetter {
        Forgetter(self.session.notifier())
    }

    /// How requests will come.
    pub fn transport(&self) -> Transport {
        if self.rings.is_some() { Transport::Rings } else { Transport::Device }
    }

    /// Answers requests until it is unmounted; calls `ready`, from another thread, once the mount answers.
    ///
    /// # Errors
    /// When the device fails.
    pub fn serve(self, ready: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Self { session, rings, point, threads } = self;
        let rings = rings
            .map(|rings| Ok::<_, io::Error>(rings.start(session.as_fd().try_clone_to_owned()?)))
            .transpose()?;
        let (by_device, others) = (rings.is_none(), pinned::Others::new());
        std::thread::Builder::new().name("mount-ready".to_string()).spawn(move || {
            // Comes back once a request was answered, by the threads below.
            let _ = rustix::fs::stat(&point);
            widen_read_ahead(&point);
            if by_device {
                others.pin_new(threads);
            }
            ready();
        })?;
        // After an error the mount is still there, and so would they be.
        session.run()?;
        rings.into_iter().for_each(uring::Serving::join);
        Ok(())
    }
}

/// How far the kernel reads ahead of a program that reads in order, bytes: some requests at a time, so that none of the threads that decode waits for the next.
/// Cold reads in order: 1029 and 1221 MiB/s with one request's worth, 1517 and 1524 with this (device, 2 processors).
const READ_AHEAD_BYTES: usize = 4 << 20;

/// The kernel begins with a read-ahead of 128 KiB for every mount, and lets only root raise it. Where that cannot be done, reads are smaller.
fn widen_read_ahead(point: &Path) {
    if let Ok(Some(row)) = mounts::at(point) {
        let kib = (READ_AHEAD_BYTES >> 10).to_string();
        let _ = std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", row.device), kib);
    }
}
