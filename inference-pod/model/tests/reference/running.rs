//! The executor under test, and one sequence on it.

use std::fmt::Write as _;
use std::path::PathBuf;

use pagoda_model::{CpuExecutor, CpuOptions, Executor, KvBudget, Logits, StepRow};
use sha2::{Digest, Sha256};

/// SmolLM2, as `e2e/fetch-model` puts it into the cache.
const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";

/// The file of that name among the cached models.
fn model_path(file: &str) -> PathBuf {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache =
        set("PAGODA_CACHE_DIR").or_else(|| set("HOME").map(|home| home.join(".cache/pagoda")));
    cache
        .expect("neither PAGODA_CACHE_DIR nor HOME is set")
        .join("models")
        .join(file)
}

/// An executor of SmolLM2; see [`executor_of`].
pub fn executor(sha256: &str, context_tokens: usize) -> CpuExecutor {
    executor_of(SMOLLM2, sha256, context_tokens)
}

/// An executor of a cached model with room for one sequence of `context_tokens`, after checking that it is the very file
/// whose SHA-256 the expected values name.
pub fn executor_of(file: &str, sha256: &str, context_tokens: usize) -> CpuExecutor {
    let path = model_path(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| {
        panic!(
            "cannot read {}: {error}; run e2e/fetch-model to fetch it",
            path.display()
        )
    });
    let mut found = String::new();
    for byte in Sha256::digest(&bytes) {
        let _ = write!(found, "{byte:02x}");
    }
    assert_eq!(
        found,
        sha256,
        "{} is not the file of the expected values: run e2e/fetch-model",
        path.display()
    );
    drop(bytes);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = CpuOptions {
        threads,
        kv: KvBudget::Bytes(512 << 20),
        context_tokens: Some(context_tokens),
        ..CpuOptions::default()
    };
    CpuExecutor::load(&path, &options, |_, _| ())
        .unwrap_or_else(|error| panic!("{} does not load: {error}", path.display()))
}

/// A sequence that starts empty; the blocks of one that went before are used again.
pub struct Sequence<'a> {
    executor: &'a mut CpuExecutor,
    block_table: Vec<u32>,
    length: usize,
    logits: Logits,
}

impl<'a> Sequence<'a> {
    pub fn new(executor: &'a mut CpuExecutor) -> Self {
        let info = executor.info();
        let blocks = info
            .context_tokens
            .div_ceil(info.block_tokens)
            .min(info.block_count);
        // Backwards, so that a block table is not mistaken for the identity.
        let block_table = (0..blocks as u32).rev().collect();
        Self {
            executor,
            block_table,
            length: 0,
            logits: Logits::default(),
        }
    }

    /// Computes `tokens`; returns the logits after the last.
    pub fn extend(&mut self, tokens: &[u32]) -> Vec<f32> {
        let row = StepRow {
            tokens,
            start: self.length,
            block_table: &self.block_table,
            logits: 1,
        };
        self.executor
            .forward(&[row], &mut self.logits)
            .expect("the step is valid");
        self.length += tokens.len();
        self.logits.row(0).to_vec()
    }

    /// Computes `tokens`; returns the logits after each of them.
    pub fn extend_for_all(&mut self, tokens: &[u32]) -> &Logits {
        let (start, block_table) = (self.length, &self.block_table);
        let rows: Vec<StepRow<'_>> = (0..tokens.len())
            .map(|at| StepRow {
                tokens: &tokens[at..=at],
                start: start + at,
                block_table,
                logits: 1,
            })
            .collect();
        self.executor
            .forward(&rows, &mut self.logits)
            .expect("the step is valid");
        self.length += tokens.len();
        &self.logits
    }
}
