//! The address at which metrics are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A socket that only this machine can reach: metrics have no password, and no encryption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// In the file system.
    Unix(PathBuf),
    /// On a loopback address.
    Tcp(SocketAddr),
}

impl Address {
    /// `unix:/run/outrigger.sock`, `127.0.0.1:9464`, `[::1]:9464`, `localhost:9464`.
    ///
    /// # Errors
    /// With what would be accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORMS: &str = "give unix:/PATH, 127.0.0.1:PORT or [::1]:PORT";
        if let Some(path) = text.strip_prefix("unix:") {
            // The process that serves a mount changes its working directory.
            let path = std::path::absolute(path).map_err(|_| format!("`{text}` names no path; {FORMS}"))?;
            let shown = path.to_string_lossy();
            if shown.contains(',') {
                return Err(format!("`{shown}` has a comma, which ends a mount option; give another path"));
            }
            return Ok(Self::Unix(path));
        }
        let numbers = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let address: SocketAddr = numbers
            .as_deref()
            .unwrap_or(text)
            .parse()
            .map_err(|_| format!("`{text}` is no address for metrics; {FORMS}"))?;
        if !address.ip().is_loopback() {
            let why = "other machines could read the metrics without a password";
            let advice =
                format!("give 127.0.0.1:{}, and put a proxy before it that asks for one", address.port());
            return Err(format!("at `{text}` {why}; {advice}"));
        }
        if address.port() == 0 {
            return Err(format!("`{text}` has no port; {FORMS}"));
        }
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        for good in ["unix:/run/x.sock", "127.0.0.1:9464", "127.0.0.2:1", "[::1]:9464"] {
            assert_eq!(Address::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(Address::parse("localhost:80").unwrap().to_string(), "127.0.0.1:80");
        assert!(matches!(Address::parse("unix:here"), Ok(Address::Unix(path)) if path.is_absolute()));
        for open in ["0.0.0.0:9464", "[::]:9464", "192.168.0.1:9464"] {
            assert!(Address::parse(open).unwrap_err().contains("a proxy before it"), "{open}");
        }
        for bad in
            ["", "unix:", "9464", ":9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "a.example:1"]
        {
            assert!(Address::parse(bad).unwrap_err().contains("unix:/PATH"), "{bad}");
        }
        assert!(Address::parse("unix:/a,b").unwrap_err().contains("comma"));
    }
}
