//! Users who share a system prompt, with the prefix cache and without.

use anyhow::{Context, Result};

use super::Bench;
use super::server::{Server, ServerOptions};
use super::speed::Comparison;
use super::streams::{Ask, Asker, prompt, runtime};
use super::table::{Figure, Table};
use crate::quiet::busy_cores;
use crate::statistics::mean;

const USERS: usize = 32;
const SHARED_TOKENS: usize = 1024;
const OWN_TOKENS: usize = 32;
const ANSWER_TOKENS: usize = 16;
/// Users whose answers are compared token by token.
const COMPARED: usize = 4;
/// Without the cache one round takes a minute.
const MOST_ROUNDS: usize = 3;
const OFF: &str = "--no-prefix-cache";

/// All users ask in the same moment a server that has seen none of it.
pub fn measure(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let rounds = bench.rounds.min(MOST_ROUNDS);
    let (mut pairs, mut texts) = (Vec::new(), Vec::new());
    for number in 1..=rounds {
        bench
            .progress
            .step(format!("shared system prompt: round {number} of {rounds}"));
        table.busy([busy_cores()?]);
        let (with, without) = if number % 2 == 1 {
            let without = users(bench, &[OFF])?;
            (users(bench, &[])?, without)
        } else {
            let with = users(bench, &[])?;
            (with, users(bench, &[OFF])?)
        };
        pairs.push((without.mean_ttft_ms, with.mean_ttft_ms));
        texts.push((with.texts, without.texts));
    }
    let gain = Comparison::of_pairs("the same with the cache", &pairs)?;
    let equal = texts.iter().all(|(with, without)| with == without);
    table.figure(
        Figure::new(
            "prefix_ttft_gain",
            "32 users of a system prompt of 1,024, mean TTFT without",
            gain.ratio,
        )
        .unit("x")
        .at_least(5.0)
        .note(gain.note("ms")),
    );
    table.figure(
        Figure::new(
            "prefix_hit_equals_miss",
            "    and answers are the same",
            f64::from(u8::from(equal)),
        )
        .at_least(1.0),
    );
    Ok(())
}

struct Users {
    mean_ttft_ms: f64,
    texts: Vec<String>,
}

fn users(bench: &Bench<'_>, arguments: &[&str]) -> Result<Users> {
    let arguments = [&["--context", "2048", "--kv-memory", "1Gi"], arguments].concat();
    let server = Server::start(ServerOptions {
        engine: &bench.engine,
        model: &bench.model,
        threads: bench.threads,
        arguments: &arguments,
    })?;
    let asker = Asker::new(server.base())?;
    let shared = prompt(0, SHARED_TOKENS);
    let asks: Vec<Ask> = (1..=USERS)
        .map(|user| Ask {
            prompt: [shared.clone(), prompt(user, OWN_TOKENS)].concat(),
            answer_tokens: ANSWER_TOKENS,
        })
        .collect();
    runtime()?.block_on(async {
        // Of another beginning, so that it warms the machine and not the cache.
        asker.ask(&Ask::of_stream(USERS + 1, 64, 4)).await?;
        let streams = asker.ask_together(&asks).await?;
        let mut firsts = Vec::new();
        for stream in &streams {
            firsts.push(stream.first_token()?.as_secs_f64() * 1000.0);
        }
        let mut texts = Vec::new();
        for ask in &asks[..COMPARED] {
            texts.push(asker.text(ask).await?);
        }
        Ok(Users {
            mean_ttft_ms: mean(&firsts).context("no user was served")?,
            texts,
        })
    })
}
