//! Small texts beside the packs: `store.toml`, which says whose they are, and key slots.
//!
//! [`TextName`] is the one place that decides which names there are, so that no caller reaches
//! anything else: neither packs, nor files that lie beside a store.

use crate::error::{Error, ErrorKind, Result};
use crate::layout::CONFIG_FILE;

/// The folder of the key slots.
pub const KEYS_DIR: &str = "keys";

/// The longest text that is written or read, bytes.
pub const TEXT_MAX: usize = 64 << 10;

/// The longest name below a folder, bytes.
const NAME_MAX: usize = 64;

/// The name of a text: `store.toml`, or `keys/NAME`. NAME has letters, digits, `-` and `.`, does
/// not begin with a dot, and has 64 bytes at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextName<'n>(&'n str);

impl<'n> TextName<'n> {
    /// Checks a name.
    ///
    /// # Errors
    /// `Invalid` for any other name.
    pub fn parse(name: &'n str) -> Result<Self> {
        let is_slot = || name.split_once('/').is_some_and(|(dir, slot)| dir == KEYS_DIR && is_slot(slot));
        if name == CONFIG_FILE || is_slot() {
            return Ok(Self(name));
        }
        let why = format!(
            "{name:?} names no text beside packs: use {CONFIG_FILE}, or {KEYS_DIR}/NAME with at most {NAME_MAX} letters, digits, `-` and `.`"
        );
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// Checks the name and the length of a text that is to be written.
    ///
    /// # Errors
    /// `Invalid` for any other name, and for a text of more than [`TEXT_MAX`] bytes.
    pub fn to_put(name: &'n str, text: &str) -> Result<Self> {
        let name = Self::parse(name)?;
        if text.len() > TEXT_MAX {
            let why = format!("{name} would have {} bytes; it may have {TEXT_MAX}", text.len());
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(name)
    }

    /// Checks the name of a text that is to be removed.
    ///
    /// # Errors
    /// `Invalid` for any other name, and for `store.toml`: without it nobody knows whose the packs
    /// are.
    pub fn to_remove(name: &'n str) -> Result<Self> {
        let name = Self::parse(name)?;
        if name.is_config() {
            let why = format!("{name} is not removed: it says whose packs lie beside it");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(name)
    }

    /// All of it.
    pub fn as_str(self) -> &'n str {
        self.0
    }

    /// True for `store.toml`.
    pub fn is_config(self) -> bool {
        self.0 == CONFIG_FILE
    }

    /// Its folder and the name in it. `store.toml` is in none.
    pub fn parts(self) -> (Option<&'n str>, &'n str) {
        self.0.split_once('/').map_or((None, self.0), |(folder, file)| (Some(folder), file))
    }
}

impl std::fmt::Display for TextName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// True if a name below `keys` is a slot's.
pub fn is_slot(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=NAME_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_fit)
}

/// Checks the name of a folder of texts.
///
/// # Errors
/// `Invalid` for all but [`KEYS_DIR`].
pub fn require_folder(folder: &str) -> Result<()> {
    if folder == KEYS_DIR {
        return Ok(());
    }
    let why = format!("{folder:?} is no folder of texts; there is {KEYS_DIR} alone");
    Err(Error::new(ErrorKind::Invalid, why))
}

/// The text that these bytes are. Engines read one byte more than [`TEXT_MAX`], to notice a longer
/// one.
///
/// # Errors
/// `Damaged` when they are too many, or no text. `shown` names it.
pub(super) fn decode(bytes: Vec<u8>, shown: impl FnOnce() -> String) -> Result<String> {
    if bytes.len() > TEXT_MAX {
        return Err(Error::damaged(format!("{} is longer than {TEXT_MAX} bytes", shown())));
    }
    String::from_utf8(bytes).map_err(|_| Error::damaged(format!("{} is no text", shown())))
}

/// The error for a text whose name is taken.
pub(super) fn taken(shown: String) -> Error {
    Error::new(ErrorKind::Exists, format!("cannot write {shown}: it exists"))
}

/// Fails when the engine was opened to read.
///
/// # Errors
/// `Denied`.
pub(super) fn refuse_read_only(is_read_only: bool, what: &str, shown: String) -> Result<()> {
    if is_read_only {
        let why = format!("cannot {what} {shown}: opened read-only");
        return Err(Error::new(ErrorKind::Denied, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_have_names() {
        for name in ["store.toml", "keys/a", "keys/A-1.b", "keys/0000000000000001.pack", "keys/store.toml"] {
            assert_eq!(TextName::parse(name).unwrap().as_str(), name);
        }
        assert_eq!(TextName::parse("keys/a").unwrap().parts(), (Some("keys"), "a"));
        assert_eq!(TextName::parse("store.toml").unwrap().parts(), (None, "store.toml"));
        let (longest, longer) = (format!("keys/{}", "x".repeat(64)), format!("keys/{}", "x".repeat(65)));
        TextName::parse(&longest).unwrap();
        for name in BAD.iter().copied().chain([longer.as_str()]) {
            let error = TextName::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}: {error}");
        }
    }

    const BAD: [&str; 16] = [
        "",
        "keys",
        "keys/",
        "keys/.",
        "keys/..",
        "keys/.a",
        "keys/a/b",
        "keys//a",
        "/keys/a",
        "./keys/a",
        "keys/a b",
        "keys/ä",
        "keys/a\0",
        "packs/a",
        "meta.db",
        "store.toml.new",
    ];

    #[test]
    fn what_is_too_long_is_neither_written_nor_read() {
        let longest = "x".repeat(TEXT_MAX);
        TextName::to_put("keys/a", &longest).unwrap();
        assert_eq!(decode(longest.clone().into_bytes(), || "it".into()).unwrap(), longest);
        let longer = format!("{longest}x");
        assert_eq!(TextName::to_put("keys/a", &longer).unwrap_err().kind(), ErrorKind::Invalid);
        let error = decode(longer.into_bytes(), || "it".into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert_eq!(decode(vec![0xff], || "it".into()).unwrap_err().kind(), ErrorKind::Damaged);
    }
}
