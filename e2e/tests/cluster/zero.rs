//! From zero: what gateways hold wakes a service, and none of it is lost, whoever starts again meanwhile.

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use pagoda_e2e::openai::{OpenAi, Reply};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::{Bed, PATIENCE, eventually, on_cluster, pod_uid};
use crate::faults::operator_pod;
use crate::manifests::{simulated, with};
use crate::own_gateway::OwnGateway;
use crate::processes::kill_nine;

/// A service that falls asleep after five seconds and takes so many to wake.
fn sleeper(name: &str, load_seconds: u32) -> Value {
    let scaling = json!({"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 5, "scaleDownStabilizationSeconds": 0});
    let hold = json!({"maxRequests": 2000, "timeoutSeconds": 300, "earlyStreamSeconds": 1});
    let manifest = with(simulated(name), &["spec", "scaling"], scaling);
    let manifest = with(manifest, &["spec", "routing"], json!({"hold": hold}));
    with(
        manifest,
        &["spec", "engine", "simulated", "loadSeconds"],
        json!(load_seconds),
    )
}

async fn asleep(bed: &Bed, name: &str, load_seconds: u32) -> Result<()> {
    bed.apply(&sleeper(name, load_seconds)).await?;
    bed.ready(name).await?;
    bed.ready_pods(name, 0).await.map(drop)
}

/// Streams that wait for `service` at `gateway`.
fn ask(bed: &Bed, gateway: &OpenAi, service: &str, count: usize) -> JoinSet<Result<Reply>> {
    let mut requests = JoinSet::new();
    for _ in 0..count {
        let (gateway, chat) = (gateway.clone(), bed.chat(service, 4));
        requests.spawn(async move {
            let asked = tokio::time::timeout(PATIENCE * 2, gateway.stream(&chat, |_| ()));
            asked.await.context("no answer at all")?
        });
    }
    requests
}

async fn all_whole(requests: JoinSet<Result<Reply>>, count: usize) -> Result<()> {
    let mut whole = 0;
    for reply in requests.join_all().await {
        let reply = reply?;
        ensure!(reply.is_whole(), "a held request was harmed: {reply:?}");
        whole += 1;
    }
    ensure!(whole == count, "{whole} of {count} were answered");
    Ok(())
}

/// A thousand connections are more than a shell allows by default.
fn allow_open_files(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(most >= count, "only {most} files may be open: ulimit -Hn");
    let current = Some(limit.current.unwrap_or(most).max(count));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}

#[test]
fn a_thousand_requests_at_zero_are_all_answered() {
    on_cluster("thousand", |bed| async move {
        allow_open_files(4096)?;
        asleep(&bed, "thousand", 1).await?;
        let requests = ask(&bed, &bed.gateway, "thousand", 1000);
        all_whole(requests, 1000).await
    });
}

#[test]
fn a_stream_held_at_zero_is_answered_early_and_goes_on_with_the_pods() {
    on_cluster("early", |bed| async move {
        asleep(&bed, "early", 5).await?;
        let body = json!({
            "model": bed.model("early"), "stream": true, "max_tokens": 4, "ignore_eos": true,
            "messages": [{"role": "user", "content": "Count to ten."}],
        });
        let url = bed.gateway.url("/v1/chat/completions");
        let response = bed.gateway.http().post(url).json(&body).send().await?;
        ensure!(response.status() == 200, "it is {}", response.status());
        let ready = bed.pods("early").await?;
        let ready = ready.iter().filter(|pod| crate::bed::is_ready(pod)).count();
        ensure!(ready == 0, "no early answer: a pod is ready");
        let kind = response.headers().get("content-type").cloned();
        ensure!(kind.is_some_and(|kind| kind == "text/event-stream"));
        let mut chunks = response.bytes_stream();
        let mut told = Vec::new();
        while let Some(chunk) = chunks.next().await {
            told.extend_from_slice(&chunk?);
        }
        let told = String::from_utf8(told)?;
        let comment = format!(": waiting for a pod of {}\n\n", bed.model("early"));
        let rest = told.trim_start_matches(&comment);
        ensure!(rest.len() < told.len(), "it begins with no comment: {told}");
        ensure!(
            rest.starts_with("data: {") && rest.ends_with("data: [DONE]\n\n"),
            "after the comments: {rest}"
        );
        Ok(())
    });
}

#[test]
fn an_operator_that_starts_again_at_zero_wakes_what_is_held() {
    on_cluster("operator-at-zero", |bed| async move {
        asleep(&bed, "woken", 1).await?;
        let operator = operator_pod(&bed).await?;
        kill_nine(&pod_uid(&operator), "pagoda-operator")?;
        let requests = ask(&bed, &bed.gateway, "woken", 20);
        all_whole(requests, 20).await
    });
}

#[test]
fn two_gateways_hold_each_their_own_and_wake_one_service() {
    on_cluster("two-gateways", |bed| async move {
        let own = OwnGateway::start(&bed).await?;
        asleep(&bed, "shared", 2).await?;
        own.knows(&bed.model("shared")).await?;
        let mine = ask(&bed, &own.client, "shared", 30);
        let theirs = ask(&bed, &bed.gateway, "shared", 30);
        all_whole(mine, 30).await?;
        all_whole(theirs, 30).await?;
        let held = own.metric(&bed, "shared", "hold_seconds_count").await?;
        ensure!(held == 30, "it held {held}");
        own.end(Signal::TERM).await.map(drop)
    });
}

/// How a held request ended: its status, `Retry-After`, and its body, or why there is no whole one.
type Ending = Result<(u16, bool, Result<String>)>;

/// Five held requests of each kind at a gateway whose service never wakes; those for a stream are answered early.
async fn held_for_ever(
    bed: &Bed,
    own: &OwnGateway,
    service: &str,
) -> Result<JoinSet<(bool, Ending)>> {
    bed.apply(&sleeper(service, 3000)).await?;
    own.knows(&bed.model(service)).await?;
    let mut requests = JoinSet::new();
    for nth in 0..10 {
        let stream = nth % 2 == 0;
        let body = json!({"model": bed.model(service), "stream": stream, "messages": [{"role": "user", "content": "x"}]});
        let (http, url) = (
            own.client.http().clone(),
            own.client.url("/v1/chat/completions"),
        );
        requests.spawn(async move { (stream, ended(http, url, body).await) });
    }
    eventually("all are held", PATIENCE, async || {
        let held = own.metric(bed, service, "held_requests").await?;
        let early = own.metric(bed, service, "early_streams_total").await?;
        ensure!((held, early) == (10, 5), "{held} held, {early} early");
        Ok(())
    })
    .await?;
    Ok(requests)
}

async fn ended(http: reqwest::Client, url: String, body: Value) -> Ending {
    let response = http.post(url).json(&body).send().await?;
    let status = response.status().as_u16();
    let again = response.headers().contains_key("retry-after");
    let text = response.text().await.map_err(anyhow::Error::from);
    Ok((status, again, text))
}

async fn endings(requests: JoinSet<(bool, Ending)>) -> Result<Vec<(bool, Ending)>> {
    let all = tokio::time::timeout(PATIENCE, requests.join_all()).await;
    all.context("a held client hangs although its gateway is gone")
}

#[test]
fn a_gateway_that_ends_tells_whom_it_holds_to_come_again_and_the_next_one_answers() {
    on_cluster("gateway-ends", |bed| async move {
        let own = OwnGateway::start(&bed).await?;
        let requests = held_for_ever(&bed, &own, "ended").await?;
        let status = own.end(Signal::TERM).await?;
        ensure!(status.success(), "it ended with {status}");
        for (stream, ending) in endings(requests).await? {
            let (status, again, text) = ending?;
            let text = text?;
            ensure!(text.contains("\"gateway_stopping\""), "told: {text}");
            if stream {
                let last = text.trim_end().rsplit("\n\n").next();
                ensure!(
                    status == 200 && last.is_some_and(|last| last.starts_with("data: {\"error\"")),
                    "{status}: {text}"
                );
            } else {
                ensure!(status == 503 && again, "{status}, Retry-After {again}");
            }
        }
        let again = ask(&bed, &bed.gateway, "ended", 10);
        bed.apply(&sleeper("ended", 0)).await?;
        all_whole(again, 10).await
    });
}

#[test]
fn a_gateway_that_is_killed_ends_the_connections_of_whom_it_holds() {
    on_cluster("gateway-killed", |bed| async move {
        let own = OwnGateway::start(&bed).await?;
        let requests = held_for_ever(&bed, &own, "killed").await?;
        own.end(Signal::KILL).await?;
        for (stream, ending) in endings(requests).await? {
            match ending {
                Err(_) if !stream => {}
                Ok((200, _, Err(_))) if stream => {}
                other => anyhow::bail!("stream {stream}: {other:?}"),
            }
        }
        Ok(())
    });
}
