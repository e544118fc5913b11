//! A writer that writes at random, and the program that tails its file.

use outrigger_fuse::live::Tailed;
use outrigger_workload::Rng;

use super::volume::random;

/// A file that is written while a program tails it.
pub trait Written {
    fn set_len(&self, len: u64);
    fn punch(&self, from: u64, len: u64);
    fn write(&self, at: u64, data: &[u8]);
    /// Stores it; it has this content.
    fn store(&mut self, content: &[u8]);
    /// The program's next bytes from `from` on.
    fn tail(&self, from: u64) -> Tailed;
}

/// What was written, and what the program has read of it.
#[derive(Default)]
pub struct Model {
    pub content: Vec<u8>,
    pub seen: Vec<u8>,
    /// Bytes that it has read were changed since.
    pub is_invalidated: bool,
    /// Some writers never look back.
    pub looks_back: bool,
}

impl Model {
    /// Has `file`, which is empty, written and read in fewer than `steps` steps.
    pub fn at_random(seed: u64, rng: &mut Rng, steps: u64, file: &mut dyn Written) -> Self {
        let mut model = Self { looks_back: rng.below(2) == 0, ..Self::default() };
        for _ in 0..rng.below(steps) {
            model.step(seed, rng, file);
        }
        model
    }

    fn step(&mut self, seed: u64, rng: &mut Rng, file: &mut dyn Written) {
        let Self { content, seen, is_invalidated, looks_back } = self;
        let end = content.len() as u64;
        let beyond = if *looks_back && rng.below(4) == 0 { rng.below(end + 2000) } else { end };
        match rng.below(10) {
            0 if *looks_back => {
                let len = rng.below(end + 2000);
                file.set_len(len);
                content.resize(len as usize, 0);
                *is_invalidated |= len < seen.len() as u64;
            }
            1 if *looks_back && !content.is_empty() => {
                let from = rng.below(content.len() as u64);
                let len = (1 + rng.below(5000)).min(content.len() as u64 - from);
                file.punch(from, len);
                content[from as usize..(from + len) as usize].fill(0);
                *is_invalidated |= from < seen.len() as u64;
            }
            2 => file.store(content),
            3..=5 => match file.tail(seen.len() as u64) {
                Tailed::Data(bytes) => {
                    // Invalidated or not, it is given what was there.
                    let at = seen.len();
                    assert!(content[at..at + bytes.len()] == bytes, "seed {seed}");
                    seen.extend(bytes);
                }
                other => assert_eq!(other, Tailed::Nothing),
            },
            _ => {
                let data = random(seed * 100 + beyond, 1 + rng.below(9000) as usize);
                file.write(beyond, &data);
                *is_invalidated |= beyond < seen.len() as u64;
                let end = beyond as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[beyond as usize..end].copy_from_slice(&data);
            }
        }
    }
}
