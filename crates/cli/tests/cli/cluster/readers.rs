//! The least rights for reading, with packs in a bucket of Ceph's gateway: a role that may select,
//! and a user whose rights in the bucket's policy are those of docs/packs.md.

use outrigger_store::backend::Location;
use outrigger_store::testing::gateway::{ask, keys_of, listing, owner_keys, policy};

use super::ceph;
use crate::copies::World;
use crate::readers::{Reader, rows};

#[test]
#[ignore = "slow: needs a cluster, `make test-cluster`"]
fn who_may_only_read_a_bucket_reads_everything_and_changes_nothing() {
    let Ok(bucket) = std::env::var("OUTRIGGER_TEST_S3") else {
        outrigger_workload::skipped!("OUTRIGGER_TEST_S3 names no gateway (make test-cluster)");
        return;
    };
    let Some(mut world) = World::new() else { return };
    let Ok(Location::S3(mut location)) = Location::parse(&bucket) else { panic!("{bucket}") };
    location.bucket = format!("readers-{}", super::Cluster::fresh().replace('_', "-"));
    location.prefix = "store".into();
    ask("PUT", &location, "", "");
    ask("PUT", &location, "?policy=", &policy(&location));

    world.keys = owner_keys();
    let schema = world.server.fresh();
    let owner = world.server.url(&schema);
    let packs = Location::S3(location.clone()).to_string();
    world.done(&["-s", &owner, "init", "--packs", &packs, "--pack-size", "1M"]);
    world.fill(&owner);
    let about = world.about(&owner);

    world.keys = keys_of("reader");
    let state = || (rows(&world, &schema), listing(&location));
    assert!(state().1.contains(".pack</Key>"), "{}", state().1);
    let reader = Reader::new(&world, &schema);
    reader.reads_everything_and_changes_nothing(&about, &packs, &state);

    // A user whom only the database lets write stores nothing, and the error names the place that
    // refused.
    let before = state().1;
    let large = outrigger_workload::Rng::new(5).bytes(3_000_000);
    world.place.write("large", large);
    for args in [&["put", "large"][..], &["put", "large", "--to", "/tree/large"]] {
        let said = world.code(1, &[&["-s", &owner], args].concat());
        assert!(said.err.to_lowercase().contains("denied"), "{args:?}: {}", said.err);
        assert!(state().1 == before, "{args:?} changed the bucket");
        assert_eq!(world.about(&owner), about, "{args:?}");
    }
    drop(reader);
    world.keys = owner_keys();
    world.done(&["-s", &owner, "check", "--read-data"]);
    ceph("radosgw-admin", &["bucket", "rm", "--bucket", &location.bucket, "--purge-objects"]);
}
