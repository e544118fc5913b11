//! Output on standard output and standard error: text for people, JSON for programs.
//!
//! With `--json` a command prints one object on one line. Sizes are numbers of bytes, times RFC
//! 3339 in UTC. A name is a string. A name that is not UTF-8 is a string with `\xNN` escapes, and
//! its bytes in hex stand beside it under the same key with `_hex` added.
//!
//! Other people's programs, and anyone who may write to the database, can influence this text. So
//! all of it is escaped here, at the output, and they cannot send a terminal anything that it would
//! obey.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use outrigger_format::catalogue::Time;
use outrigger_store::text::{is_obeyed, show, show_but};
use serde_json::Value;

use crate::exit::Failure;
use crate::json::{Object, timestamp};

/// Writes a message to standard error.
pub fn complain(message: &str) {
    crate::operation::said(message);
    if !crate::operation::is_on_stderr() {
        shout(message);
    }
}

/// As [`complain`], for a message that the log records in another form.
pub fn shout(message: &str) {
    // One write, so that a line does not mix with another process's. A failure cannot be reported.
    let _ = io::stderr().write_all(format!("outrigger: {}\n", further(message)).as_bytes());
}

/// Prints why a command failed: a sentence, or for programs `{"error": {"code", "message",
/// "hint"}}` on a line of standard error.
///
/// A message says what is wrong, and after a semicolon what to do. That part is the hint.
pub fn fail(failure: &Failure, json: bool) {
    if failure.message.is_empty() {
        return;
    }
    if !json {
        return shout(&failure.message);
    }
    let (message, hint) = match failure.message.split_once("; ") {
        Some((message, hint)) => (message, Some(hint)),
        None => (failure.message.as_str(), None),
    };
    let error = Object::new().with("code", failure.exit as u8).with("message", message).with("hint", hint);
    let text = json_text(&Object::new().with("error", Value::from(error)).into());
    // A failure to print cannot be reported.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A message whose further lines are indented, so that none looks like another message.
fn further(message: &str) -> String {
    lines(message).replace('\n', "\n  ")
}

/// A text of several lines, escaped.
fn lines(text: &str) -> String {
    show_but(text.as_bytes(), "\n\t")
}

/// JSON without anything that a terminal obeys. `serde_json` escapes less: only what JSON forbids.
fn json_text(value: &Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_obeyed) {
        return text;
    }
    let escaped = |c: char| if is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// Standard output; knows whether a person reads it.
pub struct Out {
    writer: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Out {
    /// Takes standard output.
    pub fn new() -> Self {
        let stdout = io::stdout().lock();
        let terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(64 << 10, stdout), terminal }
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.writer.write_all(bytes).map_err(|error| Failure::io("cannot write to standard output", &error))
    }

    /// Writes a name or path: escaped for a terminal, else as it is.
    pub fn name(&mut self, name: &[u8]) -> Result<(), Failure> {
        if self.terminal { self.bytes(show(name).as_bytes()) } else { self.bytes(name) }
    }

    /// Writes the output of somebody else's program: escaped for a terminal, else as it is.
    pub fn said(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.terminal { self.bytes(show_but(bytes, "\n\t").as_bytes()) } else { self.bytes(bytes) }
    }

    /// Writes a line, escaped.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(show(text.as_bytes()).as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a JSON object on a line.
    pub fn json(&mut self, object: impl Into<Value>) -> Result<(), Failure> {
        self.bytes(json_text(&object.into()).as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| Failure::io("cannot write to standard output", &error))
    }

    /// Flushes; to be called at the end, so that a full disk is noticed.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush()
    }
}

/// Prints one object.
pub fn print_json(object: Object) -> Result<(), Failure> {
    print_value(object.into())
}

fn print_value(object: Value) -> Result<(), Failure> {
    let mut out = Out::new();
    out.json(object)?;
    out.finish()
}

/// Prints a report of the store, field by field.
pub fn print_report(report: &impl serde::Serialize) -> Result<(), Failure> {
    let value = serde_json::to_value(report).map_err(|error| Failure::failed(error.to_string()))?;
    print_value(value)
}

/// Prints lines, escaped.
pub fn print_text(text: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    out.bytes(lines(text).as_bytes())?;
    out.finish()
}

/// One JSON object with one long list, written element by element, so that a million entries take
/// no memory.
pub struct JsonList {
    first: bool,
}

impl JsonList {
    /// Begins `{HEAD..., "KEY": [`.
    pub fn begin(out: &mut Out, head: Object, key: &str) -> Result<Self, Failure> {
        let mut text = json_text(&head.into());
        text.pop();
        if text.len() > 1 {
            text.push(',');
        }
        out.bytes(format!("{text}{}:[", Value::from(key)).as_bytes())?;
        Ok(Self { first: true })
    }

    /// One element.
    pub fn push(&mut self, out: &mut Out, object: Object) -> Result<(), Failure> {
        let comma: &[u8] = if self.first { b"" } else { b"," };
        self.first = false;
        out.bytes(comma)?;
        out.bytes(json_text(&object.into()).as_bytes())
    }

    /// Ends the list and the object.
    pub fn end(self, out: &mut Out) -> Result<(), Failure> {
        out.bytes(b"]}\n")
    }
}

/// `1.24 GiB`, `120 MiB`, `17 B`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    // A value that would be printed as 1024 belongs to the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// `78,611`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A bar of `width` columns at most, for a share from 0 to 1.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let rest = EIGHTHS[eighths % 8];
    format!("{}{rest}", "█".repeat(eighths / 8)).trim_end().to_string()
}

/// `1 file`, `2 files`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// `2026-11-21 22:04:51`, in the machine's time zone.
pub fn local(time: Time) -> String {
    match timestamp(time) {
        Some(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => format!("@{}", time.secs),
    }
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well() {
        let sizes = [0, 1023, 1024, 1536, 10 << 20, 120 << 20, (1 << 30) - 1, 1_331_439_862, u64::MAX];
        let texts = [
            "0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 MiB", "120 MiB", "1.00 GiB", "1.24 GiB",
            "16.0 EiB",
        ];
        assert_eq!(sizes.map(size), texts);
        assert_eq!(
            [0, 999, 1000, 78_611, 1_000_000].map(count),
            ["0", "999", "1,000", "78,611", "1,000,000"]
        );
    }

    #[test]
    fn what_others_say_is_shown_and_not_obeyed() {
        let theirs = "\u{1b}]0;title\u{7}\u{9b}2J\u{202e}evil\u{2066}\r\nbad";
        let shown = r"\u{1b}]0;title\u{7}\u{9b}2J\u{202e}evil\u{2066}\r";
        assert_eq!(further(theirs), format!("{shown}\n  bad"));
        assert_eq!(show_but(b"a\tb\xff\x1b[0m\n", "\n\t"), "a\tb\\xff\\u{1b}[0m\n");
        let json = json_text(&Object::new().with("why", theirs).into());
        assert!(!json.chars().any(is_obeyed), "{json}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["why"], theirs);
    }
}
