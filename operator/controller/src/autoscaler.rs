//! Once a second: asks gateways and pods for their load, lets the core decide, and writes what changed.
//!
//! Asking is parallel and bounded, and whoever does not answer in time is absent for this round. Absence never removes a
//! pod (see `pagoda_operator_core::autoscale`), so a slow round costs a delay and nothing else.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use pagoda_crds::{InferenceService, api::LastDecision, names};
use pagoda_operator_core::{
    autoscale::{Decision, GatewayReading, History, PodReading, ServiceReadings, decide, observe},
    status::PodView,
    validate::{Service, validate},
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    context::Context, endpoints::gateway_addresses, events, http_server::Health, metrics::Target,
    model_facts::address,
};

const ROUND: Duration = Duration::from_secs(1);
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(900);
/// Scrapes at once.
const CONCURRENCY: usize = 128;

type GatewayReadings = BTreeMap<Key, GatewayReading>;

/// Scales until the process ends.
pub async fn run(context: Arc<Context>, health: Arc<Health>) {
    if context.stores.wait_until_read().await.is_err() {
        return;
    }
    let mut every = interval(ROUND);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let clock = Instant::now();
    let mut histories: HashMap<String, History> = HashMap::new();
    loop {
        every.tick().await;
        let started = Instant::now();
        round(&context, &mut histories, clock).await;
        context
            .metrics
            .autoscale_seconds
            .observe(started.elapsed().as_secs_f64());
        health.beat_scaling();
    }
}

async fn round(context: &Context, histories: &mut HashMap<String, History>, clock: Instant) {
    let all = context.stores.services.state();
    context.metrics.services.set(all.len() as i64);
    let known: HashSet<String> = all
        .iter()
        .filter_map(|o| kube::Resource::meta(&**o).uid.clone())
        .collect();
    histories.retain(|uid, _| known.contains(uid));
    context.keep_only(&known);
    let scaled: Vec<Service> = all
        .iter()
        .filter_map(|object| object.0.as_ref().ok())
        .filter(|object| object.metadata.deletion_timestamp.is_none())
        .filter_map(|object| validate(object).ok())
        .filter(|service| {
            service.scaling.managed_by_pagoda
                && service.scaling.min_replicas != service.scaling.max_replicas
        })
        .collect();
    if scaled.is_empty() {
        return;
    }
    let mut ready = ready_pods(context);
    let pods: Vec<Vec<PodView>> = scaled
        .iter()
        .map(|s| ready.remove(&key(s)).unwrap_or_default())
        .collect();
    let (gateways, readings) = tokio::join!(ask_gateways(context), ask_pods(context, &pods));
    let now = clock.elapsed().as_millis() as u64;
    for (service, readings) in scaled.iter().zip(readings) {
        let readings = ServiceReadings {
            gateways: of_service(&gateways, service),
            pods: readings,
        };
        let seen = observe(service.replicas, readings.pods.len() as u32, &readings);
        let history = histories.remove(&service.uid).unwrap_or_default();
        let (decision, history) = decide(&service.scaling, &seen, history, now);
        histories.insert(service.uid.clone(), history);
        act(context, service, &decision).await;
    }
}

type Key = (String, String);

fn key(service: &Service) -> Key {
    (service.namespace.clone(), service.name.clone())
}

/// Ready pods of all services, in one pass.
fn ready_pods(context: &Context) -> HashMap<Key, Vec<PodView>> {
    let mut ready: HashMap<Key, Vec<PodView>> = HashMap::new();
    for pod in context.stores.pods.state() {
        let view = PodView::of(&pod);
        let service = pod
            .labels()
            .get(names::LABEL_SERVICE)
            .cloned()
            .zip(pod.namespace());
        if let Some((name, namespace)) =
            service.filter(|_| view.ready && !view.leaving && view.ip.is_some())
        {
            ready.entry((namespace, name)).or_default().push(view);
        }
    }
    ready
}

/// A gateway that answers and has no series for a service has had no request for it.
fn of_service(
    gateways: &[Option<GatewayReadings>],
    service: &Service,
) -> Vec<Option<GatewayReading>> {
    let key = key(service);
    gateways
        .iter()
        .map(|gateway| {
            gateway
                .as_ref()
                .map(|g| g.get(&key).copied().unwrap_or_default())
        })
        .collect()
}

async fn ask_gateways(context: &Context) -> Vec<Option<GatewayReadings>> {
    let addresses = gateway_addresses(&context.stores.gateways.state());
    let asked: Vec<_> = addresses
        .into_iter()
        .map(|address| ask_gateway(context, address).boxed())
        .collect();
    stream::iter(asked).buffered(CONCURRENCY).collect().await
}

async fn ask_gateway(context: &Context, address: String) -> Option<GatewayReadings> {
    let text = scrape(context, &address, "gateway").await?;
    read(
        context,
        &address,
        "gateway",
        GatewayReading::parse_all(&text),
    )
}

/// One list for each list of pods, in their order.
async fn ask_pods(context: &Context, pods: &[Vec<PodView>]) -> Vec<Vec<Option<PodReading>>> {
    let asked: Vec<_> = pods
        .iter()
        .flatten()
        .map(|pod| ask_pod(context, pod).boxed())
        .collect();
    let answers: Vec<_> = stream::iter(asked).buffered(CONCURRENCY).collect().await;
    let mut answers = answers.into_iter();
    pods.iter()
        .map(|list| answers.by_ref().take(list.len()).collect())
        .collect()
}

async fn ask_pod(context: &Context, pod: &PodView) -> Option<PodReading> {
    let address = format!("{}:{}", address(pod.ip.as_deref()?), names::ENGINE_PORT);
    let text = scrape(context, &address, "pod").await?;
    read(context, &address, "pod", PodReading::parse(&text))
}

async fn scrape(context: &Context, address: &str, target: &'static str) -> Option<String> {
    let url = format!("http://{address}/metrics");
    match context.http.get(&url, SCRAPE_TIMEOUT).await {
        Ok(body) => Some(String::from_utf8_lossy(&body).into_owned()),
        Err(error) => {
            count_failure(context, target);
            tracing::debug!(%error, target, "no load to be had");
            None
        }
    }
}

fn count_failure(context: &Context, target: &'static str) {
    let failures = &context.metrics.scrape_failures;
    failures.get_or_create(&Target { target }).inc();
}

fn read<T, E: std::fmt::Display>(
    context: &Context,
    address: &str,
    target: &'static str,
    parsed: Result<T, E>,
) -> Option<T> {
    match parsed {
        Ok(readings) => Some(readings),
        Err(error) => {
            count_failure(context, target);
            tracing::warn!(%error, address, target, "metrics that cannot be trusted count as absent");
            None
        }
    }
}

async fn act(context: &Context, service: &Service, decision: &Decision) {
    let reason_is_new = context.remember(&service.uid, |memory| {
        memory.autoscaling.reason.replace(decision.reason) != Some(decision.reason)
    });
    if decision.replicas != service.replicas {
        scale(context, service, decision).await;
    } else if reason_is_new {
        context.trigger.reconcile(&service.namespace, &service.name);
    }
}

async fn scale(context: &Context, service: &Service, decision: &Decision) {
    if context.leadership.check().is_err() {
        return;
    }
    let (from, to) = (service.replicas, decision.replicas);
    let api: Api<InferenceService> = Api::namespaced(context.client.clone(), &service.namespace);
    let parameters = PatchParams {
        field_manager: Some(names::MANAGER_AUTOSCALER.into()),
        ..PatchParams::default()
    };
    let patch = json!({"spec": {"replicas": to}});
    if let Err(error) = api
        .patch_scale(&service.name, &parameters, &Patch::Merge(&patch))
        .await
    {
        tracing::warn!(%error, namespace = service.namespace, name = service.name, "failed to scale; the next round tries again");
        return;
    }
    context.metrics.scale_writes.inc();
    let why = decision.to_string();
    tracing::info!(
        namespace = service.namespace,
        name = service.name,
        from,
        to,
        why,
        "scaled"
    );
    let time = Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default());
    let change = LastDecision {
        time,
        from: from as i32,
        to: to as i32,
        reason: why.clone(),
    };
    context.remember(&service.uid, |memory| {
        memory.autoscaling.last_change = Some(change);
    });
    let about = events::reference(&service.namespace, &service.name, &service.uid);
    let news = events::News {
        warning: false,
        reason: "Scaled".into(),
        action: format!("ScaleFrom{from}To{to}"),
        message: format!("from {from} to {to} pods: {why}"),
    };
    events::publish(context, &about, news).await;
}
