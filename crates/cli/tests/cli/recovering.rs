//! A store in PostgreSQL whose database is lost, damaged or stale: it is rebuilt from its packs
//! alone, on every engine.

use std::process::Stdio;
use std::time::Duration;

use outrigger_store::testing::s3::HttpFault;

use crate::copies::World;
use crate::run::noise;

fn schema(url: &str) -> &str {
    url.rsplit_once("schema=").unwrap().1
}

#[test]
fn a_lost_database_comes_back_from_its_packs() {
    let Some(world) = World::new() else { return };
    for packs in [world.s3_at("lost"), world.dir_at("lost")] {
        let url = world.url();
        world.done(&["-s", &url, "init", "--packs", &packs, "--pack-size", "1M"]);
        world.fill(&url);
        let about = world.about(&url);
        let name = schema(&url);
        world.server.sql(&format!("DROP SCHEMA {name} CASCADE"));
        let said = world.code(1, &["-s", &url, "ls"]);
        assert!(said.err.contains("recover --packs"), "{}", said.err);
        let said = world.code(1, &["-s", &url, "recover", "--anyway"]);
        assert!(said.err.contains("recover --packs"), "{}", said.err);
        // A new store cannot take its place.
        world.code(1, &["-s", &url, "init", "--packs", &packs]);
        let report = world.done(&["-s", &url, "recover", "--packs", &packs, "--json"]).json();
        assert!(report["snapshots"] == 1 && report["old_database"].is_null(), "{report}");
        assert_eq!(world.about(&url), about);
        world.holds(&url, &["--at", "one", "/tree"], &world.place.path("first"));
        world.done(&["-s", &url, "check", "--read-data"]);
        // It can be written, collected, and read from another host.
        world.place.write("new", noise(5, 300_000));
        world.done(&["-s", &url, "put", "new"]);
        world.done(&["-s", &url, "rm", "-r", "/tree"]);
        world.done(&["-s", &url, "gc"]);
        assert_eq!(world.done(&["-s", &url, "cat", "new"]).out, noise(5, 300_000));
        let mut other = world.command(&["-s", &url, "cat", "new"]);
        let said = other.env("OUTRIGGER_CACHE", world.place.path("other")).output().unwrap();
        assert_eq!(said.stdout, noise(5, 300_000));
        world.done(&["-s", &url, "check", "--read-data"]);
    }
}

#[test]
fn what_is_there_is_set_aside_and_what_is_in_use_is_refused() {
    let Some(world) = World::new() else { return };
    let url = world.url();
    let name = schema(&url);
    world.done(&["-s", &url, "init", "--packs", &world.s3_at("aside"), "--pack-size", "1M"]);
    world.fill(&url);
    let about = world.about(&url);
    let files = world.server.sql(&format!("SELECT count(*) FROM {name}.inode"));
    // A client is there, on another host.
    let session = format!(
        "{name}.session VALUES (1000000, 0, 60, 0, 9000000000000000000, 'x', 'host', 1, '\"mount\"')"
    );
    world.server.sql(&format!("INSERT INTO {session}"));
    let said = world.code(1, &["-s", &url, "recover", "--anyway"]);
    assert!(said.err.contains("in use") && said.err.contains("mount on host, process 1"), "{}", said.err);
    world.server.sql(&format!("DELETE FROM {name}.session"));
    // Tables are missing.
    world.server.sql(&format!("DROP TABLE {name}.dentry CASCADE"));
    assert_ne!(world.run(&["-s", &url, "ls"]).code, 0);
    let report = world.done(&["-s", &url, "recover", "--anyway", "--json"]).json();
    let aside = report["old_database"].as_str().unwrap().to_string();
    assert!(aside.starts_with(&format!("{name}_damaged_")), "{report}");
    assert_eq!(world.server.sql(&format!("SELECT count(*) FROM {aside}.inode")), files);
    assert_eq!(world.about(&url), about);
    // A whole database is not replaced by mistake, because it may know more than the packs. With
    // `--anyway` it is kept aside.
    let said = world.code(1, &["-s", &url, "recover"]);
    assert!(said.err.contains("can be opened") && said.err.contains("--anyway"), "{}", said.err);
    assert_eq!(world.about(&url), about);
    let said = world.done(&["-s", &url, "recover", "--anyway"]);
    assert!(said.text().contains("the old database is now"), "{}", said.text());
    assert_eq!(world.about(&url), about);
    let schemas = format!("SELECT count(*) FROM pg_namespace WHERE nspname LIKE '{name}\\_%'");
    assert_eq!(world.server.sql(&schemas), "2");
    // Another store's packs, and somebody else's schema.
    let other = world.url();
    world.done(&["-s", &other, "init", "--packs", &world.dir_at("other")]);
    let said = world.code(1, &["-s", &url, "recover", "--packs", &world.dir_at("other")]);
    assert!(said.err.contains("another store"), "{}", said.err);
    let foreign = world.url();
    world.server.sql(&format!("CREATE SCHEMA {0}; CREATE TABLE {0}.theirs (a int)", schema(&foreign)));
    let said = world.code(1, &["-s", &foreign, "recover", "--packs", &world.s3_at("aside")]);
    assert!(said.err.contains("no store's"), "{}", said.err);
    world.done(&["-s", &url, "check", "--read-data"]);
}

/// A restored database is older than the packs: nothing is collected, and `recover` merges both
/// histories.
#[test]
fn an_old_backup_is_noticed_and_mended() {
    let Some(world) = World::new() else { return };
    let url = world.url();
    let name = schema(&url);
    world.done(&["-s", &url, "init", "--packs", &world.s3_at("old"), "--pack-size", "1M"]);
    world.fill(&url);
    // A copy of every table, to be put back later.
    let tables = world.server.sql(&format!("SELECT tablename FROM pg_tables WHERE schemaname = '{name}'"));
    world.server.sql(&format!("CREATE SCHEMA kept_{name}"));
    for table in tables.lines() {
        world.server.sql(&format!("CREATE TABLE kept_{name}.{table} AS SELECT * FROM {name}.{table}"));
    }
    world.place.write("newer", noise(50, 500_000));
    world.done(&["-s", &url, "put", "newer"]);
    let about = world.about(&url);
    for table in tables.lines() {
        let put_back =
            format!("INSERT INTO {name}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM kept_{name}.{table}");
        world.server.sql(&format!("TRUNCATE {name}.{table}; {put_back}"));
    }
    for command in [&["gc"][..], &["copy", &url, "copied"]] {
        let args = if command[0] == "gc" { vec!["-s", &url, "gc"] } else { command.to_vec() };
        let said = world.code(3, &args);
        assert!(said.err.contains("recover`"), "{}", said.err);
    }
    world.done(&["-s", &url, "recover", "--anyway"]);
    assert_eq!(world.about(&url), about);
    assert_eq!(world.done(&["-s", &url, "cat", "newer"]).out, noise(50, 500_000));
    world.done(&["-s", &url, "gc"]);
    world.done(&["-s", &url, "check", "--read-data"]);
}

/// A killed recovery has changed nothing, and is begun again at once. Undamaged parts of a torn
/// pack are kept.
#[test]
fn an_interrupted_recovery_changes_nothing() {
    let Some(world) = World::new() else { return };
    let url = world.url();
    let name = schema(&url);
    world.done(&["-s", &url, "init", "--packs", &world.s3_at("cut"), "--pack-size", "1M"]);
    world.fill(&url);
    let about = world.about(&url);
    world.s3.fault("GET", 1..=100_000, HttpFault::Late(30));
    for round in 1..6 {
        let mut command = world.command(&["-s", &url, "recover", "--anyway"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(world.server.sql(&format!("SELECT count(*) FROM {name}.about")), "1");
    }
    world.s3.heal();
    assert_eq!(world.about(&url), about);
    world.done(&["-s", &url, "recover", "--anyway"]);
    assert_eq!(world.about(&url), about);
    let left = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{name}_recovering'");
    assert_eq!(world.server.sql(&left), "0");
    world.done(&["-s", &url, "check", "--read-data"]);
}
