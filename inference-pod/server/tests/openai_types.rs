//! Our answers read by somebody else's idea of OpenAI's shapes, and nothing of them lost on the way.

mod common;

use async_openai::types::chat::{CreateChatCompletionResponse, CreateChatCompletionStreamResponse};
use async_openai::types::completions::CreateCompletionResponse;
use async_openai::types::models::ListModelResponse;
use common::{Pod, fast, small, user};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Parses as `T` and compares every field that `T` writes back with what we sent.
fn check<T: DeserializeOwned + Serialize>(sent: &Value) {
    let parsed: T =
        serde_json::from_value(sent.clone()).unwrap_or_else(|error| panic!("{error} in {sent}"));
    let back = serde_json::to_value(parsed).expect("it came from JSON");
    agree("", sent, &back);
}

/// What both have is equal; what only the other side writes is null.
fn agree(path: &str, sent: &Value, back: &Value) {
    match (sent, back) {
        (Value::Object(sent), Value::Object(back)) => {
            for (key, value) in back {
                let path = format!("{path}.{key}");
                agree(&path, sent.get(key).unwrap_or(&Value::Null), value);
            }
        }
        (Value::Array(sent), Value::Array(back)) => {
            assert_eq!(sent.len(), back.len(), "{path}");
            for (sent, back) in sent.iter().zip(back) {
                agree(path, sent, back);
            }
        }
        _ => assert_eq!(sent, back, "{path}"),
    }
}

#[tokio::test]
async fn whole_answers_streams_and_models_are_what_other_clients_expect() {
    let pod = Pod::simulated(fast(), &small());
    let chat = json!({"messages": user("hello"), "max_tokens": 30, "n": 2});
    check::<CreateChatCompletionResponse>(&pod.chat(chat.clone()).await.ok());
    let completion = json!({"prompt": "once", "max_tokens": 30});
    check::<CreateCompletionResponse>(&pod.complete(completion.clone()).await.ok());
    check::<ListModelResponse>(&pod.get("/v1/models").await.ok());
    for chunk in pod.stream("/v1/chat/completions", chat.clone()).await {
        check::<CreateChatCompletionStreamResponse>(&chunk);
    }
    for chunk in pod.stream("/v1/completions", completion).await {
        check::<CreateCompletionResponse>(&chunk);
    }
    let scored =
        json!({"messages": user("hello"), "max_tokens": 8, "logprobs": true, "top_logprobs": 2});
    check::<CreateChatCompletionResponse>(&pod.chat(scored.clone()).await.ok());
    for chunk in pod.stream("/v1/chat/completions", scored).await {
        check::<CreateChatCompletionStreamResponse>(&chunk);
    }
    let scored = json!({"prompt": "once", "max_tokens": 8, "logprobs": 2, "echo": true});
    check::<CreateCompletionResponse>(&pod.complete(scored).await.ok());
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}}});
    let called = json!({"messages": user("hello"), "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    check::<CreateChatCompletionResponse>(&pod.chat(called.clone()).await.ok());
    for chunk in pod.stream("/v1/chat/completions", called).await {
        check::<CreateChatCompletionStreamResponse>(&chunk);
    }
    let mut with_usage = chat;
    with_usage["stream_options"] = json!({"include_usage": true});
    for chunk in pod.stream("/v1/chat/completions", with_usage).await {
        check::<CreateChatCompletionStreamResponse>(&chunk);
    }
}
