//! Traces of real services, played by `pagoda simulate`: Pagoda's autoscaler against four others, one pod model, one routing
//! policy, the same bounds.
//!
//! Every trace is scaled so that about 5 to 40 pods are needed, and begins with as many pods as its first minutes need, whoever
//! decides. Pagoda's target is the SLO's own time to first token, its window the time that a pod takes to load; for which percentile
//! was chosen for each trace with the simulator, as a user would. The tuned HPA is the best of a grid of 28 for the very trace.

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
    /// Of them, in percent, Pagoda is told to aim at as many.
    percentile: u32,
}

const TRACES: [Trace; 4] = [
    Trace {
        name: "azure_conv",
        file: "azure_llm_conv.csv",
        scale_load: 10.0,
        pods: 10,
        ttft_ms: 2_000,
        percentile: 85,
    },
    Trace {
        name: "azure_code",
        file: "azure_llm_code.csv",
        scale_load: 5.0,
        pods: 6,
        ttft_ms: 2_000,
        percentile: 99,
    },
    Trace {
        name: "mooncake_conversation",
        file: "mooncake_conversation.jsonl",
        scale_load: 3.0,
        pods: 8,
        ttft_ms: 10_000,
        percentile: 97,
    },
    Trace {
        name: "mooncake_synthetic",
        file: "mooncake_synthetic.jsonl",
        scale_load: 2.0,
        pods: 8,
        ttft_ms: 10_000,
        percentile: 98,
    },
];

/// What came of one trace under one scaler.
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
        let outcomes = play(run, trace, &program, &folder)?;
        tell(report, trace, &outcomes);
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

fn play(run: &Run<'_>, trace: &Trace, program: &Path, folder: &Path) -> Result<Vec<Outcome>> {
    let spec = run.cache.root().join(format!("bench/{}.yaml", trace.name));
    std::fs::create_dir_all(spec.parent().context("the spec has no folder")?)?;
    std::fs::write(&spec, manifest(trace))?;
    let plot = spec.with_extension("svg");
    let output = Command::new(program)
        .arg("simulate")
        .arg("--trace")
        .arg(folder.join(trace.file))
        .arg("--spec")
        .arg(&spec)
        .arg("--plot")
        .arg(&plot)
        .args(["--scaler", SCALERS, "--format", "json"])
        .args(["--pod-speed", POD_SPEED])
        .arg(format!("--load-seconds={LOAD_SECONDS}"))
        .arg(format!("--scale-load={}", trace.scale_load))
        .arg(format!("--pods={}", trace.pods))
        .arg(format!("--slo-ttft-ms={}", trace.ttft_ms))
        .arg(format!("--slo-itl-ms={ITL_MS}"))
        .arg(format!("--seed={}", run.arguments.seed))
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let found: Value = serde_json::from_slice(&output.stdout)?;
    let runs = found["runs"].as_array().context("no runs were told")?;
    runs.iter().map(outcome).collect()
}

fn outcome(run: &Value) -> Result<Outcome> {
    let number = |value: &Value| value.as_f64().context("a figure is missing");
    Ok(Outcome {
        scaler: run["scaler"].as_str().unwrap_or_default().replace('-', "_"),
        attainment: number(&run["slo"]["attainment"])?,
        gpu_hours: number(&run["gpu_hours"])?,
    })
}

fn manifest(trace: &Trace) -> String {
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
    windowSeconds: {LOAD_SECONDS}
    targets:
      - {{metric: TimeToFirstToken, percentile: {}, milliseconds: {}}}
",
        trace.name.replace('_', "-"),
        trace.percentile,
        trace.ttft_ms
    )
}

fn tell(report: &mut Report, trace: &Trace, outcomes: &[Outcome]) {
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
    let others = outcomes.iter().filter(|o| o.scaler != "pagoda");
    let lost = others.filter(|other| !beats(pagoda, other)).count();
    report.figure(Figure {
        key: format!("not_beaten_{}", trace.name).into(),
        what: format!("{}: scalers that Pagoda does not beat", trace.name),
        value: lost as f64,
        target: Some(0.0),
        unit: "".into(),
        note: "beaten: more requests within SLO for fewer GPU-hours".to_owned(),
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
