//! A real Prometheus as a source of figures, and its faults; and others who scale the same service.
//!
//! The Prometheus is its own database, engine and API (`e2e/judges/prometheus/serve`); a test tells it what it knows.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pagoda_e2e::cache::Cache;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{LOOK, Stage, elastic, with};

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

/// Starts the stage's operator anew, beside a Prometheus that it may ask.
async fn beside_prometheus(stage: &Stage) -> Result<Prometheus> {
    let prometheus = Prometheus::start()?;
    let config = format!("--prometheus-config={}", prometheus.config.display());
    stage
        .start_with(|command| command.arguments.push(config))
        .await?;
    Ok(prometheus)
}

/// Scales by what a query says alone, ten for each pod, at once in both directions.
fn scaled_by(name: &str, query: &str) -> Value {
    let scaling = json!({
        "minReplicas": 1,
        "maxReplicas": MOST_PODS,
        "scaleDownStabilizationSeconds": 0,
        "windowSeconds": 3,
        "panic": {"windowSeconds": 1},
        "targets": [],
        "prometheus": {
            "intervalSeconds": 1,
            "maxAgeSeconds": 4,
            "queries": [{"name": "load", "query": query, "averageValue": "10"}],
        },
    });
    with(elastic(name, 1, 4), &["spec", "scaling"], scaling)
}

fn load_of(name: &str) -> String {
    format!("load{{service=\"{name}\"}}")
}

/// Fails when the number of pods moves.
async fn stays(stage: &Stage, name: &str, wanted: i64) -> Result<()> {
    let since = Instant::now();
    sleep(LOOK).await;
    stage.stayed_within(name, since, wanted, wanted)?;
    stage.has(name, wanted).await
}

/// Waits for a reason of the condition Autoscaling, and returns what it says.
async fn says(stage: &Stage, name: &str, reason: &str) -> Result<String> {
    let found = stage.says(name, &[reason]).await?;
    Ok(found["message"].as_str().unwrap_or_default().to_owned())
}

pub async fn a_service_follows_a_real_prometheus_and_holds_its_pods_while_nothing_is_to_be_known(
    stage: Arc<Stage>,
) -> Result<()> {
    let prometheus = beside_prometheus(&stage).await?;
    let (name, load) = ("follower", load_of("follower"));
    prometheus.tell(&format!("set {LOW} {load}"))?;
    stage
        .apply(&scaled_by(name, &format!("sum({load})")))
        .await?;
    stage.has(name, 1).await?;
    prometheus.tell(&format!("set {HIGH} {load}"))?;
    stage.has(name, MOST_PODS).await?;

    // The series ends: that is no zero.
    prometheus.tell(&format!("end {load}"))?;
    says(&stage, name, "QueryFindsNothing").await?;
    stays(&stage, name, MOST_PODS).await?;
    prometheus.end()?;
    says(&stage, name, "PrometheusUnreachable").await?;
    stays(&stage, name, MOST_PODS).await?;
    prometheus.start_again()?;
    prometheus.tell(&format!("set {LOW} {load}"))?;
    stage.has(name, 1).await?;
    says(&stage, name, "FollowsMetrics").await?;
    Ok(())
}

/// Prometheus repeats the last sample of a series that is written no more for five minutes.
pub async fn a_figure_that_is_only_repeated_removes_no_pod(stage: Arc<Stage>) -> Result<()> {
    let prometheus = beside_prometheus(&stage).await?;
    let (name, load) = ("stale", load_of("stale"));
    prometheus.tell(&format!("set {HIGH} {load}"))?;
    stage.apply(&scaled_by(name, &load)).await?;
    stage.has(name, MOST_PODS).await?;
    stage.operator()?.stop().await?;
    prometheus.tell(&format!("set {LOW} {load}"))?;
    prometheus.tell(&format!("stop {load}"))?;
    // By the time that anybody looks, the low figure is an old one.
    sleep(Duration::from_secs(5)).await;
    stage.start().await?;
    let said = says(&stage, name, "QueryStale").await?;
    ensure!(said.contains("maxAgeSeconds (4)"), "{said}");
    stays(&stage, name, MOST_PODS).await
}

pub async fn promql_that_yields_no_figure_is_said_in_the_servers_words_and_harms_no_other_service(
    stage: Arc<Stage>,
) -> Result<()> {
    let prometheus = beside_prometheus(&stage).await?;
    for pod in ["a", "b"] {
        let series = format!("load{{service=\"many\",pod=\"{pod}\"}}");
        prometheus.tell(&format!("set {HIGH} {series}"))?;
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
    ];
    for (name, query, _, _) in cases {
        stage.apply(&scaled_by(name, query)).await?;
    }
    stage.apply(&scaled_by("good", &good)).await?;
    stage.has("good", MOST_PODS).await?;
    for (name, _, reason, words) in cases {
        let said = says(&stage, name, reason).await?;
        ensure!(said.contains(words), "{name}: {said}");
        ensure!(
            said.starts_with("query load of Prometheus default: "),
            "{said}"
        );
        stage.has(name, 1).await?;
    }
    Ok(())
}

fn hpa(name: &str, api_version: &str, kind: &str, target: &str) -> Value {
    // Nobody serves its metric, so that this HPA moves nothing by itself.
    let metric = json!({"type": "External", "external": {
        "metric": {"name": "nobody-serves-this"}, "target": {"type": "AverageValue", "averageValue": "1"}}});
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "minReplicas": 1,
            "maxReplicas": MOST_PODS,
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": target},
            "metrics": [metric],
        },
    })
}

async fn delete_hpa(stage: &Stage, name: &str) -> Result<()> {
    let client = stage.built().client.clone();
    let api = Api::<HorizontalPodAutoscaler>::namespaced(client, &stage.namespace);
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

pub async fn a_service_that_an_hpa_scales_as_well_is_left_alone_until_one_of_them_owns_it(
    stage: Arc<Stage>,
) -> Result<()> {
    let prometheus = beside_prometheus(&stage).await?;
    let (name, load) = ("shared", load_of("shared"));
    prometheus.tell(&format!("set {LOW} {load}"))?;
    stage.apply(&scaled_by(name, &load)).await?;
    stage.has(name, 1).await?;
    let other = hpa(
        "theirs",
        "serving.pagoda.dev/v1alpha1",
        "InferenceService",
        name,
    );
    stage.create::<HorizontalPodAutoscaler>(other).await?;
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
    delete_hpa(&stage, "theirs").await?;
    stage.has(name, MOST_PODS).await?;
    says(&stage, name, "FollowsMetrics").await?;
    Ok(())
}

/// Of a service whose number of pods is fixed as well, and of its Deployment, where others may scale the service.
pub async fn an_hpa_that_has_no_business_there_is_said_wherever_it_is(
    stage: Arc<Stage>,
) -> Result<()> {
    stage.apply(&elastic("fixed", 1, 1)).await?;
    let other = hpa(
        "idle",
        "serving.pagoda.dev/v1alpha1",
        "InferenceService",
        "fixed",
    );
    stage.create::<HorizontalPodAutoscaler>(other).await?;
    let said = says(&stage, "fixed", "ConflictingScaler").await?;
    ensure!(said.contains("HorizontalPodAutoscaler idle"), "{said}");

    let outside = with(
        elastic("outside", 1, 4),
        &["spec", "scaling", "managedBy"],
        json!("External"),
    );
    stage.apply(&outside).await?;
    says(&stage, "outside", "ManagedExternally").await?;
    let client = stage.built().client.clone();
    let deployments = Api::<Deployment>::namespaced(client, &stage.namespace);
    let label = ListParams::default().labels("serving.pagoda.dev/service=outside");
    let child = stage
        .eventually("it has a Deployment", async || {
            let all = deployments.list(&label).await?.items;
            let first = all.into_iter().next().context("none yet")?;
            first.metadata.name.context("no name")
        })
        .await?;
    let other = hpa("astray", "apps/v1", "Deployment", &child);
    stage.create::<HorizontalPodAutoscaler>(other).await?;
    let said = says(&stage, "outside", "ConflictingScaler").await?;
    ensure!(said.contains(&child) && said.contains("astray"), "{said}");
    delete_hpa(&stage, "astray").await?;
    says(&stage, "outside", "ManagedExternally").await?;
    delete_hpa(&stage, "idle").await?;
    says(&stage, "fixed", "FixedReplicas").await?;
    Ok(())
}

pub async fn whoever_keeps_writing_the_number_of_pods_is_named_and_not_fought(
    stage: Arc<Stage>,
) -> Result<()> {
    let prometheus = beside_prometheus(&stage).await?;
    let (name, load) = ("contested", load_of("contested"));
    prometheus.tell(&format!("set {HIGH} {load}"))?;
    stage.apply(&scaled_by(name, &load)).await?;
    stage.has(name, MOST_PODS).await?;
    // A tool with a number of pods in Git puts it back whenever it sees another.
    let in_git = json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"replicas": 1},
    });
    stage
        .eventually("the tool is named", async || {
            let service = stage.service(name).await?;
            if service["spec"]["replicas"] != 1 {
                stage.apply_as("argocd-controller", &in_git).await?;
            }
            let found = stage.condition(name, "Autoscaling").await?;
            ensure!(found["reason"] == "ConflictingScaler", "{found}");
            let said = found["message"].as_str().unwrap_or_default();
            ensure!(said.contains("argocd-controller"), "{said}");
            Ok(())
        })
        .await?;
    stays(&stage, name, 1).await
}
