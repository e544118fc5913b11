//! From a claimed split to a running program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::Arc;

use outrigger_format::Root;
use outrigger_store::meta::jobs::{Claimed, JobId, JobInput};
use outrigger_store::read::Reader;
use outrigger_store::tree::StorePath;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use super::Shared;
use super::locality::Seen;
use super::others::Others;
#[cfg(feature = "testing")]
use crate::attempt::instead;
use crate::attempt::{Attempt, Feed, Range, bounded, share};
use crate::cgroup::Group;
use crate::component;
use crate::job::limits::Limits;
use crate::job::records::Records;
use crate::job::spec::{Output, Spec};
use crate::job::{Held, is_bundled, names_inputs};
use crate::mount::{InputsMount, Joined, SPLITS, Shown};
use crate::sandbox::{Kept, Network, Places, Variable, net};
use crate::scratch::FILES;
use crate::written;

/// A job's inputs, as they were when it was made.
pub(crate) struct Inputs {
    pub paths: Vec<StorePath>,
    pub roots: Vec<Arc<Root>>,
    /// Inputs that programs may look at but do not process.
    pub with: Vec<(StorePath, Arc<Root>)>,
    /// For each program, its content if it is kept in the store.
    pub components: Vec<Option<Arc<Root>>>,
    /// For each input, its index, if its records need one.
    pub indexes: Vec<Arc<Root>>,
}

impl Inputs {
    /// From the rows of a job's inputs.
    pub fn load(store: &Store, job: JobId, spec: &Spec, rows: Vec<JobInput>) -> Result<Self> {
        let (mut paths, mut roots) = (Vec::new(), Vec::new());
        for input in rows {
            paths.push(StorePath::parse(&input.path)?);
            roots.push(Arc::new(input.root));
        }
        // They come last, in the order of the programs.
        let mut components: Vec<_> = spec
            .components()
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .map(|kept| kept.and_then(|_| paths.pop().and_then(|_| roots.pop())))
            .collect();
        components.reverse();
        let own = paths.len().saturating_sub(spec.with as usize);
        let with = paths.split_off(own).into_iter().zip(roots.split_off(own)).collect();
        let mut indexes = Vec::new();
        if spec.records == Records::Bam {
            paths.truncate(paths.len() / 2);
            indexes = roots.split_off(roots.len() / 2);
        }
        let inputs = Self { paths, roots, with, components, indexes };
        if !spec.by_host.is_empty() {
            let splits = store.jobs().job(job)?.map_or(0, |row| row.splits.iter().sum());
            inputs.check_held(&spec.by_host, splits).map_err(|error| error.context(format!("job {job}")))?;
        }
        Ok(inputs)
    }

    /// Checks that splits by host are ranges of these inputs, and as many as there are split rows.
    fn check_held(&self, by_host: &[Held], splits: u64) -> Result<()> {
        if by_host.len() as u64 != splits {
            let why = format!("it has {splits} splits, and says what {} of them are", by_host.len());
            return Err(Error::damaged(why));
        }
        for &(input, from, to) in by_host.iter().flat_map(|held| &held.ranges) {
            let len = self.roots.get(input as usize).map(|root| root.len());
            if from > to || len.is_none_or(|len| to > len) {
                let why =
                    format!("a host's split has the bytes {from} to {to} of input {input}, which are none");
                return Err(Error::damaged(why));
            }
        }
        Ok(())
    }

    /// The records of each split by host, searched for in the data when they are first needed.
    pub fn joined(self: &Arc<Self>, store: &Arc<Store>, spec: &Spec) -> Vec<Arc<Joined>> {
        let joined = |held: &Held| {
            let (store, inputs) = (Arc::clone(store), Arc::clone(self));
            let (records, held) = (spec.records.clone(), held.clone());
            Arc::new(Joined::new(move || held_ranges(&store, &inputs, &records, &held)))
        };
        spec.by_host.iter().map(joined).collect()
    }

    pub fn bytes(&self) -> u64 {
        self.roots.iter().map(|root| root.len()).sum()
    }
}

/// Prepares the parts that all attempts share: programs that are not the system's, and the inputs
/// as files, if they are wanted.
///
/// # Errors
/// When a program does not exist, or nothing can be mounted.
pub(super) fn prepare(shared: &Shared) -> Result<Option<InputsMount>> {
    for number in 0..=shared.spec.also.len() {
        bring(shared, number)?;
    }
    let names = names_dir(shared);
    if !shared.spec.reach.is_empty() {
        let made = std::fs::create_dir(&names).and_then(|()| net::write_names(&names, &shared.spec.reach));
        made.context(|| "writing down the names that programs may reach".to_string())?;
        shared.sandbox.hand_over(&names)?;
    }
    let (inputs, wanted) = (&shared.inputs, shared.spec.wants_files());
    if !wanted && inputs.with.is_empty() {
        return Ok(None);
    }
    let point = shared.scratch.path().join(FILES);
    std::fs::create_dir(&point).context(|| "making a directory for the inputs".to_string())?;
    let whole = |path: &StorePath, root: &Arc<Root>| (path.clone(), Shown::Whole(Arc::clone(root)));
    let mut shown = Vec::new();
    if wanted && shared.spec.by_host.is_empty() {
        shown.extend(inputs.paths.iter().zip(&inputs.roots).map(|(path, root)| whole(path, root)));
    } else if wanted {
        for (number, (held, joined)) in shared.spec.by_host.iter().zip(&shared.joined).enumerate() {
            let path = split_path(&inputs.paths, number as u64, held);
            shown.push((path, Shown::Joined(Arc::clone(joined))));
        }
    }
    shown.extend(inputs.with.iter().map(|(path, root)| whole(path, root)));
    InputsMount::new(&shared.store, shown, &point).map(Some)
}

/// The directory with the names that programs may reach.
fn names_dir(shared: &Shared) -> PathBuf {
    shared.scratch.path().join("names")
}

/// The place of a program that is not the system's.
fn component_dir(shared: &Shared, number: usize) -> PathBuf {
    shared.scratch.path().join(format!("component-{number}"))
}

fn bring(shared: &Shared, number: usize) -> Result<()> {
    let dir = component_dir(shared, number);
    if let Some(kept) = shared.spec.components().nth(number).flatten() {
        let lost = || Error::new(ErrorKind::Damaged, format!("job {} has lost its component", shared.job));
        let root = shared.inputs.components.get(number).and_then(Option::as_ref).ok_or_else(lost)?;
        return component::bring_kept(&shared.store, &shared.sandbox, kept, root, &dir);
    }
    let words = shared.spec.programs().nth(number).filter(|words| is_bundled(words));
    match words.and_then(<[String]>::first) {
        Some(program) => component::bundle(&shared.sandbox, program, &dir).map(drop),
        None => Ok(()),
    }
}

/// An attempt that has begun.
pub(super) struct Begun {
    pub attempt: Attempt,
    pub stdout: ChildStdout,
    /// Its directory: files that the program makes there are its named outputs.
    pub work: tempfile::TempDir,
    /// The programs beside the first.
    pub others: Others,
    /// Counts where its input lay.
    pub seen: Arc<Seen>,
}

/// Starts an attempt at a split.
///
/// # Errors
/// The reason why it cannot be started. That is not the input's fault.
pub(super) fn begin(shared: &Shared, claimed: &Claimed) -> Result<Begun> {
    let ranges = ranges(shared, claimed)?;
    let seen = Seen::new(&shared.tally);
    let source = source(shared, claimed, &ranges, &seen)?;
    let count = 1 + shared.spec.also.len();
    let mut others = Others::default();
    // A program that reads its inputs as files has no standard input. A stream can be read only
    // once, so all programs get it.
    let reads = |number: usize| {
        !source.is_nothing()
            && (source.is_stream() || !shared.spec.programs().nth(number).is_some_and(names_inputs))
    };
    let reads: Vec<bool> = (0..count).map(reads).collect();
    let readers = reads.iter().filter(|reads| **reads).count();
    let mut feeds = if count == 1 {
        vec![source]
    } else if readers == 0 {
        Vec::new()
    } else {
        let (feeds, pass) = share(source, readers, &shared.counters);
        others.read_by(pass);
        feeds
    }
    .into_iter();
    let start = |number: usize, feed: Option<Feed>| -> Result<_> {
        let work = work(shared)?;
        let feed = feed.unwrap_or(Feed::Nothing);
        #[cfg(feature = "testing")]
        if let Some(function) = crate::instead::function() {
            let of = (shared.job, shared.spec.program.clone(), *claimed);
            let (attempt, stdout) = instead::call(function, of, feed, &shared.watch, &shared.counters)?;
            return Ok((attempt, stdout, work));
        }
        let limits = &bounded(&shared.spec.limits, work.path());
        // One group for each program, as the limits are. Without it the watch enforces them.
        let group = shared.groups.as_ref().and_then(|groups| groups.make(limits).ok());
        let (command, kept) = command(shared, claimed, &ranges, (number, limits, group.as_ref()), &work)?;
        let limits = (limits, group, work.path());
        let (attempt, stdout) = Attempt::start(command, feed, limits, kept, &shared.watch, &shared.counters)?;
        Ok((attempt, stdout, work))
    };
    let mut first = None;
    for (number, reads) in reads.into_iter().enumerate() {
        match start(number, if reads { feeds.next() } else { None }) {
            Ok(one) if number == 0 => {
                others.beside(&one.0);
                first = Some(one);
            }
            Ok((attempt, stdout, work)) => others.add(shared, number, attempt, stdout, work),
            Err(error) => {
                // The thread that reads for them waits for the missing programs.
                drop(feeds);
                others.stop();
                return Err(error);
            }
        }
    }
    let (attempt, stdout, work) = first.expect("there is a first program");
    Ok(Begun { attempt, stdout, work, others, seen })
}

/// A directory for a program to work in.
fn work(shared: &Shared) -> Result<tempfile::TempDir> {
    if let Some(work) = shared.spare.lock().expect("no panic while held").pop() {
        return Ok(work);
    }
    let work = tempfile::Builder::new().prefix("work-").tempdir_in(shared.scratch.path());
    let work = work.context(|| "making a directory for an attempt".to_string())?;
    shared.sandbox.hand_over(work.path())?;
    Ok(work)
}

/// One of the programs as a command in its group, with the state that the command needs.
fn command(
    shared: &Shared,
    claimed: &Claimed,
    ranges: &[Range],
    (number, limits, group): (usize, &Limits, Option<&Group>),
    work: &tempfile::TempDir,
) -> Result<(Command, Kept)> {
    let Shared { spec, sandbox, .. } = shared;
    let component = component_dir(shared, number);
    let component = component.exists().then_some(component);
    let files = shared.scratch.path().join(FILES);
    let files = (spec.wants_files() || !shared.inputs.with.is_empty()).then_some(files);
    let places = Places { work: work.path(), inputs: files.as_deref(), component: component.as_deref() };
    let program = words(shared, &places, claimed, number)?;
    let names = names_dir(shared);
    let network = match spec.reach.as_slice() {
        [] if spec.net => Network::All,
        [] => Network::Nothing,
        to => Network::Only(to, &names),
    };
    let mut variables = environment(shared, claimed, ranges, number);
    // The library opens it as the component's input, and can seek in it.
    if let (true, [file]) =
        (names_inputs(spec.programs().nth(number).unwrap_or_default()), &*in_files(shared, &places, claimed))
    {
        variables.push(("AS_INPUT_FILE".into(), file.into()));
    }
    let own = |output: &Output| output.program == number && !output.name.is_empty();
    for (_, output) in shared.outputs().filter(|(_, output)| own(output)) {
        let file = sandbox.work_seen(&places).join(&output.name);
        variables.push((format!("AS_OUTPUT_{}", output.name).into(), file.into()));
    }
    variables.push(("AS_WORK".into(), sandbox.work_seen(&places).into()));
    if files.is_some() {
        variables.push(("AS_IN".into(), sandbox.inputs_seen(&places).into()));
    }
    variables.extend(spec.env.iter().map(|(name, value)| (name.into(), value.into())));
    variables.extend(spec.own_variables()?.into_iter().map(|(name, value)| (name.into(), value)));
    sandbox.command(&program, &places, (limits, group), network, &variables)
}

/// The parts of an attempt that its input depends on, if the file is still being written.
fn reading(shared: &Shared) -> written::Reading {
    written::Reading {
        store: Arc::clone(&shared.store),
        job: shared.job,
        spec: shared.spec.clone(),
        paths: shared.inputs.paths.clone(),
        watch: Arc::clone(&shared.watch),
        drain: shared.drain.clone(),
        counters: Arc::clone(&shared.counters),
        place: shared.place.clone(),
    }
}

/// The source of standard input; nothing, if all programs read their inputs as files.
fn source(shared: &Shared, claimed: &Claimed, ranges: &[Range], seen: &Arc<Seen>) -> Result<Feed> {
    let Shared { store, spec, .. } = shared;
    if let Some(given) = shared.feed.lock().expect("no panic while held").take() {
        return Ok(given);
    }
    let lost = |what: &str| Error::new(ErrorKind::Damaged, format!("job {} {what}", shared.job));
    if claimed.range.is_open() {
        let written = spec.written.ok_or_else(|| lost("does not say what it follows"))?;
        return Ok(written::feed(reading(shared), written, claimed));
    }
    if spec.programs().all(names_inputs) {
        return Ok(Feed::Nothing);
    }
    match (claimed.range.input, ranges) {
        (Some(input), [range]) if spec.records == Records::Bam => {
            let index = shared.inputs.indexes.get(input as usize).map(Arc::clone);
            let index = index.ok_or_else(|| lost("has lost an index"))?;
            Ok(Feed::Bam(Arc::clone(store), range.clone(), index, seen.counter()))
        }
        _ => {
            let (store, records) = (Arc::clone(store), spec.records.clone());
            Ok(Feed::Stored(store, ranges.to_vec(), seen.counter(), records, shared.decodes_ahead))
        }
    }
}

/// The split's records, as byte ranges.
fn ranges(shared: &Shared, claimed: &Claimed) -> Result<Vec<Range>> {
    // The inputs' mount uses the same ranges, so a program can ask it for its file before it
    // begins.
    if let Some(joined) = shared.joined.get(claimed.number as usize) {
        return joined.ranges().map(<[Range]>::to_vec);
    }
    let Inputs { paths, roots, .. } = &*shared.inputs;
    let range = |input: usize, from: u64, to: u64| -> Result<Range> {
        let lost = || Error::new(ErrorKind::Damaged, format!("job {} has no input {input}", shared.job));
        let (path, root) = paths.get(input).zip(roots.get(input)).ok_or_else(lost)?;
        let path = path.to_string().into();
        if shared.spec.written.is_some() && (input == 0 || shared.spec.together) {
            // It was open when the job was begun here, perhaps.
            let now = shared.store.jobs().inputs(shared.job)?.into_iter().nth(input).ok_or_else(lost)?;
            let to = if shared.spec.together { now.root.len() } else { to };
            return Ok(Range { root: Arc::new(now.root), from, to, path });
        }
        Ok(Range { root: Arc::clone(root), from, to, path })
    };
    let Some(input) = claimed.range.input else {
        return (0..roots.len()).map(|input| range(input, 0, roots[input].len())).collect();
    };
    let reader = Reader::new(&shared.store);
    let whole = range(input as usize, 0, 0)?;
    if claimed.range.is_open() {
        return Ok(vec![whole]);
    }
    let from = shared.spec.records.start_at(&reader, &whole.root, claimed.range.from)?;
    let to = shared.spec.records.start_at(&reader, &whole.root, claimed.range.to)?;
    Ok(vec![Range { from, to, ..whole }])
}

/// The records of a split by host, as byte ranges.
fn held_ranges(store: &Store, inputs: &Inputs, records: &Records, held: &Held) -> Result<Vec<Range>> {
    let reader = Reader::new(store);
    let range = |&(input, from, to): &(u32, u64, u64)| {
        let lost = || Error::new(ErrorKind::Damaged, format!("the job has no input {input}"));
        let (path, root) =
            inputs.paths.get(input as usize).zip(inputs.roots.get(input as usize)).ok_or_else(lost)?;
        let (from, to) = (records.start_at(&reader, root, from)?, records.start_at(&reader, root, to)?);
        Ok(Range { root: Arc::clone(root), from, to, path: path.to_string().into() })
    };
    held.ranges.iter().map(range).collect()
}

/// The path of a split by host as a file, named like its input.
fn split_path(paths: &[StorePath], number: u64, held: &Held) -> StorePath {
    let input = held.input().and_then(|input| paths.get(input as usize)).and_then(StorePath::name);
    let components = [SPLITS.to_vec(), number.to_string().into_bytes(), input.unwrap_or(b"inputs").to_vec()];
    StorePath { components: components.to_vec() }
}

/// A split's files in the inputs' mount: the value of `{in}`.
fn in_files(shared: &Shared, places: &Places<'_>, claimed: &Claimed) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let paths = &shared.inputs.paths;
    let file =
        |path: &StorePath| shared.sandbox.inputs_seen(places).join(OsString::from_vec(path.to_bytes()));
    match (shared.spec.by_host.get(claimed.number as usize), claimed.range.input) {
        (Some(held), _) => vec![file(&split_path(paths, claimed.number, held))],
        (None, Some(input)) => paths.get(input as usize).map(file).into_iter().collect(),
        (None, None) => paths.iter().map(file).collect(),
    }
}

fn words(shared: &Shared, places: &Places<'_>, claimed: &Claimed, number: usize) -> Result<Vec<OsString>> {
    use std::os::unix::ffi::OsStringExt as _;
    let paths = &shared.inputs.paths;
    let file =
        |path: &StorePath| shared.sandbox.inputs_seen(places).join(OsString::from_vec(path.to_bytes()));
    let seen = |name: &str| shared.sandbox.work_seen(places).join(name);
    let mut words: Vec<OsString> = Vec::new();
    let program = shared.spec.programs().nth(number).unwrap_or_default();
    for (place, word) in program.iter().enumerate() {
        if place == 0 && places.component.is_some() {
            let kept = shared.spec.components().nth(number).flatten().map(|kept| kept.name.as_ref());
            let name = kept.or_else(|| Path::new(word).file_name()).unwrap_or_default();
            words.push(shared.sandbox.component_seen(places).join(name).into());
            continue;
        }
        let inner = |prefix: &str| word.strip_prefix(prefix).and_then(|word| word.strip_suffix('}'));
        if word == "{in}" {
            words.extend(in_files(shared, places, claimed).into_iter().map(OsString::from));
            continue;
        }
        if let Some(number) = inner("{in.") {
            let found = number.parse::<usize>().ok().and_then(|number| paths.get(number.checked_sub(1)?));
            let why = || {
                Error::new(ErrorKind::Invalid, format!("`{word}`: the job has inputs 1 to {}", paths.len()))
            };
            words.push(file(found.ok_or_else(why)?).into());
            continue;
        }
        let output = inner("{out.");
        words.push(match (word.as_str(), output) {
            (_, Some(name)) => seen(name).into(),
            ("{split}", _) => claimed.number.to_string().into(),
            _ => word.into(),
        });
    }
    Ok(words)
}

/// Variables that tell a component about itself.
fn environment(shared: &Shared, claimed: &Claimed, ranges: &[Range], program: usize) -> Vec<Variable> {
    let mut inputs: Vec<&Arc<str>> = ranges.iter().map(|range| &range.path).collect();
    inputs.dedup();
    let number = |value: u64| OsString::from(value.to_string());
    // The same for every attempt, but not for every program: it marks external effects.
    let mut task = format!("{}-{}-{}", shared.store.config.id, shared.job, claimed.number);
    if program > 0 {
        task += &format!("-{program}");
    }
    let mut variables: Vec<Variable> = vec![
        ("AS_JOB".into(), number(shared.job.0)),
        ("AS_SPLIT".into(), number(claimed.number)),
        ("AS_SPLITS".into(), number(shared.counters.view().splits)),
        ("AS_ATTEMPT".into(), number(claimed.attempt)),
        ("AS_TASK_ID".into(), task.into()),
        ("AS_INPUTS".into(), number(inputs.len() as u64)),
    ];
    if let [input] = inputs[..] {
        variables.push(("AS_INPUT".into(), input.to_string().into()));
    }
    // The end of a file that is being written is not known yet.
    if claimed.range.is_open() {
        return variables;
    }
    // Ranges at several places have a length, but no one offset.
    if let [range] = ranges {
        variables.push(("AS_OFFSET".into(), number(range.from)));
    }
    if ranges.len() == 1 || !shared.spec.by_host.is_empty() {
        let len = ranges.iter().map(|range| range.to - range.from).sum();
        variables.push(("AS_LENGTH".into(), number(len)));
    }
    variables
}

#[cfg(test)]
mod tests {
    use outrigger_format::Entry;

    use super::*;

    #[test]
    fn ranges_that_are_none_of_the_inputs_are_damage() {
        let roots = [10, 20].map(|len| Arc::new(Root::Inline(vec![Entry::Hole { len }]))).to_vec();
        let (paths, with, components, indexes) = (vec![StorePath::default(); 2], vec![], vec![], vec![]);
        let inputs = Inputs { paths, roots, with, components, indexes };
        let held = |ranges: &[(u32, u64, u64)]| Held { host: "h".to_string(), ranges: ranges.to_vec() };
        inputs.check_held(&[held(&[(0, 0, 10), (1, 5, 5)]), held(&[])], 2).unwrap();
        for (by_host, splits, says) in [
            (vec![held(&[(0, 0, 10)])], 2, "2 splits"),
            (vec![held(&[(0, 7, 3)])], 1, "7 to 3"),
            (vec![held(&[(1, 0, 21)])], 1, "0 to 21"),
            (vec![held(&[(2, 0, 1)])], 1, "input 2"),
        ] {
            let error = inputs.check_held(&by_host, splits).unwrap_err();
            assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains(says), "{error}");
        }
    }
}
