//! Small texts in tiers: all tiers have all of them, so that each tier says whose it is.

use super::TieredBackend;
use crate::backend::texts::{TextName, taken};
use crate::error::{ErrorKind, Result};

impl TieredBackend {
    /// Writes a text to the tiers that do not have it, the first one first. After an interruption
    /// the same call goes on.
    pub(super) fn put_text_everywhere(&self, name: &str, text: &str) -> Result<()> {
        TextName::to_put(name, text)?;
        let mut missing = Vec::new();
        // All are asked before one is written to.
        for place in &*self.places {
            match place.backend.text(name)? {
                Some(there) if there != text => return Err(taken(format!("{name} in {}", place.tier))),
                Some(_) => {}
                None => missing.push(place),
            }
        }
        if missing.is_empty() {
            return Err(taken(name.to_owned()));
        }
        for place in missing {
            match place.backend.put_text(name, text) {
                // Another process was faster.
                Err(error) if error.kind() == ErrorKind::Exists => {
                    if place.backend.text(name)?.is_none_or(|there| there != text) {
                        return Err(error);
                    }
                }
                put => put?,
            }
        }
        Ok(())
    }

    /// A text of the first tier that has it. `store.toml` is one that all tiers have alike: else
    /// they are not all this store's.
    pub(super) fn text_anywhere(&self, name: &str) -> Result<Option<String>> {
        let is_config = TextName::parse(name)?.is_config();
        let mut said = None;
        for place in &*self.places {
            let text = place.backend.text(name)?;
            if !is_config && text.is_some() {
                return Ok(text);
            }
            if is_config && (text.is_none() || said.as_ref().is_some_and(|said| *said != text)) {
                return Ok(None);
            }
            said = Some(text);
        }
        Ok(said.flatten())
    }

    /// The names that any tier has, sorted.
    pub(super) fn texts_of_all(&self, folder: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for place in &*self.places {
            names.extend(place.backend.texts(folder)?);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}
