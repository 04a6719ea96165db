//! From the API server's answer to a change of a spec until a watch shows the changed child.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::watcher;
use pagoda_e2e::operator_process::OperatorProcess;
use serde_json::json;
use tokio::sync::mpsc;

use super::Run;
use crate::bed::Bed;
use crate::bed::services::{self, Key, SERVICE_LABEL};
use crate::report::{Figure, Report};

/// The changed field: an annotation of the pods, which only a Deployment of this very spec carries.
const MARK: &str = "bench.pagoda.dev/change";
/// Changes a second: what one change takes is asked, not how many fit.
const RATE: f64 = 5.0;
const PATIENCE: Duration = Duration::from_mins(1);

type Seen = (Key, String, Instant);

pub(super) async fn measure(
    run: &Run<'_>,
    bed: &Bed,
    operator: &OperatorProcess,
    report: &mut Report,
) -> Result<()> {
    let (changes, count) = (
        run.arguments.changes as usize,
        run.arguments.services as usize,
    );
    run.progress.step(format!(
        "{changes} changes of a spec, {RATE} a second, spread over {count} services"
    ));
    let (sender, mut seen) = mpsc::unbounded_channel();
    let watch = tokio::spawn(watch_deployments(Api::all(bed.client.clone()), sender));
    // The watch's first list, so that it sees changes and not the beginning.
    seen.recv()
        .await
        .context("the watch of Deployments ended")?;
    let answered = change_all(bed, count, changes).await?;
    let latencies = match_up(answered, &mut seen).await;
    watch.abort();
    ensure!(
        operator.exit_status()?.is_none(),
        "the operator ended:\n{}",
        operator.log_tail()
    );
    tell(run, report, changes, &latencies?);
    Ok(())
}

/// Sends each Deployment's mark with the moment at which it was seen; first, once, an empty one when all were listed.
async fn watch_deployments(api: Api<Deployment>, sender: mpsc::UnboundedSender<Seen>) {
    let selector = watcher::Config::default().labels(SERVICE_LABEL);
    let mut events = watcher(api, selector).boxed();
    while let Ok(Some(event)) = events.try_next().await {
        let now = Instant::now();
        let message = match event {
            watcher::Event::InitDone => Some((Key::default(), String::new(), now)),
            watcher::Event::Apply(deployment) => {
                mark_of(&deployment).map(|(key, mark)| (key, mark, now))
            }
            _ => None,
        };
        if message.is_some_and(|message| sender.send(message).is_err()) {
            return;
        }
    }
}

fn mark_of(deployment: &Deployment) -> Option<(Key, String)> {
    let metadata = &deployment.metadata;
    let service = metadata.labels.as_ref()?.get(SERVICE_LABEL)?.clone();
    let template = deployment.spec.as_ref()?.template.metadata.as_ref()?;
    let mark = template.annotations.as_ref()?.get(MARK)?.clone();
    Some(((metadata.namespace.clone()?, service), mark))
}

/// Changes at an even rate, whatever the answers take; each with the moment of its answer.
async fn change_all(
    bed: &Bed,
    count: usize,
    changes: usize,
) -> Result<HashMap<(Key, String), Instant>> {
    let mut every = tokio::time::interval(Duration::from_secs_f64(1.0 / RATE));
    let client = Arc::new(bed.client.clone());
    let mut asked = Vec::new();
    for change in 0..changes {
        every.tick().await;
        // A step that is prime to any count meets each service before it meets one again.
        let (key, _) = services::name_of("rest", change * 7919 % count);
        let client = client.clone();
        asked.push(tokio::spawn(async move {
            let mark = change.to_string();
            let api: Api<DynamicObject> =
                Api::namespaced_with((*client).clone(), &key.0, &services::resource());
            let patch =
                json!({"spec": {"podTemplate": {"metadata": {"annotations": {MARK: mark}}}}});
            api.patch(&key.1, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
            anyhow::Ok(((key, mark), Instant::now()))
        }));
    }
    let mut answered = HashMap::new();
    for change in asked {
        let (what, when) = change.await??;
        answered.insert(what, when);
    }
    Ok(answered)
}

/// Microseconds of each change. A child that was seen before the answer took no time.
async fn match_up(
    mut answered: HashMap<(Key, String), Instant>,
    seen: &mut mpsc::UnboundedReceiver<Seen>,
) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    while !answered.is_empty() {
        let next = tokio::time::timeout(PATIENCE, seen.recv()).await;
        let (key, mark, at) = next
            .ok()
            .flatten()
            .with_context(|| format!("{} changes never reached a child", answered.len()))?;
        if let Some(answer) = answered.remove(&(key, mark)) {
            let micros = at.saturating_duration_since(answer).as_micros();
            latencies.record(u64::try_from(micros).unwrap_or(u64::MAX).max(1))?;
        }
    }
    Ok(latencies)
}

fn tell(run: &Run<'_>, report: &mut Report, changes: usize, latencies: &Histogram<u64>) {
    let seconds = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e6;
    report.fact("change_p50_s", seconds(0.5));
    report.fact("change_max_s", latencies.max() as f64 / 1e6);
    report.fact("changes", changes as f64);
    report.figure(Figure {
        key: "change_p99_s".into(),
        what: format!(
            "changed spec to changed child, at {}, p99",
            run.arguments.services
        ),
        value: seconds(0.99),
        target: Some(1.0),
        unit: "s".into(),
        note: format!(
            "p50 {:.3} s; {changes} changes, {RATE} a second",
            seconds(0.5)
        ),
    });
}
