//! Certificates for tests, made by the program `openssl`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An authority for a test, in a directory.
pub struct Authority {
    certificate: PathBuf,
    key: PathBuf,
}

/// Why there are no certificates.
pub const NO_OPENSSL: &str = "openssl is not installed (apt-get install openssl)";

impl Authority {
    /// True if `openssl` is there; prints a line if not.
    pub fn can_be() -> bool {
        let asked = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
        let is_there = asked.is_ok_and(|status| status.success());
        if !is_there {
            crate::skipped!("{NO_OPENSSL}");
        }
        is_there
    }

    /// Makes an authority, with files `NAME.crt` and `NAME.key` in `dir`.
    ///
    /// # Errors
    /// Those of `openssl`.
    pub fn new(dir: &Path, name: &str) -> io::Result<Self> {
        let (certificate, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        let subject = format!("/CN=authority {name}");
        openssl(
            Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
                .args(["-days", "30", "-subj", &subject, "-keyout"])
                .arg(&key)
                .arg("-out")
                .arg(&certificate),
        )?;
        Ok(Self { certificate, key })
    }

    /// Its own certificate, which clients trust.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Makes a certificate for a server at `names` (`DNS:db.example`, `IP:127.0.0.1`), with files
    /// `server.crt` and `server.key` in `dir`.
    ///
    /// # Errors
    /// Those of `openssl`.
    pub fn issue(&self, dir: &Path, names: &str) -> io::Result<()> {
        let file = |name: &str| dir.join(name);
        openssl(
            Command::new("openssl")
                .args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
                .args(["-subj", "/CN=server", "-addext", &format!("subjectAltName={names}"), "-keyout"])
                .arg(file("server.key"))
                .arg("-out")
                .arg(file("server.csr")),
        )?;
        openssl(
            Command::new("openssl")
                .args(["x509", "-req", "-days", "30", "-copy_extensions", "copy", "-CAcreateserial", "-in"])
                .arg(file("server.csr"))
                .arg("-CA")
                .arg(&self.certificate)
                .arg("-CAkey")
                .arg(&self.key)
                .arg("-out")
                .arg(file("server.crt")),
        )
    }
}

fn openssl(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(())
}
