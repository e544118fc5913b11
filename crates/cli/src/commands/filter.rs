//! The options of `put` that leave entries of its sources out.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::Args;
use outrigger_store::local::put::{LeaveOut, Listed};
use outrigger_store::patterns::Patterns;
use outrigger_store::write::Progress;

use crate::exit::{Failure, plain};

/// Entries to leave out. They are neither stored nor removed from the store.
#[derive(Args, Clone, Default)]
pub struct Filter {
    /// Leave out matching entries, and do not remove them from the store. A pattern without `/` is
    /// matched against names, others against the path below SRC: `/target` is SRC/target and
    /// nothing else
    #[arg(long, short = 'e', value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Read such patterns from a file, one per line; empty lines and lines that begin with `#` are
    /// ignored
    #[arg(long, value_name = "FILE", alias = "exclude-file")]
    pub exclude_from: Vec<PathBuf>,
    /// In a directory that has an entry NAME, leave out everything but that entry
    #[arg(long, value_name = "NAME")]
    pub exclude_if_present: Vec<OsString>,
    /// Leave out the content of directories that a valid CACHEDIR.TAG marks as caches
    #[arg(long)]
    pub exclude_caches: bool,
    /// Obey ignore files of this name, for their directory and below, in the syntax of .gitignore
    #[arg(long, value_name = "NAME")]
    pub ignore_file: Vec<OsString>,
    /// Put only the paths that FILE lists, one per line, and everything below them; paths are
    /// relative to SRC or absolute; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
}

impl Filter {
    /// The rules for these sources.
    ///
    /// # Errors
    /// For an invalid pattern, a file that cannot be read, and a list that is given with several
    /// sources.
    pub fn leave_out(&self, sources: &[OsString]) -> Result<LeaveOut, Failure> {
        let texts = |given: &[OsString]| -> Vec<Vec<u8>> {
            given.iter().map(|text| text.as_bytes().to_vec()).collect()
        };
        let mut given = texts(&self.exclude);
        let mut from = Vec::new();
        for file in &self.exclude_from {
            let lines = lines(file)?;
            from.extend(lines.into_iter().filter(|line| !line.starts_with(b"#")));
        }
        // Parsed here once, so that an error names the right option.
        Patterns::new("--exclude-from", &from)?;
        given.extend(from);
        Ok(LeaveOut {
            patterns: Patterns::new("--exclude", &given)?,
            if_present: texts(&self.exclude_if_present),
            caches: self.exclude_caches,
            ignore_files: texts(&self.ignore_file),
            all_but: self.files_from.as_deref().map(|file| listed(file, sources)).transpose()?,
        })
    }
}

/// The lines of a file that are not empty.
fn lines(file: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let mut text = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_end(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut text))
    };
    read.map_err(|error| Failure::io(format!("cannot read {}", file.display()), &error))?;
    let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

/// The paths of a list, relative to the only source.
fn listed(file: &Path, sources: &[OsString]) -> Result<Listed, Failure> {
    let [source] = sources else {
        return Err(Failure::usage("--files-from lists files of one directory; give one SRC"));
    };
    if !Path::new(source).is_dir() {
        return Err(Failure::usage(format!(
            "--files-from lists files of a directory, but {} is not a directory",
            source.display()
        )));
    }
    let top = std::path::absolute(source).unwrap_or_else(|_| PathBuf::from(source));
    let mut paths = Vec::new();
    for line in lines(file)? {
        let path = PathBuf::from(OsString::from_vec(line));
        let below = if path.is_absolute() {
            path.strip_prefix(&top).map_err(|_| {
                Failure::usage(format!(
                    "--files-from lists {}, which is not below {}",
                    path.display(),
                    top.display()
                ))
            })?
        } else {
            &path
        };
        let parts = below.components().filter(|part| *part != std::path::Component::CurDir);
        let clean: PathBuf = parts.collect();
        if clean.components().any(|part| part == std::path::Component::ParentDir) {
            return Err(Failure::usage(format!(
                "--files-from lists {}, which contains `..`",
                path.display()
            )));
        }
        paths.push(clean.into_os_string().into_vec());
    }
    Ok(Listed::new(paths))
}

/// Reports as skipped every path of the list that the source lacks.
pub fn skip_missing(leave_out: &LeaveOut, sources: &[OsString], progress: &Progress) {
    let (Some(listed), [source]) = (&leave_out.all_but, sources) else { return };
    for path in listed.paths() {
        let path = Path::new(source).join(std::ffi::OsStr::from_bytes(path));
        if let Err(error) = std::fs::symlink_metadata(&path) {
            progress.skip(path.display().to_string(), plain(&error));
        }
    }
}
