//! How much KV memory partly filled blocks cost, on recorded traffic: the engine's own scheduler and block pool, step by step,
//! with time instead of arithmetic.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::loadgen::{Arrival, TraceOptions, read_trace};
use pagoda_engine_core::{
    Limits, NewSequence, Policy, Progress, Scheduler, SequenceId, Speculation,
};

use super::Bench;
use super::table::{Figure, Table};

/// Where the traces are, if not beside the repository.
const FOLDER: &str = "PAGODA_TRACES";
const TRACES: [(&str, &str); 4] = [
    ("azure_conv", "azure_llm_conv.csv"),
    ("azure_code", "azure_llm_code.csv"),
    ("mooncake_conversation", "mooncake_conversation.jsonl"),
    ("mooncake_synthetic", "mooncake_synthetic.jsonl"),
];

const BLOCK_TOKENS: usize = 16;
/// One step of a large accelerator, whatever is in it: 80,000 prompt tokens a second, 20 tokens a second and sequence.
const STEP: Duration = Duration::from_millis(50);
/// Of a million tokens; the longest prompts of the traces fill them at times, so there is waiting and preemption as well.
const LIMITS: Limits = Limits {
    step_tokens: 4096,
    max_sequences: 1024,
    max_waiting: usize::MAX,
    block_tokens: BLOCK_TOKENS,
    block_count: 1 << 16,
    context_tokens: 1 << 18,
};

/// A figure for each trace.
pub fn measure(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let folder = folder(bench);
    for (name, file) in TRACES {
        bench
            .progress
            .step(format!("partly filled blocks on {file}"));
        let arrivals = arrivals(&folder.join(file))?;
        let waste = replay(&arrivals)?;
        table.figure(
            Figure::new(
                format!("kv_waste_percent_{name}"),
                format!("KV lost to partly filled blocks, {name}"),
                waste.percent(),
            )
            .unit("%")
            .at_most(4.0)
            .note(format!(
                "{} requests, {} steps, at most {} blocks in use",
                arrivals.len(),
                waste.steps,
                waste.most_blocks
            )),
        );
    }
    Ok(())
}

fn folder(bench: &Bench<'_>) -> PathBuf {
    let given = bench.arguments.traces.clone();
    let named = || std::env::var_os(FOLDER).map(PathBuf::from);
    given
        .or_else(named)
        .unwrap_or_else(|| bench.workspace.join("../shared/traces"))
}

fn arrivals(path: &Path) -> Result<Vec<Arrival>> {
    let options = TraceOptions {
        speedup: 1.0,
        duration: None,
        max_prompt_tokens: LIMITS.context_tokens / 2,
        max_tokens: u32::MAX,
    };
    let arrivals = read_trace(path, options).with_context(|| {
        format!(
            "no trace {}: give --traces or {FOLDER} the folder with them",
            path.display()
        )
    })?;
    ensure!(!arrivals.is_empty(), "{} is empty", path.display());
    Ok(arrivals)
}

/// Sums over all steps of a replay.
#[derive(Debug, Default, PartialEq, Eq)]
struct Waste {
    steps: u64,
    /// Places for tokens in blocks that sequences hold.
    held: u64,
    /// Those beyond their sequence's last token.
    lost: u64,
    most_blocks: usize,
}

impl Waste {
    fn percent(&self) -> f64 {
        self.lost as f64 * 100.0 / self.held.max(1) as f64
    }

    fn look(&mut self, scheduler: &Scheduler, live: &[SequenceId]) {
        let used = scheduler.load().used_blocks;
        self.steps += 1;
        self.held += (used * BLOCK_TOKENS) as u64;
        self.most_blocks = self.most_blocks.max(used);
        let lost = live.iter().map(|id| {
            let room = scheduler.block_table(*id).len() * BLOCK_TOKENS;
            room.saturating_sub(scheduler.tokens(*id).len()) as u64
        });
        self.lost += lost.sum::<u64>();
    }
}

fn replay(arrivals: &[Arrival]) -> Result<Waste> {
    // Nothing is there to guess: the tokens are drawn.
    let policy = Policy {
        speculation: Speculation::Off,
        ..Policy::default()
    };
    let mut scheduler = Scheduler::with_policy(LIMITS, policy)?;
    let mut waste = Waste::default();
    let (mut now, mut next, mut live) = (Duration::ZERO, 0, Vec::new());
    while next < arrivals.len() || !live.is_empty() {
        if live.is_empty() {
            now = now.max(arrivals[next].due);
        }
        while let Some(arrival) = arrivals.get(next).filter(|arrival| arrival.due <= now) {
            live.push(scheduler.submit(sequence(arrival, next as u64), now)?);
            next += 1;
        }
        step(&mut scheduler, now, &mut live, &mut waste)?;
        now += STEP;
    }
    Ok(waste)
}

fn step(
    scheduler: &mut Scheduler,
    now: Duration,
    live: &mut Vec<SequenceId>,
    waste: &mut Waste,
) -> Result<()> {
    let plan = scheduler.schedule(now);
    ensure!(
        !plan.rows.is_empty(),
        "the scheduler has {} sequences and plans nothing",
        live.len()
    );
    waste.look(scheduler, live);
    let mut ended = Vec::new();
    for row in &plan.rows {
        // Any token will do, as long as it stops nothing; it differs from step to step, as answers do.
        let token = mix(row.sequence.0 ^ ((row.start as u64) << 32));
        let sampled: &[u32] = if row.logits > 0 { &[token] } else { &[] };
        if !matches!(scheduler.record(row, sampled), Progress::Running) {
            ended.push(row.sequence);
        }
    }
    live.retain(|id| !ended.contains(id));
    Ok(())
}

/// Prompts that share a trace's block ids share tokens; what follows is the request's own.
fn sequence(arrival: &Arrival, serial: u64) -> NewSequence {
    let block = arrival.prefix.block_tokens.max(1);
    let token = |at: usize| {
        let shared = arrival.prefix.block_ids.get(at / block);
        let (of, place) = shared.map_or((serial | 1 << 48, at), |id| (*id, at % block));
        mix(of.wrapping_mul(0x1_0000_0001) ^ ((place as u64) << 20))
    };
    NewSequence {
        prompt: (0..arrival.prompt_tokens).map(token).collect(),
        max_new_tokens: arrival.max_tokens as usize,
        ..NewSequence::default()
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), of which the upper half is kept.
fn mix(value: u64) -> u32 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use pagoda_e2e::loadgen::Prefix;

    use super::*;

    fn arrival(prompt_tokens: usize, max_tokens: u32) -> Arrival {
        Arrival {
            due: Duration::ZERO,
            prompt_tokens,
            max_tokens,
            prefix: Prefix::default(),
        }
    }

    #[test]
    fn one_sequence_loses_what_its_last_block_has_free_at_each_step() {
        // 30 tokens in 2 blocks lose 2 places, then 31 lose 1, and at 32 it ends.
        let waste = replay(&[arrival(30, 2)]).unwrap();
        assert_eq!((waste.steps, waste.held, waste.lost), (2, 64, 3));
        assert!((waste.percent() - 300.0 / 64.0).abs() < 1e-9);
    }

    #[test]
    fn every_request_of_a_replay_ends() {
        let arrivals: Vec<Arrival> = (1..200)
            .map(|n| arrival(n * 7, n as u32 % 13 + 1))
            .collect();
        let waste = replay(&arrivals).unwrap();
        assert!(waste.lost < waste.held && waste.most_blocks > 0);
    }

    #[test]
    fn prompts_share_the_tokens_of_shared_ids_alone() {
        let with = |ids: &[u64], serial| {
            let prefix = Prefix {
                block_ids: ids.to_vec(),
                block_tokens: 4,
            };
            sequence(
                &Arrival {
                    prefix,
                    ..arrival(10, 1)
                },
                serial,
            )
            .prompt
        };
        let (one, two) = (with(&[5, 6], 1), with(&[5, 7], 2));
        assert_eq!(one[..4], two[..4]);
        assert!((4..10).all(|at| one[at] != two[at]));
    }
}
