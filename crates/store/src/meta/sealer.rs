//! Seals what a database elsewhere keeps of users' names and contents, so that its server can
//! neither read nor change it unnoticed.
//!
//! A value is sealed by AES-SIV (RFC 5297), with *what it is* as associated data: its column, and
//! the row or directory that it belongs to. So a value that is moved to another row or column does
//! not open there. AES-SIV is deterministic: a value sealed twice for one place gives the same
//! bytes. SQL can therefore compare sealed values and look them up by index, and a copy that is
//! brought up to date rewrites only rows that differ.
//!
//! A row's checksum becomes a keyed hash over the plain values of the row, of which 32 bits are
//! kept. It says nothing about these values to who lacks the key. Who changes a row, its visible
//! numbers included, is found out but once in 2^32 tries.
//!
//! # What a PostgreSQL server sees
//!
//! | of | it sees | it does not see |
//! | --- | --- | --- |
//! | names | which directory has how many, their lengths, when they came and went; that a name was in the same directory before | the names, their order; that names in two directories are equal |
//! | inodes | numbers, kinds, permissions, owners, times, counts of names, device numbers, lengths of targets, attributes and roots; that one came back to what it was before | targets, extended attributes, roots; that two inodes have the same content |
//! | the tree | its shape: which directory lies in which; the sum of the files' lengths, and so by how much each commit changes it | a file's length by itself |
//! | earlier contents | how many a file has, and from when | their roots |
//! | held and pinned roots | who holds how many | the roots |
//! | inline chunks | how many, their lengths, codecs, and the session that is to pack them; that a chunk came again | bytes, fingerprints |
//! | snapshots | how many, when | names, tags |
//! | packs | ids, kinds, states, lengths, counts of chunks | what is in them |
//! | sessions, locks on files | all: hosts, processes, their commands and agents, byte ranges | |
//! | policies | all: their names and values | |
//! | jobs | how many, their states, times and roles; splits and their ranges | specifications (arguments, environments), reasons, results, logs, measurements, paths, names of outputs, roots |
//! | registry | kinds of records, when each changed, who made a rule | names and values |
//! | rules | that a rule has seen an inode again | names of rules, what they have seen |
//! | the store | its configuration; counters, epochs and the pins on them, connections | |
//!
//! Deletions, and going back to an earlier state of a whole row, need no key: who has the server
//! can do both. Nor is a job's specification bound to its job, whose number the server gives out.
//! Rows without private values and without a checksum (packs, sessions, locks, policies, states of
//! jobs) are believed as in a plain store.

use aes_siv::KeyInit as _;
use aes_siv::siv::Aes256Siv;
use zeroize::Zeroizing;

use crate::keys::Key;

/// Bytes by which a sealed value is longer than the plain one.
pub(crate) const SEALED_MORE: usize = 16;

/// Seals and opens values of a database.
#[derive(Clone, Debug)]
pub struct Sealer {
    /// The two halves of AES-SIV's key.
    authentic: Key,
    secret: Key,
    /// Of checksums.
    sums: Key,
    /// Seals contents; `None` for a host that reads none.
    contents: Option<Box<Sealer>>,
}

impl Sealer {
    /// The sealer of a store with this key. The same key gives the same sealer.
    pub fn new(key: &Key) -> Self {
        Self::with(key, Some(&key.derive("outrigger 2026 metadata contents", &[])))
    }

    /// As [`Sealer::new`], with a key of its own for contents, or without the right to read any.
    pub fn with(key: &Key, contents: Option<&Key>) -> Self {
        let of = |purpose| key.derive(purpose, &[]);
        Self {
            authentic: of("outrigger 2026 metadata values SIV authentication"),
            secret: of("outrigger 2026 metadata values SIV encryption"),
            sums: of("outrigger 2026 metadata row checksums"),
            contents: contents.map(|key| Box::new(Self::with(key, None))),
        }
    }

    /// Seals and opens contents; `None` for a host that reads none.
    pub(crate) fn contents(&self) -> Option<&Self> {
        self.contents.as_deref()
    }

    fn siv(&self) -> Aes256Siv {
        let mut key = Zeroizing::new([0; 64]);
        key[..32].copy_from_slice(self.authentic.bytes());
        key[32..].copy_from_slice(self.secret.bytes());
        Aes256Siv::new(&(*key).into())
    }

    /// Seals `plain` as what `about` says, which is not stored.
    pub(crate) fn seal(&self, about: &[&[u8]], plain: &[u8]) -> Vec<u8> {
        self.siv().encrypt(about, plain).expect("`about` has few parts")
    }

    /// The value that was sealed as what `about` says; `None` if it was sealed as something else or
    /// with another key, or was changed since.
    pub(crate) fn open(&self, about: &[&[u8]], sealed: &[u8]) -> Option<Vec<u8>> {
        self.siv().decrypt(about, sealed).ok()
    }

    /// The beginning of a checksum: a keyed hash.
    pub(crate) fn sum(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(self.sums.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(byte: u8) -> Sealer {
        Sealer::new(&Key::new([byte; 32]))
    }

    #[test]
    fn a_value_opens_as_what_it_was_sealed_only() {
        let sealer = sealer(1);
        for plain in [&b""[..], b"x", b"fifteen bytes..", b"a value of more than sixteen bytes"] {
            let about: [&[u8]; 2] = [b"name", &[1]];
            let sealed = sealer.seal(&about, plain);
            assert_eq!(sealed.len(), plain.len() + SEALED_MORE);
            assert_eq!(sealer.seal(&about, plain), sealed, "equal values stay equal");
            assert_eq!(sealer.open(&about, &sealed).as_deref(), Some(plain));
            let others: [&[&[u8]]; 4] =
                [&[b"name", &[2]], &[b"root", &[1]], &[b"name"], &[b"name", &[1], b""]];
            for other in others {
                assert_eq!(sealer.open(other, &sealed), None, "{other:?}");
                assert_ne!(sealer.seal(other, plain), sealed);
            }
            assert_eq!(self::sealer(2).open(&about, &sealed), None, "another key");
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 0x10;
                assert_eq!(sealer.open(&about, &changed), None, "byte {at}");
                assert_eq!(sealer.open(&about, &sealed[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn values_are_those_of_the_key_for_ever() {
        // Who changes the derivation makes every encrypted database unreadable.
        let sealed = sealer(7).seal(&[b"dentry.name", &1i64.to_le_bytes()], b"name");
        let before = [59, 190, 16, 202, 28, 235, 20, 49, 252, 224, 10, 27, 220, 32, 11, 70, 117, 81, 109, 34];
        assert_eq!(sealed, before);
        let mut sum = sealer(7).sum();
        assert_eq!(sum.update(b"row").finalize().to_hex()[..8], *"b99bf13f");
    }

    #[test]
    fn a_sealer_is_not_printed() {
        assert!(!format!("{:?}", sealer(1)).contains('1'));
    }
}
