//! A pool and a bucket that take no more.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use super::{Cluster, Site, ceph, wait_until};
use crate::run::noise;

/// Room that a test gives.
const QUOTA: u64 = 24 << 20;
const LEN: usize = 3 << 20;

/// Writes until that fails as it must, reads all files, removes some, and writes again after a call
/// of `make_room`.
fn fill(site: &Site, make_room: impl FnOnce()) {
    let (one, two) = (site.mount("c0"), site.mount("c1"));
    // Usage is counted now and then, so some files go in beyond the quota.
    let mut written = 0;
    let full = loop {
        assert!(written < 100, "{QUOTA} bytes are less than that");
        let name = format!("f{written}");
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(true).open(one.path(&name)).unwrap();
        let done = file.write_all(&noise(written, LEN)).and_then(|()| file.sync_all());
        match done {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(28), "ENOSPC, not {error}; {}", one.said());
                break file;
            }
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    assert!(written > 3, "{written}");
    // The file that did not fit can be read here; those that did are readable everywhere.
    one.must_read(&format!("f{written}"), &noise(written, LEN));
    for number in 0..written {
        two.must_read(&format!("f{number}"), &noise(number, LEN));
    }
    two.done(&["status"]);
    two.done(&["check"]);
    // Names and small files need no packs at once.
    fs::create_dir(one.path("dir")).unwrap();
    two.synced("small", b"small").unwrap();
    fs::remove_file(two.path("f0")).unwrap();
    assert!(!one.path("f0").exists());
    let error = full.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28), "{error}");
    make_room();
    wait_until("there is room", || full.sync_all().is_ok());
    drop(full);
    two.must_read(&format!("f{written}"), &noise(written, LEN));
    two.synced("after", &noise(77, LEN)).unwrap();
    one.must_read("after", &noise(77, LEN));
    for number in 1..written {
        one.must_read(&format!("f{number}"), &noise(number, LEN));
    }
    one.must_read("small", b"small");
    two.done(&["gc"]);
    site.check(&two);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_full_pool_is_told_to_who_writes_and_goes_on_when_there_is_room() {
    let Some(cluster) = Cluster::here() else { return };
    let pool = format!("full-{}", std::process::id());
    ceph("ceph", &["osd", "pool", "create", &pool, "4"]);
    ceph("ceph", &["osd", "pool", "application", "enable", &pool, "outrigger"]);
    let site = cluster.store(&cluster.pool.replacen("packs", &pool, 1));
    ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", &QUOTA.to_string()]);
    fill(&site, || {
        ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "0"]);
    });
    ceph("ceph", &["osd", "pool", "delete", &pool, &pool, "--yes-i-really-really-mean-it"]);
}

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn a_full_bucket_is_told_to_who_writes_and_goes_on_when_there_is_room() {
    let Some(cluster) = Cluster::here() else { return };
    let bucket = format!("full-{}", std::process::id());
    let url = cluster.bucket.replacen("packs", &bucket, 1);
    let endpoint = url.split("endpoint=").nth(1).unwrap().split('&').next().unwrap();
    let variable = |name: &str| std::env::var(name).unwrap();
    let keys = format!("{}:{}", variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
    let made = Command::new("curl")
        .args(["-fsS", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &keys, "-X", "PUT"])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", &format!("{endpoint}/{bucket}")])
        .status();
    assert!(made.unwrap().success());
    let site = cluster.store(&url);
    let quota = |more: &[&str]| {
        ceph(
            "radosgw-admin",
            &[&["quota"], more, &["--quota-scope", "bucket", "--bucket", &bucket]].concat(),
        );
    };
    quota(&["set", "--max-size", &QUOTA.to_string()]);
    quota(&["enable"]);
    fill(&site, || quota(&["disable"]));
    ceph("radosgw-admin", &["bucket", "rm", "--bucket", &bucket, "--purge-objects"]);
}
