//! `mount`: a store as a directory. The options are checked here, while the terminal still gets the
//! errors. Then this process serves the mount (`serve`), or one in the background does.

mod arenas;
mod background;
mod serve;
mod signals;
mod told;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use outrigger_format::ChunkerSpec;
use outrigger_fuse::live::{Order, STAGING_BYTES_MIN};
use outrigger_fuse::mounts::{self, MountRow, Whereabouts};
use outrigger_store::{Store, shared};

use self::serve::serve;
use super::offload::Offload;
use super::{Context, unmount};
use crate::args::{MountFlags, mount_options, values};
use crate::exit::{Failure, Outcome, plain};
use crate::exporter::Address;
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger mount /mnt                        to read and write; snapshots in /mnt/.snapshots
  outrigger mount --read-only /mnt            the tree of this moment; it does not change
  outrigger mount --at nightly /mnt           the newest snapshot tagged nightly
  outrigger mount -o ro,allow_other /mnt      for all users; modes and ACLs hold
  outrigger mount --chunker fixed:64K /mnt    cut files written here into blocks of 64 KiB
  outrigger mount -o dedup=off /mnt           do not look for stored copies of what is written
  outrigger mount --metrics 127.0.0.1:9464 /mnt    serve http://127.0.0.1:9464/metrics
  outrigger -s postgres://me@db/data mount /mnt    shared with other hosts: docs/distributed.md
  outrigger mount --serve-followers 10.0.0.5:0 /mnt    agents read files being written
  outrigger unmount /mnt                      also if its process was killed; then mount again

Changes in a mount cannot be undone: `undo` knows commands only. Take snapshots by a timer, and
find them in /mnt/.snapshots/NAME. An overwritten file keeps its earlier stored contents. A content
that is replaced before the mount has stored it leaves no version. Nor does a file that is removed,
or that a rename replaces, which is how many editors save.

In /etc/fstab:
  /data/store    /mnt  fuse.outrigger  allow_other,nofail     0  0
  /backup/store  /old  fuse.outrigger  ro,allow_other,nofail  0  0";

const METRICS_HELP: &str = "Serve Prometheus metrics at /metrics, on unix:/PATH, 127.0.0.1:PORT or [::1]:PORT. Only this machine can connect; to serve others, put a proxy before it";
/// No disk should have to hold more than this.
const STAGING_BYTES_MAX: u64 = 1 << 40;

/// Mount the store as a directory
///
/// A mount of a store in a directory owns it: other commands go through it and see what it has
/// staged. A write survives a crash of the mount at once, and a power loss after fsync. Data is
/// stored in the background, and all of it by `unmount`.
///
/// Any number of hosts may mount a store in PostgreSQL at once. A file that one host has closed or
/// synced is visible to the others when they open it.
///
/// With --read-only the mount shows the tree of this moment, with --at that of a snapshot. It does
/// not change, and `gc` keeps its content until the unmount.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct MountArgs {
    /// The directory to mount on
    #[arg(value_name = "MOUNTPOINT")]
    dir: PathBuf,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
    /// Allow no changes
    #[arg(long)]
    read_only: bool,
    /// Room in the store's directory for data that is written and not stored yet [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    staging_size: Option<u64>,
    /// Which data is stored first when that room is needed [default: lrw]. lrw (least recently
    /// written): what was left alone for longest, so that data which is written again, as by a
    /// database, is hashed and compressed less often. fifo: what was first written longest ago, even
    /// if it was written again since. reverse: the newest, which is the worst case, to compare with
    #[arg(long, value_name = "ORDER", value_parser = mount_options::order)]
    staging_order: Option<Order>,
    /// How to cut files written here, whatever policies say: gear32:MIN/AVG/MAX or fixed:SIZE
    #[arg(long, value_parser = values::chunker)]
    chunker: Option<ChunkerSpec>,
    /// Whether to look for data that is stored already, whatever the policies say: on or off. With
    /// off, written data is still hashed, because every read is verified
    #[arg(long, value_name = "on|off", value_parser = values::on_off)]
    dedup: Option<bool>,
    /// With a store in PostgreSQL: for so long, use names without asking the database again, and
    /// assume that a directory made here has only names made here [default: 0, always ask]. This
    /// saves round trips for paths and new files, but other hosts' names are seen that much later
    #[arg(long, value_name = "SECONDS", value_parser = values::moment)]
    names_for: Option<Duration>,
    /// With a store in PostgreSQL: let the close of a small file return before its commit. The
    /// commit follows within so many seconds, and before later changes here [default: 0, at once].
    /// Unpacking then takes half the round trips. Others see the files later, and a killed mount
    /// may lose them
    #[arg(long, value_name = "SECONDS", value_parser = values::moment)]
    closes_within: Option<Duration>,
    /// With a store in PostgreSQL: let agents on other hosts read files while they are written, and
    /// store them for this mount (rules with --attach path). Give this host's address for them; 0
    /// is any port. Only clients that may write to the database can connect; traffic is encrypted
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::socket)]
    serve_followers: Option<SocketAddr>,
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse, help = METRICS_HELP)]
    metrics: Option<Address>,
    /// Options as `mount` has them: ro, at=SNAPSHOT, allow_other, no_default_permissions, suid,
    /// dev, noexec, staging_size=SIZE, staging_order=ORDER, chunker=CHUNKER, dedup=on|off, names_for=SECONDS,
    /// closes_within=SECONDS, serve_followers=ADDRESS:PORT, metrics=ADDRESS, log=FILE
    #[arg(short, value_name = "OPT,...")]
    options: Vec<String>,
    #[command(flatten)]
    offload: Offload,
    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(long)]
    foreground: bool,
    /// Print `ready` on standard output once the mount answers, then go on without a terminal
    #[arg(long, hide = true)]
    detach: bool,
}

/// The checked options of a mount.
struct Plan {
    store: PathBuf,
    point: PathBuf,
    flags: MountFlags,
    offload: Offload,
}

pub fn run(context: &Context, args: MountArgs) -> Outcome {
    let mut flags = MountFlags::parse(&args.options).map_err(Failure::usage)?;
    flags.read_only |= args.read_only;
    flags.at = args.at.or(flags.at);
    flags.read_only |= flags.at.is_some();
    flags.staging_bytes = args.staging_size.or(flags.staging_bytes);
    flags.staging_order = args.staging_order.or(flags.staging_order);
    flags.overrides.chunker = args.chunker.or(flags.overrides.chunker);
    flags.overrides.dedup = args.dedup.or(flags.overrides.dedup);
    flags.metrics = args.metrics.or(flags.metrics);
    flags.names_for = args.names_for.or(flags.names_for);
    flags.closes_within = args.closes_within.or(flags.closes_within);
    flags.serve_followers = args.serve_followers.or(flags.serve_followers);
    let log = context.log.log.clone().or(flags.log);
    if log.as_deref() == Some(Path::new("-")) && !args.foreground {
        return Err(Failure::usage("a log on standard error needs --foreground"));
    }
    flags.log = match log {
        Some(path) if path == Path::new("-") => Some(path),
        log => log
            .map(std::path::absolute)
            .transpose()
            .map_err(|error| Failure::io("cannot find the directory for the log", &error))?,
    };
    if flags.log.as_ref().is_some_and(|path| path.as_os_str().as_encoded_bytes().contains(&b',')) {
        return Err(Failure::usage("the log's path cannot have a comma in it"));
    }
    if let Some(bytes) = flags.staging_bytes
        && !(STAGING_BYTES_MIN..=STAGING_BYTES_MAX).contains(&bytes)
    {
        return Err(Failure::usage("the staging size must be between 8M and 1T"));
    }
    let plan = check(context, &args.dir, flags, args.offload)?;
    if args.foreground || args.detach {
        return serve(context, &plan, args.detach);
    }
    background::start(context, &plan)
}

fn check(context: &Context, dir: &Path, flags: MountFlags, offload: Offload) -> Result<Plan, Failure> {
    let named = context.store_dir()?;
    let is_shared = shared::url(named).is_some();
    if !is_shared && flags.names_for.is_some() {
        let why = "--names-for needs a store in PostgreSQL; remove it";
        return Err(Failure::usage(why));
    }
    if !is_shared && flags.closes_within.is_some() {
        let why = "--closes-within needs a store in PostgreSQL; remove it";
        return Err(Failure::usage(why));
    }
    if flags.serve_followers.is_some() && (!is_shared || flags.read_only) {
        let why = "--serve-followers needs a writable mount of a store in PostgreSQL; remove it";
        return Err(Failure::usage(why));
    }
    let found = if is_shared { Ok(named.to_owned()) } else { named.canonicalize() };
    let Ok(store) = found else {
        // The error of opening the store is more precise.
        Store::open(named, true)?;
        return Err(Failure::failed(format!("cannot find {}", named.display())));
    };
    let shown = dir.display();
    let resolved =
        mounts::resolve(dir).map_err(|error| Failure::io(format!("cannot mount on {shown}"), &error))?;
    if unmount::is_ours(&resolved)? {
        if mounts::is_dead(&resolved) {
            return Err(Failure::failed(format!(
                "the mount process at {shown} has ended; run `outrigger unmount {shown}` (with --lazy if files in it are open)"
            )));
        }
        return Err(Failure::failed(format!("a store is mounted on {shown} already; unmount it first")));
    }
    let point = dir.canonicalize().map_err(|error| {
        Failure::failed(format!(
            "cannot mount on {shown}: {}; it must be a directory that exists",
            plain(&error)
        ))
    })?;
    if !point.is_dir() {
        return Err(Failure::usage(format!("cannot mount on {shown}: it is not a directory")));
    }
    if point.starts_with(&store) {
        let why = "it is inside the store; give another directory";
        return Err(Failure::usage(format!("cannot mount on {shown}: {why}")));
    }
    if store.starts_with(&point) {
        let why = "the store is inside it and would be hidden; give another directory";
        return Err(Failure::usage(format!("cannot mount on {shown}: {why}")));
    }
    let writes = !is_shared && !flags.read_only;
    // A mount that began at this path may belong to a store that has moved since.
    let is_of_it = |row: &MountRow| {
        !row.read_only
            && Whereabouts::of(&row.point).is_none_or(|found| found == Whereabouts::At(store.clone()))
    };
    let others = mounts::of_store(&store).unwrap_or_default();
    if writes && let Some(other) = others.into_iter().find(is_of_it) {
        return Err(Failure::failed(format!(
            "{} is already mounted for writing at {}; use that mount, or give --read-only",
            store.display(),
            other.point.display()
        )));
    }
    Ok(Plan { store, point, flags, offload })
}
