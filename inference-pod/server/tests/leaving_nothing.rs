//! What many requests leave behind, of which many are given up at a random moment: nothing.

mod common;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::{Pod, fast, read_until, small};
use futures::StreamExt;
use pagoda_engine_core::uniform;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const REQUESTS: u64 = 600;
const AT_ONCE: usize = 24;
const SEED: u64 = 11;

/// When a client gives up.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Never,
    /// Without having looked at the answer.
    AtOnce,
    /// After so many events.
    After(usize),
}

fn draw(request: u64, what: u64, below: usize) -> usize {
    (uniform(SEED, request * 8 + what) * below as f64) as usize
}

fn leaves(request: u64) -> Leaves {
    match draw(request, 0, 4) {
        0 => Leaves::AtOnce,
        1 => Leaves::After(1 + draw(request, 1, 5)),
        _ => Leaves::Never,
    }
}

/// A third of the prompts begin alike, so that blocks are shared and shared ones are given up.
fn body(request: u64) -> Value {
    let own: String = (0..=draw(request, 2, 60))
        .map(|at| char::from(b'a' + ((request as usize + at) % 26) as u8))
        .collect();
    let shared = if request.is_multiple_of(3) {
        "the same words for all of them, ".repeat(2)
    } else {
        String::new()
    };
    json!({
        "model": "m", "prompt": shared + &own, "max_tokens": 1 + draw(request, 3, 40), "n": 1 + draw(request, 4, 2), "seed": request,
        "ignore_eos": true, "stream": true,
    })
}

async fn one(pod: &Pod, request: u64) {
    let response = pod
        .send(
            Request::post(COMPLETIONS)
                .body(Body::from(body(request).to_string()))
                .unwrap(),
        )
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    let enough = match leaves(request) {
        Leaves::AtOnce => return,
        Leaves::After(events) => events,
        Leaves::Never => usize::MAX,
    };
    let text = read_until(response, |text| text.matches("data: ").count() >= enough).await;
    assert!(
        enough < usize::MAX || text.ends_with("[DONE]\n\n"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_and_places_are_as_free_after_hundreds_of_requests_given_up_at_random_as_before() {
    // 384 tokens, less than what is asked for at once, so that there is waiting and preemption.
    let size = pagoda_engine::config::EngineSize {
        kv_bytes: Some(12 << 20),
        ..small()
    };
    let pod = Pod::simulated(fast(), &size);
    let all = futures::stream::iter(0..REQUESTS).map(|request| one(&pod, request));
    all.buffer_unordered(AT_ONCE).collect::<()>().await;
    for gauge in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "pagoda_kv_blocks_used",
    ] {
        pod.wait_for_metric(gauge, |value| value == 0).await;
    }
    // And the pod is as good as new: the longest answer that fits does.
    let longest = json!({"prompt": "x", "max_tokens": 100_000, "ignore_eos": true});
    let usage = pod.complete(longest).await.ok()["usage"].clone();
    let before = Pod::simulated(fast(), &size);
    let longest = json!({"prompt": "x", "max_tokens": 100_000, "ignore_eos": true});
    assert_eq!(
        usage["total_tokens"],
        before.complete(longest).await.ok()["usage"]["total_tokens"]
    );
}
