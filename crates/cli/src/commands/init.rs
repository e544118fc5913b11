//! `init`: creates a store.

use std::path::{Path, PathBuf};

use clap::Args;
use outrigger_format::{ChunkerSpec, CodecChoice, FingerprintKind, print_size};
use outrigger_fuse::mounts;
use outrigger_store::backend::Location;
use outrigger_store::keys::{NewKeys, secrets};
use outrigger_store::meta::{ROOT_INODE, SessionKind};
use outrigger_store::policy::{AUTOMATIC_DEFAULT, PARITY};
use outrigger_store::write::set_policy;
use outrigger_store::{ErrorKind, Profile, Store, StoreConfig};

use super::{Context, key};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger -s ./store init
  outrigger -s ./store init --profile archive
  outrigger -s ./store init --passphrase
  outrigger -s ./store init --key-file /media/stick/store.key
  outrigger -s ./store init --codec auto
  outrigger -s ./store init --parity 10+2
  outrigger -s ./images init --chunker fixed:64K --codec lz4
  outrigger -s ./store init --packs 's3://bucket/store?endpoint=http://gateway:7480'
  outrigger -s ./store init --packs rados://pool/store
  outrigger -s ./store init --packs 'file:/mnt/nvme?fill=200G' --packs file:/mnt/disks";

/// Create a store
///
/// The directory must be empty or not exist. Fingerprint, frame size and pack size cannot be
/// changed later. Chunker and codec are defaults; `policy set` changes them for directories.
#[derive(Args)]
#[command(after_help = help())]
pub struct InitArgs {
    /// A set of defaults: default, dense, large, archive
    #[arg(long, default_value = "default", value_parser = args::profile())]
    profile: Profile,
    /// How to cut files: gear32:MIN/AVG/MAX or fixed:SIZE
    #[arg(long, value_parser = args::chunker)]
    chunker: Option<ChunkerSpec>,
    /// Bytes that are compressed together, 4K to 16M
    #[arg(long, value_name = "SIZE", value_parser = args::small_size)]
    frame_size: Option<u32>,
    /// Bytes of a pack, 1M to 1G
    #[arg(long, value_name = "SIZE", value_parser = args::small_size)]
    pack_size: Option<u32>,
    /// How to name chunks: blake3 or sha256
    #[arg(long, value_parser = args::fingerprint)]
    fingerprint: Option<FingerprintKind>,
    /// How to compress: auto (auto:throughput, auto:ratio, auto:cpu), zstd:LEVEL (-7 to 19),
    /// gzip:LEVEL or deflate:LEVEL (1 to 12), lz4, zle, lzjb or none. Or up to four of them with
    /// devices, the preferred one first: gzip:6@qat,zstd:3@cpu (also @nvcomp, @sim, @any)
    #[arg(long, value_parser = args::codec)]
    codec: Option<CodecChoice>,
    /// Where packs go: file:/DIR (shared by hosts), s3://BUCKET/PREFIX?endpoint=URL&region=NAME or
    /// rados://POOL/NAMESPACE; the place must be empty [default: the store's directory]. Give it
    /// several times for tiers, the fastest first. A directory may state how much of it may be used
    /// (file:/DIR?fill=200G or fill=90%). New packs go to the first tier that has room; `rebalance`
    /// moves old ones down
    #[arg(long, value_name = "URL")]
    packs: Vec<String>,
    /// Have `gc` make FILES parity files for each PACKS packs, from which `check --repair` makes
    /// lost or rotten packs anew: as many of a group as it has parity files. They take FILES/PACKS
    /// more space. They are no second copy: who loses the disk or the bucket loses both.
    /// `policy set / parity=10+2` sets it later
    #[arg(long, value_name = "PACKS+FILES", value_parser = args::parity)]
    parity: Option<String>,
    /// Do not encrypt the store: whoever can read its disk, bucket or database sees names and
    /// contents
    #[arg(long, conflicts_with = "passphrase")]
    no_encryption: bool,
    /// Open the store with a passphrase, asked for twice, in place of a key file (or that of
    /// OUTRIGGER_PASSPHRASE_FILE or OUTRIGGER_PASSPHRASE_COMMAND)
    #[arg(long)]
    passphrase: bool,
    /// Make a store for experiments; it stays one. `put --oracle` is allowed in it, which believes
    /// fingerprints without computing them. Not for data that matters
    #[arg(long, hide = true)]
    experiment: bool,
}

/// The examples, and the settings of each profile.
fn help() -> String {
    let mut text = format!("{EXAMPLES}\n\nProfiles (chunker, frame size, codec):");
    for (name, what) in [
        ("default", ""),
        ("dense", "finds more duplicates, with a larger index"),
        ("large", "for large files: a smaller index"),
        ("archive", "smallest, slower"),
    ] {
        let Ok(config) = Profile::parse(name).and_then(Profile::config) else { continue };
        let (chunker, codec) = (config.chunker.to_string(), config.codec.to_string());
        let frame = print_size(config.frame_size.into());
        text += format!("\n  {name:8} {chunker:21} {frame:>5}  {codec:8} {what}").trim_end();
    }
    text
}

/// Refuses a directory that a mount still has as its store, though that store was moved away or
/// removed. The user may have forgotten the mount, and would take it for one of the new store.
fn refuse_mounted(dir: &Path) -> Result<(), Failure> {
    let Ok(dir) = dir.canonicalize().or_else(|_| mounts::resolve(dir)) else { return Ok(()) };
    match mounts::of_store(&dir).unwrap_or_default().first() {
        Some(row) => Err(Failure::failed(format!(
            "the store that was in {} is still mounted at {}; unmount it first, or give another directory",
            dir.display(),
            row.point.display()
        ))),
        None => Ok(()),
    }
}

/// A key file that opens a store.
pub struct KeyFile {
    pub path: PathBuf,
    /// It was made just now.
    pub is_new: bool,
    /// The user named it.
    pub is_named: bool,
}

/// Gives the keys of a new store their first slot: a passphrase if that is asked for or the
/// environment names one, else a key file, which is returned.
pub fn first_slots(keys: &mut NewKeys, passphrase: bool) -> Result<Option<KeyFile>, Failure> {
    let (named, id) = (secrets::named_key_file(), keys.ring.id());
    if passphrase || (named.is_none() && secrets::names_passphrase()) {
        keys.add(&secrets::new_passphrase()?, "passphrase")?;
        return Ok(None);
    }
    let is_named = named.is_some();
    let path = named.map_or_else(|| secrets::default_key_file(id), Ok)?;
    let is_new = !path.exists();
    let secret = key::key_of_file(&path, id.store)?;
    keys.add(&secret, "key file")?;
    Ok(Some(KeyFile { path, is_new, is_named }))
}

/// What a user must know of the keys of a store that was made.
fn told_of_keys(is_encrypted: bool, place: Option<&KeyFile>) -> String {
    match place {
        _ if !is_encrypted => "it is not encrypted\n".to_string(),
        None => "it is encrypted; nobody can read it without the passphrase (`outrigger key add --paper` prints a second key)\n".to_string(),
        Some(KeyFile { path, .. }) => format!(
            "it is encrypted, and its key is in {}: nobody can read the store without it. Keep a second key elsewhere (`outrigger key add --paper` prints one)\n",
            path.display()
        ),
    }
}

pub fn run(context: &Context, args: InitArgs) -> Outcome {
    let base = args.profile.config()?;
    // Parsed here and not by clap: clap would repeat the text, and a password in it, in its error.
    let packs = (!args.packs.is_empty()).then(|| Location::parse_all(&args.packs)).transpose()?;
    let config = StoreConfig {
        id: base.id,
        fingerprint: args.fingerprint.unwrap_or(base.fingerprint),
        chunker: args.chunker.unwrap_or(base.chunker),
        codec: args.codec.unwrap_or(base.codec),
        frame_size: args.frame_size.unwrap_or(base.frame_size),
        pack_size: args.pack_size.unwrap_or(packs.as_ref().map_or(base.pack_size, Location::pack_size)),
        experiment: args.experiment,
        packs,
        keyring: None,
    };
    let dir = context.store_dir()?;
    refuse_mounted(dir)?;
    let (mut place, mut keys) = (None, None);
    if !args.no_encryption {
        let mut new = NewKeys::new(config.id)?;
        place = first_slots(&mut new, args.passphrase)?;
        keys = Some(new);
    }
    let config = StoreConfig { keyring: keys.as_ref().map(|keys| keys.ring.id().number), ..config };
    let made = Store::init_with(dir, &config, keys.as_ref());
    // Refused before anything was written: the file is a key of nothing. One that the user named
    // stays, as it may be another store's by now.
    if let (Err(error), Some(KeyFile { path, is_new: true, is_named: false })) = (&made, &place)
        && matches!(error.kind(), ErrorKind::Exists | ErrorKind::Invalid)
    {
        let _ = std::fs::remove_file(path);
    }
    let store = made?;
    if let Some(parity) = &args.parity {
        let session = store.session(SessionKind::Writer, "init")?;
        set_policy(&store, &session, ROOT_INODE, PARITY, Some(parity))?;
    }
    drop(store);
    if context.json {
        let object = Object::new()
            .with_name("store", std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str()))
            .with("id", config.id.to_string())
            .with("chunker", config.chunker.to_string())
            .with("codec", config.codec.to_string())
            .with("fingerprint", config.fingerprint.name())
            .with("frame_size", config.frame_size)
            .with("pack_size", config.pack_size)
            .with("packs", config.packs.as_ref().map(Location::to_string))
            .with("experiment", config.experiment)
            .with("encrypted", config.is_encrypted())
            .with("parity", args.parity.as_deref())
            .with("key_file", place.map(|place| place.path.display().to_string()))
            .with("automatic", AUTOMATIC_DEFAULT);
        print_json(object)?;
    } else if !context.quiet {
        print_text(&format!(
            "made a store {}in {}: {}, {}, {}, frames of {}, packs of {}{}\n`outrigger undo` can undo commands for {AUTOMATIC_DEFAULT} \
             (`outrigger keep --automatic AGE` changes that)\n",
            if config.experiment { "for experiments " } else { "" },
            dir.display(),
            config.chunker,
            config.codec,
            config.fingerprint.name(),
            print_size(config.frame_size.into()),
            print_size(config.pack_size.into()),
            config.packs.as_ref().map_or_else(String::new, |packs| format!(" in {packs}")),
        ))?;
        print_text(&told_of_keys(config.is_encrypted(), place.as_ref()))?;
    }
    Ok(Exit::Done)
}
