//! The executor that computes on CPUs.

use std::path::Path;

use pagoda_kernels::{BLOCK_TOKENS, Cpu, KvCache, RopeTable, Segment, ThreadPool};

use crate::config::ModelConfig;
use crate::error::{ExecutorError, LoadError};
use crate::executor::{Executor, ExecutorInfo, Logits, StepRow};
use crate::file::ModelFile;
use crate::forward::{Buffers, Forward, Piece, SLAB_TOKENS};
use crate::memory::{self, CpuOptions};
use crate::weights::Weights;

/// A model in memory with its keys and values, computed by the threads of one pool.
#[derive(Debug)]
pub struct CpuExecutor {
    info: ExecutorInfo,
    cpu: Cpu,
    pool: ThreadPool,
    config: ModelConfig,
    weights: Weights,
    cache: KvCache,
    ropes: Vec<RopeTable>,
    buffers: Buffers,
}

impl CpuExecutor {
    /// Opens and loads a GGUF file or a folder with a Hugging Face model. `progress` is told bytes loaded and bytes in all, in
    /// order.
    pub fn load(
        path: &Path,
        options: &CpuOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        Self::from_file(&ModelFile::open(path)?, options, progress)
    }

    /// As [`CpuExecutor::load`] for a model already opened and checked.
    pub fn from_file(
        file: &ModelFile,
        options: &CpuOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let plan = file.memory_plan(options)?;
        let cpu = match options.cpu {
            Some(cpu) => cpu,
            None => Cpu::from_env()?,
        };
        let pool = ThreadPool::new(options.threads).map_err(LoadError::Threads)?;
        let weights = Weights::load(file, &pool, plan.context_tokens, &mut progress)?;
        let config = file.config().clone();
        let info = ExecutorInfo {
            name: "cpu",
            isa: cpu.name(),
            architecture: config.architecture.name().to_owned(),
            quantization: file.quantization(),
            vocab_size: config.vocab_size,
            context_tokens: plan.context_tokens,
            block_tokens: BLOCK_TOKENS,
            block_count: plan.block_count,
            weight_bytes: plan.weight_bytes,
            kv_bytes: plan.kv_bytes,
            pooling: config.pooling,
        };
        let shape = memory::kv_shape(&config, plan.block_count, options.kv_element);
        Ok(Self {
            info,
            cpu,
            pool,
            ropes: rope_tables(&config, &weights, plan.context_tokens),
            config,
            weights,
            cache: KvCache::new(shape),
            buffers: Buffers::default(),
        })
    }

    /// The row's tokens with their blocks, or why it cannot be computed.
    fn check<'a>(&self, index: usize, row: &StepRow<'a>) -> Result<Segment<'a>, ExecutorError> {
        let info = &self.info;
        if row.tokens.is_empty() {
            return Err(ExecutorError::EmptyRow { row: index });
        }
        if row.logits > row.tokens.len() {
            return Err(ExecutorError::Logits {
                row: index,
                wanted: row.logits,
                tokens: row.tokens.len(),
            });
        }
        if let Some(&token) = row
            .tokens
            .iter()
            .find(|&&token| token as usize >= info.vocab_size)
        {
            return Err(ExecutorError::TokenOutOfRange {
                row: index,
                token,
                vocab_size: info.vocab_size,
            });
        }
        let (start, end) = (row.start, row.start.saturating_add(row.tokens.len()));
        if end > info.context_tokens {
            return Err(ExecutorError::ContextExceeded {
                row: index,
                start,
                end,
                context_tokens: info.context_tokens,
            });
        }
        Segment::new(row.block_table, start, row.tokens.len(), info.block_count).ok_or(
            ExecutorError::BlockTable {
                row: index,
                end,
                needed: end.div_ceil(BLOCK_TOKENS),
                found: row.block_table.len(),
                block_count: info.block_count,
            },
        )
    }

    /// Checks all rows before any is computed.
    fn pieces<'a>(&self, rows: &[StepRow<'a>]) -> Result<Vec<Piece<'a>>, ExecutorError> {
        rows.iter()
            .enumerate()
            .map(|(index, row)| {
                Ok(Piece {
                    segment: self.check(index, row)?,
                    tokens: row.tokens,
                    wanted: row.logits,
                })
            })
            .collect()
    }

    /// Runs the pieces through all layers and returns the model, which has kept the wanted states.
    fn compute(&mut self, pieces: &[Piece<'_>]) -> Forward<'_> {
        self.buffers.start_step();
        let mut forward = Forward {
            cpu: self.cpu,
            pool: &self.pool,
            config: &self.config,
            weights: &self.weights,
            cache: &mut self.cache,
            ropes: &mut self.ropes,
            buffers: &mut self.buffers,
        };
        for slab in slabs(pieces) {
            forward.slab(&slab);
        }
        forward
    }
}

impl Executor for CpuExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError> {
        let pieces = self.pieces(rows)?;
        let wanted = rows.iter().map(|row| row.logits).sum();
        let out = logits.reset(wanted, self.info.vocab_size);
        let mut forward = self.compute(&pieces);
        if wanted > 0 {
            forward.head(out);
        }
        Ok(())
    }

    fn states(&mut self, rows: &[StepRow<'_>], states: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let pieces = self.pieces(rows)?;
        states.clear();
        states.extend_from_slice(self.compute(&pieces).states());
        Ok(())
    }
}

/// Cuts pieces into slabs of at most [`SLAB_TOKENS`] tokens, in order.
fn slabs<'a>(pieces: &[Piece<'a>]) -> Vec<Vec<Piece<'a>>> {
    let mut slabs = vec![Vec::new()];
    let mut room = SLAB_TOKENS;
    for piece in pieces {
        let mut done = 0;
        while done < piece.tokens.len() {
            if room == 0 {
                slabs.push(Vec::new());
                room = SLAB_TOKENS;
            }
            let count = room.min(piece.tokens.len() - done);
            if let Some(slab) = slabs.last_mut() {
                let segment = piece.segment.part(done, count);
                slab.push(Piece {
                    segment,
                    tokens: &piece.tokens[done..done + count],
                    wanted: piece.wanted_within(done, count),
                });
            }
            (done, room) = (done + count, room - count);
        }
    }
    slabs.retain(|slab| !slab.is_empty());
    slabs
}

fn rope_tables(config: &ModelConfig, weights: &Weights, context_tokens: usize) -> Vec<RopeTable> {
    let table = |(index, rope): (usize, &crate::rope::Rope)| {
        let factors: &[f32] = if index == 0 {
            &weights.rope_factors
        } else {
            &[]
        };
        rope.table(context_tokens, factors)
    };
    config.ropes.iter().enumerate().map(table).collect()
}
