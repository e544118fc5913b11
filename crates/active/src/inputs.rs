//! Globs over the store: which stored files a job reads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::{At, DirEntry, Inode, Meta, ROOT_INODE};
use outrigger_store::tree::listing::Ancestors;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::{Error, ErrorKind, Result};

/// A stored file.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path.
    pub path: StorePath,
    /// What it is.
    pub inode: Inode,
}

/// A glob over paths of a store: `*` and `?` within a name, `**` over names, `[…]`, `{a,b}`.
pub struct StoreGlob {
    text: String,
    matcher: GlobMatcher,
    /// The directory above everything that can match.
    base: StorePath,
    /// The names below it that the glob has; `None` with `**`: any number.
    depth: Option<usize>,
}

const PAGE: usize = 4096;

impl StoreGlob {
    /// Parses a glob.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = text.trim_matches('/');
        let glob = GlobBuilder::new(plain).literal_separator(true).backslash_escape(true).build();
        let glob = glob.map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("`{text}` is no glob: {}", error.kind()))
        })?;
        let is_plain = |name: &&str| !name.contains(['*', '?', '[', '{', '\\']);
        let names: Vec<&str> = plain.split('/').collect();
        let fixed = names[..names.len() - 1].iter().copied().take_while(is_plain).count();
        let base = StorePath::parse(names[..fixed].join("/").as_bytes())?;
        let open = plain.contains("**") || plain.contains('{');
        let depth = (!open).then(|| names.len() - fixed);
        Ok(Self { text: text.to_string(), matcher: glob.compile_matcher(), base, depth })
    }

    /// True when this path matches.
    pub fn matches(&self, path: &StorePath) -> bool {
        self.matcher.is_match(Path::new(OsStr::from_bytes(&path.to_bytes())))
    }

    /// A path that matches, as a person would make one up; `None` for globs of which none is made
    /// up so easily.
    pub fn example(&self) -> Option<StorePath> {
        let (mut path, mut rest) = (String::new(), self.text.trim_matches('/').chars().peekable());
        while let Some(c) = rest.next() {
            match c {
                '*' => {
                    while rest.next_if_eq(&'*').is_some() {}
                    path += "some";
                }
                '?' => path.push('x'),
                '\\' => path.extend(rest.next()),
                '[' => {
                    path.extend(rest.next());
                    rest.find(|&c| c == ']')?;
                }
                '{' => {
                    let all: String = rest.by_ref().take_while(|&c| c != '}').collect();
                    path += all.split(',').next()?;
                }
                c => path.push(c),
            }
        }
        StorePath::parse(path.as_bytes()).ok().filter(|path| self.matches(path))
    }

    /// The regular files that match, in order of their paths; one that is named as it is comes
    /// first of all, whatever characters it has.
    ///
    /// # Errors
    /// `NotFound` when nothing matches, `Damaged` when a directory lies below itself, and those of
    /// the database.
    pub fn files(&self, meta: &dyn Meta, at: At) -> Result<Vec<Found>> {
        if let Ok(path) = StorePath::parse(self.text.as_bytes())
            && let Some(inode) = find(meta, at, &path)?
        {
            if inode.attributes.kind == FileKind::File {
                return Ok(vec![Found { path, inode }]);
            }
            let why =
                format!("`{path}` is not a file; to read what is in a directory, give {path}/** or {path}/*");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let mut files = self.entries(meta, at)?;
        files.retain(|found| found.inode.attributes.kind == FileKind::File);
        if files.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("no stored file matches `{}`", self.text)));
        }
        Ok(files)
    }

    /// The entries of any kind that match, in order of their paths, a directory before what it
    /// holds.
    ///
    /// # Errors
    /// `Damaged` when a directory lies below itself, and those of the database.
    pub fn entries(&self, meta: &dyn Meta, at: At) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let base = if self.base.components.is_empty() {
            meta.inode(at, ROOT_INODE)?
        } else {
            find(meta, at, &self.base)?
        };
        if let Some(base) = base.filter(|base| base.attributes.kind == FileKind::Directory) {
            let mut above = Ancestors::new(base.number);
            self.below(meta, at, &self.base, base.number, &mut above, 1, &mut found)?;
        }
        Ok(found)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "it calls itself, and each of them differs or is needed below"
    )]
    fn below(
        &self,
        meta: &dyn Meta,
        at: At,
        path: &StorePath,
        directory: u64,
        above: &mut Ancestors,
        depth: usize,
        found: &mut Vec<Found>,
    ) -> Result<()> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = meta.read_dir(at, directory, after.as_deref(), PAGE)?;
            let full = page.len() == PAGE;
            after = page.last().map(|entry| entry.name.clone());
            for DirEntry { name, inode } in page {
                let path = path.join(&name);
                let (number, kind) = (inode.number, inode.attributes.kind);
                if self.matches(&path) {
                    found.push(Found { path: path.clone(), inode });
                }
                if kind == FileKind::Directory && self.depth.is_none_or(|most| depth < most) {
                    above.enter(number)?;
                    self.below(meta, at, &path, number, above, depth + 1, found)?;
                    above.leave(number);
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}
