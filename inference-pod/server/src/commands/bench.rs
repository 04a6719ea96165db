//! `pagoda-engine bench`: prefill and decode speed of one sequence, straight on the executor.

use std::process::ExitCode;
use std::time::Instant;

use pagoda_engine_core::uniform;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::config::{Backend, EngineSize};
use crate::executor::{Executor, ExecutorError, ExecutorInfo, Logits, StepRow};
use crate::failure::Fatal;
use crate::load::load;
use crate::{terminal, threads};

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<ExitCode, Fatal> {
    if args.prefill == 0 || args.decode == 0 || args.step_tokens == 0 || args.repetitions == 0 {
        return Err(Fatal::invalid_config(
            "--prefill, --decode, --step-tokens and --repetitions must be at least 1",
        ));
    }
    let threads = args.threads.unwrap_or_else(threads::available);
    let mut executor = load_executor(args, threads)?;
    let failed =
        |error: ExecutorError| Fatal::internal(format!("the forward pass failed: {error}"));
    let mut sequence = Sequence::new(executor.as_ref(), args);
    // Pages, caches and clocks warm up.
    sequence.run(executor.as_mut(), args).map_err(failed)?;
    let mut speeds = Vec::with_capacity(args.repetitions);
    for _ in 0..args.repetitions {
        speeds.push(sequence.run(executor.as_mut(), args).map_err(failed)?);
    }
    let prefill = median(speeds.iter().map(|speed| speed.prefill).collect());
    let decode = median(speeds.iter().map(|speed| speed.decode).collect());
    print(args, executor.info(), threads, prefill, decode);
    Ok(ExitCode::SUCCESS)
}

fn load_executor(args: &BenchArgs, threads: usize) -> Result<Box<dyn Executor>, Fatal> {
    let context = args.prefill + args.decode;
    let size = EngineSize {
        max_context_tokens: Some(context),
        max_sequences: 1,
        ..EngineSize::default()
    };
    let bar = terminal::percent_bar("loading");
    let loaded = load(
        &Backend::Cpu(args.model.clone()),
        &size,
        threads,
        &mut |percent| bar.set_position(percent.into()),
    )?;
    bar.finish_and_clear();
    if loaded.limits.longest_sequence() < context {
        let longest = loaded.limits.longest_sequence();
        return Err(Fatal::invalid_config(format!(
            "--prefill plus --decode are {context} tokens; this model takes {longest}"
        )));
    }
    Ok(loaded.executor)
}

fn print(args: &BenchArgs, info: &ExecutorInfo, threads: usize, prefill: f64, decode: f64) {
    let isa = info.isa;
    if args.json {
        let tokens = (info.block_count * info.block_tokens).max(1) as u64;
        let line = json!({
            "prefill_tokens_per_second": prefill, "decode_tokens_per_second": decode, "isa": isa, "threads": threads,
            "prefill_tokens": args.prefill, "decode_tokens": args.decode, "repetitions": args.repetitions,
            "weight_bytes": info.weight_bytes, "kv_bytes_per_token": info.kv_bytes / tokens,
        });
        println!("{line}");
    } else {
        println!(
            "prefill {:>6} tokens {prefill:>10.1} tokens/s",
            args.prefill
        );
        println!("decode  {:>6} tokens {decode:>10.1} tokens/s", args.decode);
        println!("{isa}, {threads} threads, median of {}", args.repetitions);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// Tokens per second.
struct Speed {
    prefill: f64,
    decode: f64,
}

/// One sequence of fixed random tokens over blocks in order.
struct Sequence {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    logits: Logits,
}

impl Sequence {
    fn new(executor: &dyn Executor, args: &BenchArgs) -> Self {
        let info = executor.info();
        let vocabulary = info.vocab_size as f64;
        let count = args.prefill + args.decode;
        let tokens = (0..count as u64)
            .map(|index| (uniform(1, index) * vocabulary) as u32)
            .collect();
        let blocks = (0..count.div_ceil(info.block_tokens) as u32).collect();
        Self {
            tokens,
            blocks,
            logits: Logits::default(),
        }
    }

    fn run(
        &mut self,
        executor: &mut dyn Executor,
        args: &BenchArgs,
    ) -> Result<Speed, ExecutorError> {
        let began = Instant::now();
        for start in (0..args.prefill).step_by(args.step_tokens) {
            self.step(
                executor,
                start,
                (start + args.step_tokens).min(args.prefill),
                args.prefill,
            )?;
        }
        let prefilled = Instant::now();
        for position in args.prefill..args.prefill + args.decode {
            self.step(executor, position, position + 1, position + 1)?;
        }
        let (prefill, decode) = (prefilled - began, prefilled.elapsed());
        Ok(Speed {
            prefill: args.prefill as f64 / prefill.as_secs_f64(),
            decode: args.decode as f64 / decode.as_secs_f64(),
        })
    }

    /// Computes `start..end`; logits are wanted at the end of the prompt and of every decoded token.
    fn step(
        &mut self,
        executor: &mut dyn Executor,
        start: usize,
        end: usize,
        wanted_at: usize,
    ) -> Result<(), ExecutorError> {
        let row = StepRow {
            tokens: &self.tokens[start..end],
            start,
            block_table: &self.blocks,
            logits: usize::from(end == wanted_at),
        };
        executor.forward(&[row], &mut self.logits)
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }
}
