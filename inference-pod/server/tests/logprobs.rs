//! Log probabilities: of the model's own distribution, for every token of an answer once, whole and in streams.

mod common;

use common::{Pod, content, fast, small, user};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn pod() -> Pod {
    Pod::simulated(fast(), &small())
}

fn entries(choice: &Value) -> Vec<Value> {
    choice["logprobs"]["content"]
        .as_array()
        .expect("log probabilities")
        .clone()
}

/// The text that tokens' bytes make up.
fn text(entries: &[Value]) -> String {
    let bytes = entries
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap());
    String::from_utf8(bytes.map(|byte| byte.as_u64().unwrap() as u8).collect()).unwrap()
}

#[tokio::test]
async fn every_token_of_a_conversations_answer_has_its_own_and_its_rivals() {
    let body = json!({"messages": user("hi"), "max_tokens": 20, "temperature": 0, "logprobs": true, "top_logprobs": 4});
    let answer = pod().chat(body).await.ok();
    let entries = entries(&answer["choices"][0]);
    assert_eq!(answer["usage"]["completion_tokens"], entries.len());
    assert_eq!(text(&entries), content(&answer));
    for entry in &entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        let values: Vec<f64> = top
            .iter()
            .map(|rival| rival["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!(top.len(), 4);
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        assert!(values.iter().map(|value| value.exp()).sum::<f64>() <= 1.0 + 1e-5);
        // Greedy: the token is the most probable one.
        assert_eq!(
            (&top[0]["token"], top[0]["logprob"].as_f64()),
            (&entry["token"], entry["logprob"].as_f64())
        );
    }
}

#[tokio::test]
async fn they_are_of_the_distribution_before_a_form_cuts_it() {
    let pod = pod();
    let body = json!({"messages": user("hi"), "max_tokens": 1, "temperature": 0, "logprobs": true, "top_logprobs": 1});
    let plain = entries(&pod.chat(body).await.ok()["choices"][0])[0].clone();
    let form = json!({"messages": user("hi"), "max_tokens": 1, "logprobs": true, "top_logprobs": 1, "response_format": {"type": "json_object"}});
    let form = entries(&pod.chat(form).await.ok()["choices"][0])[0].clone();
    assert_eq!(form["token"], "{");
    assert_eq!(form["top_logprobs"], plain["top_logprobs"]);
    assert!(form["logprob"].as_f64() < plain["logprob"].as_f64());
}

#[tokio::test]
async fn a_stream_carries_what_the_whole_answer_carries() {
    let pod = pod();
    for extra in [
        json!({}),
        json!({"stop": ["e"]}),
        json!({"stop": ["\u{1F642}", "zzzz"]}),
    ] {
        let mut body = json!({"messages": user("tell me more"), "max_tokens": 40, "temperature": 0, "logprobs": true, "top_logprobs": 2});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let whole = pod.chat(body.clone()).await.ok();
        let whole_entries = entries(&whole["choices"][0]);
        assert_eq!(text(&whole_entries), content(&whole));
        let mut streamed = Vec::new();
        for chunk in pod.stream(CHAT, body).await {
            let choice = &chunk["choices"][0];
            if choice["delta"]["content"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
            {
                assert!(choice["logprobs"].is_object(), "{chunk}");
            }
            streamed.extend(
                choice["logprobs"]["content"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
        assert_eq!(streamed, whole_entries);
    }
}

#[tokio::test]
async fn a_completions_lists_are_parallel_and_their_offsets_point_into_the_text() {
    let pod = pod();
    let body = json!({"prompt": "once", "max_tokens": 12, "temperature": 0, "logprobs": 2});
    let whole = pod.complete(body.clone()).await.ok()["choices"][0].clone();
    let lists = &whole["logprobs"];
    let (tokens, offsets) = (
        lists["tokens"].as_array().unwrap(),
        lists["text_offset"].as_array().unwrap(),
    );
    assert_eq!(tokens.len(), 12);
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().unwrap().len(), 12, "{name}");
    }
    let text = whole["text"].as_str().unwrap();
    for (token, offset) in tokens.iter().zip(offsets) {
        let at = offset.as_u64().unwrap() as usize;
        assert!(text[at..].starts_with(token.as_str().unwrap()));
    }
    let chunks = pod.stream(COMPLETIONS, body).await;
    let streamed: Vec<Value> = chunks
        .iter()
        .flat_map(|chunk| {
            chunk["choices"][0]["logprobs"]["text_offset"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    assert_eq!(&streamed, offsets);
}

#[tokio::test]
async fn penalties_of_one_request_do_not_touch_its_neighbours() {
    let pod = pod();
    let plain =
        json!({"messages": user("again"), "max_tokens": 60, "temperature": 0, "ignore_eos": true});
    let alone = pod.chat(plain.clone()).await.ok()["choices"].clone();
    let mut penalised = plain.clone();
    penalised["frequency_penalty"] = json!(2);
    penalised["presence_penalty"] = json!(2);
    let (beside, _, also) = tokio::join!(
        pod.chat(plain.clone()),
        pod.chat(penalised),
        pod.chat(plain)
    );
    assert_eq!(
        (&beside.ok()["choices"], &also.ok()["choices"]),
        (&alone, &alone)
    );
}
