//! Mounted file systems in turn, at typical operations on a source tree.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_workload::{Rng, TreeOptions, source_tree};

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::mounted::{Mount, is_mounted, needs, run};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

const OPERATIONS: [&str; 5] =
    ["unpacking a tree", "listing it", "reading it", "writing here and there", "removing it"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum System {
    Below,
    Ours,
    Btrfs,
    OursOverS3,
    S3fs,
    Rclone,
}

impl System {
    const LOCAL: [System; 3] = [Self::Below, Self::Ours, Self::Btrfs];
    const BUCKET: [System; 4] = [Self::Below, Self::OursOverS3, Self::S3fs, Self::Rclone];

    fn name(self) -> &'static str {
        match self {
            Self::Below => "the file system below",
            Self::Ours => "outrigger",
            Self::Btrfs => "btrfs, zstd:1",
            Self::OursOverS3 => "outrigger, packs on S3",
            Self::S3fs => "s3fs",
            Self::Rclone => "rclone mount",
        }
    }
}

/// A bucket and its endpoint, from `OUTRIGGER_TEST_S3` (`scripts/cluster.sh env` prints it).
struct Bucket {
    url: String,
    name: String,
    query: String,
    endpoint: String,
}

impl Bucket {
    fn given() -> Result<Self, Failed> {
        let missing =
            || Failed::Missing("OUTRIGGER_TEST_S3 names no bucket (`make cluster` makes one)".into());
        let whole = std::env::var("OUTRIGGER_TEST_S3").map_err(|_| missing())?;
        let (url, query) = whole.split_once('?').ok_or_else(missing)?;
        let endpoint =
            query.split('&').find_map(|part| part.strip_prefix("endpoint=")).ok_or_else(missing)?;
        let name = url.strip_prefix("s3://").and_then(|path| path.split('/').next()).ok_or_else(missing)?;
        Ok(Self {
            name: name.into(),
            endpoint: endpoint.into(),
            url: url.trim_end_matches('/').into(),
            query: query.into(),
        })
    }
}

/// A mounted file system, which is unmounted when dropped.
struct Mounted {
    /// Where to work.
    dir: PathBuf,
    ours: Option<Mount>,
    /// Where another file system is mounted.
    other: Option<PathBuf>,
}

impl Mounted {
    fn new(lab: &Lab, system: System, room: &Path) -> Result<Self, Failed> {
        let point = room.join("mount");
        // A new name, so that objects of earlier rounds are not found again.
        let fresh = room.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ours = |mount: Mount| Self { dir: mount.point.clone(), ours: Some(mount), other: None };
        match system {
            System::Below => {
                std::fs::create_dir(&point)?;
                return Ok(Self { dir: point, ours: None, other: None });
            }
            System::Ours => return Mount::new(lab, room, &[]).map(ours),
            System::OursOverS3 => {
                let bucket = Bucket::given()?;
                let packs = format!("{}/{fresh}?{}", bucket.url, bucket.query);
                return Mount::new(lab, room, &["--packs", &packs]).map(ours);
            }
            System::Btrfs => {
                needs("mkfs.btrfs", "btrfs-progs")?;
                std::fs::create_dir(&point)?;
                let image = room.join("image");
                File::create(&image)?.set_len(16 << 30)?;
                run(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
                run(Command::new("mount").args(["-o", "loop,compress=zstd:1"]).args([&image, &point]))
                    .map_err(|error| {
                        Failed::Missing(format!("btrfs cannot be mounted from a file here: {error}"))
                    })?;
            }
            System::S3fs => {
                needs("s3fs", "s3fs")?;
                let bucket = Bucket::given()?;
                std::fs::create_dir(&point)?;
                // s3fs takes its keys from the same environment variables.
                let options = format!("url={},use_path_request_style", bucket.endpoint);
                run(Command::new("s3fs").arg(&bucket.name).arg(&point).args(["-o", &options]))?;
            }
            System::Rclone => {
                needs("rclone", "rclone")?;
                let bucket = Bucket::given()?;
                std::fs::create_dir(&point)?;
                run(Command::new("rclone")
                    .args(["mount", "--daemon", "--vfs-cache-mode", "writes", "--vfs-write-back", "0s"])
                    .arg(format!("peer:{}/rclone-{fresh}", bucket.name))
                    .arg(&point)
                    // With its own certificate authority in the environment rclone does not start.
                    .env_remove("AWS_CA_BUNDLE")
                    .envs([
                        ("RCLONE_CONFIG_PEER_TYPE", "s3"),
                        ("RCLONE_CONFIG_PEER_PROVIDER", "Ceph"),
                        ("RCLONE_CONFIG_PEER_ENV_AUTH", "true"),
                        ("RCLONE_CONFIG_PEER_ENDPOINT", &bucket.endpoint),
                    ])
                    .stdout(Stdio::null()))?;
            }
        }
        let until = Instant::now() + Duration::from_secs(20);
        while !is_mounted(&point) {
            check(Instant::now() < until, format!("{} was not mounted", system.name()))?;
            std::thread::sleep(Duration::from_millis(10));
        }
        // A new directory, because buckets outlive mounts.
        let mounted = Self { dir: point.join(fresh), ours: None, other: Some(point) };
        std::fs::create_dir_all(&mounted.dir)?;
        Ok(mounted)
    }

    fn end(mut self) -> Result<(), Failed> {
        self.ours.take().map_or(Ok(()), |mount| mount.end().map(drop))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(point) = &self.other {
            let _ = std::fs::remove_dir_all(&self.dir);
            let _ = Command::new("umount").arg(point).status();
        }
    }
}

/// The tree that is unpacked, and the amount of random writes.
struct Work<'a> {
    tree: &'a Path,
    tar: &'a Path,
    files: usize,
    bytes: u64,
    writes: u64,
}

/// Seconds of each operation.
fn measure(dir: &Path, work: &Work<'_>) -> Result<[f64; 5], Failed> {
    let timed = |run: &mut dyn FnMut() -> Result<(), Failed>| -> Result<f64, Failed> {
        let begun = Instant::now();
        run()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let tree = dir.join("tree");
    std::fs::create_dir(&tree)?;
    let flush = || run(Command::new("sync").arg("-f").arg(dir)).map(drop);
    let unpack = timed(&mut || {
        run(Command::new("tar").arg("xf").arg(work.tar).arg("-C").arg(&tree))?;
        flush()
    })?;
    let list = timed(&mut || run(Command::new("find").arg(&tree).args(["-size", "+1"])).map(drop))?;
    // Through a pipe, because tar does not read files that it archives to /dev/null.
    let read =
        timed(&mut || run(Command::new("sh").args(["-c", "tar cf - \"$0\" | wc -c"]).arg(&tree)).map(drop))?;
    run(Command::new("diff").args(["-rq", "--no-dereference"]).arg(work.tree).arg(&tree))?;
    let big = dir.join("big");
    let mut rng = Rng::new(3);
    let mut noise = vec![0; 1 << 20];
    let file = File::options().read(true).write(true).create_new(true).open(&big)?;
    for at in 0..work.bytes >> 20 {
        rng.fill(&mut noise);
        file.write_all_at(&noise, at << 20)?;
    }
    file.sync_all()?;
    let blocks: Vec<(u64, [u8; 4096])> = (0..work.writes)
        .map(|_| {
            let mut block = [0; 4096];
            rng.fill(&mut block);
            (rng.below(work.bytes / 4096) * 4096, block)
        })
        .collect();
    let write = timed(&mut || {
        for (at, block) in &blocks {
            file.write_all_at(block, *at)?;
        }
        Ok(file.sync_all()?)
    })?;
    let last: std::collections::HashMap<_, _> = blocks.iter().map(|(at, block)| (at, block)).collect();
    let mut found = [0; 4096];
    for (&at, &block) in last {
        file.read_exact_at(&mut found, at)?;
        check(found == block, format!("byte {at} is not what was written"))?;
    }
    drop(file);
    let remove = timed(&mut || {
        std::fs::remove_dir_all(&tree)?;
        flush()
    })?;
    Ok([unpack, list, read, write, remove])
}

/// Local file systems.
pub fn side_by_side(lab: &Lab) -> Result<Outcome, Failed> {
    let files = lab.scale.pick(60, 2_000, 20_000);
    let (bytes, writes) = lab.scale.pick((1 << 20, 20), (32 << 20, 1_000), (256 << 20, 20_000));
    let pairs = [(System::Btrfs, System::Ours)];
    compare(lab, &System::LOCAL, &pairs, files, bytes, writes)
}

/// File systems over a bucket. s3fs creates about eight files a second, so the trees are small.
pub fn over_a_bucket(lab: &Lab) -> Result<Outcome, Failed> {
    Bucket::given()?;
    let files = lab.scale.pick(20, 150, 1_000);
    let (bytes, writes) = lab.scale.pick((1 << 20, 20), (16 << 20, 500), (64 << 20, 5_000));
    let pairs = [(System::S3fs, System::OursOverS3), (System::Rclone, System::OursOverS3)];
    let mut outcome = compare(lab, &System::BUCKET, &pairs, files, bytes, writes)?;
    outcome.note(
        "What has been acknowledged differs: s3fs has uploaded, rclone and a store in a directory with its packs in a bucket upload behind, from a cache and from the store's own staging, \
         which a loss of power does not touch. `beyond-cluster` counts until all is in the bucket, for a store whose metadata are in PostgreSQL.",
    );
    Ok(outcome)
}

/// The file systems take turns, so that a machine that becomes slower slows all of them.
fn compare(
    lab: &Lab,
    all: &[System],
    pairs: &[(System, System)],
    files: usize,
    bytes: u64,
    writes: u64,
) -> Result<Outcome, Failed> {
    let room = lab.room()?;
    let (tree, tar) = (room.path().join("tree"), room.path().join("tree.tar"));
    source_tree(&tree, &TreeOptions::new(7, files as u64))?;
    run(Command::new("tar").arg("cf").arg(&tar).arg("-C").arg(&tree).arg("."))?;
    let work = Work { tree: &tree, tar: &tar, files, bytes, writes };
    let mut outcome = Outcome::default();
    let mut systems: Vec<(System, [Vec<f64>; 5])> =
        all.iter().map(|system| (*system, Default::default())).collect();
    for _ in 0..lab.scale.pick(1, 3, 3) {
        let mut there = Vec::new();
        for (system, mut times) in systems {
            let room = lab.room()?;
            let mounted = match Mounted::new(lab, system, room.path()) {
                Err(Failed::Missing(why)) if system != System::Ours => {
                    outcome.note(format!("Left out: {} ({why}).", system.name()));
                    continue;
                }
                mounted => mounted?,
            };
            let measured = measure(&mounted.dir, &work)?;
            times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
            mounted.end()?;
            there.push((system, times));
        }
        systems = there;
    }
    let mut series = Vec::new();
    for (system, times) in systems {
        let mut line = Series::measured(system.name());
        times.into_iter().enumerate().for_each(|(at, times)| line.push(at as f64, Spread::of(times)));
        series.push(line);
    }
    let find = |name: &str, at: usize| {
        series.iter().find(|line: &&Series| line.name == name).map(|line| line.points[at].y)
    };
    for (peer, own) in pairs {
        for at in [0, 3] {
            if let (Some(theirs), Some(ours)) = (find(peer.name(), at), find(own.name(), at)) {
                let what = format!("{}: {}'s time over {}'s", OPERATIONS[at], peer.name(), own.name());
                outcome.find(what, theirs / ours, "x", None);
            }
        }
    }
    let floor = find(System::Below.name(), 0).unwrap_or(0.0);
    outcome.plots.push(Plot {
        title: format!("A tree of {} files, and {writes} writes of 4 KiB", work.files),
        form: Form::Bars,
        x: Axis::of("operation", OPERATIONS),
        y: Axis::log("time", "s"),
        series,
        limits: vec![Limit { name: "unpacking on the file system below".into(), y: floor }],
    });
    outcome.note(
        "A new file system for each round. Unpacking and removing end with `sync -f`, writing here and there with fsync. Reading finds what was just written in the machine's page cache.",
    );
    Ok(outcome)
}
