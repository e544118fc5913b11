//! The sources of a put, and their targets in the store.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::local::put::Source;
use outrigger_store::meta::At;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;

use crate::commands::report_skipped;
use crate::exit::{Failure, plain};
use crate::output::quoted;

/// The target of each source, as far as it is known without looking into the store. If `is_into`,
/// `--to` ends with a slash, and a file goes below it under its own name, as with `cp`.
pub(super) fn targets(
    sources: &[OsString],
    to: Option<&StorePath>,
    is_into: bool,
) -> Result<Vec<(OsString, StorePath)>, Failure> {
    let is_file_into = |source: &OsString| is_into && source != "-" && !Path::new(source).is_dir();
    if let ([source], Some(to)) = (sources, to)
        && !is_file_into(source)
    {
        return Ok(vec![(source.clone(), to.clone())]);
    }
    let base = to.cloned().unwrap_or_default();
    let mut taken = BTreeSet::new();
    let target = |source: &OsString| {
        if source == "-" {
            return Err(Failure::usage(
                "standard input needs a name in the store; give it alone, with --to PATH",
            ));
        }
        let name = base_name(Path::new(source))?;
        let target = base.join(&name);
        if !taken.insert(name) {
            return Err(Failure::usage(format!(
                "two sources would become `{target}`; put them one by one, with --to"
            )));
        }
        Ok((source.clone(), target))
    };
    sources.iter().map(target).collect()
}

/// Refuses a source that does not exist beside others. Without `--to` it is probably the target,
/// and the others would be mirrored to places that were not meant.
pub(super) fn check_there(sources: &[OsString]) -> Result<(), Failure> {
    let is_missing = |source: &&OsString| {
        let found = std::fs::symlink_metadata(source);
        *source != "-" && found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    let (Some(missing), [_, .., last]) = (sources.iter().find(is_missing), sources) else { return Ok(()) };
    // A single missing source is an error in any case, with the reason of the system.
    if sources.iter().all(|source| is_missing(&source)) {
        return Ok(());
    }
    let shown = Path::new(missing).display();
    Err(Failure::usage(match missing == last {
        true => {
            format!(
                "there is no file `{shown}`, and nothing was stored; did you mean `--to {}`?",
                quoted(&shown.to_string())
            )
        }
        false => format!(
            "there is no file `{shown}`, and nothing was stored; leave it out, or give --to PATH to store the others below PATH"
        ),
    }))
}

/// The last name of a path. For `.` and `..` it is the name of the directory that they mean.
fn base_name(path: &Path) -> Result<Vec<u8>, Failure> {
    let anonymous = || {
        Failure::usage(format!("{} has no name of its own; name its target with --to PATH", path.display()))
    };
    let is_dots = matches!(
        path.as_os_str().as_bytes().rsplit(|&byte| byte == b'/').find(|part| !part.is_empty()),
        Some(b"." | b"..")
    );
    if !is_dots {
        return path.file_name().map(|name| name.as_bytes().to_vec()).ok_or_else(anonymous);
    }
    let real = std::fs::canonicalize(path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))?;
    real.file_name().map(|name| name.as_bytes().to_vec()).ok_or_else(anonymous)
}

/// The sources that exist. With `--to`, a missing one is skipped if there are others.
pub(super) fn sources(
    store: &Store,
    targets: Vec<(OsString, StorePath)>,
    allow_empty: bool,
    progress: &Progress,
) -> Result<Vec<(Source, StorePath)>, Failure> {
    let (alone, mut sources) = (targets.len() == 1, Vec::new());
    for (source, target) in targets {
        if source == "-" {
            let mut stream = std::io::BufReader::new(std::io::stdin());
            let is_empty = std::io::BufRead::fill_buf(&mut stream).is_ok_and(<[u8]>::is_empty);
            let holds = || {
                find(&*store.meta, At::Now, &target)
                    .map(|found| found.is_some_and(|found| !found.root.is_empty()))
            };
            if is_empty && !allow_empty && holds()? {
                return Err(Failure::usage(format!(
                    "standard input is empty (did its program fail?), and `{target}` has content; give --allow-empty to replace it"
                )));
            }
            sources.push((Source::Stream(Box::new(stream)), target));
            continue;
        }
        let path = PathBuf::from(&source);
        match std::fs::symlink_metadata(&path) {
            Ok(found) => {
                let target = if found.is_dir() { target } else { file_target(store, &source, target)? };
                sources.push((Source::Path(path), target));
            }
            Err(error) if alone => {
                return Err(Failure::io(format!("cannot read {}", path.display()), &error));
            }
            Err(error) => progress.skip(path.display().to_string(), plain(&error)),
        }
    }
    if sources.is_empty() {
        report_skipped(progress);
        return Err(Failure::failed("none of the sources can be read; nothing was stored"));
    }
    Ok(sources)
}

/// A file whose target is a directory of the store goes into it; it never replaces a tree.
fn file_target(store: &Store, source: &OsStr, target: StorePath) -> Result<StorePath, Failure> {
    let existing = find(&*store.meta, At::Now, &target)?;
    let is_directory = existing.is_some_and(|inode| inode.attributes.kind == FileKind::Directory);
    // A symlink to a directory with a slash at its end means the directory.
    if is_directory && !source.as_bytes().ends_with(b"/") {
        return Ok(target.join(&base_name(Path::new(source))?));
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn planned(sources: &[&str], to: Option<&str>) -> Result<Vec<String>, Failure> {
        let sources: Vec<OsString> = sources.iter().map(OsString::from).collect();
        let to = to.map(|to| StorePath::parse(to.as_bytes()).unwrap());
        let planned = targets(&sources, to.as_ref(), false)?;
        Ok(planned.into_iter().map(|(_, target)| target.to_string()).collect())
    }

    #[test]
    fn sources_find_their_places() {
        assert_eq!(planned(&["x/src"], Some("tree")).unwrap(), ["tree"]);
        assert_eq!(planned(&["x/src/"], None).unwrap(), ["src"]);
        assert_eq!(planned(&["a", "x/b"], Some("t")).unwrap(), ["t/a", "t/b"]);
        assert_eq!(planned(&["-"], Some("t")).unwrap(), ["t"]);
        for (sources, to) in
            [(&["-"][..], None), (&["a", "b/a"], None), (&["/"], None), (&["a", "-"], Some("t"))]
        {
            assert_eq!(planned(sources, to).unwrap_err().exit, Exit::Usage, "{sources:?}");
        }
    }
}
