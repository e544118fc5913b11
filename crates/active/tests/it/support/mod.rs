//! A store in a temporary directory, with files, and jobs over them.
#![allow(dead_code, reason = "each suite uses some of it")]

use std::any::Any;
use std::io::Cursor;
use std::sync::Arc;

use outrigger_active::job::Mode;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern;
use outrigger_active::plan::{Splits, submit};
use outrigger_active::progress::Counters;
use outrigger_active::runner::{self, Report, RunOptions};
use outrigger_active::sandbox::Sandbox;
use outrigger_active::trust::Trust;
use outrigger_store::local::put::{PutOptions, Source};
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;
use outrigger_store::{Profile, Result, Store, local};
use tempfile::TempDir;

pub struct Place {
    pub dir: TempDir,
    pub store: Arc<Store>,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Profile::Default.config().unwrap();
        let store = Arc::new(Store::init(&dir.path().join("store"), &config).unwrap());
        Self { dir, store }
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        put(&self.store, path, bytes);
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        read(&self.store, path)
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8(self.get(path).unwrap_or_else(|| panic!("`{path}` is not there"))).unwrap()
    }

    pub fn submit(&self, spec: &Spec, inputs: &[&str], splits: Splits) -> Result<JobId> {
        let inputs: Vec<String> = inputs.iter().map(ToString::to_string).collect();
        submit(&self.store, spec, &inputs, &[], splits)
    }

    pub fn go(&self, job: JobId) -> Result<Report> {
        go(&self.store, job, 2)
    }

    pub fn run(&self, spec: &Spec, inputs: &[&str], splits: Splits) -> Result<Report> {
        self.go(self.submit(spec, inputs, splits)?)
    }

    /// Checks that the store is undamaged.
    pub fn assert_sound(&self) {
        assert_eq!(self.store.meta.check().unwrap(), [""; 0]);
    }
}

pub fn put(store: &Arc<Store>, path: &str, bytes: &[u8]) {
    let target = StorePath::parse(path.as_bytes()).unwrap();
    let source = Source::Stream(Box::new(Cursor::new(bytes.to_vec())));
    let progress = Arc::new(Progress::default());
    local::put::put(store, vec![(source, target)], &PutOptions::default(), 2, &progress).unwrap();
}

pub fn read(store: &Store, path: &str) -> Option<Vec<u8>> {
    let path = StorePath::parse(path.as_bytes()).unwrap();
    let inode = find(&*store.meta, At::Now, &path).unwrap()?;
    let mut bytes = Vec::new();
    let reader = Reader::new(store);
    reader
        .read(&inode.root, 0, u64::MAX, &mut |some| {
            bytes.extend_from_slice(some);
            Ok(())
        })
        .unwrap();
    Some(bytes)
}

pub fn go(store: &Arc<Store>, job: JobId, slots: usize) -> Result<Report> {
    runner::run(store, job, &options(slots), &Arc::new(Counters::default()))
}

pub fn options(slots: usize) -> RunOptions<'static> {
    RunOptions {
        slots,
        threads: 2,
        before_publish: &|| Ok(Box::new(()) as Box<dyn Any>),
        prints: false,
        drain: None,
        leave_rest: false,
        make_way: None,
        idle: false,
        groups: None,
        trust: Arc::new(Trust::own()),
    }
}

/// A job of trusted programs.
pub fn spec(pattern: Pattern, program: &[&str]) -> Spec {
    let mut spec = Spec::new(pattern, program.iter().map(ToString::to_string).collect());
    spec.sandbox = Mode::Off;
    spec.tries = 1;
    spec
}

pub fn lines(spec: Spec) -> Spec {
    Spec { records: Records::parse("lines").unwrap(), ..spec }
}

/// True if this machine can sandbox programs; reports if not.
pub fn can_sandbox() -> bool {
    match Sandbox::find(Mode::Strict) {
        Ok(_) => true,
        Err(error) => {
            outrigger_workload::skipped!("{error}");
            false
        }
    }
}

/// Lines that tell where each came from.
pub fn numbered(count: usize) -> Vec<u8> {
    (0..count).flat_map(|line| format!("{line} {}\n", line * 7919 % 104_729).into_bytes()).collect()
}
