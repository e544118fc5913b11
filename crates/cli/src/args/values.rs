//! Parsers of single values: their errors say what would be accepted.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use outrigger_format::{ChunkerSpec, CodecChoice, FingerprintKind, parse_size};
use outrigger_store::Profile;
use outrigger_store::meta::is_postgres_url;
use outrigger_store::policy::{NOTES, PARITY, SOURCE, check_policy, parse_age};
use outrigger_store::tree::StorePath;
use outrigger_store::write::OracleMode;

use crate::exit::Failure;

/// Refuses a store argument that is not meant as a directory, such as a URL. A command would take
/// it for a directory of that name.
///
/// # Errors
/// A usage failure that names the command to use instead.
pub fn check_store(dir: &Path) -> Result<(), Failure> {
    let Some(text) = dir.to_str() else { return Ok(()) };
    if is_postgres_url(text) {
        return Ok(());
    }
    if text == "~" || text.starts_with("~/") {
        return Err(Failure::usage(format!(
            "the shell did not expand `{text}`; write \"$HOME{}\"",
            &text[1..]
        )));
    }
    let Some((scheme, _)) = text.split_once(':') else { return Ok(()) };
    let is_scheme =
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_url = is_scheme && text[scheme.len()..].starts_with("://");
    // Other backup programs write locations this way.
    let is_known = ["s3", "sftp", "rclone", "rest", "b2", "azure", "gs", "swift"].contains(&scheme);
    if !is_url && !is_known {
        return Ok(());
    }
    Err(Failure::usage(match scheme {
        "s3" | "rados" => format!(
            "`{text}` can hold a store's packs, but not its metadata; `outrigger -s ./store init --packs '{}'` makes a store \
             with its metadata in ./store (or -s postgres://… for several hosts)",
            if is_url { text } else { "s3://BUCKET/PREFIX?endpoint=URL" }
        ),
        "file" => format!(
            "a store is named by its directory: `outrigger -s {} …`",
            text.trim_start_matches("file:").trim_start_matches("//")
        ),
        "rclone" | "sftp" => format!(
            "`{text}` is no store: mount it first (`{}`), and give that directory",
            if scheme == "sftp" { "sshfs USER@HOST:DIR /mnt" } else { "rclone mount REMOTE:DIR /mnt" }
        ),
        _ => format!(
            "`{text}` is no store: give a directory, or postgres://user@host/database; packs can lie in s3://, rados:// or file:/ \
             (`outrigger init --help`)"
        ),
    }))
}

/// `zstd:3`, `gzip:6`, `lz4`, `none`, `auto`.
pub fn codec(text: &str) -> Result<CodecChoice, String> {
    CodecChoice::parse(text).map_err(|error| error.to_string())
}

/// `gear32:4K/16K/64K`, `fixed:64K`, `rabin:2K/8K/64K`, `lbfs-md5:…`, `lbfs-sha1:…`.
pub fn chunker(text: &str) -> Result<ChunkerSpec, String> {
    ChunkerSpec::parse(text).map_err(|error| error.to_string())
}

/// `on`, `off`.
pub fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}`: use on or off")),
    }
}

/// `record:FILE`, `replay:FILE`.
pub fn oracle(text: &str) -> Result<OracleMode, String> {
    match text.split_once(':') {
        Some(("record", file)) if !file.is_empty() => Ok(OracleMode::Record(file.into())),
        Some(("replay", file)) if !file.is_empty() => Ok(OracleMode::Replay(file.into())),
        _ => Err(format!("`{text}`: use record:FILE or replay:FILE")),
    }
}

/// `blake3`, `sha256`; `md5`, `sha1`, `pmd-md5`, `pmd-sha1`, `pmd-sha256`.
pub fn fingerprint(text: &str) -> Result<FingerprintKind, String> {
    FingerprintKind::parse(text).map_err(|error| error.to_string())
}

/// `default`, `dense`, `large`, `archive`.
pub fn profile() -> impl TypedValueParser<Value = Profile> {
    let names = PossibleValuesParser::new(["default", "dense", "large", "archive"]);
    names.try_map(|name| Profile::parse(&name).map_err(|error| error.to_string()))
}

/// `4096`, `64K`, `1G`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (least..=most).contains(seconds));
    let refused = || format!("`{text}` is not a number of seconds from {least} to {most}");
    seconds.map(Duration::from_secs_f64).ok_or_else(refused)
}

/// Seconds between two samples: `1`, `0.5`, `60`.
pub fn interval(text: &str) -> Result<Duration, String> {
    seconds(text, 0.1, 86_400.0)
}

/// Seconds, up to a minute: `0`, `0.5`, `2`.
pub fn moment(text: &str) -> Result<Duration, String> {
    seconds(text, 0.0, 60.0)
}

/// An address with a port by which other hosts reach this one: `10.0.0.5:0`, `[fd00::5]:7000`.
pub fn socket(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("`{text}` is not an address and a port, such as 10.0.0.5:7000, or 10.0.0.5:0 for any port")
    })?;
    if address.ip().is_unspecified() {
        return Err(format!(
            "other hosts cannot reach `{text}`; give an address of this host that they can reach"
        ));
    }
    Ok(address)
}

/// A size below 4 GiB.
pub fn small_size(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| format!("`{text}` is too large"))
}

/// `versions=5`, `codec=lz4`: checked here, so that a typing error is a usage error.
pub fn policy(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE, such as versions=5"))?;
    if NOTES.contains(&key) {
        return Err(format!(
            "`{key}` cannot be set here; `outrigger {}` sets it",
            if key == SOURCE { "put" } else { "keep --automatic" }
        ));
    }
    check_policy(key, value).map_err(|error| error.to_string())?;
    Ok((key.to_string(), value.to_string()))
}

/// `10+2`.
pub fn parity(text: &str) -> Result<String, String> {
    check_policy(PARITY, text).map(|()| text.to_string()).map_err(|error| error.to_string())
}

/// `30d`, `12h`, `forever`.
pub fn age(text: &str) -> Result<String, String> {
    let known = parse_age(text).is_some();
    known
        .then(|| text.to_string())
        .ok_or_else(|| format!("`{text}`: use days as 30d, hours as 12h, or forever"))
}

/// A time: seconds (90s), minutes (30m), hours (8h) or days (7d).
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}`: use hours as 8h, or 90s, 30m, 7d");
    let unit = text.chars().last().and_then(|unit| "smhd".find(unit)).ok_or_else(wrong)?;
    let number: u32 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let secs = [1, 60, 3600, 24 * 3600][unit];
    Ok(Duration::from_secs(u64::from(number) * secs))
}

/// 1 to 1024.
pub fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| format!("`{text}` is not a number of threads from 1 to 1024"))
}

/// A path in the store; its bytes may be anything.
///
/// # Errors
/// A usage failure for `..`, for names that no directory can hold, and for an empty text: a shell
/// variable that is not set must not mean the whole store.
pub fn store_path(text: &OsStr) -> Result<StorePath, Failure> {
    if text.is_empty() {
        return Err(Failure::usage(
            "a path is empty (is a shell variable unset?); give `/` for the whole store",
        ));
    }
    StorePath::parse(text.as_bytes()).map_err(Failure::from)
}

/// As [`store_path`], for several.
pub fn store_paths(texts: &[OsString]) -> Result<Vec<StorePath>, Failure> {
    texts.iter().map(|text| store_path(text)).collect()
}
