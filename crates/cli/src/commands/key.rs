//! `key`: the keys that open an encrypted store.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use outrigger_format::StoreId;
use outrigger_format::catalogue::Time;
use outrigger_store::backend::{Access, Backend};
use outrigger_store::keys::{
    self, Key, Keyring, Rights, Secret, Slot, domains, kernel, secrets, slots, text, unlock,
};
use outrigger_store::meta::At;
use outrigger_store::ops::own_keys::{KeyState, OwnKey, find_domain, make_sealed_directory, own_keys};
use outrigger_store::tree::listing;
use outrigger_store::{Error, Store, StoreConfig};
use serde_json::Value;

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, local, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger key list
  outrigger key add --paper                    print a key to write down, for when all else is lost
  outrigger key add --file /root/nightly.key   a key file for another host or a service
  outrigger key add --passphrase --label me
  outrigger key add --read-only --file web.key a key that changes nothing
  outrigger key add --put-only --file db3.key  for `put`; reads no contents
  outrigger key own secret                     make a directory whose contents have a key of their own
  outrigger key add --only secret --file s.key a key that reads this directory alone
  outrigger key destroy secret --yes           nobody can read it any more
  outrigger key remove nightly
  outrigger key rotate                         what is stored from now on has new keys
  outrigger key unlock --for 8h                keep the key in the kernel, and ask no more
  outrigger key lock

Any one key opens the whole store, unless it was added with fewer rights. `init` puts the first one in ~/.config/outrigger/keys. A store
whose keys are all lost cannot be read by anybody: keep a second one elsewhere.";

const WHERE: &str = "\
A command looks for a key in this order: the kernel's keyring (`key unlock`); the file of --key-file
or OUTRIGGER_KEY_FILE; the credential `outrigger-key` of a systemd unit; ~/.config/outrigger/keys/ID.key;
/etc/outrigger/keys/ID.key; the first line of the file OUTRIGGER_PASSPHRASE_FILE, or what the command
OUTRIGGER_PASSPHRASE_COMMAND prints. At last it asks for a passphrase, if a key is one.";

/// List, add and remove the keys of an encrypted store
#[derive(Subcommand)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{WHERE}"))]
pub enum KeyCommand {
    /// List the keys that open the store
    #[command(after_help = "Examples:\n  outrigger key list")]
    List,
    /// Add a key
    #[command(
        after_help = "Examples:\n  outrigger key add --paper\n  outrigger key add --file /root/nightly.key --label nightly\n  outrigger key add --passphrase\n  outrigger key add --read-only --file web.key\n  outrigger key add --put-only --file db3.key"
    )]
    Add(AddArgs),
    /// Remove a key. Who has it and a copy of the store's directory `keys` can still read what is
    /// stored already: `key rotate` protects what is stored from now on
    #[command(after_help = "Examples:\n  outrigger key remove nightly")]
    Remove {
        /// Its label or id
        name: String,
    },
    /// Begin new keys for what is stored from now on, and lock out the keys that are not at hand
    ///
    /// Keys that this command can find, as any command does, stay. All others go; to have them
    /// again, add them again. Names and attributes keep their key: for new keys throughout, `copy`
    /// the store without encryption and with new keys.
    #[command(after_help = "Examples:\n  outrigger key rotate\n  outrigger key rotate --drop-others")]
    Rotate {
        /// Keep the key in this file, too; may be repeated
        #[arg(long, value_name = "FILE")]
        keep: Vec<PathBuf>,
        /// Also if keys that are not at hand go
        #[arg(long)]
        drop_others: bool,
    },
    /// Make a directory whose contents have a key of their own
    ///
    /// Its contents are encrypted with this key, and share no stored chunk with what lies elsewhere.
    /// Keys that open the store read it, too. `key add --only DIR` adds a key that reads it alone, and
    /// `key destroy DIR` makes its contents unreadable, also in snapshots and in copies. Put data into
    /// it with `put`, or through a mount: `mv` and links from outside are refused, `cp` is not.
    #[command(
        after_help = "Examples:\n  outrigger key own patients\n  outrigger put ~/patients --to patients"
    )]
    Own {
        /// The new directory
        dir: OsString,
    },
    /// Destroy the key of a directory: nobody can read its contents any more
    ///
    /// That goes for its earlier versions, for snapshots, and for copies once `copy` has brought them
    /// up to date. Names and attributes stay until they are removed. Nobody can take back contents that a
    /// host has read before, or its copy of the store's directory `keys`.
    #[command(
        after_help = "Examples:\n  outrigger key destroy patients\n  outrigger key destroy patients --yes"
    )]
    Destroy {
        /// The directory, or the number that `key list` shows
        dir: OsString,
        /// Do it: without this, it says what would be lost
        #[arg(long)]
        yes: bool,
    },
    /// Keep the store's key in the kernel's keyring of this user
    #[command(after_help = "Examples:\n  outrigger key unlock --for 8h")]
    Unlock {
        /// For so long, as 8h or 30m [default: until the machine is restarted]
        #[arg(long = "for", value_name = "TIME", value_parser = args::span)]
        time: Option<Duration>,
    },
    /// Drop the store's key from the kernel's keyring
    #[command(after_help = "Examples:\n  outrigger key lock")]
    Lock,
}

/// A new key.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("kind").required(true))]
pub struct AddArgs {
    /// Print a new key, to be written down
    #[arg(long, group = "kind")]
    paper: bool,
    /// Put a new key in this file; if it is there already, add the key in it
    #[arg(long, value_name = "FILE", group = "kind")]
    file: Option<PathBuf>,
    /// Ask for a passphrase twice, or take that of OUTRIGGER_PASSPHRASE_FILE or
    /// OUTRIGGER_PASSPHRASE_COMMAND
    #[arg(long, group = "kind")]
    passphrase: bool,
    /// A host with the key reads everything, and this program refuses it every change
    #[arg(long, conflicts_with_all = ["put_only", "only"])]
    read_only: bool,
    /// A host with the key stores (`put`, `import`) and finds what is stored. It reads names, and
    /// cannot read contents
    #[arg(long, conflicts_with = "only")]
    put_only: bool,
    /// A host with the key reads the contents of this directory alone, which has a key of its own
    /// (`key own`). It reads names everywhere, and changes nothing
    #[arg(long, value_name = "DIR")]
    only: Option<OsString>,
    /// What to call it [default: what it is]
    #[arg(long)]
    label: Option<String>,
}

impl AddArgs {
    /// The rights that the key gives.
    fn rights(&self) -> Rights {
        match (self.read_only, self.put_only, &self.only) {
            (true, ..) => Rights::ReadOnly,
            (_, true, _) => Rights::PutOnly,
            (.., Some(_)) => Rights::Subtree,
            _ => Rights::All,
        }
    }
}

/// The encrypted store, and the place of its slots.
fn open(context: &Context) -> Result<(Store, Arc<dyn Backend>), Failure> {
    let store = Store::open_to_look(context.store_dir()?)?;
    if store.keys().is_none() {
        return Err(Failure::failed(format!(
            "{} is not encrypted, so it has no keys; `outrigger copy --encrypt` makes an encrypted copy",
            store.name().display()
        )));
    }
    let packs = store.config.open_uncached(store.home().path(), Access::default())?;
    Ok((store, packs))
}

pub fn run(context: &Context, command: KeyCommand) -> Outcome {
    match command {
        KeyCommand::List => list(context),
        KeyCommand::Add(args) => add(context, &args),
        KeyCommand::Remove { name } => {
            let (store, packs) = open(context)?;
            let ring = store.keys().expect("an encrypted store is open");
            let slot = keys::remove_slot(&*packs, ring, &name)?;
            say(context, &slot, &format!("removed {}", slot.describe()))
        }
        KeyCommand::Rotate { keep, drop_others } => rotate(context, &keep, drop_others),
        KeyCommand::Own { dir } => own(context, &dir),
        KeyCommand::Destroy { dir, yes } => destroy(context, &dir, yes),
        KeyCommand::Unlock { time } => {
            let (store, _) = open(context)?;
            kernel::keep(store.keys().expect("an encrypted store is open"), time)?;
            done(context, "the kernel has the key; `outrigger key lock` drops it")
        }
        KeyCommand::Lock => {
            let dir = context.store_dir()?;
            let config = match StoreConfig::find(dir).ok().flatten() {
                Some(config) => config,
                None => Store::open_to_look(dir)?.config,
            };
            let had = config.ring_id().map_or(Ok(false), kernel::drop_of)?;
            done(
                context,
                if had { "the kernel has dropped the key" } else { "the kernel had no key of this store" },
            )
        }
    }
}

/// The keyring with all epochs, also those that another host has begun: a slot must open all.
fn newest<'s>(store: &'s Store, packs: &dyn Backend) -> Result<&'s Keyring, Failure> {
    let ring = store.keys().expect("an encrypted store is open");
    unlock::refresh(ring, packs)?;
    Ok(ring)
}

fn done(context: &Context, text: &str) -> Outcome {
    if context.json {
        print_json(Object::new().with("done", text))?;
    } else if !context.quiet {
        print_text(&format!("{text}\n"))?;
    }
    Ok(Exit::Done)
}

fn object(slot: &Slot) -> Object {
    Object::new()
        .with("id", slot.id.as_str())
        .with("kind", slot.kind.name())
        .with("label", slot.label.as_str())
        .with("created", slot.created)
        .with("epochs", slot.epochs)
        .with("rights", slot.rights.name())
        .with("domain", slot.domain().map(|domain| domain.to_string()))
}

fn say(context: &Context, slot: &Slot, text: &str) -> Outcome {
    if context.json {
        print_json(object(slot))?;
        return Ok(Exit::Done);
    }
    done(context, text)
}

fn list(context: &Context) -> Outcome {
    let (store, packs) = open(context)?;
    let slots = slots::slots(&*packs)?;
    let own = own_keys(&store)?;
    if context.json {
        let rows: Vec<Value> = slots.iter().map(|slot| object(slot).into()).collect();
        let epochs = store.keys().map_or(0, |keys| keys.epochs());
        let own: Vec<Value> = own.iter().map(|own| own_object(own).into()).collect();
        print_json(Object::new().with("epochs", epochs).with("keys", rows).with("directories", own))?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for slot in &slots {
        let made = local(Time { secs: slot.created as i64, nanos: 0 });
        let (kind, rights) = (slot.kind.name(), slot.rights.name());
        let reads = slot.domain().map(|domain| format!("  reads {domain}")).unwrap_or_default();
        text += &format!("{}  {kind:10}  {rights:9}  {made}  {}{reads}\n", slot.id, slot.label);
    }
    for own in &own {
        let made = local(Time { secs: own.text.time as i64, nanos: 0 });
        let state = match own.state {
            KeyState::Open | KeyState::Closed => "own key",
            KeyState::Destroyed => "destroyed",
            KeyState::Missing => "missing",
        };
        let path = own
            .path
            .as_ref()
            .map_or_else(|| "(removed, or its path is not known)".to_owned(), ToString::to_string);
        text += &format!("{}  directory   {state:9}  {made}  {path}\n", own.text.domain);
    }
    print_text(&text)?;
    Ok(Exit::Done)
}

fn add(context: &Context, args: &AddArgs) -> Outcome {
    let (store, packs) = open(context)?;
    let ring = newest(&store, &*packs)?;
    ring.rights().require_all()?;
    let domain = match &args.only {
        Some(dir) => {
            let domain = find_domain(&store, dir.as_bytes())?;
            // Before a key file is made for nothing.
            store.packs.domain_key(domain)?;
            Some(domain)
        }
        None => None,
    };
    let add = |secret: &Secret, label: &str| {
        let label = args.label.as_deref().unwrap_or(label);
        keys::add_slot(&*packs, ring, secret, label, args.rights(), domain)
    };
    let may = match args.rights() {
        Rights::All => "opens the store",
        Rights::ReadOnly => "reads the store",
        Rights::PutOnly => "stores in the store",
        Rights::Subtree => "reads that directory",
    };
    if args.passphrase {
        let slot = add(&secrets::new_passphrase()?, "passphrase")?;
        return say(context, &slot, &format!("the passphrase {may} from now on"));
    }
    if let Some(path) = &args.file {
        let slot = add(&key_of_file(path, store.config.id)?, "key file")?;
        return say(context, &slot, &format!("the key in {} {may} from now on", path.display()));
    }
    let key = Key::random()?;
    let slot = add(&Secret::Key(key.clone()), "paper")?;
    if context.json {
        print_json(object(&slot).with("key", text::encode(&key).as_str()))?;
    } else {
        print_text(&format!(
            "{}\nThis key {may}. Write it down and keep it where a fire or a thief does not find both. To use it, put it in a file, and \
             name that with --key-file\n",
            *text::encode(&key)
        ))?;
    }
    Ok(Exit::Done)
}

fn own_object(own: &OwnKey) -> Object {
    Object::new()
        .with("domain", own.text.domain.to_string())
        .with("path", own.path.as_ref().map(ToString::to_string))
        .with("time", own.text.time)
        .with("state", own.state.name())
}

fn own(context: &Context, dir: &OsStr) -> Outcome {
    let path = args::store_path(dir)?;
    let store = context.open_for_changes()?;
    let domain = make_sealed_directory(&store, &path)?;
    context.settle(&store);
    if context.json {
        print_json(Object::new().with("domain", domain.to_string()).with("path", path.to_string()))?;
        return Ok(Exit::Done);
    }
    done(
        context,
        &format!(
            "what is put into `{path}` has a key of its own; `outrigger key add --only DIR --file FILE` makes a key that reads it alone"
        ),
    )
}

fn destroy(context: &Context, dir: &OsStr, yes: bool) -> Outcome {
    let store = context.open_for_changes()?;
    let ring =
        store.keys().ok_or_else(|| Failure::failed("the store is not encrypted, so it has no keys"))?;
    ring.rights().require_all()?;
    let domain = find_domain(&store, dir.as_bytes())?;
    let (mut files, mut bytes) = (0u64, 0u64);
    listing::walk::<Error>(
        &*store.meta,
        At::Now,
        outrigger_store::meta::ROOT_INODE,
        true,
        &mut |_, entry| {
            let is_in = entry.inode.attributes.domain() == domain;
            if is_in && entry.inode.attributes.kind == outrigger_format::catalogue::FileKind::File {
                (files, bytes) = (files + 1, bytes + entry.inode.root.len());
            }
            Ok(())
        },
    )?;
    let what = format!(
        "{files} files with {} (and their earlier versions, and those of them in {} snapshots)",
        size(bytes),
        store.meta.snapshots()?.len()
    );
    if !yes {
        return Err(Failure::usage(format!(
            "this would make unreadable for ever: {what}. To do so, run `outrigger key destroy {} --yes`",
            dir.to_string_lossy()
        )));
    }
    domains::destroy(&*store.backend, ring, domain)?;
    if context.json {
        let object =
            Object::new().with("domain", domain.to_string()).with("files", files).with("bytes", bytes);
        print_json(object)?;
        return Ok(Exit::Done);
    }
    done(
        context,
        &format!(
            "nobody can read these any more: {what}. Mounts and agents forget the key within a minute. Bring copies up to date with `outrigger copy`; `outrigger gc` frees the space once the directory is removed"
        ),
    )
}

/// The key in a file; makes one if the file is not there.
pub fn key_of_file(path: &Path, store: StoreId) -> Result<Secret, Failure> {
    if path.exists() {
        return Ok(secrets::read_key_file(path)?);
    }
    let key = Key::random()?;
    secrets::write_key_file(path, &key, store)?;
    Ok(Secret::Key(key))
}

fn rotate(context: &Context, keep: &[PathBuf], drop_others: bool) -> Outcome {
    let (store, packs) = open(context)?;
    let ring = store.keys().expect("an encrypted store is open");
    ring.rights().require_all()?;
    let found = unlock::at_hand(ring, &*packs, keep)?;
    let others: Vec<String> =
        found.iter().filter(|(_, secret)| secret.is_none()).map(|(slot, _)| slot.describe()).collect();
    if !others.is_empty() && !drop_others {
        return Err(Failure::failed(format!(
            "these keys are not at hand and would no longer open the store: {}; name their files with --keep, or give --drop-others",
            others.join(", ")
        )));
    }
    let epochs = keys::rotate(&*packs, store.home().path(), ring, &found)?;
    // Without the time that is left of what `key unlock` was given.
    let dropped = kernel::drop_of(ring.id()).unwrap_or(false);
    if context.json {
        print_json(Object::new().with("epochs", epochs).with("dropped", others))?;
        return Ok(Exit::Done);
    }
    if dropped {
        complain("the kernel has dropped the old keys; `outrigger key unlock` gives it the new ones");
    }
    done(
        context,
        &format!("what is stored from now on has the keys of epoch {epochs}; restart mounts and agents"),
    )
}
