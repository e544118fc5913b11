//! What is sealed in the database, and as what: the only module that knows the engine's sealer.
//!
//! A statement takes bytes and texts as [`Param::Bytes`] and its like, with a [`Subject`] that says
//! what they are, and a connection seals them as it sends them. [`super::connection::Row`] opens
//! them as they are read. Where a value stays visible on purpose, statement and reader say so
//! ([`Public`]); everything else than numbers does not compile without one or the other. An engine
//! without a sealer passes all values as they are.
//!
//! Sealed texts are base64 in the same columns, so the schema is that of a plain store.
//!
//! **What SQL does with sealed values**: it compares them within one subject, and that is all.
//! Names are in no order, so listings are sorted here (`listing.rs`, `history`, `outputs`,
//! `records`, `held`). Lengths of inline chunks are corrected by [`Param::Excess`]. `sha256` of
//! held roots is over sealed bytes. Rows are still locked in the order of plain keys, which all
//! clients know. Whether a name can be one, `check` decides here.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::error::ErrorKind;
use crate::keys::Rights;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::sealer::{SEALED_MORE, Sealer};

/// An engine's sealer, once it has one. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Seals(Arc<OnceLock<Sealer>>);

/// What a value is, with the key of what it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Subject {
    /// A name in a directory, present or former.
    Name {
        parent: i64,
    },
    /// Of an inode, present or former.
    Target {
        inode: i64,
    },
    Xattrs {
        inode: i64,
    },
    Root {
        inode: i64,
    },
    /// An earlier content.
    VersionRoot {
        inode: i64,
        number: i64,
    },
    PinnedRoot {
        session: i64,
    },
    HeldRoot {
        holder: Box<str>,
    },
    Fingerprint,
    InlineBytes {
        fingerprint: Box<[u8; 32]>,
    },
    SnapshotName,
    SnapshotTags {
        epoch: i64,
        name: Box<str>,
    },
    /// The database numbers a job when it gets this.
    JobSpec,
    JobWhy {
        job: i64,
    },
    JobMade {
        job: i64,
    },
    InputPath {
        job: i64,
        number: i64,
    },
    InputRoot {
        job: i64,
        number: i64,
    },
    SplitWhy {
        job: i64,
    },
    SplitLog {
        job: i64,
        split: i64,
    },
    SplitMeasured {
        job: i64,
        split: i64,
    },
    OutputName {
        job: i64,
        split: i64,
        attempt: i64,
    },
    OutputRoot {
        job: i64,
        split: i64,
        attempt: i64,
    },
    RecordName {
        kind: Box<str>,
    },
    RecordValue {
        record: Box<(String, String)>,
    },
    RuleName,
    RuleMark {
        inode: i64,
        rule: Box<str>,
    },
}

impl Subject {
    pub fn held(holder: &str) -> Self {
        Self::HeldRoot { holder: holder.into() }
    }

    pub fn inline(fingerprint: &[u8; 32]) -> Self {
        Self::InlineBytes { fingerprint: Box::new(*fingerprint) }
    }

    pub fn record_name(kind: &str) -> Self {
        Self::RecordName { kind: kind.into() }
    }

    pub fn record(kind: &str, name: &str) -> Self {
        Self::RecordValue { record: Box::new((kind.to_owned(), name.to_owned())) }
    }

    pub fn mark(rule: &str, inode: u64) -> Self {
        Self::RuleMark { inode: inode as i64, rule: rule.into() }
    }

    /// The column, the numbers and the texts of what it belongs to. These are what a value is
    /// sealed as, so none may ever change.
    fn parts(&self) -> (&'static str, [i64; 3], [&[u8]; 2]) {
        let column = |column, numbers| (column, numbers, [&b""[..], b""]);
        match self {
            Self::Name { parent } => column("dentry.name", [*parent, 0, 0]),
            Self::Target { inode } => column("inode.target", [*inode, 0, 0]),
            Self::Xattrs { inode } => column("inode.xattrs", [*inode, 0, 0]),
            Self::Root { inode } => column("inode.root", [*inode, 0, 0]),
            Self::VersionRoot { inode, number } => column("version.root", [*inode, *number, 0]),
            Self::PinnedRoot { session } => column("pin_root.root", [*session, 0, 0]),
            Self::HeldRoot { holder } => ("held.root", [0; 3], [holder.as_bytes(), b""]),
            Self::Fingerprint => column("inline_chunk.fingerprint", [0; 3]),
            Self::InlineBytes { fingerprint } => ("inline_chunk.bytes", [0; 3], [&fingerprint[..], b""]),
            Self::SnapshotName => column("snapshot.name", [0; 3]),
            Self::SnapshotTags { epoch, name } => ("snapshot.tags", [*epoch, 0, 0], [name.as_bytes(), b""]),
            Self::JobSpec => column("job.spec", [0; 3]),
            Self::JobWhy { job } => column("job.why", [*job, 0, 0]),
            Self::JobMade { job } => column("job.made", [*job, 0, 0]),
            Self::InputPath { job, number } => column("job_input.path", [*job, *number, 0]),
            Self::InputRoot { job, number } => column("job_input.root", [*job, *number, 0]),
            Self::SplitWhy { job } => column("job_split.why", [*job, 0, 0]),
            Self::SplitLog { job, split } => column("job_split.log", [*job, *split, 0]),
            Self::SplitMeasured { job, split } => column("job_split.measured", [*job, *split, 0]),
            Self::OutputName { job, split, attempt } => column("job_output.name", [*job, *split, *attempt]),
            Self::OutputRoot { job, split, attempt } => column("job_output.root", [*job, *split, *attempt]),
            Self::RecordName { kind } => ("record.name", [0; 3], [kind.as_bytes(), b""]),
            Self::RecordValue { record } => {
                ("record.value", [0; 3], [record.0.as_bytes(), record.1.as_bytes()])
            }
            Self::RuleName => column("rule_mark.rule", [0; 3]),
            Self::RuleMark { inode, rule } => ("rule_mark.mark", [*inode, 0, 0], [rule.as_bytes(), b""]),
        }
    }

    /// True where an empty text is kept as it is: statements write one by themselves, and it says
    /// that there is nothing to say.
    fn may_be_nothing(&self) -> bool {
        matches!(self, Self::JobWhy { .. } | Self::SplitWhy { .. })
    }

    /// Contents have a sealer of their own, which not every host has.
    fn sealer<'s>(&self, sealer: &'s Sealer) -> Option<&'s Sealer> {
        match self {
            Self::InlineBytes { .. } => sealer.contents(),
            _ => Some(sealer),
        }
    }

    fn seal(&self, sealer: &Sealer, plain: &[u8]) -> Vec<u8> {
        let sealer = self.sealer(sealer).expect("a host that only stores makes packs");
        let (column, numbers, [one, two]) = self.parts();
        let numbers = numbers.map(i64::to_le_bytes);
        sealer.seal(&[column.as_bytes(), numbers.as_flattened(), one, two], plain)
    }

    fn seal_text(&self, sealer: &Sealer, plain: &str) -> String {
        if plain.is_empty() && self.may_be_nothing() {
            return String::new();
        }
        BASE64.encode(self.seal(sealer, plain.as_bytes()))
    }

    fn open(&self, sealer: &Sealer, sealed: &[u8]) -> Outcome<Vec<u8>> {
        let Some(sealer) = self.sealer(sealer) else {
            return Err(Rights::PutOnly.require_contents().expect_err("it reads none").into());
        };
        let (column, numbers, [one, two]) = self.parts();
        let numbers = numbers.map(i64::to_le_bytes);
        let opened = sealer.open(&[column.as_bytes(), numbers.as_flattened(), one, two], sealed);
        opened.ok_or_else(|| self.unreadable())
    }

    fn open_text(&self, sealer: &Sealer, sealed: &str) -> Outcome<String> {
        if sealed.is_empty() && self.may_be_nothing() {
            return Ok(String::new());
        }
        let sealed = BASE64.decode(sealed).map_err(|_| self.unreadable())?;
        String::from_utf8(self.open(sealer, &sealed)?).map_err(|_| self.unreadable())
    }

    fn unreadable(&self) -> Fault {
        let why = "was changed, or sealed under another key";
        refuse(ErrorKind::Damaged, format!("{self} cannot be decrypted: it {why}"))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { parent } => write!(f, "a name in directory {parent}")?,
            Self::Target { inode } | Self::Xattrs { inode } | Self::Root { inode } => {
                write!(f, "inode {inode}")?;
            }
            Self::VersionRoot { inode, number } => write!(f, "version {number} of inode {inode}")?,
            Self::PinnedRoot { session } => write!(f, "a content that session {session} pins")?,
            Self::HeldRoot { holder } => write!(f, "a root that {holder} holds")?,
            Self::Fingerprint | Self::InlineBytes { .. } => f.write_str("an inline chunk")?,
            Self::SnapshotName => f.write_str("a snapshot's name")?,
            Self::SnapshotTags { name, .. } => write!(f, "snapshot `{name}`")?,
            Self::JobSpec => f.write_str("a job's specification")?,
            Self::JobWhy { job } | Self::JobMade { job } => write!(f, "job {job}")?,
            Self::InputPath { job, number } | Self::InputRoot { job, number } => {
                write!(f, "input {number} of job {job}")?;
            }
            Self::SplitWhy { job } => write!(f, "a split of job {job}")?,
            Self::SplitLog { job, split } | Self::SplitMeasured { job, split } => {
                write!(f, "split {split} of job {job}")?;
            }
            Self::OutputName { job, split, .. } | Self::OutputRoot { job, split, .. } => {
                write!(f, "an output of split {split} of job {job}")?;
            }
            Self::RecordName { kind } => write!(f, "a record of kind {kind}")?,
            Self::RecordValue { record } => write!(f, "record {} {}", record.0, record.1)?,
            Self::RuleName => f.write_str("the mark of a rule")?,
            Self::RuleMark { inode, rule } => write!(f, "what rule {rule} has seen of inode {inode}")?,
        }
        write!(f, " ({})", self.parts().0)
    }
}

impl Seals {
    /// With a sealer, or without one yet.
    pub fn new(sealer: Option<Sealer>) -> Self {
        Self(Arc::new(sealer.map_or_else(OnceLock::new, OnceLock::from)))
    }

    /// Gives the engine its sealer; false if it has one.
    pub fn set(&self, sealer: Sealer) -> bool {
        self.0.set(sealer).is_ok()
    }

    pub fn sealer(&self) -> Option<&Sealer> {
        self.0.get()
    }

    /// Opens bytes that were read.
    pub fn bytes(&self, subject: &Subject, stored: Vec<u8>) -> Outcome<Vec<u8>> {
        match self.sealer() {
            None => Ok(stored),
            Some(sealer) => subject.open(sealer, &stored),
        }
    }

    /// Opens a text that was read.
    pub fn text(&self, subject: &Subject, stored: String) -> Outcome<String> {
        match self.sealer() {
            None => Ok(stored),
            Some(sealer) => subject.open_text(sealer, &stored),
        }
    }

    /// Opens a list of texts that was read. Sealed, it is one text, so that none can be taken out.
    pub fn list(&self, subject: &Subject, stored: Vec<String>) -> Outcome<Vec<String>> {
        let Some(sealer) = self.sealer() else { return Ok(stored) };
        let [one] = &stored[..] else { return Err(subject.unreadable()) };
        serde_json::from_str(&subject.open_text(sealer, one)?).map_err(|_| subject.unreadable())
    }

    /// A parameter as it is sent; `None`: as it is.
    pub fn sealed(&self, param: &Param) -> Option<Sent> {
        let sealer = self.sealer()?;
        let bytes = |value: &Private<Vec<u8>>| value.subject.seal(sealer, &value.value);
        let text = |value: &Private<String>| value.subject.seal_text(sealer, &value.value);
        Some(match param {
            Param::Visible(..) => return None,
            Param::Bytes(value) => Box::new(value.as_ref().map(bytes)),
            Param::Text(value) => Box::new(value.as_ref().map(text)),
            Param::EachBytes(values) => {
                Box::new(values.iter().map(|value| value.as_ref().map(bytes)).collect::<Vec<_>>())
            }
            Param::EachText(values) => {
                Box::new(values.iter().map(|value| value.as_ref().map(text)).collect::<Vec<_>>())
            }
            Param::List(subject, values) => {
                let text = serde_json::to_string(values).expect("texts are JSON");
                Box::new(vec![subject.seal_text(sealer, &text)])
            }
            Param::Excess(_) => Box::new(SEALED_MORE as i64),
        })
    }
}

/// A value as a statement takes it.
pub(super) type Sent = Box<dyn ToSql + Sync + Send>;

/// A value that only who has the key may see.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Private<T> {
    pub subject: Subject,
    pub value: T,
}

impl<T> Private<T> {
    pub fn new(subject: Subject, value: T) -> Self {
        Self { subject, value }
    }
}

/// As it is: for an engine without a sealer.
impl<T: ToSql> ToSql for Private<T> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.value.to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        T::accepts(kind)
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Bytes or a text that the server may see; the module's documentation of `meta/sealer.rs` lists
/// which.
#[derive(Debug)]
pub(super) struct Public<T>(pub T);

impl<T: ToSql> ToSql for Public<T> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        T::accepts(kind)
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Values that are passed as they are: numbers, and what is [`Public`].
pub(super) trait Visible {}

impl Visible for bool {}
impl Visible for i32 {}
impl Visible for i64 {}
impl<T: Visible> Visible for Option<T> {}
impl<T: Visible> Visible for Vec<T> {}
impl<T> Visible for Public<T> {}

/// A parameter of a statement.
pub(super) enum Param {
    Visible(Sent, Type),
    Bytes(Option<Private<Vec<u8>>>),
    Text(Option<Private<String>>),
    EachBytes(Vec<Option<Private<Vec<u8>>>>),
    EachText(Vec<Option<Private<String>>>),
    /// A list of texts in one value.
    List(Subject, Vec<String>),
    /// How much longer a value is than the plain one.
    Excess(i64),
}

impl Param {
    pub fn kind(&self) -> Type {
        match self {
            Self::Visible(_, kind) => kind.clone(),
            Self::Bytes(_) => Type::BYTEA,
            Self::Text(_) => Type::TEXT,
            Self::EachBytes(_) => Type::BYTEA_ARRAY,
            Self::EachText(_) | Self::List(..) => Type::TEXT_ARRAY,
            Self::Excess(_) => Type::INT8,
        }
    }

    /// The value without a sealer.
    pub fn plain(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Visible(value, _) => &**value,
            Self::Bytes(value) => value,
            Self::Text(value) => value,
            Self::EachBytes(values) => values,
            Self::EachText(values) => values,
            Self::List(_, values) => values,
            Self::Excess(value) => value,
        }
    }
}

/// A row's checksum: a CRC-32 over values, each with its length; with a sealer a keyed hash over
/// the same, so that it tells nothing about them.
pub(super) enum Sum {
    Plain(crc32fast::Hasher),
    Keyed(Box<blake3::Hasher>),
}

impl Sum {
    /// Of a row of `table`.
    pub fn new(seals: &Seals, table: &'static str) -> Self {
        match seals.sealer() {
            None => Self::Plain(crc32fast::Hasher::new()),
            Some(sealer) => Self::Keyed(Box::new(sealer.sum())).bytes(Some(table.as_bytes())),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(hasher) => hasher.update(bytes),
            Self::Keyed(hasher) => drop(hasher.update(bytes)),
        }
    }

    pub fn int(mut self, value: i64) -> Self {
        self.update(&value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, value: Option<&[u8]>) -> Self {
        match value {
            None => self.update(&[0]),
            Some(value) => {
                self.update(&[1]);
                self.update(&(value.len() as u64).to_le_bytes());
                self.update(value);
            }
        }
        self
    }

    pub fn text(self, value: &str) -> Self {
        self.bytes(Some(value.as_bytes()))
    }

    pub fn end(self) -> i32 {
        match self {
            Self::Plain(hasher) => hasher.finalize().cast_signed(),
            Self::Keyed(hasher) => {
                let hash = hasher.finalize();
                hash.as_bytes().first_chunk().map_or(0, |first| i32::from_le_bytes(*first))
            }
        }
    }
}
