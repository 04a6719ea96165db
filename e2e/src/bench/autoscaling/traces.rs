//! Traces of real services, played by `pagoda simulate`: Pagoda's autoscaler against four others, one pod model, one routing
//! policy, the same bounds.
//!
//! Every trace is scaled so that about 5 to 40 pods are needed, and begins with as many pods as its first minutes need, whoever
//! decides. Pagoda's target is the SLO's own time to first token, its window about the time that a pod takes to load; for which
//! percentile, and how long it waits before it scales in, was chosen for each trace with the simulator, as a user would. The tuned
//! HPA is the best of a grid of 28 for the very trace. Every figure is a mean over seeds: routing and load times are random, and
//! one seed moves a short trace by several points.
//!
//! One setting is one point between quality and cost, and so is each rival. Whether a rival lies behind Pagoda's whole curve is
//! told too: by a grid of percentiles and waits, is there a setting that is better at both?

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Run;
use crate::report::{Figure, Report};

/// Where the traces are, if not beside the repository.
const FOLDER: &str = "PAGODA_TRACES";
const SCALERS: &str = "pagoda,hpa,hpa-tuned,kpa,saturation";
/// A GPU that takes in 20,000 prompt tokens per second, and whose decode step takes 15 ms and 0.2 ms for each sequence.
const POD_SPEED: &str = "20000,15,0.2";
const LOAD_SECONDS: u32 = 60;
/// What may be wanted of a request's tokens after the first.
const ITL_MS: u32 = 100;

struct Trace {
    /// In keys.
    name: &'static str,
    file: &'static str,
    /// Requests for each one of the trace.
    scale_load: f64,
    /// Pods at its beginning.
    pods: u32,
    /// What may be wanted of a first token.
    ttft_ms: u32,
    tuning: Tuning,
}

/// What a user of Pagoda chooses with the simulator.
#[derive(Debug, Clone, Copy)]
struct Tuning {
    /// Of the first tokens, in percent, so many are to be in time.
    percentile: u32,
    window_seconds: u32,
    /// Wait before a scale-in, on what was wanted meanwhile.
    scale_in_seconds: u32,
}

impl Tuning {
    const fn of(percentile: u32) -> Self {
        Self {
            percentile,
            window_seconds: LOAD_SECONDS,
            scale_in_seconds: 300,
        }
    }
}

/// Where Pagoda's curve is looked at.
const CURVE_PERCENTILES: [u32; 6] = [75, 80, 85, 90, 95, 99];
const CURVE_SCALE_IN_SECONDS: [u32; 2] = [300, 900];

const TRACES: [Trace; 4] = [
    Trace {
        name: "azure_conv",
        file: "azure_llm_conv.csv",
        scale_load: 10.0,
        pods: 10,
        ttft_ms: 2_000,
        tuning: Tuning::of(85),
    },
    Trace {
        name: "azure_code",
        file: "azure_llm_code.csv",
        scale_load: 5.0,
        pods: 6,
        ttft_ms: 2_000,
        tuning: Tuning::of(99),
    },
    Trace {
        name: "mooncake_conversation",
        file: "mooncake_conversation.jsonl",
        scale_load: 3.0,
        pods: 8,
        ttft_ms: 10_000,
        tuning: Tuning::of(97),
    },
    Trace {
        name: "mooncake_synthetic",
        file: "mooncake_synthetic.jsonl",
        scale_load: 2.0,
        pods: 8,
        ttft_ms: 10_000,
        // Its load hardly changes: pods that are let go early are missed, and so are their caches.
        tuning: Tuning {
            percentile: 88,
            window_seconds: 20,
            scale_in_seconds: 1200,
        },
    },
];

/// What came of one trace under one scaler.
#[derive(Debug, PartialEq)]
struct Outcome {
    scaler: String,
    attainment: f64,
    gpu_hours: f64,
}

pub(super) fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let folder = folder(run.workspace)?;
    let program = program()?;
    for trace in &TRACES {
        run.progress.step(format!("{}, by {SCALERS}", trace.file));
        let stage = Stage {
            run,
            trace,
            program: &program,
            folder: &folder,
        };
        let outcomes = stage.play(trace.tuning, SCALERS)?;
        run.progress
            .step(format!("{}, other settings of Pagoda", trace.file));
        let curve = stage.curve()?;
        tell(report, trace, &outcomes, &curve);
    }
    Ok(())
}

fn folder(workspace: &Path) -> Result<PathBuf> {
    let folder = match std::env::var_os(FOLDER) {
        Some(folder) => PathBuf::from(folder),
        None => workspace.join("../shared/traces"),
    };
    ensure!(
        folder.is_dir(),
        "there are no traces in {}: name the folder with {} and the others in {FOLDER}",
        folder.display(),
        TRACES[0].file
    );
    Ok(folder)
}

/// `pagoda` lies beside this program: both are built at once.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let program = own.with_file_name("pagoda");
    ensure!(
        program.exists(),
        "{} is not there: build it with `cargo build --release -p pagoda-cli`",
        program.display()
    );
    Ok(program)
}

/// What a trace is played with.
struct Stage<'a> {
    run: &'a Run<'a>,
    trace: &'a Trace,
    program: &'a Path,
    folder: &'a Path,
}

impl Stage<'_> {
    /// Means over the seeds, by scaler.
    fn play(&self, tuning: Tuning, scalers: &str) -> Result<Vec<Outcome>> {
        let (first, count) = (self.run.arguments.seed, self.run.arguments.seeds);
        let by_seed: Vec<Vec<Outcome>> = (first..first + u64::from(count))
            .map(|seed| self.play_once(tuning, scalers, seed))
            .collect::<Result<_>>()?;
        Ok(means(by_seed))
    }

    fn play_once(&self, tuning: Tuning, scalers: &str, seed: u64) -> Result<Vec<Outcome>> {
        let trace = self.trace;
        let bench = self.run.cache.root().join("bench");
        let spec = bench.join(format!("{}.yaml", trace.name));
        std::fs::create_dir_all(&bench)?;
        std::fs::write(&spec, manifest(trace, tuning))?;
        let mut command = Command::new(self.program);
        command
            .arg("simulate")
            .arg("--trace")
            .arg(self.folder.join(trace.file))
            .arg("--spec")
            .arg(&spec)
            .args(["--scaler", scalers, "--format", "json"])
            .args(["--pod-speed", POD_SPEED])
            .arg(format!("--load-seconds={LOAD_SECONDS}"))
            .arg(format!("--scale-load={}", trace.scale_load))
            .arg(format!("--pods={}", trace.pods))
            .arg(format!("--slo-ttft-ms={}", trace.ttft_ms))
            .arg(format!("--slo-itl-ms={ITL_MS}"))
            .arg(format!("--seed={seed}"));
        if scalers == SCALERS {
            command.arg("--plot").arg(spec.with_extension("svg"));
        }
        let output = command
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let found: Value = serde_json::from_slice(&output.stdout)?;
        let runs = found["runs"].as_array().context("no runs were told")?;
        runs.iter().map(outcome).collect()
    }

    /// Pagoda alone, by every setting of the grid.
    fn curve(&self) -> Result<Vec<Outcome>> {
        let mut curve = Vec::new();
        for scale_in_seconds in CURVE_SCALE_IN_SECONDS {
            for percentile in CURVE_PERCENTILES {
                let tuning = Tuning {
                    scale_in_seconds,
                    ..Tuning::of(percentile)
                };
                curve.extend(self.play(tuning, "pagoda")?);
            }
        }
        Ok(curve)
    }
}

/// Every seed's outcomes are of the same scalers in the same order.
fn means(by_seed: Vec<Vec<Outcome>>) -> Vec<Outcome> {
    let count = by_seed.len() as f64;
    let add = |mut sums: Vec<Outcome>, more: Vec<Outcome>| {
        for (sum, more) in sums.iter_mut().zip(more) {
            sum.attainment += more.attainment;
            sum.gpu_hours += more.gpu_hours;
        }
        sums
    };
    let mut means = by_seed.into_iter().reduce(add).unwrap_or_default();
    for mean in &mut means {
        mean.attainment /= count;
        mean.gpu_hours /= count;
    }
    means
}

fn outcome(run: &Value) -> Result<Outcome> {
    let number = |value: &Value| value.as_f64().context("a figure is missing");
    Ok(Outcome {
        scaler: run["scaler"].as_str().unwrap_or_default().replace('-', "_"),
        attainment: number(&run["slo"]["attainment"])?,
        gpu_hours: number(&run["gpu_hours"])?,
    })
}

fn manifest(trace: &Trace, tuning: Tuning) -> String {
    format!(
        "apiVersion: serving.pagoda.dev/v1alpha1
kind: InferenceService
metadata: {{name: {}}}
spec:
  model: {{source: {{uri: \"https://models.example.com/model.gguf\"}}}}
  hardware: {{accelerator: {{kind: nvidia}}}}
  engine: {{maxContextTokens: 262144, maxSequences: 64, stepTokens: 2048, kvMemory: 16Gi}}
  scaling:
    minReplicas: 1
    maxReplicas: 100
    windowSeconds: {}
    behavior: {{scaleDown: {{stabilizationWindowSeconds: {}}}}}
    targets:
      - {{metric: TimeToFirstToken, percentile: {}, milliseconds: {}}}
",
        trace.name.replace('_', "-"),
        tuning.window_seconds,
        tuning.scale_in_seconds,
        tuning.percentile,
        trace.ttft_ms
    )
}

fn tell(report: &mut Report, trace: &Trace, outcomes: &[Outcome], curve: &[Outcome]) {
    let Some(pagoda) = outcomes.iter().find(|o| o.scaler == "pagoda") else {
        return;
    };
    for outcome in outcomes {
        let note = if outcome.scaler == "pagoda" {
            format!(
                "first token within {} ms, then {ITL_MS} ms a token on average; load x {}, {} pods at first",
                trace.ttft_ms, trace.scale_load, trace.pods
            )
        } else {
            against(pagoda, outcome)
        };
        report.figure(Figure {
            key: format!("slo_{}_{}", trace.name, outcome.scaler).into(),
            what: format!("{}, {}: requests within SLO", trace.name, outcome.scaler),
            value: 100.0 * outcome.attainment,
            target: None,
            unit: "%".into(),
            note,
        });
        report.figure(Figure {
            key: format!("gpu_hours_{}_{}", trace.name, outcome.scaler).into(),
            what: format!("{}, {}: GPU-hours", trace.name, outcome.scaler),
            value: outcome.gpu_hours,
            target: None,
            unit: "h".into(),
            note: String::new(),
        });
    }
    let rivals = || outcomes.iter().filter(|o| o.scaler != "pagoda");
    report.figure(Figure {
        key: format!("not_beaten_{}", trace.name).into(),
        what: format!("{}: scalers that Pagoda does not beat", trace.name),
        value: rivals().filter(|other| !beats(pagoda, other)).count() as f64,
        target: Some(0.0),
        unit: "".into(),
        note: "beaten: more requests within SLO for fewer GPU-hours, by one setting".to_owned(),
    });
    let is_before_the_curve = |other: &&Outcome| !curve.iter().any(|point| beats(point, other));
    report.figure(Figure {
        key: format!("before_curve_{}", trace.name).into(),
        what: format!("{}: scalers that no setting of Pagoda beats", trace.name),
        value: rivals().filter(is_before_the_curve).count() as f64,
        target: Some(0.0),
        unit: "".into(),
        note: format!("of {} settings", curve.len()),
    });
}

fn beats(pagoda: &Outcome, other: &Outcome) -> bool {
    pagoda.attainment > other.attainment && pagoda.gpu_hours < other.gpu_hours
}

fn against(pagoda: &Outcome, other: &Outcome) -> String {
    let points = 100.0 * (pagoda.attainment - other.attainment);
    let hours = pagoda.gpu_hours - other.gpu_hours;
    let verdict = if beats(pagoda, other) {
        "beaten"
    } else {
        "NOT beaten"
    };
    format!("{verdict}: Pagoda {points:+.2} points of SLO, {hours:+.2} GPU-hours")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(scaler: &str, attainment: f64, gpu_hours: f64) -> Outcome {
        Outcome {
            scaler: scaler.to_owned(),
            attainment,
            gpu_hours,
        }
    }

    #[test]
    fn the_figures_of_a_scaler_are_means_over_the_seeds() {
        let seeds = vec![
            vec![outcome("pagoda", 0.5, 2.0), outcome("hpa", 1.0, 8.0)],
            vec![outcome("pagoda", 1.0, 4.0), outcome("hpa", 0.0, 8.0)],
        ];
        let expected = vec![outcome("pagoda", 0.75, 3.0), outcome("hpa", 0.5, 8.0)];
        assert_eq!(means(seeds), expected);
    }

    #[test]
    fn a_scaler_is_beaten_by_more_requests_in_time_for_fewer_hours_only() {
        let pagoda = outcome("pagoda", 0.9, 4.0);
        assert!(beats(&pagoda, &outcome("hpa", 0.8, 5.0)));
        assert!(!beats(&pagoda, &outcome("hpa", 0.8, 3.9)));
        assert!(!beats(&pagoda, &outcome("hpa", 0.95, 5.0)));
    }
}
