//! The words after `-o`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use outrigger_fuse::live::Order;
use outrigger_store::policy::Overrides;

use super::values;
use crate::exporter::Address;

/// Words that `mount(8)` and its callers use. They change nothing here.
const IGNORED: [&str; 16] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "diratime",
    "nodiratime",
];

const KNOWN: &str = "ro, at=SNAPSHOT, allow_other, default_permissions, no_default_permissions, suid, nosuid, dev, nodev, exec, noexec, staging_size=SIZE, staging_order=lrw|fifo|reverse, dedup=on|off, chunker=gear32|rabin|lbfs-md5|lbfs-sha1:MIN/AVG/MAX|fixed:SIZE, names_for=SECONDS, closes_within=SECONDS, serve_followers=ADDRESS:PORT, metrics=ADDRESS, log=FILE";

/// `lrw`, `fifo`, `reverse`.
///
/// # Errors
/// With what would be accepted.
pub fn order(text: &str) -> Result<Order, String> {
    match text {
        "lrw" => Ok(Order::LeastRecentlyWritten),
        "fifo" => Ok(Order::FirstWritten),
        "reverse" => Ok(Order::MostRecentlyWritten),
        _ => Err(format!("`{text}` is no order; use lrw, fifo or reverse")),
    }
}

/// The options that `-o` gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountFlags {
    /// `ro`.
    pub read_only: bool,
    /// `at=`.
    pub at: Option<String>,
    /// `allow_other`.
    pub allow_other: bool,
    /// Not `no_default_permissions`.
    pub check_permissions: bool,
    /// `suid`.
    pub suid: bool,
    /// `dev`.
    pub dev: bool,
    /// Not `noexec`.
    pub exec: bool,
    /// `staging_size=`.
    pub staging_bytes: Option<u64>,
    /// `staging_order=`.
    pub staging_order: Option<Order>,
    /// `chunker=` and `dedup=`.
    pub overrides: Overrides,
    /// `names_for=`.
    pub names_for: Option<Duration>,
    /// `closes_within=`.
    pub closes_within: Option<Duration>,
    /// `serve_followers=`.
    pub serve_followers: Option<SocketAddr>,
    /// `metrics=`.
    pub metrics: Option<Address>,
    /// `log=`.
    pub log: Option<PathBuf>,
}

impl MountFlags {
    /// True if the kernel would honour set-id bits, capabilities or devices of files in the mount.
    pub fn honours_rights(&self) -> bool {
        self.suid || self.dev
    }

    /// Parses the values of all `-o`. Of words that contradict each other the last one holds, as in
    /// `mount(8)`. `ro` is never undone, because `mount(8)` passes `rw` when the user gave neither.
    ///
    /// # Errors
    /// With what would have been accepted.
    pub fn parse(given: &[String]) -> Result<Self, String> {
        let (read_only, at, allow_other) = (false, None, false);
        let (check_permissions, suid, dev, exec) = (true, false, false, true);
        let (staging_bytes, staging_order, metrics) = (None, None, None);
        let (names_for, closes_within) = (None, None);
        let mut flags = Self {
            read_only,
            at,
            allow_other,
            check_permissions,
            suid,
            dev,
            exec,
            staging_bytes,
            staging_order,
            overrides: Overrides::default(),
            names_for,
            closes_within,
            serve_followers: None,
            metrics,
            log: None,
        };
        for word in given.iter().flat_map(|given| given.split(',')).filter(|word| !word.is_empty()) {
            flags.take(word)?;
        }
        if flags.allow_other && !flags.check_permissions {
            let why = "would let every user read every file; remove one of them";
            return Err(format!("allow_other with no_default_permissions {why}"));
        }
        Ok(flags)
    }

    fn take(&mut self, word: &str) -> Result<(), String> {
        match word {
            "ro" => self.read_only = true,
            "rw" => {}
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.check_permissions = true,
            "no_default_permissions" => self.check_permissions = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            _ if IGNORED.contains(&word) || word.starts_with("x-") || word.starts_with("comment=") => {}
            _ => match word.split_once('=') {
                Some(("at", at)) if !at.is_empty() => self.at = Some(at.to_string()),
                Some(("staging_size", size)) => self.staging_bytes = Some(values::size(size)?),
                Some(("staging_order", text)) => self.staging_order = Some(order(text)?),
                Some(("chunker", text)) => self.overrides.chunker = Some(values::chunker(text)?),
                Some(("dedup", text)) => self.overrides.dedup = Some(values::on_off(text)?),
                Some(("names_for", text)) => self.names_for = Some(values::moment(text)?),
                Some(("closes_within", text)) => self.closes_within = Some(values::moment(text)?),
                Some(("serve_followers", text)) => self.serve_followers = Some(values::socket(text)?),
                Some(("metrics", text)) => self.metrics = Some(Address::parse(text)?),
                Some(("log", path)) if !path.is_empty() => self.log = Some(path.into()),
                _ => return Err(format!("there is no mount option `{word}`; the options are {KNOWN}")),
            },
        }
        Ok(())
    }

    /// The same options as words for `-o`.
    pub fn to_words(&self) -> String {
        let words = [
            (self.read_only, "ro"),
            (self.allow_other, "allow_other"),
            (!self.check_permissions, "no_default_permissions"),
            (self.suid, "suid"),
            (self.dev, "dev"),
            (!self.exec, "noexec"),
        ];
        let mut words: Vec<String> =
            words.iter().filter(|(said, _)| *said).map(|(_, word)| (*word).to_string()).collect();
        words.extend(self.at.as_ref().map(|at| format!("at={at}")));
        words.extend(self.staging_bytes.map(|bytes| format!("staging_size={bytes}")));
        words.extend(self.staging_order.map(|order| format!("staging_order={}", word(order))));
        words.extend(self.overrides.chunker.map(|chunker| format!("chunker={chunker}")));
        words.extend(self.overrides.dedup.map(|dedup| format!("dedup={}", if dedup { "on" } else { "off" })));
        words.extend(self.names_for.map(|time| format!("names_for={}", time.as_secs_f64())));
        words.extend(self.closes_within.map(|time| format!("closes_within={}", time.as_secs_f64())));
        words.extend(self.serve_followers.map(|address| format!("serve_followers={address}")));
        words.extend(self.metrics.as_ref().map(|address| format!("metrics={address}")));
        words.extend(self.log.as_ref().map(|path| format!("log={}", path.display())));
        words.join(",")
    }
}

fn word(order: Order) -> &'static str {
    match order {
        Order::LeastRecentlyWritten => "lrw",
        Order::FirstWritten => "fifo",
        Order::MostRecentlyWritten => "reverse",
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::ChunkerSpec;

    use super::*;

    fn parse(words: &str) -> Result<MountFlags, String> {
        MountFlags::parse(&[words.to_string()])
    }

    #[test]
    fn words_are_understood_and_said_again() {
        let flags =
            parse("rw,ro,nofail,x-systemd.automount,at=daily-1,suid,dev,nodev,allow_other,noexec,staging_size=64M,staging_order=fifo,dedup=off,chunker=gear32:4K/16K/64K,names_for=0.5,closes_within=0.01,serve_followers=[fd00::5]:0,log=/var/log/o.json,metrics=[::1]:9464").unwrap();
        assert!(flags.read_only && flags.allow_other && flags.check_permissions && flags.suid);
        assert!(!flags.dev && !flags.exec);
        assert_eq!(flags.overrides, Overrides { chunker: Some(ChunkerSpec::DEFAULT), dedup: Some(false) });
        assert_eq!(flags.at.as_deref(), Some("daily-1"));
        assert_eq!(parse(&flags.to_words()).unwrap(), flags);
        assert_eq!(parse(&parse("").unwrap().to_words()), parse(""));
    }

    #[test]
    fn what_is_unknown_or_open_to_all_is_refused() {
        assert!(parse("ro,big_writes").unwrap_err().contains("big_writes"));
        assert!(parse("at=").is_err());
        assert!(parse("dedup=maybe").unwrap_err().contains("on or off"));
        assert!(parse("chunker=fixed:3").is_err());
        assert!(
            parse("names_for=-1").is_err()
                && parse("names_for=1h").is_err()
                && parse("closes_within=").is_err()
        );
        assert!(parse("serve_followers=0.0.0.0:7000").unwrap_err().contains("other hosts"));
        assert!(parse("serve_followers=host").is_err());
        assert!(parse("metrics=0.0.0.0:9464").unwrap_err().contains("proxy"));
        assert!(parse("allow_other,no_default_permissions").is_err());
    }
}
