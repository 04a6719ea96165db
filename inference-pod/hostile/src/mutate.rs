//! Changes to a valid input, as a fuzzer makes them, the same for the same seed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Makes hostile inputs of valid ones.
#[derive(Debug)]
pub struct Mutator {
    random: SmallRng,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static [u8]],
}

/// Numbers at which arithmetic goes wrong, as 8 bytes of which shorter fields take the first.
const EXTREMES: [u64; 9] = [
    0,
    1,
    0xff,
    0xffff_ffff,
    1 << 31,
    1 << 40,
    1 << 63,
    u64::MAX,
    u64::MAX - 31,
];
/// Longest run of bytes that one change takes or copies.
const RUN: usize = 48;

impl Mutator {
    /// Of `seeds`, none of which is empty, with `words` that mean something to the reader.
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>, words: &'static [&'static [u8]]) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            seeds,
            words,
        }
    }

    /// The next input: a seed with a change, or with up to five. A word where one may stand is as likely as all other changes.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut bytes = self.any_seed().clone();
        let changes = match self.random.random_range(0..2) {
            0 => 1,
            _ => self.random.random_range(1..=5),
        };
        for _ in 0..changes {
            if self.words.is_empty() || self.random.random_range(0..2) == 0 {
                self.change(&mut bytes);
            } else {
                self.insert_word(&mut bytes);
            }
        }
        bytes
    }

    fn any_seed(&mut self) -> &Vec<u8> {
        let index = self.random.random_range(0..self.seeds.len());
        &self.seeds[index]
    }

    fn place(&mut self, bytes: &[u8]) -> usize {
        self.random.random_range(0..=bytes.len())
    }

    fn run(&mut self, bytes: &[u8]) -> std::ops::Range<usize> {
        let start = self.place(bytes);
        let len = self.random.random_range(0..=RUN);
        start..(start + len).min(bytes.len())
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.place(bytes);
        match self.random.random_range(0..8) {
            0 => self.one_byte(bytes, at, |byte, random| {
                byte ^ (1 << random.random_range(0..8))
            }),
            1 => self.one_byte(bytes, at, |_, random| random.random()),
            2 => {
                let extreme = EXTREMES[self.random.random_range(0..EXTREMES.len())].to_le_bytes();
                let changed = bytes.iter_mut().skip(at).zip(extreme);
                changed.for_each(|(byte, new)| *byte = new);
            }
            3 => bytes.truncate(at),
            4 => {
                let copied = bytes[self.run(bytes)].to_vec();
                bytes.splice(at..at, copied);
            }
            5 => drop(bytes.drain(self.run(bytes))),
            6 => {
                let other = self.any_seed().clone();
                let taken = other[self.run(&other)].to_vec();
                bytes.splice(at..at, taken);
            }
            _ => {
                // Over and over: what nests, nests deep.
                let times = 1 << self.random.random_range(0..8);
                let repeated = bytes[self.run(bytes)].repeat(times);
                bytes.splice(at..at, repeated);
            }
        }
    }

    fn one_byte(&mut self, bytes: &mut [u8], at: usize, new: fn(u8, &mut SmallRng) -> u8) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = new(*byte, &mut self.random);
        }
    }

    /// After an opening bracket or a comma, where there is one: there a reader expects what comes next.
    fn insert_word(&mut self, bytes: &mut Vec<u8>) {
        let word = self.words[self.random.random_range(0..self.words.len())];
        let from = self.place(bytes);
        let opening = |byte: &u8| matches!(byte, b'{' | b'[' | b',' | b'}');
        let at = bytes[from..]
            .iter()
            .position(opening)
            .map_or(from, |distance| from + distance + 1);
        bytes.splice(at..at, word.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_and_few_are_alike() {
        let make = |seed| {
            let mut mutator = Mutator::new(seed, vec![vec![7; 100], vec![9; 50]], &[b"word"]);
            let inputs = std::iter::repeat_with(|| mutator.next_input()).take(200);
            inputs.collect::<Vec<_>>()
        };
        assert_eq!(make(3), make(3));
        let distinct: std::collections::HashSet<_> = make(3).into_iter().collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
    }
}
