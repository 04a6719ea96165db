//! Our server with many streams, beside llama.cpp that batches as many sequences.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::process::{command_line, run};
use serde::Deserialize;

use super::server::{Server, ServerOptions};
use super::speed::Comparison;
use super::streams::{Ask, Asker, Served, milliseconds_since, runtime};
use super::table::{Figure, Table};
use super::{Bench, rounded};
use crate::peers::InstructionSets;
use crate::quiet::busy_cores;

const PROMPT_TOKENS: usize = 256;
const ANSWER_TOKENS: usize = 128;
/// llama.cpp takes a minute and more for one round of 32.
const MOST_ROUNDS: usize = 3;
const RIVAL: &str = "node-llama-cpp, which has no HTTP to serve";

/// Serves `streams` at once, in alternating rounds.
pub fn measure(bench: &Bench<'_>, streams: usize, table: &mut Table) -> Result<()> {
    let rounds = bench.rounds.min(MOST_ROUNDS);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 1..=rounds {
        bench
            .progress
            .step(format!("{streams} streams: round {number} of {rounds}"));
        table.busy([busy_cores()?]);
        if number % 2 == 1 {
            ours.push(serve(bench, streams)?);
            theirs.push(batch(bench, streams)?);
        } else {
            theirs.push(batch(bench, streams)?);
            ours.push(serve(bench, streams)?);
        }
    }
    let compare = |figure: fn(&Served) -> f64| {
        let pairs: Vec<(f64, f64)> = ours
            .iter()
            .map(figure)
            .zip(theirs.iter().map(figure))
            .collect();
        Comparison::of_pairs(RIVAL, &pairs)
    };
    let rate = compare(|served| served.tokens_per_second)?;
    let target = if streams >= 32 { 4.0 } else { 2.5 };
    table.figure(
        Figure::new(
            format!("serve_{streams}_ratio"),
            format!("server, {streams} streams of 256 in, 128 out"),
            rate.ratio,
        )
        .unit("x")
        .at_least(target)
        .note(rate.note("tok/s out in all")),
    );
    table.fact(
        format!("serve_{streams}_tokens_per_second"),
        rounded(rate.ours),
    );
    table.fact(
        format!("serve_{streams}_peer_tokens_per_second"),
        rounded(rate.theirs),
    );
    for (key, what, comparison) in [
        (
            "ttft",
            "    time to first token, p95",
            compare(|served| served.ttft_p95_ms)?,
        ),
        (
            "itl",
            "    time between tokens, p95",
            compare(|served| served.itl_p95_ms)?,
        ),
    ] {
        table.figure(
            Figure::new(
                format!("serve_{streams}_{key}_p95_ratio"),
                what,
                comparison.ratio,
            )
            .unit("x")
            .at_most(1.0)
            .note(comparison.note("ms")),
        );
    }
    Ok(())
}

/// Our server over HTTP, with as much KV memory as all streams need.
fn serve(bench: &Bench<'_>, streams: usize) -> Result<Served> {
    let server = Server::start(ServerOptions {
        engine: &bench.engine,
        model: &bench.model,
        threads: bench.threads,
        arguments: &["--context", "2048", "--kv-memory", "512Mi"],
    })?;
    let asker = Asker::new(server.base())?;
    let asks: Vec<Ask> = (1..=streams)
        .map(|stream| Ask::of_stream(stream, PROMPT_TOKENS, ANSWER_TOKENS))
        .collect();
    runtime()?.block_on(async {
        asker.ask(&Ask::of_stream(0, 64, 4)).await?;
        let began = Instant::now();
        let answers = asker.ask_together(&asks).await?;
        let tokens: u64 = answers.iter().map(|answer| answer.tokens).sum();
        ensure!(
            tokens == (streams * ANSWER_TOKENS) as u64,
            "{tokens} tokens came and not {streams} times {ANSWER_TOKENS}"
        );
        Served::of(&milliseconds_since(began, &answers), tokens)
    })
}

/// What the peer's script prints.
#[derive(Deserialize)]
struct Batched {
    token_milliseconds: Vec<Vec<f64>>,
}

fn batch(bench: &Bench<'_>, streams: usize) -> Result<Served> {
    let node = bench.node_llama_cpp(InstructionSets::Best)?;
    let mut command = node.streams_command(
        bench.workspace,
        &bench.model,
        bench.threads,
        PROMPT_TOKENS,
        ANSWER_TOKENS,
        streams,
    );
    let output = run(&mut command)?;
    let last = output.lines().last().unwrap_or_default();
    let batched: Batched = serde_json::from_str(last)
        .with_context(|| format!("`{}` did not end with its times", command_line(&command)))?;
    let tokens = batched
        .token_milliseconds
        .iter()
        .map(Vec::len)
        .sum::<usize>();
    ensure!(
        tokens == streams * ANSWER_TOKENS,
        "the peer made {tokens} tokens and not {streams} times {ANSWER_TOKENS}"
    );
    Served::of(&batched.token_milliseconds, tokens as u64)
}
