//! Users' own record formats: a program says where records start (`--records plugin:PROGRAM`).
//!
//! It runs once for each input that is to be cut, when the job is made, in the same sandbox as the
//! job's programs. The input is its standard input, and it prints rising offsets, one decimal
//! number a line. They are checked as they come and not kept: the job needs only its cuts, each the
//! first offset at or after a nominal cut. The rows of its splits have them ([`Cuts`]), so the
//! plug-in never runs again, and every host reads the same.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use outrigger_store::ops::View;
use outrigger_store::read::Reader;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use crate::attempt::{Attempt, Feed, Pipes, bounded, give_all};
use crate::component;
use crate::cuts::Cuts;
use crate::inputs::Found;
use crate::job::is_bundled;
use crate::job::records::Records;
use crate::job::spec::Spec;
use crate::making::Making;
use crate::sandbox::{Network, Places, Sandbox, Variable};
use crate::scratch::Scratch;

/// Bytes at most of a line that a plug-in prints, with its end: more digits than any offset has.
const LINE_MAX: usize = 64;

/// Moves the cuts of a job with plug-in records to places where the plug-in says that records
/// start. `spec` names a component as it was found; `view` holds the inputs.
///
/// # Errors
/// `Invalid` if its output makes no sense, or it fails; `NotFound` if it does not exist; `Denied`
/// if it cannot be sandboxed as strictly as `spec` says. Those of reading the inputs, `Damaged`
/// among them. `Io` if it ran into a limit, `Cancelled` if `making` was stopped.
pub(crate) fn settle(
    store: &Arc<Store>,
    view: &View,
    spec: &mut Spec,
    found: &[Found],
    cuts: &mut Cuts,
    making: &Making,
) -> Result<()> {
    let Records::Plugin(words) = &spec.records else { return Ok(()) };
    let mut words = words.clone();
    let lens: Vec<u64> = found.iter().map(|found| found.inode.root.len()).collect();
    let wanted = cuts.inner(&lens);
    let is_cut = |(_, wanted): &(&u64, &Vec<u64>)| !wanted.is_empty();
    let bytes = lens.iter().zip(&wanted).filter(is_cut).map(|(len, _)| len).sum();
    making.counters.bytes_expected.store(bytes, Ordering::Relaxed);
    let (mut plugin, mut moved) = (None, Vec::with_capacity(wanted.len()));
    for (found, wanted) in found.iter().zip(&wanted) {
        if wanted.is_empty() {
            moved.push(Vec::new());
            continue;
        }
        let plugin = match &mut plugin {
            Some(plugin) => plugin,
            none => none.insert(Plugin::new(store, view, spec, &mut words, making)?),
        };
        moved.push(plugin.starts(found, wanted)?);
    }
    cuts.move_inner(&wanted, &moved);
    cuts.drop_empty();
    spec.records = Records::Plugin(words);
    Ok(())
}

/// A plug-in, ready to be run.
struct Plugin<'a> {
    store: &'a Arc<Store>,
    spec: &'a Spec,
    /// Its words in the request.
    shown: String,
    words: Vec<OsString>,
    /// A directory with the program, if that is not the system's.
    component: Option<PathBuf>,
    sandbox: Sandbox,
    making: &'a Making,
    scratch: Scratch,
}

impl<'a> Plugin<'a> {
    fn new(
        store: &'a Arc<Store>,
        view: &View,
        spec: &'a Spec,
        words: &mut [String],
        making: &'a Making,
    ) -> Result<Self> {
        let sandbox = Sandbox::find(spec.sandbox)?.for_submitter(spec.submitter.as_ref())?;
        let (shown, scratch) = (words.join(" "), Scratch::new()?);
        sandbox.let_in(scratch.path())?;
        let dir = scratch.path().join("component");
        let mut kept = None;
        let name = if let Some(content) = component::settle_one(store, view, words, &mut kept)? {
            let kept = kept.expect("it was just found");
            component::bring_kept(store, &sandbox, &kept, &content.root, &dir)?;
            Some(kept.name.into())
        } else if is_bundled(words) {
            Some(component::bundle(&sandbox, &words[0], &dir)?)
        } else {
            None
        };
        let component = name.is_some().then_some(dir);
        let mut run: Vec<OsString> = words.iter().map(OsString::from).collect();
        if let Some(name) = name {
            let places = Places { work: scratch.path(), inputs: None, component: component.as_deref() };
            run[0] = sandbox.component_seen(&places).join::<OsString>(name).into();
        }
        Ok(Self { store, spec, shown, words: run, component, sandbox, making, scratch })
    }

    /// For each of the rising offsets `wanted`, the first offset at or after it at which a record
    /// of the input starts; the input's length, if none does.
    fn starts(&self, found: &Found, wanted: &[u64]) -> Result<Vec<u64>> {
        let (path, len) = (found.path.to_string(), found.inode.root.len());
        let work = tempfile::Builder::new().prefix("work-").tempdir_in(self.scratch.path());
        let work = work.context(|| "making a directory for a plug-in".to_string())?;
        self.sandbox.hand_over(work.path())?;
        let places = Places { work: work.path(), inputs: None, component: self.component.as_deref() };
        let limits = bounded(&self.spec.limits, work.path());
        let own = [
            ("AS_INPUT".into(), path.clone().into()),
            ("AS_LENGTH".into(), len.to_string().into()),
            ("AS_WORK".into(), self.sandbox.work_seen(&places).into()),
        ];
        let asked = self.spec.env.iter().map(|(name, value)| (name.into(), value.into()));
        let variables: Vec<Variable> = own.into_iter().chain(asked).collect();
        let (command, kept) =
            self.sandbox.command(&self.words, &places, (&limits, None), Network::Nothing, &variables)?;
        // An attempt reports its failure in words; the caller also needs the kind of the error.
        let unread: Arc<Mutex<Option<Error>>> = Arc::default();
        let (store, root) = (Arc::clone(self.store), found.inode.root.clone());
        let (counters, failed) = (Arc::clone(&self.making.counters), Arc::clone(&unread));
        let feed = Feed::Stream(Box::new(move |pipes: &mut Pipes| {
            let reader = Reader::new(&store);
            let given = give_all(pipes, &counters, |sink| reader.read(&root, 0, len, sink));
            given.map_err(|error| {
                let why = error.to_string();
                *failed.lock().expect("no panic while held") = Some(error);
                why
            })
        }));
        let (watch, counters) = (self.making.watch(), &self.making.counters);
        let (attempt, stdout) =
            Attempt::start(command, feed, (&limits, None, work.path()), kept, watch, counters)?;
        let read = read_starts(BufReader::new(stdout), wanted, len);
        if let Err(error) = &read {
            attempt.kill(&error.to_string());
        }
        let ended = attempt.end();
        let unread = unread.lock().expect("no panic while held").take();
        let starts = match (unread, read, ended.result) {
            _ if watch.is_stopped() => Err(Error::new(ErrorKind::Cancelled, "stopped")),
            (Some(error), ..) => Err(error.context("reading it")),
            (None, Err(error), _) => Err(error),
            (None, Ok(_), Err(why)) if ended.was_killed => Err(Error::new(ErrorKind::Io, why)),
            (None, Ok(_), Err(why)) => Err(Error::new(ErrorKind::Invalid, why)),
            (None, Ok(starts), Ok(())) => Ok(starts),
        };
        starts.map_err(|error| error.context(format!("--records plugin:{}, over `{path}`", self.shown)))
    }
}

/// See [`Plugin::starts`]: reads all offsets from `from`, one a line.
fn read_starts(mut from: impl BufRead, wanted: &[u64], len: u64) -> Result<Vec<u64>> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let (mut found, mut last, mut line) = (Vec::with_capacity(wanted.len()), None, Vec::new());
    for number in 1_u64.. {
        line.clear();
        let read = from.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line);
        if read.context(|| "reading what it printed".to_string())? == 0 {
            break;
        }
        // The rest would be taken for a line of its own.
        if line.len() > LINE_MAX {
            return invalid(format!(
                "line {number} of what it printed is longer than {LINE_MAX} bytes: print one offset a line"
            ));
        }
        let text = line.trim_ascii();
        let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let offset = std::str::from_utf8(text).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
        let Some(offset) = offset else {
            return invalid(format!(
                "line {number} of what it printed is `{}`: print the offset of a byte at which a record starts, a decimal number, and nothing else (what is to be read by people goes to standard error)",
                String::from_utf8_lossy(text)
            ));
        };
        if let Some(last) = last.filter(|last| *last >= offset) {
            return invalid(format!(
                "line {number} of what it printed is {offset}, after {last}: print rising offsets"
            ));
        }
        if offset > len {
            return invalid(format!(
                "line {number} of what it printed is {offset}, and the file has {len} bytes: print offsets in it, from 0"
            ));
        }
        last = Some(offset);
        while wanted.get(found.len()).is_some_and(|next| *next <= offset) {
            found.push(offset);
        }
    }
    found.resize(wanted.len(), len);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, wanted: &[u64]) -> std::result::Result<Vec<u64>, String> {
        read_starts(text.as_bytes(), wanted, 100).map_err(|error| error.to_string())
    }

    #[test]
    fn a_cut_is_at_the_first_start_at_or_after_it() {
        assert_eq!(read("0\n10\n20\n100\n", &[5, 10, 11, 50]), Ok(vec![10, 10, 20, 100]));
        assert_eq!(read("", &[5, 10]), Ok(vec![100, 100]));
        assert_eq!(read(" 7 \r\n9", &[1, 8, 9, 10]), Ok(vec![7, 9, 9, 100]));
        assert_eq!(read("3\n", &[]), Ok(vec![]));
    }

    #[test]
    fn what_makes_no_sense_is_said_with_its_line() {
        let long = "1".repeat(1000);
        // Blanks before the second number make the first 64 bytes a line of their own.
        let two = format!("7{}9\n", " ".repeat(64));
        for (text, says) in [
            ("0\nrecord at 7\n", "line 2 of what it printed is `record at 7`"),
            ("0\n\n", "line 2 of what it printed is ``"),
            ("-1\n", "line 1 of what it printed is `-1`"),
            ("5\n9\n9\n", "line 3 of what it printed is 9, after 9"),
            ("9\n5\n", "line 2 of what it printed is 5, after 9"),
            ("101\n", "has 100 bytes"),
            (long.as_str(), "line 1 of what it printed is longer than 64 bytes"),
            (two.as_str(), "line 1 of what it printed is longer than 64 bytes"),
            ("99999999999999999999\n", "line 1"),
        ] {
            let why = read(text, &[50]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
