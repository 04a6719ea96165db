//! `./bench engine`: our engine beside llama.cpp and mistral.rs on the same files and threads, one after the other in the same
//! minutes, and what it costs by itself.

mod leak;
mod mixed;
mod overhead;
mod prefix;
mod server;
mod serving;
mod speed;
mod streams;
mod table;
mod waste;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use pagoda_e2e::cache::Cache;
use pagoda_e2e::process::run;
use pagoda_e2e::progress::Progress;

use self::server::engine_program;
use self::speed::{Contest, Isa, contest};
use self::table::{Figure, Table};
use crate::peers::{InstructionSets, LlamaCpp, MistralRs, NodeLlamaCpp, SpeedWork};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these, with commas between; by default all, which takes about 35 minutes on 2 cores
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    rows: Vec<Row>,
    /// GGUF file; by default the model that the tests use, SmolLM2-135M-Instruct in Q4_1, fetched when it is not there
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// GGUF file of the row `gemma`; by default Gemma-3-270M in Q4_K_M, fetched when it is not there
    #[arg(long, value_name = "FILE")]
    gemma: Option<PathBuf>,
    /// Threads of all engines; by default all cores
    #[arg(long)]
    threads: Option<usize>,
    /// Runs of each engine in a comparison, alternating
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// leak: requests
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Folder of the row waste's traces; by default the one beside the repository that other benchmarks use, or PAGODA_TRACES
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Seed of what is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the JSON goes besides the last line; by default bench/engine.json in the cache
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A row of the table, or several that one measurement gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    /// Prompt of 512 tokens, one sequence, over the faster of llama.cpp's two builds
    #[value(name = "prefill-512")]
    Prefill512,
    /// The same of 2,048 tokens
    #[value(name = "prefill-2048")]
    Prefill2048,
    /// 64 single tokens after a prompt of 512, and the bytes a second that they read beside what memory gives
    Decode,
    /// Prompt of 512 and tokens after it of Gemma-3-270M in Q4_K_M
    Gemma,
    /// All three of the model's with our kernels and llama.cpp's held to AVX2, and to AVX-512 with VNNI, where they are there
    Forced,
    /// mistral.rs beside ours once: about a minute, for it is far behind
    MistralRs,
    /// Our server with 8 streams of 256 tokens in and 128 out, over llama.cpp batching as many sequences without a server
    #[value(name = "serve-8")]
    Serve8,
    /// The same with 32, and times to first and between tokens
    #[value(name = "serve-32")]
    Serve32,
    /// 32 users who share a system prompt of 1,024 tokens: mean time to first token, with the prefix cache and without
    Prefix,
    /// A prompt of 4,096 tokens that arrives among 8 decoding streams: their time between tokens, over before
    Mixed,
    /// Resident memory of a server at work beyond weights and KV
    Overhead,
    /// KV memory lost to partly filled blocks, on recorded traffic
    Waste,
    /// Memory and blocks after 10,000 requests with random cancels
    Leak,
}

/// What all rows share. Peers are installed when the first row needs them.
struct Bench<'a> {
    arguments: &'a Arguments,
    cache: &'a Cache,
    workspace: &'a Path,
    progress: Progress,
    engine: PathBuf,
    model: PathBuf,
    threads: usize,
    rounds: usize,
    python: OnceCell<Rc<LlamaCpp>>,
    node: OnceCell<Rc<NodeLlamaCpp>>,
}

/// Measures and prints the table and, as the last line, the flat JSON object.
pub fn run_benchmark(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<ExitCode> {
    let bench = Bench::new(arguments, cache, workspace)?;
    let mut table = Table::default();
    bench.comparisons(&mut table);
    for (row, measure) in SINGLE_ROWS {
        bench.measure(*row, &mut table, *measure);
    }
    let model = bench
        .model
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    table.fact("model", model.as_ref());
    table.fact("threads", bench.threads);
    table.fact("rounds", bench.rounds);
    let file = arguments
        .json
        .clone()
        .unwrap_or_else(|| cache.root().join("bench/engine.json"));
    let heading = format!(
        "{}\n{model}, threads: {}, ratios are medians of {} alternating rounds",
        crate::report::machine(),
        bench.threads,
        bench.rounds
    );
    table.print(&heading, &file)?;
    Ok(ExitCode::SUCCESS)
}

type Measure = fn(&Bench<'_>, &mut Table) -> Result<()>;

/// Rows of which each is a measurement of its own.
const SINGLE_ROWS: &[(Row, Measure)] = &[
    (Row::Gemma, gemma),
    (Row::Forced, forced),
    (Row::MistralRs, mistral_rs),
    (Row::Serve8, |bench, table| {
        serving::measure(bench, 8, table)
    }),
    (Row::Serve32, |bench, table| {
        serving::measure(bench, 32, table)
    }),
    (Row::Prefix, prefix::measure),
    (Row::Mixed, mixed::measure),
    (Row::Overhead, overhead::measure),
    (Row::Waste, waste::measure),
    (Row::Leak, leak::measure),
];

/// Single tokens measured after a prompt.
const DECODE_TOKENS: usize = 64;
/// Runs of a prompt of 512 in one round; of 2,048 one, which takes as long.
const REPEATS: usize = 2;

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments, cache: &'a Cache, workspace: &'a Path) -> Result<Self> {
        Ok(Self {
            arguments,
            cache,
            workspace,
            progress: Progress::start(),
            engine: engine_program()?,
            model: model(arguments.model.as_deref(), workspace, "smollm2")?,
            threads: arguments
                .threads
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            rounds: usize::from(arguments.rounds),
            python: OnceCell::new(),
            node: OnceCell::new(),
        })
    }

    fn wants(&self, row: Row) -> bool {
        self.arguments.rows.is_empty() || self.arguments.rows.contains(&row)
    }

    /// One row; what fails is said in the table and harms no other row.
    fn measure(&self, row: Row, table: &mut Table, measure: Measure) {
        if !self.wants(row) {
            return;
        }
        if let Err(error) = measure(self, table) {
            let name = row
                .to_possible_value()
                .map_or(String::new(), |value| value.get_name().to_owned());
            self.progress.step(format!("{name}: {error:#}"));
            table.unmeasured(&name, format!("{error:#}"));
        }
    }

    fn llama_cpp_python(&self, model: &Path) -> Result<Rc<LlamaCpp>> {
        if let Some(peer) = self.python.get() {
            return Ok(Rc::clone(peer));
        }
        let peer = Rc::new(LlamaCpp::install(
            self.cache,
            self.workspace,
            model,
            &self.progress,
        )?);
        Ok(Rc::clone(self.python.get_or_init(|| peer)))
    }

    fn node_llama_cpp(&self, sets: InstructionSets) -> Result<Rc<NodeLlamaCpp>> {
        let install = || NodeLlamaCpp::install(self.cache, sets, &self.progress).map(Rc::new);
        if sets != InstructionSets::Best {
            return install();
        }
        if let Some(peer) = self.node.get() {
            return Ok(Rc::clone(peer));
        }
        let peer = install()?;
        Ok(Rc::clone(self.node.get_or_init(|| peer)))
    }

    fn work<'m>(&self, model: &'m Path, prompt_tokens: usize) -> SpeedWork<'m> {
        SpeedWork {
            model,
            threads: self.threads,
            prompt_tokens,
            decode_tokens: DECODE_TOKENS,
            repeats: if prompt_tokens > 1024 { 1 } else { REPEATS },
        }
    }

    /// The rows of one sequence of the model, of which two come from one measurement.
    fn comparisons(&self, table: &mut Table) {
        if self.wants(Row::Prefill512) || self.wants(Row::Decode) {
            let row = if self.wants(Row::Decode) {
                Row::Decode
            } else {
                Row::Prefill512
            };
            self.measure(row, table, |bench, table| {
                let contest = contest(bench, &bench.work(&bench.model, 512), None)?;
                table.fact("isa", contest.isa.as_str());
                table.fact(
                    "llama_cpp_build",
                    bench.llama_cpp_python(&bench.model)?.build.as_str(),
                );
                if bench.wants(Row::Prefill512) {
                    prefill(
                        table,
                        "prefill_512",
                        "SmolLM2 Q4_1, prefill 512",
                        &contest,
                        prefill_target(),
                    );
                }
                if bench.wants(Row::Decode) {
                    decode(
                        table,
                        "decode",
                        "SmolLM2 Q4_1, decode, 1 sequence",
                        &contest,
                        1.3,
                    );
                    table.figure(
                        Figure::new("decode_gbs", "    which reads", contest.decode_gbs)
                            .unit("GB/s"),
                    );
                    table.figure(
                        Figure::new("stream_gbs", "    of what memory gives", contest.stream_gbs)
                            .unit("GB/s"),
                    );
                }
                Ok(())
            });
        }
        self.measure(Row::Prefill2048, table, |bench, table| {
            let contest = contest(bench, &bench.work(&bench.model, 2048), None)?;
            table.fact("isa", contest.isa.as_str());
            prefill(
                table,
                "prefill_2048",
                "SmolLM2 Q4_1, prefill 2,048",
                &contest,
                prefill_target(),
            );
            Ok(())
        });
    }
}

/// The file given, or the one that `e2e/fetch-model NAME` brings.
fn model(given: Option<&Path>, workspace: &Path, name: &str) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(std::path::absolute(path)?);
    }
    let mut fetch = Command::new(workspace.join("e2e/fetch-model"));
    Ok(PathBuf::from(run(fetch.arg(name))?.trim()))
}

fn flags() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| Some(line.strip_prefix("flags")?.to_owned()))
        .unwrap_or_default()
}

fn peer_has_tiles() -> bool {
    flags().split_whitespace().any(|flag| flag == "amx_int8")
}

/// With AMX the peer itself is four times as fast.
fn prefill_target() -> f64 {
    if peer_has_tiles() { 1.8 } else { 4.0 }
}

/// What a memory-bound decode must reach of the bandwidth where the peer leaves less than the target to win.
const BANDWIDTH_SHARE: f64 = 0.92;

fn prefill(table: &mut Table, key: &str, what: &str, contest: &Contest, target: f64) {
    table.busy(contest.busy_cores.iter().copied());
    let comparison = &contest.prefill;
    table.figure(
        Figure::new(format!("{key}_ratio"), what, comparison.ratio)
            .unit("x")
            .at_least(target)
            .note(comparison.note("tok/s")),
    );
    table.fact(format!("{key}_tokens_per_second"), rounded(comparison.ours));
    table.fact(
        format!("{key}_peer_tokens_per_second"),
        rounded(comparison.theirs),
    );
    table.fact(format!("{key}_peer"), comparison.rival);
}

fn decode(table: &mut Table, key: &str, what: &str, contest: &Contest, target: f64) {
    table.busy(contest.busy_cores.iter().copied());
    let comparison = &contest.decode;
    let share = contest.decode_gbs / contest.stream_gbs;
    let reached = share >= BANDWIDTH_SHARE;
    let mut figure = Figure::new(format!("{key}_ratio"), what, comparison.ratio)
        .unit("x")
        .at_least(target)
        .note(comparison.note("tok/s"));
    if reached && comparison.ratio < target {
        figure.met_otherwise = Some(format!(
            "reads {:.1} GB/s, {:.0} % of what memory gives, which counts as well",
            contest.decode_gbs,
            share * 100.0
        ));
    }
    table.figure(figure);
    table.fact(format!("{key}_tokens_per_second"), rounded(comparison.ours));
    table.fact(
        format!("{key}_peer_tokens_per_second"),
        rounded(comparison.theirs),
    );
    table.fact(format!("{key}_peer"), comparison.rival);
}

fn gemma(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let model = model(bench.arguments.gemma.as_deref(), bench.workspace, "gemma3")?;
    let work = bench.work(&model, 512);
    // Told before the peers have run for a minute.
    speed::our_speed(bench, &SpeedWork { repeats: 1, ..work }, None).context("not loaded")?;
    let contest = contest(bench, &work, None)?;
    let target = if peer_has_tiles() { 1.5 } else { 2.5 };
    prefill(
        table,
        "gemma_prefill",
        "Gemma-3-270M Q4_K_M, prefill 512",
        &contest,
        target,
    );
    decode(
        table,
        "gemma_decode",
        "Gemma-3-270M Q4_K_M, decode, 1 sequence",
        &contest,
        1.12,
    );
    table.fact("gemma_decode_gbs", rounded(contest.decode_gbs));
    table.fact("gemma_stream_gbs", rounded(contest.stream_gbs));
    Ok(())
}

fn forced(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let flags = flags();
    let flags: Vec<&str> = flags.split_whitespace().collect();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_there(&flags)) {
        let name = isa.name();
        let short = contest(bench, &bench.work(&bench.model, 512), Some(isa))?;
        // Only kernels without tiles run on either side, so the target is the one against a peer that has none.
        prefill(
            table,
            &format!("{name}_prefill_512"),
            &format!("{name} forced, prefill 512"),
            &short,
            4.0,
        );
        decode(
            table,
            &format!("{name}_decode"),
            &format!("{name} forced, decode, 1 sequence"),
            &short,
            1.3,
        );
        let long = contest(bench, &bench.work(&bench.model, 2048), Some(isa))?;
        prefill(
            table,
            &format!("{name}_prefill_2048"),
            &format!("{name} forced, prefill 2,048"),
            &long,
            4.0,
        );
    }
    Ok(())
}

fn mistral_rs(bench: &Bench<'_>, table: &mut Table) -> Result<()> {
    let peer = MistralRs::install(bench.cache, &bench.progress)?;
    bench.progress.step("mistral.rs, once");
    let work = SpeedWork {
        repeats: 1,
        ..bench.work(&bench.model, 512)
    };
    let theirs = speed::speed(&mut peer.speed_command(bench.workspace, &work))?;
    let ours = speed::our_speed(bench, &work, None)?;
    for (key, what, ours, theirs) in [
        (
            "prefill_512",
            "prefill 512",
            ours.prefill_tokens_per_second,
            theirs.prefill_tokens_per_second,
        ),
        (
            "decode",
            "decode, 1 sequence",
            ours.decode_tokens_per_second,
            theirs.decode_tokens_per_second,
        ),
    ] {
        table.figure(
            Figure::new(
                format!("mistralrs_{key}_ratio"),
                format!("over mistral.rs, {what}"),
                ours / theirs,
            )
            .unit("x")
            .note(format!("{ours:.1} tok/s beside {theirs:.1}, one run")),
        );
    }
    Ok(())
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
