//! Everything a client can get wrong has an error of its own, and the pod answers the next request.

mod common;

use common::{Pod, fast, small, user};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn pod() -> Pod {
    Pod::simulated(fast(), &small())
}

async fn still_works(pod: &Pod) {
    pod.chat(json!({"messages": user("hello"), "max_tokens": 3}))
        .await
        .ok();
}

#[tokio::test]
async fn bodies_that_are_no_request_are_400() {
    let pod = pod();
    for path in [CHAT, COMPLETIONS] {
        for body in [
            &b"{"[..],
            b"",
            b"[]",
            b"null",
            b"{\"model\": \"m\", \"prompt\": \"\xff\xfe\"}",
            b"{\"model\": \"m\"}",
        ] {
            let (status, error) = pod.post_bytes(path, body.to_vec()).await.error();
            assert_eq!(
                (status, &error["type"]),
                (400, &json!("invalid_request_error")),
                "{error}"
            );
        }
    }
    still_works(&pod).await;
}

#[tokio::test]
async fn nesting_deeper_than_any_request_is_400() {
    let deep = format!(
        "{{\"model\":\"m\",\"messages\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(pod().post_bytes(CHAT, deep).await.error().0, 400);
}

#[tokio::test]
async fn an_answer_that_came_too_late_is_504() {
    let pod = pod();
    let late = json!({"messages": user("x"), "timeout_seconds": 1e-9});
    let (status, error) = pod.chat(late).await.error();
    assert_eq!(
        (status, error["code"].as_str()),
        (504, Some("deadline_exceeded")),
        "{error}"
    );
    still_works(&pod).await;
}

#[tokio::test]
async fn an_unknown_model_is_404_and_says_which_there_are() {
    let (status, error) = pod()
        .chat(json!({"model": "gpt-9", "messages": user("x")}))
        .await
        .error();
    assert_eq!(
        (status, error["code"].as_str(), error["param"].as_str()),
        (404, Some("model_not_found"), Some("model"))
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("this server has m, ns/svc"),
        "{error}"
    );
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_400_with_the_numbers() {
    let pod = pod();
    let long = "x".repeat(512);
    for answer in [
        pod.complete(json!({"prompt": long})).await,
        pod.complete(json!({"prompt": long, "max_tokens": 0})).await,
    ] {
        let (status, error) = answer.error();
        assert_eq!(
            (status, error["code"].as_str()),
            (400, Some("context_length_exceeded"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("512 tokens") && message.contains("at most 511"),
            "{message}"
        );
    }
    assert_eq!(
        pod.chat(json!({"messages": user(&long)})).await.error().0,
        400
    );
    still_works(&pod).await;
}

#[tokio::test]
async fn conversations_that_cannot_be_rendered_are_400() {
    let cases = [
        (json!([]), "messages"),
        (json!("hello"), "messages"),
        (json!([{"content": "no role"}]), "messages"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0]",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0]",
        ),
        (
            json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]),
            "messages[0]",
        ),
    ];
    let pod = pod();
    for (messages, param) in cases {
        let (status, error) = pod.chat(json!({"messages": messages})).await.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
    }
    still_works(&pod).await;
}

#[tokio::test]
async fn empty_prompts_and_tokens_out_of_range_are_400() {
    let pod = pod();
    for prompt in [
        json!(""),
        json!([]),
        json!([""]),
        json!([[]]),
        json!([999_999]),
        json!({"a": 1}),
        json!(7),
    ] {
        let (status, error) = pod.complete(json!({"prompt": prompt})).await.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some("prompt")),
            "{error}"
        );
    }
    still_works(&pod).await;
}

#[tokio::test]
async fn what_would_change_the_answer_and_is_not_honoured_is_400() {
    let pod = pod();
    let cases: [(&str, Value); 13] = [
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("audio", json!({"voice": "x"})),
        ("tool_choice", json!("required")),
        ("logprobs", json!("yes")),
        ("top_logprobs", json!(3)),
        ("logit_bias", json!({"999999": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("stop_token_ids", json!([999_999])),
        ("repetition_penalty", json!(1.2)),
        ("temperature", json!(-1)),
        ("n", json!(0)),
        ("n", json!(4_000_000_000_u64)),
    ];
    for (name, value) in cases {
        let mut body = json!({"messages": user("x")});
        body[name] = value;
        let (status, error) = pod.chat(body).await.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some(name)),
            "{error}"
        );
    }
    let many = json!({"prompt": vec!["x"; 20], "n": 2});
    assert_eq!(pod.complete(many).await.error().0, 400);
    still_works(&pod).await;
}

#[tokio::test]
async fn absurd_lengths_are_cut_to_what_fits() {
    let pod = pod();
    for most in [json!(u64::MAX), json!(1_000_000)] {
        let body = json!({"prompt": "x", "max_tokens": most, "ignore_eos": true});
        assert_eq!(pod.complete(body).await.ok()["usage"]["total_tokens"], 512);
    }
    let echo =
        json!({"prompt": vec!["x".repeat(400); 32], "echo": true, "logprobs": 20, "max_tokens": 0});
    let (status, error) = pod.complete(echo).await.error();
    assert_eq!((status, error["param"].as_str()), (400, Some("logprobs")));
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let pod = pod();
    let body = json!({"model": "m", "messages": user(&"x".repeat(pod.app.body_bytes))}).to_string();
    let (status, error) = pod.post_bytes(CHAT, body).await.error();
    assert_eq!(status, 413);
    assert!(
        error["message"].as_str().unwrap().contains("4194304 bytes"),
        "{error}"
    );
    still_works(&pod).await;
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_have_openais_error_shape() {
    let pod = pod();
    assert_eq!(pod.get("/v1/nothing").await.error().0, 404);
    assert_eq!(pod.get(CHAT).await.error().0, 405);
    assert_eq!(pod.get("/v1/models/nobody").await.error().0, 404);
}

#[tokio::test]
async fn more_than_can_wait_is_429_with_a_time_to_retry() {
    let pod = Pod::simulated(
        common::slow(),
        &pagoda_engine::config::EngineSize {
            max_sequences: 1,
            ..small()
        },
    );
    let hold = || {
        pod.open_stream(
            COMPLETIONS,
            json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true, "n": 32}),
        )
    };
    let mut held = Vec::new();
    let refused = loop {
        let response = hold().await;
        if response.status() != 200 {
            break common::Answer::read(response).await;
        }
        held.push(response);
        assert!(held.len() < 100, "nothing is ever refused");
    };
    assert_eq!(refused.headers["retry-after"], "1");
    let (status, error) = refused.error();
    assert_eq!((status, error["code"].as_str()), (429, Some("queue_full")));
    // All of them leave, and the pool is whole again.
    drop(held);
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
    still_works(&pod).await;
}

#[tokio::test]
async fn while_loading_everything_but_liveness_is_503() {
    let pod = Pod::loading();
    pod.app.set_loaded_percent(42);
    assert_eq!(pod.get("/health/live").await.status, 200);
    let ready = pod.get("/health/ready").await;
    assert_eq!(
        (ready.status.as_u16(), ready.text().trim()),
        (503, "loading, 42 %")
    );
    let (status, error) = pod.chat(json!({"messages": user("x")})).await.error();
    assert_eq!(
        (status, error["message"].as_str()),
        (503, Some("loading, 42 %"))
    );
    assert_eq!(pod.get("/v1/models").await.error().0, 503);
    assert_eq!(pod.get("/metrics").await.status, 200);
}
