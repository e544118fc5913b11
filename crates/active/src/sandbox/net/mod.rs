//! A network that has a few destinations and nothing else.
//!
//! ```text
//!  the program's name space: a loopback                        │ the runner's
//!    psql -h db ─▶ /etc/hosts: 127.64.0.1 ─▶ a socket listens ─┼─▶ forward.rs ─▶ db:5432, looked up here
//!                                                              │    (accepts from that socket)
//! ```
//!
//! The program has a network name space without devices, like one without `--net`. In it, sockets
//! listen on loopback addresses, one for each destination. The stage (`stage.rs`) has made them
//! there, and the runner, outside, accepts from them. So only connections that the runner makes
//! lead out, and it connects only to the granted destinations. A name gets a loopback address of
//! its own, which `/etc/hosts` lists; an address is given to the loopback as it is.
//!
//! The stage is this program once more ([`begin`]), as a process of its own before the sandbox's.
//! So is the stage for programs with all of the network (`sandbox/scope.rs`).

mod forward;
mod link;
pub(super) mod shim;
mod stage;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_store::{Context as _, Result};
use rustix::fs::{Mode, OFlags};

use super::{Kept, scope, variables};

use crate::job::Destination;
pub(crate) use forward::Forward;

/// This program's first argument when it is started as the stage.
const MARK: &str = "sandbox-stage";
/// This program, even if its file is gone; and opened, for other processes to become it.
const SELF: &str = "/proc/self/exe";
const OPENED: &str = "/proc/self/fd/";
/// Files of `/etc` for looking up names.
const HOSTS: &str = "hosts";
const SWITCH: &str = "nsswitch.conf";

/// True once [`begin`] was called: this program can be started as the stage.
static IS_STAGED: AtomicBool = AtomicBool::new(false);

/// To be called first by a program that runs jobs, with its arguments. If it was started as a
/// stage, it does that stage's work and returns only an error. Otherwise it returns `None`, and
/// jobs may have destinations from then on.
pub fn begin(arguments: &[OsString]) -> Option<std::io::Error> {
    let enter: Option<fn(&[OsString]) -> std::io::Error> =
        match arguments.get(1).and_then(|mark| mark.to_str()) {
            Some(MARK) => Some(stage::enter),
            Some(scope::MARK) => Some(scope::enter),
            Some(variables::MARK) => Some(variables::enter),
            _ => None,
        };
    if let Some(enter) = enter {
        let opened = arguments[0].to_str().and_then(|own| own.strip_prefix(OPENED)?.parse().ok());
        // Later programs must not inherit it.
        let closed = opened.map_or(Ok(()), |number| shim::kept(number).map(drop));
        return Some(closed.err().unwrap_or_else(|| enter(&arguments[2..])));
    }
    IS_STAGED.store(true, Ordering::Relaxed);
    None
}

/// The words before a command that run it in a network of its own, without a forwarder: to test if
/// one can be made.
///
/// # Errors
/// When this program cannot do it.
pub(super) fn alone() -> std::result::Result<Before, String> {
    let (program, opened) = staged()?;
    Ok((before(program, stage::NOBODY, &[]), opened))
}

/// The words before a command that shares the host's network, but none of the other things that
/// come with it.
///
/// # Errors
/// When this program cannot do it.
pub(super) fn scoped() -> std::result::Result<Before, String> {
    let (program, opened) = staged()?;
    Ok((vec![program, scope::MARK.into()], opened))
}

/// Words before a command, and a descriptor that its child has to inherit.
pub(super) type Before = (Vec<OsString>, OwnedFd);

pub(super) fn staged() -> std::result::Result<(OsString, OwnedFd), String> {
    if !IS_STAGED.load(Ordering::Relaxed) {
        return Err("this program cannot be started as the stage of a sandbox".into());
    }
    open_own().map_err(|error| error.to_string())
}

/// This program, opened, and its path for that: other programs come between this one and the stage,
/// and their `/proc/self/exe` differs.
fn open_own() -> Result<(OsString, OwnedFd)> {
    let own = rustix::fs::open(SELF, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(std::io::Error::from)
        .context(|| format!("opening {SELF}"))?;
    Ok((format!("{OPENED}{}", own.as_raw_fd()).into(), own))
}

fn before(program: OsString, socket: &str, addresses: &[SocketAddr]) -> Vec<OsString> {
    [program, MARK.into()].into_iter().chain(stage::words(socket, addresses.iter())).collect()
}

/// Destinations with their addresses inside, and the text of the program's `/etc/hosts`.
fn inside(destinations: &[Destination]) -> (Vec<(SocketAddr, Destination)>, String) {
    let literal: Vec<IpAddr> = destinations.iter().filter_map(Destination::address).collect();
    // 127.64.0.1 and on, except for addresses that were granted as they are.
    let mut free = (0x7f40_0001..)
        .map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
        .filter(|one| !literal.contains(one));
    let mut names: Vec<(&str, IpAddr)> = vec![("localhost", Ipv4Addr::LOCALHOST.into())];
    let mut found: Vec<(SocketAddr, Destination)> = Vec::new();
    for destination in destinations {
        let host = destination.host.as_str();
        let known = names.iter().find(|(name, _)| *name == host).map(|(_, address)| *address);
        let address = destination.address().or(known).unwrap_or_else(|| {
            let next = free.next().expect("there are more than destinations");
            names.push((host, next));
            next
        });
        let address = SocketAddr::new(address, destination.port);
        // `localhost` and its address are the same inside: the first destination counts.
        if !found.iter().any(|(other, _)| *other == address) {
            found.push((address, destination.clone()));
        }
    }
    let hosts = names.iter().map(|(name, address)| format!("{address} {name}\n")).collect();
    (found, hosts)
}

/// Writes the files in `dir` that list the names for programs with these destinations.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_names(dir: &Path, destinations: &[Destination]) -> std::io::Result<()> {
    std::fs::write(dir.join(HOSTS), inside(destinations).1)?;
    std::fs::write(dir.join(SWITCH), "hosts: files\n")
}

/// The files to put into the sandbox, and their places there.
pub(super) fn names_in(dir: &Path) -> [(std::path::PathBuf, String); 2] {
    [HOSTS, SWITCH].map(|name| (dir.join(name), format!("/etc/{name}")))
}

/// The forwarder of a program with a network of its own, to be started when it runs.
pub struct Reach {
    /// Receives the sockets.
    channel: UnixStream,
    to: Vec<Destination>,
}

impl Reach {
    /// The words that make `destinations` reachable for the command after them. `kept` gets the
    /// command's descriptors and the forwarder.
    ///
    /// # Errors
    /// When the kernel has no socket to spare.
    pub(super) fn prepare(destinations: &[Destination], kept: &mut Kept) -> Result<Vec<OsString>> {
        let (channel, theirs) = UnixStream::pair().context(|| "making a network for the program".into())?;
        let (addresses, to): (Vec<_>, Vec<_>) = inside(destinations).0.into_iter().unzip();
        let (program, own) = open_own()?;
        kept.add(own);
        let words = before(program, &kept.add(theirs).to_string_lossy(), &addresses);
        kept.reach = Some(Self { channel, to });
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Vec<Destination> {
        texts.iter().map(|text| Destination::parse(text).unwrap()).collect()
    }

    #[test]
    fn destinations_are_read_as_they_are_written_and_what_is_none_is_refused() {
        for text in
            ["db:5432", "a-b.example.org:80", "10.0.0.7:1", "[::1]:65535", "[2001:db8::7]:443", "s3_x:80"]
        {
            let destination = Destination::parse(text).unwrap();
            assert_eq!(destination.to_string(), text);
            let kept = serde_json::to_string(&destination).unwrap();
            assert_eq!(serde_json::from_str::<Destination>(&kept).unwrap(), destination);
        }
        assert_eq!(Destination::parse("[::ffff:10.0.0.7]:80").unwrap().to_string(), "10.0.0.7:80");
        assert_eq!(Destination::parse("DB:80").unwrap().to_string(), "db:80");
        for text in [
            "",
            "db",
            ":80",
            "db:",
            "db:0",
            "db:65536",
            "db:http",
            "::1:80",
            "[::1]",
            "[db]:80",
            "0.0.0.0:80",
            "[::]:80",
            "224.0.0.1:80",
            "127.1:80",
            "2130706433:80",
            "0x7f000001:80",
            "a..b:80",
            "a b:80",
            "a\nb:80",
            "-x:80",
            "fe80::1%eth0:80",
            "255.255.255.255:80",
        ] {
            assert!(
                Destination::parse(text).is_err_and(|error| error.to_string().contains("HOST:PORT")),
                "{text}"
            );
        }
    }

    #[test]
    fn names_have_addresses_of_their_own_and_addresses_stay_what_they_are() {
        let to = all(&[
            "db:5432",
            "web:80",
            "db:80",
            "127.64.0.2:9",
            "[2001:db8::7]:80",
            "localhost:1",
            "127.0.0.1:1",
            "localhost:2",
        ]);
        let (found, hosts) = inside(&to);
        let addresses: Vec<String> = found.iter().map(|(address, to)| format!("{address}={to}")).collect();
        assert_eq!(
            addresses,
            [
                "127.64.0.1:5432=db:5432",
                "127.64.0.3:80=web:80",
                "127.64.0.1:80=db:80",
                "127.64.0.2:9=127.64.0.2:9",
                "[2001:db8::7]:80=[2001:db8::7]:80",
                "127.0.0.1:1=localhost:1",
                "127.0.0.1:2=localhost:2",
            ]
        );
        assert_eq!(hosts, "127.0.0.1 localhost\n127.64.0.1 db\n127.64.0.3 web\n");
    }
}
