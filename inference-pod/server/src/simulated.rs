//! An executor without a model: real blocks and real scheduling, but a forward pass only takes the configured time and
//! yields text that is a function of the tokens before it.
//!
//! The KV store is real too: each position's state is kept in its block and computed from the position before, as a
//! model's keys and values would be. A block that is lost, shared or overwritten therefore changes the text, which is
//! what makes this executor a test of everything around it.

use std::time::Duration;

use pagoda_engine_core::MAX_DRAFT;

use crate::executor::{Executor, ExecutorError, ExecutorInfo, Logits, StepRow};
use crate::language::Language;

/// KV bytes of a token, for sizing: those of Llama-3.2-1B in 16 bits (16 layers, 8 heads of 64, keys and values).
pub const KV_BYTES_PER_TOKEN: u64 = 32 << 10;

/// What the text is made of.
const WORDS: &[&str] = &[
    "a", "and", "the", "of", "in", "on", "with", "under", "tower", "roof", "stone", "river",
    "garden", "bell", "lantern", "bridge", "cedar", "pine", "moon", "rain", "wind", "snow",
    "crane", "carp", "monk", "gate", "step", "eaves", "bronze", "paper", "ink", "tea", "stands",
    "leans", "rings", "sways", "waits", "shines", "falls", "rises", "old", "tall", "quiet", "red",
    "five", "seven", "far", "near",
];

/// On average, one word in this many ends a sentence.
const WORDS_PER_SENTENCE: u64 = 9;

/// On average, one sentence in this many ends the answer.
const SENTENCES_PER_ANSWER: u64 = 6;

/// The next token's logit; all others are 0, so that no temperature draws another.
const CERTAIN: f32 = 1000.0;

/// How long a forward pass takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedSpeed {
    /// Tokens of prompts per second.
    pub prefill_tokens_per_second: f64,
    /// Time of a step in which any sequence decodes.
    pub decode_step: Duration,
}

impl SimulatedSpeed {
    /// The time that a step of these rows takes.
    fn step(&self, rows: &[StepRow<'_>]) -> Duration {
        let (decodes, prompts): (Vec<&StepRow<'_>>, Vec<&StepRow<'_>>) =
            rows.iter().partition(|row| is_decode(row));
        let prompt_tokens: usize = prompts.iter().map(|row| row.tokens.len()).sum();
        let decode = if decodes.is_empty() {
            Duration::ZERO
        } else {
            self.decode_step
        };
        decode + Duration::from_secs_f64(prompt_tokens as f64 / self.prefill_tokens_per_second)
    }
}

/// One token, or one with what is guessed behind it, of which all logits are wanted.
fn is_decode(row: &StepRow<'_>) -> bool {
    let tokens = row.tokens.len();
    row.start > 0 && (tokens == 1 || tokens == row.logits && tokens <= 1 + MAX_DRAFT)
}

/// What is known after a position: a hash of all tokens so far, and where in a word the text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    hash: u64,
    /// The word under way and how many of its letters are written.
    word: Option<(u8, u8)>,
    /// The token was the full stop after a word of ours.
    sentence_ended: bool,
}

/// See the module's text.
#[derive(Debug)]
pub struct SimulatedExecutor {
    info: ExecutorInfo,
    speed: SimulatedSpeed,
    /// One state a position of a block.
    store: Vec<State>,
    end_of_turn: u32,
}

impl SimulatedExecutor {
    /// An executor with `block_count` blocks over the byte vocabulary of `language`.
    pub fn new(
        language: &Language,
        speed: SimulatedSpeed,
        context_tokens: usize,
        block_tokens: usize,
        block_count: u32,
    ) -> Self {
        let block_count = block_count as usize;
        let info = ExecutorInfo {
            name: "simulated",
            isa: "none",
            architecture: "simulated".into(),
            quantization: "none".into(),
            vocab_size: language.tokenizer().vocab_size(),
            context_tokens,
            block_tokens,
            block_count,
            weight_bytes: 0,
            kv_bytes: (block_count * block_tokens) as u64 * KV_BYTES_PER_TOKEN,
            pooling: None,
        };
        let store = vec![State::default(); block_tokens * block_count];
        let end_of_turn = language.stop_tokens().first().copied().unwrap_or_default();
        Self {
            info,
            speed,
            store,
            end_of_turn,
        }
    }

    /// What a model would refuse, this refuses too: a fault of the scheduler must not hide in a simulation.
    fn check(&self, row: usize, step: &StepRow<'_>) -> Result<(), ExecutorError> {
        let (end, vocab_size) = (step.start + step.tokens.len(), self.info.vocab_size);
        if step.tokens.is_empty() {
            return Err(ExecutorError::EmptyRow { row });
        }
        if step.logits > step.tokens.len() {
            let (wanted, tokens) = (step.logits, step.tokens.len());
            return Err(ExecutorError::Logits {
                row,
                wanted,
                tokens,
            });
        }
        if let Some(token) = step
            .tokens
            .iter()
            .copied()
            .find(|token| *token as usize >= vocab_size)
        {
            return Err(ExecutorError::TokenOutOfRange {
                row,
                token,
                vocab_size,
            });
        }
        if end > self.info.context_tokens {
            let (start, context_tokens) = (step.start, self.info.context_tokens);
            return Err(ExecutorError::ContextExceeded {
                row,
                start,
                end,
                context_tokens,
            });
        }
        let (needed, found) = (end.div_ceil(self.info.block_tokens), step.block_table.len());
        let block_count = self.info.block_count;
        if found < needed
            || step.block_table[..needed]
                .iter()
                .any(|block| *block as usize >= block_count)
        {
            return Err(ExecutorError::BlockTable {
                row,
                end,
                needed,
                found,
                block_count,
            });
        }
        Ok(())
    }

    fn slot(&self, row: &StepRow<'_>, position: usize) -> usize {
        let block = row.block_table[position / self.info.block_tokens] as usize;
        block * self.info.block_tokens + position % self.info.block_tokens
    }

    /// Stores the state after each of the row's tokens.
    fn compute(&mut self, row: &StepRow<'_>) {
        let before = row
            .start
            .checked_sub(1)
            .map(|position| self.store[self.slot(row, position)]);
        let mut state = before.unwrap_or_default();
        for (position, token) in (row.start..).zip(row.tokens) {
            state = state.after(*token);
            let slot = self.slot(row, position);
            self.store[slot] = state;
        }
    }
}

impl Executor for SimulatedExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError> {
        rows.iter()
            .enumerate()
            .try_for_each(|(index, row)| self.check(index, row))?;
        // This is the forward pass: the time that the simulated hardware takes.
        std::thread::sleep(self.speed.step(rows));
        let wanted = rows.iter().map(|row| row.logits).sum();
        let vocab_size = self.info.vocab_size;
        let mut logits = logits
            .reset(wanted, vocab_size)
            .chunks_exact_mut(vocab_size);
        for row in rows {
            self.compute(row);
            let end = row.start + row.tokens.len();
            for (position, out) in (end - row.logits..end).zip(&mut logits) {
                let next = self.store[self.slot(row, position)].next(self.end_of_turn);
                out.fill(0.0);
                out[next as usize] = CERTAIN;
            }
        }
        Ok(())
    }
}

impl State {
    fn after(self, token: u32) -> Self {
        let hash = mix(self.hash ^ mix(u64::from(token) + 1));
        // A word goes on while the tokens spell it, as a prompt's own words hardly ever do.
        let word = match self.word {
            Some((word, written)) if letter(word, written) == Some(token) => {
                Some((word, written + 1))
            }
            _ if token == u32::from(b' ') => Some(((hash % WORDS.len() as u64) as u8, 0)),
            _ => None,
        };
        let sentence_ended = token == u32::from(b'.') && self.word_is_complete();
        Self {
            hash,
            word,
            sentence_ended,
        }
    }

    fn word_is_complete(self) -> bool {
        self.word
            .is_some_and(|(word, written)| letter(word, written).is_none())
    }

    /// The next letter of the word under way; after it a space, at times a full stop, at times the end.
    fn next(self, end_of_turn: u32) -> u32 {
        let in_word = self.word.and_then(|(word, written)| letter(word, written));
        match in_word {
            Some(letter) => letter,
            None if self.word.is_some() && (self.hash >> 8).is_multiple_of(WORDS_PER_SENTENCE) => {
                u32::from(b'.')
            }
            None if self.sentence_ended
                && (self.hash >> 16).is_multiple_of(SENTENCES_PER_ANSWER) =>
            {
                end_of_turn
            }
            None => u32::from(b' '),
        }
    }
}

fn letter(word: u8, index: u8) -> Option<u32> {
    WORDS[usize::from(word)]
        .as_bytes()
        .get(usize::from(index))
        .map(|byte| u32::from(*byte))
}

/// The finaliser of MurmurHash3.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 16;

    fn executor() -> SimulatedExecutor {
        let speed = SimulatedSpeed {
            prefill_tokens_per_second: 1e9,
            decode_step: Duration::ZERO,
        };
        SimulatedExecutor::new(&Language::bytes(), speed, 1024, BLOCK, 100)
    }

    /// Computes `tokens` in chunks over the blocks given and returns the best next token.
    fn next(executor: &mut SimulatedExecutor, tokens: &[u32], chunk: usize, blocks: &[u32]) -> u32 {
        let mut logits = Logits::default();
        for start in (0..tokens.len()).step_by(chunk) {
            let end = (start + chunk).min(tokens.len());
            let logits_wanted = usize::from(end == tokens.len());
            let row = StepRow {
                tokens: &tokens[start..end],
                start,
                block_table: blocks,
                logits: logits_wanted,
            };
            executor.forward(&[row], &mut logits).unwrap();
        }
        let best = logits
            .row(0)
            .iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1));
        best.map(|(token, _)| token as u32).unwrap()
    }

    fn answer(prompt: &str, chunk: usize, blocks: &[u32]) -> String {
        let mut executor = executor();
        let mut tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let prompt_tokens = tokens.len();
        while tokens.len() < prompt_tokens + 400 {
            match next(&mut executor, &tokens, chunk, blocks) {
                257 => break,
                token => tokens.push(token),
            }
        }
        tokens[prompt_tokens..]
            .iter()
            .map(|token| char::from(*token as u8))
            .collect()
    }

    #[test]
    fn the_answer_is_a_function_of_the_prompt_and_not_of_chunks_or_blocks() {
        let in_order: Vec<u32> = (0..60).collect();
        let scattered: Vec<u32> = (0..60).map(|block| 99 - block).collect();
        let text = answer("user: hello\nassistant: ", 64, &in_order);
        assert_eq!(text, answer("user: hello\nassistant: ", 7, &scattered));
        assert_ne!(text, answer("user: hullo\nassistant: ", 64, &in_order));
        let words = text.split([' ', '.']).filter(|word| !word.is_empty());
        assert!(words.clone().count() > 3, "{text:?}");
        assert!(
            words.clone().take(3).all(|word| WORDS.contains(&word)),
            "{text:?}"
        );
    }

    #[test]
    fn answers_end_by_themselves() {
        let blocks: Vec<u32> = (0..60).collect();
        let lengths: Vec<usize> = (0..20)
            .map(|n| answer(&format!("question {n}? "), 64, &blocks).len())
            .collect();
        assert!(
            lengths.iter().filter(|length| **length < 400).count() >= 5,
            "{lengths:?}"
        );
        assert!(lengths.iter().all(|length| *length > 0), "{lengths:?}");
    }

    #[test]
    fn a_block_that_another_sequence_overwrote_changes_the_answer() {
        let mut executor = executor();
        let prompt: Vec<u32> = (0..20).collect();
        let row = |start, len, blocks| StepRow {
            tokens: &prompt[start..start + len],
            start,
            block_table: blocks,
            logits: 1,
        };
        let mut logits = Logits::default();
        executor.forward(&[row(0, 16, &[0])], &mut logits).unwrap();
        let stored = executor.store[15];
        executor
            .forward(
                &[
                    row(0, 15, &[0]),
                    StepRow {
                        tokens: &[9; 16],
                        ..row(0, 16, &[0])
                    },
                ],
                &mut logits,
            )
            .unwrap();
        assert_ne!(executor.store[15], stored);
    }

    #[test]
    fn refuses_what_a_model_would_refuse() {
        let mut executor = executor();
        let row = StepRow {
            tokens: &[1],
            start: 16,
            block_table: &[0],
            logits: 1,
        };
        let cases = [
            (row, "BlockTable"),
            (
                StepRow {
                    block_table: &[0, 100],
                    ..row
                },
                "BlockTable",
            ),
            (
                StepRow {
                    tokens: &[258],
                    start: 0,
                    ..row
                },
                "TokenOutOfRange",
            ),
            (StepRow { tokens: &[], ..row }, "EmptyRow"),
            (StepRow { start: 1024, ..row }, "ContextExceeded"),
        ];
        for (row, expected) in cases {
            let error = executor
                .forward(&[row], &mut Logits::default())
                .unwrap_err();
            assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        }
    }

    #[test]
    fn a_step_takes_the_time_of_its_prompts_and_of_one_decode() {
        let speed = SimulatedSpeed {
            prefill_tokens_per_second: 100.0,
            decode_step: Duration::from_millis(20),
        };
        let prompt = StepRow {
            tokens: &[1; 50],
            start: 0,
            block_table: &[],
            logits: 1,
        };
        let decode = StepRow {
            tokens: &[1],
            start: 50,
            block_table: &[],
            logits: 1,
        };
        let guessing = StepRow {
            tokens: &[1; 4],
            logits: 4,
            ..decode
        };
        assert_eq!(speed.step(&[decode, decode]), Duration::from_millis(20));
        assert_eq!(speed.step(&[decode, guessing]), Duration::from_millis(20));
        assert_eq!(speed.step(&[prompt]), Duration::from_millis(500));
        assert_eq!(speed.step(&[decode, prompt]), Duration::from_millis(520));
    }
}
