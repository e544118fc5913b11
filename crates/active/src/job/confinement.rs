//! How strictly a job's programs are sandboxed, and what they may reach of the network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};

use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Destinations of a job at most: what one message hands over is bounded.
pub const DESTINATIONS_MAX: usize = 64;

/// How strictly components are sandboxed; the least strict mode first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Mode {
    /// No sandbox, only limits: for trusted programs.
    Off,
    /// As well as this machine can; missing protections are reported.
    Best,
    /// Refuse to run where a means is missing.
    #[default]
    Strict,
}

impl Mode {
    /// Parses `off`, `best`, `strict`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "best" => Ok(Self::Best),
            "strict" => Ok(Self::Strict),
            _ => Err(Error::new(ErrorKind::Invalid, format!("`{text}`: use off, best or strict"))),
        }
    }

    /// The word that [`Mode::parse`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Best => "best",
            Self::Strict => "strict",
        }
    }
}

/// A destination that a program may connect to: a name or an address, and a port (TCP).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Destination {
    /// A name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Destination {
    /// Parses `HOST:PORT`, `ADDRESS:PORT`, `[IPv6]:PORT`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |why: &str| {
            let why =
                format!("`{text}` is not HOST:PORT{why}, such as db:5432, 10.0.0.7:80 or [2001:db8::7]:80");
            Err(Error::new(ErrorKind::Invalid, why))
        };
        let Some((host, port)) = text.rsplit_once(':') else { return refuse("") };
        let Some(port) = port.parse().ok().filter(|port| *port > 0) else {
            return refuse(" (a port is 1 to 65535)");
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let address = match bracketed {
            Some(inner) => inner.parse().ok().map(IpAddr::V6),
            None => host.parse().ok().map(IpAddr::V4),
        };
        if let Some(address) = address {
            let address = address.to_canonical();
            if address.is_unspecified() || address.is_multicast() || address == Ipv4Addr::BROADCAST {
                return refuse(" (that address is nobody's)");
            }
            return Ok(Self { host: address.to_string(), port });
        }
        if bracketed.is_some() || host.contains(':') {
            return refuse(" (an IPv6 address stands in brackets)");
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c))
                && !label.starts_with('-')
        };
        // Programs take a host that ends with a number for an address, in any notation.
        let is_number = |label: &str| {
            label.starts_with(|c: char| c.is_ascii_digit())
                && label.bytes().all(|c| c.is_ascii_hexdigit() || c == b'x')
        };
        let last = host.rsplit('.').next().unwrap_or_default();
        if host.len() > 253 || !host.split('.').all(is_label) || is_number(last) {
            return refuse("");
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }

    /// The address, if it is one and no name.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Its present addresses, resolved outside the sandbox.
    pub(crate) fn look_up(&self) -> std::io::Result<impl Iterator<Item = SocketAddr> + use<>> {
        (self.host.as_str(), self.port).to_socket_addrs()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

impl TryFrom<String> for Destination {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}
