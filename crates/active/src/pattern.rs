//! The seven processing patterns: where a component's input comes from, and what becomes of its
//! output.

use std::fmt;

use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A pattern. `1R`: a file that is stored; `1W`: a file that is being written; `#W`: many files;
/// `0`: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Pattern {
    /// 1R→1W: each stored file is processed into a new one.
    ReadToFile,
    /// 1R→0: each stored file is given to a program, which keeps its results elsewhere.
    ReadToNothing,
    /// 1W→#W: one file becomes many.
    FileToMany,
    /// #W→1W: many files become one.
    ManyToFile,
    /// 1W→2W: the raw file is kept, and a second one gets the program's output.
    WriteToTwo,
    /// 1W→1W: the processed data takes the raw data's place, which never becomes visible.
    WriteToFile,
    /// 1W→0: the raw file is kept, and a program is given its data besides.
    WriteToNothing,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::WriteToTwo,
        Self::WriteToFile,
        Self::ReadToFile,
        Self::WriteToNothing,
        Self::ReadToNothing,
        Self::FileToMany,
        Self::ManyToFile,
    ];

    /// As the command line has it.
    pub fn text(self) -> &'static str {
        match self {
            Self::WriteToTwo => "1W->2W",
            Self::WriteToFile => "1W->1W",
            Self::ReadToFile => "1R->1W",
            Self::WriteToNothing => "1W->0",
            Self::ReadToNothing => "1R->0",
            Self::FileToMany => "1W->#W",
            Self::ManyToFile => "#W->1W",
        }
    }

    /// Parses `1R->1W`; the arrow may be `→`, and letters may be small.
    ///
    /// # Errors
    /// `Invalid`, naming the patterns.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = text.replace('→', "->").to_uppercase().replace(' ', "");
        Self::ALL.into_iter().find(|pattern| pattern.text() == plain).ok_or_else(|| {
            let all = Self::ALL.map(Self::text).join(", ");
            Error::new(ErrorKind::Invalid, format!("`{text}` is no pattern; there are {all}"))
        })
    }

    /// True when its outputs become files.
    pub fn has_output(self) -> bool {
        !matches!(self, Self::ReadToNothing | Self::WriteToNothing)
    }

    /// True when it is for files that are being written, and for those only.
    pub fn needs_writer(self) -> bool {
        matches!(self, Self::WriteToTwo | Self::WriteToFile | Self::WriteToNothing)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for pattern in Pattern::ALL {
            assert_eq!(Pattern::parse(pattern.text()).unwrap(), pattern);
            assert_eq!(Pattern::parse(&pattern.text().replace("->", "→").to_lowercase()).unwrap(), pattern);
        }
        let error = Pattern::parse("2R->1W").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("1R->1W"), "{error}");
    }
}
