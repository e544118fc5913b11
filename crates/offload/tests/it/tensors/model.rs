//! A small language model that is trained on the spot, to get weights from gradient descent.
//!
//! ```text
//! 8 characters ▶ embedding, 16 each ▶ 512 hidden units (ReLU) ▶ scores of the next character (softmax)
//! ```
//!
//! It learns this project's licences by Adam, from the uniform distribution with which common
//! libraries begin. All of it is in float32, as is usual. [`bfloat16`] rounds like those libraries.

use outrigger_workload::Rng;

const CONTEXT: usize = 8;
const EMBEDDING: usize = 16;
const HIDDEN: usize = 512;
const CHARACTERS: usize = 96;
const BATCH: usize = 32;
const RATE: f32 = 2e-3;

/// The text never changes, so that the weights do not either.
const TEXT: &str =
    concat!(include_str!("../../../../../LICENSE-APACHE"), include_str!("../../../../../LICENSE-MIT"));

/// A uniform number from −`limit` to `limit`.
fn even(random: &mut Rng, limit: f32) -> f32 {
    ((random.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * limit
}

/// A tensor with Adam's state of its gradients.
pub struct Tensor {
    pub values: Vec<f32>,
    gradient: Vec<f32>,
    pub mean: Vec<f32>,
    pub square: Vec<f32>,
}

impl Tensor {
    fn new(len: usize, limit: f32, random: &mut Rng) -> Self {
        let zeros = vec![0.0; len];
        Self {
            values: (0..len).map(|_| even(random, limit)).collect(),
            gradient: zeros.clone(),
            mean: zeros.clone(),
            square: zeros,
        }
    }

    fn step(&mut self, number: i32) {
        let (one, two) = (1.0 - 0.9f32.powi(number), 1.0 - 0.999f32.powi(number));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((value, gradient), (mean, square)) in self.values.iter_mut().zip(&mut self.gradient).zip(moments)
        {
            let slope = *gradient / BATCH as f32;
            *mean = 0.9 * *mean + 0.1 * slope;
            *square = 0.999 * *square + 0.001 * slope * slope;
            *value -= RATE * (*mean / one) / ((*square / two).sqrt() + 1e-8);
            *gradient = 0.0;
        }
    }
}

pub struct Model {
    pub embedding: Tensor,
    pub hidden: Tensor,
    pub output: Tensor,
    /// The mean loss of the first and the last 10 batches, in nats a character.
    pub losses: (f32, f32),
}

impl Model {
    /// Trains it with `steps` batches.
    pub fn trained(steps: usize) -> Self {
        let mut random = Rng::new(1);
        let limit = |fan_in: usize| 1.0 / (fan_in as f32).sqrt();
        let mut model = Self {
            embedding: Tensor::new(CHARACTERS * EMBEDDING, 1.0, &mut random),
            hidden: Tensor::new(CONTEXT * EMBEDDING * HIDDEN, limit(CONTEXT * EMBEDDING), &mut random),
            output: Tensor::new(HIDDEN * CHARACTERS, limit(HIDDEN), &mut random),
            losses: (0.0, 0.0),
        };
        let text: Vec<usize> = TEXT.bytes().map(character).collect();
        let mut losses = Vec::new();
        for number in 1..=steps {
            let mut loss = 0.0;
            for _ in 0..BATCH {
                let at = random.index(text.len() - CONTEXT);
                loss += model.learn(&text[at..at + CONTEXT], text[at + CONTEXT]);
            }
            losses.push(loss / BATCH as f32);
            for tensor in [&mut model.embedding, &mut model.hidden, &mut model.output] {
                tensor.step(number as i32);
            }
        }
        let mean = |some: &[f32]| some.iter().sum::<f32>() / some.len() as f32;
        model.losses = (mean(&losses[..10]), mean(&losses[steps - 10..]));
        model
    }

    /// Adds the gradients of one example, and returns its loss.
    fn learn(&mut self, context: &[usize], next: usize) -> f32 {
        let input: Vec<f32> = context
            .iter()
            .flat_map(|&one| &self.embedding.values[one * EMBEDDING..][..EMBEDDING])
            .copied()
            .collect();
        let mut hidden = vec![0.0; HIDDEN];
        forward(&input, &self.hidden.values, &mut hidden);
        hidden.iter_mut().for_each(|unit| *unit = unit.max(0.0));
        let mut scores = vec![0.0; CHARACTERS];
        forward(&hidden, &self.output.values, &mut scores);

        // Softmax, and the gradient of its cross-entropy.
        let highest = scores.iter().copied().fold(f32::MIN, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - highest).exp());
        let sum: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= sum);
        let loss = -scores[next].max(f32::MIN_POSITIVE).ln();
        scores[next] -= 1.0;

        let mut back = vec![0.0; HIDDEN];
        backward(&hidden, &scores, &mut self.output, &mut back);
        for (back, unit) in back.iter_mut().zip(&hidden) {
            *back = if *unit > 0.0 { *back } else { 0.0 };
        }
        let mut first = vec![0.0; input.len()];
        backward(&input, &back, &mut self.hidden, &mut first);
        for (place, slope) in context.iter().zip(first.chunks_exact(EMBEDDING)) {
            let gradient = &mut self.embedding.gradient[place * EMBEDDING..][..EMBEDDING];
            gradient.iter_mut().zip(slope).for_each(|(sum, slope)| *sum += slope);
        }
        loss
    }

    /// All weights, as in a file.
    pub fn weights(&self) -> Vec<f32> {
        [&self.embedding, &self.hidden, &self.output].map(|tensor| &tensor.values[..]).concat()
    }
}

/// Adds `input` × `weights` to `output`. Rows of the weights belong to the inputs.
fn forward(input: &[f32], weights: &[f32], output: &mut [f32]) {
    for (value, row) in input.iter().zip(weights.chunks_exact(output.len())) {
        if *value != 0.0 {
            output.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * weight);
        }
    }
}

/// Adds to the layer's gradients, and computes those of its inputs.
fn backward(input: &[f32], slopes: &[f32], layer: &mut Tensor, back: &mut [f32]) {
    let rows = layer.values.chunks_exact(slopes.len()).zip(layer.gradient.chunks_exact_mut(slopes.len()));
    for ((value, back), (row, gradient)) in input.iter().zip(back).zip(rows) {
        *back = row.iter().zip(slopes).map(|(weight, slope)| weight * slope).sum();
        if *value != 0.0 {
            gradient.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += value * slope);
        }
    }
}

/// The code of a printable character. All others share one code.
fn character(byte: u8) -> usize {
    if (32..127).contains(&byte) { usize::from(byte) - 32 } else { CHARACTERS - 1 }
}

/// Rounds to the nearest bfloat16, ties to even, little-endian.
pub fn bfloat16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes()
}

/// The bytes of numbers as float32.
pub fn float32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
