//! Log messages of this process, for a program that keeps a log: important steps, and operations
//! that are repeated.
//!
//! A note that nobody wants costs nothing. Passwords and keys that this process has read are
//! removed from all texts: an error of a library may repeat its input.

use std::sync::{Mutex, OnceLock, PoisonError};

/// How much a note matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Something was not done.
    Error,
    /// Something is tried again, or left out.
    Warning,
    /// A step.
    Info,
    /// A part of a step.
    Debug,
}

impl Level {
    /// All of them, the one that matters most first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warning, Self::Info, Self::Debug];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug)]
pub struct Note {
    /// How much it matters.
    pub level: Level,
    /// The kind of event, in a word: `step`, `retry`, `commit`.
    pub event: &'static str,
    /// In a sentence.
    pub message: String,
    /// Numbers and names, for programs.
    pub fields: Vec<(&'static str, String)>,
}

type Tell = Box<dyn Fn(Note) + Send + Sync>;

static TELL: OnceLock<(Level, Tell)> = OnceLock::new();
static SECRETS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Calls `tell` with all notes at level `least` or above. Only the first call counts.
pub fn on_note(least: Level, tell: impl Fn(Note) + Send + Sync + 'static) {
    let _ = TELL.set((least, Box::new(tell)));
}

/// Tells of something, if anybody wants to know.
pub fn note(level: Level, event: &'static str, say: impl FnOnce() -> (String, Vec<(&'static str, String)>)) {
    if let Some((least, tell)) = TELL.get()
        && level <= *least
    {
        let (message, fields) = say();
        let fields = fields.into_iter().map(|(name, value)| (name, clean(&value))).collect();
        tell(Note { level, event, message: clean(&message), fields });
    }
}

/// Notes that a transaction or a request is repeated: what, the number of the try, and why.
pub(crate) fn again(what: &str, tries: u32, why: &str) {
    note(Level::Warning, "retry", || {
        let fields = vec![("what", what.to_owned()), ("tries", tries.to_string()), ("why", why.to_owned())];
        (format!("{what}: {why}; again"), fields)
    });
}

/// Keeps a password or key out of all notes from here on.
pub(crate) fn secret(text: &str) {
    let mut secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    if !text.is_empty() && !secrets.iter().any(|known| known == text) {
        secrets.push(text.to_owned());
        // The longest first: of one that begins with another, the rest would be left.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }
}

/// Removes secrets from a text.
pub fn clean(text: &str) -> String {
    let secrets = SECRETS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"));
    without_passwords(&text)
}

/// Removes passwords from URLs: the text between the user's name and the host.
fn without_passwords(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        cleaned.push_str(before);
        cleaned.push_str("://");
        let end = after.find(['/', ' ', '\'', '"', '\n']).unwrap_or(after.len());
        let (authority, tail) = after.split_at(end);
        match authority.rsplit_once('@') {
            Some((user, host)) => {
                let name = user.split(':').next().unwrap_or_default();
                cleaned.push_str(name);
                if name.len() < user.len() {
                    cleaned.push_str(":***");
                }
                cleaned.push('@');
                cleaned.push_str(host);
            }
            None => cleaned.push_str(authority),
        }
        rest = tail;
    }
    cleaned + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_be_read_is_taken_out() {
        secret("hunter2-of");
        secret("hunter2-of-this-test");
        assert_eq!(clean("password hunter2-of-this-test refused"), "password *** refused");
        for (text, cleaned) in [
            ("at postgres://me:pw@db/data?schema=s: no", "at postgres://me:***@db/data?schema=s: no"),
            ("postgres://me@db/data", "postgres://me@db/data"),
            ("http://gateway:7480 and s3://a:b@c", "http://gateway:7480 and s3://a:***@c"),
            ("nothing", "nothing"),
            ("://", "://"),
        ] {
            assert_eq!(clean(text), cleaned);
        }
    }
}
