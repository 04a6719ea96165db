//! Bad requests through the gateway: each gets its own clear error, and the service behind it goes on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::bed::{Bed, eventually, on_cluster, pod_name};
use crate::manifests::simulated;

/// A request body, the status it must get, and what the error's message must say.
struct Case {
    what: &'static str,
    body: Vec<u8>,
    status: u16,
    says: &'static str,
}

#[test]
fn each_bad_request_gets_its_own_error_and_the_service_still_answers() {
    on_cluster("bad-http", |bed| async move {
        bed.apply(&simulated("patient")).await?;
        bed.ready("patient").await?;
        let mut messages = Vec::new();
        for case in cases(&bed.model("patient")) {
            messages.push(
                refused(&bed, &case)
                    .await
                    .with_context(|| case.what.to_owned())?,
            );
            bed.answers("patient")
                .await
                .with_context(|| format!("after {}", case.what))?;
        }
        let count = messages.len();
        messages.sort();
        messages.dedup();
        ensure!(
            messages.len() == count,
            "two different mistakes got the same message: {messages:#?}"
        );
        let pods = bed.ready_pods("patient", 1).await?;
        ensure!(
            crate::bed::restarts(&pods[0]) == 0,
            "the engine was restarted"
        );
        Ok(())
    });
}

fn cases(model: &str) -> Vec<Case> {
    let chat = |messages: Value| {
        json!({"model": model, "messages": messages, "max_tokens": 4})
            .to_string()
            .into_bytes()
    };
    let user = |content: &str| json!([{"role": "user", "content": content}]);
    let mut not_utf8 = chat(user("XX"));
    let place = not_utf8
        .windows(2)
        .position(|pair| pair == b"XX")
        .unwrap_or_default();
    not_utf8[place..place + 2].copy_from_slice(&[0xff, 0xfe]);
    vec![
        Case {
            what: "bad JSON",
            body: b"{\"model\": ".to_vec(),
            status: 400,
            says: "JSON",
        },
        Case {
            what: "no model",
            body: json!({"messages": user("hi")}).to_string().into_bytes(),
            status: 400,
            says: "model",
        },
        Case {
            what: "an unknown model",
            body: json!({"model": "no-such-model", "messages": user("hi")})
                .to_string()
                .into_bytes(),
            status: 404,
            says: "no-such-model",
        },
        Case {
            what: "a prompt longer than the context",
            body: chat(user(&"word ".repeat(20_000))),
            status: 400,
            says: "2048",
        },
        Case {
            what: "no messages",
            body: chat(json!([])),
            status: 400,
            says: "messages",
        },
        Case {
            what: "messages of the wrong type",
            body: chat(json!("hi")),
            status: 400,
            says: "messages",
        },
        Case {
            what: "invalid UTF-8",
            body: not_utf8,
            status: 400,
            says: "UTF-8",
        },
        Case {
            what: "a body over the limit",
            body: chat(user(&"a".repeat(5 << 20))),
            status: 413,
            says: "bytes",
        },
    ]
}

/// Sends the case; the error's message, checked for status, shape and content.
async fn refused(bed: &Bed, case: &Case) -> Result<String> {
    let request = bed
        .gateway
        .http()
        .post(bed.gateway.url("/v1/chat/completions"));
    let response = request
        .header("content-type", "application/json")
        .body(case.body.clone())
        .send()
        .await?;
    let status = response.status().as_u16();
    let body: Value = response.json().await.context("the error is no JSON")?;
    let message = body["error"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(
        status == case.status,
        "wanted {}, got {status}: {body}",
        case.status
    );
    ensure!(
        message.contains(case.says),
        "wanted '{}' in: {body}",
        case.says
    );
    ensure!(body["error"]["type"].is_string(), "no error type in {body}");
    Ok(message)
}

#[test]
fn the_engine_stops_work_for_a_client_that_leaves() {
    on_cluster("leaves", |bed| async move {
        bed.apply(&simulated("deserted")).await?;
        bed.ready("deserted").await?;
        let pod = pod_name(&bed.ready_pods("deserted", 1).await?[0]);

        let body = json!({"model": bed.model("deserted"), "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1900, "ignore_eos": true, "stream": true});
        let response = bed
            .gateway
            .http()
            .post(bed.gateway.url("/v1/chat/completions"))
            .json(&body)
            .send()
            .await?;
        ensure!(response.status() == 200, "status {}", response.status());
        let mut stream = response.bytes_stream();
        stream.next().await.context("the stream is empty")??;
        running(&bed, &pod, 1.0).await?;
        drop(stream);
        // By itself the request would run for 38 s more.
        running(&bed, &pod, 0.0).await?;
        bed.answers("deserted").await.map(drop)
    });
}

async fn running(bed: &Bed, pod: &str, wanted: f64) -> Result<()> {
    eventually(
        &format!("{wanted} requests run in the pod"),
        Duration::from_secs(15),
        async || {
            let now = bed.pod_metric(pod, "vllm:num_requests_running").await?;
            ensure!(now == Some(wanted), "now {now:?}");
            Ok(())
        },
    )
    .await
}
