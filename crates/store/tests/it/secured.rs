//! Secured connections to PostgreSQL: a real server with a certificate, the right authority and a
//! wrong one, the right name and a wrong one, and the effect of each `sslmode`.

use crate::meta_support;
use outrigger_store::meta::Tree;

use std::path::{Path, PathBuf};

use meta_support::{commit, file, paths, writer};
use outrigger_store::meta::{At, Location, Meta as _, PostgresMeta, ROOT_INODE as R};
use outrigger_store::{ErrorKind, Result};
use outrigger_workload::postgres::{Authority, Server};

/// A server at two addresses of this machine, with a certificate that is good for the first one. It
/// takes secured connections only.
struct Secured {
    server: Server,
    named: String,
    unnamed: String,
    /// The authority that has signed the certificate, and another one.
    right: PathBuf,
    wrong: PathBuf,
    _dir: tempfile::TempDir,
}

/// An address of this machine that no other test's process has.
fn address(first: u32) -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{c}", first + u32::from(a) % 64)
}

impl Secured {
    /// `None`, with a message, if PostgreSQL or openssl is missing.
    fn new() -> Option<Self> {
        if !Authority::can_be() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (named, unnamed) = (address(64), address(128));
        let right = Authority::new(dir.path(), "right").unwrap();
        let wrong = Authority::new(dir.path(), "wrong").unwrap();
        let server = Server::start_with(|own: &Path| {
            right.issue(own, &format!("DNS:db.example,IP:{named}"))?;
            let rules = "local all all trust\nhostssl all all 127.0.0.0/8 trust\nhostnossl all all 127.0.0.0/8 reject\n";
            std::fs::write(own.join("hba"), rules)?;
            let own = own.display();
            Ok(format!(
                "listen_addresses = '{named}, {unnamed}'\nssl = on\nssl_cert_file = '{own}/server.crt'\nssl_key_file = '{own}/server.key'\n\
                 hba_file = '{own}/hba'\n"
            ))
        });
        let server = server?;
        let (right, wrong) = (right.certificate().to_owned(), wrong.certificate().to_owned());
        Some(Self { server, named, unnamed, right, wrong, _dir: dir })
    }

    /// With more of the URL's parts.
    fn open(&self, address: &str, more: &str) -> Result<PostgresMeta> {
        let url = self.server.url_by(address, "tester", "store") + more;
        PostgresMeta::open(Location::parse(&url).unwrap(), false)
    }

    #[track_caller]
    fn refuses(&self, address: &str, more: &str, says: &str) {
        let error = self.open(address, more).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_server_is_believed_if_its_certificate_is_for_its_name_and_from_the_authority() {
    let Some(secured) = Secured::new() else { return };
    let Secured { server, named, unnamed, right, wrong, .. } = &secured;
    let (right, wrong) =
        (format!("&sslrootcert={}", right.display()), format!("&sslrootcert={}", wrong.display()));
    // The default is verify-full, as the server's name does not look like this machine.
    let url = server.url_by(named, "tester", "store") + &right;
    let meta = PostgresMeta::create(Location::parse(&url).unwrap(), "a test").unwrap();
    meta.reserve_inodes(9).unwrap();
    commit(&meta, writer(&meta), vec![file(R, "f", 5, 1)], 1).unwrap();
    let secured_by = "SELECT count(*), count(DISTINCT s.version) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                      WHERE a.application_name LIKE 'outrigger%' AND";
    assert_eq!(server.sql(&format!("{secured_by} NOT s.ssl")), "0|0");
    assert_ne!(server.sql(&format!("{secured_by} s.ssl")), "0|0");
    for mode in ["", "&sslmode=verify-full"] {
        let meta = secured.open(named, &format!("{right}{mode}")).unwrap();
        assert_eq!(paths(&meta, At::Now), ["/f"]);
        secured.refuses(named, &format!("{wrong}{mode}"), "certificate");
        // This machine's authorities do not know it.
        secured.refuses(named, mode, "certificate");
        // It is another server's.
        secured.refuses(unnamed, &format!("{right}{mode}"), "not valid for name");
    }
    // Against listeners, not against impostors.
    for mode in ["&sslmode=require", "&sslmode=prefer"] {
        for address in [named, unnamed] {
            let meta = secured.open(address, mode).unwrap();
            assert_eq!(paths(&meta, At::Now), ["/f"]);
        }
    }
    assert_eq!(server.sql(&format!("{secured_by} NOT s.ssl")), "0|0");
    // The server wants it.
    secured.refuses(named, "&sslmode=disable", "no encryption");
    assert_eq!(meta.check().unwrap(), [""; 0]);
    let error = secured.open(named, "&sslrootcert=/nowhere/ca.crt").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("sslrootcert /nowhere/ca.crt"), "{error}");
}

#[test]
fn a_server_without_a_certificate_is_refused_unless_it_is_told_to_be_trusted() {
    let address = address(192);
    let server = Server::start_with(|own: &Path| {
        std::fs::write(own.join("hba"), "local all all trust\nhost all all 127.0.0.0/8 trust\n")?;
        Ok(format!("listen_addresses = '{address}'\nhba_file = '{}/hba'\n", own.display()))
    });
    let Some(server) = server else { return };
    let open = |more: &str| {
        let url = server.url_by(&address, "tester", "store") + more;
        PostgresMeta::create(Location::parse(&url).unwrap(), "a test")
    };
    for mode in ["", "&sslmode=verify-full", "&sslmode=require"] {
        let error = open(mode).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("sslmode=disable"), "{error}");
    }
    drop(open("&sslmode=prefer").unwrap());
    assert_eq!(open("&sslmode=disable").unwrap_err().kind(), ErrorKind::Exists);
}
