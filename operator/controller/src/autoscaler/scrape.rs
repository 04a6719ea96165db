//! Asks gateways and pods for their metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use pagoda_operator_core::{
    autoscale::{GatewayReading, PodReading},
    rollout::RevisionReading,
};
use tokio::time::Instant;

use crate::{
    canary_gate,
    context::Context,
    endpoints::gateway_addresses,
    gateways::{AllReadings, Readings},
    metrics::Target,
    pod_address,
    stores::PodRow,
    targets::Targets,
};

const TIMEOUT: Duration = Duration::from_millis(900);
/// Questions at once.
const CONCURRENCY: usize = 128;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Asks, and leaves alone for a while who did not answer.
#[derive(Debug)]
pub struct Scraper {
    targets: Mutex<Targets>,
}

impl Default for Scraper {
    fn default() -> Self {
        Self {
            targets: Mutex::new(Targets::new(LONGEST_PAUSE)),
        }
    }
}

impl Scraper {
    /// One answer for each gateway.
    pub async fn ask_gateways(&self, context: &Context) -> AllReadings {
        let addresses = gateway_addresses(&context.stores.gateways.all());
        let asked: Vec<_> = addresses
            .into_iter()
            .map(|address| self.ask_gateway(context, address).boxed())
            .collect();
        stream::iter(asked).buffered(CONCURRENCY).collect().await
    }

    async fn ask_gateway(&self, context: &Context, address: String) -> Option<Readings> {
        let text = self
            .scrape(context, &address, "/metrics/load", "gateway")
            .await?;
        // A gateway's text is long: what nobody asks for is not looked for.
        if !context.canaries().is_empty()
            && let Some(counts) = read(
                context,
                &address,
                "gateway",
                RevisionReading::parse_all(&text),
            )
        {
            canary_gate::note(context, &address, counts);
        }
        let readings = GatewayReading::parse_all(&text);
        read(context, &address, "gateway", readings)
    }

    /// One list for each list of pods, in their order.
    pub async fn ask_pods(
        &self,
        context: &Context,
        pods: &[&[Arc<PodRow>]],
    ) -> Vec<Vec<Option<PodReading>>> {
        let asked: Vec<_> = pods
            .iter()
            .copied()
            .flatten()
            .map(|pod| self.ask_pod(context, pod).boxed())
            .collect();
        let answers: Vec<_> = stream::iter(asked).buffered(CONCURRENCY).collect().await;
        let mut answers = answers.into_iter();
        pods.iter()
            .map(|list| answers.by_ref().take(list.len()).collect())
            .collect()
    }

    async fn ask_pod(&self, context: &Context, pod: &PodRow) -> Option<PodReading> {
        let address = pod_address::server(&pod.view)?;
        let text = self.scrape(context, &address, "/metrics", "pod").await?;
        read(context, &address, "pod", PodReading::parse(&text))
    }

    async fn scrape(
        &self,
        context: &Context,
        address: &str,
        path: &str,
        target: &'static str,
    ) -> Option<String> {
        if !self.targets().is_due(address, Instant::now()) {
            return None;
        }
        let url = format!("http://{address}{path}");
        let answer = context.http.get(&url, TIMEOUT).await;
        self.targets().note(address, answer.is_ok(), Instant::now());
        match answer {
            Ok(body) => String::from_utf8(body.into())
                .inspect_err(|_| count_failure(context, target))
                .ok(),
            Err(error) => {
                count_failure(context, target);
                tracing::debug!(%error, target, "no load to be had");
                None
            }
        }
    }

    /// Forgets addresses that nobody asks any more.
    pub fn forget_old(&self) {
        self.targets().forget_old(Instant::now());
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
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
