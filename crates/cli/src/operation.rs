//! The log of an operation, `--log`: the important steps of a command, its retries with the
//! reasons, its messages and its end. Each is one line, as JSON or as text. All lines have the
//! operation's id, which tells them from other commands' lines in the same file.
//!
//! Passwords and keys do not get into it: texts go through [`note::clean`].

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_store::note::{self, Level, Note};
use outrigger_store::text::show;
use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::json::{Object, rfc3339_nanos};

/// The form of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// One object per line
    Json,
    /// Sentences
    Text,
}

/// The options of the log.
#[derive(Args, Clone, Debug)]
pub struct LogFlags {
    /// Append one line to FILE for each step, each retry with its reason, and the end; `-` is
    /// standard error. With a mount also its failures, with the request that met each
    #[arg(long, global = true, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// How much the log has
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_parser = levels(),
        default_value = Level::Info.word(),
        hide_possible_values = true
    )]
    pub log_level: Level,
    /// The form of its lines [default: json, for `-` text]
    #[arg(long, global = true, value_name = "json|text", value_enum, hide_possible_values = true)]
    pub log_format: Option<Format>,
}

enum To {
    File(File),
    Stderr,
}

struct Operation {
    to: To,
    format: Format,
    id: String,
    command: String,
    began: Instant,
    least: Level,
}

static OPERATION: OnceLock<Operation> = OnceLock::new();

/// Takes a level by its word.
fn levels() -> impl TypedValueParser<Value = Level> {
    let level = |word: String| Level::ALL.into_iter().find(|level| level.word() == word);
    PossibleValuesParser::new(Level::ALL.map(Level::word))
        .map(move |word| level(word).expect("it is one of them"))
}

impl LogFlags {
    /// The form of the lines.
    pub fn format(&self) -> Format {
        let is_stderr = self.log.as_deref().is_some_and(|path| path == Path::new("-"));
        self.log_format.unwrap_or(if is_stderr { Format::Text } else { Format::Json })
    }
}

/// Begins the log if one is asked for.
///
/// # Errors
/// When its file cannot be written to.
pub fn begin(flags: &LogFlags, command: &str, store: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = &flags.log else { return Ok(()) };
    let to = if path == Path::new("-") {
        To::Stderr
    } else {
        let file = File::options().create(true).append(true).open(path);
        To::File(file.map_err(|error| Failure::io(format!("cannot write to {}", path.display()), &error))?)
    };
    let id = clock::random().map_or(0, u64::from_le_bytes);
    let operation = Operation {
        to,
        format: flags.format(),
        id: format!("{id:016x}"),
        command: command.to_owned(),
        began: Instant::now(),
        least: flags.log_level,
    };
    if OPERATION.set(operation).is_err() {
        return Ok(());
    }
    note::on_note(flags.log_level, |Note { level, event, message, fields }| {
        let fields = fields.into_iter().fold(Object::new(), |object, (name, value)| {
            // Numbers stay numbers in JSON.
            match value.parse::<u64>() {
                Ok(number) => object.with(name, number),
                Err(_) => object.with(name, value),
            }
        });
        line(level.word(), level, event, &message, fields);
    });
    let store = store.map(|store| store.display().to_string());
    note::note(Level::Info, "begin", || {
        let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
        (
            format!("{command} begins"),
            store.into_iter().map(|store| ("store", store)).chain([version]).collect(),
        )
    });
    Ok(())
}

/// True when the log goes to standard error. Then nothing else is printed there.
pub fn is_on_stderr() -> bool {
    OPERATION.get().is_some_and(|operation| matches!(operation.to, To::Stderr))
}

/// Writes a line.
pub fn line(level_word: &str, level: Level, event: &str, message: &str, fields: Object) {
    let Some(operation) = OPERATION.get().filter(|operation| level <= operation.least) else { return };
    let message = note::clean(message);
    let time = rfc3339_nanos(clock::now_nanos());
    let text = match operation.format {
        Format::Json => {
            let object = Object::new()
                .with("time", time)
                .with("level", level_word)
                .with("process", std::process::id())
                .with("operation", operation.id.as_str())
                .with("command", operation.command.as_str())
                .with("event", event)
                .with("message", message)
                .merge(fields);
            format!("{}\n", Value::from(object))
        }
        Format::Text => {
            let mut text = format!(
                "{time} {level_word} {} [{}] {event}: {}",
                operation.command,
                operation.id,
                show(message.replace('\n', " ").as_bytes())
            );
            if let Value::Object(fields) = Value::from(fields) {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "what" && *name != "why") {
                    text += &show(format!(" {name}={value}").as_bytes());
                }
            }
            text + "\n"
        }
    };
    // One write, because other processes may append to the same file. A failure cannot be reported.
    let _ = match &operation.to {
        To::File(file) => (&*file).write_all(text.as_bytes()),
        To::Stderr => io::stderr().write_all(text.as_bytes()),
    };
}

/// A step of the command's own.
pub fn step(event: &'static str, message: &str) {
    line(Level::Info.word(), Level::Info, event, message.trim_end(), Object::new());
}

/// A message to the user.
pub fn said(message: &str) {
    line(Level::Warning.word(), Level::Warning, "said", message, Object::new());
}

/// The end of the command, and the reason if it failed.
pub fn ended(exit: Exit, why: Option<&str>) {
    let Some(operation) = OPERATION.get() else { return };
    let level = if matches!(exit, Exit::Done) { Level::Info } else { Level::Error };
    let fields = Object::new()
        .with("exit", exit as u8)
        .with("ms", u64::try_from(operation.began.elapsed().as_millis()).unwrap_or(u64::MAX));
    let message = why.filter(|why| !why.is_empty()).map_or_else(
        || format!("{} ends", operation.command),
        |why| format!("{} failed: {why}", operation.command),
    );
    line(level.word(), level, "end", &message, fields);
}
