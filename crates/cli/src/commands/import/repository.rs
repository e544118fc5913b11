//! Import of a repository, snapshot after snapshot.

use std::collections::HashSet;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use jiff::tz::TimeZone;
use outrigger_clock::Instant;
use outrigger_store::Store;
use outrigger_store::local::put::claim;
use outrigger_store::ops::snapshots::create_at;
use outrigger_store::policy::Origin;
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::snapshot::facts::{Counts, Facts, Imported};
use outrigger_store::text::show;
use outrigger_store::tree::StorePath;
use outrigger_store::write::Progress;
use serde_json::Value;

use super::super::{Context, before, complain_of_packs, offload, report_skipped, skipped_json, snapshot};
use super::ImportArgs;
use super::checked::Checked;
use super::child::start;
use super::plan::{State, nanos, select, states, tags};
use super::tool::{Original, Tool};
use crate::args;
use crate::exit::{Failure, Outcome};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{counted, local, print_json, print_text, size};
use crate::progress::{Bar, Total, duration};
use crate::tar::{Archive, Digests, Import, Mirror, TarError, import};
use crate::when;

/// A snapshot that was imported.
struct Done {
    /// The snapshot of the store.
    name: String,
    tags: Vec<String>,
    files: u64,
    bytes: u64,
}

/// The import of one repository.
struct Run<'a> {
    context: &'a Context,
    args: &'a ImportArgs,
    tool: &'a dyn Tool,
    store: &'a Store,
    to: &'a StorePath,
    repository: &'a str,
    progress: &'a Arc<Progress>,
    digests: Digests,
    named: HashSet<String>,
    counts: Counts,
}

pub fn run(context: &Context, args: &ImportArgs, tool: &dyn Tool) -> Outcome {
    let started = Instant::now();
    let to = args::store_path(&args.to)?;
    // A repository that cannot be read is refused before the store is opened.
    let (repository, originals) = tool.contents()?;
    let originals = select(originals, &args.snapshot, args.host.as_deref())?;
    let store = context.open_for_commits()?;
    when::check_new(&store, None, &args.tag)?;
    let rows = store.meta.snapshots()?;
    let states = states(&rows, (tool.name(), &repository), &to, &originals, !args.snapshot.is_empty());
    let all: Vec<(Original, State)> = originals.into_iter().zip(states).collect();
    offload::use_devices(context, &store, &args.offload)?;
    let advice = "snapshots that were imported are kept; run the same command again to continue";
    let progress = context.progress(&store, advice);
    let sources = vec![args.file.as_bytes().to_vec()];
    let before = args.before.snapshot(&store, "import", sources, std::slice::from_ref(&to))?;
    if all.iter().any(|(_, state)| *state == State::Due) {
        let origin = Origin::of_repository(tool.name(), &repository);
        claim(&store, origin, &to, args.replace_source, &progress)?;
    }
    let mut run = Run {
        context,
        args,
        tool,
        store: &store,
        to: &to,
        repository: &repository,
        progress: &progress,
        digests: Digests::default(),
        named: HashSet::new(),
        counts: Counts::default(),
    };
    let (done, failed) = run.all(&all, before.as_ref());
    let before = before::settle(&store, before.as_deref(), run.counts);
    context.settle(&store);
    offload::remember(&store);
    offload::complain_of_devices(&store, &progress);
    complain_of_packs(&store);
    run.say(&all, &done, before, started.elapsed().as_secs_f64())?;
    let exit = report_skipped(&progress);
    failed.map_or(Ok(exit), Err)
}

impl Run<'_> {
    /// Imports those that are due, until one fails.
    fn all(
        &mut self,
        all: &[(Original, State)],
        before: Option<&Arc<BeforeSnapshot>>,
    ) -> (Vec<Done>, Option<Failure>) {
        let mut done = Vec::new();
        for (original, _) in all.iter().filter(|(_, state)| *state == State::Due) {
            // The later ones replace what the first ones brought, which their snapshots have.
            let one = self.one(original, before.filter(|_| done.is_empty()));
            let one = one.and_then(|one| self.tell(original, &one).map(|()| one));
            match one {
                Ok(one) => done.push(one),
                Err(mut failure) => {
                    if !failure.message.is_empty() {
                        failure.message =
                            format!("snapshot {} was not imported: {}", original.name, failure.message);
                    }
                    return (done, Some(failure));
                }
            }
        }
        (done, None)
    }

    fn one(&mut self, original: &Original, before: Option<&Arc<BeforeSnapshot>>) -> Result<Done, Failure> {
        let what = |does: &str| format!("{} {does} of {}", self.tool.name(), original.name);
        let (dump, archive) = start(&mut self.tool.dump(original)?, what("export"))?;
        let list = start(&mut self.tool.list(original), what("list"))?;
        let mut check = Checked::new(self.tool, dump, list, self.progress, &mut self.named);
        let bar = Bar::start(self.progress, self.context.has_no_bar(), Total::default(), true);
        let mut archive = Archive::new(BufReader::with_capacity(1 << 20, archive));
        let first = match archive.next() {
            Ok(first) => first,
            Err(error) => {
                drop((archive, bar));
                return Err(broken(&mut check, &error));
            }
        };
        let (progress, threads) = (self.progress, self.context.threads);
        let mirror = Mirror { check: &mut check, digests: &mut self.digests, claimed: HashSet::new() };
        let how = Import { to: self.to, threads, progress, before, mirror: Some(mirror) };
        let imported = import(self.store, archive, first, how);
        drop(bar);
        let imported = imported?;
        let counts = Counts::from(imported.summary.totals);
        self.counts.created += counts.created;
        self.counts.changed += counts.changed;
        self.counts.removed += counts.removed;
        if let Some(error) = imported.broken {
            return Err(broken(&mut check, &error));
        }
        let (files, bytes) = (check.files, check.bytes);
        let tags = tags(self.store, &self.args.tag, original);
        let facts = Facts {
            host: original.host.clone(),
            command: Some("import".to_string()),
            sources: original.sources.clone(),
            targets: vec![self.to.clone()],
            imported: Some(Imported {
                tool: self.tool.name().to_string(),
                repository: self.repository.to_string(),
                snapshot: original.id.clone(),
            }),
            tags: tags.clone(),
            ..Facts::default()
        };
        let name = snapshot::name_of(&original.time.to_zoned(TimeZone::system()));
        let row = create_at(self.store, None, &name, facts, nanos(original))?;
        Ok(Done { name: row.name, tags, files, bytes })
    }

    /// Says that a snapshot was imported, at once, as the next may take an hour.
    fn tell(&self, original: &Original, done: &Done) -> Result<(), Failure> {
        if self.context.json || self.context.quiet {
            return Ok(());
        }
        let time = local(outrigger_format::catalogue::Time::from_nanos(nanos(original)));
        print_text(&format!(
            "{}  {time}  {}, {}: snapshot {}\n",
            show(original.name.as_bytes()),
            counted(done.files, "file", "files"),
            size(done.bytes),
            done.name
        ))
    }

    fn say(
        &self,
        all: &[(Original, State)],
        done: &[Done],
        before: Option<String>,
        secs: f64,
    ) -> Result<(), Failure> {
        let view = self.progress.view();
        let of = |state: State| all.iter().filter(|(_, one)| *one == state).count() as u64;
        if self.context.json {
            let object = Object::new()
                .with("tool", self.tool.name())
                .with("repository", self.repository)
                .with("snapshots", list(all, done))
                .with("bytes_new", view.bytes_new)
                .with("bytes_stored", view.bytes_stored)
                .with("seconds", secs)
                .with("snapshot_before", before)
                .with("skipped", skipped_json(self.progress))
                .with("devices", offload::json(self.store))
                .with("table_cache", offload::json_of_table_cache(self.store));
            return print_json(object);
        }
        if self.context.quiet {
            return Ok(());
        }
        let mut text = format!(
            "{} in {}: {} new, {} stored",
            counted(done.len() as u64, "snapshot", "snapshots"),
            duration(secs),
            size(view.bytes_new),
            size(view.bytes_stored),
        );
        if of(State::Present) > 0 {
            text += &format!("; {} there already", of(State::Present));
        }
        if of(State::Older) > 0 {
            text += &format!(
                "; {} older than the newest that was imported, which --snapshot ID imports",
                of(State::Older)
            );
        }
        print_text(&format!("{text}{}\n", before::hint(self.store, before.as_deref())))?;
        print_text(&offload::told(self.store))
    }
}

/// Why an archive broke off: its program knows best.
fn broken(check: &mut Checked<'_>, error: &TarError) -> Failure {
    Failure::failed(check.own_failure().unwrap_or_else(|| match error {
        TarError::Io(error) => format!("cannot read its archive: {}", crate::exit::plain(error)),
        TarError::Format(why) => why.clone(),
    }))
}

/// All snapshots of the repository, with what became of each.
fn list(all: &[(Original, State)], done: &[Done]) -> Vec<Value> {
    let (mut done, mut has_failed) = (done.iter(), false);
    let one = |(original, state): &(Original, State)| {
        let imported = if *state == State::Due { done.next() } else { None };
        let state = match (state, imported) {
            (State::Present, _) => "present",
            (State::Older, _) => "older",
            (State::Due, Some(_)) => "imported",
            (State::Due, None) if std::mem::replace(&mut has_failed, true) => "due",
            (State::Due, None) => "failed",
        };
        let sources: Vec<String> = original.sources.iter().map(|source| show(source)).collect();
        Object::new()
            .with("id", original.id.as_str())
            .with("name", original.name.as_str())
            .with("time", rfc3339_nanos(nanos(original)))
            .with("host", original.host.as_deref())
            .with("sources", sources)
            .with("state", state)
            .with("snapshot", imported.map(|done| done.name.as_str()))
            .with("tags", imported.map(|done| done.tags.clone()))
            .with("files", imported.map(|done| done.files))
            .with("bytes", imported.map(|done| done.bytes))
            .into()
    };
    all.iter().map(one).collect()
}
