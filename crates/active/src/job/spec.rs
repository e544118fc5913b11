//! A job's specification: all that is needed to run it again elsewhere, as JSON in its row.
//!
//! A program refuses a job that has a member which it does not know: if it ignored destinations or
//! a further program, it would run another job. A signed job has one member, `signed`, with the
//! text that was signed.

use outrigger_store::{Context as _, Error, ErrorKind, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::identity::Submitter;
use crate::job::limits::Limits;
use crate::job::records::Records;
use crate::job::{
    Attach, Component, DESTINATIONS_MAX, Destination, Held, Mode, Written, is_bundled, names_inputs,
};
use crate::pattern::Pattern;
use crate::signing::Signed;
use crate::template;

/// The raw file's name among a job's outputs.
pub const RAW: &str = "raw";

/// One output of a component.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The component's name for it; the empty one is standard output.
    pub name: String,
    /// The template of its file's name; see [`template`].
    pub template: String,
    /// Which of the job's programs makes it.
    #[serde(default, skip_serializing_if = "is_first")]
    pub program: usize,
}

impl Output {
    /// `TEMPLATE`, or `NAME=TEMPLATE`.
    pub fn describe(&self) -> String {
        let Self { name, template, .. } = self;
        if name.is_empty() { template.clone() } else { format!("{name}={template}") }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_first(program: &usize) -> bool {
    *program == 0
}

/// A further program of a job, which is given the same input as the first in the same pass.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Also {
    /// Program and arguments.
    pub program: Vec<String>,
    /// As [`Spec::component`].
    pub component: Option<Component>,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Spec {
    /// Where input comes from and output goes.
    pub pattern: Pattern,
    /// Program and arguments; none: inputs are joined as they are.
    pub program: Vec<String>,
    /// Further programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// In order.
    pub outputs: Vec<Output>,
    /// The kind of the inputs' records.
    pub records: Records,
    /// Added to the component's environment.
    pub env: Vec<(String, String)>,
    /// Variables that the component inherits from its runner: no value is written down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_here: Vec<String>,
    /// For each attempt.
    pub limits: Limits,
    /// How strictly it is sandboxed.
    pub sandbox: Mode,
    /// True: it may use the network.
    pub net: bool,
    /// Destinations that it may connect to without `net`; nothing else is there then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<Destination>,
    /// How many of the job's last inputs are only to be looked at; programs see them as files.
    pub with: u32,
    /// Attempts at a split before it is set aside.
    pub tries: u32,
    /// Its program's host, if the program is not on every host.
    pub host: Option<String>,
    /// The program, if the store keeps it. The contents of such programs are the last inputs.
    pub component: Option<Component>,
    /// Its submitter; without one the job may read and write everything.
    pub submitter: Option<Submitter>,
    /// The rule that made it.
    pub rule: Option<String>,
    /// The database's role that made this rule, if another role made the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf: Option<String>,
    /// The file that it tails, if it does.
    pub written: Option<Written>,
    /// It tails all of its inputs, one after the other. [`Spec::written`] names their mount.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// How close it is to the writer of that.
    pub attach: Attach,
    /// The ranges of each split in order, if splits are by host; otherwise their rows have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_host: Vec<Held>,
    /// True: a split that was set aside does not fail the job; its inputs have no output.
    pub skip: bool,
    /// The signed text from which all of this was read, if its submitter has signed it.
    #[serde(skip)]
    pub signed: Option<Signed>,
}

/// As it is in memory.
#[derive(Serialize, Deserialize)]
struct Plain(#[serde(with = "Spec")] Spec);

/// As it is written down.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Kept {
    Signed { signed: Signed },
    Plain(Box<Plain>),
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let kept = match self.signed.clone() {
            Some(signed) => Kept::Signed { signed },
            None => Kept::Plain(Box::new(Plain(self.clone()))),
        };
        kept.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Ok(match Kept::deserialize(deserializer)? {
            Kept::Signed { signed } => {
                let spec = serde_json::from_str::<Self>(&signed.spec).map_err(serde::de::Error::custom)?;
                if spec.signed.is_some() {
                    return Err(serde::de::Error::custom("a job that was signed twice"));
                }
                Self { signed: Some(signed), ..spec }
            }
            Kept::Plain(plain) => plain.0,
        })
    }
}

impl Spec {
    /// A job of `pattern` that runs `program`, else with all the defaults.
    pub fn new(pattern: Pattern, program: Vec<String>) -> Self {
        Self {
            pattern,
            program,
            also: Vec::new(),
            outputs: Vec::new(),
            records: Records::Whole,
            env: Vec::new(),
            env_here: Vec::new(),
            limits: Limits::default(),
            sandbox: Mode::Strict,
            net: false,
            reach: Vec::new(),
            with: 0,
            tries: 2,
            host: None,
            component: None,
            submitter: None,
            on_behalf: None,
            rule: None,
            written: None,
            together: false,
            attach: Attach::default(),
            by_host: Vec::new(),
            skip: false,
            signed: None,
        }
    }

    /// Adds an output: `TEMPLATE` for standard output, `NAME=TEMPLATE` for another.
    #[must_use]
    pub fn output(mut self, text: &str) -> Self {
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        let (name, template) = match text.split_once('=') {
            Some((name, template)) if is_name(name) => (name, template),
            _ => ("", text),
        };
        let (name, template) = (name.to_string(), template.to_string());
        self.outputs.push(Output { name, template, program: self.also.len() });
        self
    }

    /// Adds a program that gets the same input; outputs added after it are its own.
    #[must_use]
    pub fn and(mut self, program: Vec<String>) -> Self {
        self.also.push(Also { program, component: None });
        self
    }

    /// The programs, with their arguments.
    pub fn programs(&self) -> impl Iterator<Item = &[String]> {
        std::iter::once(&self.program).chain(self.also.iter().map(|also| &also.program)).map(Vec::as_slice)
    }

    /// As [`Spec::programs`], with the component of each, if it is kept in the store.
    pub fn programs_mut(&mut self) -> impl Iterator<Item = (&mut Vec<String>, &mut Option<Component>)> {
        let also = self.also.iter_mut().map(|also| (&mut also.program, &mut also.component));
        std::iter::once((&mut self.program, &mut self.component)).chain(also)
    }

    /// Each program's component, if it is kept in the store.
    pub fn components(&self) -> impl Iterator<Item = Option<&Component>> {
        std::iter::once(self.component.as_ref()).chain(self.also.iter().map(|also| also.component.as_ref()))
    }

    /// Checks that there are programs where some are needed.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_programs(&self) -> Result<()> {
        let joins = self.pattern == Pattern::ManyToFile && self.also.is_empty();
        if self.programs().any(<[String]>::is_empty) && !joins {
            let (pattern, why) = (self.pattern, "needs a program: give it after `--`");
            return Err(Error::new(ErrorKind::Invalid, format!("{pattern} {why}")));
        }
        Ok(())
    }

    /// Checks what can be checked without a store.
    ///
    /// # Errors
    /// `Invalid`, saying what to give.
    pub fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        let pattern = self.pattern;
        self.check_programs()?;
        self.check_printed()?;
        let of = |number: usize| self.outputs.iter().filter(move |out| out.program == number);
        let numbers = 0..=self.also.len();
        if pattern.has_output()
            && numbers.clone().any(|number| of(number).next().is_none())
            && pattern != Pattern::WriteToFile
        {
            let each = if self.also.is_empty() { "" } else { ", for each program" };
            return invalid(format!("{pattern} makes files; name them with --out{each}"));
        }
        if !pattern.has_output() && !self.outputs.is_empty() {
            return invalid(format!("{pattern} makes no files; remove --out"));
        }
        if self.records == Records::Bam && self.wants_files() {
            return invalid(
                "--records bam gives a part of a file on standard input, and {in} is all of it: use one"
                    .into(),
            );
        }
        let several = numbers.clone().any(|number| of(number).count() > 1)
            || self.outputs.iter().any(|out| template::is_directory(&out.template));
        if several && pattern != Pattern::FileToMany {
            return invalid(format!("{pattern} makes one file; for several outputs use 1W->#W"));
        }
        let mut names: Vec<_> = self.outputs.iter().map(|out| (out.program, out.name.as_str())).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid("two outputs have the same name; give all but one as --out NAME=TEMPLATE".into());
        }
        let mut templates: Vec<&str> = self.outputs.iter().map(|out| out.template.as_str()).collect();
        templates.sort_unstable();
        if let Some(pair) = templates.windows(2).find(|pair| pair[0] == pair[1] && !self.also.is_empty()) {
            return invalid(format!("two outputs would both become `{}`; give each its own --out", pair[0]));
        }
        if self.tries == 0 {
            return invalid("a split needs one attempt at least".into());
        }
        self.check_reach()
    }

    /// Checks its destinations.
    ///
    /// # Errors
    /// `Invalid`, naming the option to drop.
    pub fn check_reach(&self) -> Result<()> {
        let why = match self.reach.len() {
            0 => return Ok(()),
            _ if self.net => "--net gives everything already; remove it, or --net HOST:PORT",
            _ if self.sandbox == Mode::Off => {
                "with --sandbox off a program can reach the whole network; remove --net HOST:PORT"
            }
            more if more > DESTINATIONS_MAX => {
                "there can be 64 --net HOST:PORT at most; --net alone gives everything"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// The values of [`Spec::env_here`] in this process.
    ///
    /// # Errors
    /// `Denied` if one is missing, or another user runs this process, whose variables are secret.
    pub fn own_variables(&self) -> Result<Vec<(&str, std::ffi::OsString)>> {
        let own = rustix::process::geteuid().as_raw();
        let of = |name: &String| format!("the program inherits the variable {name} (--env {name})");
        if let Some(name) = self.env_here.first()
            && self.submitter.as_ref().is_none_or(|submitter| submitter.uid != own)
        {
            let why = format!(
                "{}, and uid {own} gives its variables to its own jobs only; let an agent of the submitter run it, or `outrigger job retry`",
                of(name)
            );
            return Err(Error::new(ErrorKind::Denied, why));
        }
        let value = |name: &String| {
            let why = || {
                format!(
                    "{}, and this process does not have it; start the agent with it, or give it to `run` and `job retry` (`{name}=… outrigger job retry JOB`)",
                    of(name)
                )
            };
            std::env::var_os(name).ok_or_else(|| Error::new(ErrorKind::Denied, why()))
        };
        self.env_here.iter().map(|name| Ok((name.as_str(), value(name)?))).collect()
    }

    /// From a job's row.
    ///
    /// # Errors
    /// `Newer`: another program's job.
    pub fn decode(text: &str) -> Result<Self> {
        let what = || Error::new(ErrorKind::Newer, "this job was made by another version of this program");
        serde_json::from_str(text).map_err(|error| what().caused_by(error))
    }

    /// For a job's row.
    ///
    /// # Errors
    /// None that a spec can cause.
    pub fn encode(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(std::io::Error::from)
            .context(|| "writing down the job".to_string())
    }

    /// True if the program gets its inputs as files; it has no standard input then.
    pub fn wants_files(&self) -> bool {
        self.programs().any(names_inputs)
    }

    /// How many of the job's last inputs its program does not process.
    pub fn inputs_besides(&self) -> usize {
        self.with as usize + self.components().flatten().count()
    }

    /// True if a program is a file that other hosts may lack and the store does not keep.
    pub fn brings_program(&self) -> bool {
        self.programs().zip(self.components()).any(|(program, kept)| kept.is_none() && is_bundled(program))
    }

    /// How a person would write it.
    pub fn describe(&self) -> String {
        let quoted = |word: &String| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                word.clone()
            } else {
                format!("'{}'", word.replace('\'', "'\\''"))
            }
        };
        if self.program.is_empty() {
            return "(joined as they are)".to_string();
        }
        let line = |program: &[String]| program.iter().map(quoted).collect::<Vec<_>>().join(" ");
        self.programs().map(line).collect::<Vec<_>>().join(" --and -- ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_several_programs_comes_back_and_an_unknown_member_is_refused() {
        let word = |word: &str| vec![word.to_string()];
        let one = Spec::new(Pattern::ReadToFile, word("sum")).output("a");
        let two = one.clone().and(word("max")).output("b");
        let (one_text, two_text) = (one.encode().unwrap(), two.encode().unwrap());
        assert_eq!(Spec::decode(&one_text).unwrap().outputs, one.outputs);
        let read = Spec::decode(&two_text).unwrap();
        assert_eq!(read.describe(), "sum --and -- max");
        assert_eq!((read.outputs, read.also), (two.outputs, two.also));
        let newer = one_text.replacen('{', "{\"newer\":1,", 1);
        assert!(Spec::decode("{}").is_err() && Spec::decode(&newer).is_err(), "{newer}");
    }

    #[test]
    fn splits_by_host_come_back() {
        let mut spec = Spec::new(Pattern::ReadToFile, vec!["wc".to_string()]).output("a");
        assert!(Spec::decode(&spec.encode().unwrap()).unwrap().by_host.is_empty());
        spec.by_host = vec![Held { host: "h1".to_string(), ranges: vec![(0, 0, 7), (0, 9, 12)] }];
        let text = spec.encode().unwrap();
        assert_eq!(Spec::decode(&text).unwrap().by_host, spec.by_host);
        // An unknown member of a member is refused, too: it may be a limit.
        let newer = text.replacen("\"host\":\"h1\"", "\"newer\":1,\"host\":\"h1\"", 1);
        assert!(newer != text && Spec::decode(&newer).is_err(), "{newer}");
    }

    #[test]
    fn records_of_a_plug_in_come_back() {
        let mut spec = Spec::new(Pattern::ReadToFile, vec!["wc".to_string()]).output("a");
        spec.records = Records::parse("plugin:@starts 3").unwrap();
        assert_eq!(Spec::decode(&spec.encode().unwrap()).unwrap().records, spec.records);
    }

    #[test]
    fn destinations_come_back() {
        let to = |text: &str| Destination::parse(text).unwrap();
        let mut spec = Spec::new(Pattern::ReadToNothing, vec!["psql".to_string()]);
        spec.reach = vec![to("db:5432"), to("[2001:db8::7]:80")];
        spec.check().unwrap();
        let text = spec.encode().unwrap();
        assert_eq!(Spec::decode(&text).unwrap().reach, spec.reach);
        assert!(Spec::decode(&text.replace("db:5432", "db")).is_err());
        for (wrong, says) in [
            (Spec { sandbox: Mode::Off, ..spec.clone() }, "--sandbox off"),
            (Spec { net: true, ..spec.clone() }, "everything already"),
            (Spec { reach: vec![to("db:1"); 65], ..spec }, "64"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn inherited_variables_are_given_to_a_users_own_jobs_only() {
        let mut spec = Spec::new(Pattern::ReadToNothing, vec!["psql".to_string()]);
        (spec.env_here, spec.submitter) = (vec!["PATH".to_string()], Some(Submitter::here()));
        let value = std::env::var_os("PATH").unwrap();
        assert_eq!(spec.own_variables().unwrap(), [("PATH", value.clone())]);
        let text = spec.encode().unwrap();
        assert!(!text.contains(value.to_str().unwrap()), "{text}");
        assert_eq!(Spec::decode(&text).unwrap().env_here, spec.env_here);
        spec.env_here.push("NOT_THERE_AT_ALL".to_string());
        let error = spec.own_variables().unwrap_err().to_string();
        assert!(error.contains("NOT_THERE_AT_ALL") && error.contains("start the agent with it"), "{error}");
        // Another user's are none of the submitter's business.
        spec.submitter = Some(Submitter { uid: 54321, gid: 54321, groups: Vec::new() });
        let error = spec.own_variables().unwrap_err().to_string();
        assert!(error.contains("its own jobs only"), "{error}");
        spec.env_here.clear();
        assert!(spec.own_variables().unwrap().is_empty());
    }

    #[test]
    fn each_program_needs_outputs_of_its_own() {
        let word = |word: &str| vec![word.to_string()];
        let sum = Spec::new(Pattern::ReadToFile, word("sum")).output("a");
        sum.clone().and(word("max")).output("b").check().unwrap();
        // Two may each have an output of the same name.
        Spec::new(Pattern::FileToMany, word("sum"))
            .output("x=a")
            .and(word("max"))
            .output("x=b")
            .check()
            .unwrap();
        for (wrong, says) in [
            (sum.clone().and(word("max")), "for each program"),
            (sum.clone().and(word("max")).output("a"), "`a`"),
            (sum.clone().and(word("max")).output("b").output("x=c"), "makes one file"),
            (sum.clone().and(Vec::new()).output("b"), "needs a program"),
            (
                Spec::new(Pattern::ManyToFile, Vec::new()).output("a").and(word("max")).output("b"),
                "needs a program",
            ),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
