//! Asks gateways and pods for their metrics.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use pagoda_operator_core::{
    autoscale::{GatewayReading, PodReading},
    rollout::RevisionReading,
};
use tokio::time::Instant;

use super::pod_scraper::{PodScraper, Question};
use crate::{
    canary_gate,
    context::Context,
    endpoints::gateway_addresses,
    gateways::{AllReadings, Readings},
    metrics::{Metrics, Target},
    targets::Targets,
};

const TIMEOUT: Duration = Duration::from_millis(900);
/// Questions to gateways at once.
const CONCURRENCY: usize = 128;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Asks, and leaves alone for a while who did not answer.
#[derive(Debug)]
pub struct Scraper {
    gateways: Mutex<Targets>,
    pods: PodScraper,
}

impl Default for Scraper {
    fn default() -> Self {
        Self {
            gateways: Mutex::new(Targets::new(LONGEST_PAUSE)),
            pods: PodScraper::default(),
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
        let text = self.gateway_text(context, &address).await?;
        // A gateway's text is long: what nobody asks for is not looked for.
        if !context.canaries().is_empty()
            && let Some(counts) = read(
                &context.metrics,
                &address,
                "gateway",
                RevisionReading::parse_all(&text),
            )
        {
            canary_gate::note(context, &address, counts);
        }
        let readings = GatewayReading::parse_all(&text);
        let counts = read(&context.metrics, &address, "gateway", readings)?;
        Some(context.gateways.keyed(&counts))
    }

    async fn gateway_text(&self, context: &Context, address: &str) -> Option<String> {
        if !self.targets().is_due(address, Instant::now()) {
            return None;
        }
        let url = format!("http://{address}/metrics/load");
        let answer = context.http.get(&url, TIMEOUT).await;
        self.targets().note(address, answer.is_ok(), Instant::now());
        match answer {
            Ok(body) => String::from_utf8(body.into())
                .inspect_err(|_| count_failure(&context.metrics, "gateway"))
                .ok(),
            Err(error) => {
                count_failure(&context.metrics, "gateway");
                tracing::debug!(%error, "a gateway tells no load");
                None
            }
        }
    }

    /// One answer for each question, in their order. Whoever cannot be asked before the round ends is absent.
    pub async fn ask_pods(
        &self,
        metrics: &Metrics,
        questions: &[Question],
    ) -> Vec<Option<PodReading>> {
        let answers = self.pods.ask(questions).await;
        let failures = self.pods.take_failures() as u64;
        let counter = metrics
            .scrape_failures
            .get_or_create(&Target { target: "pod" });
        counter.inc_by(failures);
        answers
    }

    /// Forgets addresses that nobody asks any more.
    pub fn forget_old(&self) {
        self.targets().forget_old(Instant::now());
        self.pods.forget_old();
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count_failure(metrics: &Metrics, target: &'static str) {
    let failures = &metrics.scrape_failures;
    failures.get_or_create(&Target { target }).inc();
}

fn read<T, E: std::fmt::Display>(
    metrics: &Metrics,
    address: &impl std::fmt::Display,
    target: &'static str,
    parsed: Result<T, E>,
) -> Option<T> {
    match parsed {
        Ok(readings) => Some(readings),
        Err(error) => {
            count_failure(metrics, target);
            tracing::warn!(%error, %address, target, "metrics that cannot be trusted count as absent");
            None
        }
    }
}
