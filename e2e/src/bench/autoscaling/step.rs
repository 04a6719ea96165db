//! Ten times the load on one service whose pods take 5 s to load: when first tokens are in time again, and whether the number
//! of pods swings.

use std::time::{Duration, Instant};

use anyhow::Result;
use pagoda_e2e::replicas_seen::{Changes, ReplicasSeen, reversals};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Run;
use super::place::{Place, chat};
use super::ready_pods::ReadyPods;
use crate::bed::services::Key;
use crate::report::{Figure, Report};

const NAMESPACE: &str = "bench-step";
/// Requests a second before the step and after it.
const BEFORE: f64 = 3.0;
const AFTER: f64 = 30.0;
const CALM: Duration = Duration::from_secs(30);
/// A request's answer: so many tokens, one in 40 ms.
const TOKENS: u32 = 20;
/// What first tokens should come within, at the 95th percentile.
const TARGET: Duration = Duration::from_millis(500);
const QUANTILE: f64 = 0.95;
/// First tokens are looked at over windows of one second of sending, each half a second after the last.
const WINDOW: Duration = Duration::from_secs(1);
const STRIDE: Duration = Duration::from_millis(500);
/// So many windows in a row are in time before the service counts as recovered.
const IN_A_ROW: usize = 10;
/// No request waits longer than this for its end.
const LONGEST: Duration = Duration::from_mins(2);

/// One request.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// None for one that failed.
    first_token: Option<Duration>,
}

pub(super) async fn measure(run: &Run<'_>, place: &Place, report: &mut Report) -> Result<()> {
    run.progress
        .step("step: a service of simulated pods that load for 5 s");
    let key = place.create(NAMESPACE, &spec()).await?;
    let outcome = step(run, place, &key).await;
    place.delete(&key).await?;
    let outcome = outcome?;
    tell(run, report, &outcome);
    Ok(())
}

fn spec() -> Value {
    json!({
        "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}}},
        "engine": {
            "executor": "simulated",
            "maxContextTokens": 2048,
            "maxSequences": 8,
            "kvMemory": "64Mi",
            "simulated": {"prefillTokensPerSecond": 20_000, "decodeStepMilliseconds": 40, "loadSeconds": 5},
        },
        "scaling": {
            "minReplicas": 1,
            "maxReplicas": 16,
            "targets": [
                {"metric": "InFlightRequests", "averageValue": "4"},
                {"metric": "TimeToFirstToken", "percentile": 95, "milliseconds": TARGET.as_millis() as u64},
            ],
        },
    })
}

struct Outcome {
    stepped: Instant,
    requests: Vec<Sent>,
    changes: Changes,
    ready: Vec<Instant>,
}

async fn step(run: &Run<'_>, place: &Place, key: &Key) -> Result<Outcome> {
    let replicas = ReplicasSeen::watch(&place.client);
    let ready = ReadyPods::watch(&place.client, key);
    run.progress.step(format!(
        "{BEFORE} requests a second for {} s, then {AFTER} for {} s",
        CALM.as_secs(),
        run.arguments.step_seconds
    ));
    let mut requests = send(place, key, BEFORE, CALM).await;
    let stepped = Instant::now();
    let length = Duration::from_secs(run.arguments.step_seconds.into());
    requests.extend(send(place, key, AFTER, length).await);
    Ok(Outcome {
        stepped,
        requests,
        changes: replicas.of(key),
        ready: ready.since(stepped),
    })
}

/// Sends at an even pace, whatever the answers take; returns when all have ended that were sent, or late by a while.
async fn send(place: &Place, key: &Key, rate: f64, length: Duration) -> Vec<Sent> {
    let mut every = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
    let chat = chat(key, TOKENS);
    let (began, mut open, mut ended) = (Instant::now(), JoinSet::new(), Vec::new());
    while began.elapsed() < length {
        every.tick().await;
        let (gateway, chat) = (place.gateway.clone(), chat.clone());
        open.spawn(async move {
            let at = Instant::now();
            let asked = tokio::time::timeout(LONGEST, gateway.stream(&chat, |_| ())).await;
            let reply = asked.ok().and_then(Result::ok);
            let whole = reply.filter(pagoda_e2e::openai::Reply::is_whole);
            Sent {
                at,
                first_token: whole.and_then(|reply| reply.first_token),
            }
        });
        while let Some(Ok(sent)) = open.try_join_next() {
            ended.push(sent);
        }
    }
    ended.extend(open.join_all().await);
    ended
}

/// When first tokens were in time again for good: the first of a row of windows that all are, as seconds after `from`, where
/// the last window that is not in time ends before.
fn recovered(requests: &[Sent], from: Instant, until: Instant) -> Option<Instant> {
    let (mut start, mut row, mut first) = (from, 0, None);
    while start + WINDOW <= until {
        if in_time(requests, start) {
            first.get_or_insert(start);
            row += 1;
        } else {
            (row, first) = (0, None);
        }
        if row == IN_A_ROW {
            return first;
        }
        start += STRIDE;
    }
    None
}

/// Whether the percentile of those sent in the window is within the target. One that failed never came.
fn in_time(requests: &[Sent], start: Instant) -> bool {
    let mut times: Vec<Duration> = requests
        .iter()
        .filter(|sent| sent.at >= start && sent.at < start + WINDOW)
        .map(|sent| sent.first_token.unwrap_or(Duration::MAX))
        .collect();
    times.sort_unstable();
    let rank = (times.len() as f64 * QUANTILE).ceil() as usize;
    times
        .get(rank.saturating_sub(1))
        .is_some_and(|time| *time <= TARGET)
}

/// Moments at which the pods of the first move upwards were ready: the first of them, and the last.
fn ready_moments(outcome: &Outcome) -> Option<(Instant, Instant, usize)> {
    let after: Vec<&(Instant, i64)> = outcome
        .changes
        .iter()
        .filter(|(at, _)| *at >= outcome.stepped)
        .collect();
    let most = after.iter().map(|(_, replicas)| *replicas).max()?;
    let before = outcome
        .changes
        .iter()
        .rfind(|(at, _)| *at < outcome.stepped)
        .map_or(1, |(_, replicas)| *replicas);
    let added = usize::try_from(most - before).ok().filter(|n| *n > 0)?;
    let last = outcome.ready.get(added - 1).or(outcome.ready.last())?;
    Some((*outcome.ready.first()?, *last, added))
}

fn tell(run: &Run<'_>, report: &mut Report, outcome: &Outcome) {
    let end = outcome.stepped + Duration::from_secs(run.arguments.step_seconds.into());
    let ready = ready_moments(outcome);
    let recovered = recovered(&outcome.requests, outcome.stepped, end);
    let seconds = |at: Instant, since: Instant| at.saturating_duration_since(since).as_secs_f64();
    // A service that never recovered, or never grew, took as long as was looked.
    let recover = match (ready, recovered) {
        (Some((_, last, _)), Some(at)) => seconds(at, last),
        _ => f64::from(run.arguments.step_seconds),
    };
    let failed = outcome
        .requests
        .iter()
        .filter(|sent| sent.first_token.is_none())
        .count();
    let moves: Vec<String> = outcome
        .changes
        .iter()
        .map(|(at, replicas)| {
            let since = at.saturating_duration_since(outcome.stepped);
            format!("{replicas} at {:.1} s", since.as_secs_f64())
        })
        .collect();
    report.figure(Figure {
        key: "recover_s".into(),
        what: "10x step: new pods ready to first tokens in time".to_owned(),
        value: recover,
        target: Some(2.0),
        unit: "s".into(),
        note: format!(
            "p95 within {} ms, windows of {} s of sending; in time again {:.1} s after the step, first and last new pod ready after {:.1} s \
             and {:.1} s; pods asked for: {}; {failed} of {} requests failed",
            TARGET.as_millis(),
            WINDOW.as_secs(),
            recovered.map_or(f64::NAN, |at| seconds(at, outcome.stepped)),
            ready.map_or(f64::NAN, |(first, ..)| seconds(first, outcome.stepped)),
            ready.map_or(f64::NAN, |(_, last, _)| seconds(last, outcome.stepped)),
            moves.join(", "),
            outcome.requests.len()
        ),
    });
    report.figure(Figure {
        key: "reversals".into(),
        what: format!(
            "changes of direction in {:.0} min after it",
            f64::from(run.arguments.step_seconds) / 60.0
        ),
        value: reversals(&outcome.changes) as f64,
        target: Some(1.0),
        unit: "".into(),
        note: String::new(),
    });
    if let Some(at) = recovered {
        report.fact("step_recovered_s", seconds(at, outcome.stepped));
    }
    report.fact("step_failed", failed as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(base: Instant, seconds: f64, first_token: f64) -> Sent {
        Sent {
            at: base + Duration::from_secs_f64(seconds),
            first_token: Some(Duration::from_secs_f64(first_token)),
        }
    }

    #[test]
    fn a_service_has_recovered_when_the_last_late_window_is_over() {
        let base = Instant::now();
        // Late for 4 s, in time for 1 s, late again for 1 s, in time from then on.
        let requests: Vec<Sent> = (0..300)
            .map(|i| {
                let at = f64::from(i) / 10.0;
                let late = at < 4.0 || (5.0..6.0).contains(&at);
                sent(base, at, if late { 3.0 } else { 0.1 })
            })
            .collect();
        let until = base + Duration::from_secs(30);
        let at = recovered(&requests, base, until).unwrap();
        assert_eq!(at - base, Duration::from_secs(6));
    }

    #[test]
    fn a_window_without_a_request_or_with_one_that_failed_is_not_in_time() {
        let base = Instant::now();
        assert!(!in_time(&[], base));
        let mut requests = vec![sent(base, 0.1, 0.1)];
        assert!(in_time(&requests, base));
        requests[0].first_token = None;
        assert!(!in_time(&requests, base));
    }
}
