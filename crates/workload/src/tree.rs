//! Trees of files: source code, its next version, and masses of small files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::text::Text;
use crate::{Rng, about, set_mtime};

/// Times lie in the six years after this second (September 2014).
const TIMES_FROM: i64 = 1_410_000_000;
const TIMES_SPAN: u64 = 6 * 365 * 86_400;
/// A second version's times lie in the year after this second (September 2020).
const NEXT_TIMES_FROM: i64 = 1_600_000_000;
const NEXT_TIMES_SPAN: u64 = 365 * 86_400;

/// Sizes of source files, as (files of 1000 that are no larger, bytes): those of the Linux kernel,
/// rounded.
const SIZES: [(u64, u64); 12] = [
    (0, 0),
    (10, 60),
    (100, 500),
    (250, 1_500),
    (500, 5_000),
    (750, 14_000),
    (900, 35_000),
    (970, 80_000),
    (990, 160_000),
    (997, 400_000),
    (999, 900_000),
    (1000, 2_500_000),
];

/// The options of [`source_tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Chooses everything.
    pub seed: u64,
    /// Regular files. Besides them there is a directory for about every 18, and a symlink for about
    /// every 500.
    pub files: u64,
    /// No file is larger than this many bytes.
    pub file_bytes_max: u64,
}

impl TreeOptions {
    /// A tree of `files` files with sizes up to 2.5 MB, 16 KB on average.
    pub fn new(seed: u64, files: u64) -> Self {
        Self { seed, files, file_bytes_max: u64::MAX }
    }
}

/// Counts of what a generator made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSummary {
    /// Regular files.
    pub files: u64,
    /// Directories, with the root.
    pub dirs: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Bytes of the regular files.
    pub bytes: u64,
}

/// Makes a tree of text files like a large program's source in the directory `root`, which is
/// created and may exist empty. Bytes, names, modes (0644 and a few 0755) and times depend on the
/// options alone.
///
/// # Errors
/// Those of creating files, with the path.
pub fn source_tree(root: &Path, options: &TreeOptions) -> io::Result<TreeSummary> {
    let (text, mut rng) = (Text::new(options.seed), Rng::new(options.seed));
    let mut made = TreeSummary { dirs: 1, ..TreeSummary::default() };
    fs::create_dir_all(root).map_err(about(root))?;
    let mut dirs = vec![(root.to_owned(), 0)];
    for _ in 0..options.files / 18 {
        let (parent, depth) = &dirs[rng.index(dirs.len())];
        let (path, depth) = (parent.join(format!("{}{}", text.word(&mut rng), dirs.len())), depth + 1);
        if depth <= 8 {
            fs::create_dir(&path).map_err(about(&path))?;
            made.dirs += 1;
            dirs.push((path, depth));
        }
    }
    for number in 0..options.files {
        let (dir, _) = &dirs[rng.index(dirs.len())];
        let extension = ["c", "h", "txt", "S", "rst", "yaml"][rng.skewed(6) as usize];
        let path = dir.join(format!("{}{number}.{extension}", text.word(&mut rng)));
        let len = size(&mut rng).min(options.file_bytes_max);
        let bytes = text.bytes(&mut Rng::part(options.seed, number), len as usize);
        fs::write(&path, bytes).map_err(about(&path))?;
        set_mode(&path, if rng.permille(10) { 0o755 } else { 0o644 })?;
        set_random_mtime(&path, &mut rng, TIMES_FROM, TIMES_SPAN)?;
        made.files += 1;
        made.bytes += len;
        if rng.permille(2) {
            let link = dir.join(format!("link{number}"));
            symlink(path.file_name().unwrap_or_default(), &link).map_err(about(&link))?;
            set_random_mtime(&link, &mut rng, TIMES_FROM, TIMES_SPAN)?;
            made.symlinks += 1;
        }
    }
    // Directories last: making an entry moves its directory's time.
    for (dir, _) in &dirs {
        set_mode(dir, 0o755)?;
        set_random_mtime(dir, &mut rng, TIMES_FROM, TIMES_SPAN)?;
    }
    Ok(made)
}

/// How many files of 1000 [`mutate_tree`] changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutateOptions {
    /// Chooses what changes, and how.
    pub seed: u64,
    /// Files that get one to four edits: bytes replaced, inserted, removed, or appended.
    pub edited: u64,
    /// Files removed.
    pub removed: u64,
    /// Files that get another name or directory and keep their bytes.
    pub renamed: u64,
    /// Files added, relative to the earlier number.
    pub added: u64,
}

impl MutateOptions {
    /// Typical changes between two stable releases of a large program.
    pub fn new(seed: u64) -> Self {
        Self { seed, edited: 60, removed: 5, renamed: 5, added: 10 }
    }
}

/// What [`mutate_tree`] changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MutateSummary {
    /// Files edited.
    pub edited: u64,
    /// Files removed.
    pub removed: u64,
    /// Files renamed; the directory that is renamed in trees with several is not counted.
    pub renamed: u64,
    /// Files added.
    pub added: u64,
}

/// Turns the tree at `root` into its next version, in place; for the same tree and options, the
/// same version everywhere. Works on any tree; symlinks, hard-linked and special files stay as they
/// are. Changed files and the directories around changed entries get new times. A file that the
/// caller may not write is an error.
///
/// # Errors
/// Those of reading and writing the tree, with the path.
pub fn mutate_tree(root: &Path, options: &MutateOptions) -> io::Result<MutateSummary> {
    let (text, mut rng) = (Text::new(options.seed), Rng::new(options.seed));
    let (mut files, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    collect(root, &mut files, &mut dirs)?;
    let mut done = MutateSummary::default();
    let mut touched = Vec::new();
    for (number, path) in files.iter().enumerate() {
        let parent = path.parent().unwrap_or(root).to_owned();
        let fate = rng.below(1000);
        if fate < options.removed {
            fs::remove_file(path).map_err(about(path))?;
            touched.push(parent);
            done.removed += 1;
        } else if fate < options.removed + options.renamed {
            let mut name = OsString::from(format!("moved{number}-"));
            name.push(path.file_name().unwrap_or_default());
            let target = dirs[rng.index(dirs.len())].clone();
            if name.len() <= 255 {
                fs::rename(path, target.join(name)).map_err(about(path))?;
                touched.extend([parent, target]);
                done.renamed += 1;
            }
        } else if fate < options.removed + options.renamed + options.edited {
            edit(path, &text, &mut rng)?;
            done.edited += 1;
        }
        if rng.permille(options.added) {
            let dir = &dirs[rng.index(dirs.len())];
            let path = dir.join(format!("new{number}-{}.c", text.word(&mut rng)));
            let len = size(&mut rng) as usize;
            fs::write(&path, text.bytes(&mut rng, len)).map_err(about(&path))?;
            set_mode(&path, 0o644)?;
            set_random_mtime(&path, &mut rng, NEXT_TIMES_FROM, NEXT_TIMES_SPAN)?;
            touched.push(dir.clone());
            done.added += 1;
        }
    }
    touched.sort();
    touched.dedup();
    for dir in &touched {
        set_random_mtime(dir, &mut rng, NEXT_TIMES_FROM, NEXT_TIMES_SPAN)?;
    }
    if dirs.len() >= 4 && options.renamed > 0 {
        rename_directory(root, &dirs[1 + rng.index(dirs.len() - 1)], &mut rng)?;
    }
    Ok(done)
}

/// Makes `count` files of up to 4 KB (300 bytes on average) in a hierarchy of directories with at
/// most 1000 entries each. The file `n` lies in `dAAA/dBBB/`, counted in thousands and millions.
///
/// # Errors
/// Those of creating files, with the path.
pub fn small_files(root: &Path, seed: u64, count: u64) -> io::Result<TreeSummary> {
    let (text, mut rng) = (Text::new(seed), Rng::new(seed));
    let mut made = TreeSummary { dirs: 1, ..TreeSummary::default() };
    fs::create_dir_all(root).map_err(about(root))?;
    let mut dirs = vec![root.to_owned()];
    let mut dir = PathBuf::new();
    for number in 0..count {
        if number % 1000 == 0 {
            let upper = root.join(format!("d{:03}", number / 1_000_000));
            dir = upper.join(format!("d{:03}", number / 1000 % 1000));
            fs::create_dir_all(&dir).map_err(about(&dir))?;
            made.dirs += 1 + u64::from(number % 1_000_000 == 0);
            if number % 1_000_000 == 0 {
                dirs.push(upper);
            }
            dirs.push(dir.clone());
        }
        let len = if rng.permille(20) { rng.below(4096) } else { rng.skewed(1024) };
        let path = dir.join(format!("f{number:07}"));
        fs::write(&path, text.bytes(&mut rng, len as usize)).map_err(about(&path))?;
        set_mode(&path, 0o644)?;
        set_random_mtime(&path, &mut rng, TIMES_FROM, TIMES_SPAN)?;
        made.files += 1;
        made.bytes += len;
    }
    for dir in &dirs {
        set_mode(dir, 0o755)?;
        set_random_mtime(dir, &mut rng, TIMES_FROM, TIMES_SPAN)?;
    }
    Ok(made)
}

/// A size from the distribution [`SIZES`], evenly between its points.
fn size(rng: &mut Rng) -> u64 {
    let place = rng.below(1_000_000);
    let above = SIZES.iter().position(|&(permille, _)| place < permille * 1000).unwrap_or(SIZES.len() - 1);
    let ((from, small), (to, large)) = (SIZES[above - 1], SIZES[above]);
    small + (large - small) * (place - from * 1000) / ((to - from) * 1000)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(about(path))
}

fn set_random_mtime(path: &Path, rng: &mut Rng, from: i64, span: u64) -> io::Result<()> {
    let secs = from + rng.below(span) as i64;
    set_mtime(path, secs, rng.below(1_000_000_000) as u32)
}

/// Regular files with one name, and directories, below `dir`, each in the order of a sorted walk.
fn collect(dir: &Path, files: &mut Vec<PathBuf>, dirs: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<_>>>())
        .map_err(about(dir))?;
    entries.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    for path in entries {
        let meta = fs::symlink_metadata(&path).map_err(about(&path))?;
        if meta.is_dir() {
            dirs.push(path.clone());
            collect(&path, files, dirs)?;
        } else if meta.is_file() && meta.nlink() == 1 {
            files.push(path);
        }
    }
    Ok(())
}

fn edit(path: &Path, text: &Text, rng: &mut Rng) -> io::Result<()> {
    let mut bytes = fs::read(path).map_err(about(path))?;
    for _ in 0..rng.between(1, 4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let cut = (rng.between(1, 400) as usize).min(bytes.len() - at);
        let len = rng.between(1, 400) as usize;
        let new = text.bytes(rng, len);
        match rng.below(4) {
            0 => drop(bytes.splice(at..at + cut, new)),
            1 => drop(bytes.splice(at..at, new)),
            2 => drop(bytes.drain(at..at + cut)),
            _ => bytes.extend(new),
        }
    }
    fs::write(path, bytes).map_err(about(path))?;
    set_random_mtime(path, rng, NEXT_TIMES_FROM, NEXT_TIMES_SPAN)
}

/// Gives `dir` another name beside itself, and its parent a new time.
fn rename_directory(root: &Path, dir: &Path, rng: &mut Rng) -> io::Result<()> {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push("-renamed");
    if name.len() <= 255 {
        fs::rename(dir, dir.with_file_name(name)).map_err(about(dir))?;
        set_random_mtime(dir.parent().unwrap_or(root), rng, NEXT_TIMES_FROM, NEXT_TIMES_SPAN)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{What, compare_trees};

    /// A hash over names, modes, times and bytes.
    fn tree_hash(root: &Path) -> String {
        let (mut files, mut dirs) = (Vec::new(), vec![root.to_owned()]);
        collect(root, &mut files, &mut dirs).unwrap();
        let mut hasher = blake3::Hasher::new();
        for path in dirs.iter().chain(&files) {
            let meta = fs::symlink_metadata(path).unwrap();
            hasher.update(path.strip_prefix(root).unwrap().as_os_str().as_bytes());
            hasher.update(&meta.mode().to_le_bytes());
            hasher.update(&meta.mtime().to_le_bytes());
            hasher.update(&meta.mtime_nsec().to_le_bytes());
            if meta.is_file() {
                hasher.update(&fs::read(path).unwrap());
            }
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    #[test]
    fn a_source_tree_and_its_next_version_never_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        let made = source_tree(&root, &TreeOptions::new(1, 400)).unwrap();
        assert_eq!((made.files, made.dirs > 15), (400, true));
        assert!((4_000_000..12_000_000).contains(&made.bytes), "{} bytes", made.bytes);
        assert_eq!(tree_hash(&root), "a871841a52ada1472fec00c3e1268d5d");
        let done = mutate_tree(&root, &MutateOptions::new(2)).unwrap();
        assert!(done.edited > 10 && done.added > 0 && done.removed + done.renamed > 0, "{done:?}");
        assert_eq!(tree_hash(&root), "08f9b3101202a3f280f0029f4a14f2d8");
    }

    #[test]
    fn a_next_version_differs_in_every_way() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let options = TreeOptions { file_bytes_max: 5000, ..TreeOptions::new(3, 300) };
        source_tree(&a, &options).unwrap();
        source_tree(&b, &options).unwrap();
        assert_eq!(compare_trees(&a, &b).unwrap(), []);
        mutate_tree(&b, &MutateOptions::new(4)).unwrap();
        let found = compare_trees(&a, &b).unwrap();
        assert!(found.iter().any(|d| matches!(d.what, What::Content { .. } | What::Size { .. })));
        assert!(found.iter().any(|d| matches!(d.what, What::OnlyIn(crate::Side::A))));
        assert!(found.iter().any(|d| matches!(d.what, What::OnlyIn(crate::Side::B))));
        assert!(found.iter().any(|d| matches!(d.what, What::Mtime { .. })));
    }

    #[test]
    fn small_files_never_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("small");
        let made = small_files(&root, 1, 2500).unwrap();
        assert_eq!((made.files, made.dirs), (2500, 1 + 1 + 3));
        assert!(root.join("d000/d002/f0002499").exists());
        assert_eq!(tree_hash(&root), "4aa57e26f7a56da68176cfa547edb115");
    }

    #[test]
    fn sizes_are_those_of_source_files() {
        let mut rng = Rng::new(1);
        let mut sizes: Vec<u64> = (0..20_000).map(|_| size(&mut rng)).collect();
        sizes.sort_unstable();
        assert!((4_500..5_500).contains(&sizes[10_000]), "median {}", sizes[10_000]);
        let mean = sizes.iter().sum::<u64>() / 20_000;
        assert!((13_000..20_000).contains(&mean), "mean {mean}");
        assert!(sizes[19_999] <= 2_500_000);
    }
}
