//! Once a second: asks gateways and pods for their load, lets the core decide, and writes what changed.
//!
//! Asking is parallel and bounded, and whoever does not answer in time is absent for this round. Absence never removes a
//! pod (see `pagoda_operator_core::autoscale`), so a slow round costs a delay and nothing else.

mod targets;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pagoda_crds::{InferenceService, api::LastDecision, names};
use pagoda_operator_core::{
    autoscale::{Decision, GatewayReading, History, PodReading, ServiceReadings, decide, observe},
    status::PodView,
    validate::Service,
};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::{
    context::Context, endpoints::gateway_addresses, events, heartbeat::Sign, key::Key,
    metrics::Target, model_facts::address, request::bounded,
};
use targets::Targets;

const ROUND: Duration = Duration::from_secs(1);
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(900);
/// Scrapes at once.
const CONCURRENCY: usize = 128;

/// By namespace and name.
type GatewayReadings = BTreeMap<(String, String), GatewayReading>;

/// Scales until the process ends.
pub async fn run(context: Arc<Context>, sign: Arc<Sign>) {
    // Reading a large cluster may take a while, and the watches answer for themselves.
    let read = context.stores.wait_until_read();
    let beats = async {
        loop {
            sign.beat();
            sleep(ROUND).await;
        }
    };
    tokio::select! {
        read = read => if read.is_err() { return },
        () = beats => {}
    }
    let mut every = interval(ROUND);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut autoscaler = Autoscaler {
        clock: Instant::now(),
        histories: HashMap::new(),
        targets: Mutex::default(),
    };
    loop {
        every.tick().await;
        let started = Instant::now();
        autoscaler.round(&context).await;
        context
            .metrics
            .autoscale_seconds
            .observe(started.elapsed().as_secs_f64());
        sign.beat();
    }
}

struct Autoscaler {
    clock: Instant,
    /// By UID.
    histories: HashMap<String, History>,
    targets: Mutex<Targets>,
}

impl Autoscaler {
    async fn round(&mut self, context: &Context) {
        let all = context.stores.services.all();
        context.metrics.services.set(all.len() as i64);
        let scaled: Vec<Arc<Service>> = all.iter().filter_map(|row| row.scaled.clone()).collect();
        drop(all);
        if scaled.is_empty() {
            self.histories.clear();
            return;
        }
        let pods: Vec<_> = scaled.iter().map(|s| ready_pods(context, s)).collect();
        let (gateways, readings) =
            tokio::join!(self.ask_gateways(context), self.ask_pods(context, &pods));
        let now = self.clock.elapsed().as_millis() as u64;
        let mut histories = std::mem::take(&mut self.histories);
        for (service, readings) in scaled.iter().zip(readings) {
            let readings = ServiceReadings {
                gateways: of_service(&gateways, service),
                pods: readings,
            };
            let seen = observe(service.replicas, readings.pods.len() as u32, &readings);
            let history = histories.remove(&service.uid).unwrap_or_default();
            let (decision, history) = decide(&service.scaling, &seen, history, now);
            self.histories.insert(service.uid.clone(), history);
            act(context, service, &decision).await;
        }
        self.targets().forget_old(Instant::now());
    }

    async fn ask_gateways(&self, context: &Context) -> Vec<Option<GatewayReadings>> {
        let addresses = gateway_addresses(&context.stores.gateways.all());
        let asked: Vec<_> = addresses
            .into_iter()
            .map(|address| self.ask_gateway(context, address).boxed())
            .collect();
        stream::iter(asked).buffered(CONCURRENCY).collect().await
    }

    async fn ask_gateway(&self, context: &Context, address: String) -> Option<GatewayReadings> {
        let text = self.scrape(context, &address, "gateway").await?;
        read(
            context,
            &address,
            "gateway",
            GatewayReading::parse_all(&text),
        )
    }

    /// One list for each list of pods, in their order.
    async fn ask_pods(
        &self,
        context: &Context,
        pods: &[Vec<Arc<PodView>>],
    ) -> Vec<Vec<Option<PodReading>>> {
        let asked: Vec<_> = pods
            .iter()
            .flatten()
            .map(|pod| self.ask_pod(context, pod).boxed())
            .collect();
        let answers: Vec<_> = stream::iter(asked).buffered(CONCURRENCY).collect().await;
        let mut answers = answers.into_iter();
        pods.iter()
            .map(|list| answers.by_ref().take(list.len()).collect())
            .collect()
    }

    async fn ask_pod(&self, context: &Context, pod: &PodView) -> Option<PodReading> {
        let address = format!("{}:{}", address(pod.ip.as_deref()?), names::ENGINE_PORT);
        let text = self.scrape(context, &address, "pod").await?;
        read(context, &address, "pod", PodReading::parse(&text))
    }

    async fn scrape(
        &self,
        context: &Context,
        address: &str,
        target: &'static str,
    ) -> Option<String> {
        if !self.targets().is_due(address, Instant::now()) {
            return None;
        }
        let url = format!("http://{address}/metrics");
        let answer = context.http.get(&url, SCRAPE_TIMEOUT).await;
        self.targets().note(address, answer.is_ok(), Instant::now());
        match answer {
            Ok(body) => Some(String::from_utf8_lossy(&body).into_owned()),
            Err(error) => {
                count_failure(context, target);
                tracing::debug!(%error, target, "no load to be had");
                None
            }
        }
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(service: &Service) -> Key {
    Key::new(&service.namespace, &service.name)
}

fn ready_pods(context: &Context, service: &Service) -> Vec<Arc<PodView>> {
    let pods = context.stores.pods.of(&key(service));
    pods.into_iter()
        .map(|(_, view)| view)
        .filter(|view| view.ready && !view.leaving && view.ip.is_some())
        .collect()
}

/// A gateway that answers and has no series for a service has had no request for it.
fn of_service(
    gateways: &[Option<GatewayReadings>],
    service: &Service,
) -> Vec<Option<GatewayReading>> {
    let key = (service.namespace.clone(), service.name.clone());
    gateways
        .iter()
        .map(|gateway| {
            gateway
                .as_ref()
                .map(|g| g.get(&key).copied().unwrap_or_default())
        })
        .collect()
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
    let key = key(service);
    let reason_is_new = context.remember(&key, |memory| {
        memory.autoscaling.reason.replace(decision.reason) != Some(decision.reason)
    });
    if decision.replicas != service.replicas {
        scale(context, service, decision).await;
    } else if reason_is_new {
        context.queue.add(key, Duration::ZERO);
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
    let patch = Patch::Merge(&patch);
    if let Err(error) = bounded(api.patch_scale(&service.name, &parameters, &patch)).await {
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
    context.remember(&key(service), |memory| {
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
