//! Suggests the command that was meant. The parser's own suggestions are often too far from the
//! word.

use clap::Error;
use clap::error::{ContextKind, ContextValue};

use super::groups::command;

/// The error, with the command that was meant: one of ours, or of `theirs`.
pub fn suggest(mut error: Error, word: &str, theirs: impl Iterator<Item = &'static str>) -> Error {
    let ours = command();
    let mut all: Vec<(bool, &str)> = theirs.map(|name| (true, name)).collect();
    all.extend(ours.get_subcommands().map(|ours| (false, ours.get_name())));
    // Among equally near names, ours come before theirs, and then one that begins with the word.
    let near = all
        .into_iter()
        .map(|(is_theirs, name)| (distance(word, name), is_theirs, !name.starts_with(word), name))
        .filter(|(far, .., name)| far * 3 <= name.len() + 1);
    match near.min() {
        Some((.., name)) => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name.to_string()]))
        }
        None => error.remove(ContextKind::SuggestedSubcommand),
    };
    error
}

/// The edit distance: letters to add, remove, change, or exchange with the next one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(x != y)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && (x, a[i - 1]) == (b[j - 1], y) {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_near() {
        for (a, b, far) in
            [("put", "put", 0), ("bakup", "backup", 1), ("unmuont", "unmount", 1), ("ls", "", 2)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }
}
