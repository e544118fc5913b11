//! Names of outputs, made from those of inputs: `{dir}/{stem}.out`.

use outrigger_store::meta::jobs::NewSplit;
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result};

use crate::pattern::Pattern;

/// The values for a template's placeholders.
pub struct Subject<'a> {
    /// The input; `None` where there are several.
    pub path: Option<&'a StorePath>,
    /// The input's number, from 0.
    pub input: u64,
    /// The split's number, from 0; `None` where the outputs of splits are joined.
    pub split: Option<u64>,
}

/// True when the template tells splits apart, so that their outputs are not joined.
pub fn names_splits(template: &str) -> bool {
    template.contains("{split}")
}

/// True when the template is a directory: the program makes the files in it.
pub fn is_directory(template: &str) -> bool {
    template.ends_with('/')
}

/// Puts the subject's names in.
///
/// # Errors
/// `Invalid` for an unknown placeholder, for one of a single input if there are several, and for a
/// result that is no path.
pub fn expand(template: &str, subject: &Subject<'_>) -> Result<StorePath> {
    let out = fill(template, subject, false)?;
    let path = StorePath::parse(&out)?;
    if path.components.is_empty() && !is_directory(template) {
        return Err(Error::new(ErrorKind::Invalid, format!("`{template}` names no file")));
    }
    Ok(path)
}

/// Puts the subject's names into a glob, where they match literally. (Braces of the glob's own are
/// doubled, as in every template.)
///
/// # Errors
/// As [`expand`].
pub fn expand_glob(template: &str, subject: &Subject<'_>) -> Result<String> {
    let out = String::from_utf8(fill(template, subject, true)?).map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("`{template}`: a name that is not UTF-8 can be in no glob"))
    })?;
    // For a file in the root.
    Ok(out.strip_prefix("./").map_or(out.clone(), str::to_string))
}

fn fill(template: &str, subject: &Subject<'_>, escapes: bool) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let tail = &rest[at..];
        if let Some(doubled) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
            out.push(tail.as_bytes()[0]);
            rest = doubled;
            continue;
        }
        let placeholder = tail.strip_prefix('{').and_then(|tail| tail.split_once('}'));
        let (name, after) = placeholder.ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("`{template}`: a brace without its partner; write {{{{ or }}}}"),
            )
        })?;
        for byte in value(template, name, subject)? {
            if escapes && b"*?[]{}\\".contains(&byte) {
                out.push(b'\\');
            }
            out.push(byte);
        }
        rest = after;
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// A template that expands to exactly this path.
pub fn of_path(path: &StorePath) -> Result<String> {
    let text = String::from_utf8(path.to_bytes()).map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("`{path}`: a name that is not UTF-8 cannot be written down"))
    })?;
    Ok(text.replace('{', "{{").replace('}', "}}"))
}

fn value(template: &str, name: &str, subject: &Subject<'_>) -> Result<Vec<u8>> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("`{template}`: {why}"));
    let path = || {
        subject.path.ok_or_else(|| invalid(format!("{{{name}}} speaks of one input, and there are several")))
    };
    let file = || path().map(|path| path.name().unwrap_or_default().to_vec());
    let dot = |file: &[u8]| file.iter().rposition(|&byte| byte == b'.').filter(|&at| at > 0);
    Ok(match name {
        "path" => path()?.to_bytes(),
        "dir" => {
            let parent = path()?.parent();
            if parent.components.is_empty() { b".".to_vec() } else { parent.to_bytes() }
        }
        "name" => file()?,
        "stem" => {
            let file = file()?;
            file[..dot(&file).unwrap_or(file.len())].to_vec()
        }
        "ext" => {
            let file = file()?;
            dot(&file).map(|at| file[at + 1..].to_vec()).unwrap_or_default()
        }
        "input" => subject.input.to_string().into_bytes(),
        "split" => match subject.split {
            // So that names sort as splits do.
            Some(split) => format!("{split:05}").into_bytes(),
            None => return Err(invalid("{split} has no meaning here".to_string())),
        },
        _ => {
            return Err(invalid(format!(
                "{{{name}}} is not known; there are {{path}}, {{dir}}, {{name}}, {{stem}}, {{ext}}, {{input}} and {{split}}"
            )));
        }
    })
}

/// The input that a template may speak of, for a split.
pub(crate) fn subject_path(pattern: Pattern, split: &NewSplit, paths: &[StorePath]) -> Option<StorePath> {
    let input = split.input.filter(|_| pattern != Pattern::ManyToFile || paths.len() == 1);
    let only = (paths.len() == 1).then_some(0);
    input.or(only).and_then(|input| paths.get(input as usize).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(template: &str, path: &str) -> String {
        let path = StorePath::parse(path.as_bytes()).unwrap();
        let subject = Subject { path: Some(&path), input: 7, split: Some(3) };
        expand(template, &subject).unwrap().to_string()
    }

    #[test]
    fn names_are_made_of_names() {
        assert_eq!(made("out/{stem}.bz", "a/b/c.tar.gz"), "out/c.tar.bz");
        assert_eq!(made("{dir}/{name}-{split}", "a/b/c"), "a/b/c-00003");
        assert_eq!(made("{dir}/x{input}.{ext}", "c.txt"), "x7.txt");
        assert_eq!(made("{{{path}}}", "a/b"), "{a/b}");
        assert_eq!(made("{stem}", ".hidden"), ".hidden");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let none = Subject { path: None, input: 0, split: None };
        for wrong in ["{what}", "{name", "a}b", "{name}", "{split}", "", "../x"] {
            let error = expand(wrong, &none).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}: {error}");
        }
    }
}
