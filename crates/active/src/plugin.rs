//! Records of users' own: a program says where they start (`--records plugin:PROGRAM`).
//!
//! It is run once for each input that is to be cut, when the job is made, kept in like the job's programs: the input is its standard input, and it prints rising offsets, one decimal number a line. What it prints is
//! looked at as it comes and not kept: of all places the job needs those alone at which it is cut, each the first at or after a nominal cut. Its splits' rows have them ([`Cuts`]), so nobody runs the plug-in
//! again, and every host reads the same.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use outrigger_store::ops::View;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};

use crate::attempt::{Attempt, Feed, Range, Watch};
use crate::component;
use crate::cuts::Cuts;
use crate::inputs::Found;
use crate::progress::Counters;
use crate::records::Records;
use crate::runner::Scratch;
use crate::sandbox::{Network, Places, Sandbox};
use crate::spec::{Spec, is_brought};

/// What a plug-in may print in a line: more digits than any offset has.
const LINE_MAX: u64 = 64;

/// Moves the cuts of a job whose records are a plug-in's to where it says that records start. A component is named in `spec` as it was found; `view` holds the inputs.
///
/// # Errors
/// `Invalid` when what it prints makes no sense, or it fails; `NotFound` when it is not there, `Denied` when it cannot be kept in as strictly as `spec` says.
pub(crate) fn settle(
    store: &Arc<Store>,
    view: &View,
    spec: &mut Spec,
    found: &[Found],
    cuts: &mut Cuts,
) -> Result<()> {
    let Records::Plugin(words) = &spec.records else { return Ok(()) };
    let mut words = words.clone();
    let mut plugin = None;
    for (number, found) in (0..).zip(found) {
        let wanted = cuts.inner(number, found.inode.root.len());
        if wanted.is_empty() {
            continue;
        }
        let plugin = match &mut plugin {
            Some(plugin) => plugin,
            none => none.insert(Plugin::new(store, view, spec, &mut words)?),
        };
        let moved = plugin.starts(found, &wanted)?;
        cuts.move_inner(number, &wanted, &moved);
    }
    cuts.drop_empty();
    spec.records = Records::Plugin(words);
    Ok(())
}

/// A plug-in, ready to be run.
struct Plugin<'a> {
    store: &'a Arc<Store>,
    spec: &'a Spec,
    /// As it was asked for.
    told: String,
    words: Vec<OsString>,
    /// A directory with the program, if that is not the system's.
    component: Option<PathBuf>,
    sandbox: Sandbox,
    watch: Arc<Watch>,
    scratch: Scratch,
}

impl<'a> Plugin<'a> {
    fn new(store: &'a Arc<Store>, view: &View, spec: &'a Spec, words: &mut [String]) -> Result<Self> {
        let sandbox = Sandbox::find(spec.sandbox)?.for_submitter(spec.submitter.as_ref());
        let (told, scratch) = (words.join(" "), Scratch::new()?);
        sandbox.hand_over(scratch.path())?;
        let dir = scratch.path().join("component");
        let mut kept = None;
        let name = if let Some(content) = component::settle_one(store, view, words, &mut kept)? {
            let kept = kept.expect("it was just found");
            component::bring_kept(store, &sandbox, &kept, &content.root, &dir)?;
            Some(kept.name.into())
        } else if is_brought(words) {
            Some(component::bring_brought(&sandbox, &words[0], &dir)?)
        } else {
            None
        };
        let component = name.is_some().then_some(dir);
        let mut run: Vec<OsString> = words.iter().map(OsString::from).collect();
        if let Some(name) = name {
            let places = Places { work: scratch.path(), inputs: None, component: component.as_deref() };
            run[0] = sandbox.component_seen(&places).join::<OsString>(name).into();
        }
        Ok(Self { store, spec, told, words: run, component, sandbox, watch: Watch::start(), scratch })
    }

    /// For each of the rising offsets `wanted` the first at or after it at which a record of the input starts; its length, if none does.
    fn starts(&self, found: &Found, wanted: &[u64]) -> Result<Vec<u64>> {
        let (path, len) = (found.path.to_string(), found.inode.root.len());
        let work = tempfile::Builder::new().prefix("work-").tempdir_in(self.scratch.path());
        let work = work.context(|| "making a directory for a plug-in".to_string())?;
        self.sandbox.hand_over(work.path())?;
        let places = Places { work: work.path(), inputs: None, component: self.component.as_deref() };
        let limits = self.spec.limits;
        let (mut command, kept) =
            self.sandbox.command(&self.words, &places, (&limits, None), Network::Nothing)?;
        command.env("AS_INPUT", &path).env("AS_LENGTH", len.to_string());
        command.env("AS_WORK", self.sandbox.work_seen(&places));
        command.envs(self.spec.env.iter().map(|(name, value)| (name, value)));
        let range =
            Range { root: Arc::new(found.inode.root.clone()), from: 0, to: len, path: path.as_str().into() };
        let feed = Feed::Stored(Arc::clone(self.store), vec![range], Arc::new(|_, _| {}));
        let counters = Arc::new(Counters::default());
        let (attempt, stdout) = Attempt::start(command, feed, (&limits, None), None, &self.watch, &counters)?;
        drop(kept);
        let read = read_starts(BufReader::new(stdout), wanted, len);
        if let Err(why) = &read {
            attempt.kill(why);
        }
        let ended = attempt.end().result;
        let starts = read.and_then(|starts| ended.map(|()| starts));
        starts.map_err(|why| {
            let why = format!("--records plugin:{}, over `{path}`: {why}", self.told);
            Error::new(ErrorKind::Invalid, why)
        })
    }
}

/// See [`Plugin::starts`]: of the offsets that come from `from`, one a line, all of which are looked at.
fn read_starts(mut from: impl BufRead, wanted: &[u64], len: u64) -> std::result::Result<Vec<u64>, String> {
    let (mut found, mut last, mut line) = (Vec::with_capacity(wanted.len()), None, Vec::new());
    for number in 1_u64.. {
        line.clear();
        let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        if read.map_err(|error| format!("reading what it printed: {error}"))? == 0 {
            break;
        }
        let text = line.trim_ascii();
        let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let offset = std::str::from_utf8(text).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
        let Some(offset) = offset else {
            return Err(format!(
                "line {number} of what it printed is `{}`: print the offset of a byte at which a record starts, a decimal number, and nothing else (what is to be read by people goes to standard error)",
                String::from_utf8_lossy(text)
            ));
        };
        if let Some(last) = last.filter(|last| *last >= offset) {
            return Err(format!(
                "line {number} of what it printed is {offset}, after {last}: print rising offsets"
            ));
        }
        if offset > len {
            return Err(format!(
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
        read_starts(text.as_bytes(), wanted, 100)
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
        for (text, says) in [
            ("0\nrecord at 7\n", "line 2 of what it printed is `record at 7`"),
            ("0\n\n", "line 2 of what it printed is ``"),
            ("-1\n", "line 1 of what it printed is `-1`"),
            ("5\n9\n9\n", "line 3 of what it printed is 9, after 9"),
            ("9\n5\n", "line 2 of what it printed is 5, after 9"),
            ("101\n", "has 100 bytes"),
            (long.as_str(), "line 1"),
            ("99999999999999999999\n", "line 1"),
        ] {
            let why = read(text, &[50]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
