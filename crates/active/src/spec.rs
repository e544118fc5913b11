//! What a job does: everything that is needed to run it again somewhere else, kept as JSON in its row.

use outrigger_store::{Context as _, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::component::Component;
use crate::identity::Submitter;
use crate::limits::Limits;
use crate::pattern::Pattern;
use crate::records::Records;
use crate::sandbox::Mode;
use crate::template;
use crate::written::{Attach, Written};

/// One output of a component.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Output {
    /// How the component knows it; the empty one is standard output.
    pub name: String,
    /// What its file is called; see [`template`].
    pub template: String,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Where input comes from and output goes.
    pub pattern: Pattern,
    /// Program and arguments; none: inputs are joined as they are.
    pub program: Vec<String>,
    /// In order.
    pub outputs: Vec<Output>,
    /// What inputs consist of.
    pub records: Records,
    /// Added to the component's environment.
    pub env: Vec<(String, String)>,
    /// For each attempt.
    pub limits: Limits,
    /// How strictly it is kept in.
    pub sandbox: Mode,
    /// True: it may use the network.
    pub net: bool,
    /// How many of the job's last inputs are there to look at only; programs see them as files.
    #[serde(default)]
    pub with: u32,
    /// Attempts at a split before it is set aside.
    pub tries: u32,
    /// Where its program lies, if that is not every host's.
    #[serde(default)]
    pub host: Option<String>,
    /// The program, if it is kept in the store; its content is the last of the job's inputs.
    #[serde(default)]
    pub component: Option<Component>,
    /// Who has it run; nobody in particular in jobs of earlier versions.
    #[serde(default)]
    pub submitter: Option<Submitter>,
    /// The rule that made it.
    #[serde(default)]
    pub rule: Option<String>,
    /// The file that it reads while it is written, if it does.
    #[serde(default)]
    pub written: Option<Written>,
    /// How close it is to who writes that.
    #[serde(default)]
    pub attach: Attach,
    /// True: what was set aside does not fail the job; inputs that it belongs to have no output.
    pub skip: bool,
}

impl Spec {
    /// A job of `pattern` that runs `program`, else with all the defaults.
    pub fn new(pattern: Pattern, program: Vec<String>) -> Self {
        Self {
            pattern,
            program,
            outputs: Vec::new(),
            records: Records::Whole,
            env: Vec::new(),
            limits: Limits::default(),
            sandbox: Mode::Strict,
            net: false,
            with: 0,
            tries: 2,
            host: None,
            component: None,
            submitter: None,
            rule: None,
            written: None,
            attach: Attach::default(),
            skip: false,
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
        self.outputs.push(Output { name: name.to_string(), template: template.to_string() });
        self
    }

    /// Checks what can be checked without a store.
    ///
    /// # Errors
    /// `Invalid`, saying what to give.
    pub fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        let pattern = self.pattern;
        if self.program.is_empty() && pattern != Pattern::ManyToFile {
            return invalid(format!("{pattern} needs a program: give it after `--`"));
        }
        if pattern.has_output() && self.outputs.is_empty() && pattern != Pattern::WriteToFile {
            return invalid(format!("{pattern} makes files: say what they are called with --out"));
        }
        if !pattern.has_output() && !self.outputs.is_empty() {
            return invalid(format!("{pattern} makes no files, so --out means nothing"));
        }
        if self.records == Records::Bam && self.wants_files() {
            return invalid(
                "--records bam gives a part of a file on standard input, and {in} is all of it: use one"
                    .into(),
            );
        }
        let several =
            self.outputs.len() > 1 || self.outputs.iter().any(|out| template::is_directory(&out.template));
        if several && pattern != Pattern::FileToMany {
            return invalid(format!("{pattern} makes one file; for several outputs use 1W->#W"));
        }
        let mut names: Vec<&str> = self.outputs.iter().map(|out| out.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid("two outputs have the same name: give all but one as --out NAME=TEMPLATE".into());
        }
        if self.tries == 0 {
            return invalid("a split needs one attempt at least".into());
        }
        Ok(())
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

    /// True when the program is told of its inputs as files; it has no standard input then.
    pub fn wants_files(&self) -> bool {
        self.program.iter().any(|word| word == "{in}" || (word.starts_with("{in.") && word.ends_with('}')))
    }

    /// How many of the job's last inputs are none that its program is to process.
    pub fn inputs_besides(&self) -> usize {
        self.with as usize + usize::from(self.component.is_some())
    }

    /// Whether the program is one of a file on this host that others need not have.
    pub fn brings_program(&self) -> bool {
        self.program.first().is_some_and(|program| {
            program.contains('/') && !program.starts_with("/usr") && !program.starts_with("/bin")
        })
    }

    /// How a person would write it.
    pub fn told(&self) -> String {
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
        self.program.iter().map(quoted).collect::<Vec<_>>().join(" ")
    }
}
