//! Answers: OpenAI's shapes, exact counts, stop strings, several choices, streams equal to whole answers.

mod common;

use common::{Pod, content, fast, small, streamed_content, user};
use futures::future::join_all;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn pod() -> Pod {
    Pod::simulated(fast(), &small())
}

/// What a client that nobody was before is billed.
fn usage(prompt: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}

/// Keys of an object, sorted.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn a_whole_chat_answer_has_openais_shape() {
    let answer = pod()
        .chat(json!({"messages": user("hello"), "max_tokens": 12}))
        .await;
    assert_eq!(answer.headers["x-pagoda-simulated"], "true");
    let answer = answer.ok();
    assert_eq!(
        keys(&answer),
        [
            "choices",
            "created",
            "id",
            "model",
            "object",
            "system_fingerprint",
            "usage"
        ]
    );
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("chat.completion"), &json!("m"))
    );
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    let choice = &answer["choices"][0];
    assert_eq!(
        keys(choice),
        ["finish_reason", "index", "logprobs", "message"]
    );
    assert_eq!(keys(&choice["message"]), ["content", "refusal", "role"]);
    assert_eq!(
        (&choice["index"], &choice["message"]["role"]),
        (&json!(0), &json!("assistant"))
    );
}

#[tokio::test]
async fn a_whole_completion_has_openais_shape() {
    let answer = pod()
        .complete(json!({"prompt": "once", "model": "ns/svc"}))
        .await
        .ok();
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("text_completion"), &json!("ns/svc"))
    );
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(
        keys(&answer["choices"][0]),
        ["finish_reason", "index", "logprobs", "text"]
    );
    assert_eq!(answer["usage"]["completion_tokens"], 16, "OpenAI's default");
}

#[tokio::test]
async fn usage_counts_prompt_and_answer_exactly() {
    // One token a byte: "user: hi\nassistant: " has 20.
    let answer = pod()
        .chat(json!({"messages": user("hi"), "max_tokens": 7, "ignore_eos": true}))
        .await
        .ok();
    assert_eq!(answer["usage"], usage(20, 7));
    assert_eq!(content(&answer).len(), 7);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn no_tokens_at_all_is_an_empty_answer() {
    let pod = pod();
    for name in ["max_tokens", "max_completion_tokens"] {
        let mut body = json!({"messages": user("hi")});
        body[name] = json!(0);
        let answer = pod.chat(body.clone()).await.ok();
        assert_eq!(
            (content(&answer), &answer["choices"][0]["finish_reason"]),
            ("", &json!("length"))
        );
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        let chunks = pod.stream(CHAT, body).await;
        assert_eq!(streamed_content(&chunks, 0), "");
    }
}

#[tokio::test]
async fn an_answer_ends_with_its_turn_and_never_shows_the_end_token() {
    let pod = pod();
    let mut ended = 0;
    for question in 0..20 {
        let answer = pod
            .chat(json!({"messages": user(&format!("question {question}"))}))
            .await
            .ok();
        assert!(!content(&answer).contains('<') && !content(&answer).contains('\u{fffd}'));
        if answer["choices"][0]["finish_reason"] == "stop" {
            ended += 1;
            assert!(content(&answer).ends_with('.'));
            assert_eq!(answer["usage"]["completion_tokens"], content(&answer).len());
        }
    }
    assert!(ended > 5, "only {ended} of 20 answers ended by themselves");
}

#[tokio::test]
async fn the_context_ends_an_answer_with_reason_length() {
    let prompt = "x".repeat(500);
    let answer = pod()
        .complete(json!({"prompt": prompt, "max_tokens": 400, "ignore_eos": true}))
        .await
        .ok();
    assert_eq!(answer["usage"], usage(500, 12));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_in_chunks() {
    let pod = pod();
    for path in [CHAT, COMPLETIONS] {
        let body = json!({"messages": user("tell me"), "prompt": "tell me", "max_tokens": 60});
        let field = if path == CHAT { "prompt" } else { "messages" };
        let mut body = body;
        body.as_object_mut().unwrap().remove(field);
        let whole = pod.post(path, body.clone()).await.ok();
        let chunks = pod.stream(path, body).await;
        let text = whole["choices"][0]["message"]["content"]
            .as_str()
            .or(whole["choices"][0]["text"].as_str());
        assert_eq!(Some(streamed_content(&chunks, 0).as_str()), text);
        let last = chunks.last().unwrap();
        assert_eq!(
            last["choices"][0]["finish_reason"],
            whole["choices"][0]["finish_reason"]
        );
        assert!(
            chunks
                .iter()
                .all(|chunk| chunk["id"] == last["id"] && chunk.get("usage").is_none())
        );
    }
}

#[tokio::test]
async fn a_chat_stream_opens_with_the_role_and_closes_with_the_reason() {
    let chunks = pod()
        .stream(CHAT, json!({"messages": user("hi"), "max_tokens": 5}))
        .await;
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert!(
        others
            .iter()
            .all(|chunk| chunk["choices"][0]["finish_reason"].is_null())
    );
}

#[tokio::test]
async fn usage_ends_a_stream_only_when_asked_for() {
    let pod = pod();
    let body = json!({"messages": user("hi"), "max_tokens": 5, "ignore_eos": true, "stream_options": {"include_usage": true}});
    let mut chunks = Vec::new();
    let response = pod.open_stream(CHAT, body).await;
    let text = common::Answer::read(response).await.text();
    for event in common::events(&text)
        .iter()
        .filter(|event| *event != "[DONE]")
    {
        chunks.push(serde_json::from_str::<Value>(event).unwrap());
    }
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], usage(20, 5));
    assert!(
        others
            .iter()
            .all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some())
    );
}

#[tokio::test]
async fn stop_strings_end_answers_wherever_tokens_cut_them_and_never_show() {
    let pod = pod();
    let body = json!({"messages": user("tell me more"), "max_tokens": 80, "ignore_eos": true});
    let full = content(&pod.chat(body.clone()).await.ok()).to_owned();
    // Every token is a byte, so all of these lie across tokens.
    for (start, len) in [(3, 2), (10, 5), (20, 11), (40, 3), (78, 2)] {
        let stop = &full[start..start + len];
        let expected = &full[..full.find(stop).unwrap()];
        let mut body = body.clone();
        body["stop"] = json!([stop, "never occurs"]);
        let answer = pod.chat(body.clone()).await.ok();
        assert_eq!(
            (content(&answer), &answer["choices"][0]["finish_reason"]),
            (expected, &json!("stop")),
            "{stop:?}"
        );
        let chunks = pod.stream(CHAT, body).await;
        assert_eq!(streamed_content(&chunks, 0), expected);
    }
}

#[tokio::test]
async fn text_held_for_a_stop_string_that_never_comes_is_not_lost() {
    let pod = pod();
    let body = json!({"messages": user("hold"), "max_tokens": 30, "ignore_eos": true});
    let full = content(&pod.chat(body.clone()).await.ok()).to_owned();
    let mut with_stop = body;
    with_stop["stop"] = json!(format!("{}#", &full[25..]));
    assert_eq!(content(&pod.chat(with_stop).await.ok()), full);
}

#[tokio::test]
async fn parts_of_a_message_are_its_text() {
    let pod = pod();
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]);
    let (a, b) = (
        json!({"messages": parts, "max_tokens": 20}),
        json!({"messages": user("hello"), "max_tokens": 20}),
    );
    assert_eq!(
        content(&pod.chat(a).await.ok()),
        content(&pod.chat(b).await.ok())
    );
}

#[tokio::test]
async fn several_prompts_and_choices_are_indexed_in_order() {
    let pod = pod();
    let alone = |prompt: &'static str| {
        pod.complete(json!({"prompt": prompt, "max_tokens": 20, "ignore_eos": true}))
    };
    let (one, two) = (alone("one").await.ok(), alone("two").await.ok());
    let both = pod
        .complete(json!({"prompt": ["one", "two"], "n": 2, "max_tokens": 20, "ignore_eos": true}))
        .await
        .ok();
    let texts: Vec<&str> = both["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    let (one, two) = (
        one["choices"][0]["text"].as_str().unwrap(),
        two["choices"][0]["text"].as_str().unwrap(),
    );
    assert_eq!(texts, [one, one, two, two]);
    assert_eq!(both["usage"], usage(6, 80));
    let chunks = pod
        .stream(
            COMPLETIONS,
            json!({"prompt": ["one", "two"], "max_tokens": 20, "ignore_eos": true}),
        )
        .await;
    assert_eq!(
        (streamed_content(&chunks, 0), streamed_content(&chunks, 1)),
        (one.to_owned(), two.to_owned())
    );
}

#[tokio::test]
async fn echo_puts_the_prompt_before_the_answer() {
    let pod = pod();
    let body = json!({"prompt": "Once upon", "max_tokens": 10, "echo": true});
    let answer = pod.complete(body.clone()).await.ok();
    assert!(
        answer["choices"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("Once upon")
    );
    let chunks = pod.stream(COMPLETIONS, body).await;
    assert_eq!(
        streamed_content(&chunks, 0),
        answer["choices"][0]["text"].as_str().unwrap()
    );
    let tokens = pod
        .complete(json!({"prompt": [79, 110], "max_tokens": 1, "echo": true}))
        .await
        .ok();
    assert!(
        tokens["choices"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("On")
    );
}

#[tokio::test]
async fn many_at_once_get_the_answers_they_get_alone() {
    // Tight memory, so that preemption happens too: 8 sequences of up to 200 tokens share 512.
    let size = pagoda_engine::config::EngineSize {
        kv_bytes: Some(32 * 16 * (32 << 10)),
        ..small()
    };
    // Answers must overlap for that.
    let overlapping = pagoda_crds::wire::SimulatedConfig {
        decode_step_milliseconds: 2,
        ..fast()
    };
    let pod = Pod::simulated(overlapping, &size);
    let body = |n: usize| json!({"messages": user(&format!("number {n}")), "max_tokens": 60 + 10 * n, "ignore_eos": true});
    let mut alone = Vec::new();
    for n in 0..8 {
        alone.push(pod.chat(body(n)).await.ok()["choices"].clone());
    }
    let together: Vec<Value> = join_all((0..8).map(|n| pod.chat(body(n))))
        .await
        .iter()
        .map(|answer| answer.ok()["choices"].clone())
        .collect();
    assert_eq!(alone, together);
    assert!(
        pod.metric("vllm:num_preemptions_total").await > 0,
        "memory was not tight"
    );
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
}

#[tokio::test]
async fn models_carry_the_facts_and_say_that_they_are_simulated() {
    let pod = pod();
    let models = pod.get("/v1/models").await.ok();
    let names: Vec<&Value> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(names, ["m", "ns/svc"]);
    assert_eq!(models["data"][0]["pagoda"]["simulated"], true);
    assert_eq!(models["data"][0]["pagoda"]["contextTokens"], 512);
    assert_eq!(pod.get("/v1/models/m").await.ok(), models["data"][0]);
    assert_eq!(pod.get("/v1/models/ns/svc").await.ok()["id"], "ns/svc");
}

#[tokio::test]
async fn metrics_count_what_was_served() {
    let pod = pod();
    pod.chat(json!({"messages": user("hi"), "max_tokens": 7, "ignore_eos": true}))
        .await
        .ok();
    let value = async |name| pod.metric(name).await;
    assert_eq!(value("vllm:prompt_tokens_total").await, 20);
    assert_eq!(value("vllm:generation_tokens_total").await, 7);
    assert_eq!(value("vllm:request_success_total").await, 1);
    assert_eq!(value("vllm:time_to_first_token_seconds_count").await, 1);
    assert_eq!(value("vllm:inter_token_latency_seconds_count").await, 6);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count").await, 1);
    assert_eq!(value("vllm:request_queue_time_seconds_count").await, 1);
    let open =
        axum::http::Request::get("/metrics").header("accept", "application/openmetrics-text");
    let open = common::Answer::read(
        pod.send(open.body(axum::body::Body::empty()).unwrap())
            .await,
    )
    .await;
    assert!(
        open.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text().ends_with("# EOF\n"));
}
