//! `unmount`: ends a mount.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use outrigger_fuse::control::Client;
use outrigger_fuse::live;
use outrigger_fuse::mounts::{self, Whereabouts};
use outrigger_store::DATABASE_FILE;
use outrigger_store::home::Home;

use super::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::print_json;

const EXAMPLES: &str = "\
Examples:
  outrigger unmount /mnt
  outrigger unmount --lazy /mnt     open files stay usable until they are closed
  fuser -vm /mnt                    shows which programs keep the mount busy

After --lazy the mount lives on until the last file in it is closed. Until then a store in a
directory cannot be mounted to write again.

If the mount's process was killed, unmount as usual and mount again. The next mount or command
stores all acknowledged data. A mount of a store in PostgreSQL loses data that was neither closed
nor synced.";

/// Unmount a store
///
/// `umount` and `fusermount3 -u` do the same.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UnmountArgs {
    /// The directory that it is mounted on
    #[arg(value_name = "MOUNTPOINT")]
    dir: PathBuf,
    /// Detach it from the tree at once, even if files in it are open
    #[arg(long)]
    lazy: bool,
}

pub fn run(context: &Context, args: &UnmountArgs) -> Outcome {
    let point = mounts::resolve(&args.dir).map_err(|error| Failure::io(args.dir.display(), &error))?;
    let exit = unmount(args, &point)?;
    if context.json {
        print_json(Object::new().with_name("unmounted", point.as_os_str().as_encoded_bytes()))?;
    }
    Ok(exit)
}

fn unmount(args: &UnmountArgs, point: &Path) -> Outcome {
    let shown = args.dir.display();
    if !is_ours(point)? {
        return Err(Failure::failed(format!(
            "{shown} is not a mounted store; `findmnt` lists what is mounted"
        )));
    }
    // Only a writable mount has something to store.
    let row = mounts::at(point).ok().flatten().filter(|row| !row.read_only && !args.lazy);
    let whereabouts = row.map(|row| Whereabouts::of(point).unwrap_or(Whereabouts::At(row.source)));
    // The mount has stored everything when it closes this connection.
    let mount = match &whereabouts {
        Some(Whereabouts::At(dir)) => Client::connect(dir).ok().flatten(),
        _ => None,
    };
    match mounts::unmount(point, args.lazy) {
        Ok(()) => match (mount, whereabouts) {
            (_, Some(Whereabouts::Lost(why))) => Err(Failure::failed(format!("unmounted, but {why}"))),
            (Some(mount), Some(Whereabouts::At(dir))) => {
                let store = Home::of(&dir);
                mount.wait_for_end();
                is_stored(&store)
            }
            _ => Ok(Exit::Done),
        },
        Err(error) if error.kind() == ErrorKind::ResourceBusy && mounts::is_dead(point) => {
            Err(Failure::failed(format!(
                "the mount process at {shown} has ended, but files in it are open (`fuser -vm` lists by which programs); run `outrigger unmount --lazy {shown}`. Acknowledged data is kept: it is in the store, or the next mount stores it"
            )))
        }
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Err(Failure::failed(format!(
            "{shown} is in use; close the files that are open in it (`fuser -vm` lists by which programs), or give --lazy"
        ))),
        Err(error) => Err(Failure::io(format!("cannot unmount {shown}"), &error)),
    }
}

/// Fails if the ended mount of the store in this directory could not store everything.
fn is_stored(store: &Home) -> Outcome {
    if !store.path().join(DATABASE_FILE).exists() {
        let why = "unmounted, but the store was removed: recent writes may be lost";
        return Err(Failure::failed(why));
    }
    let dir = store.lies_at();
    let staging = live::staging_dir(&dir);
    // If a mount answers, a new mount has begun and takes the log over.
    if staging.exists() && Client::connect(&dir).ok().flatten().is_none() {
        return Err(Failure::failed(format!(
            "unmounted, but recent writes could not be stored; they are kept in {}, and the next mount or command stores them or says why not",
            staging.display()
        )));
    }
    Ok(Exit::Done)
}

/// True when a store is mounted at exactly `point`.
pub fn is_ours(point: &Path) -> Result<bool, Failure> {
    let row = mounts::at(point).map_err(|error| Failure::io("cannot read /proc/self/mountinfo", &error))?;
    Ok(row.is_some_and(|row| row.kind == mounts::FS_TYPE))
}
