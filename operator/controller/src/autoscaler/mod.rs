//! Once a second: asks gateways and pods for their load, lets the core decide, and writes what changed.
//!
//! Asking is parallel and bounded, and whoever does not answer in time is absent for this round. Absence never removes a
//! pod (see `pagoda_operator_core::autoscale`), so a slow round costs a delay and nothing else. Services whose number of
//! pods is fixed are asked seldom, and only for what their status tells.

mod load;
mod scrape;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use pagoda_crds::api::LastDecision;
use pagoda_operator_core::autoscale::{
    Decision, History, PodReading, ServiceReadings, decide, observe,
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::{
    context::Context,
    events,
    gateways::{AllReadings, of_service},
    heartbeat::Sign,
    key::Key,
    replicas::write_replicas,
    stores::{PodRow, ScaledSpec, ServiceRow},
};
use load::Meters;
use scrape::Scraper;

const ROUND: Duration = Duration::from_secs(1);
/// Rounds between two questions to the gateways, while nothing is scaled by what they tell.
const GATEWAY_ROUNDS: u64 = 5;
/// Rounds between two questions to the pods of a service whose number of pods is fixed.
const FIXED_ROUNDS: u64 = 30;
/// What gateways newly know spreads for a moment.
const ROUTES_SETTLE: Duration = Duration::from_millis(500);

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
        rounds: 0,
        histories: HashMap::new(),
        meters: Meters::default(),
        scraper: Scraper::default(),
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
    rounds: u64,
    /// By UID.
    histories: HashMap<String, History>,
    meters: Meters,
    scraper: Scraper,
}

/// A service whose pods are asked in this round.
struct Asked {
    key: Key,
    row: Arc<ServiceRow>,
    pods: Vec<Arc<PodRow>>,
}

impl Asked {
    /// How it is scaled; not at all, when its number of pods is fixed.
    fn scaled(&self) -> Option<Scaled<'_>> {
        let spec = self.row.scaled.as_ref()?;
        Some(Scaled {
            key: &self.key,
            uid: &self.row.uid,
            spec,
        })
    }
}

/// A service that is scaled.
#[derive(Clone, Copy)]
struct Scaled<'a> {
    key: &'a Key,
    uid: &'a str,
    spec: &'a ScaledSpec,
}

impl Autoscaler {
    async fn round(&mut self, context: &Context) {
        self.rounds += 1;
        let all = self.asked(context);
        let any_scaled = all.iter().any(|asked| asked.row.scaled.is_some());
        let asks_gateways =
            any_scaled || self.rounds % GATEWAY_ROUNDS == 1 || !context.canaries().is_empty();
        let pods: Vec<&[Arc<PodRow>]> = all.iter().map(|asked| &asked.pods[..]).collect();
        let gateways = async {
            if asks_gateways {
                Some(Arc::new(self.scraper.ask_gateways(context).await))
            } else {
                None
            }
        };
        let (gateways, readings) = tokio::join!(gateways, self.scraper.ask_pods(context, &pods));
        self.scraper.forget_old();
        if let Some(gateways) = &gateways {
            spread_news(context, gateways);
        }
        let now = self.clock.elapsed().as_millis() as u64;
        for (asked, readings) in all.iter().zip(&readings) {
            self.meters
                .note(context, &asked.key, &asked.pods, readings, now);
        }
        let gateways = gateways.unwrap_or_default();
        let mut earlier = std::mem::take(&mut self.histories);
        for (asked, readings) in all.iter().zip(readings) {
            if let Some(service) = asked.scaled() {
                let (uid, history) = earlier
                    .remove_entry(service.uid)
                    .unwrap_or_else(|| (service.uid.to_owned(), History::default()));
                let (decision, history) = decision(service, &gateways, readings, history, now);
                self.histories.insert(uid, history);
                act(context, service, &decision).await;
            }
        }
    }

    /// Services that are scaled, and the share of the others whose turn it is.
    fn asked(&mut self, context: &Context) -> Vec<Asked> {
        let services = context.stores.services.entries();
        context.metrics.services.set(services.len() as i64);
        if self.rounds.is_multiple_of(FIXED_ROUNDS) {
            let known = |key: &Key| context.stores.services.contains(key);
            self.meters.retain(known);
        }
        let turn = self.rounds % FIXED_ROUNDS;
        services
            .into_iter()
            .filter(|(key, row)| row.scaled.is_some() || slot(key) == turn)
            .map(|(key, row)| Asked {
                pods: ready_pods(context, &key),
                key,
                row,
            })
            .filter(|asked| asked.row.scaled.is_some() || !asked.pods.is_empty())
            .collect()
    }
}

fn slot(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % FIXED_ROUNDS
}

fn ready_pods(context: &Context, key: &Key) -> Vec<Arc<PodRow>> {
    let rows = context.stores.pods.of(key).into_iter();
    rows.map(|(_, row)| row)
        .filter(|row| !row.prefetches && row.view.ready && !row.view.leaving)
        .filter(|row| row.view.ip.is_some())
        .collect()
}

/// Has services looked at whose routes have changed.
fn spread_news(context: &Context, gateways: &Arc<AllReadings>) {
    match context.gateways.take(gateways, Instant::now()) {
        Some(changed) => {
            // Gateways may look after more namespaces than this process does.
            let ours = changed
                .into_iter()
                .filter(|key| context.stores.services.contains(key));
            for key in ours {
                context.queue.add(key, ROUTES_SETTLE);
            }
        }
        None => {
            for (key, _) in context.stores.services.entries() {
                context.queue.add(key, ROUTES_SETTLE);
            }
        }
    }
}

fn decision(
    service: Scaled<'_>,
    gateways: &AllReadings,
    pods: Vec<Option<PodReading>>,
    history: History,
    now: u64,
) -> (Decision, History) {
    let (key, spec) = (service.key, service.spec);
    let name = (key.namespace().to_owned(), key.name().to_owned());
    let readings = ServiceReadings {
        gateways: of_service(gateways, &name),
        pods,
    };
    let seen = observe(spec.replicas, readings.pods.len() as u32, &readings);
    decide(&spec.scaling, &seen, history, now)
}

async fn act(context: &Context, service: Scaled<'_>, decision: &Decision) {
    let reason_is_new = context.remember(service.key, |memory| {
        memory.autoscaling.reason.replace(decision.reason) != Some(decision.reason)
    });
    if decision.replicas != service.spec.replicas {
        scale(context, service, decision).await;
    } else if reason_is_new {
        context.queue.add(service.key.clone(), Duration::ZERO);
    }
}

async fn scale(context: &Context, service: Scaled<'_>, decision: &Decision) {
    if context.leadership.check().is_err() {
        return;
    }
    let key = service.key;
    let (from, to) = (service.spec.replicas, decision.replicas);
    if let Err(error) = write_replicas(context, key, to).await {
        tracing::warn!(%error, namespace = key.namespace(), name = key.name(), "failed to scale; the next round tries again");
        return;
    }
    let why = decision.to_string();
    tracing::info!(
        namespace = key.namespace(),
        name = key.name(),
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
    context.remember(key, |memory| {
        memory.autoscaling.last_change = Some(change);
    });
    let about = events::reference(key.namespace(), key.name(), service.uid);
    let news = events::News {
        warning: false,
        reason: "Scaled".into(),
        action: format!("ScaleFrom{from}To{to}"),
        message: format!("from {from} to {to} pods: {why}"),
    };
    events::publish(context, &about, news).await;
}
