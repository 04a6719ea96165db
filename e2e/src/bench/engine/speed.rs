//! One sequence on our engine and on the peers, in alternating runs.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::process::{command_line, run};
use serde::Deserialize;

use super::Bench;
use crate::memory::read_gigabytes_per_second;
use crate::peers::{InstructionSets, SpeedWork};
use crate::quiet::busy_cores;
use crate::statistics::{median, range};

/// Kernels that ours can be held to, and its peer with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    Avx2,
    Avx512Vnni,
}

impl Isa {
    pub const ALL: [Self; 2] = [Self::Avx2, Self::Avx512Vnni];

    /// As `PAGODA_CPU` names it, and the ends of keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::Avx512Vnni => "avx512vnni",
        }
    }

    /// By the flags of `/proc/cpuinfo`.
    pub fn is_there(self, flags: &[&str]) -> bool {
        let needed: &[&str] = match self {
            Self::Avx2 => &["avx2", "fma", "f16c"],
            Self::Avx512Vnni => &["avx512f", "avx512bw", "avx512vl", "avx512_vnni"],
        };
        needed.iter().all(|flag| flags.contains(flag))
    }

    pub fn peers_sets(self) -> InstructionSets {
        match self {
            Self::Avx2 => InstructionSets::UpToAvx2,
            Self::Avx512Vnni => InstructionSets::UpToAvx512,
        }
    }
}

/// One engine's figures in one run, as all programs print them.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Speed {
    pub prefill_tokens_per_second: f64,
    pub decode_tokens_per_second: f64,
    /// The kernels ours chose; peers do not say.
    #[serde(default)]
    pub isa: String,
    #[serde(default)]
    pub weight_bytes: f64,
    #[serde(default)]
    pub kv_bytes_per_token: f64,
}

impl Speed {
    /// Gigabytes (10^9) a second that decoding `work` read: every weight for each token, and the keys and values of what
    /// stands before it. A table of embeddings that is not the head as well counts though one row of it is read.
    fn decode_gigabytes_per_second(&self, work: &SpeedWork<'_>) -> f64 {
        let before = work.prompt_tokens as f64 + work.decode_tokens as f64 / 2.0;
        self.decode_tokens_per_second * (self.weight_bytes + self.kv_bytes_per_token * before) / 1e9
    }
}

/// The figures of one round, by the peers' names.
#[derive(Debug, Clone)]
struct Round {
    ours: Speed,
    theirs: BTreeMap<&'static str, Speed>,
    stream_gbs: f64,
    busy_cores: f64,
}

/// A peer that prints its speed.
struct Peer<'a> {
    name: &'static str,
    command: Box<dyn Fn(&SpeedWork<'_>) -> Command + 'a>,
}

/// What all rounds say together.
#[derive(Debug)]
pub struct Contest {
    pub prefill: Comparison,
    pub decode: Comparison,
    pub isa: String,
    pub decode_gbs: f64,
    pub stream_gbs: f64,
    pub busy_cores: Vec<f64>,
}

/// Our kernels and the peers' held to `isa`, if any.
///
/// All peers run once; from then on only those that were the fastest at the prompt or at the tokens after it, each of which is
/// what that figure is compared with.
pub fn contest(bench: &Bench<'_>, work: &SpeedWork<'_>, isa: Option<Isa>) -> Result<Contest> {
    let peers = peers(bench, work, isa)?;
    bench
        .progress
        .step(format!("{}: a first run of each peer", describe(work, isa)));
    let mut first = BTreeMap::new();
    for peer in &peers {
        first.insert(
            peer.name,
            speed(&mut (peer.command)(&SpeedWork {
                repeats: 1,
                ..*work
            }))?,
        );
    }
    let prefill_rival = fastest(&first, |speed| speed.prefill_tokens_per_second)?;
    let decode_rival = fastest(&first, |speed| speed.decode_tokens_per_second)?;
    let rivals: Vec<&Peer<'_>> = peers
        .iter()
        .filter(|peer| [prefill_rival, decode_rival].contains(&peer.name))
        .collect();
    let mut rounds = Vec::new();
    for number in 1..=bench.rounds {
        bench.progress.step(format!(
            "{}: round {number} of {}",
            describe(work, isa),
            bench.rounds
        ));
        rounds.push(round(bench, work, isa, &rivals, number)?);
    }
    let of_none = "no round was measured";
    let gbs: Vec<f64> = rounds
        .iter()
        .map(|round| round.ours.decode_gigabytes_per_second(work))
        .collect();
    let streams: Vec<f64> = rounds.iter().map(|round| round.stream_gbs).collect();
    Ok(Contest {
        prefill: Comparison::of(&rounds, prefill_rival, |speed| {
            speed.prefill_tokens_per_second
        })?,
        decode: Comparison::of(&rounds, decode_rival, |speed| {
            speed.decode_tokens_per_second
        })?,
        isa: rounds.first().context(of_none)?.ours.isa.clone(),
        decode_gbs: median(&gbs).context(of_none)?,
        stream_gbs: median(&streams).context(of_none)?,
        busy_cores: rounds.iter().map(|round| round.busy_cores).collect(),
    })
}

fn describe(work: &SpeedWork<'_>, isa: Option<Isa>) -> String {
    let model = work.model.file_stem().unwrap_or_default().to_string_lossy();
    let forced = isa.map_or(String::new(), |isa| format!(", {} forced", isa.name()));
    format!("{model}, a prompt of {}{forced}", work.prompt_tokens)
}

fn peers<'a>(
    bench: &'a Bench<'_>,
    work: &SpeedWork<'_>,
    isa: Option<Isa>,
) -> Result<Vec<Peer<'a>>> {
    let sets = isa.map_or(InstructionSets::Best, Isa::peers_sets);
    let node = bench.node_llama_cpp(sets)?;
    let mut peers = vec![Peer {
        name: "node-llama-cpp",
        command: Box::new(move |work: &SpeedWork<'_>| node.speed_command(bench.workspace, work)),
    }];
    // Built for this very processor, so it cannot be held to less.
    if isa != Some(Isa::Avx2) {
        let python = bench.llama_cpp_python(work.model)?;
        peers.push(Peer {
            name: "llama-cpp-python",
            command: Box::new(move |work: &SpeedWork<'_>| {
                python.speed_command(bench.workspace, work)
            }),
        });
    }
    Ok(peers)
}

/// Who goes first alternates, so that a drift of the machine's clock or load favours neither.
fn round(
    bench: &Bench<'_>,
    work: &SpeedWork<'_>,
    isa: Option<Isa>,
    rivals: &[&Peer<'_>],
    number: usize,
) -> Result<Round> {
    let busy_cores = busy_cores()?;
    let stream_gbs = read_gigabytes_per_second(work.threads);
    let all = |theirs: &mut BTreeMap<_, _>| -> Result<()> {
        for rival in rivals {
            theirs.insert(rival.name, speed(&mut (rival.command)(work))?);
        }
        Ok(())
    };
    let mut theirs = BTreeMap::new();
    let ours = if number % 2 == 1 {
        let ours = our_speed(bench, work, isa)?;
        all(&mut theirs)?;
        ours
    } else {
        all(&mut theirs)?;
        our_speed(bench, work, isa)?
    };
    Ok(Round {
        ours,
        theirs,
        stream_gbs,
        busy_cores,
    })
}

/// One run of ours.
pub fn our_speed(bench: &Bench<'_>, work: &SpeedWork<'_>, isa: Option<Isa>) -> Result<Speed> {
    let mut command = Command::new(&bench.engine);
    command
        .args(["bench", "--json"])
        .args(["--threads", &work.threads.to_string()])
        .args(["--prefill", &work.prompt_tokens.to_string()])
        .args(["--decode", &work.decode_tokens.to_string()])
        .args(["--repetitions", &work.repeats.to_string()])
        .arg("--model")
        .arg(work.model);
    if let Some(isa) = isa {
        command.env("PAGODA_CPU", isa.name());
    }
    speed(&mut command)
}

/// Runs a program that ends with its figures.
pub fn speed(command: &mut Command) -> Result<Speed> {
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

fn fastest(
    speeds: &BTreeMap<&'static str, Speed>,
    figure: impl Fn(&Speed) -> f64,
) -> Result<&'static str> {
    let best = speeds
        .iter()
        .max_by(|(_, one), (_, other)| figure(one).total_cmp(&figure(other)));
    Ok(*best.context("there is no peer")?.0)
}

/// Medians over the rounds; `ratio` is the median of each round's ours over theirs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub rival: &'static str,
    pub ours: f64,
    pub theirs: f64,
    pub ratio: f64,
    pub ratio_range: (f64, f64),
}

impl Comparison {
    fn of(rounds: &[Round], rival: &'static str, figure: impl Fn(&Speed) -> f64) -> Result<Self> {
        let pairs: Vec<(f64, f64)> = rounds
            .iter()
            .filter_map(|round| Some((figure(&round.ours), figure(round.theirs.get(rival)?))))
            .collect();
        Self::of_pairs(rival, &pairs)
    }

    /// Of ours and theirs, a pair a round.
    pub fn of_pairs(rival: &'static str, pairs: &[(f64, f64)]) -> Result<Self> {
        let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
        let of_none = "no round was measured";
        Ok(Self {
            rival,
            ours: median(&ours).context(of_none)?,
            theirs: median(&theirs).context(of_none)?,
            ratio: median(&ratios).context(of_none)?,
            ratio_range: range(&ratios).context(of_none)?,
        })
    }

    /// In words, for the table.
    pub fn note(&self, unit: &str) -> String {
        let (least, most) = self.ratio_range;
        format!(
            "{:.1} {unit} beside {:.1} of {}; rounds {least:.2} to {most:.2}",
            self.ours, self.theirs, self.rival
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians() {
        // The machine slows by half in the second round: the ratio does not see it.
        let comparison =
            Comparison::of_pairs("peer", &[(80.0, 100.0), (40.0, 50.0), (90.0, 100.0)]).unwrap();
        assert!((comparison.ratio - 0.8).abs() < 1e-12, "{comparison:?}");
        assert_eq!((comparison.ours, comparison.theirs), (80.0, 100.0));
        assert!(Comparison::of_pairs("peer", &[]).is_err());
    }

    #[test]
    fn the_rival_is_whoever_is_fastest_at_the_work() {
        let of = |prefill, decode| Speed {
            prefill_tokens_per_second: prefill,
            decode_tokens_per_second: decode,
            ..Speed::default()
        };
        let speeds = BTreeMap::from([("a", of(9.0, 1.0)), ("b", of(1.0, 2.0))]);
        assert_eq!(
            fastest(&speeds, |speed| speed.prefill_tokens_per_second).unwrap(),
            "a"
        );
        assert_eq!(
            fastest(&speeds, |speed| speed.decode_tokens_per_second).unwrap(),
            "b"
        );
    }

    #[test]
    fn decoding_reads_the_weights_and_what_stands_before() {
        let speed = Speed {
            decode_tokens_per_second: 100.0,
            weight_bytes: 90e6,
            kv_bytes_per_token: 20e3,
            ..Speed::default()
        };
        let work = SpeedWork {
            model: std::path::Path::new("m"),
            threads: 1,
            prompt_tokens: 480,
            decode_tokens: 40,
            repeats: 1,
        };
        assert!((speed.decode_gigabytes_per_second(&work) - 10.0).abs() < 1e-9);
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

    #[test]
    fn a_set_is_there_only_with_all_of_its_flags() {
        let flags = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"];
        assert!(Isa::Avx2.is_there(&flags) && !Isa::Avx512Vnni.is_there(&flags));
    }
}
