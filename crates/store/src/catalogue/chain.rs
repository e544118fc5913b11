//! Which blocks of the catalogue count, and how they name each other.
//!
//! Each block may say which blocks came before it ([`Record::After`]), so that none of them can be
//! taken away unnoticed. A process names the blocks that it has committed itself (`links.rs`). A
//! *mark* names all blocks that no other block names: it joins the work of all hosts, and its
//! fingerprint is a [`Head`]. A reset supersedes everything before it and carries on the heads.
//!
//! **A reset is sealed** in an encrypted store, by a key that a host which only stores does not
//! have. Only a store whose packs were copied from one that was not encrypted has none. So once
//! anything is sealed, a later reset counts only if it is sealed, too.
//!
//! [`Record::After`]: outrigger_format::catalogue::Record::After

use std::collections::{HashMap, HashSet};

use outrigger_format::{Fingerprint, StoreId};

use super::blocks::FoundBlock;
use super::head::Head;
use crate::error::{Error, Result};

/// The blocks that count.
#[derive(Default)]
pub(crate) struct Standing {
    /// The sequence of the last reset; 0 if there is none.
    pub base: u64,
    /// Sequences of resets that were interrupted, and of those that nobody sealed.
    dropped: HashSet<u64>,
    /// Sequences of complete resets that nobody sealed.
    pub unsealed: Vec<u64>,
    /// The end of the last reset is sealed.
    is_sealed: bool,
}

impl Standing {
    /// Judges all blocks that were found.
    pub fn of(blocks: &[FoundBlock]) -> Self {
        let sequences = |wanted: fn(&FoundBlock) -> bool| -> HashSet<u64> {
            blocks.iter().filter(|found| wanted(found)).map(|found| found.sequence).collect()
        };
        let (resets, ends) = (sequences(|found| found.resets), sequences(|found| found.ends));
        let (lossy, sealed) =
            (sequences(|found| found.is_lossy), sequences(|found| found.ends && found.is_sealed));
        let sealed_since = sequences(|found| found.is_sealed).iter().min().copied().unwrap_or(u64::MAX);
        // A reset that may have lost some of its blocks supersedes nothing that still exists.
        let first = blocks.iter().map(|found| found.sequence).min().unwrap_or(0);
        let is_believed = |sequence: u64| sealed.contains(&sequence) || sequence < sealed_since;
        let is_whole = |sequence: u64| !lossy.contains(&sequence) || sequence == first;
        let complete = || resets.intersection(&ends).copied();
        let counts = |&sequence: &u64| is_believed(sequence) && is_whole(sequence);
        let base = complete().filter(counts).max().unwrap_or(0);
        let mut unsealed: Vec<u64> = complete().filter(|&sequence| !is_believed(sequence)).collect();
        unsealed.sort_unstable();
        let mut dropped: HashSet<u64> = resets.symmetric_difference(&ends).copied().collect();
        dropped.extend(&unsealed);
        Self { base, dropped, unsealed, is_sealed: sealed.contains(&base) }
    }

    /// True if blocks of this sequence count.
    pub fn counts(&self, sequence: u64) -> bool {
        sequence >= self.base && !self.dropped.contains(&sequence)
    }
}

/// How the blocks that count name each other.
pub(crate) struct Chain {
    /// The blocks that no other one names: sequence and fingerprint.
    pub tips: Vec<(u64, Fingerprint)>,
    /// Blocks that others name, and that are not there; each with the sequence of one that names
    /// it.
    pub missing: Vec<(u64, u64)>,
    /// All heads that were given out, and whether they stand for what the last reset describes.
    pub heads: HashMap<Fingerprint, bool>,
    present: HashSet<Fingerprint>,
    marks: HashSet<Fingerprint>,
}

impl Chain {
    /// Links blocks that count, each once.
    pub fn of(blocks: &[FoundBlock], standing: &Standing) -> Self {
        let present: HashSet<Fingerprint> = blocks.iter().map(|found| found.fingerprint).collect();
        let marked = blocks.iter().filter(|found| found.is_mark);
        let marks: HashSet<Fingerprint> = marked.map(|found| found.fingerprint).collect();
        let (mut named, mut missing, mut heads) = (HashSet::new(), Vec::new(), HashMap::new());
        for found in blocks {
            for &(sequence, fingerprint) in &found.after {
                // The base has superseded what was before it.
                let is_new = named.insert(fingerprint) && sequence >= standing.base;
                if is_new && !present.contains(&fingerprint) {
                    missing.push((sequence, found.sequence));
                }
            }
            // Only the end of a reset has them, and it is sealed if the reset is.
            let is_end = found.ends && found.sequence == standing.base && standing.base > 0;
            if is_end && found.is_sealed == standing.is_sealed {
                for (is_proven, superseded) in &found.heads {
                    heads.extend(superseded.iter().map(|&head| (head, *is_proven)));
                }
            }
        }
        heads.extend(marks.iter().map(|&mark| (mark, true)));
        let tips = blocks.iter().filter(|found| !named.contains(&found.fingerprint));
        let tips = tips.map(|found| (found.sequence, found.fingerprint)).collect();
        missing.sort_unstable();
        Self { tips, missing, heads, present, marks }
    }

    /// Refuses a head that is not in the chain.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn require(&self, head: &Head) -> Result<()> {
        if self.present.iter().any(|block| head.names(block)) {
            return Ok(());
        }
        let why = match self.heads.iter().find(|(block, _)| head.names(block)) {
            Some((_, true)) => return Ok(()),
            Some((_, false)) => {
                "the catalogue has this head, but was written anew since from a database that differed from \
                 it: what was stored before may have been changed"
            }
            None => {
                "the catalogue does not have this head: the store was set back to a state from before it, or \
                 packs of the catalogue were taken away"
            }
        };
        Err(Error::damaged(why))
    }

    /// The blocks that are missing.
    pub fn missing_in_words(&self) -> impl Iterator<Item = String> {
        self.missing.iter().map(|(sequence, by)| {
            format!(
                "the catalogue block of sequence {sequence}, which that of sequence {by} names, is missing"
            )
        })
    }

    /// The head that stands for all blocks, if there is one.
    pub fn head(&self, store: StoreId) -> Option<Head> {
        match self.tips[..] {
            [(sequence, block)] if self.marks.contains(&block) => Some(Head::new(store, sequence, block)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::catalogue::{Block, BlockBuilder, Record};
    use outrigger_format::{FingerprintKind, PackId};

    use super::*;

    fn found(sequence: u64, records: &[Record], is_sealed: bool) -> FoundBlock {
        let mut builder = BlockBuilder::default();
        records.iter().for_each(|record| builder.push(record));
        let bytes = builder.finish(sequence, 5);
        let name = outrigger_offload::hash(FingerprintKind::Blake3, &bytes);
        let found = FoundBlock::new(&Block::decode(&bytes).unwrap(), name, PackId(1), 0);
        FoundBlock { is_sealed, ..found }
    }

    /// A thief knows a head: it is no secret.
    #[test]
    fn heads_are_believed_from_the_end_of_the_reset_that_counts_alone() {
        let head = Fingerprint([7; 32]);
        let heads = Record::Heads { is_proven: true, heads: vec![head] };
        let reset = [Record::Reset, heads.clone(), Record::ResetEnd];
        let has = |blocks: &[FoundBlock]| Chain::of(blocks, &Standing::of(blocks)).heads.contains_key(&head);
        assert!(has(&[found(5, &reset, false)]) && has(&[found(5, &reset, true)]));
        assert!(!has(&[found(0, std::slice::from_ref(&heads), false)]), "there is no reset");
        assert!(!has(&[found(0, &reset, false)]), "nothing has this sequence");
        let sealed = found(5, &[Record::Reset, Record::ResetEnd], true);
        assert!(!has(&[sealed.clone(), found(5, &reset, false)]), "beside a sealed one");
        assert!(!has(&[sealed, found(5, &[heads], true)]), "not an end");
    }

    #[test]
    fn a_seal_is_of_its_own_block_alone() {
        let first = found(3, &[Record::Unlink { parent: 1, name: b"a".to_vec() }], false);
        let mark = found(7, &[Record::After { blocks: Vec::new() }], true);
        let forged = found(7, &[Record::Reset, Record::ResetEnd], false);
        let standing = Standing::of(&[first.clone(), mark.clone(), forged]);
        assert_eq!((standing.base, &standing.unsealed[..]), (0, &[7][..]));
        assert!(standing.counts(3));
        // A later one without a seal counts for nobody either.
        let later = found(9, &[Record::Reset, Record::ResetEnd], false);
        assert_eq!(Standing::of(&[first, mark, later]).base, 0);
    }
}
