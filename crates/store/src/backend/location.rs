//! Where a store's packs lie, as `store.toml` and the command line say it.
//!
//! ```text
//! file:/abs/dir                                     a directory that all hosts of the store mount
//! s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]   an S3-compatible object store
//! rados://POOL[/NAMESPACE][?conf=PATH&user=NAME]    Ceph, without a gateway
//! PLACE|PLACE|…                                     tiers: new packs go to the first with room; file: takes ?fill=SIZE or ?fill=N%
//! ```
//!
//! A location never holds a secret: it is printed, and lies in a file that others may read. The
//! engines take credentials from the same places as their other programs (`docs/packs.md`).

use std::fmt;
use std::path::{Path, PathBuf};

use super::Tier;
use crate::error::{Error, ErrorKind, Result};

/// Where packs lie.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Location {
    /// In a directory of a file system that every host of the store has mounted at this path.
    Directory(PathBuf),
    /// In a bucket.
    S3(S3Location),
    /// In a pool of a Ceph cluster.
    Rados(RadosLocation),
    /// Several places, in this order: two at least, of which only the last may have no bound.
    Tiers(Vec<Tier>),
}

/// See [`Location::S3`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct S3Location {
    /// The bucket's name.
    pub bucket: String,
    /// The beginning of all keys; empty, or without a slash at either end.
    pub prefix: String,
    /// `http://HOST:PORT` or `https://…`; `None`: the platform's own, or that of the environment.
    pub endpoint: Option<String>,
    /// The region that requests are signed for; `None`: that of the environment, or `us-east-1`.
    pub region: Option<String>,
    /// Seconds that a server which does not answer is waited for; `None`: a minute.
    pub patience: Option<u32>,
    /// Days for which the collector locks packs, from each of its runs on; `None`: not at all.
    pub lock: Option<u32>,
}

/// See [`Location::Rados`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct RadosLocation {
    /// The pool's name.
    pub pool: String,
    /// A namespace in it; empty: the pool's own.
    pub namespace: String,
    /// The cluster's configuration file; `None`: where Ceph's own programs look.
    pub conf: Option<String>,
    /// `client.NAME`; `None`: that of `CEPH_ARGS`, or `client.admin`.
    pub user: Option<String>,
    /// Seconds that a cluster which does not answer is waited for; `None`: a minute.
    pub patience: Option<u32>,
}

/// Keys by which users try to pass secrets; the error then says the right way.
const SECRETS: [&str; 7] =
    ["access_key_id", "secret_access_key", "access_key", "secret_key", "secret", "token", "key"];

impl Location {
    /// Parses its text.
    ///
    /// # Errors
    /// `Invalid`, saying what is wrong with it. The text is not repeated if it may hold a secret.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > 1024 || text.chars().any(|c| c.is_control() || c == '"' || c == '\\') {
            return Err(invalid(
                "a place for packs is at most 1024 characters, without quotes and control characters",
            ));
        }
        if text.contains(BETWEEN) {
            return tiers(text);
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return directory(path);
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            invalid(format!(
                "`{text}` is no place for packs; use file:/DIR, s3://BUCKET/PREFIX or rados://POOL/NAMESPACE"
            ))
        })?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(invalid(format!("a place for packs holds no user and no password; {ADVICE}")));
        }
        let (first, second) = place.split_once('/').unwrap_or((place, ""));
        let second = second.trim_end_matches('/');
        match scheme {
            "s3" => s3(first, second, query).map(Self::S3),
            "rados" => rados(first, second, query).map(Self::Rados),
            _ => Err(invalid(format!("`{scheme}://` is not known; use file:/DIR, s3://… or rados://…"))),
        }
    }

    /// True if every request crosses a network: packs are smaller there, and reads are cached.
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::S3(_) | Self::Rados(_) => true,
            Self::Tiers(tiers) => tiers.iter().any(|tier| tier.location.is_remote()),
        }
    }

    /// Several places as one: tiers in this order. One alone is itself.
    ///
    /// # Errors
    /// As [`Location::parse`].
    pub fn parse_all(texts: &[String]) -> Result<Self> {
        Self::parse(&texts.join(BETWEEN))
    }

    /// About the bytes of a pack, if nothing else is configured.
    pub fn pack_size(&self) -> u32 {
        if self.is_remote() { 16 << 20 } else { 64 << 20 }
    }
}

const ADVICE: &str = "credentials come from the environment or from files, see docs/packs.md";

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

/// The separator between tiers.
const BETWEEN: &str = "|";

fn tiers(text: &str) -> Result<Location> {
    let tiers: Vec<Tier> = text.split(BETWEEN).map(Tier::parse).collect::<Result<_>>()?;
    let (last, before) = tiers.split_last().expect("there is a separator");
    if let Some(tier) = before.iter().find(|tier| tier.fill.is_none() && !tier.location.is_remote()) {
        let why = format!(
            "`{tier}` is not the last tier: say how much of it may be used, `?fill=200G` or `?fill=90%`"
        );
        return Err(invalid(why));
    }
    if last.fill.is_some() {
        return Err(invalid(format!(
            "`{last}` is the last tier: what does not fit there fits nowhere, so it has no `fill`"
        )));
    }
    let twice = tiers
        .iter()
        .enumerate()
        .find(|(at, tier)| tiers[..*at].iter().any(|other| other.location == tier.location));
    match twice {
        Some((_, tier)) => Err(invalid(format!("`{}` is there twice", tier.location))),
        None => Ok(Location::Tiers(tiers)),
    }
}

fn directory(path: &str) -> Result<Location> {
    if !Path::new(path).is_absolute() {
        return Err(invalid(format!("file:{path}: the path must be absolute, it is the same on every host")));
    }
    let path: PathBuf = Path::new(path).components().collect();
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(invalid(format!("file:{}: the path must not hold `..`", path.display())));
    }
    Ok(Location::Directory(path))
}

fn s3(bucket: &str, prefix: &str, query: &str) -> Result<S3Location> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if bucket.len() < 3 || bucket.len() > 63 || !bucket.chars().all(is_name) {
        return Err(invalid(format!("`{bucket}` is not a bucket's name")));
    }
    check_path("prefix", prefix)?;
    let mut location = S3Location { bucket: bucket.into(), prefix: prefix.into(), ..S3Location::default() };
    for (key, value) in pairs(query)? {
        match key {
            "endpoint" => {
                let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
                if host.is_none_or(|host| host.is_empty() || host.contains('@')) {
                    return Err(invalid("endpoint= wants http://HOST:PORT or https://HOST, without a user"));
                }
                location.endpoint = Some(value.trim_end_matches('/').to_string());
            }
            "region" => location.region = Some(value.to_string()),
            "patience" => location.patience = Some(number(key, value, 3600, "seconds")?),
            "lock" => location.lock = Some(number(key, value, 36_500, "days")?),
            _ => return Err(unknown("s3", key, "endpoint, region, patience and lock")),
        }
    }
    Ok(location)
}

fn rados(pool: &str, namespace: &str, query: &str) -> Result<RadosLocation> {
    if pool.is_empty() || !pool.chars().all(|c| c.is_ascii_graphic() && c != '%') {
        return Err(invalid(format!("`{pool}` is not a pool's name")));
    }
    check_path("namespace", namespace)?;
    let mut location =
        RadosLocation { pool: pool.into(), namespace: namespace.into(), ..RadosLocation::default() };
    for (key, value) in pairs(query)? {
        match key {
            "conf" if Path::new(value).is_absolute() => location.conf = Some(value.to_string()),
            "conf" => return Err(invalid("conf= wants an absolute path")),
            "user" if value.starts_with("client.") => location.user = Some(value.to_string()),
            "user" => return Err(invalid(format!("user={value}: it is client.{value}"))),
            "patience" => location.patience = Some(number(key, value, 3600, "seconds")?),
            _ => return Err(unknown("rados", key, "conf, user and patience")),
        }
    }
    Ok(location)
}

/// A number from 1 to `max`.
fn number(key: &str, value: &str, max: u32, unit: &str) -> Result<u32> {
    let number = value.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| invalid(format!("{key}={value}: use 1 to {max} {unit}")))
}

fn check_path(what: &str, path: &str) -> Result<()> {
    let is_part = |part: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._~+=".contains(c);
        !part.is_empty() && part != "." && part != ".." && part.chars().all(is_name)
    };
    if path.is_empty() || path.split('/').all(is_part) {
        return Ok(());
    }
    Err(invalid(format!("`{path}` is not a {what}: letters, digits and -._~+= between single slashes")))
}

fn pairs(query: &str) -> Result<Vec<(&str, &str)>> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value)) if !value.is_empty() => Ok((key, value)),
            _ => Err(invalid("what follows the `?` must read KEY=VALUE&KEY=VALUE")),
        })
        .collect()
}

fn unknown(scheme: &str, key: &str, known: &str) -> Error {
    if SECRETS.contains(&key.trim_start_matches("aws_")) {
        return invalid(format!("`{key}` does not belong into a place for packs: {ADVICE}"));
    }
    invalid(format!("{scheme}:// knows no `{key}`, but {known}"))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, inner, pairs, patience, lock) = match self {
            Self::Directory(path) => return write!(f, "file:{}", path.display()),
            Self::Tiers(tiers) => {
                let texts: Vec<String> = tiers.iter().map(ToString::to_string).collect();
                return f.write_str(&texts.join(BETWEEN));
            }
            Self::S3(S3Location { bucket, prefix, endpoint, region, patience, lock }) => {
                let pairs = [("endpoint", endpoint), ("region", region)];
                (format!("s3://{bucket}"), prefix, pairs, patience, lock)
            }
            Self::Rados(RadosLocation { pool, namespace, conf, user, patience }) => {
                (format!("rados://{pool}"), namespace, [("conf", conf), ("user", user)], patience, &None)
            }
        };
        let [patience, lock] = [patience, lock].map(|number| number.map(|number| number.to_string()));
        f.write_str(&place)?;
        if !inner.is_empty() {
            write!(f, "/{inner}")?;
        }
        let mut sign = '?';
        for (key, value) in pairs.into_iter().chain([("patience", &patience), ("lock", &lock)]) {
            if let Some(value) = value {
                write!(f, "{sign}{key}={value}")?;
                sign = '&';
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_prints() {
        for text in [
            "file:/srv/packs",
            "s3://bucket",
            "s3://bucket/a/b.c?endpoint=http://10.0.0.1:7480&region=eu-west-1",
            "s3://bucket?region=eu-west-1&patience=10",
            "s3://bucket?lock=30",
            "rados://pool",
            "rados://pool?patience=300",
            "rados://pool.data/ns?conf=/etc/ceph/other.conf&user=client.outrigger",
            "file:/mnt/nvme?fill=200G|file:/mnt/disk?fill=90%|s3://bucket/a?region=eu-west-1",
        ] {
            assert_eq!(Location::parse(text).unwrap().to_string(), text);
        }
        let same = |a: &str, b: &str| assert_eq!(Location::parse(a).unwrap(), Location::parse(b).unwrap());
        same("file:///srv//packs/", "file:/srv/packs");
        same("s3://bucket/a/?endpoint=http://h:1/", "s3://bucket/a?endpoint=http://h:1");
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for (text, advice) in [
            ("", "use file:/DIR"),
            ("/srv/packs", "use file:/DIR"),
            ("file:packs", "absolute"),
            ("file:/a/../b", ".."),
            ("ftp://host/x", "not known"),
            ("s3://", "bucket"),
            ("s3://b!cket", "bucket"),
            ("s3://bucket//a", "prefix"),
            ("s3://bucket/../a", "prefix"),
            ("s3://bucket?endpoint=host", "http://HOST"),
            ("s3://bucket?colour=red", "endpoint, region, patience and lock"),
            ("s3://bucket?lock=0", "1 to 36500 days"),
            ("s3://bucket?patience=0", "1 to 3600"),
            ("s3://bucket?region", "KEY=VALUE"),
            ("rados://", "pool"),
            ("rados://pool?user=admin", "client.admin"),
            ("rados://pool?conf=ceph.conf", "absolute"),
            ("s3://a\"b", "quotes"),
            ("file:/a|s3://bucket", "fill=200G"),
            ("file:/a?fill=1G|file:/b?fill=1G", "last tier"),
            ("file:/a?fill=0|file:/b", "1% to 99%"),
            ("file:/a?fill=100%|file:/b", "1% to 99%"),
            ("s3://bucket?fill=1G|file:/b", "quota"),
            ("file:/a?fill=1G|file:/a", "twice"),
            ("file:/a?fill=1G|", "use file:/DIR"),
        ] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(advice), "{text}: {error}");
        }
    }

    /// The error for a secret says where secrets belong, and does not repeat it.
    #[test]
    fn secrets_are_refused_unrepeated() {
        for text in [
            "s3://AKIA:hunter2@bucket/x",
            "s3://bucket?secret_access_key=hunter2",
            "s3://bucket?aws_secret_access_key=hunter2",
            "s3://bucket?endpoint=http://me:hunter2@host",
        ] {
            let error = Location::parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
