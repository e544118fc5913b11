//! A store in PostgreSQL, from the command line, as in production: TLS, passwords from a file, and
//! PgBouncer in between.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use outrigger_workload::postgres::{Authority, Pooler, Server};
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use crate::run::{Place, Said};
use crate::shared::{Host, command};

fn run(place: &Place, url: &str, args: &[&str], environment: &[(&str, &str)]) -> Said {
    let mut command = command(place, url, args);
    command.env_remove("PGPASSWORD").env_remove("PGPASSFILE").envs(environment.iter().copied());
    command.output().unwrap().into()
}

#[track_caller]
fn done(place: &Place, url: &str, args: &[&str], environment: &[(&str, &str)]) {
    let said = run(place, url, args, environment);
    assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
}

/// A tree goes in, and comes out the same.
fn there_and_back(place: &Place, url: &str, environment: &[(&str, &str)]) {
    let tree = place.path("tree");
    source_tree(&tree, &TreeOptions::new(3, 80)).unwrap();
    let packs = format!("file:{}", place.path("packs").display());
    done(place, url, &["init", "--packs", &packs], environment);
    done(place, url, &["put", tree.to_str().unwrap()], environment);
    done(place, url, &["get", "tree", place.path("out").to_str().unwrap()], environment);
    assert_eq!(compare_trees(&tree, &place.path("out")).unwrap(), []);
    done(place, url, &["check", "--read-data"], environment);
}

#[test]
fn a_password_comes_from_its_file_over_a_connection_that_is_secured() {
    if !Authority::can_be() {
        return;
    }
    let place = Place::empty();
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{b}.{c}", 64 + u32::from(a) % 64);
    let authority = Authority::new(&place.path(""), "authority").unwrap();
    let server = Server::start_with(|own: &Path| {
        authority.issue(own, &format!("IP:{address}"))?;
        fs::write(own.join("hba"), "local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n")?;
        let own = own.display();
        Ok(format!(
            "listen_addresses = '{address}'\nssl = on\nssl_cert_file = '{own}/server.crt'\nssl_key_file = '{own}/server.key'\nhba_file = '{own}/hba'\n"
        ))
    });
    let Some(server) = server else { return };
    server.sql("CREATE ROLE keeper LOGIN PASSWORD 'not in a URL'");
    server.sql("GRANT CREATE ON DATABASE postgres TO keeper");
    let url = server.url_by(&address, "keeper", "store");
    let url = format!("{url}&sslrootcert={}", authority.certificate().display());
    // No password was given.
    let home = place.path("");
    let home = [("HOME", home.to_str().unwrap())];
    let said = run(&place, &url, &["ls"], &home);
    assert!(said.code == 1 && said.err.contains("~/.pgpass"), "{}", said.err);
    // A file that other users can read is ignored.
    let file = place.write(
        ".pgpass",
        format!("# by hand\nother:5432:*:keeper:wrong\n{address}:*:postgres:keeper:not in a URL\n"),
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let said = run(&place, &url, &["ls"], &home);
    assert!(said.code == 1 && said.err.contains("chmod 600"), "{}", said.err);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    there_and_back(&place, &url, &home);
    // Another file, the environment, and a wrong one.
    let elsewhere = place.path("passwords");
    fs::rename(&file, &elsewhere).unwrap();
    done(&place, &url, &["ls"], &[("PGPASSFILE", elsewhere.to_str().unwrap())]);
    done(&place, &url, &["ls"], &[("PGPASSWORD", "not in a URL")]);
    let said = run(&place, &url, &["ls"], &[("PGPASSWORD", "a guess")]);
    assert!(said.code == 1 && said.err.contains("password authentication failed"), "{}", said.err);
    assert!(!said.err.contains("a guess"), "{}", said.err);
    // An impostor does not get the password.
    let impostor = Authority::new(&place.path(""), "impostor").unwrap();
    let other = server.url_by(&address, "keeper", "store");
    let other = format!("{other}&sslrootcert={}", impostor.certificate().display());
    let said = run(&place, &other, &["ls"], &[("PGPASSWORD", "not in a URL")]);
    assert!(said.code == 1 && said.err.contains("certificate"), "{}", said.err);
}

#[test]
fn commands_and_mounts_work_through_pgbouncer() {
    let Some(pooler) = Pooler::shared() else { return };
    let server = Server::shared().unwrap();
    let (place, schema) = (Place::empty(), server.fresh());
    let url = pooler.url(&schema);
    there_and_back(&place, &url, &[]);
    for args in [
        &["snapshot", "create", "s"][..],
        &["mv", "tree", "moved"],
        &["snapshot", "list"],
        &["status"],
        &["gc"],
    ] {
        done(&place, &url, args, &[]);
    }
    let copied = pooler.url(&server.fresh());
    let packs = format!("file:{}", place.path("copied").display());
    done(&place, &url, &["copy", &url, &copied, "--packs", &packs], &[]);
    done(&place, &copied, &["check", "--read-data"], &[]);
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        outrigger_workload::skipped!("mounts, as /dev/fuse cannot be opened: {error}");
        return;
    }
    // Each host has more connections than PgBouncer has server processes.
    let hosts = [Host::new(url.clone(), &[]), Host::new(url.clone(), &[])];
    let tree = place.path("tree");
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            let to = host.path(&format!("copy{number}"));
            let tree = &tree;
            scope.spawn(move || {
                assert!(Command::new("cp").arg("-a").arg(tree).arg(to).status().unwrap().success())
            });
        }
    });
    for number in 0..2 {
        assert_eq!(compare_trees(&tree, &hosts[1 - number].path(&format!("copy{number}"))).unwrap(), []);
    }
    assert_eq!(compare_trees(&tree, &hosts[0].path(".snapshots/s/tree")).unwrap(), []);
    for mut host in hosts {
        host.done(&["unmount", "mnt"]);
        assert!(host.child.wait().unwrap().success());
        assert_eq!(host.said(), "");
    }
    done(&place, &url, &["check", "--read-data"], &[]);
    assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.session")), "0");
}
