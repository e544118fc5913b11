//! Parsers of single values: their errors say what would be accepted.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use outrigger_format::{ChunkerSpec, CodecChoice, FingerprintKind, parse_size};
use outrigger_store::Profile;
use outrigger_store::tree::{StorePath, check_policy};
use outrigger_store::write::OracleMode;

use crate::exit::Failure;

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

/// Seconds between two looks: `1`, `0.5`, `60`.
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
            "`{text}` says nothing to other hosts: give the address that they reach this one by"
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
    check_policy(key, value).map_err(|error| error.to_string())?;
    Ok((key.to_string(), value.to_string()))
}

/// 1 to 1024.
pub fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| format!("`{text}` is not a number of threads from 1 to 1024"))
}

/// A path in the store; its bytes may be anything.
///
/// # Errors
/// A usage failure for `..` and names that no directory can hold.
pub fn store_path(text: &OsStr) -> Result<StorePath, Failure> {
    StorePath::parse(text.as_bytes()).map_err(Failure::from)
}

/// As [`store_path`], for several.
pub fn store_paths(texts: &[OsString]) -> Result<Vec<StorePath>, Failure> {
    texts.iter().map(|text| store_path(text)).collect()
}
