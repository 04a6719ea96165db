//! Many requests at once at a service without a pod: whether each is answered, and what waking adds once a pod is ready.
//!
//! What the pod itself takes for so many requests is measured on that very pod, right after: the same requests at once, with
//! nobody to wake. Requests are alike, so the one that got its first token as the k-th is compared with the k-th there. Added is
//! what it got its first token later than the k-th there, counted from the pod's readiness on the one side (as a watch of the
//! API server tells it) and from the first request's sending on the other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagoda_e2e::openai::Reply;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Run;
use super::place::{Place, chat};
use super::ready_pods::ReadyPods;
use crate::bed::services::Key;
use crate::report::{Figure, Report};

const NAMESPACE: &str = "bench-zero";
const TOKENS: u32 = 10;
const IDLE_SECONDS: u32 = 10;
/// Bursts at the awake pod; the quickest counts as what it takes.
const AWAKE: usize = 3;
const LONGEST: Duration = Duration::from_mins(3);

/// What became of one burst.
struct Burst {
    began: Instant,
    /// Moments of first tokens, in order.
    first_tokens: Vec<Instant>,
    lost: usize,
}

pub(super) async fn measure(run: &Run<'_>, place: &Place, report: &mut Report) -> Result<()> {
    run.progress.step("zero: a service that sleeps");
    let key = place
        .create(NAMESPACE, &spec(run.arguments.requests))
        .await?;
    let outcome = wakes(run, place, &key).await;
    place.delete(&key).await?;
    let (lost, mut added) = outcome?;
    added.sort_by(f64::total_cmp);
    tell(run, report, lost, &added);
    Ok(())
}

fn spec(requests: u32) -> Value {
    json!({
        "replicas": 0,
        "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "512Mi"}}},
        "engine": {
            "executor": "simulated",
            "maxContextTokens": 2048,
            "maxSequences": 64,
            "kvMemory": "256Mi",
            "simulated": {"prefillTokensPerSecond": 100_000, "decodeStepMilliseconds": 5, "loadSeconds": 1},
        },
        "scaling": {"minReplicas": 0, "maxReplicas": 1, "idleSeconds": IDLE_SECONDS},
        "routing": {"hold": {"maxRequests": 2 * requests}},
    })
}

/// Lost requests, and milliseconds added to each of the others.
async fn wakes(run: &Run<'_>, place: &Place, key: &Key) -> Result<(usize, Vec<f64>)> {
    let requests = run.arguments.requests as usize;
    let (mut lost, mut added) = (0, Vec::new());
    for wake in 0..run.arguments.wakes {
        place
            .wait(key, "at zero", |service| {
                service["spec"]["replicas"] == 0 && service["status"]["replicas"] == 0
            })
            .await?;
        let ready = ReadyPods::watch(&place.client, key);
        // The watch's first list.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asleep = burst(place, key, requests).await?;
        let first_ready = ready.since(asleep.began);
        let first_ready = *first_ready.first().context("no pod became ready")?;
        let awake = awake(place, key, requests).await?;
        let of_this = compare(&asleep, first_ready, &awake);
        run.progress.step(format!(
            "wake {}: first pod ready after {:.1} s, {} of {requests} lost, the last first token {:.0} ms after the pod",
            wake + 1,
            (first_ready - asleep.began).as_secs_f64(),
            asleep.lost,
            asleep.first_tokens.last().map_or(0.0, |last| millis(last.saturating_duration_since(first_ready))),
        ));
        lost += asleep.lost;
        added.extend(of_this);
    }
    Ok((lost, added))
}

/// All at once.
async fn burst(place: &Place, key: &Key, requests: usize) -> Result<Burst> {
    let chat = chat(key, TOKENS);
    let began = Instant::now();
    let mut open = JoinSet::new();
    for _ in 0..requests {
        let (gateway, chat) = (place.gateway.clone(), chat.clone());
        open.spawn(async move {
            let mut first = None;
            let stream = gateway.stream(&chat, |_| {
                first.get_or_insert_with(Instant::now);
            });
            let reply = tokio::time::timeout(LONGEST, stream).await;
            let whole = reply
                .ok()
                .and_then(Result::ok)
                .is_some_and(|r: Reply| r.is_whole());
            first.filter(|_| whole)
        });
    }
    let ended = open.join_all().await;
    let mut first_tokens: Vec<Instant> = ended.into_iter().flatten().collect();
    first_tokens.sort_unstable();
    Ok(Burst {
        began,
        lost: requests - first_tokens.len(),
        first_tokens,
    })
}

/// The same at a pod that is there: for each place in the order of first tokens, the least that it took.
async fn awake(place: &Place, key: &Key, requests: usize) -> Result<Vec<Duration>> {
    let mut least = vec![Duration::MAX; requests];
    for _ in 0..AWAKE {
        let burst = burst(place, key, requests).await?;
        ensure!(
            burst.lost == 0,
            "{} requests at a pod that is awake were lost",
            burst.lost
        );
        for (place, at) in least.iter_mut().zip(&burst.first_tokens) {
            *place = (*place).min(*at - burst.began);
        }
    }
    Ok(least)
}

fn compare(asleep: &Burst, ready: Instant, awake: &[Duration]) -> Vec<f64> {
    let pairs = asleep.first_tokens.iter().zip(awake);
    pairs
        .map(|(at, awake)| millis(at.saturating_duration_since(ready)) - millis(*awake))
        .collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::INFINITY)
}

fn tell(run: &Run<'_>, report: &mut Report, lost: usize, added: &[f64]) {
    let (requests, wakes) = (run.arguments.requests, run.arguments.wakes);
    report.figure(Figure {
        key: "lost_from_zero".into(),
        what: format!("{requests} requests at zero pods, {wakes} times: lost"),
        value: lost as f64,
        target: Some(0.0),
        unit: "".into(),
        note: String::new(),
    });
    report.figure(Figure {
        key: "wake_added_p99_ms".into(),
        what: "added to first tokens after the pod is ready, p99".to_owned(),
        value: quantile(added, 0.99),
        target: Some(250.0),
        unit: "ms".into(),
        note: format!(
            "p50 {:.0} ms; against the same requests at once at the same pod awake (the quickest of {AWAKE} times), k-th first token \
             against k-th",
            quantile(added, 0.5)
        ),
    });
    report.fact("wake_added_p50_ms", quantile(added, 0.5));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waking_adds_is_the_difference_of_the_same_place_in_order() {
        let ready = Instant::now();
        let at = |ms| ready + Duration::from_millis(ms);
        let asleep = Burst {
            began: ready,
            first_tokens: vec![at(120), at(200)],
            lost: 0,
        };
        let awake = [Duration::from_millis(100), Duration::from_millis(50)];
        let added = compare(&asleep, ready, &awake);
        assert!((added[0] - 20.0).abs() < 1e-6 && (added[1] - 150.0).abs() < 1e-6);
    }

    #[test]
    fn a_quantile_of_nothing_is_never_good_enough() {
        assert!(quantile(&[], 0.99).is_infinite());
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-9);
    }
}
