//! `./bench engine`: our engine beside llama.cpp on one model, one after the other in the same minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::process::{command_line, run};
use pagoda_e2e::progress::Progress;
use serde::Deserialize;
use serde_json::json;

use crate::memory::read_gigabytes_per_second;
use crate::peers::LlamaCpp;
use crate::quiet::{TOLERATED_BUSY_CORES, busy_cores};
use crate::statistics::{median, range};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// GGUF file; by default the model that the tests use, fetched when it is not there
    #[arg(long)]
    model: Option<PathBuf>,
    /// Threads of both engines; by default all cores
    #[arg(long)]
    threads: Option<usize>,
    /// Runs of each engine, alternating
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// One engine's figures in one run, as both programs print them.
#[derive(Debug, Clone, Deserialize)]
struct Speed {
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    /// The kernels ours chose; llama.cpp does not say.
    #[serde(default)]
    isa: String,
    #[serde(default)]
    llama_cpp_python: String,
}

/// The two engines' figures of one round.
#[derive(Debug, Clone)]
struct Round {
    ours: Speed,
    theirs: Speed,
    /// Cores that others kept busy just before.
    busy_cores: f64,
}

/// Measures and prints the table and, as the last line, the flat JSON object.
pub fn run_benchmark(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<()> {
    let progress = Progress::start();
    let model = match &arguments.model {
        Some(path) => std::path::absolute(path)?,
        None => PathBuf::from(run(&mut Command::new(workspace.join("e2e/fetch-model")))?.trim()),
    };
    let contest = Contest {
        engine: engine_program()?,
        peer: LlamaCpp::install(cache, workspace, &model, &progress)?,
        workspace,
        threads: arguments
            .threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        model,
    };
    progress.step("measuring how fast memory reads");
    let bandwidth = read_gigabytes_per_second(contest.threads);
    let one_round = |number: u8| {
        progress.step(format!("round {number} of {}", arguments.rounds));
        contest.round(number)
    };
    let rounds: Vec<Round> = (1..=arguments.rounds)
        .map(one_round)
        .collect::<Result<_>>()?;
    report(&contest, &Summary::of(rounds)?, bandwidth);
    Ok(())
}

/// The program that goes into the image, which `./bench` built beside this one.
fn engine_program() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot tell where this program lies")?
        .with_file_name("pagoda-engine");
    ensure!(
        beside.is_file(),
        "there is no {}: run this through ./bench, which builds it",
        beside.display()
    );
    Ok(beside)
}

/// The two engines and what both run.
struct Contest<'a> {
    engine: PathBuf,
    peer: LlamaCpp,
    workspace: &'a Path,
    model: PathBuf,
    threads: usize,
}

impl Contest<'_> {
    /// Who goes first alternates, so that a drift of the machine's clock or load favours neither.
    fn round(&self, number: u8) -> Result<Round> {
        let busy_cores = busy_cores()?;
        let (ours, theirs) = if number % 2 == 1 {
            let ours = self.our_speed()?;
            (ours, self.their_speed()?)
        } else {
            let theirs = self.their_speed()?;
            (self.our_speed()?, theirs)
        };
        Ok(Round {
            ours,
            theirs,
            busy_cores,
        })
    }

    fn our_speed(&self) -> Result<Speed> {
        let mut command = Command::new(&self.engine);
        command
            .args([
                "bench",
                "--json",
                "--threads",
                &self.threads.to_string(),
                "--model",
            ])
            .arg(&self.model);
        speed(&mut command)
    }

    fn their_speed(&self) -> Result<Speed> {
        speed(
            &mut self
                .peer
                .speed_command(self.workspace, &self.model, self.threads),
        )
    }
}

fn speed(command: &mut Command) -> Result<Speed> {
    let output = run(command)?;
    let last = output
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let name = command_line(command);
    let speed: Speed = serde_json::from_str(last)
        .with_context(|| format!("`{name}` did not end with its figures but with {last:?}"))?;
    let positive = speed.prefill_tokens_per_second > 0.0 && speed.decode_tokens_per_second > 0.0;
    ensure!(positive, "`{name}` reports no speed: {last}");
    Ok(speed)
}

/// What all rounds say together.
struct Summary {
    prefill: Comparison,
    decode: Comparison,
    rounds: usize,
    isa: String,
    llama_cpp_python: String,
    /// Median over the rounds.
    busy_cores: f64,
}

impl Summary {
    fn of(rounds: Vec<Round>) -> Result<Self> {
        let prefill = Comparison::of(&rounds, |speed| speed.prefill_tokens_per_second)?;
        let decode = Comparison::of(&rounds, |speed| speed.decode_tokens_per_second)?;
        let busy: Vec<f64> = rounds.iter().map(|round| round.busy_cores).collect();
        let busy_cores = median(&busy).context("no round was measured")?;
        let count = rounds.len();
        let first = rounds.into_iter().next().context("no round was measured")?;
        let (isa, llama_cpp_python) = (first.ours.isa, first.theirs.llama_cpp_python);
        Ok(Self {
            prefill,
            decode,
            rounds: count,
            isa,
            llama_cpp_python,
            busy_cores,
        })
    }
}

fn report(contest: &Contest<'_>, summary: &Summary, bandwidth: f64) {
    let Contest {
        peer,
        threads,
        model,
        ..
    } = contest;
    let Summary {
        prefill,
        decode,
        rounds,
        isa,
        llama_cpp_python,
        busy_cores,
    } = summary;
    let model = model.file_name().unwrap_or_default().to_string_lossy();
    let build = &peer.build;
    println!("{model}, threads: {threads}, ours on {isa}; memory reads {bandwidth:.1} GB/s");
    println!("llama.cpp of llama-cpp-python {llama_cpp_python} ({build} build), {rounds} rounds");
    if *busy_cores > TOLERATED_BUSY_CORES {
        println!(
            "warning: other programs kept {busy_cores:.1} cores busy, so these ratios say little: run it again when they end"
        );
    }
    println!();
    println!(
        "{:<22}{:>10}{:>12}{:>9}{:>18}",
        "tokens/s", "ours", "llama.cpp", "ratio", "of the rounds"
    );
    println!("{}", prefill.row("prefill of 512"));
    println!("{}", decode.row("decode of 64 after it"));
    println!();
    let line = json!({
        "bench": "engine",
        "decode_ratio": rounded(decode.ratio),
        "prefill_ratio": rounded(prefill.ratio),
        "isa": isa,
        "threads": threads,
        "rounds": rounds,
        "prefill_tokens_per_second": rounded(prefill.ours),
        "decode_tokens_per_second": rounded(decode.ours),
        "llama_cpp_prefill_tokens_per_second": rounded(prefill.theirs),
        "llama_cpp_decode_tokens_per_second": rounded(decode.theirs),
        "llama_cpp_python": llama_cpp_python,
        "llama_cpp_build": build,
        "memory_gigabytes_per_second": rounded(bandwidth),
        "other_busy_cores": rounded(*busy_cores),
        "model": model,
    });
    println!("{line}");
}

/// Medians over the rounds; `ratio` is the median of each round's ours over theirs.
#[derive(Debug, Clone, PartialEq)]
struct Comparison {
    ours: f64,
    theirs: f64,
    ratio: f64,
    ratio_range: (f64, f64),
}

impl Comparison {
    fn of(rounds: &[Round], figure: impl Fn(&Speed) -> f64) -> Result<Self> {
        let ours: Vec<f64> = rounds.iter().map(|round| figure(&round.ours)).collect();
        let theirs: Vec<f64> = rounds.iter().map(|round| figure(&round.theirs)).collect();
        let ratios: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect();
        let of_none = "no round was measured";
        Ok(Self {
            ours: median(&ours).context(of_none)?,
            theirs: median(&theirs).context(of_none)?,
            ratio: median(&ratios).context(of_none)?,
            ratio_range: range(&ratios).context(of_none)?,
        })
    }

    fn row(&self, name: &str) -> String {
        let range = format!("{:.2} to {:.2}", self.ratio_range.0, self.ratio_range.1);
        format!(
            "{name:<22}{:>10.1}{:>12.1}{:>9.2}{range:>18}",
            self.ours, self.theirs, self.ratio
        )
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed_of(decode_tokens_per_second: f64) -> Speed {
        Speed {
            prefill_tokens_per_second: 1.0,
            decode_tokens_per_second,
            isa: String::new(),
            llama_cpp_python: String::new(),
        }
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() {
        // The machine slows by half in the second round: the ratio does not see it.
        let rounds: Vec<Round> = [(80.0, 100.0), (40.0, 50.0), (90.0, 100.0)]
            .map(|(ours, theirs)| Round {
                ours: speed_of(ours),
                theirs: speed_of(theirs),
                busy_cores: 0.0,
            })
            .into();
        let comparison = Comparison::of(&rounds, |speed| speed.decode_tokens_per_second).unwrap();
        assert!((comparison.ratio - 0.8).abs() < 1e-12, "{comparison:?}");
        assert_eq!((comparison.ours, comparison.theirs), (80.0, 100.0));
    }

    #[test]
    fn a_program_that_prints_no_figures_is_quoted() {
        let error = speed(Command::new("echo").arg("no figures today"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no figures today"), "{error}");
    }

    #[test]
    fn a_speed_of_zero_is_an_error_and_not_a_ratio() {
        let line = r#"{"prefill_tokens_per_second": 0.0, "decode_tokens_per_second": 1.0}"#;
        assert!(speed(Command::new("echo").arg(line)).is_err());
    }
}
