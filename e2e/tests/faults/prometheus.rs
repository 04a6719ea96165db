//! A real Prometheus as a source of figures, and its faults; and others who scale the same service.
//!
//! The Prometheus is its own database, engine and API (`e2e/judges/prometheus/serve`); a test tells it what it knows.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{DeleteParams, Patch, PatchParams};
use pagoda_e2e::cache::Cache;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::bed::{PATIENCE, condition, eventually};
use crate::manifests::{simulated, with};
use crate::stage::{Stage, on_stage_with};

/// For so long nothing may move that must not: several times the autoscaler's round and the age at which a figure is absent.
const HELD: Duration = Duration::from_secs(8);
const MOST_PODS: i64 = 4;
/// What four pods carry at ten each, and what one does.
const HIGH: u32 = 35;
const LOW: u32 = 5;

/// A Prometheus, and the operator's configuration that names it.
struct Prometheus {
    process: Mutex<Process>,
    address: String,
    config: PathBuf,
}

struct Process {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Prometheus {
    fn start() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, address) = Process::start("127.0.0.1:0")?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pagoda-prometheus-{}-{number}.json", std::process::id());
        let config = std::env::temp_dir().join(name);
        let servers = json!({"servers": [{"name": "default", "url": format!("http://{address}")}]});
        fs::write(&config, servers.to_string())?;
        Ok(Self {
            process: Mutex::new(process),
            address,
            config,
        })
    }

    fn tell(&self, command: &str) -> Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(process.commands, "{command}")?;
        let mut answer = String::new();
        process.answers.read_line(&mut answer)?;
        ensure!(answer.trim() == "ok", "{command}: {answer}");
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.child.kill()?;
        process.child.wait()?;
        Ok(())
    }

    /// As it comes back at the same address, having forgotten everything.
    fn start_again(&self) -> Result<()> {
        let (process, _) = Process::start(&self.address)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        Ok(())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.end();
        let _ = fs::remove_file(&self.config);
    }
}

impl Process {
    fn start(address: &str) -> Result<(Self, String)> {
        let program = Cache::from_env()?.bin().join("prometheus");
        let mut child = Command::new(&program)
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}: ./test e2e builds it", program.display()))?;
        let commands = child.stdin.take().context("no input")?;
        let mut answers = BufReader::new(child.stdout.take().context("no output")?);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the Prometheus ended at once");
        let process = Self {
            child,
            commands,
            answers,
        };
        Ok((process, line.trim().to_owned()))
    }
}

/// Runs a test beside an operator that may ask a Prometheus.
fn beside_prometheus<F, Fut>(name: &str, test: F)
where
    F: FnOnce(Arc<Stage>, Arc<Prometheus>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let prometheus = Arc::new(Prometheus::start().expect("a Prometheus"));
    let config = prometheus.config.display().to_string();
    on_stage_with(
        name,
        |command| {
            command
                .arguments
                .push(format!("--prometheus-config={config}"));
            Ok(())
        },
        |stage| test(stage, prometheus),
    );
}

/// Scales by what a query says alone, ten for each pod, at once in both directions.
fn scaled_by(name: &str, query: &str) -> Value {
    let scaling = json!({
        "minReplicas": 1,
        "maxReplicas": MOST_PODS,
        "scaleDownStabilizationSeconds": 0,
        "windowSeconds": 6,
        "targets": [],
        "prometheus": {
            "intervalSeconds": 1,
            "maxAgeSeconds": 4,
            "queries": [{"name": "load", "query": query, "averageValue": "10"}],
        },
    });
    with(simulated(name), &["spec", "scaling"], scaling)
}

fn load_of(name: &str) -> String {
    format!("load{{service=\"{name}\"}}")
}

async fn has_replicas(stage: &Stage, name: &str, wanted: i64) -> Result<()> {
    let service = stage.bed.service(name).await?;
    let found = &service["spec"]["replicas"];
    ensure!(
        *found == wanted,
        "spec.replicas is {found} instead of {wanted}: {}",
        service["status"]["conditions"]
    );
    Ok(())
}

async fn reaches(stage: &Stage, name: &str, wanted: i64) -> Result<()> {
    eventually("the number of pods follows", PATIENCE, async || {
        has_replicas(stage, name, wanted).await
    })
    .await
}

/// Fails when the number moves.
async fn stays(stage: &Stage, name: &str, wanted: i64) -> Result<()> {
    for _ in 0..HELD.as_secs() {
        has_replicas(stage, name, wanted).await?;
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Waits for a reason of the condition Autoscaling, and returns what it says.
async fn says(stage: &Stage, name: &str, reason: &str) -> Result<String> {
    eventually("the condition says why", PATIENCE, async || {
        let service = stage.bed.service(name).await?;
        let found = condition(&service, "Autoscaling").context("no condition")?;
        ensure!(found["reason"] == reason, "{found}");
        Ok(found["message"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

pub fn a_service_follows_a_real_prometheus_and_holds_its_pods_while_nothing_is_to_be_known() {
    beside_prometheus("prometheus", |stage, prometheus| async move {
        let (name, load) = ("follower", load_of("follower"));
        prometheus.tell(&format!("set {LOW} {load}"))?;
        stage
            .bed
            .apply(&scaled_by(name, &format!("sum({load})")))
            .await?;
        stage.bed.ready(name).await?;
        prometheus.tell(&format!("set {HIGH} {load}"))?;
        reaches(&stage, name, MOST_PODS).await?;
        stage.bed.ready_pods(name, MOST_PODS as usize).await?;

        // The series ends: that is no zero.
        prometheus.tell(&format!("end {load}"))?;
        says(&stage, name, "QueryFindsNothing").await?;
        stays(&stage, name, MOST_PODS).await?;
        // Low, and then silent: what is repeated of it is too old to count.
        prometheus.end()?;
        says(&stage, name, "PrometheusUnreachable").await?;
        stays(&stage, name, MOST_PODS).await?;
        prometheus.start_again()?;
        prometheus.tell(&format!("set {LOW} {load}"))?;
        reaches(&stage, name, 1).await?;
        says(&stage, name, "FollowsMetrics").await?;
        Ok(())
    });
}

/// Prometheus repeats the last sample of a series that is written no more for five minutes.
pub fn a_figure_that_is_only_repeated_removes_no_pod() {
    beside_prometheus("stale", |stage, prometheus| async move {
        let (name, load) = ("stale", load_of("stale"));
        prometheus.tell(&format!("set {HIGH} {load}"))?;
        stage.bed.apply(&scaled_by(name, &load)).await?;
        reaches(&stage, name, MOST_PODS).await?;
        stage.bed.ready_pods(name, MOST_PODS as usize).await?;
        stage.operator().stop().await?;
        prometheus.tell(&format!("set {LOW} {load}"))?;
        prometheus.tell(&format!("stop {load}"))?;
        // By the time that anybody looks, the low figure is an old one.
        sleep(Duration::from_secs(5)).await;
        stage.start_again()?;
        stage.operator().wait_until_leading(PATIENCE).await?;
        let said = says(&stage, name, "QueryStale").await?;
        ensure!(said.contains("maxAgeSeconds (4)"), "{said}");
        stays(&stage, name, MOST_PODS).await
    });
}

pub fn promql_that_yields_no_figure_is_said_in_the_servers_words_and_harms_no_other_service() {
    beside_prometheus("promql", |stage, prometheus| async move {
        for pod in ["a", "b"] {
            prometheus.tell(&format!(
                "set {HIGH} load{{service=\"many\",pod=\"{pod}\"}}"
            ))?;
        }
        let good = load_of("good");
        prometheus.tell(&format!("set {HIGH} {good}"))?;
        let cases = [
            (
                "broken",
                "sum(load",
                "QueryRefused",
                "parse error: unclosed left parenthesis",
            ),
            (
                "many",
                "load{service=\"many\"}",
                "QueryNotOneFigure",
                "2 series came",
            ),
            (
                "range",
                "load[1m]",
                "QueryNotOneFigure",
                "a range of samples",
            ),
            ("good", &good, "FollowsMetrics", ""),
        ];
        for (name, query, _, _) in cases {
            stage.bed.apply(&scaled_by(name, query)).await?;
        }
        reaches(&stage, "good", MOST_PODS).await?;
        for (name, _, reason, words) in cases {
            if name != "good" {
                let said = says(&stage, name, reason).await?;
                ensure!(said.contains(words), "{name}: {said}");
                ensure!(
                    said.starts_with("query load of Prometheus default: "),
                    "{said}"
                );
                has_replicas(&stage, name, 1).await?;
            }
        }
        Ok(())
    });
}

fn hpa(name: &str, api_version: &str, kind: &str, target: &str) -> Value {
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "minReplicas": 1,
            "maxReplicas": MOST_PODS,
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": target},
            // Nobody serves it, so that this HPA moves nothing by itself.
            "metrics": [{"type": "External", "external": {"metric": {"name": "nobody-serves-this"}, "target": {"type": "AverageValue", "averageValue": "1"}}}],
        },
    })
}

pub fn a_service_that_an_hpa_scales_as_well_is_left_alone_until_one_of_them_owns_it() {
    beside_prometheus("two-scalers", |stage, prometheus| async move {
        let (name, load) = ("shared", load_of("shared"));
        prometheus.tell(&format!("set {LOW} {load}"))?;
        stage.bed.apply(&scaled_by(name, &load)).await?;
        stage.bed.ready(name).await?;
        let other = hpa(
            "theirs",
            "serving.pagoda.dev/v1alpha1",
            "InferenceService",
            name,
        );
        stage
            .bed
            .apply_object::<HorizontalPodAutoscaler>(&other)
            .await?;
        let said = says(&stage, name, "ConflictingScaler").await?;
        for words in [
            "HorizontalPodAutoscaler theirs",
            "managedBy: External",
            "delete",
        ] {
            ensure!(said.contains(words), "{said}");
        }
        prometheus.tell(&format!("set {HIGH} {load}"))?;
        stays(&stage, name, 1).await?;
        let hpas = stage.bed.api::<HorizontalPodAutoscaler>();
        hpas.delete("theirs", &DeleteParams::default()).await?;
        reaches(&stage, name, MOST_PODS).await?;
        says(&stage, name, "FollowsMetrics").await?;
        Ok(())
    });
}

pub fn an_hpa_on_a_deployment_of_a_service_is_said_even_where_others_may_scale() {
    beside_prometheus("hpa-on-child", |stage, _prometheus| async move {
        let scaling = json!({"minReplicas": 1, "maxReplicas": MOST_PODS, "managedBy": "External"});
        let manifest = with(simulated("outside"), &["spec", "scaling"], scaling);
        stage.bed.apply(&manifest).await?;
        stage.bed.ready("outside").await?;
        says(&stage, "outside", "ManagedExternally").await?;
        let child = stage.child("Deployment", "outside").await?;
        let child = child.metadata.name.context("a name")?;
        let other = hpa("astray", "apps/v1", "Deployment", &child);
        stage
            .bed
            .apply_object::<HorizontalPodAutoscaler>(&other)
            .await?;
        let said = says(&stage, "outside", "ConflictingScaler").await?;
        ensure!(said.contains(&child) && said.contains("astray"), "{said}");
        let hpas = stage.bed.api::<HorizontalPodAutoscaler>();
        hpas.delete("astray", &DeleteParams::default()).await?;
        says(&stage, "outside", "ManagedExternally").await?;
        Ok(())
    });
}

pub fn whoever_keeps_writing_the_number_of_pods_is_named_and_not_fought() {
    beside_prometheus("rival", |stage, prometheus| async move {
        let (name, load) = ("contested", load_of("contested"));
        prometheus.tell(&format!("set {HIGH} {load}"))?;
        stage.bed.apply(&scaled_by(name, &load)).await?;
        reaches(&stage, name, MOST_PODS).await?;
        // A tool with a number of pods in Git puts it back whenever it sees another.
        let in_git = json!({
            "apiVersion": "serving.pagoda.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"replicas": 1},
        });
        let as_tool = PatchParams::apply("argocd-controller").force();
        eventually("the tool is named", PATIENCE, async || {
            let service = stage.bed.service(name).await?;
            if service["spec"]["replicas"] != 1 {
                let patch = Patch::Apply(&in_git);
                stage.bed.services().patch(name, &as_tool, &patch).await?;
            }
            let found = condition(&service, "Autoscaling").context("no condition")?;
            ensure!(found["reason"] == "ConflictingScaler", "{found}");
            let said = found["message"].as_str().unwrap_or_default();
            ensure!(said.contains("argocd-controller"), "{said}");
            Ok(())
        })
        .await?;
        stays(&stage, name, 1).await
    });
}
