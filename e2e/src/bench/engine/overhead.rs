//! What a server at work holds beyond weights and KV.

use anyhow::{Context, Result, ensure};

use super::server::{Server, ServerOptions};
use super::speed::our_speed;
use super::streams::{Ask, Asker, runtime};
use super::table::{Figure, Table};
use super::{Bench, rounded};
use crate::peers::SpeedWork;

const MIB: f64 = (1_u64 << 20) as f64;
const STREAMS: usize = 32;
const PROMPT_TOKENS: usize = 256;
const ANSWER_TOKENS: usize = 64;
const KV_MIB: usize = 64;

/// Resident bytes after a load that has used every block, less the weights and those blocks.
pub fn measure(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    bench.progress.step("memory beyond weights and KV");
    let short = SpeedWork {
        prompt_tokens: 16,
        decode_tokens: 1,
        repeats: 1,
        ..bench.work(&bench.model, 16)
    };
    let sizes = our_speed(bench, &short, None)?;
    ensure!(
        sizes.weight_bytes > 0.0 && sizes.kv_bytes_per_token > 0.0,
        "the engine does not tell its sizes"
    );
    let kv_memory = format!("{KV_MIB}Mi");
    let server = Server::start(ServerOptions {
        engine: &bench.engine,
        model: &bench.model,
        threads: bench.threads,
        arguments: &["--context", "1024", "--kv-memory", &kv_memory],
    })?;
    let asker = Asker::new(server.base())?;
    let asks: Vec<Ask> = (1..=STREAMS)
        .map(|stream| Ask::of_stream(stream, PROMPT_TOKENS, ANSWER_TOKENS))
        .collect();
    let needed = sizes.kv_bytes_per_token * (STREAMS * (PROMPT_TOKENS + ANSWER_TOKENS)) as f64;
    let kv = KV_MIB as f64 * MIB;
    ensure!(
        needed > 1.2 * kv,
        "this model's streams do not fill {KV_MIB} MiB of KV"
    );
    runtime()?.block_on(asker.ask_together(&asks))?;
    let resident = server.resident_bytes().context("no resident memory")? as f64;
    let overhead = (resident - sizes.weight_bytes - kv) / MIB;
    table.figure(
        Figure::new(
            "overhead_mib",
            "process memory beyond weights and KV",
            overhead,
        )
        .unit("MiB")
        .at_most(60.0)
        .note(format!(
            "{:.1} MiB resident after 32 streams, less {:.1} of weights and {KV_MIB} of KV",
            resident / MIB,
            sizes.weight_bytes / MIB
        )),
    );
    table.fact("resident_mib", rounded(resident / MIB));
    Ok(())
}
