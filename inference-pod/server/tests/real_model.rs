//! The real model behind the real API: answers do not depend on who else is served.

mod common;

use std::path::PathBuf;

use common::{Pod, content, streamed_content, user};
use futures::future::join_all;
use pagoda_engine::config::{Backend, EngineSize};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn model() -> Backend {
    cached("smollm2-135m-instruct-q4_1.gguf", "run e2e/fetch-model")
}

fn cached(file: &str, remedy: &str) -> Backend {
    let cache = std::env::var_os("PAGODA_CACHE_DIR").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/pagoda")
    });
    let path = cache.join("models").join(file);
    assert!(path.exists(), "{} is missing: {remedy}", path.display());
    Backend::Cpu(path)
}

fn size() -> EngineSize {
    EngineSize {
        max_context_tokens: Some(1024),
        max_sequences: 8,
        step_tokens: 64,
        kv_bytes: Some(64 << 20),
        ..EngineSize::default()
    }
}

fn questions() -> Vec<Value> {
    let texts = [
        "What is the capital of France?",
        "Write one line about the sea.",
        "Count from one to ten.",
        "Translate 'good morning' to German.",
        "Why is the sky blue? Answer in one sentence, and mention scattering, wavelength and the atmosphere.",
        "Name three fruits.",
        "Say hello.",
        "What is 2 + 2?",
    ];
    let ask = |(n, text): (usize, &&str)| {
        // Half greedy, half drawn from a seed: neither may depend on the batch.
        let temperature = if n % 2 == 0 { 0.0 } else { 0.9 };
        json!({"messages": user(text), "max_tokens": 24, "temperature": temperature, "top_p": 0.95, "seed": n, "frequency_penalty": 0.2})
    };
    texts.iter().enumerate().map(ask).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_at_once_get_the_text_they_get_alone_bit_for_bit() {
    let pod = Pod::ready(&model(), &size(), 2);
    let mut alone = Vec::new();
    for question in questions() {
        alone.push(pod.chat(question).await.ok()["choices"].clone());
    }
    let together = join_all(questions().into_iter().map(|question| pod.chat(question))).await;
    let together: Vec<Value> = together
        .iter()
        .map(|answer| answer.ok()["choices"].clone())
        .collect();
    assert_eq!(alone, together);
    let streams = join_all(
        questions()
            .into_iter()
            .map(|question| pod.stream(CHAT, question)),
    )
    .await;
    for (stream, alone) in streams.iter().zip(&alone) {
        assert_eq!(
            streamed_content(stream, 0),
            alone[0]["message"]["content"].as_str().unwrap()
        );
    }
    // A client has its last token before the engine gives the blocks back.
    pod.wait_for_metric("pagoda_kv_blocks_used", |used| used == 0)
        .await;
}

#[tokio::test]
async fn it_knows_the_capital_of_france_and_never_shows_its_control_tokens() {
    let pod = Pod::ready(&model(), &size(), 2);
    let answer = pod.chat(json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 64})).await.ok();
    let text = content(&answer);
    assert!(text.contains("Paris"), "{text}");
    assert!(!text.contains("<|"), "{text}");
    let info = &pod.get("/v1/models").await.ok()["data"][0]["pagoda"];
    assert_eq!(
        (&info["architecture"], &info["executor"], &info["simulated"]),
        (&json!("llama"), &json!("cpu"), &json!(false))
    );
}

#[tokio::test]
#[ignore = "needs the 240 MB that `e2e/fetch-model gemma3` fetches"]
async fn gemma_3_goes_on_with_a_text_sensibly() {
    let model = cached("gemma-3-270m-q4_k_m.gguf", "run e2e/fetch-model gemma3");
    let pod = Pod::ready(&model, &size(), 2);
    let prompt =
        "The capital of France is Paris. The capital of Italy is Rome. The capital of Germany is";
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 8});
    let answer = pod.complete(body).await.ok();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.contains("Berlin"), "{text}");
}

#[tokio::test]
async fn choices_of_one_request_differ_and_repeat_with_its_seed() {
    let pod = Pod::ready(&model(), &size(), 2);
    let body = json!({"messages": user("Tell me something surprising."), "n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 16});
    let first = pod.chat(body.clone()).await.ok()["choices"].clone();
    assert_eq!(first, pod.chat(body).await.ok()["choices"]);
    let texts: Vec<&str> = first
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert!(
        texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2],
        "{texts:?}"
    );
}

#[tokio::test]
async fn stop_strings_across_several_tokens_are_found() {
    let pod = Pod::ready(&model(), &size(), 2);
    let body = json!({"prompt": "One, two, three, four,", "temperature": 0, "max_tokens": 24});
    let full = pod.complete(body.clone()).await.ok()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    // From the middle of one word to the middle of another.
    let stop = &full[8..22];
    let mut stopped = body;
    stopped["stop"] = json!(stop);
    let answer = pod.complete(stopped).await.ok();
    assert_eq!(
        answer["choices"][0]["text"],
        json!(full[..full.find(stop).unwrap()])
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn the_best_of_several_is_the_most_probable_and_all_are_counted() {
    let pod = Pod::ready(&model(), &size(), 2);
    let body = json!({"prompt": "once", "max_tokens": 8, "temperature": 1.5, "seed": 4, "ignore_eos": true});
    let mut all = body.clone();
    all["n"] = json!(4);
    all["logprobs"] = json!(0);
    let all = pod.complete(all).await.ok();
    let mean = |choice: &Value| {
        let values = choice["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap()
            .clone();
        values
            .iter()
            .map(|value| value.as_f64().unwrap())
            .sum::<f64>()
            / values.len() as f64
    };
    let mut choices = all["choices"].as_array().unwrap().clone();
    choices.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let mut best = body;
    best["best_of"] = json!(4);
    best["n"] = json!(2);
    let best = pod.complete(best).await.ok();
    assert_eq!(best["choices"].as_array().unwrap().len(), 2);
    for (kept, expected) in best["choices"].as_array().unwrap().iter().zip(&choices) {
        assert_eq!(kept["text"], expected["text"]);
        assert!(kept["logprobs"].is_null(), "nobody asked for them");
    }
    assert_eq!(best["usage"]["completion_tokens"], 32);
}

#[tokio::test]
async fn a_seed_holds_beside_requests_without_one() {
    let pod = Pod::ready(&model(), &size(), 2);
    let seeded = json!({"messages": user("surprise me"), "max_tokens": 30, "temperature": 1.8, "seed": 11, "n": 2});
    let alone = pod.chat(seeded.clone()).await.ok()["choices"].clone();
    assert_ne!(
        alone[0]["message"], alone[1]["message"],
        "choices of one seed differ"
    );
    let unseeded =
        || pod.chat(json!({"messages": user("surprise me"), "max_tokens": 30, "temperature": 1.8}));
    let (_, together, _) = tokio::join!(unseeded(), pod.chat(seeded), unseeded());
    assert_eq!(together.ok()["choices"], alone);
}

#[tokio::test]
async fn penalties_bias_and_forms_of_one_request_do_not_touch_its_neighbours() {
    let pod = Pod::ready(&model(), &size(), 2);
    let plain = json!({"messages": user("Say yes ten times."), "max_tokens": 24, "temperature": 0});
    let alone = pod.chat(plain.clone()).await.ok()["choices"].clone();
    let mut penalised = plain.clone();
    penalised["frequency_penalty"] = json!(2);
    penalised["logit_bias"] = json!({"30": 100});
    let mut formed = plain.clone();
    formed["response_format"] = json!({"type": "json_object"});
    let (beside, other, object, also) = tokio::join!(
        pod.chat(plain.clone()),
        pod.chat(penalised),
        pod.chat(formed),
        pod.chat(plain)
    );
    assert_eq!(
        (&beside.ok()["choices"], &also.ok()["choices"]),
        (&alone, &alone)
    );
    assert_ne!(other.ok()["choices"], alone);
    assert!(content(&object.ok()).starts_with('{'));
}

#[tokio::test]
async fn a_call_that_must_be_is_one_of_the_tools_with_arguments_that_fit() {
    let pod = Pod::ready(&model(), &size(), 2);
    let parameters = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    });
    let tool = json!({"type": "function", "function": {"name": "forecast", "description": "Weather to come", "parameters": parameters}});
    let body = json!({"messages": user("How will the weather in Rome be for the next three days?"), "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0, "max_tokens": 96});
    let answer = pod.chat(body).await.ok();
    let choice = &answer["choices"][0];
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (&call["name"], &choice["finish_reason"]),
        (&json!("forecast"), &json!("tool_calls")),
        "{answer}"
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(
        arguments["city"].is_string() && (1..=9).contains(&arguments["days"].as_i64().unwrap()),
        "{arguments}"
    );
}
