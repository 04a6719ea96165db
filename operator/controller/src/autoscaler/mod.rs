//! Once a second: asks gateways and pods for their load, lets the core decide, and writes what changed. Services of which one
//! look saw a burst are looked at once more before the next second.
//!
//! Gateways are asked first, for they know of requests before pods do, and of those that wait for one. Then the pods of those
//! services are asked that are to be looked at (`watched`), in parallel and bounded, and whoever does not answer in time
//! is absent for this round. Absence never removes a pod (see `pagoda_operator_core::autoscale`), so a slow round costs a
//! delay and nothing else. Services whose number of pods is fixed are asked seldom, and only for what their status
//! tells.

mod act;
mod cold_starts;
pub mod decisions;
pub mod exported;
mod judge;
mod load;
mod peers;
pub mod pod_scraper;
mod pods;
mod scrape;
pub mod signals;
mod watched;
mod wire;

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use pagoda_operator_core::autoscale::{GatewayReading, Millis};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::{
    context::Context,
    gateways::{AllReadings, of_service},
    heartbeat::Sign,
    key::Key,
    stores::{PodRow, ServiceRow},
};
use act::Change;
use cold_starts::ColdStarts;
use judge::deadline;
use load::Meters;
use pod_scraper::Question;
use scrape::Scraper;
use signals::ServiceSignals;
use watched::{Watched, digest};

const ROUND: Duration = Duration::from_secs(1);
/// Rounds between two questions to the gateways, while nothing is scaled by what they tell.
const GATEWAY_ROUNDS: u64 = 5;
/// Rounds between two questions to the pods of a service whose number of pods is fixed, and between two sweeps of what is
/// remembered.
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
    let mut autoscaler = Autoscaler::new(context.settings.max_cold_starts);
    loop {
        every.tick().await;
        let started = Instant::now();
        autoscaler.round(&context).await;
        context
            .metrics
            .autoscale_seconds
            .observe(started.elapsed().as_secs_f64());
        sign.beat();
        autoscaler.second_look(&context, started + ROUND).await;
    }
}

struct Autoscaler {
    clock: Instant,
    rounds: u64,
    /// Boxed, for a table has more places than entries.
    watched: HashMap<Key, Box<Watched>>,
    cold_starts: ColdStarts,
    meters: Meters,
    scraper: Scraper,
    /// Services that asked to be looked at before the next round, and the last of the moments for which they did.
    early: Vec<Key>,
    early_at: Millis,
}

/// A service that is looked at in this round.
struct Look {
    key: Key,
    row: Arc<ServiceRow>,
    /// Pods that live and stay.
    pods: Vec<Arc<PodRow>>,
    gateways: Vec<Option<GatewayReading>>,
    /// Pods that its spec asks for.
    current: u32,
    digest: u64,
}

/// What comes of a round.
#[derive(Default)]
struct Outcome {
    changes: Vec<Change>,
    signals: Vec<(Key, ServiceSignals)>,
}

impl Autoscaler {
    fn new(max_cold_starts: usize) -> Self {
        Self {
            clock: Instant::now(),
            rounds: 0,
            watched: HashMap::new(),
            cold_starts: ColdStarts::new(max_cold_starts),
            meters: Meters::default(),
            scraper: Scraper::default(),
            early: Vec::new(),
            early_at: 0,
        }
    }

    async fn round(&mut self, context: &Arc<Context>) {
        self.rounds += 1;
        self.early.clear();
        let services = context.stores.services.entries();
        context.metrics.services.set(services.len() as i64);
        self.pass(context, services).await;
        self.sweep(context);
    }

    /// Looks again at those services that did not want to wait for the next round, unless that is about to begin.
    async fn second_look(&mut self, context: &Arc<Context>, next_round: Instant) {
        let at = self.clock + Duration::from_millis(self.early_at);
        if self.early.is_empty() || at >= next_round {
            return;
        }
        sleep_until(at).await;
        let early = std::mem::take(&mut self.early).into_iter();
        let services = early.filter_map(|key| {
            let row = context.stores.services.get(&key)?;
            row.scaled.is_some().then_some((key, row))
        });
        self.pass(context, services.collect()).await;
    }

    /// Looks at services, decides, and writes.
    async fn pass(&mut self, context: &Arc<Context>, services: Vec<(Key, Arc<ServiceRow>)>) {
        let gateways = self.gateways(context, &services).await;
        let looks = self.looks(context, services, &gateways);
        let questions: Vec<Question> = looks
            .iter()
            .flat_map(|look| {
                let spec = look.row.scaled.as_ref();
                let is_ours = spec.is_some_and(|spec| spec.is_ours);
                pods::questions(&look.pods, spec.is_some(), is_ours)
            })
            .collect();
        let answers = self.scraper.ask_pods(&context.metrics, &questions).await;
        let outcome = self.judge(context, looks, answers);
        context.signals.publish(outcome.signals);
        let written = act::carry_out(context, outcome.changes).await;
        for change in &written {
            if let Some(watched) = self.watched.get_mut(&change.service) {
                watched.wrote(change.generation, change.decision.replicas, Instant::now());
            }
        }
        if !written.is_empty() {
            let context = context.clone();
            tokio::spawn(async move { act::tell(&context, &written).await });
        }
    }

    /// What all gateways tell; nothing when they are not asked.
    async fn gateways(
        &self,
        context: &Context,
        services: &[(Key, Arc<ServiceRow>)],
    ) -> Arc<AllReadings> {
        let any_scaled = services.iter().any(|(_, row)| row.scaled.is_some());
        let due = self.rounds % GATEWAY_ROUNDS == 1 || !context.canaries().is_empty();
        if !any_scaled && !due {
            return Arc::default();
        }
        let gateways = Arc::new(self.scraper.ask_gateways(context).await);
        spread_news(context, &gateways);
        gateways
    }

    /// Services that are scaled and have something new, or asked to be looked at; and the share of the others whose turn it is.
    fn looks(
        &mut self,
        context: &Context,
        services: Vec<(Key, Arc<ServiceRow>)>,
        gateways: &AllReadings,
    ) -> Vec<Look> {
        let turn = self.rounds % FIXED_ROUNDS;
        let looks = services.into_iter().filter_map(|(key, row)| {
            if row.scaled.is_some() {
                return self.look(context, key, &row, gateways);
            }
            let pods = || pods::living(context, &key);
            let pods = (slot(&key) == turn).then(pods).unwrap_or_default();
            pods.iter().any(|pod| pods::is_asked(pod)).then(|| Look {
                key: key.clone(),
                row,
                pods,
                gateways: Vec::new(),
                current: 0,
                digest: 0,
            })
        });
        looks.collect()
    }

    /// Looks at a scaled service, if it is due.
    fn look(
        &mut self,
        context: &Context,
        key: Key,
        row: &Arc<ServiceRow>,
        gateways: &AllReadings,
    ) -> Option<Look> {
        let spec = row.scaled.as_ref()?;
        let now = self.clock.elapsed().as_millis() as u64;
        let pods = pods::living(context, &key);
        let watched = match self.watched.get_mut(&key) {
            Some(watched) if *watched.uid == *row.uid => watched,
            _ => {
                let begun = Box::new(Watched::begin(row));
                if spec.replicas > 0 && !pods.iter().any(|pod| pod.view.ready) {
                    let now = Instant::now();
                    let oldest = pods.iter().map(|pod| pod.made.at(now)).max();
                    let left = deadline(spec).saturating_sub(oldest.unwrap_or_default());
                    self.cold_starts.holds(&begun.uid, now, left);
                }
                self.watched
                    .entry(key.clone())
                    .insert_entry(begun)
                    .into_mut()
            }
        };
        let current = watched.current(row.generation, spec.replicas, Instant::now());
        let gateways = of_service(gateways, &key);
        let digest = digest(row.generation, current, &gateways, &pods);
        watched.is_due(digest, now).then_some(Look {
            key,
            row: row.clone(),
            pods,
            gateways,
            current,
            digest,
        })
    }

    /// Forgets what is no more.
    fn sweep(&mut self, context: &Context) {
        let now = Instant::now();
        self.cold_starts.sweep(now, |_| true);
        let (starting, waiting) = self.cold_starts.counts();
        context.metrics.cold_starts.set(starting as i64);
        context.metrics.cold_starts_waiting.set(waiting as i64);
        if !self.rounds.is_multiple_of(FIXED_ROUNDS) {
            return;
        }
        let uids: HashSet<&str> = self.watched.values().map(|watched| &*watched.uid).collect();
        self.cold_starts.sweep(now, |uid| uids.contains(uid));
        self.scraper.forget_old();
        let known = |key: &Key| context.stores.services.contains(key);
        let scaled = |key: &Key| {
            let row = context.stores.services.get(key);
            row.is_some_and(|row| row.scaled.is_some())
        };
        self.meters.retain(known);
        self.watched.retain(|key, _| scaled(key));
        context.signals.retain(scaled);
        context
            .decisions
            .retain(scaled, Timestamp::now().as_second());
    }
}

fn slot(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % FIXED_ROUNDS
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
